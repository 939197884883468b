// coda/backend/arena.h: ranges of one block of scratch memory, reused once they are free.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>

namespace coda {

inline constexpr std::size_t kAlign = 64;

inline std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

// Ranges of a growing address space: first fit, neighbours merged when they are free again.
class AddressSpace {
 public:
  std::size_t take(std::size_t bytes) {
    bytes = std::max(aligned(bytes), kAlign);  // an empty tensor has a place of its own too
    for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
      if (hole->second < bytes) continue;
      const std::size_t offset = hole->first;
      const std::size_t rest = hole->second - bytes;
      holes_.erase(hole);
      if (rest > 0) holes_[offset + bytes] = rest;
      return offset;
    }
    std::size_t offset = end_;
    if (!holes_.empty()) {
      const auto last = std::prev(holes_.end());
      if (last->first + last->second == end_) {
        offset = last->first;
        holes_.erase(last);
      }
    }
    end_ = offset + bytes;
    return offset;
  }

  void give_back(std::size_t offset, std::size_t bytes) {
    bytes = std::max(aligned(bytes), kAlign);
    auto hole = holes_.emplace(offset, bytes).first;
    const auto next = std::next(hole);
    if (next != holes_.end() && offset + bytes == next->first) {
      hole->second += next->second;
      holes_.erase(next);
    }
    if (hole != holes_.begin()) {
      const auto before = std::prev(hole);
      if (before->first + before->second == hole->first) {
        before->second += hole->second;
        holes_.erase(hole);
      }
    }
  }

  std::size_t end() const { return end_; }

 private:
  std::map<std::size_t, std::size_t> holes_;  // offset → bytes
  std::size_t end_ = 0;
};

}  // namespace coda
