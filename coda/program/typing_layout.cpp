// coda/program/typing_layout.cpp: the type rules of split, join, as and spread.
#include <algorithm>

#include "coda/program/runs.h"
#include "coda/program/typing.h"
#include "coda/program/typing_layout.h"

namespace coda {

std::vector<Type> infer_split(const Type& operand, const Attr& attr) {
  const Run run = require_run(operand.dims, attr.axis);
  if (attr.dims.empty()) {
    throw TypeError{"split has no pieces", "split needs at least one piece",
                    "write `a, b = split(z, E: E/2, E/2)`"};
  }
  std::vector<Factor::Term> terms;
  for (const Dim& piece : attr.dims) terms.push_back({1, piece});
  const Dim total = terms.size() == 1 ? attr.dims[0] : Dim{{Factor::sum(terms)}};
  if (same_extent(total, attr.axis) == std::optional(false)) {
    throw TypeError{"the pieces " + total.text() + " do not add up to " + attr.axis.text(),
                    "the pieces of a split cover the dimension exactly",
                    "give pieces whose sizes add up to " + attr.axis.text()};
  }
  std::vector<Type> types;
  for (const Dim& piece : attr.dims) {
    Dims dims = replace(operand.dims, run, attr.axis.factors.size(), piece);
    require_distinct(dims);
    types.push_back({operand.dtype, std::move(dims)});
  }
  return types;
}

namespace {

// The pieces of `join(E: a, b)` where the text does not give them: see docs/language.md, "join".
Dims infer_pieces(std::span<const Type> args, const Dim& axis) {
  const auto sums_to_axis = [&](const Dims& pieces) {
    std::vector<Factor::Term> terms;
    for (const Dim& piece : pieces) terms.push_back({1, piece});
    const Dim total = terms.size() == 1 ? pieces[0] : Dim{{Factor::sum(terms)}};
    return same_extent(total, axis) == std::optional(true);
  };
  const std::size_t rank = args[0].dims.size();
  std::vector<std::size_t> differing;
  for (std::size_t d = 0; d < rank; ++d) {
    const auto differs = [&](const Type& t) {
      return !(t.dims[d] == args[0].dims[d]);
    };
    if (std::ranges::any_of(args, differs)) differing.push_back(d);
  }
  if (differing.size() > 1) {
    throw TypeError{"the operands of join differ in more than one dimension: " + args[0].text() +
                        " and " + args.back().text(),
                    "the operands of a join differ in the joined dimension only",
                    "make the other dimensions equal: `v as [...]`"};
  }
  Dims whole;
  if (differing.size() == 1) {
    const std::size_t d = differing[0];
    for (const Type& type : args) whole.push_back(type.dims[d]);
    // Shrink from both ends to what differs; prefer the smallest run that provably adds up.
    Dims pieces = whole;
    const auto all_have = [&](auto end) {
      return std::ranges::all_of(pieces, [&](const Dim& piece) {
        return piece.factors.size() > 1 && end(piece) == end(pieces[0]);
      });
    };
    const auto back = [](const Dim& dim) {
      return dim.factors.back();
    };
    const auto front = [](const Dim& dim) {
      return dim.factors.front();
    };
    while (all_have(back)) {
      for (Dim& piece : pieces) piece.factors.pop_back();
    }
    while (all_have(front)) {
      for (Dim& piece : pieces) piece.factors.erase(piece.factors.begin());
    }
    return sums_to_axis(pieces) ? pieces : whole;
  }
  std::vector<Dims> candidates;
  for (const Dim& dim : args[0].dims) {
    for (const Factor& factor : dim.factors) {
      Dims pieces(args.size(), Dim{{factor}});
      if (sums_to_axis(pieces)) candidates.push_back(std::move(pieces));
    }
    Dims pieces(args.size(), dim);
    if (dim.factors.size() > 1 && sums_to_axis(pieces)) candidates.push_back(std::move(pieces));
  }
  if (candidates.size() == 1) return candidates[0];
  throw TypeError{"the operands of join all have the dims " + text_of(args[0].dims) +
                      ", so the joined dimension is not clear",
                  "the joined place is where the operands differ, or the one that adds up to `" +
                      axis.text() + "`",
                  "name the pieces: `join(a, b, " + axis.text() + ": K, K)`"};
}

}  // namespace

Type infer_join(std::span<const Type> args, Attr& attr) {
  if (args.empty()) {
    throw TypeError{"join has no operands", "join needs at least one operand",
                    "write `join(E: a, b)`"};
  }
  for (const Type& type : args) {
    if (type.dims.size() != args[0].dims.size()) {
      throw TypeError{
          "the operands of join have different ranks: " + args[0].text() + " and " + type.text(),
          "the operands of a join differ in the joined dimension only", "join values of one rank"};
    }
  }
  if (attr.dims.empty()) attr.dims = infer_pieces(args, attr.axis);
  if (attr.dims.size() != args.size()) {
    throw TypeError{"join has " + std::to_string(args.size()) + " operands and " +
                        std::to_string(attr.dims.size()) + " pieces",
                    "join names one piece for each operand", "give one piece for each operand"};
  }
  Dims result;
  DType dtype = args[0].dtype;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const Run run = require_run(args[i].dims, attr.dims[i]);
    Dims dims = replace(args[i].dims, run, attr.dims[i].factors.size(), attr.axis);
    if (i > 0 && dims != result) {
      throw TypeError{"the operands of join give " + text_of(result) + " and " + text_of(dims),
                      "the operands of a join differ in the joined dimension only",
                      "make the other dimensions equal: `v as [...]`"};
    }
    result = std::move(dims);
    if (args[i].dtype != dtype) dtype = promote(args);
  }
  require_distinct(result);
  return {dtype, std::move(result)};
}

