// coda/core/file.cpp: files through the system's own calls, each failure with its reason.
#include "coda/core/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "coda/core/error.h"

namespace coda {
namespace {

constexpr std::string_view kTemporary = ".part-";  // behind a file's name, before a number

std::string reason() {
  return std::strerror(errno);
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // NOTE: without O_NONBLOCK, opening a named pipe that has no writer waits for ever.
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) {
    throw ProgramError("cannot open " + path_ + ": " + reason(),
                       "check the path and its permissions");
  }
  struct stat status{};
  const bool known = fstat(descriptor_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    close(descriptor_);
    throw ProgramError(
        path_ + " is " + (known && S_ISDIR(status.st_mode) ? "a folder" : "no regular file"),
        "name a file");
  }
  bytes_ = status.st_size;
}

InputFile::~InputFile() {
  close(descriptor_);
}

void InputFile::read(std::int64_t offset, void* to, std::size_t count) const {
  auto* next = static_cast<std::byte*>(to);
  while (count > 0) {
    const ssize_t got = pread(descriptor_, next, count, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw ProgramError("cannot read " + path_ + ": " + reason(), "check the disk");
    if (got == 0) {
      throw ProgramError(path_ + " ends at byte " + std::to_string(offset) + ", " +
                             std::to_string(count) + " bytes too early",
                         "the file is truncated: write or download it again");
    }
    next += got;
    offset += got;
    count -= static_cast<std::size_t>(got);
  }
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  static std::atomic<int> serial{0};
  temporary_ =
      path_ + std::string(kTemporary) + std::to_string(getpid()) + "-" + std::to_string(serial++);
  descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("create");
  struct stat status{};
  if (stat(path_.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    close(descriptor_);
    unlink(temporary_.c_str());
    throw ProgramError(path_ + " is a folder", "name a file");
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void OutputFile::fail(std::string_view action) const {
  const bool full = errno == ENOSPC || errno == EDQUOT;
  throw ProgramError("cannot " + std::string(action) + " " + path_ + ": " + reason(),
                     full ? "free space on the disk of " + folder_of(path_) + ", or name another"
                          : "check that " + folder_of(path_) + " exists and is writable");
}

void OutputFile::write(const void* data, std::size_t count) {
  const auto* next = static_cast<const std::byte*>(data);
  while (count > 0) {
    const ssize_t put = ::write(descriptor_, next, count);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write");
    next += put;
    count -= static_cast<std::size_t>(put);
  }
}

void OutputFile::sync() {
  if (fsync(descriptor_) != 0) fail("write");
}

void OutputFile::commit() {
  sync();
  if (close(std::exchange(descriptor_, -1)) != 0) fail("write");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("replace");
  temporary_.clear();
  // The name is data of the folder, and needs its own sync.
  const int folder = open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    fsync(folder);
    close(folder);
  }
}

FolderLock::FolderLock(const std::string& folder) {
  descriptor_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0) {
    throw ProgramError("cannot open the folder " + folder + ": " + reason(),
                       "name a folder that is there");
  }
  // NOTE: some network file systems have no locks; there nobody is kept away.
  if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  close(descriptor_);
  throw ProgramError("another process is writing into " + folder,
                     "wait until it has ended, or name another folder");
}

FolderLock::~FolderLock() {
  close(descriptor_);
}

std::string temporary_of(std::string_view name) {
  const std::size_t at = name.rfind(kTemporary);
  return at == std::string_view::npos ? "" : std::string(name.substr(0, at));
}

std::string read_file(const std::string& path) {
  const InputFile file(path);
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

void write_file(const std::string& path, std::string_view text) {
  OutputFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace coda
