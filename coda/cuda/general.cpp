// coda/cuda/general.cpp: phases in order, and the results.
#include "coda/cuda/general.h"

#include <algorithm>
#include <set>

#include "coda/core/error.h"
#include "coda/cuda/general_phases.h"
#include "coda/program/text.h"

namespace coda::cuda {
namespace {

constexpr std::int64_t kBlocksOfProcessor = 16;

std::int64_t bytes_of(Lane lane) {
  return lane == Lane::f32 ? 4 : lane == Lane::truth ? 1 : 8;
}

// What may be stored in place of what: the same factors, as wide.
bool may_share(const Type& a, const Type& b) {
  std::vector<Factor> x = factors_of(a), y = factors_of(b);
  std::ranges::sort(x);
  std::ranges::sort(y);
  return x == y && size_of(a.dtype) == size_of(b.dtype);
}

}  // namespace

Plan plan_general(const Checked& checked, const Sizes& sizes, std::span<const Layout> layouts,
                  const Target& target) {
  return GeneralPlanner(checked, sizes, layouts, target).run();
}

GeneralPlanner::GeneralPlanner(const Checked& checked, const Sizes& sizes,
                               std::span<const Layout> layouts, const Target& target)
    : checked_(checked),
      program_(checked.program()),
      sizes_(sizes),
      layouts_(layouts),
      target_(target),
      real_(real_lane(program_)),
      precision_(precision_of(program_)) {
  plan_.name = program_.name();
  plan_.path = "general";
  Arguments none(program_, sizes_, layouts_);
  const ElementEmitter emitter(program_, none, precision_);
  for (std::size_t v = 0; v < program_.values().size(); ++v) {
    equal_.push_back(emitter.representative(Value{static_cast<std::int32_t>(v)}));
  }
}

Plan GeneralPlanner::run() {
  plan_.page = "// " + program_.name() + ": the predicated path: plain kernels in order.\n" +
               "#include \"maps.cuh\"\n#include \"philox.cuh\"\n#include \"general.cuh\"\n\nusing "
               "namespace coda;\n";
  if (checked_.kind() == KernelKind::opaque) {
    attention();
  } else if (std::ranges::any_of(program_.nodes(),
                                 [](const Node& node) { return node.op == Op::scatter_sum; })) {
    scatter();
  } else {
    products();
    reductions();
    results();
  }
  return std::move(plan_);
}

std::int64_t GeneralPlanner::allocate(std::int64_t bytes) {
  const std::int64_t offset = plan_.workspace;
  plan_.workspace += (bytes + 255) / 256 * 256;
  return offset;
}

Stored GeneralPlanner::stored(const std::string& name, std::vector<Factor> factors, Lane lane) {
  std::int64_t bytes = bytes_of(lane);
  for (const Factor& factor : factors) bytes *= require_extent(factor, sizes_);
  return {name, std::move(factors), lane, allocate(bytes)};
}

void GeneralPlanner::keep(Value value, Stored stored) {
  kept_.emplace(representative(value).id, std::move(stored));
}

std::string GeneralPlanner::text_of(Value value) const {
  const ValueInfo& info = program_.value(value);
  if (info.node < 0) return program_.params()[static_cast<std::size_t>(value.id)].name;
  std::string text = print_node(program_, static_cast<std::size_t>(info.node));
  std::ranges::replace(text, '\n', ' ');
  return text;
}

std::string GeneralPlanner::pointer(Phase& phase, const Stored& stored) const {
  return phase.arguments.workspace("kept_" + stored.name, type_of(stored.lane), stored.offset);
}

Emitted GeneralPlanner::read(ElementEmitter& emitter, const Stored& stored,
                             const Coordinates& coordinates) const {
  const Coordinate at = emitter.flat(Dim{stored.factors}, coordinates);
  const std::string from =
      emitter.arguments().workspace("kept_" + stored.name, type_of(stored.lane), stored.offset);
  const int depth = depth_of(coordinates);
  return {emitter.define(type_of(stored.lane), stored.name, from + "[" + at.text + "]", depth),
          stored.lane, depth};
}

void GeneralPlanner::write(Phase& phase, const Stored& stored, const Coordinates& coordinates,
                           const std::string& value) const {
  const Coordinate at = phase.emitter.flat(Dim{stored.factors}, coordinates);
  phase.emitter.line(pointer(phase, stored) + "[" + at.text + "] = " + value + ";");
}

void GeneralPlanner::each_of(const std::string& stem, const std::string& comment,
                             std::int64_t count, const Body& body) {
  if (count == 0) return;
  const std::string entry = identifier(program_.name()) + "_" +
                            std::to_string(plan_.launches.size() + 1) + "_" + identifier(stem);
  const auto supply = [&](ElementEmitter& emitter, Value value,
                          const Coordinates& coordinates) -> std::optional<Emitted> {
    const auto found = kept_.find(value.id);
    if (found == kept_.end()) return std::nullopt;
    return read(emitter, found->second, coordinates);
  };
  Phase phase{Arguments(program_, sizes_, layouts_),
              ElementEmitter(program_, phase.arguments, precision_, supply)};
  const std::string threads = std::to_string(kThreads) + "LL";
  phase.emitter.open("for (long long i = blockIdx.x * " + threads + " + threadIdx.x; i < " +
                     phase.arguments.number("count", count) + "; i += gridDim.x * " + threads +
                     ")");
  body(phase, {{"i", phase.emitter.depth()}});
  phase.emitter.close();

  const std::string type = "Arguments_" + entry;
  plan_.page += "\n" + phase.arguments.declaration(type) + "\n// " + comment +
                "\nextern \"C\" __global__ void __launch_bounds__(256, 2) " + entry +
                "(const __grid_constant__ " + type + " a) {\n" + phase.emitter.text() + "}\n";
  Launch launch;
  launch.entry = entry;
  launch.words = phase.arguments.words();
  launch.block = kThreads;
  launch.grid[0] = std::min((count + kThreads - 1) / kThreads,
                            std::int64_t{target_.processors} * kBlocksOfProcessor);
  plan_.launches.push_back(std::move(launch));
}

void GeneralPlanner::each(const std::string& stem, const std::string& comment, const Dim& domain,
                          const Body& body) {
  each_of(stem, comment, require_extent(domain, sizes_),
          [&](Phase& phase, const Coordinates& position) {
            body(phase, phase.emitter.divide(position[0], domain));
          });
}

// A value as it is, for those that must not read a parameter once some results are stored.
void GeneralPlanner::materialise(Value value) {
  value = representative(value);
  if (kept_.contains(value.id)) return;
  const std::vector<Factor> factors = factors_of(program_.type(value));
  const Lane lane = lane_of(program_, value, real_);
  const ValueInfo& info = program_.value(value);
  const std::string name = info.name.empty() ? "value" + std::to_string(value.id) : info.name;
  const Stored to = stored(name, factors, lane);
  each(name, text_of(value), Dim{factors}, [&](Phase& phase, const Coordinates& at) {
    write(phase, to, at, phase.emitter.value(value, at, lane).text);
  });
  keep(value, to);
}

void GeneralPlanner::store_result(Phase& phase, const Result& result, int tensor,
                                  const Coordinates& coordinates, const Emitted& value) const {
  const Type& type = result.type;
  const ElementEmitter::Named named = phase.emitter.named(result.value, coordinates);
  Coordinates declared;
  for (const Factor& factor : factors_of(type)) {
    const auto at = std::ranges::find(named.factors, factor);
    declared.push_back(
        at == named.factors.end()
            ? Coordinate{}
            : named.coordinates[static_cast<std::size_t>(at - named.factors.begin())]);
  }
  std::string text = value.text;
  if (result.store == Store::accumulate) {
    const Emitted before = phase.emitter.load(tensor, declared);
    text = "exact::add(" + convert(before.text, before.lane, value.lane) + ", " + text + ")";
  }
  phase.emitter.store(tensor, declared, text);
}

// Results with the same factors are one kernel: everything is read before anything is stored.
void GeneralPlanner::results() {
  struct Group {
    std::vector<Factor> key, domain;
    std::vector<std::size_t> results;
    std::int64_t elements = 1;
  };
  std::vector<Group> groups;
  for (std::size_t r = 0; r < program_.results().size(); ++r) {
    std::vector<Factor> domain = factors_of(program_.results()[r].type);
    std::erase(domain, Factor::number(1));
    std::vector<Factor> key = domain;
    std::ranges::sort(key);
    auto group = std::ranges::find(groups, key, &Group::key);
    if (group == groups.end()) {
      Group& fresh = groups.emplace_back();
      fresh.key = key;
      fresh.domain = domain;
      for (const Factor& factor : domain) fresh.elements *= require_extent(factor, sizes_);
      group = groups.end() - 1;
    }
    group->results.push_back(r);
  }
  // A later group must not read a parameter where an earlier one may have stored a result.
  std::vector<const Type*> written;
  for (const Group& group : groups) {
    for (const std::size_t r : group.results) {
      std::set<std::int32_t> seen;
      std::vector<Value> todo = {representative(program_.results()[r].value)};
      bool clashes = false;
      while (!todo.empty()) {
        const Value value = todo.back();
        todo.pop_back();
        if (!seen.insert(value.id).second || kept_.contains(value.id)) continue;
        if (program_.is_param(value)) {
          for (const Type* type : written)
            clashes = clashes || may_share(*type, program_.type(value));
        } else {
          for (const Value arg : program_.node(value).args) todo.push_back(representative(arg));
        }
      }
      if (clashes) materialise(program_.results()[r].value);
    }
    for (const std::size_t r : group.results) written.push_back(&program_.results()[r].type);
  }
  const auto params = static_cast<int>(program_.params().size());
  for (const Group& group : groups) {
    std::string names;
    for (const std::size_t r : group.results) {
      names += (names.empty() ? "" : ", ") + program_.results()[r].name;
    }
    each("store_" + program_.results()[group.results[0]].name, names, Dim{group.domain},
         [&](Phase& phase, const Coordinates& at) {
           const ElementEmitter::Named named{group.domain, at};
           std::vector<Emitted> values;
           for (const std::size_t r : group.results) {
             const Result& result = program_.results()[r];
             values.push_back(phase.emitter.value(result.value,
                                                  phase.emitter.by_name(result.value, named),
                                                  lane_of(result.type.dtype, real_)));
           }
           for (std::size_t i = 0; i < group.results.size(); ++i) {
             const std::size_t r = group.results[i];
             const Result& result = program_.results()[r];
             phase.emitter.line("// " + result.name +
                                (result.store == Store::accumulate ? " += " : " = ") +
                                describe(program_, result.value));
             store_result(phase, result, params + static_cast<int>(r),
                          phase.emitter.by_name(result.value, named), values[i]);
           }
         });
  }
}

}  // namespace coda::cuda
