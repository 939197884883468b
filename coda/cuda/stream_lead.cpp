// coda/cuda/stream_lead.cpp: rows whose pitch is odd: vectors from the first aligned element on.
//
// A row then is some elements, vectors, and some elements; what is not in a vector is a loop of its
// own, a vector's width twice at most. Tensors whose rows start alike have the same vectors.
#include <algorithm>

#include "coda/cuda/stream_kernel.h"

namespace coda::cuda::streaming {
namespace {

constexpr std::int64_t kLeastVectors = 16;  // of a row
constexpr std::int64_t kAtOnce = 16;        // bytes of a memory access

std::int64_t stride_along(const View& view, const Factor& factor) {
  for (std::size_t f = 0; f < view.factors.size(); ++f)
    if (view.factors[f] == factor) return view.strides[f];
  return 0;
}

}  // namespace

void Kernel::choose_lead(Loop& loop) {
  if (loop.width == loop.natural || loop.fixed || loop.axes.size() != 1) return;
  if (loop.lanes_together != 0 || loop.axes[0].extent < kLeastVectors * loop.natural) return;
  for (const auto& [level, works] : loop.works) {
    if (level == kAfterRows) return;
    for (const Work& work : works)
      if (work.kind == Work::Kind::accumulate) return;
  }
  std::vector<std::pair<Access*, bool>> all;  // and whether it is stored
  for (auto& [key, access] : loop.reads) all.emplace_back(&access, false);
  for (auto& [key, access] : loop.writes) all.emplace_back(&access, true);
  std::erase_if(all,
                [](const auto& each) { return each.first->view.tensor < 0 || !each.first->lanes; });
  for (const auto& [access, stored] : all)
    if (access->parts != 1 || access->base != 0 || !access->path.empty()) return;

  const auto size = [&](const Access& access) {
    return static_cast<std::int64_t>(size_of(dtype_of(access.view.tensor)));
  };
  const auto aligned = [&](const Access& access) {
    return space_.layout(access.view.tensor).alignment %
               std::min(kAtOnce, size(access) * loop.natural) ==
           0;
  };
  const auto can_lead = [&](const Access& access) {
    return access.strides.back() == 1 && access.ids < 0 && access.block == 0;
  };
  const auto agree = [&](const Access& a, const Access& b) {
    if (&a == &b) return true;
    if (!can_lead(a) || !can_lead(b) || !aligned(a) || !aligned(b)) return false;
    return std::ranges::all_of(space_.rows(), [&](const Axis& axis) {
      const std::int64_t apart =
          stride_along(a.view, axis.factor) - stride_along(b.view, axis.factor);
      return apart % loop.natural == 0;
    });
  };
  // The one with which most bytes agree. What is stored must: a sector is written once.
  const Access* leader = nullptr;
  std::int64_t most = 0;
  for (const auto& [access, stored] : all) {
    if (!can_lead(*access)) continue;
    std::int64_t bytes = 0;
    bool stores = true;
    for (const auto& [other, other_stored] : all) {
      const bool agrees = agree(*access, *other);
      if (agrees) bytes += size(*other);
      stores = stores && (agrees || !other_stored);
    }
    if (stores && bytes > most) leader = access, most = bytes;
  }
  if (leader == nullptr) return;

  loops_.push_back(loop);
  Loop& edges = loops_.back();
  const std::string tag = loop_name(loop);
  const Lead lead = {leader->view, aligned(*leader), loop.natural, tag};
  std::vector<Access*> vectors;
  for (const auto& [access, stored] : all)
    if (agree(*leader, *access)) vectors.push_back(access);
  for (const auto& [access, stored] : all) access->vector = false;
  for (Access* access : vectors) access->vector = true;
  loop.lead = lead;
  loop.width = loop.natural;
  loop.vectors = loop.padded = loop.items = loop.axes[0].extent / loop.width;
  choose_width(edges, 1);
  edges.lead = lead;
  edges.edges = true;
  edges.vectors = edges.padded = edges.items = 2 * std::int64_t{lead.width};
}

// Of a row: elements before the first vector, vectors, elements.
void Kernel::emit_leads() {
  out_ = &row_text_[0];
  indent_ = row_indent_;
  for (const Loop& loop : loops_) {
    if (!loop.lead || loop.edges) continue;
    const Lead& lead = *loop.lead;
    const std::string owner = owner_of(lead.view), at = row_offset(lead.view, owner);
    const std::string width = std::to_string(lead.width), end = "end_" + lead.tag;
    std::string before = "Index(0)";
    if (!lead.aligned) {
      before = "Index(lead_of<" + width + ">(" + arguments_.pointer(lead.view.tensor) +
               (at.empty() ? "" : " + " + at) + "))";
    } else if (!at.empty()) {
      before = "Index(-(" + at + ")) % " + width;
    }
    line("// Vectors begin where an element of " + owner + " is aligned.");
    line("const Index " + end + " = Index(" +
         arguments_.number("extent_" + lead.tag, loop.axes[0].extent) + "), before_" + lead.tag +
         " = " + before + ";");
    line("const Index lead_" + lead.tag + " = before_" + lead.tag + " < " + end + " ? before_" +
         lead.tag + " : " + end + ";");
    line("const Index whole_" + lead.tag + " = (" + end + " - lead_" + lead.tag + ") / " + width +
         ";");
  }
}

}  // namespace coda::cuda::streaming
