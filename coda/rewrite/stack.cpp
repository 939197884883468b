// coda/rewrite/stack.cpp: inlines the embedding, each layer and the head one behind the other.
//
// All parameters come before the first node, so a stack is planned first: for each part, which
// parameter of the stack each of its parameters is. Then the parts are copied in turn.
#include "coda/rewrite/stack.h"

#include <algorithm>
#include <charconv>
#include <ranges>
#include <set>

#include "coda/program/builder.h"

namespace coda {
namespace {

constexpr int kMostLayers = 4096;

[[noreturn]] void fail(const Program& program, std::string message, std::vector<std::string> types,
                       std::string rule, std::string fix) {
  throw ProgramError(Diagnostic{.where = program.where(),
                                .statement = {},
                                .message = std::move(message),
                                .types = std::move(types),
                                .rule = std::move(rule),
                                .fix = std::move(fix)});
}

// The last one of that name: a file's own comes behind those that `use` brought in.
const Program* find(const Module& module, std::string_view name) {
  if (name.empty()) return nullptr;
  const auto backwards = std::views::reverse(module.programs);
  const auto found = std::ranges::find(backwards, name, &Program::name);
  return found == backwards.end() ? nullptr : &*found;
}

std::vector<Dim> substitute(std::vector<Dim> dims, const Substitution& names) {
  for (Dim& dim : dims) dim = coda::substitute(dim, names);
  return dims;
}

std::set<std::string> names_in(const Type& type) {
  std::set<std::string> names;
  for (const Dim& dim : type.dims) collect_names(dim, names);
  return names;
}

// One of the blocks that a stack consists of.
struct Part {
  const Program* program = nullptr;
  std::string prefix;              // "3.", "embed."
  Substitution dims = {};          // its dimensions in the stack
  std::vector<Value> params = {};  // its parameters in the stack; the stream's comes when copied
  bool reads_stream = true;        // as its first parameter
};

class Stack {
 public:
  Stack(const Module& module, int layers, const StackOptions& options)
      : options_(options), layer_(layer_block(module)), builder_("stack", Program::Kind::block) {
    if (layers < 1 || layers > kMostLayers) {
      fail(layer_, "a stack of " + std::to_string(layers) + " layers", {},
           "a stack repeats `" + layer_.name() + "` 1 to " + std::to_string(kMostLayers) + " times",
           "ask for a number of layers between these");
    }
    require_stream();
    collect_names(stream_.dims[0], tokens_);
    plan(module, layers);
  }

  Program build() && {
    declare();
    std::optional<Value> stream;
    for (Part& part : parts_) stream = copy(part, stream);
    return std::move(builder_).finish();
  }

 private:
  const Program& layer_block(const Module& module) const {
    if (const Program* layer = find(module, options_.layer)) return *layer;
    std::vector<std::string> names;
    std::string all;
    for (std::size_t i = module.imported; i < module.programs.size(); ++i) {
      names.push_back(module.programs[i].name());
      all += (all.empty() ? "`" : ", `") + names.back() + "`";
    }
    throw ProgramError(Diagnostic{
        .where = {},
        .statement = {},
        .message = "there is no block `" + options_.layer + "` to stack",
        .types = {},
        .rule = "a stack repeats one block of the file" + (all.empty() ? "" : ", which has " + all),
        .fix =
            suggestion(options_.layer, names, "name the block that is one layer: --block NAME")});
  }

  void require_stream() {
    const auto params = layer_.params();
    const std::string name = "`" + layer_.name() + "`";
    const std::string rule =
        "a layer's first parameter is the residual stream, with the tokens as first dimension, and "
        "its first result the next layer's";
    if (params.empty() || params[0].type.is_scalar()) {
      fail(layer_, name + " has no residual stream", {}, rule, "declare it first: `x: bf16[M, D]`");
    }
    stream_ = params[0].type;
    const Result& out = layer_.results()[0];
    if (out.type == stream_ && out.store == Store::overwrite) return;
    const std::string store = out.store == Store::accumulate ? "+" : "";
    fail(layer_,
         name + " cannot follow itself: its first result is not of its first parameter's type",
         {params[0].name + ": " + stream_.text(), out.name + ": " + store + out.type.text()}, rule,
         "declare `" + out.name + ": " + stream_.text() + "` as the first result");
  }

