// coda/cuda/cache.cpp: keys, and entry files that are whole, or known not to be.
//
// A file: magic, key, checksum of the rest, then the kernels' resources, the log and the cubin,
// each with its length. It is written under another name and renamed, so that it is never seen half
// written; of two processes that write one entry the last one's stays.
#include "coda/cuda/cache.h"

#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "coda/core/error.h"
#include "coda/core/file.h"
#include "coda/core/flags.h"
#include "coda/core/sha256.h"

namespace coda::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "coda kernel 1\n";
constexpr std::string_view kSuffix = ".kernel";
constexpr std::size_t kKey = 64;  // hexadecimal digits
constexpr std::size_t kHeader = kMagic.size() + kKey + kKey;

// ---- keys ----

std::string digest_of(std::span<const DeviceFile> files) {
  Sha256 hash;
  for (const DeviceFile& file : files) {
    hash.add_part(file.name);
    hash.add_part(file.text);
  }
  return hex(hash.digest());
}

std::string key_of(std::string_view page, std::span<const DeviceFile> files,
                   const CompileOptions& options) {
  // The texts of device/ are the same in every call.
  static const std::string ours = digest_of(device_files());
  const bool is_ours = files.data() == device_files().data();
  Sha256 hash;
  hash.add_part(kMagic);
  hash.add_part(CODA_VERSION);
  hash.add_part(nvrtc_identity());
  for (const std::string& flag : compile_flags(options)) hash.add_part(flag);
  hash.add_part(is_ours ? ours : digest_of(files));
  hash.add_part(page);
  return hex(hash.digest());
}

// ---- entries as bytes ----

void put(std::string& out, std::int64_t number) {
  char bytes[8];
  std::memcpy(bytes, &number, sizeof(bytes));
  out.append(bytes, sizeof(bytes));
}

void put(std::string& out, std::string_view text) {
  put(out, static_cast<std::int64_t>(text.size()));
  out.append(text);
}

std::string payload_of(const Compiled& compiled) {
  std::string out;
  put(out, static_cast<std::int64_t>(compiled.entries.size()));
  for (const Compiled::Entry& entry : compiled.entries) {
    put(out, entry.name);
    put(out, entry.registers);
    put(out, entry.spill_stores);
    put(out, entry.spill_loads);
    put(out, entry.stack);
    put(out, entry.shared);
  }
  put(out, compiled.log);
  put(out, compiled.cubin);
  return out;
}

// Takes the parts of a payload off its front; `whole` turns false where it is too short.
struct Reader {
  std::string_view rest;
  bool whole = true;

  std::int64_t number() {
    std::int64_t value = 0;
    if (rest.size() < sizeof(value)) {
      whole = false;
      return 0;
    }
    std::memcpy(&value, rest.data(), sizeof(value));
    rest.remove_prefix(sizeof(value));
    return value;
  }

  std::string text() {
    const std::int64_t size = number();
    if (size < 0 || static_cast<std::uint64_t>(size) > rest.size()) {
      whole = false;
      return "";
    }
    const std::string out(rest.substr(0, static_cast<std::size_t>(size)));
    rest.remove_prefix(out.size());
    return out;
  }
};

// nullopt, and what is wrong, where the file is no whole entry of that key.
std::optional<Compiled> parse_entry(std::string_view file, std::string_view key,
                                    std::string& wrong) {
  if (file.size() < kHeader || !file.starts_with(kMagic)) {
    wrong = "it is no entry of this version, or is cut off";
    return std::nullopt;
  }
  if (file.substr(kMagic.size(), kKey) != key) {
    wrong = "it holds another page than its name says";
    return std::nullopt;
  }
  const std::string_view payload = file.substr(kHeader);
  if (file.substr(kMagic.size() + kKey, kKey) != hex(sha256(payload))) {
    wrong = "its checksum is wrong";
    return std::nullopt;
  }
  Reader reader{payload};
  Compiled compiled;
  for (std::int64_t left = reader.number(); left > 0 && reader.whole; --left) {
    compiled.entries.push_back({.name = reader.text(),
                                .registers = static_cast<int>(reader.number()),
                                .spill_stores = static_cast<int>(reader.number()),
                                .spill_loads = static_cast<int>(reader.number()),
                                .stack = reader.number(),
                                .shared = reader.number()});
  }
  compiled.log = reader.text();
  compiled.cubin = reader.text();
  if (!reader.whole || !reader.rest.empty()) {
    wrong = "its parts do not fill it";
    return std::nullopt;
  }
  return compiled;
}

}  // namespace

