// coda/model/checkpoint.cpp: writes, finds and reads the files of a run of training.
#include "coda/model/checkpoint.h"

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "coda/core/error.h"
#include "coda/core/file.h"

namespace coda {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kTraining = "training";  // metadata of model.safetensors: the file's name
constexpr const char* kState = "state";        // metadata of the training file: JSON
constexpr const char* kFirst = "first_moment.";
constexpr const char* kSecond = "second_moment.";
constexpr int kFormat = 1;

Json to_json(const TrainerOptions& options) {
  const OptimizerOptions& o = options.optimizer;
  return {{"batch", options.sequences},
          {"steps", options.steps},
          {"seed", options.seed},
          {"dtype", name_of(options.dtype)},
          {"lr", o.rate},
          {"beta1", o.beta1},
          {"beta2", o.beta2},
          {"eps", o.eps},
          {"clip", o.clip},
          {"weight_decay", o.weight_decay}};
}

TrainerOptions options_from(const Json& json) {
  TrainerOptions options;
  OptimizerOptions& o = options.optimizer;
  json.at("batch").get_to(options.sequences);
  json.at("steps").get_to(options.steps);
  json.at("seed").get_to(options.seed);
  options.dtype = dtype_from(json.at("dtype").get<std::string>()).value_or(DType::boolean);
  json.at("lr").get_to(o.rate);
  json.at("beta1").get_to(o.beta1);
  json.at("beta2").get_to(o.beta2);
  json.at("eps").get_to(o.eps);
  json.at("clip").get_to(o.clip);
  json.at("weight_decay").get_to(o.weight_decay);
  return options;
}

std::string path_in(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

// training-STEP.safetensors, or training-STEP-2.safetensors and so on: no other file is ours.
bool is_training_file(std::string_view name) {
  constexpr std::string_view kBegin = "training-", kEnd = ".safetensors";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return false;
  name = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
  return !name.empty() && name.find_first_not_of("0123456789-") == std::string_view::npos;
}

// A name that no file has: the checkpoint that is there keeps its own until it is replaced.
std::string new_training_file(const std::string& folder, std::int64_t step) {
  char name[64];
  std::snprintf(name, sizeof name, "training-%06lld", static_cast<long long>(step));
  std::string file = std::string(name) + ".safetensors";
  for (int i = 2; fs::exists(path_in(folder, file)); ++i) {
    file = std::string(name) + "-" + std::to_string(i) + ".safetensors";
  }
  return file;
}

void remove_older(const std::string& folder, const std::string& kept) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (is_training_file(name) && name != kept) fs::remove(entry.path(), ignored);
  }
}

std::map<std::string, Tensor> moments(const AdamW& optimizer) {
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, tensor] : optimizer.first_moment().tensors()) {
    tensors[kFirst + name] = tensor;
  }
  for (const auto& [name, tensor] : optimizer.second_moment().tensors()) {
    tensors[kSecond + name] = tensor;
  }
  return tensors;
}

}  // namespace

void save_checkpoint(const std::string& folder, const Trainer& trainer) {
  prepare_folder(folder);
  const Trainer::Position position = trainer.position();
  const Json state = {
      {"format", kFormat},
      {"step", position.done},
      {"random", position.random},
      {"options", to_json(trainer.options())},
      {"data", {{"sha256", trainer.corpus().sha256()}, {"bytes", trainer.corpus().bytes()}}}};
  const std::string name = new_training_file(folder, position.done);
  const std::string config = to_json(trainer.config());

  // All bytes are on the disk before the first rename: what fails for want of space changes
  // nothing.
  OutputFile training(path_in(folder, name)), weights(weights_path(folder)),
      sizes(config_path(folder));
  write_safetensors(training, moments(trainer.optimizer()), {{kState, state.dump()}});
  write_safetensors(weights, trainer.weights().tensors(), {{"format", "pt"}, {kTraining, name}});
  sizes.write(config.data(), config.size());
  for (OutputFile* file : {&training, &weights, &sizes}) file->sync();

  training.commit();
  const bool same = fs::exists(config_path(folder)) && read_file(config_path(folder)) == config;
  if (!same) {
    // Sizes of one model must not stand beside weights of another.
    std::error_code ignored;
    fs::remove(weights_path(folder), ignored);
    sizes.commit();
  }
  weights.commit();
  remove_older(folder, name);
}

Checkpoint load_checkpoint(const std::string& folder) {
  if (!holds_model(folder)) {
    throw ProgramError(folder + " holds no model to go on from",
                       "name the folder that `coda train --output` wrote, or begin without "
                       "--resume");
  }
  Checkpoint checkpoint{.folder = folder, .config = load_config(folder)};
  if (fs::exists(weights_path(folder))) checkpoint.model = read_safetensors(weights_path(folder));
  const std::string name = checkpoint.model.metadata[kTraining];
  if (!is_training_file(name)) {
    throw ProgramError(folder + " holds a model, but not the state of its training",
                       "--resume goes on from what `coda train --output` wrote, not from other "
                       "models");
  }
  const std::string& path = checkpoint.training_path = path_in(folder, name);
  checkpoint.training = read_safetensors(path);
  try {
    const Json state = Json::parse(checkpoint.training.metadata[kState]);
    if (state.at("format").get<int>() != kFormat) {
      throw ProgramError(path + " was written by another version of CODA",
                         "go on with that version, or begin anew with --overwrite");
    }
    checkpoint.position = {state.at("step").get<std::int64_t>(),
                           state.at("random").get<std::uint64_t>()};
    checkpoint.options = options_from(state.at("options"));
    checkpoint.data = state.at("data").at("sha256").get<std::string>();
  } catch (const Json::exception& error) {
    throw ProgramError(path + " is no state of training: " + error.what(),
                       "the file is damaged: begin anew with --overwrite");
  }
  const TrainerOptions& options = checkpoint.options;
  const bool possible = checkpoint.position.done >= 0 && options.steps >= 1 &&
                        options.sequences >= 1 && checkpoint.position.done <= options.steps &&
                        (options.dtype == DType::f32 || options.dtype == DType::bf16);
  if (!possible) {
    throw ProgramError(
        path + " has a state that no training has: " + checkpoint.training.metadata[kState],
        "the file is damaged: begin anew with --overwrite");
  }
  return checkpoint;
}

void restore(const Checkpoint& checkpoint, Trainer& trainer) {
  if (trainer.corpus().sha256() != checkpoint.data) {
    throw ProgramError(trainer.corpus().path() + " is not the text that the run in " +
                           checkpoint.folder + " learns: its SHA-256 is " +
                           trainer.corpus().sha256() + ", the run's " + checkpoint.data,
                       "give the same --data, or begin anew with --overwrite");
  }
  const std::string& path = checkpoint.training_path;
  copy_tensors(checkpoint.model.tensors, "", weights_path(checkpoint.folder), trainer.weights());
  copy_tensors(checkpoint.training.tensors, kFirst, path, trainer.optimizer().first_moment());
  copy_tensors(checkpoint.training.tensors, kSecond, path, trainer.optimizer().second_moment());
  trainer.go_on_from(checkpoint.position);
}

void remove_temporaries(const std::string& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const std::string file = temporary_of(name);
    const bool ours =
        file == "model.safetensors" || file == "config.json" || is_training_file(file);
    if (ours) fs::remove(entry.path(), ignored);
  }
}

}  // namespace coda
