// cli/chart.h: a line chart as SVG: axes with round numbers and units; its legend as HTML.
//
// Colours are left to the page's style, by class; lines differ by width, dashes and marks too.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace coda {

struct ChartLine {
  std::string name, style;                        // in the legend; a class
  std::vector<std::pair<double, double>> points;  // those that are not finite are left out
  bool marks = false;
};

struct Chart {
  std::string title;  // for those who do not see it
  std::string x, y;   // what the axes show, with units
  std::string right;  // the same y in another unit, `scale` times the number; empty: none
  double scale = 1;
  double last = 1;           // x goes from 0 to this
  double low = 0, high = 0;  // of y; what is beyond is cut off
  std::vector<ChartLine> lines;
};

// Round numbers in [low, high], about `most` of them.
std::vector<double> ticks(double low, double high, int most);

// The lines' names as a <figcaption>.
std::string legend(const Chart& chart);

// `style`: classes of the element. data-left and data-right say where x begins and ends.
std::string draw(const Chart& chart, double width, double height, const std::string& style);

}  // namespace coda
