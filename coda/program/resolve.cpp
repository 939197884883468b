// coda/program/resolve.cpp: one walk over an item in text order with the table of its names.
#include "coda/program/resolve.h"

#include <algorithm>
#include <map>

#include "coda/program/dim_syntax.h"
#include "coda/program/forms.h"
#include "coda/program/parser.h"
#include "coda/program/quote.h"

namespace coda::ast {
namespace {

struct Name {
  const Statement* statement = nullptr;  // that assigns it; nullptr: a parameter
  Span span;
  bool assigned = false;  // by now
  bool used = false;
  bool accumulates = false;
};

class Resolver {
 public:
  Resolver(const Unit& unit, const Item& item, std::vector<Diagnostic>& diagnostics)
      : unit_(unit), item_(item), diagnostics_(diagnostics), dims_(dim_names(item)) {}

  Resolved run() {
    parameters();
    results();
    // Names that a later statement assigns are known, for a better message.
    for (const Statement& statement : item_.body) {
      for (const Target& target : statement.targets)
        names_.try_emplace(target.name, Name{.statement = &statement, .span = target.span});
    }
    for (const Statement& statement : item_.body) {
      statement_ = &statement;
      poisoned_ = statement.values.empty();
      for (const Expr& expr : statement.values) value(expr);
      if (poisoned_) out_.poisoned.insert(&statement);
      for (const Target& target : statement.targets) assign(target);
    }
    statement_ = nullptr;
    if (item_.complete) ends();
    out_.good = out_.good && item_.complete;
    return std::move(out_);
  }

 private:
  // The item's names

  void parameters() {
    for (const Parameter& param : item_.params) {
      const bool is_dim = param.type && param.type->dtype == "dim";
      if (!seen_.insert(param.name).second) {
        report(param.span, "the parameter " + quoted(param.name) + " is declared twice",
               "parameters have different names", "rename one of them");
      }
      if (is_dim) continue;
      not_a_dim(param.name, param.span);
      names_[param.name] = {.statement = nullptr, .span = param.span, .assigned = true};
    }
    for (const Parameter& param : item_.params) {
      if (!param.default_value) continue;
      for (std::set<std::string> used; const Expr* expr : leaves(*param.default_value)) {
        if (expr->kind != ExprKind::name || is_literal(expr->text)) continue;
        report(expr->span, "the default of " + quoted(param.name) + " names " + quoted(expr->text),
               "a default is a number", "write a number, or leave the default out");
      }
    }
  }

  static std::vector<const Expr*> leaves(const Expr& expr) {
    if (expr.args.empty()) return {&expr};
    std::vector<const Expr*> all;
    for (const Expr& arg : expr.args) {
      for (const Expr* leaf : leaves(arg)) all.push_back(leaf);
    }
    return all;
  }

  void results() {
    std::set<std::string> seen;
    for (const Parameter& result : item_.results) {
      if (!seen.insert(result.name).second) {
        report(result.span, "the result " + quoted(result.name) + " is declared twice",
               "results have different names", "rename one of them");
      } else if (seen_.contains(result.name)) {
        report(result.span, "the result " + quoted(result.name) + " has the name of a parameter",
               "parameters and results have different names", "rename the result");
      } else {
        not_a_dim(result.name, result.span);
      }
      results_[result.name] = &result;
    }
    if (item_.results.empty() && item_.kind != Item::Kind::def && item_.complete) {
      report(item_.span, quoted(item_.name) + " has no result",
             "a program or block computes at least one result",
             "declare one: `-> (y: bf16[M, N])`");
    }
  }

  void not_a_dim(const std::string& name, const Span& at) {
    if (!dims_.contains(name)) return;
    report(at, quoted(name) + " is both a value and a dimension",
           "one name is not both; `size(" + name + ")` is the number of elements along a dimension",
           "rename the value or the dimension");
  }

