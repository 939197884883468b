// coda/model/parameters.h: all weights of a model in one contiguous arena, by Hugging Face's names.
//
// Gradients and the optimizer's state have the same layout, so that one kernel serves all tensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coda/core/tensor.h"
#include "coda/model/config.h"

namespace coda {

// Where each tensor lies. Matrices come first, norm weights last: weight decay is for the former
// only. Each part fills whole rows of kArenaColumns; what is left over stays zero.
inline constexpr std::int64_t kArenaColumns = 512;

struct ArenaLayout {
  struct Entry {
    std::string name;
    std::vector<std::int64_t> shape;
    std::int64_t offset = 0;  // in elements
  };
  std::vector<Entry> entries;
  std::int64_t decayed_rows = 0;  // of kArenaColumns elements
  std::int64_t rows = 0;

  explicit ArenaLayout(const ModelConfig& config);
};

// One arena of some dtype: parameters, gradients or moments.
class Arena {
 public:
  Arena(const ArenaLayout& layout, DType dtype);

  DType dtype() const { return memory_.tensor().dtype; }
  // Throws ProgramError with the nearest name.
  const Tensor& operator[](const std::string& name) const;
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  // Rows [first, first + count) of kArenaColumns elements.
  Tensor rows(std::int64_t first, std::int64_t count) const;
  void clear();  // every element 0
  // The elements of an arena of the same layout, rounded to this one's dtype.
  void assign(const Arena& other);

 private:
  OwnedTensor memory_;
  std::map<std::string, Tensor> tensors_;
};

// "model.layers.3." + what
std::string layer_name(std::int64_t layer, const std::string& what);

// Normal with deviation 0.02; the projections into the residual stream 0.02 / sqrt(2 layers); norms
// 1.
void initialize(Arena& parameters, const ModelConfig& config, std::uint64_t seed);

// Fills each tensor of the arena from `saved`, where it has the name behind `prefix`. Throws
// ProgramError, which names `path`, for one that is missing, has another shape or is no float.
void copy_tensors(const std::map<std::string, OwnedTensor>& saved, const std::string& prefix,
                  const std::string& path, Arena& to);

// Makes the folder where it is missing. Throws ProgramError where nothing can be written to it:
// before a long job, so that it does not fail at its end.
void prepare_folder(const std::string& folder);
// The files of a model's folder.
std::string weights_path(const std::string& folder);
std::string config_path(const std::string& folder);
// True where the folder has weights, in one file or in several.
bool holds_model(const std::string& folder);

// model.safetensors and config.json in the folder. Each appears complete or not at all.
void save_model(const std::string& folder, const ModelConfig& config, const Arena& parameters);
ModelConfig load_config(const std::string& folder);
// From model.safetensors, or from the files that model.safetensors.index.json names. Throws
// ProgramError for a tensor that is missing, has another shape, or is none of the model's.
void load_parameters(const std::string& folder, Arena& parameters);

}  // namespace coda
