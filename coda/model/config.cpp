// coda/model/config.cpp: checks of a model's sizes, and their JSON.
#include "coda/model/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <utility>

#include "coda/core/error.h"

namespace coda {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::pair<const char*, std::int64_t ModelConfig::*>, 8> kSizes = {{
    {"vocab_size", &ModelConfig::vocabulary},
    {"num_hidden_layers", &ModelConfig::layers},
    {"hidden_size", &ModelConfig::width},
    {"num_attention_heads", &ModelConfig::heads},
    {"num_key_value_heads", &ModelConfig::key_heads},
    {"head_dim", &ModelConfig::head_width},
    {"intermediate_size", &ModelConfig::hidden},
    {"max_position_embeddings", &ModelConfig::context},
}};

// Keys that must have this value, where they are there: any other changes what a layer computes.
const std::pair<const char*, Json> kOnly[] = {
    {"hidden_act", "silu"},           {"attention_bias", false},     {"mlp_bias", false},
    {"attention_dropout", 0},         {"pretraining_tp", 1},         {"sliding_window", nullptr},
    {"use_sliding_window", false},    {"partial_rotary_factor", 1},  {"layer_types", nullptr},
    {"quantization_config", nullptr}, {"is_encoder_decoder", false}, {"add_cross_attention", false},
};

// Keys that change no logits: how weights began, what generation and tools are told.
constexpr std::string_view kHarmless[] = {
    "model_type",
    "architectures",
    "transformers_version",
    "_name_or_path",
    "dtype",
    "torch_dtype",
    "initializer_range",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "id2label",
    "label2id",
    "problem_type",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "chunk_size_feed_forward",
    "task_specific_params",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "attn_implementation",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "tie_word_embeddings",
};

constexpr int kDeepest = 16;  // no config needs more levels

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw ProgramError(file + " is no model's config.json: " + what,
                     "give the folder of a Llama model that `coda train` or transformers wrote");
}

[[noreturn]] void refuse_key(const std::string& file, const std::string& key, const Json& value,
                             const std::string& why, const std::string& fix) {
  throw Unsupported(file + " has \"" + key + "\": " + value.dump() + ", " + why, fix);
}

// NOTE: a conversion would take 1.5, true and null for whole numbers.
std::optional<std::int64_t> whole_number(const Json& json, const char* key,
                                         const std::string& file) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return std::nullopt;
  if (found->is_number_integer()) return found->get<std::int64_t>();
  refuse(file, std::string(key) + " is " + found->dump() + ", no whole number");
}

std::optional<double> number(const Json& json, const char* key, const std::string& file) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return std::nullopt;
  if (found->is_number()) return found->get<double>();
  refuse(file, std::string(key) + " is " + found->dump() + ", no number");
}

void refuse_other_models(const Json& json, const std::string& file) {
  for (const auto& [key, value] : json.items()) {
    const auto* only = std::ranges::find(kOnly, key, &std::pair<const char*, Json>::first);
    if (only != std::end(kOnly)) {
      if (value == only->second || value.is_null()) continue;
      refuse_key(file, key, value, "where CODA's Llama has " + only->second.dump(),
                 "give a model without it");
    }
    const bool known =
        std::ranges::find(kHarmless, key) != std::end(kHarmless) ||
        std::ranges::find(kSizes, key,
                          &std::pair<const char*, std::int64_t ModelConfig::*>::first) !=
            kSizes.end();
    if (known) continue;
    refuse_key(file, key, value,
               "a key that CODA does not know: it may change what the model computes",
               "remove it if you know that it changes nothing");
  }
}

