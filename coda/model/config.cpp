// coda/model/config.cpp: checks of a model's sizes, and their JSON.
#include "coda/model/config.h"

#include <array>
#include <nlohmann/json.hpp>
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

constexpr std::array<std::pair<const char*, double ModelConfig::*>, 2> kNumbers = {{
    {"rope_theta", &ModelConfig::rope_theta},
    {"rms_norm_eps", &ModelConfig::norm_eps},
}};

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

std::string to_json(const ModelConfig& config) {
  nlohmann::ordered_json json;
  json["model_type"] = "llama";
  for (const auto& [key, member] : kSizes) json[key] = config.*member;
  for (const auto& [key, member] : kNumbers) json[key] = config.*member;
  json["tie_word_embeddings"] = config.embeddings == Embeddings::tied;
  return json.dump(2) + "\n";
}

ModelConfig config_from_json(std::string_view text, const std::string& file) {
  ModelConfig config;
  try {
    const Json json = Json::parse(text);
    for (const auto& [key, member] : kSizes) config.*member = json.at(key).get<std::int64_t>();
    for (const auto& [key, member] : kNumbers) config.*member = json.at(key).get<double>();
    if (json.at("tie_word_embeddings").get<bool>()) config.embeddings = Embeddings::tied;
  } catch (const Json::exception& error) {
    throw ProgramError(file + " is no model's config.json: " + error.what(),
                       "give the folder that `coda train --output` wrote");
  }
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
