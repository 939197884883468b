// coda/program/print_schedule.cpp: whole texts: programs, and schedules over the programs that
// their steps run.
//
// Steps whose programs compute the same name one program: they differ in the tensors alone.
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "coda/program/forms.h"
#include "coda/program/printer.h"
#include "coda/program/rename.h"
#include "coda/program/text.h"

namespace coda {
namespace {

using ast::ExprKind;

ast::Expr name_expr(const std::string& name) {
  return {.kind = ExprKind::name, .text = name, .args = {}, .span = {}};
}

class Text {
 public:
  explicit Text(std::span<const Schedule> schedules) {
    for (const Schedule& schedule : schedules) taken_.insert(schedule.name);
  }

  // No other program gets its name.
  void reserve(const Program& program) { taken_.insert(program.name()); }

  // A program under its own name, which was reserved.
  void add(const Program& program) {
    items_.push_back(ast::item_of(program));
    if (program.kind() != Program::Kind::program) return;
    Program key = nameless(program);
    names_[key.hash()].emplace_back(std::move(key), program.name());
    own_[program.name()] = &program;
  }

  // The programs that its steps need and no one added, then the schedule.
  void add(const Schedule& schedule) {
    std::vector<std::string> programs;
    for (const Step& step : schedule.steps) programs.push_back(name_of(step.program));
    ast::Item item{.kind = ast::Item::Kind::schedule,
                   .name = schedule.name,
                   .leading = ast::comments_of(schedule.comment),
                   .span = {}};
    for (const Param& param : schedule.params) {
      item.params.push_back({.name = param.name, .type = ast::type_of(param.type), .span = {}});
    }
    for (const Result& result : schedule.results) {
      item.results.push_back({.name = result.name,
                              .type = ast::type_of(result.type),
                              .accumulate = result.store == Store::accumulate,
                              .span = {}});
    }
    int loop = -1;
    for (std::size_t s = 0; s < schedule.steps.size(); ++s) {
      const Step& step = schedule.steps[s];
      if (step.loop >= 0 && step.loop != loop) {
        item.body.push_back(head(schedule.loops.at(static_cast<std::size_t>(step.loop))));
      }
      loop = step.loop;
      auto& body = loop < 0 ? item.body : item.body.back().loop->body;
      body.push_back(statement(step, programs[s]));
    }
    items_.push_back(std::move(item));
  }

  std::string run(int version) {
    return ast::layout({.version = version, .items = std::move(items_)});
  }

 private:
  static ast::Statement head(const Loop& loop) {
    ast::Statement statement{.kind = ast::Statement::Kind::loop, .span = {}};
    statement.loop = std::make_shared<ast::Loop>();
    statement.loop->dim.name = loop.dim;
    statement.loop->size = {
        .kind = ExprKind::number, .text = std::to_string(loop.size), .args = {}, .span = {}};
    if (!loop.first.empty()) statement.loop->first = ast::Target{.name = loop.first, .span = {}};
    return statement;
  }

  static ast::Statement statement(const Step& step, const std::string& program) {
    ast::Statement statement{.span = {}};
    const auto adds = [](const Result& result) {
      return result.store == Store::accumulate;
    };
    const bool all = std::ranges::all_of(step.program.results(), adds);
    if (all) statement.kind = ast::Statement::Kind::accumulate;
    for (std::size_t r = 0; r < step.outputs.size(); ++r) {
      statement.targets.push_back(
          {.name = step.outputs[r], .span = {}, .adds = !all && adds(step.program.results()[r])});
    }
    ast::Expr call{.kind = ExprKind::call, .text = program, .args = {}, .span = {}, .depth = 2};
    for (const std::string& input : step.inputs) call.args.push_back(name_expr(input));
    statement.values.push_back(std::move(call));
    return statement;
  }

  // What the text calls a program that computes the same; it gets one where there is none.
  std::string name_of(const Program& program) {
    Program key = nameless(program);
    auto& same = names_[key.hash()];
    for (const auto& [known, name] : same) {
      if (known == key) return name;
    }
    if (fits(program, key)) return program.name();
    std::string wanted = program.name();
    if (!ast::is_name(wanted) || ast::find_form(wanted) != nullptr || wanted == "blocks") {
      wanted = "step";
    }
    std::string name = wanted;
    for (int n = 2; !taken_.insert(name).second; ++n) name = wanted + "_" + std::to_string(n);
    ast::Item item = ast::item_of(program);
    item.kind = ast::Item::Kind::program;
    item.name = name;
    items_.push_back(std::move(item));
    same.emplace_back(std::move(key), name);
    return name;
  }

  // Whether the text's program of that name gives it under other names of dimensions.
  bool fits(const Program& program, const Program& key) const {
    const auto found = own_.find(program.name());
    if (found == own_.end()) return false;
    const Program& own = *found->second;
    if (own.params().size() != program.params().size() ||
        own.results().size() != program.results().size()) {
      return false;
    }
    Substitution dims;
    for (std::size_t p = 0; p < own.params().size(); ++p) {
      if (!unify(own.params()[p].type, program.params()[p].type, dims)) return false;
    }
    for (std::size_t r = 0; r < own.results().size(); ++r) {
      if (!unify(own.results()[r].type, program.results()[r].type, dims)) return false;
    }
    try {
      return nameless(with_dims(own, dims)) == key;
    } catch (const ProgramError&) {
      return false;
    }
  }

  std::vector<ast::Item> items_;
  std::set<std::string> taken_;
  std::map<std::string, const Program*> own_;
  // Under the hash of its nameless form.
  std::unordered_map<std::size_t, std::vector<std::pair<Program, std::string>>> names_;
};

}  // namespace

std::string print(std::span<const Schedule> schedules) {
  Text text(schedules);
  for (const Schedule& schedule : schedules) text.add(schedule);
  return text.run(kLanguageVersion);
}

std::string print(const Schedule& schedule) {
  return print(std::span(&schedule, 1));
}

std::string print(const Module& module) {
  Text text(module.schedules);
  for (std::size_t p = module.imported; p < module.programs.size(); ++p) {
    text.reserve(module.programs[p]);
  }
  // In text order, as far as there was a text.
  std::size_t next = 0;
  for (std::size_t p = module.imported; p < module.programs.size(); ++p) {
    const Program& program = module.programs[p];
    while (next < module.schedules.size() && module.schedules[next].where.line > 0 &&
           module.schedules[next].where.line < program.where().line) {
      text.add(module.schedules[next++]);
    }
    text.add(program);
  }
  while (next < module.schedules.size()) text.add(module.schedules[next++]);
  return text.run(module.version);
}

}  // namespace coda
