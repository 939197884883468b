// coda/program/runs.h: finding and replacing neighbouring factors inside a list of dims.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coda/program/program.h"

namespace coda {

using Dims = std::vector<Dim>;

std::string text_of(std::span<const Dim> dims);       // "[M, H*E]"
std::vector<Factor> flat(std::span<const Dim> dims);  // all factors, in storage order
bool contains(const std::vector<Factor>& factors, const Factor& factor);
bool contains_all(const std::vector<Factor>& all, const std::vector<Factor>& some);

// Throws TypeError where a factor occurs twice.
void require_distinct(std::span<const Dim> dims);

// Where the factors of an axis stand side by side inside one dim.
struct Run {
  std::size_t dim = 0, first = 0;
};
std::optional<Run> find_run(std::span<const Dim> dims, const Dim& axis);
Run require_run(std::span<const Dim> dims, const Dim& axis);  // throws TypeError

// `dims` with the `count` factors at `run` replaced; a dim left without factors disappears.
Dims replace(Dims dims, Run run, std::size_t count, const Dim& replacement);
Dims without(std::span<const Dim> dims, const std::vector<Factor>& removed);

}  // namespace coda
