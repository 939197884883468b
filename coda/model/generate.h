// coda/model/generate.h: text from a trained model, a byte at a time, with cached keys and values.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "coda/model/blocks.h"
#include "coda/model/parameters.h"
#include "coda/model/random.h"

namespace coda {

struct SamplingOptions {
  double temperature = 0.8;  // 0: the likeliest byte
  std::int64_t top_k = 40;   // 0: all
  std::uint64_t seed = 1;
};

// The next byte for logits[vocabulary].
std::int64_t sample(std::span<const double> logits, const SamplingOptions& options, Random& random);

// A model that reads one text. `parameters` must live as long; they are read at each call.
class Reader {
 public:
  Reader(const ModelConfig& config, const Arena& parameters, const Backend& backend,
         DType dtype = DType::f32);
  ~Reader();

  // Reads `ids` after what was read before and gives the logits of what follows. Where the context
  // is full, the older half of it is forgotten.
  std::vector<double> read(std::span<const std::int64_t> ids);

 private:
  struct Blocks;  // compiled for one number of tokens a call
  Blocks& blocks_for(std::int64_t length);
  std::vector<double> read_chunk(std::span<const std::int64_t> ids);

  ModelConfig config_;
  const Arena& parameters_;
  const Backend& backend_;
  DType dtype_;
  Program attend_;                               // compiled anew for each number of cached keys
  std::vector<std::unique_ptr<Blocks>> blocks_;  // last used first
  std::vector<OwnedTensor> keys_, values_;       // of each layer: [context, key_heads * head_width]
  std::vector<std::int64_t> history_;            // what the caches hold
  Scalar eps_;
  Scratch scratch_;
};

// Streams `bytes` bytes that follow `prompt` to `write`; stops where `write` returns false.
void generate(Reader& reader, std::string_view prompt, std::int64_t bytes,
              const SamplingOptions& options, const std::function<bool(char)>& write);

}  // namespace coda
