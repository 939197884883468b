// coda/rewrite/rewrite.cpp: the passes, in order.
#include "coda/rewrite/rewrite.h"

#include <algorithm>
#include <map>

#include "coda/algebra/rule.h"
#include "coda/check/bind.h"
#include "coda/rewrite/budget.h"
#include "coda/rewrite/chunk.h"
#include "coda/rewrite/kept_logits.h"
#include "coda/rewrite/simplify.h"

namespace coda {
namespace {

// Each pass is kept, if it changed something.
class Passes {
 public:
  explicit Passes(const RewriteOptions& options) : situation_{.delay_f16 = options.delay_f16} {}

  void start(std::string name, Program program) {
    passes_.push_back({std::move(name), std::move(program)});
  }
  void simplify(Hints hints) { append("simplify", coda::simplify(program(), hints)); }
  // In order, and again as long as one finds something: a scale that left one operand may leave the
  // next.
  void apply(std::span<const Rule> rules) {
    constexpr int kRounds = 4;
    bool found = true;
    for (int round = 0; found && round < kRounds; ++round) {
      found = false;
      for (const Rule& rule : rules) {
        if (!append(std::string(rule.name), rule.apply(program(), situation_))) continue;
        simplify(Hints::keep);
        found = true;
      }
    }
  }
  void ready_to_cut() {
    simplify(Hints::drop);
    apply(kernel_rules());
  }

  const Program& program() const { return passes_.back().program; }
  void note(std::string text) { situation_.notes.push_back(std::move(text)); }
  void finish(Rewritten& made) && {
    made.passes = std::move(passes_);
    made.notes = std::move(situation_.notes);
  }

 private:
  bool append(std::string name, Program program) {
    if (program == passes_.back().program) return false;
    start(std::move(name), std::move(program));
    return true;
  }

