// coda/program/program.h: the immutable Program, the one value that every stage takes and gives.
//
// A Program is a small DAG in topological order: parameters, nodes, results. A block is the same
// thing without the one-kernel limit. Builder makes Programs (every value is typed when it is
// built), text.h prints and parses them. A Program is a value: copies are independent, any number
// of threads may read one, and the spans that it gives live as long as it does.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coda/core/dtype.h"
#include "coda/core/error.h"
#include "coda/program/dims.h"

namespace coda {

enum class Op : std::uint8_t {
#define CODA_OP(name, spelling, op_class, arity) name,
#include "coda/program/ops.def"
#undef CODA_OP
};

enum class OpClass : std::uint8_t {
  leaf,
  product,
  unary,
  binary,
  compare,
  select,
  cast,
  layout,
  reduce,
  block_reduce,
  indexed,
  opaque,
};

std::string_view spelling(
    Op op);                       // as in the text: "+", "block_sum"; "" for constant, cast, gather
std::string_view name_of(Op op);  // as in C++: "add", "block_sum"
OpClass class_of(Op op);
int arity(Op op);  // -1: variable
std::span<const Op> all_ops();
bool is_map(Op op);  // unary, binary, compare, select or cast: element by element

inline constexpr std::int64_t kBlock = 64;  // elements of a block where the text names no other

// A dtype and dimensions in storage order; no dimensions: a scalar.
struct Type {
  DType dtype = DType::f32;
  std::vector<Dim> dims;

  std::string text() const;  // "bf16[B*S, H*E]", "f32"
  bool is_scalar() const { return dims.empty(); }
  bool operator==(const Type&) const = default;
};

std::vector<Factor> factors_of(const Type& type);  // of all dims, in storage order
bool has_factor(const Type& type, const Factor& factor);

struct Value {
  std::int32_t id = -1;
  bool operator==(const Value&) const = default;
  auto operator<=>(const Value&) const = default;
};

// What an op needs beside its operands; ops.def says which op reads which.
struct Attr {
  double number = 0;         // constant
  DType dtype = DType::f32;  // cast, pin
  Dim axis = {};             // size index product split join spread reduce block_reduce scatter_sum
  std::vector<Dim> dims = {};  // split and join: the pieces; as, spread, uniform: the result's dims
  std::int64_t block =
      0;  // block_reduce; spread of a block_reduce's result (0: of a whole reduction)
  std::vector<std::string> keywords = {};  // opaque: names of the last args
  bool operator==(const Attr&) const = default;
};

struct Node {
  Op op = Op::constant;
  std::vector<Value> args = {};
  Attr attr = {};
  std::vector<Value> results = {};  // one, but for split (one a piece) and the opaque calls
  Location where = {};
};

struct Param {
  std::string name;
  Type type;
};

enum class Store : std::uint8_t { overwrite, accumulate };

struct Result {
  std::string name;
  Type type;  // its dtype rounds at the store; its dims are the value's factors in any order and
              // grouping
  Value value;
  Store store = Store::overwrite;
};

struct ValueInfo {
  Type type = {};
  std::string name = {};   // as the author named it, else empty
  std::int32_t node = -1;  // index into nodes(); -1: value id is parameter id
  std::int32_t slot = 0;   // which of the node's results
};

class Program {
 public:
  enum class Kind : std::uint8_t { program, block };

  Program() = default;

  const std::string& name() const { return name_; }
  Kind kind() const { return kind_; }
  const Location& where() const { return where_; }
  const std::string& comment() const {
    return comment_;
  }  // the comment lines above it, without '#'

  std::span<const Param> params() const { return params_; }
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const Result> results() const { return results_; }
  std::span<const ValueInfo> values() const {
    return values_;
  }  // the first params().size() are the parameters

  const ValueInfo& value(Value v) const { return values_[static_cast<std::size_t>(v.id)]; }
  const Type& type(Value v) const { return value(v).type; }
  bool is_param(Value v) const { return value(v).node < 0; }
  const Node& node(Value v) const { return nodes_[static_cast<std::size_t>(value(v).node)]; }
  // Index of the parameter or result of that name, or -1.
  int find_param(std::string_view name) const;
  int find_result(std::string_view name) const;

  // The same parameters, results and computation; names of intermediates, order of independent
  // nodes and source places do not count.
  bool operator==(const Program& other) const;
  std::size_t hash() const;

 private:
  friend class Builder;
  std::string name_;
  Kind kind_ = Kind::block;
  Location where_;
  std::string comment_;
  std::vector<Param> params_;
  std::vector<Node> nodes_;
  std::vector<Result> results_;
  std::vector<ValueInfo> values_;
};

// For each value, how many node operands and results read it.
std::vector<int> use_counts(const Program& program);

// The dtype in which an unfused sequence would store `v`: its operands' promoted dtype for products
// and maps, f32 for statistics and for maps that only reductions read.
DType storage_dtype(const Program& program, Value v);
// The same for every value at once.
std::vector<DType> storage_dtypes(const Program& program);

// "error at" text of a value for messages: its name, or the op that made it.
std::string describe(const Program& program, Value v);

}  // namespace coda
