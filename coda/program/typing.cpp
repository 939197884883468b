// coda/program/typing.cpp: the type rule of every op, one function a class of ops.
//
// Knows nothing of kernels, tiles or sizes: only names. Extents that names cannot decide are
// checked when sizes bind.
#include "coda/program/typing.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace coda {
namespace {

using Dims = std::vector<Dim>;

std::string text_of(std::span<const Dim> dims) {
  std::string text = "[";
  for (const Dim& dim : dims) text += (text.size() == 1 ? "" : ", ") + dim.text();
  return text + "]";
}

std::vector<Factor> flat(std::span<const Dim> dims) {
  std::vector<Factor> factors;
  for (const Dim& dim : dims) {
    factors.insert(factors.end(), dim.factors.begin(), dim.factors.end());
  }
  return factors;
}

bool contains(const std::vector<Factor>& factors, const Factor& factor) {
  return std::ranges::find(factors, factor) != factors.end();
}

bool contains_all(const std::vector<Factor>& all, const std::vector<Factor>& some) {
  return std::ranges::all_of(some, [&](const Factor& f) { return contains(all, f); });
}

void require_distinct(std::span<const Dim> dims) {
  std::set<std::string> seen;
  for (const Factor& factor : flat(dims)) {
    if (!seen.insert(factor.text()).second) {
      throw TypeError{
          "the result " + text_of(dims) + " would have the dimension `" + factor.text() + "` twice",
          "a tensor may not repeat a dimension name", "rename one of them first: `v as [...]`"};
    }
  }
}

// Where the factors of `axis` stand side by side inside one dim.
struct Run {
  std::size_t dim = 0, first = 0;
};

std::optional<Run> find_run(std::span<const Dim> dims, const Dim& axis) {
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const auto found = std::ranges::search(dims[d].factors, axis.factors);
    if (!axis.factors.empty() && !found.empty()) {
      return Run{d, static_cast<std::size_t>(found.begin() - dims[d].factors.begin())};
    }
  }
  return std::nullopt;
}

Run require_run(std::span<const Dim> dims, const Dim& axis) {
  if (const auto run = find_run(dims, axis)) return *run;
  throw TypeError{"the operand " + text_of(dims) + " has no dimension `" + axis.text() + "`",
                  "an axis is a dimension, a factor or neighbouring factors of the operand",
                  "name one of " + text_of(dims)};
}

// `dims` with the `count` factors at `run` replaced; a dim left without factors disappears.
Dims replace(Dims dims, Run run, std::size_t count, const Dim& replacement) {
  std::vector<Factor>& factors = dims[run.dim].factors;
  const auto at = factors.erase(factors.begin() + static_cast<std::ptrdiff_t>(run.first),
                                factors.begin() + static_cast<std::ptrdiff_t>(run.first + count));
  factors.insert(at, replacement.factors.begin(), replacement.factors.end());
  if (factors.empty()) dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(run.dim));
  return dims;
}

Dims without(std::span<const Dim> dims, const std::vector<Factor>& removed) {
  Dims left;
  for (Dim dim : dims) {
    std::erase_if(dim.factors, [&](const Factor& f) { return contains(removed, f); });
    if (!dim.factors.empty()) left.push_back(std::move(dim));
  }
  return left;
}

void require_float(const Type& type, std::string_view what) {
  if (is_float(type.dtype)) return;
  throw TypeError{std::string(what) + " has the type " + type.text() + ", not a floating-point one",
                  "this op is defined for floating-point values", "cast it: `f32(v)`"};
}

void require_integer(const Type& type, std::string_view what) {
  if (is_integer(type.dtype)) return;
  throw TypeError{std::string(what) + " has the type " + type.text() + ", not an integer one",
                  "ids and seeds are i32 or i64", "declare it i32 or i64"};
}

DType on_chip(DType dtype) {
  if (dtype == DType::f64) return DType::f64;
  return is_float(dtype) ? DType::f32 : DType::i64;
}

