// coda/cuda/tile_merge.h: spaces that compute the same share one text.
#pragma once

#include <cstddef>
#include <vector>

#include "coda/cuda/tile.h"

namespace coda::cuda {

// For every space the first one that computes the same but for its names and arguments. Where the
// arguments differ, the text of that first space then chooses by the space's number `s`.
std::vector<std::size_t> merge_spaces(std::vector<SpaceText>& spaces);

}  // namespace coda::cuda
