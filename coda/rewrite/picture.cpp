// coda/rewrite/picture.cpp: lays kernels out as boxes in two columns, and draws what flows between.
//
// Lengths are in pixels. Colours are Okabe and Ito's, which the colour-blind tell apart; texts
// carry the same facts as colours.
#include "coda/rewrite/picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "coda/check/bind.h"
#include "coda/core/file.h"
#include "coda/rewrite/svg.h"

namespace coda {
namespace {

constexpr double kBoxWidth = 330, kBoxHeight = 58, kGap = 34, kBandGap = 46;
constexpr double kBetween = 360;  // the columns
constexpr double kPort = 20;      // height that a line's label takes
constexpr double kLane = 24;      // of a line that passes boxes by
constexpr double kMargin = 24, kHeader = 150;
constexpr double kCharacter = 6.4;  // width of one, at 11 pixels
constexpr double kThickest = 9;

struct Colour {
  const char *fill, *edge;
};
Colour colour_of(const std::string& kind) {
  if (kind == "gemm") return {"#d6e9f5", "#0072b2"};
  if (kind == "stream") return {"#fbe7bf", "#c27f00"};
  return {"#e3e3e3", "#5a5a5a"};
}
constexpr const char* kFlow = "#6b6b6b";
constexpr const char* kSaved = "#009e73";

std::string cut(std::string text, double width) {
  auto most = static_cast<std::size_t>(std::max(1.0, width / kCharacter));
  if (text.size() <= most) return text;
  // Not inside a UTF-8 sequence.
  while (--most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) {
  }
  return text.substr(0, most) + "…";
}

// ---- what is drawn ----

struct Tensor {
  std::string name;
  std::int64_t bytes = 0;
};

// Tensors that one kernel gives another.
struct Flow {
  std::size_t from = 0, to = 0;  // steps of one half
  std::vector<Tensor> tensors = {};
  std::int64_t bytes = 0;
  int lane = -1;  // beside the boxes; -1: to the next box

  std::string label() const {
    std::string text = amount(bytes, "B");
    for (std::size_t i = 0; i < tensors.size() && i < 3; ++i) {
      text += (i > 0 ? ", " : ": ") + tensors[i].name;
    }
    return tensors.size() > 3 ? text + ", …" : text;
  }
};

// What forward keeps, from one kernel of its to kernels of backward.
struct Saved {
  Tensor tensor;
  std::size_t from = 0;
  std::vector<std::size_t> to = {};
};

struct Box {
  double x = 0, y = 0, height = kBoxHeight;
  int band = 0, rank = 0;
  std::string title, work, costs;
};

bool accumulates(const Program& program) {
  return std::ranges::any_of(
      program.results(), [](const Result& result) { return result.store == Store::accumulate; });
}

class Picture {
 public:
  explicit Picture(const Report& report) : report_(report) {
    for (std::size_t h = 0; h < report.halves.size(); ++h) {
      boxes_[h] = boxes_of(report.halves[h]);
      connect(h);
    }
    for (auto& flows : flows_) {
      for (const Flow& flow : flows) most_ = std::max(most_, flow.bytes);
    }
    for (const Saved& saved : saved_) most_ = std::max(most_, saved.tensor.bytes);
    for (std::size_t h = 0; h < report.halves.size(); ++h) assign_lanes(h);
    place();
  }

  std::string text(Svg::Form form) {
    draw_bands();
    draw_header();
    for (std::size_t h = 0; h < report_.halves.size(); ++h) draw_flows(h);
    draw_saved();
    for (std::size_t h = 0; h < report_.halves.size(); ++h) draw_boxes(h);
    return svg_.picture(width_, height_, form);
  }

 private:
  const Schedule& schedule(std::size_t h) const { return report_.halves[h].partition.schedule; }

  std::vector<Box> boxes_of(const Half& half) {
    std::vector<Box> boxes;
    const char letter = half.phase == "forward" ? 'F' : 'B';
    for (std::size_t i = 0; i < half.fused.steps.size(); ++i) {
      const Cost& cost = half.fused.steps[i];
      Box box;
      box.title = letter + std::to_string(i + 1) + "  " + cost.step;
      box.work = work_of(half.partition.schedule.steps[i]);
      box.costs = amount(cost.bytes_read, "B") + " read, " + amount(cost.bytes_written, "B") +
                  " written, " + amount(cost.flops, "FLOP");
      boxes.push_back(std::move(box));
    }
    assign_bands(half, boxes);
    return boxes;
  }

