// coda/model/model.h: a Llama-style model whose mathematics is all in programs/: loss and
// gradients.
//
// Embedding, layers and head are one block, differentiated and rewritten as a whole, so that
// kernels cross the borders of layers. No formula of the model is here.
#pragma once

#include <vector>

#include "coda/model/blocks.h"
#include "coda/model/corpus.h"
#include "coda/model/parameters.h"
#include "coda/rewrite/rewrite.h"

namespace coda {

// A target of no token: its row counts for nothing in the loss.
inline constexpr std::int64_t kIgnoreIndex = -100;

// The dtype of tables, scalars and losses beside weights of `dtype`: no less than f32.
DType statistic_dtype(DType dtype);

// The rotary tables [length, head_width / 2] of positions first, first + 1, …
class RotaryTables {
 public:
  RotaryTables(const ModelConfig& config, std::int64_t first, std::int64_t length, DType dtype);
  Tensor cosines() const { return cos_.tensor(); }
  Tensor sines() const { return sin_.tensor(); }

 private:
  OwnedTensor cos_, sin_;
};

// Weights of layer `layer` by the names that the block `layer` gives them.
void add_layer_weights(const Arena& arena, std::int64_t layer, const std::string& prefix,
                       TensorMap& into);

// The logits of every position, f32[sequences, length, vocabulary] (f64 where the parameters are):
// the model as one block without a loss. Compiled for this one call.
OwnedTensor logits(const ModelConfig& config, const Arena& parameters, const Backend& backend,
                   const Batch& batch);

class Model {
 public:
  // For batches of `sequences` × `length` tokens. `dtype` is f32, bf16 (whose gradients are f32),
  // or f64 to check gradients.
  Model(const ModelConfig& config, const Backend& backend, std::int64_t sequences,
        std::int64_t length, DType dtype = DType::f32);

  const ModelConfig& config() const { return config_; }
  const ArenaLayout& layout() const { return layout_; }
  DType dtype() const { return dtype_; }
  Arena& parameters() { return parameters_; }
  const Arena& parameters() const { return parameters_; }
  const Arena& gradients() const { return gradients_; }

  // The mean loss in nats a token.
  double loss(const Batch& batch);
  // The same, and the gradient of every parameter into gradients().
  double learn(const Batch& batch);

  // The whole model as one block, and what it is differentiated by, for the ledger.
  const Program& block() const { return block_; }
  const GradOptions& wanted() const { return wanted_; }
  const Sizes& sizes() const { return sizes_; }
  void time_into(Timings* timings) { timings_ = timings; }  // null: no more

 private:
  ModelConfig config_;
  DType dtype_;
  Sizes sizes_;
  ArenaLayout layout_;
  Arena parameters_, gradients_;
  RotaryTables rotary_;
  Program block_;
  GradOptions wanted_;
  Rewritten rewritten_;
  CompiledBlock forward_, backward_;

  Workspace workspace_;
  TensorMap tensors_;  // of both, by the names of the block
  Scalar eps_, ignore_index_, loss_gradient_;
  Scratch scratch_;
  Timings* timings_ = nullptr;
};

}  // namespace coda
