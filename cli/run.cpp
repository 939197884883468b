// cli/run.cpp: run a program on files, numbers or random inputs; store, summarise or dump its
// results.
//
// Everything is read, bound and computed before the first output file is opened, so an error leaves
// all files as they were.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <set>

#include "cli/commands.h"
#include "cli/devices.h"
#include "cli/inputs.h"
#include "cli/sources.h"
#include "coda/check/bind.h"
#include "coda/core/npy.h"
#include "coda/core/safetensors.h"

namespace coda {
namespace {

struct Options {
  std::string file, name, device = "cpu", dtype, dump;
  std::vector<std::string> tiles;
  std::vector<std::string> inputs, outputs, sizes;
  std::uint64_t seed = 1;
  bool json = false;
};

struct Summary {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  double sum = 0;
  std::int64_t count = 0, not_finite = 0;
};

Summary summarise(const Tensor& tensor) {
  Summary summary;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    const double x = load(tensor.dtype, tensor.data, i);
    if (!std::isfinite(x)) {
      ++summary.not_finite;
      continue;
    }
    summary.low = std::min(summary.low, x);
    summary.high = std::max(summary.high, x);
    summary.sum += x;
    ++summary.count;
  }
  return summary;
}

// `name` or the names of `known` nearest to it.
int require_name(const std::string& name, const std::vector<std::string>& known, const char* what) {
  const auto found = std::ranges::find(known, name);
  if (found != known.end()) return static_cast<int>(found - known.begin());
  std::string all;
  for (const std::string& each : known) all += (all.empty() ? "" : ", ") + each;
  throw ProgramError(std::string("there is no ") + what + " `" + name + "`",
                     suggestion(name, known, "name one of: " + all));
}

// Where each result goes: "h=h.npy", "h=out.safetensors".
std::map<std::string, std::string> destinations(const Options& options, const Program& program) {
  std::vector<std::string> results;
  for (const Result& result : program.results()) results.push_back(result.name);
  std::map<std::string, std::string> paths;
  for (const std::string& text : options.outputs) {
    const auto [name, path] = assignment_from(text);
    require_name(name, results, "result");
    if (!path.ends_with(".npy") && !path.ends_with(".safetensors")) {
      throw ProgramError("the output file `" + path + "` is neither .npy nor .safetensors",
                         "give -o " + name + "=" + name + ".npy");
    }
    if (!paths.emplace(name, path).second) {
      throw ProgramError("the result `" + name + "` has two output files", "give one");
    }
  }
  return paths;
}

struct Tile {
  std::int64_t row = 0, column = 0;
};

// --tile is said of the dump ("0,1") and of the GPU's kernel ("128x192").
bool is_of_dump(const std::string& text) {
  return text.find(',') != std::string::npos;
}

Tile tile_from(const std::string& text) {
  Tile tile;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%ld,%ld%c", &tile.row, &tile.column, &rest) != 2 || tile.row < 0 ||
      tile.column < 0) {
    throw ProgramError("`" + text + "` is not a tile", "give a row and a column: --tile 0,1");
  }
  return tile;
}

// The corner of one 64 × 64 tile of a result, the last dims as columns.
void print_tile(const std::string& name, const Tensor& tensor, Tile tile) {
  constexpr std::int64_t kTile = 64, kShown = 8;
  const std::string shown = std::to_string(tile.row) + "," + std::to_string(tile.column);
  const std::int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
  const std::int64_t rows = columns == 0 ? 0 : tensor.elements() / columns;
  const std::int64_t r0 = tile.row * kTile, c0 = tile.column * kTile;
  if (r0 >= rows || c0 >= columns) {
    throw ProgramError("the tile " + shown + " of `" + name + "` starts at [" + std::to_string(r0) +
                           ", " + std::to_string(c0) + "], outside of " + to_string(tensor),
                       "give a tile inside: rows and columns count in steps of 64");
  }
  const std::int64_t r1 = std::min({rows, r0 + kShown}), c1 = std::min({columns, c0 + kShown});
  std::printf("%s, tile %s, [%ld:%ld, %ld:%ld] of %s\n", name.c_str(), shown.c_str(), r0, r1, c0,
              c1, to_string(tensor).c_str());
  for (std::int64_t r = r0; r < r1; ++r) {
    for (std::int64_t c = c0; c < c1; ++c) {
      std::printf(" %12.5g", load(tensor.dtype, tensor.data, r * columns + c));
    }
    std::printf("\n");
  }
}

