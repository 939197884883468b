// coda/cuda/pack.cpp: which tensors are copied, where their copies lie, and the launches around the
// product's.
#include "coda/cuda/pack.h"

#include <algorithm>
#include <utility>

#include "coda/check/bind.h"
#include "coda/check/input_view.h"
#include "coda/check/places.h"
#include "coda/cuda/arguments.h"
#include "coda/cuda/maps.h"
#include "coda/cuda/matrix.h"
#include "coda/program/builder.h"

namespace coda::cuda {
namespace {

constexpr int kPackThreads = 256;  // device/pack.cuh
constexpr std::int64_t kPackSide = 64, kBlocksOfProcessor = 8;
// What copies cost against the predicated path, roughly: bytes a second, flops a second, seconds a
// launch.
constexpr double kCopyRate = 2e12, kPredicatedRate = 15e12, kLaunch = 3e-6;

std::int64_t rounded_up(std::int64_t x, std::int64_t to) {
  return (x + to - 1) / to * to;
}

// A tensor's copy: a matrix whose rows and columns each run over some of its factors, the
// outermost first.
struct Copy {
  int tensor = 0;
  std::vector<std::size_t> rows, columns;
  bool in = true, out = false, is_operand = false;
  std::string why;
  std::int64_t row_count = 1, column_count = 1, pitch = 1, offset = 0;
};

class Packer {
 public:
  Packer(const Checked& checked, const Sizes& sizes, std::span<const Layout> layouts)
      : given_(checked.program()), sizes_(sizes), layouts_(layouts.begin(), layouts.end()) {
    narrow(checked);
    const Program& program = checked_->program();
    for (std::size_t s = 0; s < checked_->spaces().size(); ++s) {
      const Space& space = checked_->spaces()[s];
      for (const Accumulator& accumulator : space.accumulators) {
        for (const Accumulator::Term& term : accumulator.terms) {
          const Dim& axis = program.nodes()[static_cast<std::size_t>(term.node)].attr.axis;
          operand(term.left, axis);
          operand(term.right, axis);
        }
      }
    }
    for (std::size_t s = 0; s < checked_->spaces().size(); ++s) tiles(s);
  }

  std::optional<Plan> plan(const Target& target, const GemmTile* pinned,
                           std::vector<std::string>& reasons, Copies copies) {
    for (int p = 0; p < static_cast<int>(given_.params().size()); ++p) {
      if (is_narrowed(p) && !has_copy(p)) return std::nullopt;
    }
    if (copies_.empty()) return std::nullopt;
    if (copies == Copies::where_they_pay && !pay(reasons)) return std::nullopt;
    std::optional<Plan> plan;
    for (const Major major : {Major::contracted, Major::free}) {
      std::vector<Layout> packed = layouts_;
      for (Copy& copy : copies_) {
        if (copy.is_operand && major == Major::free) std::swap(copy.rows, copy.columns);
        place(copy, packed);
      }
      std::vector<std::string> why;
      plan = plan_gemm(*checked_, sizes_, packed, target, pinned, why);
      if (plan) break;
      for (const std::string& each : why) reasons.push_back("of copies: " + each);
    }
    if (!plan) return std::nullopt;
    plan->workspace = rounded_up(plan->workspace, kAligned);
    for (Copy& copy : copies_) {
      copy.offset = plan->workspace;
      plan->workspace += rounded_up(copy.row_count * copy.pitch * bytes_of(copy), kAligned);
    }
    redirect(*plan);
    std::vector<Launch> before, after;
    plan->page += "\n// What the copy engine cannot read as it lies.\n#include \"pack.cuh\"\n";
    for (const Copy& copy : copies_) {
      if (copy.in) before.push_back(launch(copy, Way::in, target, *plan));
      if (copy.out) after.push_back(launch(copy, Way::out, target, *plan));
      plan->notes.push_back("`" + name_of_tensor(copy.tensor) + "` is copied: it " + copy.why);
    }
    plan->launches.insert(plan->launches.begin(), before.begin(), before.end());
    plan->launches.insert(plan->launches.end(), after.begin(), after.end());
    plan->path += ", " + std::to_string(before.size() + after.size()) +
                  (before.size() + after.size() == 1 ? " copy" : " copies");
    return plan;
  }

