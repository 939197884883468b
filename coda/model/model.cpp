// coda/model/model.cpp: which tensor goes where when the blocks run, forward and backward.
#include "coda/model/model.h"

#include <algorithm>
#include <cmath>

#include "coda/program/library.h"
#include "coda/rewrite/retype.h"
#include "coda/rewrite/stack.h"

namespace coda {
namespace {

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

// With the block `head` behind the layers.
Program model_block(const ModelConfig& config, DType dtype, const std::string& head = "head") {
  const std::string file = "llama.coda";
  const Module module = parse(*embedded_program(file), file);
  StackOptions options{.head = head};
  if (config.embeddings == Embeddings::tied) options.tied = {{"head.w", "embed.table"}};
  const Program block = stack(module, static_cast<int>(config.layers), options);
  return dtype == DType::bf16 ? block : retype(block, DType::bf16, dtype);
}

// The tensors of `arena` by the names that the block gives its weights, behind `prefix`.
void add_weights(const Arena& arena, const ModelConfig& config, const std::string& prefix,
                 TensorMap& into) {
  into[prefix + "embed.table"] = arena[kTable];
  for (std::int64_t i = 0; i < config.layers; ++i) {
    add_layer_weights(arena, i, prefix + std::to_string(i) + ".", into);
  }
  into[prefix + "head.gamma"] = arena["model.norm.weight"];
  if (config.embeddings == Embeddings::separate) into[prefix + "head.w"] = arena["lm_head.weight"];
}

GradOptions all_weights(const Arena& parameters, const ModelConfig& config) {
  TensorMap weights;
  add_weights(parameters, config, "", weights);
  GradOptions options{.of = {"loss"}};
  for (const auto& [name, tensor] : weights) {
    options.wrt.push_back(name);
    // A bf16 gradient would lose what AdamW's moments sum up.
    if (parameters.dtype() == DType::bf16) options.accumulate[name] = DType::f32;
  }
  return options;
}

}  // namespace

DType statistic_dtype(DType dtype) {
  return dtype == DType::bf16 ? DType::f32 : dtype;
}

RotaryTables::RotaryTables(const ModelConfig& config, std::int64_t first, std::int64_t length,
                           DType dtype)
    : cos_(dtype, {length, config.head_width / 2}), sin_(dtype, {length, config.head_width / 2}) {
  const std::int64_t half = config.head_width / 2;
  for (std::int64_t s = 0; s < length; ++s) {
    for (std::int64_t e = 0; e < half; ++e) {
      const double angle = static_cast<double>(first + s) * rope_frequency(config, e);
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

OwnedTensor logits(const ModelConfig& config, const Arena& parameters, const Backend& backend,
                   const Batch& batch) {
  const DType dtype = parameters.dtype();
  const Sizes sizes = block_sizes(config, batch.sequences, batch.length);
  const CompiledBlock block(model_block(config, dtype, "logits"), backend, sizes);
  const RotaryTables rotary(config, 0, batch.length, statistic_dtype(dtype));
  const Scalar eps(statistic_dtype(dtype), config.norm_eps);
  OwnedTensor z(statistic_dtype(dtype), {batch.sequences, batch.length, config.vocabulary});
  TensorMap tensors{{"ids", batch.ids.tensor()},
                    {"cos", rotary.cosines()},
                    {"sin", rotary.sines()},
                    {"eps", eps.tensor()},
                    {"z", dense(z.as<std::byte>(), z.tensor().dtype,
                                {batch.sequences * batch.length, config.vocabulary})}};
  add_weights(parameters, config, "", tensors);
  Scratch scratch;
  scratch.reserve(block.scratch_bytes());
  block.run(tensors, scratch.span());
  return z;
}

Model::Model(const ModelConfig& config, const Backend& backend, std::int64_t sequences,
             std::int64_t length, DType dtype)
    : config_(config),
      dtype_(dtype),
      sizes_(block_sizes(config, sequences, length)),
      layout_(config),
      parameters_(layout_, dtype),
      gradients_(layout_, statistic_dtype(dtype)),
      rotary_(config, 0, length, statistic_dtype(dtype)),
      block_(model_block(config, dtype)),
      wanted_(all_weights(parameters_, config)),
      rewritten_(rewrite(block_, wanted_)),
      forward_(rewritten_.forward.schedule, backend, sizes_),
      backward_(rewritten_.backward->schedule, backend, sizes_),
      eps_(statistic_dtype(dtype), config.norm_eps),
      ignore_index_(DType::i64, static_cast<double>(kIgnoreIndex)),
      loss_gradient_(statistic_dtype(dtype), 1) {
  tensors_["cos"] = rotary_.cosines();
  tensors_["sin"] = rotary_.sines();
  tensors_["eps"] = eps_.tensor();
  tensors_["ignore_index"] = ignore_index_.tensor();
  tensors_["d_loss"] = loss_gradient_.tensor();
  add_weights(gradients_, config, "d_", tensors_);
  workspace_.add_results(rewritten_.forward.schedule, sizes_, tensors_);
  for (const CompiledBlock* half : {&forward_, &backward_}) scratch_.reserve(half->scratch_bytes());
}

double Model::loss(const Batch& batch) {
  add_weights(parameters_, config_, "", tensors_);  // NOTE: the optimizer swaps their memory
  tensors_["ids"] = batch.ids.tensor();
  tensors_["target"] = batch.targets.tensor();
  forward_.run(tensors_, scratch_.span(), timings_);
  const Tensor& loss = tensors_.at("loss");
  return load(loss.dtype, loss.data, 0);
}

double Model::learn(const Batch& batch) {
  const double value = loss(batch);
  if (!wanted_.accumulate.empty()) gradients_.clear();
  backward_.run(tensors_, scratch_.span(), timings_);
  return value;
}

}  // namespace coda
