// coda/cuda/element.h: emits the CUDA statements that compute one element of a value.
//
// Pull-based: a value is asked for at the coordinates of its factors, and what it needs is asked
// for in turn: layout operations turn into arithmetic on coordinates, maps into calls of
// device/maps.cuh, reductions into loops, parameters into loads by their own strides. Every
// statement stands in the outermost scope that has the coordinates it needs, so that nothing is
// computed again inside a loop; equal expressions are computed once. The caller opens the scopes
// around (its kernel's loops) and may supply values that exist already: accumulators, what earlier
// kernels stored.
//
// NOTE: it knows nothing of threads. Every coordinate that is given must be in range where the
// scope of its depth begins.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coda/check/check.h"
#include "coda/cuda/arguments.h"
#include "coda/cuda/maps.h"

namespace coda::cuda {

// A name or literal of type `long long`, and the scope in which it is defined (0: the outermost).
struct Coordinate {
  std::string text = "0";
  int depth = 0;
};
// One for each factor of a value, in factors_of order.
using Coordinates = std::vector<Coordinate>;

// A name or literal in a lane.
struct Emitted {
  std::string text;
  Lane lane = Lane::f32;
  int depth = 0;
};

class ElementEmitter {
 public:
  // What the caller has at these coordinates; nullopt: it is to be computed.
  using Supply = std::function<std::optional<Emitted>(ElementEmitter&, Value, const Coordinates&)>;

  ElementEmitter(const Program& program, Arguments& arguments, Precision precision,
                 Supply supply = {});

  // ---- text ----
  int depth() const { return static_cast<int>(scopes_.size()) - 1; }
  // `head` and a scope in braces.
  void open(const std::string& head);
  void close();
  // In the innermost scope.
  void line(std::string_view statement);
  // `const type name = expression;` where the expression's names are of scope `depth`; the name. An
  // expression that is defined already keeps its name.
  std::string define(std::string_view type, std::string_view stem, const std::string& expression,
                     int depth);
  std::string fresh(std::string_view stem);  // a name that is not in use
  // Everything so far; all scopes that were opened are closed.
  std::string text() const;

  // ---- coordinates ----
  Coordinate coordinate(std::string_view stem, const std::string& expression, int depth);
  // The row-major position among factors of `dim`.
  Coordinate flat(const Dim& dim, std::span<const Coordinate> coordinates);
  // Its inverse.
  Coordinates divide(const Coordinate& position, const Dim& dim);
  // Of a value in row `row` and column `column` of a space. Throws Unsupported where a factor is
  // neither.
  Coordinates in_space(const Checked& checked, std::size_t space, Value value,
                       const Coordinate& row, const Coordinate& column);
  // Σ coordinate · stride of a tensor (results follow the parameters).
  std::string offset(int tensor, const Coordinates& coordinates);

  // ---- values ----
  Emitted value(Value value, const Coordinates& coordinates, Lane lane);
  Emitted value(Value value, const Coordinates& coordinates);
  // The element of a tensor in memory: what it holds, and a value rounded into it.
  Emitted load(int tensor, const Coordinates& coordinates);
  void store(int tensor, const Coordinates& coordinates, const std::string& value);

  Arguments& arguments() { return arguments_; }
  Lane real() const { return real_; }
  const Program& program() const { return program_; }
  // Values that are computed alike have one representative.
  Value representative(Value value) const { return equal_[static_cast<std::size_t>(value.id)]; }

  // ---- loops ----
  // In scope `depth`: the sum (in parts of 64 terms) or the maximum of `element` over first …
  // last - 1.
  using Term = std::function<Emitted(const Coordinate&)>;
  Emitted sum(std::string_view stem, Lane lane, int depth, const std::string& first,
              const std::string& last, const Term& element);
  Emitted maximum(std::string_view stem, Lane lane, int depth, const std::string& first,
                  const std::string& last, const Term& element);
  // log Σ exp, from the maximum and the sum of exp(element - maximum).
  Emitted finish_logsumexp(std::string_view stem, const Emitted& largest, const Emitted& total);
  std::string call(Op op, std::initializer_list<std::string> operands) const;

  // Coordinates of `value` from those of factors that have the same names.
  struct Named {
    std::vector<Factor> factors;
    Coordinates coordinates;
    void add(std::span<const Factor> more, const Coordinates& at);
  };
  Coordinates by_name(Value value, const Named& named) const;
  Named named(Value value, const Coordinates& coordinates) const;

 private:
  struct Scope {
    std::string head, text;
    std::map<std::string, std::string> names;  // expression → name
    std::map<std::string, Emitted> values;
  };

  void find_equal_values();
  const Type& type_of_tensor(int tensor) const;
  // Runs `make` with scope `depth` as the innermost one.
  template <class Make>
  void in_scope(int depth, const Make& make);
  void append(int depth, std::string_view statement);
  std::string stem_of(Value value) const;
  void comment(Value value, int depth);
  Emitted converted(const Emitted& from, Lane lane, std::string_view stem);

  Emitted compute(Value value, const Coordinates& coordinates, Lane lane);
  Emitted map(Value value, const Coordinates& coordinates, Lane lane);
  Emitted cast_value(Value value, const Coordinates& coordinates);
  // element_layout.cpp
  Emitted split(Value value, const Coordinates& coordinates, Lane lane);
  Emitted join(Value value, const Coordinates& coordinates, Lane lane);
  Emitted as(Value value, const Coordinates& coordinates, Lane lane);
  Emitted spread(Value value, const Coordinates& coordinates, Lane lane);
  Emitted position(Value value, const Coordinates& coordinates);
  Emitted uniform(Value value, const Coordinates& coordinates);
  Emitted gather(Value value, const Coordinates& coordinates);
  Emitted pick(Value value, const Coordinates& coordinates);
  // element_reduce.cpp
  Emitted reduce(Value value, const Coordinates& coordinates);

  const Program& program_;
  Arguments& arguments_;
  Lane real_;
  Precision precision_;
  Supply supply_;
  std::vector<Value> equal_;
  std::vector<Scope> scopes_;
  int names_ = 0;
};

int depth_of(std::span<const Coordinate> coordinates);

template <class Make>
void ElementEmitter::in_scope(int depth, const Make& make) {
  const auto first = scopes_.begin() + depth + 1;
  std::vector<Scope> inner(std::make_move_iterator(first), std::make_move_iterator(scopes_.end()));
  scopes_.erase(first, scopes_.end());
  make();
  std::move(inner.begin(), inner.end(), std::back_inserter(scopes_));
}

}  // namespace coda::cuda