  void plan(const Module& module, int layers) {
    const Program* embed = find(module, options_.embed);
    if (embed == nullptr && options_.embed == "embed") embed = find(module, "embedding");
    const Program* head = find(module, options_.head);
    if (embed != nullptr) {
      Part part{.program = embed, .prefix = "embed.", .reads_stream = false};
      fit(part, embed->results()[0].name, embed->results()[0].type);
      parts_.push_back(std::move(part));
    }
    for (int i = 0; i < layers; ++i) {
      parts_.push_back({.program = &layer_, .prefix = std::to_string(i) + "."});
    }
    if (head == nullptr) return;
    Part part{.program = head, .prefix = "head."};
    if (head->params().empty()) {
      fail(*head, "`" + head->name() + "` has no parameter that could be the residual stream", {},
           "a head reads the last layer's result", "declare it first: `h: " + stream_.text() + "`");
    }
    fit(part, head->params()[0].name, head->params()[0].type);
    parts_.push_back(std::move(part));
  }

  // Gives the dimensions of an end of the stack the meaning that they have in the layers.
  void fit(Part& part, const std::string& name, const Type& type) const {
    bool fits = type.dims.size() == stream_.dims.size() && is_float(type.dtype);
    for (std::size_t d = 0; fits && d < type.dims.size(); ++d) {
      fits = unify(type.dims[d], stream_.dims[d], part.dims);
    }
    if (fits) return;
    fail(*part.program,
         "`" + name + "` of `" + part.program->name() + "` is not the residual stream of `" +
             layer_.name() + "`",
         {name + ": " + type.text(), layer_.params()[0].name + ": " + stream_.text()},
         "an embedding's first result and a head's first parameter have the dimensions of a "
         "layer's, by any names",
         "declare `" + name + ": " + stream_.text() + "`");
  }

  // ---- parameters ----

  std::string name_in_stack(const Part& part, const Param& param, const Type& type) {
    const bool has_tokens =
        std::ranges::any_of(names_in(type), [&](auto& name) { return tokens_.contains(name); });
    const bool is_layer = part.program == &layer_;
    const bool own = type.is_scalar() ? is_layer && is_integer(type.dtype) : !has_tokens;
    if (own) return part.prefix + param.name;
    // Another parameter of that name means something else.
    const int other = builder_.so_far().find_param(param.name);
    const bool clash =
        other >= 0 && !(builder_.so_far().params()[static_cast<std::size_t>(other)].type == type);
    return clash ? part.prefix + param.name : param.name;
  }

  Value declare(const Part& part, const Param& param) {
    const Type type{param.type.dtype, substitute(param.type.dims, part.dims)};
    std::string name = name_in_stack(part, param, type);
    if (const auto tied = options_.tied.find(name); tied != options_.tied.end()) {
      ties_.insert(name);
      const int other = builder_.so_far().find_param(tied->second);
      if (other < 0 ||
          !(builder_.so_far().params()[static_cast<std::size_t>(other)].type == type)) {
        fail(*part.program, "`" + name + "` cannot be `" + tied->second + "`",
             {name + ": " + type.text(),
              tied->second + ": " +
                  (other < 0 ? "no parameter before it" : builder_.type({other}).text())},
             "tied parameters have one type, and the first in the stack gives the name",
             "tie parameters of the same type: the later one to the earlier one");
      }
      return {other};
    }
    const int shared = builder_.so_far().find_param(name);
    if (shared >= 0) return {shared};
    builder_.place(part.program->where());
    return builder_.param(std::move(name), type);
  }

