// coda/model/parameters.cpp: the names and places of a model's weights, their start, their files.
#include "coda/model/parameters.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "coda/core/error.h"
#include "coda/core/file.h"
#include "coda/core/safetensors.h"
#include "coda/model/random.h"

namespace coda {
namespace {

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const std::int64_t extent : shape) n *= extent;
  return n;
}

bool is_norm(const std::string& name) {
  return name.find("norm.weight") != std::string::npos;
}

// Projections whose result is added to the residual stream.
bool into_residual(const std::string& name) {
  return name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
}

std::vector<ArenaLayout::Entry> tensors_of(const ModelConfig& c) {
  const std::int64_t queries = c.heads * c.head_width, keys = c.key_heads * c.head_width;
  std::vector<ArenaLayout::Entry> all;
  all.push_back({"model.embed_tokens.weight", {c.vocabulary, c.width}});
  for (std::int64_t i = 0; i < c.layers; ++i) {
    all.push_back({layer_name(i, "input_layernorm.weight"), {c.width}});
    all.push_back({layer_name(i, "self_attn.q_proj.weight"), {queries, c.width}});
    all.push_back({layer_name(i, "self_attn.k_proj.weight"), {keys, c.width}});
    all.push_back({layer_name(i, "self_attn.v_proj.weight"), {keys, c.width}});
    all.push_back({layer_name(i, "self_attn.o_proj.weight"), {c.width, queries}});
    all.push_back({layer_name(i, "post_attention_layernorm.weight"), {c.width}});
    all.push_back({layer_name(i, "mlp.gate_proj.weight"), {c.hidden, c.width}});
    all.push_back({layer_name(i, "mlp.up_proj.weight"), {c.hidden, c.width}});
    all.push_back({layer_name(i, "mlp.down_proj.weight"), {c.width, c.hidden}});
  }
  all.push_back({"model.norm.weight", {c.width}});
  if (c.embeddings == Embeddings::separate) {
    all.push_back({"lm_head.weight", {c.vocabulary, c.width}});
  }
  return all;
}

std::string index_path(const std::string& folder) {
  return weights_path(folder) + ".index.json";
}

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// The files that the index of a sharded model names, in order of their names.
std::set<std::string> shards_of(const std::string& path) {
  std::set<std::string> files;
  try {
    const nlohmann::json index = nlohmann::json::parse(read_file(path));
    for (const auto& [tensor, file] : index.at("weight_map").items()) {
      files.insert(file.get<std::string>());
    }
  } catch (const nlohmann::json::exception& error) {
    throw ProgramError(path + " is no index of a model's files: " + error.what(),
                       "write or download it again");
  }
  for (const std::string& file : files) {
    if (file.find('/') == std::string::npos && file != "..") continue;
    throw ProgramError(path + " names the file " + file + ", which is not in its own folder",
                       "put all files of a model into one folder");
  }
  return files;
}

std::map<std::string, OwnedTensor> read_shards(const std::string& folder) {
  std::map<std::string, OwnedTensor> all;
  for (const std::string& file : shards_of(index_path(folder))) {
    const std::string path = (std::filesystem::path(folder) / file).string();
    for (auto& [name, tensor] : read_safetensors(path).tensors) {
      if (all.emplace(name, std::move(tensor)).second) continue;
      throw ProgramError("`" + name + "` is in " + path + " and in another file of the model",
                         "write or download the model again");
    }
  }
  return all;
}

// A tensor that the model has no place for would change what it computes.
void refuse_strangers(const std::map<std::string, OwnedTensor>& saved, const std::string& path,
                      const Arena& parameters) {
  for (const auto& [name, tensor] : saved) {
    // A tied head is the table again; old files have the rotary frequencies, which follow from
    // config.json.
    const bool known = parameters.tensors().contains(name) || name == "lm_head.weight" ||
                       name.ends_with(".rotary_emb.inv_freq");
    if (known) continue;
    throw ProgramError(path + " has the tensor `" + name + "`, which no Llama model of CODA has",
                       "give a model without it");
  }
}

}  // namespace

std::string layer_name(std::int64_t layer, const std::string& what) {
  return "model.layers." + std::to_string(layer) + "." + what;
}

ArenaLayout::ArenaLayout(const ModelConfig& config) {
  constexpr std::int64_t kAlign = 16;  // elements: each tensor starts at a cache line
  entries = tensors_of(config);
  std::int64_t end = 0;
  for (const bool norms : {false, true}) {
    for (Entry& entry : entries) {
      if (is_norm(entry.name) != norms) continue;
      entry.offset = end;
      end += (elements(entry.shape) + kAlign - 1) / kAlign * kAlign;
    }
    rows = (end + kArenaColumns - 1) / kArenaColumns;
    end = rows * kArenaColumns;
    if (!norms) decayed_rows = rows;
  }
}

