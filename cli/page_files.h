// cli/page_files.h: the files of cli/page/, built into the command.
#pragma once

#include <string_view>

namespace coda {

// The text of report.html, report.css or report.js. Throws InternalError for any other.
std::string_view page_file(std::string_view name);

}  // namespace coda