  // The band of layer i is i + 1; before it is the embedding, behind it the head. What belongs to
  // neither by its names stands with its neighbour.
  void assign_bands(const Half& half, std::vector<Box>& boxes) {
    for (const Half& each : report_.halves) {
      for (const auto& layer : each.layers) layers_ = std::max(layers_, layer.value_or(-1) + 1);
    }
    if (layers_ == 0) return;
    int band = half.phase == "backward" ? layers_ + 1 : 0;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      const Step& step = half.partition.schedule.steps[i];
      if (half.layers[i]) {
        band = *half.layers[i] + 1;
      } else if (names(step, "head.")) {
        band = layers_ + 1;
      } else if (names(step, "embed.")) {
        band = 0;
      }
      boxes[i].band = band;
    }
  }

  static bool names(const Step& step, std::string_view prefix) {
    const auto has = [&](std::string_view name) {
      return name.starts_with(prefix) ||
             (name.starts_with("d_") && name.substr(2).starts_with(prefix));
    };
    return std::ranges::any_of(step.inputs, has) || std::ranges::any_of(step.outputs, has);
  }

  std::int64_t bytes_of(const Type& type) const {
    return elements_of(type, report_.sizes) * static_cast<std::int64_t>(size_of(type.dtype));
  }

  void connect(std::size_t h) {
    std::map<std::string, std::size_t> made;
    std::map<std::pair<std::size_t, std::size_t>, std::size_t> flow_of;
    const std::vector<Step>& steps = schedule(h).steps;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (std::size_t k = 0; k < steps[i].inputs.size(); ++k) {
        const Tensor tensor{steps[i].inputs[k], bytes_of(steps[i].program.params()[k].type)};
        if (const auto from = made.find(tensor.name); from != made.end()) {
          const auto [found, fresh] = flow_of.try_emplace({from->second, i}, flows_[h].size());
          if (fresh) flows_[h].push_back({.from = from->second, .to = i});
          Flow& flow = flows_[h][found->second];
          flow.tensors.push_back(tensor);
          flow.bytes += tensor.bytes;
        } else if (const auto kept = kept_.find(tensor.name); h > 0 && kept != kept_.end()) {
          saved_[kept->second].tensor = tensor;
          saved_[kept->second].to.push_back(i);
        }
      }
      for (const std::string& name : steps[i].outputs) {
        made[name] = i;
        if (h > 0) continue;
        kept_[name] = saved_.size();
        saved_.push_back({.tensor = {name, 0}, .from = i});
      }
    }
    for (Flow& flow : flows_[h]) {
      std::ranges::stable_sort(flow.tensors, std::greater{}, &Tensor::bytes);
    }
  }

  // Where each box stands in its column, counted in the direction of time.
  void assign_ranks(std::size_t h) {
    std::vector<Box*> order;
    for (Box& box : boxes_[h]) order.push_back(&box);
    std::ranges::stable_sort(order, {},
                             [&](const Box* box) { return h == 0 ? box->band : -box->band; });
    for (std::size_t i = 0; i < order.size(); ++i) order[i]->rank = static_cast<int>(i);
  }

  // Lines between neighbours run straight; the others beside the boxes, the short ones inside.
  void assign_lanes(std::size_t h) {
    assign_ranks(h);
    const auto ends = [&](const Flow* flow) {
      return std::minmax({boxes_[h][flow->from].rank, boxes_[h][flow->to].rank});
    };
    const auto length = [&](const Flow* flow) {
      return ends(flow).second - ends(flow).first;
    };
    std::vector<Flow*> passing;
    for (Flow& flow : flows_[h]) {
      if (boxes_[h][flow.to].rank != boxes_[h][flow.from].rank + 1) passing.push_back(&flow);
    }
    std::ranges::stable_sort(passing, {}, length);
    std::vector<std::vector<const Flow*>> lanes;
    for (Flow* flow : passing) {
      const auto is_free = [&](const std::vector<const Flow*>& lane) {
        return std::ranges::none_of(lane, [&](const Flow* other) {
          return ends(flow).first < ends(other).second && ends(other).first < ends(flow).second;
        });
      };
      const auto lane = std::ranges::find_if(lanes, is_free);
      flow->lane = static_cast<int>(lane - lanes.begin());
      if (lane == lanes.end()) lanes.emplace_back();
      lanes[static_cast<std::size_t>(flow->lane)].push_back(flow);
    }
    lanes_[h] = static_cast<int>(lanes.size());
  }