 private:
  enum class Way : std::uint8_t { in, out };
  enum class Major : std::uint8_t { contracted, free };  // what is contiguous in operands' copies
  static constexpr std::int64_t kAligned = 256, kStep = 16;  // bytes

  // Operands of f32 that only casts to one 16-bit dtype read have that dtype in the program for the
  // copies.
  void narrow(const Checked& checked) {
    const std::size_t params = given_.params().size();
    std::vector<std::optional<DType>> narrow(params);
    std::vector<bool> is_read_otherwise(params);
    for (const Node& node : given_.nodes()) {
      for (const Value v : node.args) {
        if (!given_.is_param(v)) continue;
        const auto p = static_cast<std::size_t>(v.id);
        const DType to = node.attr.dtype;
        const bool rounds = node.op == Op::cast && (to == DType::bf16 || to == DType::f16) &&
                            (!narrow[p] || *narrow[p] == to);
        if (rounds) narrow[p] = to;
        is_read_otherwise[p] = is_read_otherwise[p] || !rounds;
      }
    }
    for (const Result& result : given_.results()) {
      if (given_.is_param(result.value)) {
        is_read_otherwise[static_cast<std::size_t>(result.value.id)] = true;
      }
    }
    Builder builder(given_.name(), given_.kind());
    builder.place(given_.where());
    Copier copy(given_, builder);
    bool any = false;
    for (std::size_t p = 0; p < params; ++p) {
      Param param = given_.params()[p];
      const Value value{static_cast<std::int32_t>(p)};
      if (narrow[p] && !is_read_otherwise[p] && param.type.dtype == DType::f32 &&
          is_operand(checked, value)) {
        param.type.dtype = *narrow[p];
        any = true;
      }
      copy.map(value, builder.param(param.name, param.type));
    }
    if (any) {
      for (const Result& result : given_.results()) {
        builder.result(result.name, result.type, copy(result.value), result.store);
      }
      checked_ = try_check(std::move(builder).finish());
    }
    if (!checked_) checked_ = checked;
  }

  const Program& program() const { return checked_->program(); }
  const Type& type_of(const Program& program, int tensor) const {
    const auto t = static_cast<std::size_t>(tensor);
    const std::size_t params = program.params().size();
    return t < params ? program.params()[t].type : program.results()[t - params].type;
  }
  const std::string& name_of_tensor(int tensor) const {
    const auto t = static_cast<std::size_t>(tensor);
    const std::size_t params = given_.params().size();
    return t < params ? given_.params()[t].name : given_.results()[t - params].name;
  }
  bool is_narrowed(int tensor) const {
    return type_of(given_, tensor).dtype != type_of(program(), tensor).dtype;
  }
  std::int64_t bytes_of(const Copy& copy) const {  // of an element
    return static_cast<std::int64_t>(size_of(type_of(program(), copy.tensor).dtype));
  }
  bool has_copy(int tensor) const {
    return std::ranges::find(copies_, tensor, &Copy::tensor) != copies_.end();
  }
  // Elements at addresses that are no multiples of their size are left to the predicated path.
  bool has_whole_elements(int tensor) const {
    return layouts_[static_cast<std::size_t>(tensor)].alignment >=
           static_cast<std::int64_t>(size_of(type_of(given_, tensor).dtype));
  }