  void assign(const Target& target) {
    if (target.name == "_") return;
    Name& name = names_[target.name];
    const auto result = results_.find(target.name);
    const bool adds = statement_->kind == Statement::Kind::accumulate;
    if (name.statement == nullptr && result != results_.end()) {
      // The result's declaration was reported.
    } else if (name.statement == nullptr) {
      report(target.span, quoted(target.name) + " is a parameter", "a parameter is not assigned",
             "give the value another name");
    } else if (name.assigned) {
      report(target.span,
             quoted(target.name) + " is assigned twice, first at line " +
                 std::to_string(name.span.line),
             "every value is assigned once",
             adds ? "write the sum under another name: `… = " + target.name + " + …`"
                  : "give the second value another name");
    } else if (result == results_.end()) {
      not_a_dim(target.name, target.span);
      if (adds) {
        name.used = true;  // one mistake, one message
        report(target.span, quoted(target.name) + " is no result",
               "`+=` adds into a result that is declared with `+`",
               "write `=`, or declare `" + target.name + ": +f32[…]`");
      }
    } else if (adds && !result->second->accumulate) {
      report(target.span, quoted(target.name) + " is not declared as accumulating",
             "`+=` adds into a result that is declared with `+`",
             "write `=`, or declare " + quoted(target.name + ": +" + flat(*result->second->type)));
    } else if (!adds && result->second->accumulate) {
      report(target.span,
             quoted(target.name) + " is declared as accumulating: " + quoted(flat(*result->second)),
             "a result that is declared with `+` is added into, with `+=`",
             "write " + quoted(target.name + " += …") + ", or remove the `+`");
    }
    name.accumulates = adds && result != results_.end() && result->second->accumulate;
    name.assigned = true;
  }

  void ends() {
    for (const Parameter& result : item_.results) {
      const auto name = names_.find(result.name);
      if (name != names_.end() && (name->second.assigned)) continue;
      report(result.span, "the result " + quoted(flat(result)) + " is never assigned",
             "every declared result is assigned once",
             "add " + quoted(result.name + (result.accumulate ? " += …" : " = …")) +
                 ", or remove the result");
    }
    for (const Statement& statement : item_.body) {
      const auto unused = [&](const Target& target) {
        return !target.name.starts_with("_") && !results_.contains(target.name) &&
               !names_[target.name].used;
      };
      if (statement.targets.empty() || !std::ranges::all_of(statement.targets, unused)) continue;
      if (out_.poisoned.contains(&statement)) continue;
      const Target& target = statement.targets[0];
      if (names_[target.name].statement != &statement) continue;
      statement_ = &statement;
      report(target.span, quoted(target.name) + " is never used",
             "every value reaches a result, but one whose name starts with `_`",
             "use it, remove the statement, or name it " + quoted("_" + target.name));
      statement_ = nullptr;
    }
    if (item_.kind != Item::Kind::def) return;
    const auto returns = std::ranges::find(item_.body, Statement::Kind::returns, &Statement::kind);
    if (returns == item_.body.end()) {
      report(item_.span, "the def " + quoted(item_.name) + " returns nothing",
             "a def in braces ends with `return`", "add `return …` as its last statement");
    } else if (returns + 1 != item_.body.end()) {
      report((returns + 1)->span, "a statement follows the `return` of " + quoted(item_.name),
             "`return` is the last statement of a def", "move it before the `return`");
    }
  }

  // Expressions

  void value(const Expr& expr) {
    switch (expr.kind) {
      case ExprKind::name:
        return read(expr);
      case ExprKind::number:
        return;
      case ExprKind::call:
        return call(expr);
      case ExprKind::as:
        value(expr.args[0]);
        for (std::size_t i = 1; i < expr.args.size(); ++i) dim(expr.args[i]);
        return;
      case ExprKind::binary:
        value(expr.args[0]);
        value(expr.args[1]);
        for (std::size_t i = 2; i < expr.args.size(); ++i) dim(expr.args[i]);
        return;
      case ExprKind::gather:
      case ExprKind::negate:
      case ExprKind::pin:
        for (const Expr& arg : expr.args) value(arg);
        return;
      case ExprKind::list:
      case ExprKind::labelled:
        return report(expr.span, quoted(flat(expr)) + " is no value",
                      "lists of dimensions and names of arguments stand in calls only",
                      "remove it");
    }
  }

  void read(const Expr& expr) {
    const std::string& name = expr.text;
    if (is_literal(name)) return;
    const auto found = names_.find(name);
    if (found != names_.end() && name != "_") {
      Name& known = found->second;
      known.used = true;
      if (known.assigned && known.accumulates) {
        return report(expr.span, "the accumulating result " + quoted(name) + " is read",
                      "an accumulating result is written only: its sum is known after the program",
                      "name the added value first, and read that");
      }
      if (!known.assigned) {
        const bool self = known.statement == statement_;
        return report(
            expr.span,
            quoted(name) +
                (self ? " is used in its own statement"
                      : " is used before line " + std::to_string(known.span.line) + " assigns it"),
            "a value is assigned once, before it is used",
            self ? "use another name for the new value" : "move the statement that assigns it up");
      }
      return;
    }
    if (is_reserved(name) && item_.declares_all) {
      return report(expr.span, quoted(name) + " is no value",
                    quoted(name) + " is a word of the language", "write a value here");
    }
    if (dims_.contains(name)) {
      return report(expr.span, quoted(name) + " is a dimension, not a number",
                    "a dimension is not a value; `size(N)` is its number of elements",
                    "write " + quoted("size(" + name + ")"));
    }
    if (item_.declares_all) return unknown(expr, "value", value_names());
    poisoned_ = true;  // a parameter that did not parse may have had the name
  }

