// cli/train.cpp: `coda train`: a small Llama-style model learns a text, byte by byte.
#include <csignal>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/commands.h"
#include "cli/printable.h"
#include "cli/progress.h"
#include "cli/recorder.h"
#include "cli/report.h"
#include "cli/stop_signals.h"
#include "cli/train_checkpoint.h"
#include "coda/core/error.h"
#include "coda/core/flags.h"
#include "coda/cpu/cpu.h"
#include "coda/rewrite/explain.h"
#include "coda/rewrite/ledger.h"

namespace coda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMinutes = 2.2;       // of training, where nothing else is said
constexpr double kQuickMinutes = 0.4;  // with --quick
constexpr std::int64_t kSteps = 3000;  // a fast machine stops here
constexpr std::int64_t kQuickSteps = 600;
constexpr std::int64_t kSampleBytes = 400;

struct Arguments {
  std::string data, output = "coda-model", save_every = "10min", dtype = "f32";
  bool resume = false, overwrite = false;
  bool quick = false, json = false, profile = false, tied = false, no_report = false;
  std::string command;  // as the report shows it
  std::optional<std::int64_t> steps, stop_at;
  std::optional<double> minutes;
  std::int64_t layers = 4, width = 128, heads = 4, key_heads = 2, length = 256, sequences = 8;
  double rate = 3e-3;
  std::uint64_t seed = 1;
  int threads = 0;
};

ModelConfig config_of(const Arguments& a) {
  ModelConfig config;
  config.layers = a.layers;
  config.width = a.width;
  config.heads = a.heads;
  config.key_heads = a.key_heads;
  config.context = a.length;
  if (a.width % (2 * a.heads) != 0) {
    throw ProgramError("--width " + std::to_string(a.width) + " cannot be cut into --heads " +
                           std::to_string(a.heads) + " of an even size",
                       "make the width a multiple of twice the heads");
  }
  config.head_width = a.width / a.heads;
  config.hidden = (a.width * 8 / 3 + 31) / 32 * 32;
  if (a.tied) config.embeddings = Embeddings::tied;
  require_valid(config);
  return config;
}

nlohmann::json cost_json(const Ledger& ledger) {
  return {{"kernels", ledger.steps.size()},
          {"bytes_read", ledger.total.bytes_read},
          {"bytes_written", ledger.total.bytes_written},
          {"flops", ledger.total.flops}};
}

// What `coda train` says while it works: to stdout, or beside the JSON to stderr.
class Session {
 public:
  // With --resume: the run's folder, and its checkpoint.
  Session(const Arguments& arguments, std::unique_ptr<RunFolder> folder,
          std::optional<Checkpoint> checkpoint)
      : a_(arguments),
        folder_(std::move(folder)),
        checkpoint_(std::move(checkpoint)),
        out_(arguments.json ? stderr : stdout) {}

  int run();

 private:
  void begin(const Corpus& corpus);
  void describe(const Corpus& corpus);
  nlohmann::json facts(const Corpus& corpus) const;
  void show_ledger();
  void choose_steps();
  void train();
  void show_profile(const Timings& timings);
  std::string sample();
  void write_report();

  const Arguments& a_;
  std::unique_ptr<RunFolder> folder_;
  std::optional<Checkpoint> checkpoint_;
  std::FILE* out_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Trainer> trainer_;
  std::optional<Report> whole_;  // of the model
  Timings timings_;
  std::unique_ptr<Recorder> recorder_;  // null: --no-report
  nlohmann::json report_;
  int signal_ = 0;  // that stopped training
};

void Session::describe(const Corpus& corpus) {
  const ModelConfig& config = trainer_->model().config();
  std::fprintf(out_,
               "Training a Llama-style model of %s parameters on %s, byte by byte.\n"
               "  text     %s bytes, the last %s of them held out\n"
               "  model    %lld layers, width %lld, %lld query heads and %lld key heads of %lld, "
               "MLP %lld\n"
               "  batch    %lld sequences of %lld bytes, %d threads\n"
               "Every operator but attention is CODA text (programs/llama.coda, head.coda, "
               "adamw.coda, …):\ndifferentiated, cut into kernels and run by the CPU backend.\n\n",
               count_text(config.parameters()).c_str(), corpus.path().c_str(),
               count_text(corpus.bytes()).c_str(), count_text(corpus.held_out_bytes()).c_str(),
               static_cast<long long>(config.layers), static_cast<long long>(config.width),
               static_cast<long long>(config.heads), static_cast<long long>(config.key_heads),
               static_cast<long long>(config.head_width), static_cast<long long>(config.hidden),
               static_cast<long long>(a_.sequences), static_cast<long long>(a_.length),
               a_.threads > 0 ? a_.threads : flags::threads());
  std::fflush(out_);
  report_["data"] = {{"file", corpus.path()},
                     {"bytes", corpus.bytes()},
                     {"held_out_bytes", corpus.held_out_bytes()}};
  report_["model"] = nlohmann::json::parse(to_json(config));
  report_["parameters"] = config.parameters();
}

