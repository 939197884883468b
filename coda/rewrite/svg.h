// coda/rewrite/svg.h: the few elements of SVG that a picture of a schedule consists of.
//
// Plain text and shapes only: no fonts, styles or scripts from outside.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace coda {

// printf to a string.
template <class... Args>
std::string formatted(const char* format, Args... args) {
  std::string text(static_cast<std::size_t>(std::snprintf(nullptr, 0, format, args...)) + 1, ' ');
  std::snprintf(text.data(), text.size(), format, args...);
  text.pop_back();
  return text;
}

// A text as markup shows it: `&`, `<`, `>` and quotes escaped.
std::string escaped(std::string_view text);

// Elements in the order in which they are painted. Lengths are in pixels.
class Svg {
 public:
  void text(double x, double y, std::string_view what, const std::string& attributes = "");
  void box(double x, double y, double w, double h, const char* fill, const char* edge);
  // `title` shows where the mouse rests on it.
  void line(const std::string& path, double width, const char* colour, std::string_view title);
  // The arrow at (x, y) of a line that comes in the direction (dx, dy).
  void head(double x, double y, double dx, double dy, const char* colour);
  // A text that stands out from the lines behind it; turned by degrees about its middle.
  void label(double x, double y, std::string_view what, const char* colour, double turned = 0);
  // Any shape, with attributes of its own.
  void path(const std::string& path, const std::string& attributes, std::string_view title = "");
  // A file of its own on white paper; or an element for a page, which paints the paper and may
  // shrink it.
  enum class Form : std::uint8_t { file, element };
  std::string picture(double width, double height, Form form,
                      const std::string& attributes = "") const;

 private:
  std::string body_;
};

}  // namespace coda
