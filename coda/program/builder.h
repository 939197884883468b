// coda/program/builder.h: the one way to make a Program. Types are inferred, and refused, node by
// node: after a ProgramError the builder is as it was before the call. A Builder belongs to one
// thread.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "coda/program/program.h"

namespace coda {

class Builder {
 public:
  Builder(std::string name, Program::Kind kind);

  void place(Location where) { where_ = std::move(where); }  // of the nodes that follow
  void comment(std::string text) { program_.comment_ = std::move(text); }

  // Parameters come before the first node. Throws ProgramError for a repeated name or a repeated
  // factor.
  Value param(std::string name, Type type);
  Value constant(double number);
  // One result. Throws ProgramError with the types and the rule.
  Value op(Op op, std::vector<Value> args, Attr attr = {});
  // All results.
  std::vector<Value> ops(Op op, std::vector<Value> args, Attr attr = {});
  void name(Value value, std::string name);
  void result(std::string name, Type declared, Value value, Store store = Store::overwrite);

  const Type& type(Value value) const;
  const Program& so_far() const { return program_; }

  // Nodes that no result needs are dropped. Throws ProgramError where a program has no result.
  Program finish() &&;

 private:
  Program program_;
  Location where_;
};

// A value with its builder, so that rules read like mathematics.
struct Expr {
  Builder* builder = nullptr;
  Value value;

  const Type& type() const { return builder->type(value); }
};

Expr operator+(Expr a, Expr b);
Expr operator-(Expr a, Expr b);
Expr operator*(Expr a, Expr b);
Expr operator/(Expr a, Expr b);
Expr operator-(Expr a);
Expr operator+(Expr a, double b);
Expr operator-(Expr a, double b);
Expr operator*(Expr a, double b);
Expr operator/(Expr a, double b);
Expr operator-(double a, Expr b);
Expr operator*(double a, Expr b);
Expr map(Op op, Expr a);
Expr map(Op op, Expr a, Expr b);
Expr where(Expr condition, Expr a, Expr b);
Expr product(Expr a, Expr b, Dim contracted);
Expr cast(Expr a, DType dtype);
Expr reduce(Op op, Expr a, Dim axis);
Expr block_reduce(Op op, Expr a, Dim axis, std::int64_t block);
Expr spread(Expr a, Dim axis, std::int64_t block, std::vector<Dim> dims);
Expr as(Expr a, std::vector<Dim> dims);
std::vector<Expr> split(Expr a, Dim axis, std::vector<Dim> pieces);
Expr join(std::span<const Expr> parts, Dim axis, std::vector<Dim> pieces);

// Copies nodes of one program into a builder, values mapped. Parameters must be mapped beforehand.
class Copier {
 public:
  Copier(const Program& from, Builder& to);
  void map(Value from, Value to);
  bool has(Value from) const;
  Value operator()(Value from);  // copies what it needs, recursively

 private:
  const Program* from_;
  Builder* to_;
  std::vector<Value> mapped_;
};

}  // namespace coda