Type infer_as(const Type& operand, const Attr& attr) {
  if (attr.dims.size() != operand.dims.size()) {
    throw TypeError{"`as` gives " + std::to_string(attr.dims.size()) + " dimensions to " +
                        operand.text() + ", which has " + std::to_string(operand.dims.size()),
                    "`as` renames or factors each dimension in place",
                    "write one entry for each of " + text_of(operand.dims) +
                        ", in order; factors of one are joined by `*`: `H*E`"};
  }
  for (std::size_t d = 0; d < attr.dims.size(); ++d) {
    if (same_extent(attr.dims[d], operand.dims[d]) == std::optional(false)) {
      throw TypeError{"`as` gives `" + operand.dims[d].text() + "` the new form `" +
                          attr.dims[d].text() + "`, which has another size",
                      "`as` keeps the size of each dimension", "give factors of the same size"};
    }
  }
  require_distinct(attr.dims);
  return {operand.dtype, attr.dims};
}

Type infer_spread(const Type& operand, Attr& attr) {
  const std::vector<Factor> have = factors_of(operand);
  if (attr.dims.empty()) {
    attr.dims = operand.dims;
    attr.block = 0;
    for (const Factor& factor : have) {
      if (factor.kind() == Factor::Kind::blocks && factor.dim() == attr.axis) {
        attr.block = factor.number();
        const Run run = require_run(operand.dims, Dim{{factor}});
        attr.dims = replace(operand.dims, run, 1, attr.axis);
      }
    }
    if (attr.block == 0) attr.dims.push_back(attr.axis);
  }
  const std::vector<Factor> want = flat(attr.dims);
  std::vector<Factor> missing, gone;
  for (const Factor& factor : want) {
    if (!contains(have, factor)) missing.push_back(factor);
  }
  for (const Factor& factor : have) {
    if (!contains(want, factor)) gone.push_back(factor);
  }
  const bool block = gone.size() == 1 && gone[0].kind() == Factor::Kind::blocks &&
                     gone[0].dim().factors == missing;
  if (!gone.empty() && !block) {
    throw TypeError{"spread turns " + operand.text() + " into " + text_of(attr.dims) +
                        ", which lacks `" + gone[0].text() + "`",
                    "spread keeps every dimension, but one blocks(N) that becomes N",
                    "name all of " + text_of(operand.dims) + " in the result"};
  }
  attr.axis.factors = missing;
  attr.block = block ? gone[0].number() : 0;
  require_distinct(attr.dims);
  return {operand.dtype, attr.dims};
}

}  // namespace coda