  void place() {
    std::vector<int> ports(boxes_[0].size());
    for (Saved& saved : saved_) {
      if (!saved.to.empty()) ++ports[saved.from];
    }
    std::vector<int> arriving(boxes_[1].size());
    for (const Saved& saved : saved_) {
      for (const std::size_t to : saved.to) ++arriving[to];
    }
    for (std::size_t i = 0; i < ports.size(); ++i) {
      boxes_[0][i].height = std::max(kBoxHeight, kPort * (ports[i] + 0.5));
    }
    for (std::size_t i = 0; i < arriving.size(); ++i) {
      boxes_[1][i].height = std::max(kBoxHeight, 9.0 * (arriving[i] + 1));
    }
    const double left = kMargin + kLane * lanes_[0] + 22;
    const bool both = report_.halves.size() > 1;
    for (Box& box : boxes_[0]) box.x = left;
    for (Box& box : boxes_[1]) box.x = left + kBoxWidth + kBetween;
    width_ =
        left + kBoxWidth + kMargin + (both ? kBetween + kBoxWidth + kLane * lanes_[1] + 22 : 220);
    double y = kHeader + 20;
    for (int band = 0; band <= layers_ + 1; ++band) {
      std::array<std::vector<Box*>, 2> columns;
      double tallest = 0;
      for (std::size_t h = 0; h < 2; ++h) {
        for (Box& box : boxes_[h]) {
          if (box.band == band) columns[h].push_back(&box);
        }
        tallest = std::max(tallest, height_of(columns[h]));
      }
      if (tallest == 0) continue;
      std::ranges::reverse(columns[1]);
      for (const std::vector<Box*>& column : columns) {
        // What the other column needs more is shared out between these boxes.
        const double spare = (tallest - height_of(column)) / static_cast<double>(column.size() + 1);
        double at = y + spare;
        for (Box* box : column) {
          box->y = at;
          at += box->height + kGap + spare;
        }
      }
      bands_.push_back({band, y, tallest});
      y += tallest + kBandGap;
    }
    height_ = y - kBandGap + kMargin + 10;
  }

  static double height_of(const std::vector<Box*>& column) {
    double height = column.empty() ? 0 : -kGap;
    for (const Box* box : column) height += box->height + kGap;
    return height;
  }

  // ---- drawing ----

  double part(std::int64_t bytes) const {
    return most_ > 0 ? static_cast<double>(bytes) / static_cast<double>(most_) : 0;
  }
  double thickness(std::int64_t bytes) const {
    return 1 + (kThickest - 1) * std::sqrt(part(bytes));
  }

  // A stack's layers, and what is before and behind them.
  void draw_bands() {
    if (layers_ == 0) return;
    for (const Band& band : bands_) {
      std::string name = "layer " + std::to_string(band.number - 1);
      if (band.number == 0) name = "embedding";
      if (band.number > layers_) name = "head";
      svg_.box(8, band.y - 20, width_ - 16, band.height + 32, "#f6f6f6", "#e0e0e0");
      svg_.text(14, band.y - 7, name, "fill=\"#777777\" font-weight=\"bold\"");
    }
  }