Arena::Arena(const ArenaLayout& layout, DType dtype)
    : memory_(dtype, {layout.rows, kArenaColumns}) {
  auto* base = memory_.as<std::byte>();
  for (const ArenaLayout::Entry& entry : layout.entries) {
    void* data = base + static_cast<std::size_t>(entry.offset) * size_of(dtype);
    tensors_.emplace(entry.name, dense(data, dtype, entry.shape));
  }
}

const Tensor& Arena::operator[](const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, tensor] : tensors_) names.push_back(known);
  throw ProgramError("the model has no tensor `" + name + "`",
                     suggestion(name, names, "name a tensor of the model"));
}

Tensor Arena::rows(std::int64_t first, std::int64_t count) const {
  const DType dtype = memory_.tensor().dtype;
  auto* base = memory_.as<std::byte>();
  return dense(base + static_cast<std::size_t>(first * kArenaColumns) * size_of(dtype), dtype,
               {count, kArenaColumns});
}

void Arena::clear() {
  std::memset(memory_.as<std::byte>(), 0, memory_.bytes());
}

void Arena::assign(const Arena& other) {
  const Tensor &to = memory_.tensor(), &from = other.memory_.tensor();
  if (to.shape != from.shape) throw InternalError("arenas of different layouts");
  const std::int64_t count = to.elements();
  for (std::int64_t i = 0; i < count; ++i) {
    store(to.dtype, to.data, i, load(from.dtype, from.data, i));
  }
}

void initialize(Arena& parameters, const ModelConfig& config, std::uint64_t seed) {
  const ArenaLayout layout(config);
  Random random(seed);
  for (const ArenaLayout::Entry& entry : layout.entries) {
    const Tensor& tensor = parameters[entry.name];
    double deviation = 0.02;
    if (into_residual(entry.name)) {
      deviation /= std::sqrt(2.0 * static_cast<double>(config.layers));
    }
    const std::int64_t count = tensor.elements();
    for (std::int64_t i = 0; i < count; ++i) {
      const double value = is_norm(entry.name) ? 1.0 : deviation * random.normal();
      store(tensor.dtype, tensor.data, i, value);
    }
  }
}

void prepare_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && access(folder.c_str(), W_OK) != 0) error = {errno, std::generic_category()};
  if (error) {
    throw ProgramError("the folder " + folder + " cannot be written to: " + error.message(),
                       "give a folder that you may write to");
  }
}

std::string weights_path(const std::string& folder) {
  return (std::filesystem::path(folder) / "model.safetensors").string();
}

std::string config_path(const std::string& folder) {
  return (std::filesystem::path(folder) / "config.json").string();
}

bool holds_model(const std::string& folder) {
  return exists(weights_path(folder)) || exists(index_path(folder));
}

void save_model(const std::string& folder, const ModelConfig& config, const Arena& parameters) {
  prepare_folder(folder);
  write_safetensors(weights_path(folder), parameters.tensors(), {{"format", "pt"}});
  write_file(config_path(folder), to_json(config));
}

ModelConfig load_config(const std::string& folder) {
  return config_from_json(read_file(config_path(folder)), config_path(folder));
}

void copy_tensors(const std::map<std::string, OwnedTensor>& saved, const std::string& prefix,
                  const std::string& path, Arena& to) {
  for (const auto& [name, tensor] : to.tensors()) {
    const auto found = saved.find(prefix + name);
    if (found == saved.end()) {
      throw ProgramError(path + " has no tensor `" + prefix + name + "`",
                         "give the folder of a model with these sizes");
    }
    const Tensor& from = found->second.tensor();
    if (from.shape != tensor.shape || !is_float(from.dtype)) {
      throw ProgramError("`" + prefix + name + "` in " + path + " is " + to_string(from) +
                             ", but config.json makes it " + to_string(tensor),
                         "give a folder whose files belong together");
    }
    if (from.dtype == tensor.dtype) {
      std::memcpy(tensor.data, from.data, found->second.bytes());
      continue;
    }
    const std::int64_t count = tensor.elements();
    for (std::int64_t i = 0; i < count; ++i) {
      store(tensor.dtype, tensor.data, i, load(from.dtype, from.data, i));
    }
  }
}

void load_parameters(const std::string& folder, Arena& parameters) {
  const bool one = exists(weights_path(folder)) || !exists(index_path(folder));
  const std::string path = one ? weights_path(folder) : index_path(folder);
  std::map<std::string, OwnedTensor> saved =
      one ? read_safetensors(path).tensors : read_shards(folder);
  refuse_strangers(saved, path, parameters);
  copy_tensors(saved, "", path, parameters);
}

}  // namespace coda
