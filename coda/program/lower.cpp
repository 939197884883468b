// coda/program/lower.cpp: items in the order of their calls, statements in text order, and where a
// mistake is reported.
#include "coda/program/lower.h"

#include <algorithm>

#include "coda/program/dim_syntax.h"
#include "coda/program/quote.h"

namespace coda::ast {
namespace {

// Calls inside calls.
constexpr int kDeepestCall = 64;

}  // namespace

std::string comment_of(const Item& item) {
  std::size_t first = item.leading.size();
  if (first > 0 && item.leading.back().line + 1 < item.span.line) return "";
  while (first > 0 && (first == item.leading.size() || !item.leading[first].blank_before)) --first;
  std::string text;
  for (std::size_t i = first; i < item.leading.size(); ++i) {
    const std::string& line = item.leading[i].text;
    text += (i > first ? "\n" : "") + (line.starts_with(" ") ? line.substr(1) : line);
  }
  return text;
}

const Program* Lowerer::program(const Item& item) const {
  const auto found = states_.find(&item);
  return found == states_.end() || !found->second.program ? nullptr : &*found->second.program;
}

void Lowerer::item(const Definition& definition) {
  const auto [entry, fresh] = states_.try_emplace(definition.item);
  if (!fresh) return;
  State& state = entry->second;
  state.active = true;
  active_.push_back(definition.item);
  state.good = names(definition, state);
  active_.pop_back();
  state.active = false;
  const bool is_program =
      definition.item->kind == Item::Kind::program || definition.item->kind == Item::Kind::block;
  if (!is_program || !definition.item->declares_all || diagnostics_.size() >= kMostDiagnostics)
    return;
  build(definition, state);
}

// Resolves the names; false where that, or something that is called, is wrong.
bool Lowerer::names(const Definition& definition, State& state) {
  state.names = resolve(*definition.unit, *definition.item, diagnostics_);
  bool good = state.names.good;
  const auto mistake = [&](const Expr& call, std::string message, std::string rule,
                           std::string fix) {
    good = false;
    diagnostics_.push_back({.where = definition.unit->at(call.span),
                            .statement = line_of(definition.unit->source, call.span),
                            .message = std::move(message),
                            .types = {},
                            .rule = std::move(rule),
                            .fix = std::move(fix)});
  };
  for (const Resolved::Call& call : state.names.calls) {
    const Item* const callee = call.callee.item;
    const auto circle = std::ranges::find(active_, callee);
    if (circle != active_.end()) {
      std::string chain;
      for (auto it = circle; it != active_.end(); ++it) chain += (*it)->name + " → ";
      mistake(*call.expr, quoted(callee->name) + " calls itself: " + chain + callee->name,
              "a call is replaced by the body of what it calls, so nothing may call itself",
              "write out the repetition, or remove the call");
      continue;
    }
    if (active_.size() > kDeepestCall) {
      mistake(*call.expr,
              "calls stand more than " + std::to_string(kDeepestCall) + " deep inside one another",
              "a call is replaced by the body of what it calls", "call what is needed directly");
      continue;
    }
    item(call.callee);
    const State& below = states_.at(callee);
    good = good && below.good;
    state.height = std::max(state.height, below.height + 1);
    if (below.good && state.height > kDeepestCall) {
      mistake(*call.expr,
              "calls stand more than " + std::to_string(kDeepestCall) + " deep inside one another",
              "a call is replaced by the body of what it calls", "call what is needed directly");
      break;
    }
  }
  return good;
}

void Lowerer::build(const Definition& definition, State& state) {
  const Item& item = *definition.item;
  const std::size_t before = diagnostics_.size();
  Builder builder(item.name,
                  item.kind == Item::Kind::program ? Program::Kind::program : Program::Kind::block);
  builder.place(definition.unit->at(item.span));
  builder.comment(comment_of(item));
  root_ = {.unit = definition.unit, .item = &item, .builder = &builder, .dims = dim_names(item)};
  Frame frame{.unit = definition.unit, .item = &item};
  for (const Parameter& param : item.params) {
    root_.taken.insert(param.name);
    try {
      frame.values[param.name] = builder.param(param.name, type(*param.type, frame));
    } catch (const ProgramError& error) {
      for (const Diagnostic& d : error.diagnostics()) {
        report(frame, param.span, d.message, d.types, d.rule, d.fix);
      }
    } catch (const Mistake& mistake) {
      report(frame, mistake);
    }
  }
  for (const Parameter& result : item.results) root_.taken.insert(result.name);
  for (const Statement& each : item.body) {
    for (const Target& target : each.targets) root_.taken.insert(target.name);
  }
  std::set<std::string> typed;
  for (const auto* list : {&item.params, &item.results}) {
    for (const Parameter& param : *list) {
      for (const Expr& dim : param.type->dims) dim_names(dim, typed);
    }
  }
  for (const Expr& dim : item.dims) {
    if (typed.insert(dim.text).second) continue;
    report(frame, dim.span, quoted(dim.text) + " needs no mention: it is there already", {},
           "the brackets name dimensions that no type of the parameters and results has",
           "remove it from the brackets");
  }
  std::map<std::string, const Statement*> assigned;
  try {
    for (const Statement& each : item.body) {
      root_.statement = &each;
      if (state.names.poisoned.contains(&each) || each.values.empty()) continue;
      if (!statement(each, frame)) continue;
      for (const Target& target : each.targets) assigned.try_emplace(target.name, &each);
    }
  } catch (TooLarge) {
    report({.unit = definition.unit, .item = &item}, root_.statement->span,
           quoted(item.name) + " has more than " + std::to_string(kMostNodes) +
               " operations once its calls are expanded",
           {}, "a call is replaced by the body of what it calls", "split the program into several");
  }
  std::set<std::string> stored;
  for (const Parameter& result : item.results) {
    if (!stored.insert(result.name).second) continue;  // the resolver reported it
    const auto value = frame.values.find(result.name);
    if (value == frame.values.end() || !assigned.contains(result.name)) {
      state.good = false;
      continue;
    }
    root_.statement = assigned[result.name];
    const Span at = root_.statement->span;
    try {
      builder.result(result.name, type(*result.type, frame), value->second,
                     result.accumulate ? Store::accumulate : Store::overwrite);
    } catch (const ProgramError& error) {
      const Diagnostic& d = error.diagnostics()[0];
      report(frame, at, d.message,
             {flat(result), shortened(flat(root_.statement->values[0]), kStatement) + ": " +
                                builder.type(value->second).text()},
             d.rule, d.fix);
    } catch (const Mistake& mistake) {
      report(frame, mistake);
    }
  }
  state.good = state.good && diagnostics_.size() == before;
  if (state.good) state.program = std::move(builder).finish();
}

bool Lowerer::statement(const Statement& statement, Frame& frame) {
  const std::optional<Values> given = values(statement.values[0], frame);
  if (!given) return false;
  if (given->size() != statement.targets.size()) {
    const std::size_t targets = statement.targets.size();
    std::vector<std::string> types;
    for (const Value v : *given) types.push_back(root_.builder->type(v).text());
    std::string names;
    for (const Target& target : statement.targets)
      names += (names.empty() ? "" : ", ") + target.name;
    report(frame, statement.span,
           quoted(names) + " take" +
               (targets == 1 ? "s 1 value" : " " + std::to_string(targets) + " values") +
               ", but the expression gives " + std::to_string(given->size()),
           types,
           "a statement has one name for each value; `_` is the name of a value that nothing needs",
           "write " + std::to_string(given->size()) + (given->size() == 1 ? " name" : " names") +
               " before the `=`");
    return false;
  }
  bind_targets(statement, *given, frame);
  return true;
}

void Lowerer::bind_targets(const Statement& statement, const Values& values, Frame& frame) {
  const bool is_root = frame.caller == nullptr;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string& name = statement.targets[i].name;
    if (name == "_") continue;
    frame.values.try_emplace(name, values[i]);
    const bool is_param = root_.builder->so_far().is_param(values[i]);
    if (is_param || root_.named.contains(values[i])) continue;
    if (is_root) {
      root_.builder->name(values[i], name);
      root_.named.insert(values[i]);
    } else if (frame.item->kind != Item::Kind::def &&
               root_.builder->so_far().value(values[i]).name.empty()) {
      std::string inner = name;
      for (int n = 2; root_.taken.contains(inner); ++n) inner = name + "_" + std::to_string(n);
      root_.taken.insert(inner);
      root_.builder->name(values[i], inner);
    }
  }
}

