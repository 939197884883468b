// tests/random_text.h: a random block while it is written: chance, dims, parameters, statements.
#pragma once

#include <cctype>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coda/program/text.h"

namespace coda::testing {

class RandomText {
 public:
  const std::string& text() const { return text_; }
  Program program() const { return parse(text_, "random.coda").find(""); }
  const Sizes& sizes() const { return sizes_; }
  // What the block has that a rule looks at.
  const std::set<std::string>& features() const { return features_; }

 protected:
  using Text = std::string;

  explicit RandomText(std::uint64_t seed) : random_(seed), seed_(seed) {}

  // ---- chance ----

  int one_of(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }
  bool chance(int percent) { return one_of(100) < percent; }
  template <class T>
  T pick(std::initializer_list<T> from) {
    return from.begin()[one_of(static_cast<int>(from.size()))];
  }
  Text pick(std::initializer_list<const char*> from) {
    return from.begin()[one_of(static_cast<int>(from.size()))];
  }
  // Whether the block gets `feature`, at this place.
  bool has(const char* feature, int percent) {
    if (!chance(percent)) return false;
    features_.insert(feature);
    return true;
  }

  // ---- sizes and dtypes ----

  std::int64_t small() { return pick({2, 3, 4, 5}); }
  std::int64_t any_size() {
    const int kind = one_of(100);
    if (kind < 3) return 0;
    if (kind < 12) return 1;
    if (kind < 84) return small();
    if (kind < 97) return pick({8, 63, 64, 65, 70});
    return pick({129, 200, 300});
  }

  void draw_frame() {
    batched_ = chance(50);
    rows_ = batched_ ? "B*S" : "M";
    sequence_ = batched_ ? "S" : "M";
    sizes_ = {{"M", any_size()},
              {"B", pick({0, 1, 2, 2, 2, 3})},
              {"S", pick({0, 1, 2, 3, 5})},
              {"D", any_size()},
              {"F", any_size()},
              {"L", any_size()},
              {"V", any_size()},
              {"R", pick({1, 2, 3})},
              {"G", pick({1, 1, 2})},
              {"T", 2},
              {"E", pick({2, 4, 4, 6, 64})}};
    if (batched_ && chance(4)) sizes_["S"] = 70;
    sizes_["H"] = sizes_["G"] * pick({1, 2, 3});
    sizes_["C"] = sizes_["D"];
    sizes_["P"] = sizes_["S"] + 2;
    sizes_["U"] = 2 * sizes_["F"];
    sizes_["N"] = (sizes_["H"] + 2 * sizes_["G"]) * sizes_["E"];
    const int kind = one_of(100);
    dtype_ = kind < 70 ? "bf16" : kind < 82 ? "f16" : kind < 94 ? "f32" : "f64";
    features_.insert(dtype_);
    eps_ = chance(50) ? scalar("eps") : pick({"1e-2", "0.1"});
  }

  // ---- text ----

  Text param(const Text& base, const Text& dims, const Text& dtype) {
    const Text name = base + std::to_string(++count_);
    params_.push_back({name, dtype + "[" + dims + "]"});
    return name;
  }
  Text weight(const Text& base, const Text& dims) {
    const Text name = param(base, dims, dtype_);
    weights_[dims].push_back(name);
    return name;
  }
  Text vector(const Text& base, const Text& dims) {
    return param(base, dims, chance(70) ? dtype_ : "f32");
  }
  Text scalar(const Text& name) {
    if (scalars_.insert(name).second) params_.push_back({name, dtype_ == "f64" ? "f64" : "f32"});
    return name;
  }

  static bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

  // Values that an expression reads are no results for want of a reader.
  void read(const Text& expression) {
    for (std::size_t i = 0; i < expression.size();) {
      std::size_t end = i;
      while (end < expression.size() && is_letter(expression[end])) ++end;
      unread_.erase(expression.substr(i, end - i));
      i = end == i ? i + 1 : end;
    }
  }
  void declare(const Text& name, const Text& dims) {
    dims_[name] = dims;
    unread_.insert(name);
  }
  Text let(const Text& base, const Text& dims, const Text& expression) {
    const Text name = base + std::to_string(++count_);
    read(expression);
    body_ += "  " + name + " = " + expression + "\n";
    declare(name, dims);
    return name;
  }
  // A value of `rows` × `width` by a name, or in brackets.
  Text value(const Text& base, const Text& width, const Text& expression) {
    if (chance(50)) return "(" + expression + ")";
    return let(base, rows_ + ", " + width, expression);
  }
  static Text in_brackets(const Text& expression) { return "(" + expression + ")"; }

  // ---- scales and casts ----

  Text odd(const Text& v, const Text& width) {
    switch (one_of(8)) {
      case 0:
        return "2 * " + v;
      case 1:
        return v + " / 3";
      case 2:
        return "-" + v;
      case 3:
        return v + " * sqrt(size(D))";
      case 4:
        return scalar("s") + " * " + v;
      case 5:
        return v + " / " + scalar("s");
      case 6:
        return v + " * " + vector("c", width);
      default:
        return vector("p", rows_) + " * " + v;
    }
  }
  Text scaled(const Text& v, const Text& width, int percent) {
    if (!has("odd scale", percent)) return v;
    return in_brackets(odd(v, width));
  }
  Text cast(const Text& v, int percent) {
    if (!chance(percent)) return v;
    if (has("pin", 30)) return "(pin " + dtype_ + "(" + v + "))";
    features_.insert("cast");
    return pick({"f32", "bf16"}) + "(" + v + ")";
  }

  std::mt19937_64 random_;
  std::uint64_t seed_;
  Sizes sizes_;
  bool batched_ = false;
  Text rows_, sequence_, dtype_, eps_;
  std::vector<std::pair<Text, Text>> params_;  // name, type
  std::map<Text, std::vector<Text>> weights_;  // by dims
  std::set<Text> scalars_, unread_, features_;
  std::map<Text, Text> dims_;  // of values
  Text body_, text_;
  int count_ = 0;
};

}  // namespace coda::testing
