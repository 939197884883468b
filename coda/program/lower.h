// coda/program/lower.h: syntax trees → Programs, through the Builder, which types every value.
//
// Defs, programs and blocks that are called are replaced by their bodies: a Frame is one such body,
// with what its names mean in the program that is being built. What a wrong expression would have
// given is absent, and what needs it is then absent too, without a word.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coda/program/builder.h"
#include "coda/program/forms.h"
#include "coda/program/resolve.h"
#include "coda/program/unit.h"

namespace coda::ast {

class Lowerer {
 public:
  explicit Lowerer(std::vector<Diagnostic>& diagnostics) : diagnostics_(diagnostics) {}

  // Resolves and lowers an item, after those that it calls; each once.
  void item(const Definition& definition);
  // The Program of a program or block; nullptr where it has mistakes.
  const Program* program(const Item& item) const;

 private:
  using MaybeValue = std::optional<Value>;
  using Values = std::vector<Value>;

  // Of one item.
  struct State {
    bool active = false, good = false;
    int height = 0;  // levels of calls below it
    Resolved names;
    std::optional<Program> program;
  };

  // The program that is being built.
  struct Root {
    const Unit* unit = nullptr;
    const Item* item = nullptr;
    Builder* builder = nullptr;
    const Statement* statement = nullptr;
    std::set<std::string> taken = {};  // names of values that inlined ones must not take
    std::set<std::string> dims = {};   // names of dimensions likewise
    std::set<Value> named = {};        // by the author
    int calls = 0;
  };

  // One body: the root's own, or that of a call.
  struct Frame {
    const Unit* unit = nullptr;
    const Item* item = nullptr;
    const Frame* caller = nullptr;
    const Expr* call = nullptr;  // in the caller
    std::map<std::string, Value> values = {};
    Substitution dims = {};
  };

  // Nodes, or calls, of one program once all calls are replaced by bodies.
  static constexpr std::size_t kMostNodes = 100000;
  struct TooLarge {};

  // lower.cpp: items and statements
  bool names(const Definition& definition, State& state);
  void build(const Definition& definition, State& state);
  bool statement(const Statement& statement, Frame& frame);
  void bind_targets(const Statement& statement, const Values& values, Frame& frame);
  Type type(const TypeExpr& type, const Frame& frame);
  void report(const Frame& frame, const Span& at, std::string message,
              std::vector<std::string> types, std::string rule, std::string fix);
  void report(const Frame& frame, const Mistake& mistake);

  // lower_expr.cpp: expressions and ops
  MaybeValue value(const Expr& expr, Frame& frame);
  std::optional<Values> values(const Expr& expr, Frame& frame);  // a call may give several
  MaybeValue number(const Expr& expr, double sign, Frame& frame);
  MaybeValue name(const Expr& expr, Frame& frame);
  std::optional<Values> op_call(const Form& form, const Expr& expr, Frame& frame);
  std::optional<Values> split_or_join(const Form& form, const Expr& expr, Frame& frame);
  std::optional<Values> opaque(const Form& form, const Expr& expr, Frame& frame);
  MaybeValue block_size(const Expr& expr, Frame& frame);
  std::optional<Dim> dim(const Expr& expr, const Frame& frame);
  std::optional<std::vector<Dim>> dims(const Expr& list, std::size_t first, const Frame& frame);
  // Adds a node; `args` are the expressions of its operands, for the message.
  std::optional<Values> emit(Op op, Values operands, std::vector<const Expr*> args, Attr attr,
                             const Expr& at, Frame& frame);
  MaybeValue emit_one(Op op, Values operands, std::vector<const Expr*> args, Attr attr,
                      const Expr& at, Frame& frame);

  // lower_call.cpp: calls of defs, programs and blocks
  std::optional<Values> call(const Expr& expr, Frame& frame);
  bool bind(const Item& item, const Expr& expr, Frame& frame, Frame& inner);
  bool bind_dims(const Parameter& param, const Expr& arg, Value value, Frame& frame, Frame& inner);
  MaybeValue converted(const Parameter& param, Value value, const Expr& arg, Frame& frame);
  std::optional<Values> def_values(const Item& item, Frame& inner);
  std::optional<Values> results(const Item& item, const Expr& expr, Frame& frame, Frame& inner);
  void rename_inner_dims(const Item& item, Frame& inner);

  std::vector<Diagnostic>& diagnostics_;
  std::map<const Item*, State> states_;
  std::vector<const Item*> active_;
  Root root_;
};

}  // namespace coda::ast