  // Rows are what is not contracted.
  void operand(const Operand& operand, const Dim& axis) {
    const int tensor = operand.input.id;
    if (has_copy(tensor) || !has_whole_elements(tensor)) return;
    const OperandResult now = operand_matrix(program(), operand, axis, sizes_, layouts_);
    if (now.matrix && !is_narrowed(tensor)) return;
    const std::optional<InputView> view = view_input(program(), operand.value, sizes_);
    if (!view || size_of(view->dtype) != 2 || !is_float(view->dtype)) return;
    Copy copy{.tensor = tensor, .is_operand = true};
    copy.why = "is f32, rounded before the product";
    if (!is_narrowed(tensor)) {
      const std::string named = "`" + describe(program(), operand.input) + "` ";
      copy.why = now.refusal.starts_with(named) ? now.refusal.substr(named.size()) : now.refusal;
    }
    const std::vector<Factor> factors = factors_of(program().type(operand.value));
    std::vector<bool> taken(layouts_[static_cast<std::size_t>(tensor)].strides.size());
    const auto add = [&](std::vector<std::size_t>& to, std::size_t f) {
      for (const SubAxis& sub : view->factors[f]) {
        const auto at = static_cast<std::size_t>(sub.factor);
        if (!taken[at]) to.push_back(at);
        taken[at] = true;
      }
    };
    for (const Factor& factor : axis.factors) {
      const auto at = std::ranges::find(factors, factor) - factors.begin();
      add(copy.columns, static_cast<std::size_t>(at));
    }
    for (std::size_t f = 0; f < factors.size(); ++f) add(copy.rows, f);
    for (std::size_t f = 0; f < taken.size(); ++f) {
      if (!taken[f]) copy.rows.insert(copy.rows.begin(), f);
    }
    copies_.push_back(std::move(copy));
  }

  // Matrices that epilogues read and store.
  void tiles(std::size_t s) {
    const Places places(*checked_, s, sizes_);
    const auto params = static_cast<int>(program().params().size());
    for (int p = 0; p < params; ++p) {
      const Value value{p};
      if (is_operand(*checked_, value) || checked_->roles(s, value).empty()) continue;
      std::vector<std::size_t> declared(checked_->roles(s, value).size());
      for (std::size_t f = 0; f < declared.size(); ++f) declared[f] = f;
      tile(places, p, value, declared);
    }
    for (const int r : checked_->spaces()[s].results) {
      const Result& result = program().results()[static_cast<std::size_t>(r)];
      if (checked_->roles(s, result.value).empty()) continue;
      const std::vector<Factor> own = factors_of(result.type);
      std::vector<std::size_t> declared;
      for (const Factor& factor : factors_of(program().type(result.value))) {
        declared.push_back(static_cast<std::size_t>(std::ranges::find(own, factor) - own.begin()));
      }
      if (std::ranges::any_of(declared, [&](std::size_t f) { return f >= own.size(); })) continue;
      const std::size_t before = copies_.size();
      tile(places, params + r, result.value, declared);
      if (copies_.size() == before) continue;
      copies_.back().out = true;
      copies_.back().in = result.store == Store::accumulate;
    }
  }

  static bool is_operand(const Checked& checked, Value param) {
    for (const Space& space : checked.spaces()) {
      for (const Accumulator& accumulator : space.accumulators) {
        for (const Accumulator::Term& term : accumulator.terms) {
          if (term.left.input == param || term.right.input == param) return true;
        }
      }
    }
    return false;
  }

  // `declared`: of each factor of the value, which of the tensor's it is.
  void tile(const Places& places, int tensor, Value value,
            const std::vector<std::size_t>& declared) {
    const DType dtype = type_of(program(), tensor).dtype;
    const bool fits = is_float(dtype) && (size_of(dtype) == 2 || size_of(dtype) == 4);
    if (!fits || has_copy(tensor) || !has_whole_elements(tensor) || is_narrowed(tensor)) return;
    struct Placed {
      std::int64_t inner;
      std::size_t factor;
    };
    std::vector<Placed> rows, columns;
    const std::vector<FactorPlace> all = places.places(value);
    const std::vector<Role>& roles = checked_->roles(places.space_index(), value);
    for (std::size_t f = 0; f < all.size(); ++f) {
      if (all[f].place.block != 1 || (roles[f] == Role::local && all[f].extent > 1)) return;
      const bool whole = all[f].kind == FactorPlace::Kind::whole;
      auto& side = roles[f] == Role::row ? rows : columns;
      side.push_back({whole ? 0 : all[f].place.inner, declared[f]});
    }
    if (rows.empty() || columns.empty()) return;
    Copy copy{.tensor = tensor};
    const auto sort = [&](std::vector<Placed>& side, std::vector<std::size_t>& to) {
      std::ranges::stable_sort(side, std::ranges::greater(), &Placed::inner);
      for (const Placed& each : side) to.push_back(each.factor);
    };
    sort(rows, copy.rows);
    sort(columns, copy.columns);
    const std::optional<std::string> why = tile_refusal(copy);
    if (!why) return;
    copy.why = *why;
    copies_.push_back(std::move(copy));
  }

