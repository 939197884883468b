// coda/rewrite/explain.h: what rewriting made of a block, for its author: where each statement
// landed and why, and what it costs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "coda/program/program.h"

namespace coda {

// A table: each statement with its kernel and the reason; each kernel's bytes and flops; the same
// for the unfused sequence. Throws ProgramError where `sizes` lacks a name.
std::string explain(const Program& block, const Sizes& sizes);

// {"block", "statements": [{"statement", "line", "kernel", "reason"}], "kernels": [{"name", "kind",
// "text", "bytes_read", "bytes_written", "flops"}], "total", "unfused"}; a kernel is an index into
// "kernels", null where nothing computes the statement.
nlohmann::json explain_json(const Program& block, const Sizes& sizes);

}  // namespace coda