  void draw_header() {
    std::string title = schedule(0).name + ": ";
    for (const Half& half : report_.halves) {
      title += (&half == report_.halves.data() ? "" : ", ") +
               std::to_string(half.fused.steps.size()) + " kernels " + half.phase;
    }
    svg_.text(kMargin, 30, title, "font-size=\"17\" font-weight=\"bold\"");
    const auto unfused = static_cast<double>(bytes_moved(report_.unfused));
    const double longest = std::max(unfused, static_cast<double>(bytes_moved(report_.total)));
    const double room = width_ - 2 * kMargin - 300;
    double y = 48;
    const auto bar = [&](const std::string& name, const Cost& cost, const char* colour) {
      const auto bytes = static_cast<double>(bytes_moved(cost));
      const double length = longest > 0 ? std::min(room, room * bytes / longest) : 0;
      svg_.text(kMargin, y + 11, name);
      svg_.box(kMargin + 110, y, std::max(1.0, length), 14, colour, "none");
      std::string share = amount(bytes_moved(cost), "B");
      if (unfused > 0 && &cost != &report_.unfused) {
        share += formatted(", %.0f %% of unfused", 100 * bytes / unfused);
      }
      svg_.text(kMargin + 118 + length, y + 11, share);
      y += 19;
    };
    bar("unfused", report_.unfused, "#b0b0b0");
    bar("these kernels", report_.total, "#0072b2");
    if (bytes_moved(report_.ideal) > 0) bar("each tensor once", report_.ideal, "#009e73");
    double x = kMargin;
    y += 12;
    const auto entry = [&](const char* what, const std::string& meaning) {
      const Colour colour = colour_of(what);
      svg_.box(x, y - 9, 14, 11, colour.fill, colour.edge);
      svg_.text(x + 20, y, meaning);
      x += 34 + kCharacter * static_cast<double>(meaning.size());
    };
    entry("gemm", "gemm: product and epilogue");
    entry("stream", "stream: no product");
    entry("opaque", "opaque: attention");
    svg_.line(formatted("M%.1f %.1fh26", x, y - 4), 4, kFlow, "");
    svg_.text(x + 32, y, "tensor, thickness by bytes");
    x += 200;
    if (report_.halves.size() < 2) return;
    svg_.line(formatted("M%.1f %.1fh26", x, y - 4), 4, kSaved, "");
    svg_.text(x + 32, y, "kept by forward for backward");
  }

  void draw_boxes(std::size_t h) {
    for (std::size_t i = 0; i < boxes_[h].size(); ++i) {
      const Box& box = boxes_[h][i];
      const std::string& kind = report_.halves[h].fused.steps[i].kind;
      const Colour colour = colour_of(kind);
      svg_.box(box.x, box.y, kBoxWidth, box.height, colour.fill, colour.edge);
      svg_.box(box.x, box.y, 5, box.height, colour.edge, colour.edge);
      const bool adds = accumulates(schedule(h).steps[i].program);
      const std::string tag = (adds ? "+=  " : "") + kind + chunks(h, i);
      // Both are bold, the title in larger letters.
      const double room =
          (kBoxWidth - 28 - 1.1 * kCharacter * static_cast<double>(tag.size())) * 0.78;
      svg_.text(box.x + 13, box.y + 17, cut(box.title, room),
                "font-size=\"13\" font-weight=\"bold\"");
      svg_.text(box.x + kBoxWidth - 8, box.y + 17, tag,
                formatted("text-anchor=\"end\" font-weight=\"bold\" fill=\"%s\"", colour.edge));
      svg_.text(box.x + 13, box.y + 33, cut(box.work, kBoxWidth - 20));
      svg_.text(box.x + 13, box.y + 49, box.costs, "fill=\"#333333\"");
    }
  }

  // How often a step in a loop runs: " × 8 of V".
  std::string chunks(std::size_t h, std::size_t step) const {
    const int loop = schedule(h).steps[step].loop;
    if (loop < 0) return "";
    const Loop& over = schedule(h).loops[static_cast<std::size_t>(loop)];
    const std::int64_t size = require_extent(dim_of(over.dim), report_.sizes);
    return " × " + std::to_string((size + over.size - 1) / over.size) + " of " + over.dim;
  }

