// coda/core/file.h: reading files in pieces, and writing them so that nobody ever sees half of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace coda {

// A file opened for reading. Throws ProgramError, with the system's reason, where it is missing, a
// folder or unreadable.
class InputFile {
 public:
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t bytes() const { return bytes_; }
  // Fills to[0:count] from file[offset:offset+count]. Throws ProgramError where the file is
  // shorter.
  void read(std::int64_t offset, void* to, std::size_t count) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::int64_t bytes_ = 0;
};

// A file that appears under its name only when commit() has returned: until then it is a temporary
// file beside it, which the destructor removes.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  void write(const void* data, std::size_t count);
  // To the disk, still under the temporary name: what is left of commit() needs no more space.
  void sync();
  void commit();  // to the disk, then renamed: the old file or the new one survives a power cut

 private:
  [[noreturn]] void fail(std::string_view action) const;

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
};

// This process alone writes into a folder, until the lock goes. Throws ProgramError where another
// process has it, or where there is no such folder.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

// The name of the file that an OutputFile was writing under the temporary name `name`; "" for other
// names. Such a file stays where its process was killed.
std::string temporary_of(std::string_view name);

std::string read_file(const std::string& path);
void write_file(const std::string& path, std::string_view text);

}  // namespace coda
