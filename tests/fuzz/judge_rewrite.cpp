// tests/fuzz/judge_rewrite.cpp: rewriting of blocks that the bytes choose.
#include <stdexcept>

#include "coda/core/error.h"
#include "coda/program/text.h"
#include "tests/fuzz/judges.h"
#include "tests/random_block.h"
#include "tests/rewritten_block.h"

namespace coda::testing {
namespace {

// Where partition gives up its exact search (exact.h), which takes seconds under sanitizers.
constexpr int kMostNodes = 14;

// The block and its value on the inputs of `wrong`; nullopt where it has none: no result, or an id
// past the end of an axis of one element.
std::optional<Program> meaningful_block(Bytes choices, std::uint64_t seed) {
  try {
    Program block = RandomBlock(choices).make(kMostNodes);
    Tensors tensors;
    draw(block, kRandomSizes, {.seed = seed}, tensors);
    evaluate(block, kRandomSizes, tensors);
    return block;
  } catch (const ProgramError&) {
    return std::nullopt;
  }
}

}  // namespace

void judge_rewrite(Bytes bytes) {
  if (bytes.empty()) return;
  const std::uint64_t seed = bytes.front();
  const std::optional<Program> block = meaningful_block(bytes.subspan(1), seed);
  if (!block) return;
  if (const std::string why = wrong(*block, kRandomSizes, {}, seed); !why.empty()) {
    throw std::logic_error(why + "\n" + print(*block));
  }
}

}  // namespace coda::testing