Type infer_product(const Type& left, const Type& right, Attr& attr) {
  require_float(left, "the left operand");
  require_float(right, "the right operand");
  const std::string both = left.text() + " @ " + right.text();
  const std::vector<Factor> a = factors_of(left), b = factors_of(right);
  std::vector<Factor> shared;
  for (const Factor& factor : a) {
    if (contains(b, factor)) shared.push_back(factor);
  }
  std::vector<Factor> contracted = attr.axis.factors;
  if (contracted.empty()) {
    if (shared.empty()) {
      throw TypeError{"the operands of " + both + " share no dimension",
                      "`@` contracts the one dimension that both operands share",
                      "rename a dimension: `x @ (w as [N, K])`"};
    }
    // The one dim that both have, whole, with all that is shared inside it.
    for (const Dim& dim : left.dims) {
      if (std::ranges::find(right.dims, dim) != right.dims.end() &&
          dim.factors.size() == shared.size() && contains_all(dim.factors, shared)) {
        contracted = dim.factors;
      }
    }
    if (contracted.empty() && shared.size() == 1) contracted = shared;
    if (contracted.empty()) {
      throw TypeError{
          "the operands of " + both +
              " share more than one dimension: " + text_of(std::vector<Dim>{Dim{shared}}),
          "`@` contracts the one dimension that both operands share",
          "name what is contracted: `x @[" + shared[0].text() + "] w`, and rename what is not"};
    }
  }
  for (const Factor& factor : contracted) {
    if (!contains(shared, factor)) {
      throw TypeError{"the operands of " + both + " do not share `" + factor.text() + "`",
                      "`@[…]` names dimensions of both operands", "name shared dimensions only"};
    }
  }
  // In the left operand's order, so that the same product has one form.
  attr.axis.factors.clear();
  for (const Factor& factor : a) {
    if (contains(contracted, factor)) attr.axis.factors.push_back(factor);
  }
  Dims dims = without(left.dims, contracted);
  for (Dim& dim : without(right.dims, contracted)) dims.push_back(std::move(dim));
  require_distinct(dims);
  const DType dtype =
      left.dtype == DType::f64 || right.dtype == DType::f64 ? DType::f64 : DType::f32;
  return {dtype, std::move(dims)};
}

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
                    "name each of " + text_of(operand.dims) + " once, in order"};
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

Type infer_reduce(Op op, const Type& operand, Attr& attr) {
  const Run run = require_run(operand.dims, attr.axis);
  if (op == Op::logsumexp || op == Op::block_logsumexp) require_float(operand, "the operand");
  Dim left;
  if (class_of(op) == OpClass::block_reduce) {
    if (attr.block == 0) attr.block = kBlock;
    left = Dim{{Factor::blocks(attr.axis, attr.block)}};
  }
  Dims dims = replace(operand.dims, run, attr.axis.factors.size(), left);
  require_distinct(dims);
  return {on_chip(operand.dtype), std::move(dims)};
}

Type infer_gather(const Type& table, const Type& ids) {
  require_integer(ids, "the index");
  if (table.is_scalar()) {
    throw TypeError{"a scalar has no rows to gather",
                    "`table[ids]` gathers along the first dimension", "use the value itself"};
  }
  Dims dims = ids.dims;
  dims.insert(dims.end(), table.dims.begin() + 1, table.dims.end());
  require_distinct(dims);
  return {table.dtype, std::move(dims)};
}

Type infer_scatter(const Type& values, const Type& ids, const Attr& attr) {
  require_integer(ids, "the index");
  const std::size_t lead = ids.dims.size();
  if (values.dims.size() < lead ||
      !std::equal(ids.dims.begin(), ids.dims.end(), values.dims.begin())) {
    throw TypeError{"scatter_sum of " + values.text() + " by ids " + ids.text(),
                    "the leading dimensions of the values are the ids' dimensions",
                    "give values of " + text_of(ids.dims) + " and more"};
  }
  Dims dims = {attr.axis};
  dims.insert(dims.end(), values.dims.begin() + static_cast<std::ptrdiff_t>(lead),
              values.dims.end());
  require_distinct(dims);
  return {on_chip(values.dtype), std::move(dims)};
}

Type infer_pick(const Type& values, const Type& ids, Attr& attr) {
  require_integer(ids, "the index");
  const std::vector<Factor> kept = factors_of(ids);
  std::vector<Factor> rest;
  for (const Factor& factor : factors_of(values)) {
    if (!contains(kept, factor)) rest.push_back(factor);
  }
  if (rest.empty() || !find_run(values.dims, Dim{rest}) ||
      !contains_all(factors_of(values), kept)) {
    throw TypeError{"pick of " + values.text() + " by ids " + ids.text(),
                    "the ids have every dimension of the values but one, along which they pick",
                    "give ids with the dimensions of the values less one"};
  }
  attr.axis.factors = rest;
  return {values.dtype, without(values.dims, rest)};
}

