// coda/program/dims.h: named dimensions. A Factor is one named axis, a Dim is a product of factors
// on one storage axis.
//
// Both are immutable values compared by their canonical text: two axes align if and only if they
// are written the same. What a text says is kept once, for good, so that copies and comparisons
// cost next to nothing; any thread may make them. `E/2`, `E - R`, `blocks(N)` and the literal `2`
// are axes of their own, with a size that follows from other names.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace coda {

class Factor;

// A product of factors, outermost first; no factors: the extent 1. `B*S`, `H*(E/2)*2`.
struct Dim {
  std::vector<Factor> factors;

  std::string text() const;
  bool operator==(const Dim& other) const;
};

// Extents of names, in elements: {"M": 128}.
using Sizes = std::map<std::string, std::int64_t>;

class Factor {
 public:
  enum class Kind : std::uint8_t {
    name,      // M
    number,    // 2
    sum,       // E - R: signed terms
    quotient,  // E/2: exact division of a Dim by a number
    blocks,    // blocks(N, 64): ceil(N / 64)
  };
  struct Term {
    int sign = 1;
    Dim dim;
  };

  static Factor name(std::string name);
  static Factor number(std::int64_t number);
  static Factor sum(std::vector<Term> terms);
  static Factor quotient(Dim dim, std::int64_t divisor);
  static Factor blocks(Dim dim, std::int64_t block);

  Kind kind() const;
  const std::string& text() const;  // canonical; without outer parentheses
  std::int64_t number() const;  // number: its value; quotient: the divisor; blocks: the block size
  const Dim& dim() const;       // quotient, blocks: what is divided
  const std::vector<Term>& terms() const;

  bool operator==(const Factor& other) const {
    return data_ == other.data_ || text() == other.text();
  }
  std::strong_ordering operator<=>(const Factor& other) const { return text() <=> other.text(); }

 private:
  struct Data;
  explicit Factor(const Data* data) : data_(data) {}
  static Factor shared(Data&& data);
  const Data* data_;
};

Dim dim_of(Factor factor);
Dim dim_of(std::string name);
// a*b; factors in order.
Dim operator*(Dim a, const Dim& b);

// The extent under `sizes`; nullopt where a name has no size yet. Throws ProgramError for an
// inexact quotient or a negative sum.
std::optional<std::int64_t> extent(const Factor& factor, const Sizes& sizes);
std::optional<std::int64_t> extent(const Dim& dim, const Sizes& sizes);
// As above, but a missing name is a ProgramError that says how to give its size.
std::int64_t require_extent(const Factor& factor, const Sizes& sizes);
std::int64_t require_extent(const Dim& dim, const Sizes& sizes);

// Every plain name inside, also under quotients, sums and blocks.
void collect_names(const Dim& dim, std::set<std::string>& names);

// Names replaced by whole Dims: E := H*E turns E/2 into (H*E)/2 and B*E into B*H*E.
using Substitution = std::map<std::string, Dim>;
Dim substitute(const Dim& dim, const Substitution& substitution);

// Matches a declared Dim against an actual one and extends `substitution`; false where they cannot
// match. In a product the last names take one factor each and the first takes what is left: `H*E`
// on `B*H*E` gives H := B*H.
bool unify(const Dim& pattern, const Dim& actual, Substitution& substitution);

// Compares the extents as polynomials over the names: true / false where that decides it for all
// sizes but 0, else nullopt (bind time decides).
std::optional<bool> same_extent(const Dim& a, const Dim& b);

}  // namespace coda
