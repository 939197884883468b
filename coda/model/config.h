// coda/model/config.h: the sizes of a Llama-style model, and their JSON.
//
// Keys are those of a Hugging Face config.json, so that either side reads the other's files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "coda/program/dims.h"

namespace coda {

enum class Embeddings : std::uint8_t { separate, tied };  // tied: the head reads the token table

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
  double norm_eps = 1e-5;
  Embeddings embeddings = Embeddings::separate;

  std::int64_t parameters() const;
  bool operator==(const ModelConfig&) const = default;
};

// Throws ProgramError for sizes that do not make a model.
void require_valid(const ModelConfig& config);

std::string to_json(const ModelConfig& config);
// Throws ProgramError, which names `file` and the key, for text that is no such JSON.
ModelConfig config_from_json(std::string_view text, const std::string& file);

// What the layer's block calls the sizes, for `batch` sequences of `length`.
Sizes block_sizes(const ModelConfig& config, std::int64_t batch, std::int64_t length);

}  // namespace coda