  std::int64_t extent(int tensor, std::size_t factor) const {
    return require_extent(factors_of(type_of(program(), tensor))[factor], sizes_);
  }

  // Why the copy engine cannot move boxes of the tensor as it lies.
  std::optional<std::string> tile_refusal(const Copy& copy) const {
    const Layout& layout = layouts_[static_cast<std::size_t>(copy.tensor)];
    const DType dtype = type_of(program(), copy.tensor).dtype;
    if (const auto why = alignment_refusal(layout, 0, kStep, dtype)) return why;
    std::int64_t line = 1;  // what lies side by side
    bool is_line = true;
    for (std::size_t i = copy.columns.size(); i-- > 0;) {
      const std::int64_t count = extent(copy.tensor, copy.columns[i]);
      const std::int64_t stride = layout.strides[copy.columns[i]];
      if (count == 1) continue;
      if (line == 1 && stride != 1) {
        return "has columns " + std::to_string(stride) + " elements apart";
      }
      is_line = is_line && stride == line;
      if (is_line) {
        line *= count;
      } else if (const auto why = alignment_refusal(layout, 0, stride, dtype)) {
        return why;
      }
    }
    for (const std::size_t f : copy.rows) {
      if (extent(copy.tensor, f) == 1) continue;
      if (const auto why = alignment_refusal(layout, 0, layout.strides[f], dtype)) return why;
    }
    return std::nullopt;
  }

  bool pay(std::vector<std::string>& reasons) const {
    double flops = 0, bytes = 0;
    for (const Node& node : program().nodes()) {
      if (node.op != Op::product) continue;
      flops += 2.0 * static_cast<double>(elements_of(program().type(node.results[0]), sizes_)) *
               static_cast<double>(require_extent(node.attr.axis, sizes_));
    }
    int launches = 0;
    for (const Copy& copy : copies_) {
      const Type& type = type_of(program(), copy.tensor);
      const int times = (copy.in ? 1 : 0) + (copy.out ? 1 : 0);
      bytes += 2.0 * times * static_cast<double>(elements_of(type, sizes_)) *
               static_cast<double>(size_of(type.dtype));
      launches += times;
    }
    if (flops / kPredicatedRate > bytes / kCopyRate + launches * kLaunch) return true;
    std::string names;
    for (const Copy& copy : copies_) {
      names += (names.empty() ? "`" : "`, `") + name_of_tensor(copy.tensor);
    }
    reasons.push_back("copies of " + names + "` would take longer than products of " +
                      std::to_string(static_cast<std::int64_t>(flops / 1e6)) +
                      " MFLOP do without them");
    return false;
  }

  // The copy's layout.
  void place(Copy& copy, std::vector<Layout>& packed) const {
    constexpr std::int64_t kWide = 2048, kLine = 128;  // bytes
    Layout& layout = packed[static_cast<std::size_t>(copy.tensor)];
    std::int64_t stride = 1;
    for (std::size_t i = copy.columns.size(); i-- > 0;) {
      layout.strides[copy.columns[i]] = stride;
      stride *= extent(copy.tensor, copy.columns[i]);
    }
    copy.column_count = stride;
    const std::int64_t row = stride * bytes_of(copy);
    stride = rounded_up(row, row < kWide ? kStep : kLine) / bytes_of(copy);
    copy.pitch = stride;
    copy.row_count = 1;
    for (std::size_t i = copy.rows.size(); i-- > 0;) {
      layout.strides[copy.rows[i]] = stride;
      stride *= extent(copy.tensor, copy.rows[i]);
      copy.row_count *= extent(copy.tensor, copy.rows[i]);
    }
    layout.alignment = 16;
  }

