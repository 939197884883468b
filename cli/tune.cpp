// cli/tune.cpp: measures the candidates of each kernel, and keeps what was found.
#include "coda/cuda/tune.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/inputs.h"
#include "cli/pieces.h"
#include "cli/progress.h"
#include "coda/check/bind.h"
#include "coda/check/check.h"
#include "coda/core/error.h"
#include "coda/cuda/driver.h"
#include "coda/cuda/tuning.h"
#include "coda/reference/verify.h"

namespace coda {
namespace {

struct Options {
  std::string file, name, output;
  std::vector<std::string> sizes;
  std::uint64_t seed = 1;
  int rounds = 9;
  bool again = false, dry = false;
};

volatile std::sig_atomic_t interrupted = 0;

// The first Ctrl-C ends the measurement, the second one the command.
void catch_interrupt() {
  std::signal(SIGINT, [](int) {
    interrupted = 1;
    std::signal(SIGINT, SIG_DFL);
  });
}

// One kernel, and what there is to choose.
struct Job {
  Piece piece;
  cuda::TuningEntry subject;
  std::vector<std::string> tiles;    // the planner's choice first
  std::vector<std::string> reasons;  // for those refused
};

Job job_of(const Piece& piece) {
  Job job{.piece = piece,
          .subject = cuda::Tuning::process()->subject(piece.program, piece.sizes, piece.layouts)};
  job.tiles = cuda::tile_candidates(check(piece.program), piece.sizes, piece.layouts,
                                    machine_target(), job.reasons);
  return job;
}

// Each computation once.
std::vector<Job> jobs_of(const Pieces& pieces) {
  std::vector<Job> jobs;
  for (const Piece& piece : pieces.pieces) {
    Job job = job_of(piece);
    const bool known = std::ranges::any_of(
        jobs, [&](const Job& each) { return same_subject(each.subject, job.subject); });
    if (!known) jobs.push_back(std::move(job));
  }
  return jobs;
}

void list(const std::vector<Job>& jobs, const cuda::TuningTable& table) {
  for (const Job& job : jobs) {
    std::cout << job.subject.name << ":";
    if (job.tiles.empty()) std::cout << " nothing to choose";
    for (const std::string& tile : job.tiles) std::cout << " " << tile;
    std::cout << "\n";
    if (const cuda::TuningEntry* known = table.find(job.subject)) {
      std::cout << "  measured: " << tuning_text(*known) << "\n";
    }
    for (const std::string& reason : job.reasons) std::cout << "  " << reason << "\n";
  }
}

std::int64_t elements_of_params(const Program& program, const Sizes& sizes) {
  std::int64_t elements = 0;
  for (const Param& param : program.params()) elements += elements_of(param.type, sizes);
  return elements;
}

// Random inputs. Drawing many takes longer than measuring: then fewer are drawn, for smaller sizes,
// and said again. The period is odd, so that no two rows or tiles are the same.
std::vector<OwnedTensor> inputs_of(const Piece& piece, std::uint64_t seed) {
  constexpr std::int64_t kMostDrawn = std::int64_t{1} << 26;
  Sizes smaller = piece.sizes;
  while (elements_of_params(piece.program, smaller) > kMostDrawn) {
    const auto size = [](const auto& each) {
      return each.second;
    };
    std::ranges::max_element(smaller, {}, size)->second /= 2;
  }
  std::vector<OwnedTensor> drawn;
  try {
    drawn = random_inputs(piece.program, smaller, seed);
  } catch (const ProgramError&) {
    return random_inputs(piece.program, piece.sizes, seed);  // the smaller ones do not fit together
  }
  if (smaller == piece.sizes) return drawn;
  std::vector<OwnedTensor> inputs;
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const Type& type = piece.program.params()[i].type;
    inputs.emplace_back(type.dtype, shape_of(type, piece.sizes));
    const std::size_t size = size_of(type.dtype), period = (drawn[i].bytes() / size - 1) | 1;
    for (std::size_t at = 0; at < inputs.back().bytes();) {
      const std::size_t bytes =
          std::min(std::max(period, std::size_t{1}) * size, inputs.back().bytes() - at);
      std::memcpy(inputs.back().as<std::byte>() + at, drawn[i].as<std::byte>(), bytes);
      at += bytes;
    }
  }
  return inputs;
}

// The elements of a dense tensor at the strides of `like`, in one line.
OwnedTensor spread(const OwnedTensor& from, const Tensor& like) {
  OwnedTensor line(like.dtype, {cuda::spanned_elements(like)});
  Tensor to = like;
  to.data = line.tensor().data;
  const Tensor rows = dense(from.tensor().data, like.dtype, like.shape);
  if (rows.strides == to.strides) {
    std::memcpy(to.data, rows.data, from.bytes());
  } else {
    copy_into(rows, to);
  }
  return line;
}

// Stopped: nullopt.
std::optional<cuda::TuningEntry> measured(const Job& job, const Options& options,
                                          const std::string& place, Progress& line) {
  line.show(place + ": inputs");
  const Program& program = job.piece.program;
  const std::vector<OwnedTensor> inputs = inputs_of(job.piece, options.seed);
  std::vector<OwnedTensor> owned;
  std::vector<Tensor> params = job.piece.params, results = job.piece.results;
  for (std::size_t i = 0; i < params.size(); ++i) {
    owned.push_back(spread(inputs[i], params[i]));
    params[i].data = owned.back().tensor().data;
  }
  for (Tensor& result : results) {
    owned.emplace_back(result.dtype, std::vector{cuda::spanned_elements(result)});
    result.data = owned.back().tensor().data;
  }
  cuda::TuneOptions tuning{.rounds = options.rounds};
  tuning.progress = [&](int done, int all) {
    line.show(place + ": turn " + std::to_string(done) + " of " + std::to_string(all));
  };
  tuning.stopped = [] {
    return interrupted != 0;
  };
  line.show(place + ": compiling and verifying " + std::to_string(job.tiles.size()) +
            " candidates");
  const auto found =
      cuda::tune(program, job.tiles, params, results,
                 cuda::device_tools(check(program), job.piece.sizes, params, results), tuning);
  if (!found) return std::nullopt;
  cuda::TuningEntry entry = job.subject;
  entry.tile = found->tile;
  entry.seconds = found->seconds;
  entry.model = found->candidates[0].tile;
  entry.model_seconds = found->candidates[0].seconds;
  line.finish(place + ": " + tuning_text(entry));
  for (const auto& candidate : found->candidates) {
    const std::string how = candidate.refused.empty() ? cuda::milliseconds_text(candidate.seconds)
                                                      : "refused: " + candidate.refused;
    std::cout << "  " << candidate.tile << ": " << how << "\n";
  }
  return entry;
}

void run_tune(const Options& options) {
  const std::vector<Job> jobs = jobs_of(load_pieces(options.file, options.name, options.sizes));
  const std::string path = options.output.empty() ? cuda::tuning_path() : options.output;
  // NOTE: before anything is measured, so that a damaged table costs no time.
  const cuda::TuningTable table =
      path.empty() ? cuda::TuningTable() : cuda::TuningTable::read(path);
  if (options.dry) return list(jobs, table);
  if (path.empty()) {
    throw ProgramError("there is no folder for what is measured: CODA_CACHE is off",
                       "give --output FILE, or unset CODA_CACHE");
  }
  cuda::Driver::get();
  catch_interrupt();
  Progress line(stderr);
  for (std::size_t i = 0; i < jobs.size() && interrupted == 0; ++i) {
    const Job& job = jobs[i];
    const std::string place =
        std::to_string(i + 1) + " of " + std::to_string(jobs.size()) + ", " + job.subject.name;
    if (job.tiles.size() < 2) {
      line.finish(place + ": nothing to choose");
      continue;
    }
    if (const auto* known = table.find(job.subject); known != nullptr && !options.again) {
      line.finish(place + ": known: " + tuning_text(*known));
      continue;
    }
    const auto entry = measured(job, options, place, line);
    if (entry) cuda::add_to_table(path, std::span(&*entry, 1));
  }
  if (interrupted != 0) {
    line.finish("stopped; what was measured before is kept in " + path);
    throw CLI::RuntimeError(kInterrupted);
  }
  std::cout << path << "\n";
}

}  // namespace

void add_tune(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "tune",
      "Measure the candidate kernels of a program, schedule or block, and keep the fastest");
  command->add_option("file", options->file, "Program file")->required();
  command->add_option("--program,--block", options->name,
                      "The program, block or schedule of the file; the last if not given");
  command->add_option("--size", options->sizes,
                      "Sizes of names; 128 where neither given nor implied");
  command->add_option("--rounds", options->rounds, "Turns of each candidate")
      ->check(CLI::Range(1, 1000));
  command->add_option("--seed", options->seed, "Seed of the inputs");
  command->add_flag("--again", options->again, "Measure what is known too");
  command->add_flag("--dry-run", options->dry, "List the candidates; needs no GPU");
  command->add_option("-o,--output", options->output,
                      "The table to add to; tuning.json in the cache if not given");
  command->footer(
      "Ctrl-C stops after the turn; what is done is kept, and is not measured again.\n"
      "Example: coda tune gated.coda --program norm_swiglu --size M=16384 K=4096 F=11008");
  command->callback([options] { run_tune(*options); });
}

}  // namespace coda
