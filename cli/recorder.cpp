// cli/recorder.cpp: measures, and writes the log's records.
#include "cli/recorder.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>

#include "cli/machine.h"
#include "coda/model/generate.h"
#include "coda/program/text.h"
#include "coda/rewrite/excerpt.h"

namespace coda {
namespace {

using nlohmann::json;

constexpr std::int64_t kSampleBytes = 160;  // at most, on the way
constexpr std::int64_t kFirstSteps = 3;     // they say how long a step takes

json cost_json(const Cost& cost, std::size_t kernels) {
  return {{"kernels", kernels},
          {"read", cost.bytes_read},
          {"written", cost.bytes_written},
          {"flops", cost.flops}};
}

// What runs in a step: each kernel's cost, and one layer of it, if possible one between others.
json kernels_record(const Report& whole, int layers) {
  json kernels = json::array();
  std::size_t calls = 0;
  for (const Half& half : whole.halves) {
    const Schedule& schedule = half.partition.schedule;
    for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
      json kernel = cost_json(half.fused.steps[i], 1);
      kernel["phase"] = half.phase;
      kernel["schedule"] = schedule.name;
      kernel["name"] = half.fused.steps[i].step;
      kernel["kind"] = half.fused.steps[i].kind;
      kernel["work"] = work_of(schedule.steps[i]);
      kernel["layer"] = half.layers[i] ? json(*half.layers[i]) : json();
      kernels.push_back(std::move(kernel));
    }
    calls += half.plain.steps.size();
  }
  const int layer = layers / 2;
  json phases = json::array();
  for (const Half& half : excerpt(whole, layer).halves) {
    phases.push_back({{"name", half.phase},
                      {"fused", print(half.partition.schedule)},
                      {"unfused", print(half.plain)}});
  }
  return {{"event", "kernels"},
          {"fused", cost_json(whole.total, kernels.size())},
          {"unfused", cost_json(whole.unfused, calls)},
          {"layer", {{"index", layer}, {"phases", phases}, {"sizes", whole.sizes}}},
          {"kernels", std::move(kernels)}};
}

std::string now() {
  const std::time_t time = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&time, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace

std::string sample_text(Trainer& trainer, const Backend& backend, std::uint64_t seed,
                        std::int64_t bytes, const std::function<void(char)>& show) {
  std::string text;
  Reader reader(trainer.config(), trainer.weights(), backend);
  SamplingOptions options;
  options.seed = seed;
  generate(reader, "\n", bytes, options, [&](char byte) {
    text.push_back(byte);
    if (show) show(byte);
    return true;
  });
  return text;
}

std::string command_text(const CLI::App& command) {
  std::string text = "coda " + command.get_name();
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0) continue;
    text += " " + option->get_name();
    if (option->get_expected_max() == 0) continue;  // a flag
    for (const std::string& value : option->results()) {
      const std::filesystem::path path(value);
      text += " " + (path.is_absolute() ? "…/" + path.filename().string() : value);
    }
  }
  return text;
}

Recorder::Recorder(const std::string& folder, Trainer& trainer, const Backend& backend,
                   Timings& timings, std::uint64_t seed)
    : trainer_(trainer),
      backend_(backend),
      timings_(timings),
      seed_(seed),
      log_(folder, trainer.done() > 0),
      first_(trainer.done()) {}

double Recorder::timed(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  trainer_.time_into(nullptr);
  work();
  trainer_.time_into(&timings_);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Recorder::write_held_out(double loss) {
  log_.write({{"event", "held_out"}, {"step", trainer_.done()}, {"loss", loss}});
}

void Recorder::write_sample(const std::string& text) {
  log_.write({{"event", "sample"}, {"step", trainer_.done()}, {"text", text_of_bytes(text)}});
}

// Within the context, where a byte costs least.
void Recorder::write_short_sample() {
  const std::int64_t bytes = std::min(kSampleBytes, trainer_.model().config().context);
  write_sample(sample_text(trainer_, backend_, seed_, bytes));
}

void Recorder::write_time() {
  log_.write({{"event", "time"},
              {"step", trainer_.done()},
              {"training", seconds_},
              {"measuring", measuring()},
              {"kernels", timings_}});
}

double Recorder::begin(json facts, const Report& whole) {
  facts["event"] = "start";
  facts["step"] = trainer_.done();
  facts["steps"] = trainer_.steps();
  facts["time"] = now();
  facts["machine"] = machine_facts();
  facts["versions"] = version_facts();
  log_.write(facts);
  log_.write(kernels_record(whole, static_cast<int>(trainer_.model().config().layers)));
  double loss = 0;
  costs_.held_out = timed([&] { loss = trainer_.held_out_loss(); });
  write_held_out(loss);
  costs_.sample = timed([&] { write_short_sample(); });
  return loss;
}

void Recorder::step(const Trainer::Report& step, double seconds) {
  log_.write({{"event", "step"},
              {"step", trainer_.done()},
              {"loss", step.loss},
              {"rate", step.rate},
              {"norm", step.gradient_norm},
              {"seconds", seconds}});
  const double took = seconds - seconds_;
  seconds_ = seconds;
  const std::int64_t done = trainer_.done();
  if (done - first_ <= kFirstSteps) {
    costs_.step = costs_.step == 0 ? took : std::min(costs_.step, took);
    return;
  }
  if (!plan_) plan_ = measuring_plan(done - 1, trainer_.steps(), costs_);
  if (plan_->samples.contains(done)) {
    paused_ += timed([&] { write_short_sample(); });
  }
  if (plan_->held_out.contains(done)) {
    paused_ += timed([&] { write_held_out(trainer_.held_out_loss()); });
    write_time();
  }
}

void Recorder::end(double held_out, const std::string& sample, bool interrupted) {
  write_held_out(held_out);
  write_sample(sample);
  write_time();
  log_.write({{"event", "end"}, {"step", trainer_.done()}, {"interrupted", interrupted}});
}

}  // namespace coda
