// tests/fuzz/judges.h: what must hold for any bytes at all: one judge for each reader of the
// library, and one for rewriting.
//
// A judge returns where all is well, refusals (ProgramError, Unsupported) included, and throws
// where the library is wrong. The fuzzers give it what they make up, fuzz_test.cpp what is in
// tests/fuzz/seeds.
#pragma once

#include <cstdint>
#include <span>

namespace coda::testing {

using Bytes = std::span<const std::uint8_t>;

// A text: errors are complete; what parses prints, and prints to what parses to the same; the
// layout stays; check says why exactly where it refuses.
void judge_text(Bytes bytes);

// Choices of RandomBlock: the block rewrites, alone and with its gradient, to kernels that check
// accepts and that mean the same in double.
void judge_rewrite(Bytes bytes);

// A file: it is refused by name, or read; what was read is written and read again, the same.
void judge_safetensors(Bytes bytes);
void judge_npy(Bytes bytes);

}  // namespace coda::testing