  std::vector<std::string> value_names() const {
    std::vector<std::string> all;
    for (const auto& [name, known] : names_) {
      if (known.assigned) all.push_back(name);
    }
    return all;
  }

  void unknown(const Expr& expr, const std::string& what,
               const std::vector<std::string>& candidates) {
    const std::string near = nearest(expr.text, candidates);
    const std::string head = expr.text.substr(0, expr.text.find('.'));
    const bool attribute = head != expr.text && names_.contains(head);
    if (const auto found = names_.find(attribute ? head : near); found != names_.end()) {
      found->second.used = true;
    }
    std::string have;
    for (std::size_t i = 0; i < candidates.size() && i < 12; ++i)
      have += (i == 0 ? "" : ", ") + candidates[i];
    if (candidates.size() > 12) have += ", …";
    report(expr.span, "unknown " + what + " " + quoted(expr.text),
           have.empty() ? "there is no " + what + " yet" : "the " + what + "s here are " + have,
           attribute         ? attribute_fix(head, expr.text.substr(head.size() + 1))
           : !near.empty()   ? "did you mean " + quoted(near) + "?"
           : what == "value" ? "assign it before this statement, or make it a parameter"
                             : "name a dimension of a parameter");
  }

  static std::string attribute_fix(const std::string& head, const std::string& attribute) {
    for (const char* transpose : {"T", "t", "mT", "transpose"}) {
      if (attribute != transpose) continue;
      return "leave it out: `@` finds by its name the dimension that both share, wherever it "
             "stands";
    }
    return "a dot is part of a name: " + quoted(head) +
           " has no attributes; call an op instead, such as " + quoted("f32(" + head + ")");
  }

  void dim(const Expr& expr) {
    if (!item_.complete) {
      // A type that did not parse may have named it.
      return;
    }
    std::set<std::string> names;
    dim_names(expr, names);
    for (const std::string& name : names) {
      if (dims_.contains(name) || is_literal(name)) continue;
      const Expr& at = *place_of(expr, name);
      if (names_.contains(name)) {
        report(at.span, quoted(name) + " is a value, not a dimension",
               "an axis is a dimension of a type, such as N in `bf16[M, N]`",
               "name a dimension: " + some_dims());
      } else {
        unknown(at, "dimension", {dims_.begin(), dims_.end()});
      }
      return;
    }
  }

  std::string some_dims() const {
    std::string text;
    for (const std::string& name : dims_) text += (text.empty() ? "" : ", ") + name;
    return text.empty() ? "none is declared here" : text;
  }

  void call(const Expr& expr) {
    if (const Form* form = find_form(expr.text)) return op(*form, expr);
    if (expr.text == "blocks") {
      return report(expr.span, quoted(flat(expr)) + " is a dimension, not a number",
                    "a dimension is not a value; `size` is its number of elements",
                    "write " + quoted("size(" + flat(expr) + ")"));
    }
    const std::optional<Definition> found = find_definition(unit_, expr.text);
    if (!found) return unknown_call(expr);
    if (found->item->kind == Item::Kind::schedule) {
      return report(
          expr.span, quoted(expr.text) + " is a schedule",
          "a call is replaced by the body of what it calls; a schedule has steps, no body",
          "call the block that it came from");
    }
    std::vector<const Expr*> bound;
    if (const auto mistake = bind_arguments(*found->item, expr, bound)) {
      // Parameters that did not parse are missing from the callee.
      if (found->item->complete) report(mistake->at, mistake->message, mistake->rule, mistake->fix);
      poisoned_ = true;
      return;
    }
    for (std::size_t i = 0; i < bound.size(); ++i) {
      if (bound[i] == nullptr) continue;
      const Parameter& param = found->item->params[i];
      if (param.type && param.type->dtype == "dim") {
        dim(*bound[i]);
      } else {
        argument(*bound[i]);
      }
    }
    out_.calls.push_back({&expr, *found});
  }

  // A value; an argument that looks like a dimension gets one message, not one for each of its
  // names.
  void argument(const Expr& expr) {
    std::set<std::string> names;
    if (expr.is_dim) dim_names(expr, names);
    const bool all_dims =
        std::ranges::all_of(names, [&](const std::string& n) { return dims_.contains(n); });
    if (names.empty() || !all_dims) return value(expr);
    report(expr.span, quoted(flat(expr)) + " is a dimension, not a number",
           "a dimension is not a value; `size(N)` is its number of elements",
           "write " + quoted("size(" + flat(expr) + ")"));
  }