void print_summaries(const Program& program, const std::vector<OwnedTensor>& results,
                     const Sizes& sizes, const Options& options) {
  nlohmann::json report = nlohmann::json::object();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Result& result = program.results()[i];
    const Tensor& tensor = results[i].tensor();
    const Summary s = summarise(tensor);
    const double mean = s.count > 0 ? s.sum / static_cast<double>(s.count) : 0;
    if (options.json) {
      nlohmann::json entry = {
          {"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"not_finite", s.not_finite}};
      if (s.count > 0) entry.update({{"min", s.low}, {"max", s.high}, {"mean", mean}});
      report[result.name] = std::move(entry);
    } else if (s.count == 0) {
      std::printf("%-16s %-24s no finite element\n", result.name.c_str(),
                  to_string(tensor).c_str());
    } else {
      std::printf("%-16s %-24s min %.5g  max %.5g  mean %.5g%s\n", result.name.c_str(),
                  to_string(tensor).c_str(), s.low, s.high, mean,
                  s.not_finite > 0 ? "  (and values that are not finite)" : "");
    }
  }
  if (options.json)
    std::cout << nlohmann::json{{"results", report}, {"sizes", sizes}}.dump(2) << "\n";
}

void run(const Options& options) {
  Runnable runnable = load_runnable(options.file, options.name);
  if (runnable.bundle && !(options.dtype + options.dump).empty()) {
    throw ProgramError(options.file + " is a bundle, which runs as it was built",
                       "leave out --dtype and --dump, or run the program's text");
  }
  if (!options.dtype.empty()) runnable = retyped(runnable, dtype_from_flag(options.dtype));
  if (!options.dump.empty()) runnable = exposed(runnable, options.dump);
  const Program& program = runnable.program;
  const auto paths = destinations(options, program);
  Tile tile;
  std::string kernel_tile;
  for (const std::string& text : options.tiles) {
    if (!is_of_dump(text)) {
      kernel_tile = text;
    } else if (options.dump.empty()) {
      throw ProgramError("--tile " + text + " is a tile of what --dump prints, and nothing is",
                         "give --dump NAME too, or leave out --tile");
    } else {
      tile = tile_from(text);
    }
  }

  // A size may stand among the inputs and the other way round: a name is a dimension or a value.
  std::vector<std::string> entries = options.inputs, sizes;
  entries.insert(entries.end(), options.sizes.begin(), options.sizes.end());
  const std::set<std::string> dimensions = dimensions_of(program);
  std::erase_if(entries, [&](const std::string& entry) {
    const bool size = dimensions.contains(entry.substr(0, entry.find('=')));
    if (size) sizes.push_back(entry);
    return size;
  });
  Sizes given = sizes_from(sizes);
  // NOTE: a bundle's own sizes come first: what contradicts them is refused.
  if (runnable.bundle) given.insert(runnable.bundle->sizes.begin(), runnable.bundle->sizes.end());
  const BoundInputs inputs = bind_inputs(program, entries, given, options.seed);
  std::vector<OwnedTensor> results;
  std::vector<Tensor> views;
  for (std::size_t i = 0; i < program.results().size(); ++i) {
    const Type& type = program.results()[i].type;
    results.emplace_back(type.dtype, shape_of(type, inputs.sizes));
    if (inputs.before[i].data != nullptr) copy_into(inputs.before[i], results.back().tensor());
    views.push_back(results.back().tensor());
  }
  const Executor executor = runnable.bundle
                                ? bundle_executor(runnable.bundle)
                                : device_executor(options.device, runnable.schedule, kernel_tile);
  executor(program, inputs.sizes, inputs.views, views);

  std::map<std::string, std::map<std::string, Tensor>> bundles;
  for (const auto& [name, path] : paths) {
    const Tensor& tensor = views[static_cast<std::size_t>(program.find_result(name))];
    if (path.ends_with(".npy")) {
      write_npy(path, tensor);
    } else {
      bundles[path][name] = tensor;
    }
  }
  for (const auto& [path, tensors] : bundles) write_safetensors(path, tensors);
  print_summaries(program, results, inputs.sizes, options);
  if (!options.dump.empty() && !options.json) {
    const auto at = static_cast<std::size_t>(program.find_result(options.dump));
    print_tile(options.dump, views[at], tile);
  }
}

}  // namespace

void add_run(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "run", "Run a program, block or schedule on files, numbers or random inputs");
  command->add_option("file", options->file, "Program file")->required();
  command->add_option(
      "inputs", options->inputs,
      "name=FILE.npy, name=FILE.safetensors[:TENSOR], name=NUMBER or name=random; a bare "
      "`random` serves all that are not named; an accumulating result may be given too");
  command->add_option("-o,--output", options->outputs, "result=FILE.npy or result=FILE.safetensors")
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--program,--block", options->name,
                      "The program, block or schedule of the file; the last if not given");
  command->add_option("--size", options->sizes,
                      "Sizes that the inputs do not determine: --size H=8");
  command
      ->add_option("--device", options->device, "cpu, cuda, reference (rounded) or exact (double)")
      ->check(CLI::IsMember(device_names()));
  command->add_option("--dtype", options->dtype, "Run the bf16 of the text as f32, f64 or f16");
  command->add_option("--seed", options->seed, "Seed of random inputs");
  command->add_option(
      "--dump", options->dump,
      "Print one value inside the program, or what a step of the schedule stores, by name");
  command
      ->add_option(
          "--tile", options->tiles,
          "With --dump: which 64 × 64 tile of it, like 0,1. With --device cuda: the kernel "
          "to take, by its tile (128x192) or `general`")
      ->take_all()
      ->allow_extra_args(false);
  command->add_flag("--json", options->json, "Summaries as JSON");
  command->footer(
      "Example: coda run programs/norm.coda --program residual_norm random --size M=4 N=8 K=8\n"
      "         coda run my.coda x=x.npy w=w.npy -o h=h.npy");
  command->callback([options] { run(*options); });
}

}  // namespace coda
