// coda/program/lower_schedule.h: the tree of a schedule → Schedule: which tensor each step reads
// and stores, and whether their types agree.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coda/program/lower.h"
#include "coda/program/schedule.h"

namespace coda::ast {

class ScheduleLowerer {
 public:
  // `programs` has lowered every program that the schedule may name.
  ScheduleLowerer(const Definition& definition, const Lowerer& programs,
                  std::vector<Diagnostic>& diagnostics)
      : unit_(*definition.unit),
        item_(*definition.item),
        programs_(programs),
        diagnostics_(diagnostics) {}

  // nullopt where it, or a program that it names, has mistakes.
  std::optional<Schedule> run();

 private:
  static constexpr int kNoLoop = -1;

  // What a name stands for.
  struct Tensor {
    std::optional<Type> type;         // nullopt: unknown, by a mistake that was reported
    const Statement* made = nullptr;  // by which step; nullptr: a parameter, or a loop's `first`
    Span span;
    std::string maker;  // the program
    int loop = kNoLoop;
    bool adds = false;
    bool used = false;
  };
  struct Call {
    const Item* item = nullptr;
    const Program* program = nullptr;  // nullptr: it has mistakes
    std::vector<const Expr*> args;
  };

  // lower_schedule.cpp: names
  void parameters();
  void statement(const Statement& statement);
  void loop(const Statement& statement);
  void step(const Statement& statement);
  std::optional<Call> call(const Statement& statement);
  Tensor* read(const Expr& arg);
  void make(const Target& target, const Statement& statement, const Program* program,
            std::size_t result);
  void ends();

  // schedule_types.cpp: types
  Type type(const TypeExpr& type) const;
  // The program under the schedule's names of dimensions; nullopt where types disagree.
  std::optional<Program> fitted(const Call& call, const Statement& statement);
  void mismatch(const Expr& arg, const Tensor& tensor, const Param& param, const Program& program,
                const Substitution& dims);
  bool chunk_fits(const Expr& arg, const Tensor& tensor);
  void stored(const Target& target, const Tensor& tensor, const Result& made);
  bool has_chunk(const Type& type) const;  // whether the open loop's dimension is in it
  static bool is_chunked(const Type& type, const std::string& dim);  // … as whole first dimension

  void unknown(const Expr& arg);
  void report(const Span& at, std::string message, std::vector<std::string> types, std::string rule,
              std::string fix);
  bool is_result(const std::string& name) const { return results_.contains(name); }

  const Unit& unit_;
  const Item& item_;
  const Lowerer& programs_;
  std::vector<Diagnostic>& diagnostics_;
  std::set<std::string> dims_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, Result> results_;
  std::map<std::string, Span> later_;  // names that some statement makes
  const Statement* statement_ = nullptr;
  // The dimension of the loop whose steps are read; empty: none, or it is unknown.
  std::string open_dim_;
  int loop_ = kNoLoop;
  bool good_ = true;
  Schedule schedule_;
};

}  // namespace coda::ast
