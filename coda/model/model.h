// coda/model/model.h: a Llama-style model whose mathematics is all in programs/: loss and
// gradients.
//
// The layer's block is differentiated, rewritten and compiled once, and run for every layer. No
// formula of the model is here.
#pragma once

#include <vector>

#include "coda/model/blocks.h"
#include "coda/model/corpus.h"
#include "coda/model/parameters.h"
#include "coda/rewrite/halves.h"

namespace coda {

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

class Model {
 public:
  // For batches of `sequences` × `length` tokens. `dtype` is f32, or f64 to check gradients.
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

  // One layer's forward and backward, for the ledger.
  const Training& layer() const { return layer_; }
  const Sizes& sizes() const { return sizes_; }
  void time_into(Timings* timings) { timings_ = timings; }  // null: no more

 private:
  TensorMap layer_tensors(std::int64_t layer) const;
  TensorMap head_tensors(const Batch& batch) const;
  TensorMap embedding_tensors(const Batch& batch) const;
  void run(const CompiledBlock& block, const TensorMap& tensors);

  ModelConfig config_;
  DType dtype_;
  Sizes sizes_;
  ArenaLayout layout_;
  Arena parameters_, gradients_;
  RotaryTables rotary_;
  Training layer_, head_;
  CompiledBlock embedding_, embedding_backward_;
  CompiledBlock layer_forward_, layer_backward_;
  CompiledBlock head_forward_, head_backward_;

  Workspace workspace_;
  std::vector<TensorMap> layer_saved_;  // results of each layer's forward, its output among them
  TensorMap head_saved_;
  OwnedTensor input_;        // of the first layer
  OwnedTensor gradient_[2];  // of the residual stream, before and after a layer
  Scalar eps_, ignore_index_, loss_gradient_;
  Scratch scratch_;
  Timings* timings_ = nullptr;
};

}  // namespace coda
