// coda/model/generate.h: text from a trained model, a token at a time, with cached keys and values.
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
  double temperature = 0.8;  // 0: the likeliest token
  std::int64_t top_k = 40;   // only so many of the likeliest; 0: all
  double top_p = 1;          // of these the fewest likeliest that together have this probability
  std::uint64_t seed = 1;
};

struct Candidate {
  std::int64_t token;
  double probability;  // all candidates' add up to 1
};

// What may come next for logits[vocabulary], the likeliest first: first the temperature, then
// top_k, then top_p, at least one token.
std::vector<Candidate> candidates(std::span<const double> logits, const SamplingOptions& options);

// One of them, by their probabilities.
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
  void reserve(std::int64_t tokens);  // of the caches

  ModelConfig config_;
  const Arena& parameters_;
  const Backend& backend_;
  DType dtype_;
  Program attend_;                               // compiled anew for each number of cached keys
  std::vector<std::unique_ptr<Blocks>> blocks_;  // last used first
  std::int64_t reserved_ = 0;                    // tokens that the caches have room for
  std::vector<OwnedTensor> keys_, values_;  // of each layer: [reserved, key_heads * head_width]
  std::vector<std::int64_t> history_;       // what the caches hold
  Scalar eps_;
  Scratch scratch_;
};

// Streams `tokens` ids that follow `prompt`, which is not empty, to `write`; stops where `write`
// returns false.
void generate_ids(Reader& reader, std::span<const std::int64_t> prompt, std::int64_t tokens,
                  const SamplingOptions& options, const std::function<bool(std::int64_t)>& write);

// The same for a model whose tokens are bytes: `bytes` bytes that follow `prompt`.
void generate(Reader& reader, std::string_view prompt, std::int64_t bytes,
              const SamplingOptions& options, const std::function<bool(char)>& write);

}  // namespace coda
