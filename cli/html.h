// cli/html.h: texts and bytes from anywhere as HTML that shows them and does nothing else.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace coda {

// Any bytes as the text of an element or of a quoted attribute: markup escaped; what is no UTF-8,
// control characters but newline and tab, and what turns the direction of writing as U+FFFD.
std::string html(std::string_view bytes);

// "<tag …>inner</tag>"; `inner` is HTML.
std::string element(std::string_view tag, std::string_view attributes, std::string_view inner);

// A number that people read, with the exact one for programs: <data id=… value=…>.
std::string datum(std::string_view id, double value, std::string_view shown);

// `page` with each @name@ of `parts` replaced. What is put in is not looked at again. Throws
// InternalError for a part that the page does not name.
std::string filled(std::string_view page,
                   std::initializer_list<std::pair<std::string_view, std::string>> parts);

}  // namespace coda
