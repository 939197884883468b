// coda/cuda/cache.h: compiled pages, kept in memory and in a folder that processes share.
//
// An entry's name is the SHA-256 of everything that its cubin depends on, so nothing is ever out of
// date; what is no longer asked for may be deleted at any time.
#pragma once

#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "coda/cuda/nvrtc.h"

namespace coda::cuda {

struct Cached {
  enum class From : std::uint8_t { memory, folder, compiler };
  std::shared_ptr<const Compiled> kernel;
  From from = From::memory;
  // What a person should know: the entry was damaged, or the folder cannot be written. Said once
  // for each cause; empty: nothing.
  std::string note;
};

// All members may be called from several threads, and several processes may share a folder. One
// page is compiled once, however many threads ask for it.
class Cache {
 public:
  // Made where it is missing; empty: nothing outlives the process.
  explicit Cache(std::string folder) : folder_(std::move(folder)) {}

  // The one of this process, in flags::cache().
  static Cache& process();

  // Throws as compile().
  Cached get(std::string_view name, std::string_view page, std::span<const DeviceFile> files,
             const CompileOptions& options = {});

  const std::string& folder() const { return folder_; }
  // What get() would name the entry in the folder.
  std::string path_of(std::string_view page, std::span<const DeviceFile> files,
                      const CompileOptions& options = {}) const;

  struct Use {
    std::int64_t entries = 0;
    std::int64_t bytes = 0;
  };
  Use use() const;  // of the folder

 private:
  Cached load_or_compile(const std::string& key, std::string_view name, std::string_view page,
                         std::span<const DeviceFile> files, const CompileOptions& options);
  void store(const std::string& key, const Compiled& compiled, std::string& note);
  // `note` where it was not said before, else empty.
  std::string once(const std::string& note);

  std::string folder_;
  std::mutex mutex_;
  std::map<std::string, std::shared_future<std::shared_ptr<const Compiled>>> kernels_;
  std::set<std::string> said_;
};

}  // namespace coda::cuda
