// coda/cuda/pressure.h: how many registers of a thread an epilogue takes, before it is compiled.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace coda::cuda {

// Of the statements of a chunk, in their order. The compiler has its own order, so this is a guess;
// what it is good for was fitted to the pages of the library (kMostRegisters in tile.cpp).
class Pressure {
 public:
  // By the next statement, which is the last one until something reads the value.
  void define(const std::string& name, int registers) { live_[name] = {next_, next_, registers}; }
  // By the next statement; of names that no statement defines: nothing.
  void use(const std::string& name) {
    if (const auto found = live_.find(name); found != live_.end()) found->second.last = next_;
  }
  // What the next statement needs for itself alone.
  void borrow(int registers) { borrowed_[next_] = registers; }
  void end_statement() { ++next_; }
  // What lives through all statements.
  void hold(int registers) { held_ += registers; }

  // Of the values that live at once, the most; and what is held.
  int peak() const {
    std::vector<int> now(static_cast<std::size_t>(next_) + 1, 0);
    for (const auto& [name, value] : live_) {
      for (int at = value.first; at < std::max(value.first + 1, value.last); ++at) {
        now[static_cast<std::size_t>(at)] += value.registers;
      }
    }
    for (const auto& [at, registers] : borrowed_) now[static_cast<std::size_t>(at)] += registers;
    return *std::ranges::max_element(now);
  }
  int held() const { return held_; }

 private:
  struct Value {
    int first = 0, last = 0, registers = 0;
  };
  std::map<std::string, Value> live_;
  std::map<int, int> borrowed_;
  int next_ = 0, held_ = 0;
};

}  // namespace coda::cuda