// For the report; with file names only.
nlohmann::json Session::facts(const Corpus& corpus) const {
  nlohmann::json facts;
  facts["command"] = a_.command;
  facts["data"] = report_["data"];
  facts["data"]["file"] = std::filesystem::path(corpus.path()).filename().string();
  facts["model"] = report_["model"];
  facts["parameters"] = report_["parameters"];
  facts["batch"] = {{"sequences", a_.sequences}, {"length", a_.length}};
  facts["rate"] = a_.rate;
  facts["seed"] = a_.seed;
  facts["threads"] = a_.threads > 0 ? a_.threads : flags::threads();
  return facts;
}

void Session::show_ledger() {
  const Model& model = trainer_->model();
  whole_ = report(model.block(), model.wanted(), model.sizes());
  const auto both = [&](Ledger Half::* which) {
    Ledger sum;
    for (const Half& half : whole_->halves) {
      const Ledger& ledger = half.*which;
      sum.steps.insert(sum.steps.end(), ledger.steps.begin(), ledger.steps.end());
      sum.total += ledger.total;
    }
    return sum;
  };
  const Ledger fused = both(&Half::fused), naive = both(&Half::unfused);
  std::fprintf(out_,
               "The whole model, forward and backward, for one batch:\n"
               "             kernels        read     written       total\n");
  const auto line = [&](const char* name, const Ledger& l) {
    const auto read = static_cast<double>(l.total.bytes_read);
    const auto written = static_cast<double>(l.total.bytes_written);
    std::fprintf(out_, "  %-9s %8zu %11s %11s %11s\n", name, l.steps.size(),
                 bytes_text(read).c_str(), bytes_text(written).c_str(),
                 bytes_text(read + written).c_str());
    return read + written;
  };
  const double before = line("unfused", naive);
  const double after = line("fused", fused);
  std::fprintf(out_, "  fused kernels move %.0f %% of the bytes\n\n", 100 * after / before);
  std::fflush(out_);
  report_["ledger"] = {{"unfused", cost_json(naive)}, {"fused", cost_json(fused)}};
}

void Session::choose_steps() {
  if (a_.steps || checkpoint_) return;
  const double minutes = a_.minutes.value_or(a_.quick ? kQuickMinutes : kMinutes);
  const double step = trainer_->calibrate();
  auto steps = static_cast<std::int64_t>(minutes * 60 / step);
  if (!a_.minutes) steps = std::min(steps, a_.quick ? kQuickSteps : kSteps);
  trainer_->set_steps(std::max<std::int64_t>(steps, 1));
}

void Session::train() {
  const StopSignals signals;
  Progress progress(out_);
  const auto start = Clock::now();
  const std::int64_t first = trainer_->done();
  const std::int64_t last = std::min(trainer_->steps(), a_.stop_at.value_or(trainer_->steps()));
  double smooth = 0;
  std::string line;
  while (trainer_->done() < last && StopSignals::received() == 0) {
    const Trainer::Report step = trainer_->step();
    const auto done = static_cast<double>(trainer_->done() - first);  // by this session
    smooth = smoothed(smooth, step.loss, trainer_->done() - first);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count() -
                           (recorder_ ? recorder_->paused() : 0);
    const double rate = done * static_cast<double>(trainer_->tokens_per_step()) / seconds;
    const double left = seconds / done * static_cast<double>(last - trainer_->done());
    char text[128];
    std::snprintf(text, sizeof text, "step %lld/%lld  loss %.3f  %s tokens/s  %s left",
                  static_cast<long long>(trainer_->done()),
                  static_cast<long long>(trainer_->steps()), smooth,
                  count_text(std::llround(rate)).c_str(), duration_text(left).c_str());
    line = text;
    progress.show(line);
    report_["tokens_per_second"] = rate;
    report_["seconds"] = seconds;
    if (recorder_) recorder_->step(step, seconds);
    folder_->save_if_due(*trainer_);
  }
  folder_->save(*trainer_);
  if (!line.empty()) progress.finish(line);
  if (StopSignals::received() != 0) {
    std::fprintf(out_, "Stopped by %s after this step.\n",
                 StopSignals::received() == SIGINT ? "Ctrl-C" : "SIGTERM");
  }
  report_["steps"] = trainer_->done();
  if (trainer_->done() > first) report_["loss"] = smooth;
  report_["interrupted"] = StopSignals::received() != 0;
  signal_ = StopSignals::received();
}