  // What the product's kernel reads and stores is the copies.
  void redirect(Plan& plan) const {
    for (Launch& launch : plan.launches) {
      for (MapSpec& map : launch.maps) {
        const auto copy = std::ranges::find(copies_, map.tensor, &Copy::tensor);
        if (copy != copies_.end()) map.workspace = copy->offset;
      }
      for (Word& word : launch.words) {
        if (word.kind != Word::Kind::pointer) continue;
        const auto copy = std::ranges::find(copies_, word.tensor, &Copy::tensor);
        if (copy == copies_.end()) continue;
        word = {Word::Kind::workspace, 0, copy->offset + word.value * bytes_of(*copy)};
      }
    }
  }

  std::vector<MemoryLoop> loops(int tensor, const std::vector<std::size_t>& factors) const {
    std::vector<MemoryLoop> loops;
    for (const std::size_t f : factors) {
      const std::int64_t stride = layouts_[static_cast<std::size_t>(tensor)].strides[f];
      merge(loops, {extent(tensor, f), stride});
    }
    if (loops.empty()) loops.push_back({1, 0});
    return loops;
  }

  Launch launch(const Copy& copy, Way way, const Target& target, Plan& plan) const {
    const std::vector<MemoryLoop> rows = loops(copy.tensor, copy.rows);
    const std::vector<MemoryLoop> columns = loops(copy.tensor, copy.columns);
    Launch launch;
    launch.entry = identifier(given_.name()) + (way == Way::in ? "_pack_" : "_unpack_") +
                   identifier(name_of_tensor(copy.tensor));
    const auto number = [&](std::int64_t value) {
      launch.words.push_back({Word::Kind::number, 0, value});
    };
    launch.words.push_back({Word::Kind::pointer, copy.tensor, 0});
    launch.words.push_back({Word::Kind::workspace, 0, copy.offset});
    number(copy.row_count);
    number(copy.column_count);
    number(copy.pitch);
    for (const auto* side : {&rows, &columns}) {
      for (const MemoryLoop& loop : *side) number(loop.extent);
      for (const MemoryLoop& loop : *side) number(loop.stride);
    }
    launch.block = kPackThreads;
    const std::int64_t tiles = (copy.row_count + kPackSide - 1) / kPackSide *
                               ((copy.column_count + kPackSide - 1) / kPackSide);
    launch.grid[0] = std::min(tiles, target.processors * kBlocksOfProcessor);

    const auto element = [&](const Program& of) {
      const DType dtype = type_of(of, copy.tensor).dtype;
      return (dtype == DType::f32 ? "" : "coda::") + std::string(element_of(dtype));
    };
    const bool across = columns.back().stride != 1 && rows.back().stride == 1;
    const bool in = way == Way::in;
    plan.page += "\n// " + name_of_tensor(copy.tensor) + " " + copy.why +
                 ".\nextern \"C\" __global__ void __launch_bounds__(" +
                 std::to_string(kPackThreads) + ")\n" + launch.entry +
                 "(const __grid_constant__ coda::Packing<" + (in ? "const " : "") +
                 element(given_) + ", " + (in ? "" : "const ") + element(program()) + ", " +
                 std::to_string(rows.size()) + ", " + std::to_string(columns.size()) +
                 "> args) {\n  coda::" + (in ? "pack" : "unpack") + "<" +
                 (across ? "true" : "false") + ">(args);\n}\n";
    return launch;
  }

  const Program& given_;
  const Sizes& sizes_;
  std::vector<Layout> layouts_;
  std::optional<Checked> checked_;  // of the program whose tensors the copies are
  std::vector<Copy> copies_;
};

}  // namespace

std::optional<Plan> plan_packed(const Checked& checked, const Sizes& sizes,
                                std::span<const Layout> layouts, const Target& target,
                                const GemmTile* pinned, std::vector<std::string>& reasons,
                                Copies copies) {
  if (checked.kind() != KernelKind::gemm) return std::nullopt;
  for (const Result& result : checked.program().results()) {
    if (elements_of(result.type, sizes) == 0) return std::nullopt;
  }
  return Packer(checked, sizes, layouts).plan(target, pinned, reasons, copies);
}

}  // namespace coda::cuda
