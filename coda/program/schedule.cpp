// coda/program/schedule.cpp: schedules compared, and put together to one block again.
#include "coda/program/schedule.h"

#include <algorithm>
#include <map>

#include "coda/program/builder.h"
#include "coda/program/quote.h"
#include "coda/program/rename.h"

namespace coda {

bool operator==(const Schedule& a, const Schedule& b) {
  const auto same_param = [](const Param& x, const Param& y) {
    return x.name == y.name && x.type == y.type;
  };
  const auto same_result = [](const Result& x, const Result& y) {
    return x.name == y.name && x.type == y.type && x.store == y.store;
  };
  const auto same_step = [](const Step& x, const Step& y) {
    return x.inputs == y.inputs && x.outputs == y.outputs && x.loop == y.loop &&
           nameless(x.program) == nameless(y.program);
  };
  const auto same_loop = [](const Loop& x, const Loop& y) {
    return x.dim == y.dim && x.size == y.size && x.first == y.first;
  };
  return a.name == b.name && std::ranges::equal(a.params, b.params, same_param) &&
         std::ranges::equal(a.results, b.results, same_result) &&
         std::ranges::equal(a.steps, b.steps, same_step) &&
         std::ranges::equal(a.loops, b.loops, same_loop);
}

namespace {

using ast::quoted;

class Inliner {
 public:
  explicit Inliner(const Schedule& schedule)
      : schedule_(schedule), builder_(schedule.name, Program::Kind::block) {}

  Program run() {
    builder_.place(schedule_.where);
    builder_.comment(schedule_.comment);
    for (const Param& param : schedule_.params) {
      const Value value = builder_.param(param.name, param.type);
      tensors_[param.name] = {value, value};
    }
    for (const Step& step : schedule_.steps) add(step);
    for (const Result& result : schedule_.results) {
      const auto made = tensors_.find(result.name);
      if (made == tensors_.end()) fail("no step stores " + quoted(result.name));
      builder_.result(result.name, result.type, made->second.value, result.store);
    }
    return std::move(builder_).finish();
  }

 private:
  struct Tensor {
    Value value;   // as its kernel has it
    Value stored;  // as others read it
  };

  [[noreturn]] void fail(std::string message) const {
    throw ProgramError(Diagnostic{.where = schedule_.where,
                                  .message = quoted(schedule_.name) + ": " + std::move(message),
                                  .rule = "a step reads what is a parameter or stored before",
                                  .fix = "correct the schedule's steps"});
  }

  void add(const Step& step) {
    const Program& program = step.program;
    if (step.inputs.size() != program.params().size() ||
        step.outputs.size() != program.results().size()) {
      fail("the step " + quoted(program.name()) +
           " has another number of tensors than its program");
    }
    Copier copy(program, builder_);
    for (std::size_t p = 0; p < step.inputs.size(); ++p) {
      copy.map({static_cast<std::int32_t>(p)}, input(step, p));
    }
    for (std::size_t r = 0; r < step.outputs.size(); ++r) {
      const Result& result = program.results()[r];
      const Value value = copy(result.value);
      const Value stored = as_stored({&builder_, value}, result.type).value;
      tensors_[step.outputs[r]] = {value, stored};
      if (!builder_.so_far().is_param(value)) builder_.name(value, step.outputs[r]);
    }
  }

  Value input(const Step& step, std::size_t p) {
    const Type& type = step.program.params()[p].type;
    const std::string& name = step.inputs[p];
    const bool is_first = step.loop >= 0 &&
                          schedule_.loops.at(static_cast<std::size_t>(step.loop)).first == name &&
                          !tensors_.contains(name);
    if (is_first) return cast({&builder_, builder_.constant(0)}, type.dtype).value;
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      fail("the step " + quoted(step.program.name()) + " reads " + quoted(name) +
           ", which nothing stores");
    }
    return as_stored({&builder_, found->second.stored}, type).value;
  }

  // What a reader of that type finds where `e` was stored.
  static Expr as_stored(Expr e, const Type& type) {
    if (e.type().dtype != type.dtype) e = cast(e, type.dtype);
    if (e.type().dims == type.dims) return e;
    // No op but a store reorders or regroups dimensions; a choice between `e` and itself has those
    // of its condition.
    const Value yes = e.builder->op(Op::constant, {}, {.number = 1, .dtype = DType::boolean});
    Dim all;
    for (const Dim& dim : type.dims) all = all * dim;
    return where(spread({e.builder, yes}, all, 0, type.dims), e, e);
  }

  const Schedule& schedule_;
  Builder builder_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace

Program inline_schedule(const Schedule& schedule) {
  return Inliner(schedule).run();
}

}  // namespace coda