// rope_theta, and rope_scaling as transformers 4 has them or rope_parameters as transformers 5
// does.
void read_rope(const Json& json, const std::string& file, ModelConfig& config) {
  config.rope_theta = number(json, "rope_theta", file).value_or(10000);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json rope = json.value(key, Json());
    if (rope.is_null()) continue;
    if (!rope.is_object()) refuse(file, std::string(key) + " is " + rope.dump());
    config.rope_theta = number(rope, "rope_theta", file).value_or(config.rope_theta);
    const Json type = rope.value("rope_type", rope.value("type", Json("default")));
    if (type != "default" && type != "llama3") {
      refuse_key(file, key, rope, "a rotary embedding that CODA does not have",
                 "give a model whose rope_type is \"default\" or \"llama3\"");
    }
    constexpr std::string_view kKeys[] = {"rope_type",
                                          "type",
                                          "rope_theta",
                                          "factor",
                                          "low_freq_factor",
                                          "high_freq_factor",
                                          "original_max_position_embeddings"};
    for (const auto& [name, value] : rope.items()) {
      if (std::ranges::find(kKeys, name) != std::end(kKeys)) continue;
      if (name == "partial_rotary_factor" && value == 1) continue;
      refuse_key(file, std::string(key) + "." + name, value, "a key that CODA does not know",
                 "remove it if you know that it changes nothing");
    }
    if (type == "default") continue;
    const auto needed = [&](const char* name) {
      const std::optional<double> value = number(rope, name, file);
      return value ? *value : (refuse(file, std::string(key) + " lacks " + name), 0.0);
    };
    config.rope_scaling = RopeScaling{
        .factor = needed("factor"),
        .low_factor = needed("low_freq_factor"),
        .high_factor = needed("high_freq_factor"),
        .context = whole_number(rope, "original_max_position_embeddings", file).value_or(0)};
  }
}

}  // namespace

std::int64_t ModelConfig::parameters() const {
  const std::int64_t attention =
      2 * heads * head_width * width + 2 * key_heads * head_width * width;
  const std::int64_t layer = attention + 3 * hidden * width + 2 * width;
  const std::int64_t tables = embeddings == Embeddings::tied ? 1 : 2;
  return layers * layer + tables * vocabulary * width + width;
}

void require_valid(const ModelConfig& config) {
  for (const auto& [key, member] : kSizes) {
    if (config.*member >= 1) continue;
    throw ProgramError(std::string(key) + " is " + std::to_string(config.*member),
                       "give a whole number from 1");
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 31;  // of a size; no file holds such a model
  for (const auto& [key, member] : kSizes) {
    if (config.*member <= kMost) continue;
    throw ProgramError(std::string(key) + " is " + std::to_string(config.*member),
                       "give at most " + std::to_string(kMost));
  }
  const auto size = [](std::int64_t value) {
    return static_cast<double>(value);
  };
  const double elements = size(config.width) * size(config.vocabulary) +
                          size(config.layers) * size(config.width) *
                              (size(config.heads) * size(config.head_width) + size(config.hidden));
  if (elements > 0x1p44) {
    throw ProgramError("these sizes make a model of more than 2^44 weights", "give smaller sizes");
  }
  const auto positive = [](const char* key, double value) {
    if (value > 0 && std::isfinite(value)) return;
    throw ProgramError(std::string(key) + " is " + std::to_string(value), "give a number above 0");
  };
  positive("rms_norm_eps", config.norm_eps);
  positive("rope_theta", config.rope_theta);
  if (const auto& scaling = config.rope_scaling) {
    positive("factor", scaling->factor);
    positive("low_freq_factor", scaling->low_factor);
    positive("high_freq_factor - low_freq_factor", scaling->high_factor - scaling->low_factor);
    positive("original_max_position_embeddings", static_cast<double>(scaling->context));
  }
  if (config.heads % config.key_heads != 0) {
    throw ProgramError("num_attention_heads is " + std::to_string(config.heads) +
                           ", no multiple of num_key_value_heads, " +
                           std::to_string(config.key_heads),
                       "make the query heads a multiple of the key heads");
  }
  if (config.head_width % 2 != 0) {
    throw ProgramError("head_dim is " + std::to_string(config.head_width) +
                           ", but rotary positions turn pairs of elements",
                       "make it even");
  }
}

double rope_frequency(const ModelConfig& config, std::int64_t e) {
  const double half = static_cast<double>(config.head_width) / 2;
  const double frequency = std::pow(config.rope_theta, -static_cast<double>(e) / half);
  if (!config.rope_scaling) return frequency;
  const RopeScaling& scaling = *config.rope_scaling;
  // How many waves the first context holds, from 0 at low_factor to 1 at high_factor.
  const double waves = static_cast<double>(scaling.context) * frequency / (2 * std::numbers::pi);
  const double kept = std::clamp(
      (waves - scaling.low_factor) / (scaling.high_factor - scaling.low_factor), 0.0, 1.0);
  return kept * frequency + (1 - kept) * frequency / scaling.factor;
}

std::string to_json(const ModelConfig& config) {
  nlohmann::ordered_json json;
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = "llama";
  for (const auto& [key, member] : kSizes) json[key] = config.*member;
  json["rms_norm_eps"] = config.norm_eps;
  json["rope_theta"] = config.rope_theta;
  if (const auto& scaling = config.rope_scaling) {
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", scaling->factor},
                            {"low_freq_factor", scaling->low_factor},
                            {"high_freq_factor", scaling->high_factor},
                            {"original_max_position_embeddings", scaling->context}};
  }
  json["tie_word_embeddings"] = config.embeddings == Embeddings::tied;
  json["hidden_act"] = "silu";
  json["attention_bias"] = json["mlp_bias"] = false;
  json["bos_token_id"] = json["eos_token_id"] = json["pad_token_id"] = nullptr;
  json["dtype"] = "float32";
  return json.dump(2) + "\n";
}

