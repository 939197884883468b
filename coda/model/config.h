// coda/model/config.h: the sizes of a Llama-style model, and their JSON.
//
// Keys are those of a Hugging Face config.json, so that either side reads the other's files. What
// would change the mathematics and is not known here is refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "coda/program/dims.h"

namespace coda {

enum class Embeddings : std::uint8_t { separate, tied };  // tied: the head reads the token table

// Llama 3's rotary frequencies: those with waves longer than the context that the model first had
// are divided by `factor`, short ones stay, those between are mixed.
struct RopeScaling {
  double factor = 8;
  double low_factor = 1, high_factor = 4;  // waves longer than context / low_factor are long
  std::int64_t context = 8192;
  bool operator==(const RopeScaling&) const = default;
};

struct ModelConfig {
  std::int64_t vocabulary = 256;  // bytes
  std::int64_t layers = 4;
  std::int64_t width = 128;      // D, of the residual stream
  std::int64_t heads = 4;        // H, query heads
  std::int64_t key_heads = 2;    // G, key and value heads
  std::int64_t head_width = 32;  // E
  std::int64_t hidden = 352;     // F, of the gated MLP
  std::int64_t context = 256;    // the longest sequence
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling = {};
  double norm_eps = 1e-5;
  Embeddings embeddings = Embeddings::separate;

  std::int64_t parameters() const;
  bool operator==(const ModelConfig&) const = default;
};

// Throws ProgramError for sizes that do not make a model.
void require_valid(const ModelConfig& config);

std::string to_json(const ModelConfig& config);
// A key that transformers may leave away has its default. Throws ProgramError, which names `file`
// and the key, for text that is no such JSON, and Unsupported for a model that is no plain Llama.
ModelConfig config_from_json(std::string_view text, const std::string& file);

// Radians that element pair `e` of a head turns by from one position to the next.
double rope_frequency(const ModelConfig& config, std::int64_t e);

// What the layer's block calls the sizes, for `batch` sequences of `length`.
Sizes block_sizes(const ModelConfig& config, std::int64_t batch, std::int64_t length);

}  // namespace coda