void Session::show_profile(const Timings& timings) {
  std::vector<std::pair<double, std::string>> order;
  double total = 0;
  for (const auto& [name, seconds] : timings) {
    order.emplace_back(seconds, name);
    total += seconds;
  }
  std::ranges::sort(order, std::greater());
  std::fprintf(out_, "\nWhere the time of a step goes, by kernel:\n");
  for (const auto& [seconds, name] : order) {
    if (seconds < 0.004 * total) break;
    std::fprintf(out_, "  %5.1f %%  %s\n", 100 * seconds / total, name.c_str());
    report_["profile"][name] = seconds / total;
  }
}

std::string Session::sample() {
  PrintableText printable;
  const std::string text = sample_text(*trainer_, *backend_, a_.seed, kSampleBytes, [&](char byte) {
    std::fputs(printable.add(byte).c_str(), out_);
    std::fflush(out_);
  });
  std::fprintf(out_, "%s\n", printable.finish().c_str());
  return text;
}

void Session::write_report() {
  if (!recorder_->problem().empty()) {
    std::fprintf(out_, "\nNo report: %s\n", recorder_->problem().c_str());
    return;
  }
  const std::string path = coda::write_report(a_.output);
  const double training = report_.value("seconds", 0.0);
  std::fprintf(out_,
               "\nThe run as a page: %s (measuring for it took %.1f s, %.1f %% of training)\n",
               path.c_str(), recorder_->measuring(),
               training > 0 ? 100 * recorder_->measuring() / training : 0);
  report_["report"] = path;
  report_["measuring_seconds"] = recorder_->measuring();
}

// The trainer, at the run's beginning or where its checkpoint is.
void Session::begin(const Corpus& corpus) {
  TrainerOptions options;
  options.sequences = a_.sequences;
  options.steps = a_.steps.value_or(1);
  options.seed = a_.seed;
  options.optimizer.rate = a_.rate;
  options.dtype = *dtype_from(a_.dtype);
  if (!folder_) {
    const Begin begin = a_.overwrite ? Begin::overwrite : Begin::anew;
    folder_ = std::make_unique<RunFolder>(a_.output, begin, a_.save_every);
  }
  cpu::Options cpu;
  cpu.threads = a_.threads;
  backend_ = cpu::backend(cpu);
  const ModelConfig config = checkpoint_ ? checkpoint_->config : config_of(a_);
  trainer_ = std::make_unique<Trainer>(config, checkpoint_ ? checkpoint_->options : options, corpus,
                                       *backend_);
  if (!checkpoint_) return;
  restore(*checkpoint_, *trainer_);
  folder_->set_saved(trainer_->done());
  report_["resumed_from"] = trainer_->done();
}

int Session::run() {
  const ModelConfig config = config_of(a_);
  const Corpus corpus(a_.data, a_.length);
  begin(corpus);
  describe(corpus);
  show_ledger();
  choose_steps();

  if (!a_.no_report) {
    recorder_ = std::make_unique<Recorder>(a_.output, *trainer_, *backend_, timings_, a_.seed);
  }
  const double before =
      recorder_ ? recorder_->begin(facts(corpus), *whole_) : trainer_->held_out_loss();
  std::fprintf(out_, "Held-out loss before: %.3f nats a byte (guessing evenly: %.3f)\n", before,
               std::log(static_cast<double>(config.vocabulary)));
  if (a_.profile || recorder_) trainer_->time_into(&timings_);
  train();
  trainer_->time_into(nullptr);
  const double after = trainer_->held_out_loss();
  std::fprintf(out_, "Held-out loss after:  %.3f nats a byte (%.2f bits)\n", after,
               after / std::log(2.0));
  report_["held_out_loss"] = {{"before", before}, {"after", after}};
  if (trainer_->done() < trainer_->steps()) {
    std::fprintf(out_, "To go on: coda train --data %s --output %s --resume\n", a_.data.c_str(),
                 a_.output.c_str());
  }
  std::fprintf(out_, "Saved to %s; more text: coda generate --model %s\n\nA sample:\n\n",
               a_.output.c_str(), a_.output.c_str());
  report_["output"] = a_.output;
  const std::string text = sample();
  report_["sample"] = text;
  if (recorder_) recorder_->end(after, text, report_["interrupted"].get<bool>());
  if (a_.profile) show_profile(timings_);
  if (recorder_) write_report();
  if (a_.json) {
    constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
    std::printf("%s\n", report_.dump(2, ' ', false, kReplace).c_str());
  }
  return signal_ == 0 ? kOk : kStoppedBySignal + signal_;
}

