// cli/report_sections.h: the sections of the report, each as HTML; empty where the log has nothing
// for it.
#pragma once

#include <string>
#include <vector>

#include "cli/run_log.h"

namespace coda {

// The loss after each step, as the progress line smoothed it.
std::vector<double> smoothed_losses(const RunLog& log);

// Charts of loss, learning rate and gradient norm, and a table of the same.
std::string curves_section(const RunLog& log);
// What the charts show under a pointer: a JSON object, safe within <script>.
std::string curves_data(const RunLog& log);

// The text that the model wrote after so many steps.
std::string samples_section(const RunLog& log);

// Seconds by kind of work and by kernel.
std::string time_section(const RunLog& log);

// One layer's kernels: the picture, against the unfused sequence, and their texts.
std::string layer_section(const RunLog& log);

}  // namespace coda