std::vector<Type> infer_attention(std::span<const Type> args, const Attr& attr,
                                  std::size_t inputs) {
  static const std::vector<std::string> known = {"causal", "window", "softcap", "scale"};
  const std::string form =
      inputs == 3 ? "attention(q, k, v, …)" : "attention_grad(do, q, k, v, o, lse, …)";
  if (args.size() != inputs + attr.keywords.size()) {
    throw TypeError{"an attention call has " + std::to_string(args.size() - attr.keywords.size()) +
                        " tensors, not " + std::to_string(inputs),
                    "it is written " + form, "give the tensors in that order"};
  }
  for (std::size_t i = 0; i < attr.keywords.size(); ++i) {
    const std::string& keyword = attr.keywords[i];
    if (std::ranges::find(known, keyword) == known.end()) {
      const std::string near = nearest(keyword, known);
      throw TypeError{"attention has no option `" + keyword + "`",
                      "its options are causal, window, softcap and scale",
                      near.empty() ? "remove it" : "did you mean `" + near + "`?"};
    }
    if (std::ranges::count(attr.keywords, keyword) > 1) {
      throw TypeError{"the option `" + keyword + "` is given twice", "an option is given once",
                      "remove one"};
    }
    if (!args[inputs + i].is_scalar()) {
      throw TypeError{"the option `" + keyword + "` has the type " + args[inputs + i].text(),
                      "options of attention are scalars", "give a scalar"};
    }
  }
  const std::size_t first = inputs == 3 ? 0 : 1;
  const Type &q = args[first], &k = args[first + 1], &v = args[first + 2];
  const auto fits = [](const Type& t) {
    return t.dims.size() == 2 && is_float(t.dtype);
  };
  if (!fits(q) || !fits(k) || !fits(v)) {
    throw TypeError{"attention of " + q.text() + ", " + k.text() + ", " + v.text(),
                    "its operands have two dims: [batch*sequence, heads*size]",
                    "bring them to q: [B*S, H*E], k: [B*T, G*E], v: [B*T, G*E]"};
  }
  const bool keys_match = k.dims[0] == v.dims[0];
  if (!keys_match || !(q.dims[1].factors.back() == k.dims[1].factors.back()) ||
      q.dims[1].factors.size() != k.dims[1].factors.size()) {
    throw TypeError{"attention of q: " + q.text() + ", k: " + k.text() + ", v: " + v.text(),
                    "k and v share [batch*sequence]; q and k end in the same head size",
                    "bring them to q: [B*S, H*E], k: [B*T, G*E], v: [B*T, G*E]"};
  }
  if (inputs == 6) return {q, k, v};
  Dim heads = q.dims[1];
  heads.factors.pop_back();
  Dims statistic = {q.dims[0]};
  if (!heads.factors.empty()) statistic.push_back(heads);
  Type output{q.dtype, {q.dims[0], heads * Dim{{v.dims[1].factors.back()}}}};
  return {std::move(output), Type{on_chip(q.dtype), std::move(statistic)}};
}

Dims align_all(std::span<const Type> args) {
  Dims dims = args[0].dims;
  for (const Type& type : args.subspan(1)) dims = align(dims, type.dims);
  return dims;
}

bool keeps_integers(Op op) {
  return op == Op::neg || op == Op::abs || op == Op::add || op == Op::sub || op == Op::mul ||
         op == Op::minimum || op == Op::maximum || op == Op::where;
}

}  // namespace

DType promote(std::span<const Type> args) {
  DType dtype = DType::i64;
  for (const Type& type : args) {
    if (type.dtype == DType::f64) return DType::f64;
    if (is_float(type.dtype)) dtype = DType::f32;
  }
  return dtype;
}