ModelConfig config_from_json(std::string_view text, const std::string& file) {
  Json json;
  try {
    json = Json::parse(text, [&](int depth, Json::parse_event_t, Json&) {
      // NOTE: to print a value takes stack for each level.
      if (depth > kDeepest) refuse(file, "it is nested too deep");
      return true;
    });
  } catch (const Json::exception& error) {
    refuse(file, error.what());
  }
  if (!json.is_object()) refuse(file, "it is no JSON object");
  if (!json.contains("model_type")) refuse(file, "it lacks model_type");
  if (json["model_type"] != "llama") {
    throw Unsupported(file + " is of the model_type " + json["model_type"].dump() +
                          ", and CODA's model is a Llama",
                      "give a model of the model_type \"llama\"");
  }
  refuse_other_models(json, file);

  ModelConfig config;
  for (const auto& [key, member] : kSizes) {
    if (const auto value = whole_number(json, key, file)) {
      config.*member = *value;
    } else if (member == &ModelConfig::key_heads) {
      config.key_heads = config.heads;
    } else if (member == &ModelConfig::head_width) {
      config.head_width = config.width / std::max<std::int64_t>(config.heads, 1);
    } else if (member == &ModelConfig::context) {
      config.context = 2048;
    } else {
      refuse(file, std::string("it lacks ") + key);
    }
  }
  config.norm_eps = number(json, "rms_norm_eps", file).value_or(1e-6);
  read_rope(json, file, config);
  const Json tied = json.value("tie_word_embeddings", Json(false));
  if (!tied.is_boolean()) refuse(file, "tie_word_embeddings is " + tied.dump());
  config.embeddings = tied.get<bool>() ? Embeddings::tied : Embeddings::separate;
  require_valid(config);
  return config;
}

Sizes block_sizes(const ModelConfig& config, std::int64_t batch, std::int64_t length) {
  return {{"B", batch},
          {"S", length},
          {"D", config.width},
          {"H", config.heads},
          {"G", config.key_heads},
          {"E", config.head_width},
          {"F", config.hidden},
          {"V", config.vocabulary},
          {"M", batch * length},
          {"A", config.heads * config.head_width}};
}

}  // namespace coda