// Gives the arguments what the run in --output has, and its checkpoint.
Checkpoint take_over_run(const CLI::App& command, Arguments& a) {
  Checkpoint checkpoint = load_checkpoint(a.output);
  const ModelConfig& config = checkpoint.config;
  const TrainerOptions& options = checkpoint.options;
  take_over(command, "--layers", a.layers, config.layers);
  take_over(command, "--width", a.width, config.width);
  take_over(command, "--heads", a.heads, config.heads);
  take_over(command, "--kv-heads", a.key_heads, config.key_heads);
  take_over(command, "--seq", a.length, config.context);
  take_over(command, "--tied", a.tied, config.embeddings == Embeddings::tied);
  take_over(command, "--batch", a.sequences, options.sequences);
  take_over(command, "--lr", a.rate, options.optimizer.rate);
  take_over(command, "--seed", a.seed, options.seed);
  take_over(command, "--dtype", a.dtype, std::string(name_of(options.dtype)));
  std::int64_t steps = a.steps.value_or(options.steps);
  take_over(command, "--steps", steps, options.steps);
  return checkpoint;
}

}  // namespace

void add_train(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  Arguments& a = *arguments;
  CLI::App* command =
      app.add_subcommand("train", "Train a small Llama-style model on a text, byte by byte");
  command->add_option("--data", a.data, "The text to learn")->required();
  command->add_option("--output", a.output, "The folder for the trained model")
      ->capture_default_str();
  CLI::Option* overwrite =
      command->add_flag("--overwrite", a.overwrite, "Replace the model that the folder holds");
  CLI::Option* resume = command->add_flag(
      "--resume", a.resume, "Go on from the folder's last checkpoint, with the run's own options");
  command
      ->add_option("--save-every", a.save_every,
                   "A checkpoint after so many steps (500) or so much time (10min, 30s)")
      ->check(save_interval())
      ->capture_default_str();
  command
      ->add_option("--stop-at", a.stop_at,
                   "Save and stop at this step of the schedule; --resume goes on")
      ->check(CLI::PositiveNumber);
  CLI::Option* quick = command->add_flag("--quick", a.quick, "The same job in half a minute");
  command->add_option("--steps", a.steps, "Steps (default: what fits the time)")
      ->check(CLI::PositiveNumber);
  CLI::Option* minutes =
      command->add_option("--minutes", a.minutes, "Time to train, fixed by a short calibration")
          ->check(number_between(0.01, 1e5))
          ->excludes("--steps");
  for (CLI::Option* other : {overwrite, quick, minutes}) resume->excludes(other);
  command->add_option("--layers", a.layers, "Layers")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--width", a.width, "Width of the residual stream")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--heads", a.heads, "Query heads")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--kv-heads", a.key_heads, "Key and value heads")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--tied", a.tied, "The head reads the token table");
  command->add_option("--seq", a.length, "Bytes of a sequence")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--batch", a.sequences, "Sequences of a batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--lr", a.rate, "The highest learning rate")
      ->check(number_between(1e-9, 10))
      ->capture_default_str();
  command
      ->add_option("--dtype", a.dtype,
                   "What products read: f32, or bf16 copies of the f32 weights that AdamW keeps")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command->add_option("--seed", a.seed, "Of the weights, the batches and the sample")
      ->capture_default_str();
  command->add_option("--threads", a.threads, "Threads (default: CODA_THREADS, or all cores)")
      ->check(number_between(1, 1024));
  command->add_flag("--profile", a.profile, "Also say where the time goes, by kernel");
  command->add_flag("--no-report", a.no_report, "Write no log and no report.html");
  command->add_flag("--json", a.json, "Report as JSON; what people read goes to stderr");
  command->footer("Example: coda train --data my.txt --quick --output my-model");
  command->callback([arguments, command] {
    arguments->command = command_text(*command);
    Arguments& a = *arguments;
    std::unique_ptr<RunFolder> folder;
    std::optional<Checkpoint> checkpoint;
    if (a.resume) {
      folder = std::make_unique<RunFolder>(a.output, Begin::resume, a.save_every);
      checkpoint = take_over_run(*command, a);
    }
    const int code = Session(a, std::move(folder), std::move(checkpoint)).run();
    if (code != kOk) throw CLI::RuntimeError(code);
  });
}

}  // namespace coda