  void declare() {
    for (Part& part : parts_) {
      for (const Param& param : part.program->params()) {
        const bool is_stream = &param == part.program->params().data() && part.reads_stream;
        if (is_stream && &part != parts_.data()) {
          part.params.emplace_back();
        } else if (is_stream) {
          part.params.push_back(builder_.param(param.name, param.type));
        } else {
          part.params.push_back(declare(part, param));
        }
      }
    }
    for (const auto& [name, other] : options_.tied) {
      if (ties_.contains(name)) continue;
      fail(layer_, "`" + name + "` cannot be `" + other + "`: the stack has no `" + name + "`", {},
           "tied parameters are two parameters of the stack",
           "name a parameter as the stack does, like `head.w`");
    }
  }

  // ---- computation ----

  // The part's computation on `stream`; the stream that it gives, as its store would round it.
  Value copy(const Part& part, const std::optional<Value>& stream) {
    const Program& from = *part.program;
    std::vector<Value> mapped(from.values().size());
    const auto at = [&](Value v) -> Value& {
      return mapped[static_cast<std::size_t>(v.id)];
    };
    std::ranges::copy(part.params, mapped.begin());
    if (part.reads_stream && stream) {
      mapped[0] = rounded(*stream, from.params()[0].type.dtype);
    }
    for (const Node& node : from.nodes()) {
      std::vector<Value> args;
      for (const Value arg : node.args) args.push_back(at(arg));
      Attr attr = node.attr;
      attr.axis = coda::substitute(attr.axis, part.dims);
      attr.dims = substitute(std::move(attr.dims), part.dims);
      builder_.place(node.where);
      const std::vector<Value> results = builder_.ops(node.op, std::move(args), std::move(attr));
      for (std::size_t i = 0; i < results.size(); ++i) {
        at(node.results[i]) = results[i];
        name(results[i], part.prefix, from.value(node.results[i]).name);
      }
    }
    const bool is_last = &part == &parts_.back(), is_head = part.reads_stream && &from != &layer_;
    for (const Result& result : from.results()) {
      const bool is_stream = &result == from.results().data() && !is_head;
      if (is_stream && !is_last) continue;
      const std::string named = is_head || is_stream ? result.name : part.prefix + result.name;
      builder_.result(named, {result.type.dtype, substitute(result.type.dims, part.dims)},
                      at(result.value), result.store);
    }
    if (is_last) return {};
    const Result& out = from.results()[0];
    const Type declared{out.type.dtype, substitute(out.type.dims, part.dims)};
    if (declared.dims != builder_.type(at(out.value)).dims) {
      fail(from,
           "`" + from.name() + "` stores `" + out.name + "` in another order than it computes it",
           {"declared " + out.name + ": " + declared.text(),
            "computed " + out.name + ": " + builder_.type(at(out.value)).text()},
           "only a store reorders dimensions, and within a stack the stream is not stored",
           "declare the result in the order in which it is computed");
    }
    const Value next = rounded(at(out.value), out.type.dtype);
    name(next, part.prefix, out.name);
    return next;
  }

  Value rounded(Value v, DType dtype) {
    return builder_.type(v).dtype == dtype ? v : builder_.op(Op::cast, {v}, {.dtype = dtype});
  }

  void name(Value v, const std::string& prefix, const std::string& name) {
    if (!name.empty() && !builder_.so_far().is_param(v)) builder_.name(v, prefix + name);
  }

  const StackOptions& options_;
  const Program& layer_;
  Builder builder_;
  Type stream_;
  std::set<std::string> tokens_;  // names of the stream's first dimension
  std::set<std::string> ties_;    // those of options_.tied that were met
  std::vector<Part> parts_;
};

}  // namespace

Program stack(const Module& module, int layers, const StackOptions& options) {
  return Stack(module, layers, options).build();
}

std::optional<int> layer_of(std::string_view name) {
  if (name.starts_with("d_")) name.remove_prefix(2);
  int layer = 0;
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const bool prefix = error == std::errc() && stop != name.data() + name.size() && *stop == '.';
  return prefix && layer >= 0 ? std::optional(layer) : std::nullopt;
}

}  // namespace coda
