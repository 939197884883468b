// coda/rewrite/chunk.h: a block in chunks of one dimension, so that what has that dimension never
// exists whole.
#pragma once

#include <optional>
#include <string>

#include "coda/program/program.h"

namespace coda {

// Before, once for each chunk, after. In `body` the dimension is the chunk; what it sums along it
// is an accumulating f32 result.
struct Chunked {
  Program before, body, after;  // without results: nothing to do there
  std::string dim;
  std::string first;  // the body's i64 parameter that says where the chunk starts; empty: none
};

// The cut; nullopt where the body would need what only all chunks together give, or where a tensor
// from outside, or a result, has `dim` anywhere but as its whole first dimension. `why` says which.
std::optional<Chunked> chunk(const Program& block, const std::string& dim, std::string& why);

}  // namespace coda
