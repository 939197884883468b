// tests/tiny_model.h: a model small enough for the reference, with weights, batches and a backend.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coda/cpu/cpu.h"
#include "coda/model/model.h"
#include "coda/model/random.h"

namespace coda {

inline ModelConfig tiny(Embeddings embeddings = Embeddings::separate) {
  ModelConfig c;
  c.vocabulary = 11;
  c.layers = 2;
  c.width = 8;
  c.heads = 2;
  c.key_heads = 1;
  c.head_width = 4;
  c.hidden = 12;
  c.context = 6;
  c.embeddings = embeddings;
  return c;
}

inline Batch random_batch(const ModelConfig& config, std::int64_t sequences, std::uint64_t seed) {
  Batch batch(sequences, config.context);
  Random random(seed);
  for (std::int64_t i = 0; i < sequences * config.context; ++i) {
    batch.ids.as<std::int64_t>()[i] = random.below(config.vocabulary);
    batch.targets.as<std::int64_t>()[i] = random.below(config.vocabulary);
  }
  return batch;
}

// Weights large enough that every nonlinearity is felt.
inline void randomize(Arena& parameters, std::uint64_t seed) {
  Random random(seed);
  for (const auto& [name, tensor] : parameters.tensors()) {
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      store(tensor.dtype, tensor.data, i, 0.4 * random.normal() + (tensor.shape.size() == 1));
    }
  }
}

inline std::unique_ptr<Backend> cpu_backend(int threads = 1) {
  cpu::Options options;
  options.threads = threads;
  return cpu::backend(options);
}

inline std::vector<double> values(const Tensor& tensor) {
  std::vector<double> all;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    all.push_back(load(tensor.dtype, tensor.data, i));
  }
  return all;
}

}  // namespace coda
