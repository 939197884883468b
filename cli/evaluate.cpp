// cli/evaluate.cpp: `coda evaluate`: logits, loss and gradients of a model on given token ids.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "coda/core/error.h"
#include "coda/core/npy.h"
#include "coda/core/safetensors.h"
#include "coda/cpu/cpu.h"
#include "coda/model/model.h"

namespace coda {
namespace {

struct Arguments {
  std::string model = "coda-model", tokens, output, dtype = "f32";
  bool grad = false, json = false;
  int threads = 0;
};

// The ids as a batch whose targets are the ids that follow; the last of a sequence has none.
Batch read_batch(const std::string& path, const ModelConfig& config) {
  const OwnedTensor file = read_npy(path);
  const Tensor& ids = file.tensor();
  const bool is_id = ids.dtype == DType::i64 || ids.dtype == DType::i32 || ids.dtype == DType::u8;
  const std::size_t rank = ids.shape.size();
  if (!is_id || (rank != 1 && rank != 2) || ids.elements() == 0) {
    throw ProgramError(path + " is " + to_string(ids) + ", and token ids are i64[B, S] or i64[S]",
                       "give whole numbers, a row for each sequence");
  }
  const std::int64_t length = ids.shape.back();
  if (length < 2 || length > config.context) {
    throw ProgramError(path + " has sequences of " + std::to_string(length) +
                           " tokens, and the model reads 2 to " + std::to_string(config.context),
                       "cut the sequences to that length");
  }
  Batch batch(ids.elements() / length, length);
  auto* read = batch.ids.as<std::int64_t>();
  auto* targets = batch.targets.as<std::int64_t>();
  for (std::int64_t i = 0; i < ids.elements(); ++i) {
    read[i] = load_integer(ids.dtype, ids.data, i);
    if (read[i] < 0 || read[i] >= config.vocabulary) {
      throw ProgramError(path + " has the id " + std::to_string(read[i]) + ", and the model " +
                             std::to_string(config.vocabulary) + " tokens",
                         "give ids from 0 to " + std::to_string(config.vocabulary - 1));
    }
    if (i > 0) targets[i - 1] = read[i];
  }
  for (std::int64_t row = 1; row <= batch.sequences; ++row)
    targets[row * length - 1] = kIgnoreIndex;
  return batch;
}

void run(const Arguments& a) {
  const ModelConfig config = load_config(a.model);
  const Batch batch = read_batch(a.tokens, config);
  cpu::Options cpu;
  cpu.threads = a.threads;
  const std::unique_ptr<Backend> backend = cpu::backend(cpu);
  Model model(config, *backend, batch.sequences, batch.length, *dtype_from(a.dtype));
  load_parameters(a.model, model.parameters());

  const Scalar loss(DType::f32, a.grad ? model.learn(batch) : model.loss(batch));
  if (!a.output.empty()) {
    const OwnedTensor z = logits(config, model.parameters(), *backend, batch);
    std::map<std::string, Tensor> results{{"logits", z.tensor()}, {"loss", loss.tensor()}};
    if (a.grad) {
      for (const auto& [name, gradient] : model.gradients().tensors()) {
        results["grad." + name] = gradient;
      }
    }
    write_safetensors(a.output, results);
  }
  const std::int64_t targets = batch.sequences * (batch.length - 1);
  if (a.json) {
    const nlohmann::json report = {{"loss", loss.value()}, {"targets", targets}};
    std::printf("%s\n", report.dump(2).c_str());
    return;
  }
  std::printf("loss %.6f nats a token, over %lld tokens\n", loss.value(),
              static_cast<long long>(targets));
  if (!a.output.empty()) std::printf("wrote %s\n", a.output.c_str());
}

}  // namespace

void add_evaluate(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  Arguments& a = *arguments;
  CLI::App* command = app.add_subcommand(
      "evaluate", "The loss of a Llama model on token ids; its logits and gradients as a file");
  command
      ->add_option("--model", a.model,
                   "A folder with config.json and model.safetensors, by `coda train` or by "
                   "transformers")
      ->capture_default_str();
  command->add_option("--tokens", a.tokens, "Token ids as .npy: i64[B, S] or i64[S]")->required();
  command->add_option("--output", a.output,
                      "A .safetensors file for logits f32[B, S, V] and the loss");
  command->add_flag("--grad", a.grad, "With it grad.NAME, the loss's gradient by each weight")
      ->needs("--output");
  command->add_option("--dtype", a.dtype, "What products read: f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command->add_option("--threads", a.threads, "Threads (default: CODA_THREADS, or all cores)")
      ->check(number_between(1, 1024));
  command->add_flag("--json", a.json, "The loss as JSON");
  command->footer(
      "The loss is the mean, over all tokens but the first of each sequence, of -ln p(token), as\n"
      "transformers' model(ids, labels=ids).loss.\n"
      "Example: coda evaluate --model coda-model --tokens ids.npy --output out.safetensors --grad");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace coda
