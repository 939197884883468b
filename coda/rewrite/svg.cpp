// coda/rewrite/svg.cpp: writes the elements.
#include "coda/rewrite/svg.h"

namespace coda {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

void Svg::text(double x, double y, std::string_view what, const std::string& attributes) {
  body_ += formatted("<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes.c_str()) + escaped(what) +
           "</text>\n";
}

void Svg::box(double x, double y, double w, double h, const char* fill, const char* edge) {
  body_ += formatted(
      "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"3\" fill=\"%s\" "
      "stroke=\"%s\"/>\n",
      x, y, w, h, fill, edge);
}

void Svg::line(const std::string& path, double width, const char* colour, std::string_view title) {
  body_ += formatted(
               "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"%.1f\" "
               "stroke-opacity=\"0.6\">",
               path.c_str(), colour, width) +
           "<title>" + escaped(title) + "</title></path>\n";
}

void Svg::head(double x, double y, double dx, double dy, const char* colour) {
  constexpr double kLong = 8, kWide = 4.5;
  body_ += formatted("<path d=\"M%.1f %.1fL%.1f %.1fL%.1f %.1fZ\" fill=\"%s\"/>\n", x, y,
                     x - kLong * dx + kWide * dy, y - kLong * dy + kWide * dx,
                     x - kLong * dx - kWide * dy, y - kLong * dy - kWide * dx, colour);
}

void Svg::label(double x, double y, std::string_view what, const char* colour, double turned) {
  std::string attributes = formatted("fill=\"%s\"", colour);
  if (turned != 0) {
    attributes +=
        formatted(" text-anchor=\"middle\" transform=\"rotate(%.0f %.1f %.1f)\"", turned, x, y);
  }
  // NOTE: the halo is a text of its own: not every viewer knows paint-order.
  text(x, y, what, attributes + " stroke=\"white\" stroke-width=\"3\" stroke-linejoin=\"round\"");
  text(x, y, what, attributes);
}

void Svg::path(const std::string& path, const std::string& attributes, std::string_view title) {
  body_ += "<path d=\"" + path + "\" " + attributes + (title.empty() ? "/>\n" : ">");
  if (!title.empty()) body_ += "<title>" + escaped(title) + "</title></path>\n";
}

std::string Svg::picture(double width, double height, Form form,
                         const std::string& attributes) const {
  const std::string sizes = formatted(
      "width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
      "font-size=\"11\"",
      width, height, width, height);
  if (form == Form::element) return "<svg " + sizes + " " + attributes + ">\n" + body_ + "</svg>\n";
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" " + sizes + ">\n" +
         "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n" + body_ + "</svg>\n";
}

}  // namespace coda
