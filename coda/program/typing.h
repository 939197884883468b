// coda/program/typing.h: the type rule of every op.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "coda/program/program.h"

namespace coda {

// A broken type rule, before a source place is known: the Builder turns it into a ProgramError.
struct TypeError {
  std::string message;
  std::string rule;
  std::string fix;
};

// The types of the results of `op`. May complete `attr` (the contracted axis of a product, the dims
// of a spread or join). Throws TypeError.
std::vector<Type> infer(Op op, std::span<const Type> args, Attr& attr);

// f32, or f64 if any operand is f64; integers and bools stay i64 among themselves.
DType promote(std::span<const Type> args);

// The dims of an elementwise op on `a` and `b`: see docs/language.md, "Alignment". Throws
// TypeError.
std::vector<Dim> align(std::span<const Dim> a, std::span<const Dim> b);

// Throws TypeError where a value of type `value` cannot be stored in a result declared `declared`.
void require_storable(const Type& declared, const Type& value);

}  // namespace coda
