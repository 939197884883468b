// cli/report.h: a training run as one page of HTML, made from its log.
#pragma once

#include <string>

#include "cli/run_log.h"

namespace coda {

// The page: complete in itself, the same for the same log. Everything works without scripts, which
// only show values under the pointer.
std::string report_page(const RunLog& log);

// Writes the page of the folder's log, FOLDER/report.html where `path` is empty; gives its path.
// Throws ProgramError where there is no log, or it cannot be read or the page not be written.
std::string write_report(const std::string& folder, const std::string& path = "");

}  // namespace coda