std::vector<Dim> align(std::span<const Dim> a, std::span<const Dim> b) {
  const std::vector<Factor> in_a = flat(a), in_b = flat(b);
  if (contains_all(in_a, in_b)) return {a.begin(), a.end()};
  if (contains_all(in_b, in_a)) return {b.begin(), b.end()};
  Dims dims(a.begin(), a.end());
  for (const Dim& dim : b) {
    const auto in = [&](const Factor& f) {
      return contains(in_a, f);
    };
    if (std::ranges::all_of(dim.factors, in)) continue;
    if (std::ranges::any_of(dim.factors, in)) {
      throw TypeError{
          "the dims " + text_of(a) + " and " + text_of(b) + " do not align",
          "elementwise operands align by name; `" + dim.text() + "` is partly in the other operand",
          "rename or split one of them so that names agree: `v as [...]`"};
    }
    dims.push_back(dim);
  }
  return dims;
}

std::vector<Type> infer(Op op, std::span<const Type> args, Attr& attr) {
  if (arity(op) >= 0 && args.size() != static_cast<std::size_t>(arity(op))) {
    throw TypeError{"`" + std::string(name_of(op)) + "` has " + std::to_string(args.size()) +
                        " operands, not " + std::to_string(arity(op)),
                    "every op has a fixed number of operands",
                    "give " + std::to_string(arity(op)) + " operands"};
  }
  switch (op) {
    case Op::constant:
      if (attr.dtype == DType::boolean) return {Type{DType::boolean, {}}};
      attr.dtype = DType::f32;
      return {Type{std::trunc(attr.number) == attr.number && std::abs(attr.number) < 0x1p53
                       ? DType::i64
                       : DType::f32,
                   {}}};
    case Op::size:
      return {Type{DType::i64, {}}};
    case Op::index:
      return {Type{DType::i64, {attr.axis}}};
    case Op::uniform:
      require_integer(args[0], "the seed");
      if (!args[0].is_scalar()) {
        throw TypeError{"the seed has the type " + args[0].text(), "a seed is a scalar",
                        "declare it i64"};
      }
      require_distinct(attr.dims);
      return {Type{DType::f32, attr.dims}};
    case Op::product:
      return {infer_product(args[0], args[1], attr)};
    case Op::cast:
    case Op::pin:
      return {Type{attr.dtype, args[0].dims}};
    case Op::split:
      return infer_split(args[0], attr);
    case Op::join:
      return {infer_join(args, attr)};
    case Op::as:
      return {infer_as(args[0], attr)};
    case Op::spread:
      return {infer_spread(args[0], attr)};
    case Op::gather:
      return {infer_gather(args[0], args[1])};
    case Op::scatter_sum:
      return {infer_scatter(args[0], args[1], attr)};
    case Op::pick:
      return {infer_pick(args[0], args[1], attr)};
    case Op::attention:
      return infer_attention(args, attr, 3);
    case Op::attention_grad:
      return infer_attention(args, attr, 6);
    default:
      break;
  }
  switch (class_of(op)) {
    case OpClass::reduce:
    case OpClass::block_reduce:
      return {infer_reduce(op, args[0], attr)};
    case OpClass::compare:
      return {Type{DType::boolean, align_all(args)}};
    case OpClass::select:
      return {Type{promote(args.subspan(1)), align_all(args)}};
    case OpClass::unary:
    case OpClass::binary: {
      DType dtype = promote(args);
      if (dtype == DType::i64 && !keeps_integers(op)) dtype = DType::f32;
      return {Type{dtype, align_all(args)}};
    }
    default:
      throw InternalError("op `" + std::string(name_of(op)) + "` has no type rule");
  }
}

void require_storable(const Type& declared, const Type& value) {
  std::vector<Factor> a = factors_of(declared), b = factors_of(value);
  std::ranges::sort(a);
  std::ranges::sort(b);
  if (a != b) {
    throw TypeError{"a value of type " + value.text() + " cannot be stored as " + declared.text(),
                    "a result has the dimension names of its value, in any order",
                    "declare it " + Type{declared.dtype, value.dims}.text() +
                        ", or reduce, spread or rename the value"};
  }
  if (is_float(value.dtype) && !is_float(declared.dtype)) {
    throw TypeError{"a value of type " + value.text() + " cannot be stored as " + declared.text(),
                    "a floating-point value is not stored as an integer silently",
                    "cast it: `" + std::string(name_of(declared.dtype)) + "(v)`"};
  }
}

}  // namespace coda
