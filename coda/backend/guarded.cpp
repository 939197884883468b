// coda/backend/guarded.cpp: one block of the backend's memory, and its image on the host.
//
// The image holds guard zone, tensor, guard zone, tensor, …, scratch, guard zone. It goes to the
// memory as a whole and comes back as a whole; every byte that is no result's must come back as it
// went.
#include "coda/backend/guarded.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "coda/core/error.h"

namespace coda {
namespace {

constexpr std::size_t kKept = 256;  // addresses are the same modulo this
constexpr std::byte kPattern{0xa5};
constexpr std::byte kPoison{0xff};

// Bytes [begin, end) of the image, and where they came from.
struct Region {
  std::string name;
  std::size_t begin = 0, end = 0;
  std::byte* host = nullptr;  // null: scratch
  std::size_t first = 0;      // of the tensor's first element, from `begin` on
  bool changes = false;
};

std::size_t round_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

// Where the tensor's bytes lie around its first element.
Region spanned(const Tensor& tensor, std::string name, bool changes) {
  std::int64_t low = 0, high = 0;
  const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    const std::int64_t reach = (tensor.shape[d] - 1) * tensor.strides[d] * size;
    (reach < 0 ? low : high) += reach;
  }
  high += size;
  const bool is_empty = tensor.elements() == 0;
  Region region{.name = std::move(name), .changes = changes};
  region.first = is_empty ? 0 : static_cast<std::size_t>(-low);
  region.end = is_empty ? 0 : static_cast<std::size_t>(high - low);
  region.host = static_cast<std::byte*>(tensor.data) - region.first;
  return region;
}

class Image {
 public:
  Image(std::span<const Tensor> params, std::span<const Tensor> results,
        std::size_t scratch_bytes) {
    for (std::size_t i = 0; i < params.size(); ++i) {
      add(spanned(params[i], "parameter " + std::to_string(i), false));
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      add(spanned(results[i], "result " + std::to_string(i), true));
    }
    add({.name = "scratch", .end = scratch_bytes, .changes = true});
    bytes_.assign(end_ + kGuard, kPattern);
    for (const Region& region : regions_) {
      std::byte* to = bytes_.data() + region.begin;
      const std::size_t size = region.end - region.begin;
      if (size == 0) continue;
      if (region.host != nullptr) {
        std::memcpy(to, region.host, size);
      } else {
        std::memset(to, static_cast<int>(kPoison), size);
      }
    }
  }

  std::size_t size() const { return bytes_.size(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::size_t regions() const { return regions_.size(); }
  std::size_t place_of(std::size_t region) const {
    return regions_[region].begin + regions_[region].first;
  }

  // What has come back: bytes outside of regions that change must be as they were.
  void check(std::string_view name, const std::vector<std::byte>& now) const {
    std::size_t at = 0;
    for (std::size_t r = 0; r < regions_.size(); ++r) {
      const Region& region = regions_[r];
      if (region.changes) {
        same(name, now, at, region.begin, r);
      } else {
        same(name, now, at, region.end, r);
      }
      at = region.end;
    }
    same(name, now, at, bytes_.size(), regions_.size());
  }

  void copy_results(const std::vector<std::byte>& now) const {
    for (const Region& region : regions_) {
      if (!region.changes || region.host == nullptr || region.end == region.begin) continue;
      std::memcpy(region.host, now.data() + region.begin, region.end - region.begin);
    }
  }

 private:
  void add(Region region) {
    const std::size_t size = region.end;
    const std::size_t shift = reinterpret_cast<std::uintptr_t>(region.host) % kKept;
    region.begin = round_up(end_ + kGuard, kKept) + shift;
    region.end = region.begin + size;
    end_ = region.end;
    regions_.push_back(std::move(region));
  }

  // Bytes [begin, end) before or in region `r`.
  void same(std::string_view name, const std::vector<std::byte>& now, std::size_t begin,
            std::size_t end, std::size_t r) const {
    const auto first = bytes_.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = bytes_.begin() + static_cast<std::ptrdiff_t>(end);
    const auto found =
        std::mismatch(first, last, now.begin() + static_cast<std::ptrdiff_t>(begin)).first;
    if (found == last) return;
    const auto at = static_cast<std::size_t>(found - bytes_.begin());
    std::string what = std::string(name) + " wrote ";
    if (r < regions_.size() && at >= regions_[r].begin) {
      what += "into " + regions_[r].name + ", byte " + std::to_string(at - regions_[r].begin);
    } else {
      const bool is_after =
          r > 0 && (r == regions_.size() || at - regions_[r - 1].end < regions_[r].begin - at);
      what += is_after ? std::to_string(at - regions_[r - 1].end) + " bytes past the end of " +
                             regions_[r - 1].name
                       : std::to_string(regions_[r].begin - at) + " bytes before the begin of " +
                             regions_[r].name;
    }
    throw InternalError(what);
  }

  std::vector<Region> regions_;
  std::size_t end_ = 0;
  std::vector<std::byte> bytes_;
};

// Released when it goes out of scope.
class Block {
 public:
  Block(const Memory& memory, std::size_t bytes) : memory_(memory) {
    memory_begin_ = memory_.allocate(bytes);
  }
  ~Block() { memory_.release(memory_begin_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(memory_begin_); }

 private:
  const Memory& memory_;
  void* memory_begin_ = nullptr;
};

}  // namespace

void run_guarded(const Memory& memory, std::string_view name, std::span<const Tensor> params,
                 std::span<const Tensor> results, std::size_t scratch_bytes,
                 const GuardedRun& run) {
  const Image image(params, results, scratch_bytes);
  const Block block(memory, image.size() + kKept);
  std::byte* base = block.data();
  base += round_up(reinterpret_cast<std::uintptr_t>(base), kKept) -
          reinterpret_cast<std::uintptr_t>(base);
  memory.copy_in(base, image.bytes().data(), image.size());
  std::vector<Tensor> inside;
  for (const auto tensors : {params, results}) {
    for (const Tensor& tensor : tensors) {
      inside.push_back(tensor);
      inside.back().data = base + image.place_of(inside.size() - 1);
    }
  }
  const std::span<const Tensor> all = inside;
  run(all.first(params.size()), all.subspan(params.size()),
      {base + image.place_of(inside.size()), scratch_bytes});
  memory.wait({});
  std::vector<std::byte> now(image.size());
  memory.copy_out(now.data(), base, now.size());
  image.check(name, now);
  image.copy_results(now);
}

}  // namespace coda