  Situation situation_;
  std::vector<Pass> passes_;
};

// ---- chunks ----

// Bytes of what steps pass on to each other for each element of `dim`.
std::int64_t passed_on(const Schedule& schedule, const std::string& dim, const Sizes& sizes) {
  Sizes one = sizes;
  one[dim] = kBlock;
  std::int64_t bytes = 0;
  for (const Step& step : schedule.steps) {
    for (std::size_t i = 0; i < step.outputs.size(); ++i) {
      const auto is_it = [&](const Result& result) {
        return result.name == step.outputs[i];
      };
      if (std::ranges::any_of(schedule.results, is_it)) continue;
      const Type& type = step.program.results()[i].type;
      bytes += elements_of(type, one) * static_cast<std::int64_t>(size_of(type.dtype));
    }
  }
  return bytes / kBlock;
}

// The rows of weights whose products run again.
std::vector<std::string> chunkable(const Program& joint, const std::set<Value>& again) {
  std::vector<std::string> dims;
  for (const Value product : again) {
    for (const Value v : joint.node(product).args) {
      const Type& type = joint.type(v);
      if (!joint.is_param(v) || type.dims.size() != 2 || type.dims[0].factors.size() != 1) continue;
      const Factor& rows = type.dims[0].factors[0];
      if (rows.kind() != Factor::Kind::name || !has_factor(joint.type(product), rows)) continue;
      if (std::ranges::find(dims, rows.text()) == dims.end()) dims.push_back(rows.text());
    }
  }
  return dims;
}

// Adds the steps of a part. What they pass on to each other gets names that are not `taken`.
void append(Schedule& whole, Schedule part, int loop, std::set<std::string>& taken) {
  std::map<std::string, std::string> renamed;
  const auto is_passed_on = [&](const std::string& name) {
    return std::ranges::none_of(part.results, [&](const Result& r) { return r.name == name; });
  };
  for (const Step& step : part.steps) {
    for (const std::string& name : step.outputs) {
      if (!is_passed_on(name) || taken.insert(name).second) continue;
      std::string& fresh = renamed[name];
      for (int k = 1; fresh.empty() || taken.contains(fresh); ++k) {
        fresh = name + "_" + std::to_string(k);
      }
      taken.insert(fresh);
    }
  }
  for (Step& step : part.steps) {
    for (std::vector<std::string>* names : {&step.inputs, &step.outputs}) {
      for (std::string& name : *names) {
        if (const auto fresh = renamed.find(name); fresh != renamed.end()) name = fresh->second;
      }
    }
    step.loop = loop;
    whole.steps.push_back(std::move(step));
  }
}

// Bytes of the sums over chunks that only the loop needs.
std::int64_t summed(const Program& block, const Chunked& chunked, const Sizes& sizes) {
  std::int64_t bytes = 0;
  for (const Result& result : chunked.body.results()) {
    const bool is_ours = std::ranges::any_of(
        block.results(), [&](const Result& own) { return own.name == result.name; });
    if (is_ours || result.store != Store::accumulate) continue;
    bytes +=
        elements_of(result.type, sizes) * static_cast<std::int64_t>(size_of(result.type.dtype));
  }
  return bytes;
}

// How many elements of a dimension a chunk has: whole tiles, of all widths where that is enough.
std::int64_t chunk_size(std::int64_t most) {
  constexpr std::int64_t kGrain = 256, kWide = 768;  // columns
  if (most >= kWide) return most / kWide * kWide;
  return std::max(kGrain, most / kGrain * kGrain);
}

// The block in chunks of that dimension. What its body passes on stays within `bytes`, less
// `sums`.
std::optional<Partition> cut_in_chunks(const Program& block, const Chunked& chunked,
                                       std::int64_t bytes, std::int64_t sums, const Sizes& sizes,
                                       std::string& why) {
  const std::string& dim = chunked.dim;
  Partition body = partition(chunked.body);
  const std::int64_t each = passed_on(body.schedule, dim, sizes);
  const std::int64_t extent = sizes.at(dim);
  if (each == 0 || each * extent <= bytes) {
    why = "all of it fits";
    return std::nullopt;
  }
  const std::int64_t size = chunk_size(std::max(bytes - sums, bytes / 4) / each);
  if (size >= extent) {
    why = "one chunk would be all of it";
    return std::nullopt;
  }
  Partition whole{.block = block, .schedule = {}, .placements = {}};
  whole.schedule.name = block.name();
  whole.schedule.params = {block.params().begin(), block.params().end()};
  whole.schedule.results = {block.results().begin(), block.results().end()};
  whole.schedule.loops.push_back({dim, size, chunked.first});
  std::set<std::string> taken;
  for (const Program* part : {&chunked.before, &chunked.body, &chunked.after}) {
    for (const Param& param : part->params()) taken.insert(param.name);
    for (const Result& result : part->results()) taken.insert(result.name);
  }
  if (!chunked.before.results().empty())
    append(whole.schedule, partition(chunked.before).schedule, -1, taken);
  append(whole.schedule, std::move(body.schedule), 0, taken);
  if (!chunked.after.results().empty())
    append(whole.schedule, partition(chunked.after).schedule, -1, taken);
  whole.placements.assign(block.nodes().size(), {-1, "in chunks of `" + dim + "`"});
  return whole;
}

Partition cut(Passes& passes, const RewriteOptions& options, const Program& joint,
              const Training& training) {
  passes.ready_to_cut();
  const Program& program = passes.program();
  if (options.memory) {
    const Sizes sizes = assumed_sizes(joint, options.sizes);
    const std::int64_t kept = kept_bytes(training, sizes);
    if (kept > *options.memory) {
      passes.note("forward keeps " + std::to_string(kept) + " bytes for backward, more than the " +
                  std::to_string(*options.memory) + " allowed: nothing else can be computed again");
    }
    const std::int64_t left = std::max(*options.memory - kept, *options.memory / 4);
    // The dimension whose sums over chunks are smallest: they exist whole, in f32.
    struct Way {
      Chunked chunked;
      std::int64_t sums = 0;
    };
    std::vector<Way> ways;
    std::string why;
    const auto refuse = [&](const std::string& dim) {
      if (!why.empty()) passes.note("no chunks of " + dim + ": " + why);
      why.clear();
    };
    for (const std::string& dim : chunkable(joint, training.again)) {
      if (auto chunked = chunk(program, dim, why)) {
        const std::int64_t sums = summed(program, *chunked, sizes);
        ways.push_back({*std::move(chunked), sums});
      } else {
        refuse(dim);
      }
    }
    std::ranges::stable_sort(ways, {}, &Way::sums);
    for (const Way& way : ways) {
      if (auto cut = cut_in_chunks(program, way.chunked, left, way.sums, sizes, why)) {
        return *std::move(cut);
      }
      refuse(way.chunked.dim);
    }
  }
  return partition(program);
}

// Throws ProgramError for a name that the block does not have; says of one that the algebra left
// nothing of that it does nothing.
void require_values(const Program& block, const std::set<std::string>& names, Passes& passes) {
  const auto names_of = [](const Program& program) {
    std::vector<std::string> known;
    for (const ValueInfo& value : program.values()) {
      if (value.node >= 0 && !value.name.empty()) known.push_back(value.name);
    }
    return known;
  };
  const std::vector<std::string> known = names_of(block), left = names_of(passes.program());
  for (const std::string& name : names) {
    if (std::ranges::find(known, name) == known.end()) {
      throw ProgramError("`" + block.name() + "` computes no value `" + name + "`",
                         suggestion(name, known, "name a value as `coda print` shows it"));
    }
    if (std::ranges::find(left, name) == left.end()) {
      passes.note("`" + name + "` is neither kept nor computed again: nothing is left of it");
    }
  }
}

}  // namespace

Rewritten rewrite(const Program& block, const RewriteOptions& options) {
  Passes passes(options);
  passes.start("block", block);
  passes.simplify(Hints::keep);
  passes.apply(block_rules());
  passes.apply(joint_rules());
  passes.ready_to_cut();
  Rewritten made;
  made.forward = partition(passes.program());
  std::move(passes).finish(made);
  return made;
}

Rewritten rewrite(const Program& block, const GradOptions& gradients,
                  const RewriteOptions& options) {
  Passes passes(options);
  passes.start("block", block);
  passes.simplify(Hints::keep);
  passes.apply(block_rules());
  passes.start("grad", joint(passes.program(), gradients));
  passes.simplify(Hints::keep);
  passes.apply(joint_rules());
  const std::size_t params = block.params().size(), results = block.results().size();
  require_values(block, options.save, passes);
  require_values(block, options.recompute, passes);
  Saving saving;
  saving.save = options.save;
  saving.recompute = options.recompute;
  const auto cut_in_two = [&] {
    const Program& whole = passes.program();
    return options.memory
               ? halves_within(whole, params, results, saving, *options.memory, options.sizes)
               : halves(whole, params, results, saving);
  };
  Training training = cut_in_two();
  if (auto fitting = with_logsumexps_of_kept(passes.program(), results, training)) {
    passes.start("logsumexps of what is kept", std::move(*fitting));
    passes.simplify(Hints::keep);
    training = cut_in_two();
  }
  const Program whole = passes.program();
  Rewritten made;
  passes.start("forward", training.forward);
  passes.ready_to_cut();
  made.forward = partition(passes.program());
  passes.start("backward", training.backward);
  made.backward = cut(passes, options, whole, training);
  made.saved = training.saved;
  std::move(passes).finish(made);
  return made;
}

}  // namespace coda
