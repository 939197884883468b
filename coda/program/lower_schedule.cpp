// coda/program/lower_schedule.cpp: one walk over a schedule's steps with the table of its tensors.
#include "coda/program/lower_schedule.h"

#include <algorithm>
#include <charconv>

#include "coda/program/dim_syntax.h"
#include "coda/program/quote.h"

namespace coda::ast {
namespace {

const char* const kStep =
    "a step is `a, b = program(x, y)`: it runs one program, on tensors by name";
const char* const kOnce =
    "every tensor is stored by one step; several may add into it, in one loop";

std::string names_of(const std::vector<Target>& targets) {
  std::string names;
  for (const Target& target : targets) names += (names.empty() ? "" : ", ") + target.name;
  return names;
}

std::string counted(std::size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

std::optional<Schedule> ScheduleLowerer::run() {
  if (!item_.declares_all) return std::nullopt;  // what is missing may be what a step names
  schedule_.name = item_.name;
  schedule_.comment = comment_of(item_);
  schedule_.where = unit_.at(item_.span);
  dims_ = dim_names(item_);
  parameters();
  const auto name_all = [&](const std::vector<Statement>& list) {
    for (const Statement& each : list) {
      for (const Target& target : each.targets) later_.try_emplace(target.name, target.span);
    }
  };
  name_all(item_.body);
  for (const Statement& each : item_.body) {
    if (each.loop) name_all(each.loop->body);
  }
  for (const Statement& each : item_.body) statement(each);
  statement_ = nullptr;
  if (item_.complete && good_) ends();
  if (!item_.complete || !good_) return std::nullopt;
  return std::move(schedule_);
}

void ScheduleLowerer::parameters() {
  Builder probe(item_.name, Program::Kind::block);  // says what is wrong with a type
  std::set<std::string> seen;
  for (const auto* list : {&item_.params, &item_.results}) {
    const bool is_result = list == &item_.results;
    for (const Parameter& param : *list) {
      if (!seen.insert(param.name).second) {
        report(param.span, quoted(param.name) + " is declared twice", {},
               "parameters and results have different names", "rename one of them");
        continue;
      }
      if (dims_.contains(param.name)) {
        report(param.span, quoted(param.name) + " is both a value and a dimension", {},
               "one name is not both", "rename the value or the dimension");
      }
      Tensor tensor{.span = param.span};
      try {
        tensor.type = type(*param.type);
        probe.param(param.name, *tensor.type);
      } catch (const Mistake& mistake) {
        report(mistake.at, mistake.message, {}, mistake.rule, mistake.fix);
      } catch (const ProgramError& error) {
        tensor.type.reset();
        const Diagnostic& d = error.diagnostics()[0];
        report(param.span, d.message, d.types, d.rule, d.fix);
      }
      const Type known = tensor.type.value_or(Type());
      if (is_result) {
        const Store store = param.accumulate ? Store::accumulate : Store::overwrite;
        schedule_.results.push_back({param.name, known, {}, store});
        results_[param.name] = schedule_.results.back();
      } else {
        schedule_.params.push_back({param.name, known});
        tensors_[param.name] = std::move(tensor);
      }
    }
  }
  if (item_.results.empty()) {
    report(item_.span, quoted(item_.name) + " has no result", {},
           "a schedule computes at least one result", "declare one: `-> (y: bf16[M, N])`");
  }
}

void ScheduleLowerer::statement(const Statement& statement) {
  statement_ = &statement;
  if (statement.kind == Statement::Kind::loop) {
    loop(statement);
  } else {
    step(statement);
  }
}

void ScheduleLowerer::loop(const Statement& statement) {
  const Loop& loop = *statement.loop;
  if (loop_ != kNoLoop) {  // reported by the parser
    for (const Statement& each : loop.body) {
      for (const Target& target : each.targets) make(target, each, nullptr, 0);
    }
    return;
  }
  if (!loop.dim.name.empty() && !dims_.contains(loop.dim.name)) {
    const std::vector<std::string> all(dims_.begin(), dims_.end());
    std::string list;
    for (const std::string& name : all) list += (list.empty() ? "" : ", ") + name;
    report(loop.dim.span, "unknown dimension " + quoted(loop.dim.name), {},
           "a loop runs over a dimension of the schedule's parameters and results: " + list,
           suggestion(loop.dim.name, all, "name one of them"));
  }
  std::int64_t size = 0;
  const std::string& digits = loop.size.text;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
  const bool whole = error == std::errc() && end == digits.data() + digits.size();
  if (!digits.empty() && (!whole || size < 1)) {
    report(loop.size.span, quoted(digits) + " is no number of elements", {},
           "a chunk has a whole number of elements, at least 1", "write a number such as 8192");
  }
  schedule_.loops.push_back({loop.dim.name, size, loop.first ? loop.first->name : ""});
  open_dim_ = dims_.contains(loop.dim.name) ? loop.dim.name : "";
  loop_ = static_cast<int>(schedule_.loops.size()) - 1;
  bool named = false;
  if (loop.first) {
    const std::string& name = loop.first->name;
    named = !tensors_.contains(name) && !is_result(name) && !later_.contains(name) &&
            !dims_.contains(name);
    if (!named) {
      report(loop.first->span, quoted(name) + " is the name of something else", {},
             "the chunk's first element is a scalar of its own", "choose another name");
    } else {
      tensors_[name] = {
          .type = Type{.dtype = DType::i64, .dims = {}}, .span = loop.first->span, .loop = loop_};
    }
  }
  for (const Statement& each : loop.body) this->statement(each);
  statement_ = &statement;
  if (loop.body.empty() && item_.complete) {
    report(statement.span, "the loop over " + quoted(loop.dim.name) + " has no steps", {},
           "a loop runs its steps once for each chunk", "remove it, or move steps into it");
  }
  if (named) {
    const std::string& name = loop.first->name;
    if (!tensors_[name].used && good_ && item_.complete) {
      report(loop.first->span, quoted(name) + " is never used", {},
             "`from first` names the chunk's first element for a step that reads it",
             "remove " + quoted("from " + name));
    }
    tensors_.erase(name);
  }
  open_dim_.clear();
  loop_ = kNoLoop;
}

void ScheduleLowerer::step(const Statement& statement) {
  std::optional<Call> call;
  if (!statement.values.empty()) call = this->call(statement);
  std::optional<Program> program;
  Step step{.program = {}, .inputs = {}, .outputs = {}, .loop = loop_};
  if (call) {
    bool known = true;
    for (const Expr* arg : call->args) {
      const Tensor* tensor = read(*arg);
      known = known && tensor != nullptr && tensor->type;
      step.inputs.push_back(arg->text);
    }
    const std::size_t results = call->item->results.size();
    if (call->program != nullptr && results != statement.targets.size()) {
      report(statement.span,
             quoted(names_of(statement.targets)) + ": " +
                 counted(statement.targets.size(), "name") + ", but " + quoted(call->item->name) +
                 " stores " + counted(results, "result"),
             {}, "a step has one name for each result; `_` is one that nothing needs",
             "write " + counted(results, "name") + " before the `=`");
    } else if (call->program != nullptr && known) {
      program = fitted(*call, statement);
    }
  }
  const bool whole = program && program->results().size() == statement.targets.size();
  for (std::size_t i = 0; i < statement.targets.size(); ++i) {
    Target target = statement.targets[i];
    if (target.name == "_") {
      if (!whole) continue;
      target.name += program->results()[i].name;
      while (tensors_.contains(target.name) || later_.contains(target.name)) target.name += "_";
    }
    make(target, statement, whole ? &*program : nullptr, i);
    step.outputs.push_back(target.name);
  }
  if (!whole) {
    good_ = false;
    return;
  }
  step.program = std::move(*program);
  schedule_.steps.push_back(std::move(step));
}

// The program that a step runs, and its arguments: names, each.
std::optional<ScheduleLowerer::Call> ScheduleLowerer::call(const Statement& statement) {
  const Expr& expr = statement.values[0];
  if (expr.kind != ExprKind::call) {
    report(expr.span, quoted(shortened(flat(expr), kPiece)) + " is no call of a program", {}, kStep,
           "write it as a program of this file, and call that");
    return std::nullopt;
  }
  const std::optional<Definition> found = find_definition(unit_, expr.text);
  if (!found || find_form(expr.text) != nullptr) {
    good_ = false;
    if (!unit_.complete && !find_form(expr.text)) return std::nullopt;
    std::vector<std::string> programs;
    for (const std::string& name : definition_names(unit_)) {
      const auto each = find_definition(unit_, name);
      if (each && each->item->kind == Item::Kind::program) programs.push_back(name);
    }
    const std::string file = library_file_of(expr.text);
    report(expr.span,
           find_form(expr.text) != nullptr ? quoted(expr.text) + " is an op, not a program"
                                           : "unknown program " + quoted(expr.text),
           {}, kStep,
           find_form(expr.text) != nullptr ? "write a program that computes it, and call that"
           : !file.empty()
               ? "add `use \"" + file + "\"` at the top: it defines " + quoted(expr.text)
               : suggestion(expr.text, programs, "write the program in this file"));
    return std::nullopt;
  }
  const Item& item = *found->item;
  if (item.kind != Item::Kind::program) {
    const bool is_block = item.kind == Item::Kind::block;
    const std::string what = is_block ? "block" : item.kind == Item::Kind::def ? "def" : "schedule";
    report(expr.span, quoted(item.name) + " is a " + what + ", not a program", {}, kStep,
           is_block ? "cut it with `coda rewrite`, and call the programs that this gives"
                    : "call a program that computes it");
    return std::nullopt;
  }
  Call call{.item = &item, .program = programs_.program(item), .args = {}};
  good_ = good_ && call.program != nullptr;
  if (const auto mistake = bind_arguments(item, expr, call.args)) {
    if (item.complete) report(mistake->at, mistake->message, {}, mistake->rule, mistake->fix);
    good_ = false;
    return std::nullopt;
  }
  bool names = true;
  for (const Expr* arg : call.args) {
    if (arg->kind == ExprKind::name && !is_literal(arg->text)) continue;
    names = false;
    const bool number = arg->args.empty();
    report(arg->span, "the argument " + quoted(shortened(flat(*arg), kPiece)) + " is no tensor", {},
           kStep,
           number ? "make it a parameter of the schedule, or write the number into " +
                        quoted(item.name)
                  : "store it by a step of its own, and name that");
  }
  if (!names) return std::nullopt;
  return call;
}

// The tensor that a step reads; nullptr where there is none, which is reported.
ScheduleLowerer::Tensor* ScheduleLowerer::read(const Expr& arg) {
  const auto found = tensors_.find(arg.text);
  if (found == tensors_.end()) {
    unknown(arg);
    return nullptr;
  }
  Tensor& tensor = found->second;
  tensor.used = true;
  const auto result = results_.find(arg.text);
  if (tensor.adds && result != results_.end() && result->second.store == Store::accumulate) {
    report(arg.span, "the accumulating result " + quoted(arg.text) + " is read", {},
           "an accumulating result is written only: the caller's own contents are in it",
           "let a step store the sum alone, and read that");
    return nullptr;
  }
  if (tensor.made != nullptr && tensor.adds && tensor.loop == loop_) {
    report(arg.span, quoted(arg.text) + " is read in the loop that adds into it", {},
           "its sum is known after the loop", "move the step behind the loop");
    return nullptr;
  }
  return chunk_fits(arg, tensor) ? &tensor : nullptr;
}

void ScheduleLowerer::unknown(const Expr& arg) {
  const std::string& name = arg.text;
  if (const auto later = later_.find(name); later != later_.end()) {
    const bool self = later->second.line == arg.span.line;
    return report(arg.span,
                  quoted(name) + (self ? " is read by the step that stores it"
                                       : " is read before line " +
                                             std::to_string(later->second.line) + " stores it"),
                  {}, "a step reads parameters and what steps before it stored",
                  self ? "store under another name" : "move the step that stores it up");
  }
  if (dims_.contains(name)) {
    return report(arg.span, quoted(name) + " is a dimension, not a tensor", {}, kStep,
                  "write " + quoted("size(" + name + ")") + " inside the program");
  }
  std::vector<std::string> names;
  std::string list;
  for (const auto& [each, tensor] : tensors_) names.push_back(each);
  for (std::size_t i = 0; i < names.size() && i < 12; ++i) list += (i > 0 ? ", " : "") + names[i];
  if (names.size() > 12) list += ", …";
  const std::string near = nearest(name, names);
  if (const auto meant = tensors_.find(near); meant != tensors_.end()) meant->second.used = true;
  report(arg.span, "unknown tensor " + quoted(name), {},
         list.empty() ? "there is no tensor yet" : "the tensors here are " + list,
         near.empty() ? "store it in a step before this, or make it a parameter"
                      : "did you mean " + quoted(near) + "?");
}

// Names what result `index` of the step stores; without a program its type is unknown.
void ScheduleLowerer::make(const Target& target, const Statement& statement, const Program* program,
                           std::size_t index) {
  const std::string& name = target.name;
  const auto result = results_.find(name);
  const bool all_add = statement.kind == Statement::Kind::accumulate;
  Tensor tensor{.type = {},
                .made = &statement,
                .span = target.span,
                .maker = statement.values.empty() ? "" : statement.values[0].text,
                .loop = loop_,
                .adds = all_add || target.adds};
  if (program != nullptr) tensor.type = program->results()[index].type;
  if (const auto known = tensors_.find(name); known != tensors_.end()) {
    Tensor& before = known->second;
    if (before.made == nullptr) {
      return report(target.span,
                    quoted(name) + (before.loop == kNoLoop ? " is a parameter"
                                                           : " is the chunk's first element"),
                    {}, "a step stores into a name of its own", "choose another name");
    }
    const bool again = before.adds && tensor.adds && before.loop == loop_ &&
                       (loop_ != kNoLoop || result != results_.end());
    if (!again) {
      return report(
          target.span,
          quoted(name) + " is stored twice, first at line " + std::to_string(before.span.line), {},
          kOnce, "give the second tensor another name");
    }
    if (before.type && tensor.type && *before.type != *tensor.type) {
      return report(
          target.span,
          quoted(before.maker) + " and " + quoted(tensor.maker) + " add into " + quoted(name) +
              " in different types",
          {before.maker + ": " + before.type->text(), tensor.maker + ": " + tensor.type->text()},
          "what several steps add into has one type", "declare both results in the same type");
    }
    return;
  }
  if (all_add && target.adds) {
    report(target.span, quoted("+" + name) + " stands before `+=`", {},
           "`+=` adds all results of its step; among several, `+` marks one that is added",
           "write one of the two");
  }
  if (dims_.contains(name)) {
    report(target.span, quoted(name) + " is both a value and a dimension", {},
           "one name is not both", "rename the value or the dimension");
  }
  if (program != nullptr) stored(target, tensor, program->results()[index]);
  if (result != results_.end()) tensor.used = true;
  tensors_[name] = std::move(tensor);
}

void ScheduleLowerer::ends() {
  for (const Parameter& result : item_.results) {
    const auto made = tensors_.find(result.name);
    if (made != tensors_.end() && made->second.made != nullptr) continue;
    report(result.span, "the result " + quoted(flat(result)) + " is never stored", {},
           "every declared result is stored by a step",
           "add " + quoted(result.name + (result.accumulate ? " += …" : " = …")) +
               ", or remove the result");
  }
  std::map<const Statement*, bool> needed;
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.made == nullptr) continue;
    const bool unused = !tensor.used && !name.starts_with("_");
    needed[tensor.made] = needed[tensor.made] || !unused;
  }
  for (const auto& [statement, is_needed] : needed) {
    if (is_needed) continue;
    statement_ = statement;
    const Target& target = statement->targets[0];
    report(target.span, quoted(target.name) + " is never used", {},
           "every step stores what a later step or a result needs",
           "remove the step, or name it " + quoted("_" + target.name));
  }
}

void ScheduleLowerer::report(const Span& at, std::string message, std::vector<std::string> types,
                             std::string rule, std::string fix) {
  good_ = false;
  if (diagnostics_.size() >= kMostDiagnostics) return;
  std::string shown = line_of(unit_.source, at);
  if (statement_ != nullptr) {
    shown = flat(*statement_);
    if (statement_->loop) shown += " … }";
  }
  diagnostics_.push_back({.where = unit_.at(at),
                          .statement = shortened(shown, kStatement),
                          .message = std::move(message),
                          .types = std::move(types),
                          .rule = std::move(rule),
                          .fix = std::move(fix)});
}

}  // namespace coda::ast
