// coda/model/model.cpp: which tensor goes where when the blocks run, forward and backward.
#include "coda/model/model.h"

#include <algorithm>
#include <cmath>

#include "coda/program/builder.h"

namespace coda {
namespace {

constexpr double kIgnoreIndex = -100;  // of no byte: every target counts

struct LayerWeight {
  const char* block;  // the parameter of the block `layer`
  const char* name;   // behind "model.layers.N."
};
constexpr LayerWeight kLayerWeights[] = {
    {"gamma1", "input_layernorm.weight"}, {"wq", "self_attn.q_proj.weight"},
    {"wk", "self_attn.k_proj.weight"},    {"wv", "self_attn.v_proj.weight"},
    {"wo", "self_attn.o_proj.weight"},    {"gamma2", "post_attention_layernorm.weight"},
    {"gate", "mlp.gate_proj.weight"},     {"up", "mlp.up_proj.weight"},
    {"down", "mlp.down_proj.weight"},
};

const std::string kTable = "model.embed_tokens.weight";

std::string head_name(const ModelConfig& config) {
  return config.embeddings == Embeddings::tied ? kTable : "lm_head.weight";
}

Training layer_training(DType dtype) {
  GradOptions options{.of = {"out"}, .wrt = {"x"}};
  for (const LayerWeight& weight : kLayerWeights) options.wrt.push_back(weight.block);
  return grad_for_training(standard_program("llama.coda", "layer", dtype), options);
}

Training head_training(DType dtype) {
  return grad_for_training(standard_program("head.coda", "head", dtype),
                           {.of = {"loss"}, .wrt = {"h", "gamma", "w"}});
}

Program embedding_gradient(DType dtype, Embeddings embeddings) {
  const Program gradient =
      grad(standard_program("embedding.coda", "embedding", dtype), {.of = {"x"}, .wrt = {"table"}});
  if (embeddings == Embeddings::separate) return gradient;
  // A tied table already holds the head's part of its gradient: add to it.
  Builder builder(gradient.name(), gradient.kind());
  Copier copy(gradient, builder);
  for (std::size_t i = 0; i < gradient.params().size(); ++i) {
    const Param& param = gradient.params()[i];
    copy.map(Value{static_cast<std::int32_t>(i)}, builder.param(param.name, param.type));
  }
  for (const Result& result : gradient.results()) {
    builder.result(result.name, result.type, copy(result.value), Store::accumulate);
  }
  return std::move(builder).finish();
}

}  // namespace

RotaryTables::RotaryTables(const ModelConfig& config, std::int64_t first, std::int64_t length,
                           DType dtype)
    : cos_(dtype, {length, config.head_width / 2}), sin_(dtype, {length, config.head_width / 2}) {
  const std::int64_t half = config.head_width / 2;
  for (std::int64_t s = 0; s < length; ++s) {
    for (std::int64_t e = 0; e < half; ++e) {
      const double frequency =
          std::pow(config.rope_theta, -static_cast<double>(e) / static_cast<double>(half));
      const double angle = static_cast<double>(first + s) * frequency;
      store(dtype, cos_.tensor().data, s * half + e, std::cos(angle));
      store(dtype, sin_.tensor().data, s * half + e, std::sin(angle));
    }
  }
}

void add_layer_weights(const Arena& arena, std::int64_t layer, const std::string& prefix,
                       TensorMap& into) {
  for (const LayerWeight& weight : kLayerWeights) {
    into[prefix + weight.block] = arena[layer_name(layer, weight.name)];
  }
}

Model::Model(const ModelConfig& config, const Backend& backend, std::int64_t sequences,
             std::int64_t length, DType dtype)
    : config_(config),
      dtype_(dtype),
      sizes_(block_sizes(config, sequences, length)),
      layout_(config),
      parameters_(layout_, dtype),
      gradients_(layout_, dtype),
      rotary_(config, 0, length, dtype),
      layer_(layer_training(dtype)),
      head_(head_training(dtype)),
      embedding_(standard_program("embedding.coda", "embedding", dtype), backend, sizes_),
      embedding_backward_(embedding_gradient(dtype, config.embeddings), backend, sizes_),
      layer_forward_(layer_.forward, backend, sizes_),
      layer_backward_(layer_.backward, backend, sizes_),
      head_forward_(head_.forward, backend, sizes_),
      head_backward_(head_.backward, backend, sizes_),
      layer_saved_(static_cast<std::size_t>(config.layers)),
      input_(dtype, {sequences * length, config.width}),
      gradient_{OwnedTensor(dtype, {sequences * length, config.width}),
                OwnedTensor(dtype, {sequences * length, config.width})},
      eps_(dtype, config.norm_eps),
      ignore_index_(DType::i64, kIgnoreIndex),
      loss_gradient_(dtype, 1) {
  for (TensorMap& saved : layer_saved_) {
    workspace_.add_results(layer_.forward, sizes_, saved);
  }
  workspace_.add_results(head_.forward, sizes_, head_saved_);
  for (const CompiledBlock* block : {&embedding_, &embedding_backward_, &layer_forward_,
                                     &layer_backward_, &head_forward_, &head_backward_}) {
    scratch_.reserve(block->scratch_bytes());
  }
}

void Model::run(const CompiledBlock& block, const TensorMap& tensors) {
  block.run(tensors, scratch_.span(), timings_);
}

TensorMap Model::layer_tensors(std::int64_t layer) const {
  TensorMap tensors = layer_saved_[static_cast<std::size_t>(layer)];
  tensors["x"] =
      layer == 0 ? input_.tensor() : layer_saved_[static_cast<std::size_t>(layer - 1)].at("out");
  tensors["cos"] = rotary_.cosines();
  tensors["sin"] = rotary_.sines();
  tensors["eps"] = eps_.tensor();
  add_layer_weights(parameters_, layer, "", tensors);
  return tensors;
}

TensorMap Model::head_tensors(const Batch& batch) const {
  TensorMap tensors = head_saved_;
  tensors["h"] = layer_saved_.back().at("out");
  tensors["gamma"] = parameters_["model.norm.weight"];
  tensors["w"] = parameters_[head_name(config_)];
  tensors["target"] = batch.targets.tensor();
  tensors["ignore_index"] = ignore_index_.tensor();
  tensors["eps"] = eps_.tensor();
  return tensors;
}

TensorMap Model::embedding_tensors(const Batch& batch) const {
  return {{"table", parameters_[kTable]}, {"ids", batch.ids.tensor()}, {"x", input_.tensor()}};
}

double Model::loss(const Batch& batch) {
  run(embedding_, embedding_tensors(batch));
  for (std::int64_t i = 0; i < config_.layers; ++i) run(layer_forward_, layer_tensors(i));
  run(head_forward_, head_tensors(batch));
  const Tensor& loss = head_saved_.at("loss");
  return load(loss.dtype, loss.data, 0);
}

double Model::learn(const Batch& batch) {
  const double value = loss(batch);
  Tensor upstream = gradient_[0].tensor(), downstream = gradient_[1].tensor();
  TensorMap head = head_tensors(batch);
  head["d_loss"] = loss_gradient_.tensor();
  head["d_h"] = upstream;
  head["d_gamma"] = gradients_["model.norm.weight"];
  head["d_w"] = gradients_[head_name(config_)];
  run(head_backward_, head);
  for (std::int64_t i = config_.layers - 1; i >= 0; --i) {
    TensorMap layer = layer_tensors(i);
    add_layer_weights(gradients_, i, "d_", layer);
    layer["d_out"] = upstream;
    layer["d_x"] = downstream;
    run(layer_backward_, layer);
    std::swap(upstream, downstream);
  }
  TensorMap embedding = embedding_tensors(batch);
  embedding["d_x"] = upstream;
  embedding["d_table"] = gradients_[kTable];
  run(embedding_backward_, embedding);
  return value;
}

}  // namespace coda