  void op(const Form& form, const Expr& expr) {
    if (const auto mistake = check_form(form, expr)) {
      return report(mistake->at, mistake->message, mistake->rule, mistake->fix);
    }
    const bool join_by_pieces = form.op == Op::join && expr.args[0].kind != ExprKind::labelled;
    bool after_label = false;
    for (std::size_t i = 0; i < expr.args.size(); ++i) {
      const Expr& arg = expr.args[i];
      const bool labelled = arg.kind == ExprKind::labelled;
      const Expr& content = labelled ? arg.args[1] : arg;
      after_label = after_label || labelled;
      switch (form.role(i)) {
        case Role::value:
          argument(content);
          break;
        case Role::dim:
          dim(content);
          break;
        case Role::value_or_dim:
          content.is_dim ? either(content) : value(content);
          break;
        case Role::dim_or_list:
          dims(content);
          break;
        case Role::value_or_list:
          content.kind == ExprKind::list ? dims(content) : argument(content);
          break;
        case Role::number:
          break;
        case Role::options:
          value(content);
          break;
        case Role::pieces:
          if (labelled) dim(arg.args[0]);
          if (form.op == Op::split || (join_by_pieces && after_label)) {
            dim(content);
          } else {
            argument(content);
          }
          break;
      }
    }
  }

  void dims(const Expr& expr) {
    if (expr.kind != ExprKind::list) return dim(expr);
    for (const Expr& arg : expr.args) dim(arg);
  }

  // max(v, N): a name that is neither may be meant as one or the other.
  void either(const Expr& expr) {
    if (expr.kind != ExprKind::name || dims_.contains(expr.text)) return dim(expr);
    std::vector<std::string> candidates = value_names();
    candidates.insert(candidates.end(), dims_.begin(), dims_.end());
    unknown(expr, "value or dimension", candidates);
  }

  void unknown_call(const Expr& expr) {
    poisoned_ = true;
    for (const Expr& arg : expr.args) {
      const Expr& content = arg.kind == ExprKind::labelled ? arg.args[1] : arg;
      if (content.kind == ExprKind::list) {
        dims(content);
      } else if (!content.is_dim) {
        value(content);
      } else if (content.kind == ExprKind::name && !dims_.contains(content.text)) {
        either(content);
      }
    }
    if (!unit_.complete) {
      out_.good = false;
      return;
    }
    std::vector<std::string> candidates = form_names();
    for (const std::string& name : definition_names(unit_)) candidates.push_back(name);
    const std::string near = nearest(expr.text, candidates);
    const std::string file = library_file_of(expr.text);
    const std::string_view foreign = foreign_call(expr.text);
    const std::string rule =
        "a call names an op, a dtype, or a def, program or block of this file or of one that it "
        "uses";
    if (names_.contains(expr.text)) {
      return report(expr.span, quoted(expr.text) + " is a value, not a function", rule,
                    "write " + quoted(expr.text + " * (…)") + " to multiply, or " +
                        quoted(expr.text + "[ids]") + " to gather");
    }
    report(expr.span, "unknown op " + quoted(expr.text), rule,
           !file.empty() ? "add `use \"" + file + "\"` at the top: it defines " + quoted(expr.text)
           : !foreign.empty() ? std::string(foreign)
           : !near.empty()    ? "did you mean " + quoted(near) + "?"
                              : "define it: " + quoted("def " + expr.text + "(…) = …"));
  }

  void report(const Span& at, std::string message, std::string rule, std::string fix) {
    poisoned_ = true;
    out_.good = false;
    diagnostics_.push_back({.where = unit_.at(at),
                            .statement = shown(at),
                            .message = std::move(message),
                            .types = {},
                            .rule = std::move(rule),
                            .fix = std::move(fix)});
  }

  // The statement, in one line; where there is none, or it is the whole def, the line of the
  // source.
  std::string shown(const Span& at) const {
    return statement_ == nullptr || item_.is_expression ? line_of(unit_.source, at)
                                                        : flat(*statement_);
  }

  const Unit& unit_;
  const Item& item_;
  std::vector<Diagnostic>& diagnostics_;
  std::set<std::string> dims_, seen_;
  std::map<std::string, Name> names_;
  std::map<std::string, const Parameter*> results_;
  const Statement* statement_ = nullptr;
  bool poisoned_ = false;
  Resolved out_;
};

}  // namespace

Resolved resolve(const Unit& unit, const Item& item, std::vector<Diagnostic>& diagnostics) {
  return Resolver(unit, item, diagnostics).run();
}

}  // namespace coda::ast