  void draw_flows(std::size_t h) {
    const double down = h == 0 ? 1 : -1;  // forward's direction on the page
    for (const Flow& flow : flows_[h]) {
      const Box &a = boxes_[h][flow.from], &b = boxes_[h][flow.to];
      const double width = thickness(flow.bytes);
      const auto edge = [&](const Box& box, double side) {
        return side > 0 ? box.y + box.height : box.y;
      };
      if (flow.lane < 0) {
        const double x = a.x + kBoxWidth * 0.3, from = edge(a, down), to = edge(b, -down);
        svg_.line(formatted("M%.1f %.1fV%.1f", x, from, to - 6 * down), width, kFlow, flow.label());
        svg_.head(x, to, 0, down, kFlow);
        svg_.label(x + 10, (to + from) / 2 + 4, cut(flow.label(), kBoxWidth * 0.68), "#333333");
        continue;
      }
      const double out = h == 0 ? -1 : 1;  // away from the other column
      const double way = b.y > a.y ? 1 : -1, side = out < 0 ? a.x : a.x + kBoxWidth, r = 8;
      const double x = side + out * (26 + kLane * flow.lane);
      const double from = a.y + a.height * (0.5 + 0.25 * way);
      const double to = b.y + b.height * (0.5 - 0.3 * way);
      svg_.line(formatted("M%.1f %.1fH%.1fQ%.1f %.1f %.1f %.1fV%.1fQ%.1f %.1f %.1f %.1fH%.1f", side,
                          from, x - out * r, x, from, x, from + way * r, to - way * r, x, to,
                          x - out * r, to, side + out * 6),
                width, kFlow, flow.label());
      svg_.head(side, to, -out, 0, kFlow);
      const std::string text = flow.label();
      const double room = std::abs(to - from) - 20;
      if (part(flow.bytes) > 0.05 && room > kCharacter * static_cast<double>(text.size())) {
        svg_.label(x - width / 2 - 4, (from + to) / 2, text, "#333333", -90);
      }
    }
  }

  void draw_saved() {
    if (report_.halves.size() < 2) return;
    // The ends in a box of backward, in the order of where they come from.
    std::map<std::size_t, std::vector<std::size_t>> arriving;
    for (std::size_t s = 0; s < saved_.size(); ++s) {
      for (const std::size_t to : saved_[s].to) arriving[to].push_back(s);
    }
    std::vector<int> ports(boxes_[0].size());
    for (std::size_t s = 0; s < saved_.size(); ++s) {
      const Saved& saved = saved_[s];
      if (saved.to.empty()) continue;
      const Box& from = boxes_[0][saved.from];
      const double x = from.x + kBoxWidth, y = from.y + kPort * (++ports[saved.from]);
      const double width = thickness(saved.tensor.bytes);
      const std::string label = amount(saved.tensor.bytes, "B") + ": " + saved.tensor.name;
      for (const std::size_t to : saved.to) {
        const Box& box = boxes_[1][to];
        const std::vector<std::size_t>& all = arriving[to];
        const auto rank = std::ranges::find(all, s) - all.begin();
        const double end = box.y + box.height * (static_cast<double>(rank) + 1) /
                                       (static_cast<double>(all.size()) + 1);
        const double start = x + 140, middle = (start + box.x) / 2;
        svg_.line(formatted("M%.1f %.1fH%.1fC%.1f %.1f %.1f %.1f %.1f %.1f", x, y, start, middle, y,
                            middle, end, box.x - 6, end),
                  width, kSaved, label);
        svg_.head(box.x, end, 1, 0, kSaved);
      }
      svg_.label(x + 6, y - width / 2 - 3, cut(label, 150), "#005f45");
    }
  }

  struct Band {
    int number;
    double y, height;
  };

  const Report& report_;
  Svg svg_;
  std::array<std::vector<Box>, 2> boxes_;
  std::array<std::vector<Flow>, 2> flows_;
  std::array<int, 2> lanes_ = {};
  std::vector<Saved> saved_;                 // all that forward stores; unread: `to` is empty
  std::map<std::string, std::size_t> kept_;  // name → index into saved_
  std::vector<Band> bands_;
  int layers_ = 0;
  std::int64_t most_ = 0;  // bytes of the heaviest line
  double width_ = 0, height_ = 0;
};

}  // namespace

std::string picture(const Report& report, Svg::Form form) {
  return Picture(report).text(form);
}

void write_picture(const Report& report, const std::string& path) {
  write_file(path, picture(report));
}

}  // namespace coda
