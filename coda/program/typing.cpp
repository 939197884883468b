// coda/program/typing.cpp: the type rule of every op, one function a class of ops.
//
// Knows nothing of kernels, tiles or sizes: only names. Extents that names cannot decide are
// checked when sizes bind.
#include "coda/program/typing.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include "coda/program/runs.h"
#include "coda/program/typing_layout.h"

namespace coda {
namespace {

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

// The right operand with its last dimension named like the left one's, as in `x @ (w as [N, K])`.
std::string no_shared_fix(const Type& left, const Type& right) {
  if (left.is_scalar() || right.is_scalar()) return "write `*` for a product with a scalar";
  std::vector<Dim> dims = right.dims;
  dims.back() = left.dims.back();
  return (left.dims.size() == 1 ? "`@` binds tighter than `*`: write `(a * b) @ w`; or " : "") +
         ("give both the name of what is contracted where they are declared, or here: `… @ (… as " +
          text_of(dims) + ")`");
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
                      no_shared_fix(left, right)};
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
      std::string all;
      for (const Factor& factor : shared) all += (all.empty() ? "`" : ", `") + factor.text() + "`";
      throw TypeError{
          "the operands of " + both + " share more than one dimension: " + all,
          "`@` contracts the one dimension that both operands share",
          "name what is contracted, `@[" + shared[0].text() + "]`, and rename what is not"};
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
      throw TypeError{"attention has no option `" + keyword + "`",
                      "its options are causal, window, softcap and scale",
                      suggestion(keyword, known, "remove it")};
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

// What makes a value of the factors `b` one of the factors `a`, both sorted.
std::string storable_fix(const Type& declared, const Type& value, const std::vector<Factor>& a,
                         const std::vector<Factor>& b) {
  std::vector<Factor> lacks, has;
  std::ranges::set_difference(a, b, std::back_inserter(lacks));
  std::ranges::set_difference(b, a, std::back_inserter(has));
  const auto list = [](const std::vector<Factor>& factors) {
    std::string all;
    for (const Factor& factor : factors) all += (all.empty() ? "`" : ", `") + factor.text() + "`";
    return all;
  };
  const std::string declare = "declare it " + Type{declared.dtype, value.dims}.text();
  if (has.empty())
    return declare + ", or repeat the value along " + list(lacks) + ": `spread(v, …)`";
  if (lacks.empty()) {
    return declare + ", or reduce the value over " + list(has) + ", or rename " + list(has) +
           " in the operand that brought it in: `v as […]`";
  }
  return declare + "; or else rename or reduce " + list(has) + ", of which the declaration has " +
         list(lacks) + " instead";
}

void require_storable(const Type& declared, const Type& value) {
  std::vector<Factor> a = factors_of(declared), b = factors_of(value);
  // A literal 1 (the piece of `split(v, 2: 1, 1)`) keeps a place in a type and takes none in
  // memory.
  std::erase(a, Factor::number(1));
  std::erase(b, Factor::number(1));
  std::ranges::sort(a);
  std::ranges::sort(b);
  if (a != b) {
    throw TypeError{"a value of type " + value.text() + " cannot be stored as " + declared.text(),
                    "a result has the dimension names of its value, in any order",
                    storable_fix(declared, value, a, b)};
  }
  if (is_float(value.dtype) && !is_float(declared.dtype)) {
    throw TypeError{"a value of type " + value.text() + " cannot be stored as " + declared.text(),
                    "a floating-point value is not stored as an integer silently",
                    "cast it: `" + std::string(name_of(declared.dtype)) + "(v)`"};
  }
}

}  // namespace coda
