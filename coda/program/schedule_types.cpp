// coda/program/schedule_types.cpp: what one step stores and another reads has one type, under the
// schedule's names of dimensions; what a loop passes is a chunk.
#include <algorithm>

#include "coda/program/dim_syntax.h"
#include "coda/program/lower_schedule.h"
#include "coda/program/quote.h"
#include "coda/program/rename.h"

namespace coda::ast {
namespace {

std::string bracketed(const Type& type) {
  std::string text;
  for (const Dim& dim : type.dims) text += (text.empty() ? "" : ", ") + dim.text();
  return "[" + text + "]";
}

Type substituted(Type type, const Substitution& dims) {
  for (Dim& dim : type.dims) dim = substitute(dim, dims);
  return type;
}

}  // namespace

// Throws Mistake.
Type ScheduleLowerer::type(const TypeExpr& type) const {
  Type result{.dtype = *dtype_from(type.dtype), .dims = {}};
  for (const Expr& expr : type.dims) {
    std::variant<Dim, Mistake> read = dim_of(expr);
    if (Mistake* mistake = std::get_if<Mistake>(&read)) throw std::move(*mistake);
    result.dims.push_back(std::move(std::get<Dim>(read)));
  }
  return result;
}

std::optional<Program> ScheduleLowerer::fitted(const Call& call, const Statement& statement) {
  const Program& program = *call.program;
  Substitution dims;
  bool good = true;
  for (std::size_t i = 0; i < call.args.size(); ++i) {
    const Tensor& tensor = tensors_.at(call.args[i]->text);
    const Param& param = program.params()[i];
    if (param.type.dtype == tensor.type->dtype && unify(param.type, *tensor.type, dims)) continue;
    mismatch(*call.args[i], tensor, param, program, dims);
    good = false;
  }
  if (!good) return std::nullopt;
  for (std::size_t r = 0; r < program.results().size(); ++r) {
    const auto declared = results_.find(statement.targets[r].name);
    if (declared != results_.end()) unify(program.results()[r].type, declared->second.type, dims);
  }
  try {
    return with_dims(program, dims);
  } catch (const ProgramError& error) {
    const Diagnostic& d = error.diagnostics()[0];
    report(statement.values[0].span,
           "inside " + quoted(program.name()) + " (" + program.where().file + ":" +
               std::to_string(program.where().line) + "): " + d.message,
           d.types, d.rule, d.fix);
    return std::nullopt;
  }
}

void ScheduleLowerer::mismatch(const Expr& arg, const Tensor& tensor, const Param& param,
                               const Program& program, const Substitution& dims) {
  const std::string own = param.name + ": " + param.type.text();
  const Type here = substituted(param.type, dims);
  const bool stored = tensor.made != nullptr;
  Substitution with = dims;
  const bool dtype = unify(param.type, *tensor.type, with);  // its dimensions fit
  const std::string from = stored ? quoted(tensor.maker) : quoted(item_.name);
  report(arg.span,
         from + (stored ? " stores " : " has ") + quoted(arg.text) + " as " + tensor.type->text() +
             ", but " + quoted(program.name()) + " reads it as " + quoted(own),
         {(stored ? "stored " : "given ") + arg.text + ": " + tensor.type->text(),
          "read " + own + (here == param.type ? "" : ", here " + here.text())},
         "a step reads a tensor in the dtype and with the dimensions in which it was stored; each "
         "name of the program's dimensions has one meaning in all of its parameters",
         dtype
             ? "declare " +
                   quoted(param.name + ": " + std::string(name_of(tensor.type->dtype)) +
                          (param.type.is_scalar() ? "" : bracketed(param.type))) +
                   " in " + quoted(program.name()) +
                   (stored ? ", or let " + from + " store " + std::string(name_of(param.type.dtype))
                           : "")
         : here.is_scalar() ? "give a scalar"
                            : "give a tensor with the dimensions " + bracketed(here));
}

bool ScheduleLowerer::has_chunk(const Type& type) const {
  std::set<std::string> names;
  for (const Dim& dim : type.dims) collect_names(dim, names);
  return names.contains(open_dim_);
}

bool ScheduleLowerer::is_chunked(const Type& type, const std::string& dim) {
  if (type.dims.empty() || type.dims[0] != coda::dim_of(dim)) return false;
  std::set<std::string> rest;
  for (std::size_t d = 1; d < type.dims.size(); ++d) collect_names(type.dims[d], rest);
  return !rest.contains(dim);
}

// A tensor that comes from outside the loop, or leaves one.
bool ScheduleLowerer::chunk_fits(const Expr& arg, const Tensor& tensor) {
  if (!tensor.type || tensor.loop == loop_) return true;
  const std::string shown = arg.text + ": " + tensor.type->text();
  if (tensor.loop != kNoLoop && !tensor.adds) {
    const std::string& dim = schedule_.loops[static_cast<std::size_t>(tensor.loop)].dim;
    if (!is_chunked(*tensor.type, dim)) {
      report(arg.span, quoted(arg.text) + " is read behind the loop that stores it", {shown},
             "a tensor of a loop exists for one chunk at a time, but for one whose first dimension "
             "is " +
                 quoted(dim) + " and for a sum over the chunks",
             "read it in the loop, add it up with `+=`, or store it with " + quoted(dim) +
                 " as its first dimension");
      return false;
    }
  }
  if (loop_ == kNoLoop || !has_chunk(*tensor.type)) return true;
  const std::string& dim = open_dim_;
  if (is_chunked(*tensor.type, dim)) return true;
  report(
      arg.span, quoted(shown) + " has no rows of " + quoted(dim) + " to take a chunk of", {shown},
      "a loop over " + quoted(dim) + " passes each chunk's rows: of a tensor from outside, " +
          quoted(dim) + " is the whole first dimension, and in no other",
      "store it with " + quoted(dim) + " as its first dimension, or read it outside of the loop");
  return false;
}

// Whether what a step stores may be stored there.
void ScheduleLowerer::stored(const Target& target, const Tensor& tensor, const Result& made) {
  const std::string shown =
      made.name + ": " + (made.store == Store::accumulate ? "+" : "") + made.type.text();
  const std::string& name = target.name;
  if (tensor.adds != (made.store == Store::accumulate)) {
    return report(
        target.span,
        tensor.adds ? quoted(tensor.maker) + " does not add into " + quoted(shown)
                    : quoted(tensor.maker) + " adds into " + quoted(shown),
        {},
        "`+=` is for a program whose results are declared with `+`; among several, `+` marks one",
        tensor.adds ? "write " + quoted(name + " = …") + ", or declare the result of " +
                          quoted(tensor.maker) + " with `+`"
                    : "write " + quoted(name + " += …") + ", or " + quoted("+" + name) +
                          " where other results are stored");
  }
  const auto result = results_.find(name);
  const bool is_result = result != results_.end();
  const bool caller_adds = is_result && result->second.store == Store::accumulate;
  if (is_result) {
    const Type& declared = result->second.type;
    if (declared.dtype != made.type.dtype || factors_of(declared) != factors_of(made.type)) {
      return report(target.span,
                    quoted(tensor.maker) + " stores " + quoted(name) + " as " + made.type.text() +
                        ", but the schedule declares " + declared.text(),
                    {"declared " + name + ": " + declared.text(), "stored " + shown},
                    "a step stores a result in the dtype and with the dimensions that it is "
                    "declared with",
                    "declare " + quoted(name + ": " + made.type.text()) + ", or change " +
                        quoted(tensor.maker));
    }
    if (caller_adds && !tensor.adds) {
      return report(target.span, quoted(name) + " is declared as accumulating, but stored", {},
                    "a result that is declared with `+` is added into",
                    "remove the `+`, or let " + quoted(tensor.maker) + " add");
    }
  }
  if (loop_ == kNoLoop) {
    if (!tensor.adds || caller_adds) return;
    return report(target.span, quoted(name) + " is added into, but nothing is in it", {},
                  "outside of a loop a step adds into a result that is declared with `+`",
                  is_result ? "declare " + quoted(name + ": +" + made.type.text())
                            : "let " + quoted(tensor.maker) + " store with `=`");
  }
  const std::string& dim = open_dim_;
  if (dim.empty()) return;
  if (tensor.adds && has_chunk(made.type) && !(caller_adds && is_chunked(made.type, dim))) {
    return report(target.span, quoted(name) + " is added into, but each chunk has its own", {shown},
                  "what has the loop's dimension " + quoted(dim) + " is stored chunk by chunk",
                  "let " + quoted(tensor.maker) + " store with `=`");
  }
  if (is_result && !tensor.adds && !is_chunked(made.type, dim)) {
    report(target.span, "each chunk stores the whole of the result " + quoted(name), {shown},
           "a result of a loop has " + quoted(dim) +
               " as its whole first dimension, or is a sum over the chunks",
           has_chunk(made.type) ? "store it with " + quoted(dim) + " as its first dimension"
                                : "add it up with `+=`, or move the step out of the loop");
  }
}

}  // namespace coda::ast