Cache& Cache::process() {
  static Cache cache(flags::cache());
  return cache;
}

std::string Cache::once(const std::string& note) {
  if (note.empty()) return note;
  const std::lock_guard lock(mutex_);
  return said_.insert(note).second ? note : "";
}

std::string Cache::path_of(std::string_view page, std::span<const DeviceFile> files,
                           const CompileOptions& options) const {
  return folder_ + "/" + key_of(page, files, options) + std::string(kSuffix);
}

void Cache::store(const std::string& key, const Compiled& compiled, std::string& note) {
  try {
    std::error_code error;
    if (fs::create_directories(folder_, error)) {
      // What is loaded into the GPU is nobody else's to write.
      fs::permissions(folder_, fs::perms::owner_all, error);
    } else if (error) {
      throw ProgramError("cannot make " + folder_ + ": " + error.message(), "");
    }
    const std::string payload = payload_of(compiled);
    OutputFile file(folder_ + "/" + key + std::string(kSuffix));
    const std::string header = std::string(kMagic) + key + hex(sha256(payload));
    file.write(header.data(), header.size());
    file.write(payload.data(), payload.size());
    file.commit();
  } catch (const ProgramError& error) {
    note += (note.empty() ? "" : "\n") + std::string("kernels are not kept: ") +
            error.diagnostics().front().message +
            "; set CODA_CACHE to a folder that can be written, or to off";
  }
}

Cached Cache::load_or_compile(const std::string& key, std::string_view name, std::string_view page,
                              std::span<const DeviceFile> files, const CompileOptions& options) {
  std::string note;
  const std::string path = folder_ + "/" + key + std::string(kSuffix);
  std::error_code error;
  if (!folder_.empty() && fs::exists(path, error)) {
    std::string wrong;
    try {
      if (auto compiled = parse_entry(read_file(path), key, wrong)) {
        return {.kernel = std::make_shared<const Compiled>(std::move(*compiled)),
                .from = Cached::From::folder};
      }
    } catch (const ProgramError& unreadable) {
      // Deleted since, or another user's.
      wrong = unreadable.diagnostics().front().message;
    }
    note = "the cached kernel of " + std::string(name) + " is damaged (" + wrong + "): " + path +
           "; it was compiled again";
  }
  Compiled compiled = compile(name, page, files, options);
  if (!folder_.empty()) store(key, compiled, note);
  return {.kernel = std::make_shared<const Compiled>(std::move(compiled)),
          .from = Cached::From::compiler,
          .note = note};
}

Cached Cache::get(std::string_view name, std::string_view page, std::span<const DeviceFile> files,
                  const CompileOptions& options) {
  const std::string key = key_of(page, files, options);
  std::promise<std::shared_ptr<const Compiled>> promise;
  {
    std::unique_lock lock(mutex_);
    if (const auto found = kernels_.find(key); found != kernels_.end()) {
      const auto kernel = found->second;
      lock.unlock();
      return {.kernel = kernel.get()};
    }
    kernels_.emplace(key, promise.get_future().share());
  }
  try {
    Cached cached = load_or_compile(key, name, page, files, options);
    cached.note = once(cached.note);
    promise.set_value(cached.kernel);
    return cached;
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      kernels_.erase(key);  // those who wait get this error, those who come later try again
    }
    promise.set_exception(std::current_exception());
    throw;
  }
}

Cache::Use Cache::use() const {
  Use use;
  if (folder_.empty()) return use;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
    if (entry.path().extension() != kSuffix) continue;
    std::error_code gone;
    const std::uintmax_t bytes = entry.file_size(gone);
    if (gone) continue;
    use.entries += 1;
    use.bytes += static_cast<std::int64_t>(bytes);
  }
  return use;
}

}  // namespace coda::cuda