// Throws Mistake and what `dim` reports as absent.
Type Lowerer::type(const TypeExpr& type, const Frame& frame) {
  Type result{.dtype = *dtype_from(type.dtype), .dims = {}};
  for (const Expr& expr : type.dims) {
    std::variant<Dim, Mistake> read = dim_of(expr);
    if (Mistake* mistake = std::get_if<Mistake>(&read)) throw std::move(*mistake);
    result.dims.push_back(substitute(std::get<Dim>(read), frame.dims));
  }
  return result;
}

void Lowerer::report(const Frame& frame, const Span& at, std::string message,
                     std::vector<std::string> types, std::string rule, std::string fix) {
  // Inside a call the author sees the call, and where in the callee it went wrong.
  const Frame* outer = &frame;
  Span place = at;
  std::string inside;
  while (outer->caller != nullptr) {
    if (inside.empty()) {
      const Location where = outer->unit->at(at);
      inside = "inside " + quoted(outer->item->name) + " (" + where.file + ":" +
               std::to_string(where.line) + "): ";
    }
    place = outer->call->span;
    outer = outer->caller;
  }
  const std::string statement = root_.statement != nullptr
                                    ? shortened(flat(*root_.statement), kStatement)
                                    : line_of(outer->unit->source, place);
  Diagnostic diagnostic{.where = outer->unit->at(place),
                        .statement = statement,
                        .message = inside + std::move(message),
                        .types = std::move(types),
                        .rule = std::move(rule),
                        .fix = std::move(fix)};
  if (diagnostics_.size() < kMostDiagnostics) diagnostics_.push_back(std::move(diagnostic));
}

void Lowerer::report(const Frame& frame, const Mistake& mistake) {
  report(frame, mistake.at, mistake.message, {}, mistake.rule, mistake.fix);
}

}  // namespace coda::ast
