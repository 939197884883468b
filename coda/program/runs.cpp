// coda/program/runs.cpp: neighbouring factors inside a list of dims.
#include "coda/program/runs.h"

#include <algorithm>
#include <set>

#include "coda/program/typing.h"

namespace coda {

std::string text_of(std::span<const Dim> dims) {
  std::string text = "[";
  for (const Dim& dim : dims) text += (text.size() == 1 ? "" : ", ") + dim.text();
  return text + "]";
}

std::vector<Factor> flat(std::span<const Dim> dims) {
  std::vector<Factor> factors;
  for (const Dim& dim : dims) {
    factors.insert(factors.end(), dim.factors.begin(), dim.factors.end());
  }
  return factors;
}

bool contains(const std::vector<Factor>& factors, const Factor& factor) {
  return std::ranges::find(factors, factor) != factors.end();
}

bool contains_all(const std::vector<Factor>& all, const std::vector<Factor>& some) {
  return std::ranges::all_of(some, [&](const Factor& f) { return contains(all, f); });
}

void require_distinct(std::span<const Dim> dims) {
  std::set<std::string> seen;
  for (const Factor& factor : flat(dims)) {
    if (!seen.insert(factor.text()).second) {
      throw TypeError{
          "the result " + text_of(dims) + " would have the dimension `" + factor.text() + "` twice",
          "a tensor may not repeat a dimension name", "rename one of them first: `v as [...]`"};
    }
  }
}

std::optional<Run> find_run(std::span<const Dim> dims, const Dim& axis) {
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const auto found = std::ranges::search(dims[d].factors, axis.factors);
    if (!axis.factors.empty() && !found.empty()) {
      return Run{d, static_cast<std::size_t>(found.begin() - dims[d].factors.begin())};
    }
  }
  return std::nullopt;
}

Run require_run(std::span<const Dim> dims, const Dim& axis) {
  if (const auto run = find_run(dims, axis)) return *run;
  throw TypeError{"the operand " + text_of(dims) + " has no dimension `" + axis.text() + "`",
                  "an axis is a dimension, a factor or neighbouring factors of the operand",
                  "name one of " + text_of(dims)};
}

Dims replace(Dims dims, Run run, std::size_t count, const Dim& replacement) {
  std::vector<Factor>& factors = dims[run.dim].factors;
  const auto at = factors.erase(factors.begin() + static_cast<std::ptrdiff_t>(run.first),
                                factors.begin() + static_cast<std::ptrdiff_t>(run.first + count));
  factors.insert(at, replacement.factors.begin(), replacement.factors.end());
  if (factors.empty()) dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(run.dim));
  return dims;
}

Dims without(std::span<const Dim> dims, const std::vector<Factor>& removed) {
  Dims left;
  for (Dim dim : dims) {
    std::erase_if(dim.factors, [&](const Factor& f) { return contains(removed, f); });
    if (!dim.factors.empty()) left.push_back(std::move(dim));
  }
  return left;
}

}  // namespace coda
