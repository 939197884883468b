// cli/chart.cpp: places the frame, draws lines into it, and says which is which.
#include "cli/chart.h"

#include <algorithm>
#include <cmath>

#include "coda/rewrite/svg.h"

namespace coda {
namespace {

constexpr double kTop = 12, kBottom = 46, kLeft = 70, kRight = 14, kRightAxis = 52;

std::string text_of(double value) {
  if (value == 0) return "0";  // not -0
  if (std::abs(value) < 1e-5 || std::abs(value) >= 1e6) {
    return formatted("%.0e", value);
  }
  return formatted("%.4g", value);
}

class Drawing {
 public:
  Drawing(const Chart& chart, double width, double height)
      : chart_(chart),
        width_(width),
        height_(height),
        right_(width - (chart.right.empty() ? kRight : kRightAxis)) {}

  std::string text(const std::string& style) {
    axes();
    for (const ChartLine& line : chart_.lines) draw(line);
    return svg_.picture(width_, height_, Svg::Form::element,
                        formatted("class=\"%s\" role=\"img\" aria-label=\"%s\" data-left=\"%.1f\" "
                                  "data-right=\"%.1f\" data-top=\"%.1f\" data-bottom=\"%.1f\"",
                                  style.c_str(), escaped(chart_.title).c_str(), kLeft, right_, kTop,
                                  height_ - kBottom));
  }

 private:
  double x(double value) const { return kLeft + (right_ - kLeft) * value / chart_.last; }
  double y(double value) const {
    const double part = (value - chart_.low) / (chart_.high - chart_.low);
    return height_ - kBottom - (height_ - kBottom - kTop) * std::clamp(part, 0.0, 1.0);
  }

  void axes() {
    const double bottom = height_ - kBottom;
    for (const double tick : ticks(chart_.low, chart_.high, height_ > 240 ? 7 : 5)) {
      svg_.path(formatted("M%.1f %.1fH%.1f", kLeft, y(tick), right_), "class=\"grid\"");
      svg_.text(kLeft - 7, y(tick) + 4, text_of(tick), "class=\"tick\" text-anchor=\"end\"");
    }
    for (const double tick : ticks(0, chart_.last, width_ > 600 ? 10 : 5)) {
      svg_.path(formatted("M%.1f %.1fv5", x(tick), bottom), "class=\"axis\"");
      svg_.text(x(tick), bottom + 18, text_of(tick), "class=\"tick\" text-anchor=\"middle\"");
    }
    svg_.path(formatted("M%.1f %.1fV%.1fH%.1f", kLeft, kTop, bottom, right_), "class=\"axis\"");
    svg_.text((kLeft + right_) / 2, height_ - 8, chart_.x, "text-anchor=\"middle\"");
    turned(12, chart_.y, -90);
    if (chart_.right.empty()) return;
    svg_.path(formatted("M%.1f %.1fV%.1f", right_, kTop, bottom), "class=\"axis\"");
    for (const double tick : ticks(chart_.low * chart_.scale, chart_.high * chart_.scale, 6)) {
      svg_.path(formatted("M%.1f %.1fh5", right_, y(tick / chart_.scale)), "class=\"axis\"");
      svg_.text(right_ + 8, y(tick / chart_.scale) + 4, text_of(tick), "class=\"tick\"");
    }
    turned(width_ - 8, chart_.right, -90);
  }

  void turned(double at, const std::string& what, double degrees) {
    const double middle = (kTop + height_ - kBottom) / 2;
    svg_.text(at, middle, what,
              formatted("text-anchor=\"middle\" transform=\"rotate(%.0f %.1f %.1f)\"", degrees, at,
                        middle));
  }

  void draw(const ChartLine& line) {
    std::string path, marks;
    for (const auto& [step, value] : line.points) {
      if (!std::isfinite(value)) continue;
      path += formatted("%c%.1f %.1f", path.empty() ? 'M' : 'L', x(step), y(value));
      if (line.marks) marks += formatted("M%.1f %.1fl5 5l-5 5l-5 -5Z", x(step), y(value) - 5);
    }
    if (path.empty()) return;
    svg_.path(path, "class=\"line " + line.style + "\"");
    if (line.marks) svg_.path(marks, "class=\"mark " + line.style + "\"");
  }

  const Chart& chart_;
  double width_, height_, right_;
  Svg svg_;
};

}  // namespace

std::vector<double> ticks(double low, double high, int most) {
  const double rough = (high - low) / std::max(most, 1);
  if (!(rough > 0) || !std::isfinite(rough)) return {low};
  double step = std::pow(10, std::floor(std::log10(rough)));
  for (const double times : {2.0, 2.5, 2.0}) {
    if (step < rough) step *= times;
  }
  std::vector<double> all;
  for (double at = std::ceil(low / step - 1e-9); at * step <= high + 1e-9 * step; ++at) {
    all.push_back(at * step);
  }
  return all;
}

std::string legend(const Chart& chart) {
  std::string text;
  for (const ChartLine& line : chart.lines) {
    Svg swatch;
    swatch.path("M0 7h28", "class=\"line " + line.style + "\"");
    if (line.marks) swatch.path("M14 2l5 5l-5 5l-5 -5Z", "class=\"mark " + line.style + "\"");
    text += "<span>" +
            swatch.picture(28, 14, Svg::Form::element, "class=\"swatch\" aria-hidden=\"true\"") +
            escaped(line.name) + "</span>\n";
  }
  return "<figcaption class=\"legend\">" + text + "</figcaption>\n";
}

std::string draw(const Chart& chart, double width, double height, const std::string& style) {
  return Drawing(chart, width, height).text(style);
}

}  // namespace coda
