// coda/cuda/tuning.cpp: keys of measurements, and tables of them as files.
#include "coda/cuda/tuning.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>

#include "coda/check/bind.h"
#include "coda/core/error.h"
#include "coda/core/file.h"
#include "coda/core/flags.h"
#include "coda/core/sha256.h"
#include "coda/cuda/driver.h"
#include "coda/cuda/nvrtc.h"
#include "coda/program/rename.h"
#include "coda/program/text.h"

namespace coda::cuda {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFormat = "coda tuning";
constexpr int kVersion = 1;
constexpr std::int64_t kEnoughAlignment = 16;  // bytes
constexpr const char* kDefaultGpu = "NVIDIA H200";

json entry_json(const TuningEntry& entry) {
  return {{"gpu", entry.gpu},         {"toolkit", entry.toolkit},
          {"program", entry.program}, {"layouts", entry.layouts},
          {"sizes", entry.sizes},     {"name", entry.name},
          {"tile", entry.tile},       {"seconds", entry.seconds},
          {"model", entry.model},     {"model_seconds", entry.model_seconds}};
}

TuningEntry entry_from(const json& from) {
  return {.gpu = from.at("gpu"),
          .toolkit = from.at("toolkit"),
          .program = from.at("program"),
          .layouts = from.at("layouts"),
          .sizes = from.at("sizes"),
          .name = from.value("name", ""),
          .tile = from.at("tile"),
          .seconds = from.at("seconds"),
          .model = from.value("model", ""),
          .model_seconds = from.value("model_seconds", 0.0)};
}

std::string class_of(const Type& type, const Sizes& sizes, const Layout& layout,
                     const Layout& dense) {
  const std::vector<Factor> factors = factors_of(type);
  std::vector<std::size_t> order(factors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t f) { return layout.strides[f]; });
  std::string text;
  if (!std::ranges::is_sorted(order)) {
    for (const std::size_t f : order) text += (text.empty() ? "" : ".") + factors[f].text();
  } else {
    text = "dense";
  }
  std::int64_t inside = 1;  // elements, where there are no gaps
  bool has_gaps = false, has_zero = false;
  for (auto f = order.rbegin(); f != order.rend(); ++f) {
    const std::int64_t extent = require_extent(factors[*f], sizes);
    if (extent == 1) continue;
    has_zero = has_zero || layout.strides[*f] == 0;
    has_gaps = has_gaps || layout.strides[*f] != inside;
    inside *= extent;
  }
  if (has_zero) {
    text += "0";
  } else if (has_gaps && layout.strides != dense.strides) {
    text += "+";
  }
  if (layout.alignment < kEnoughAlignment) text += ":" + std::to_string(layout.alignment);
  return text;
}

// The compiler's major version, by the name of its file where that has it: loading it takes longer
// than a warm start.
std::string toolkit_of_process() {
  const std::string identity = nvrtc_identity();
  constexpr std::string_view kFile = "libnvrtc.so.";
  std::string version = identity;
  if (identity.starts_with("libnvrtc")) {
    version = identity.starts_with(kFile) ? identity.substr(kFile.size()) : "";
    if (version.empty() && !nvrtc_problem()) version = nvrtc().version;
  }
  const auto end = std::ranges::find_if_not(
      version, [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; });
  return {version.begin(), end};
}

}  // namespace

bool same_subject(const TuningEntry& a, const TuningEntry& b) {
  return a.program == b.program && a.sizes == b.sizes && a.layouts == b.layouts && a.gpu == b.gpu &&
         a.toolkit == b.toolkit;
}

std::string milliseconds_text(double seconds) {
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), "%.4g ms", seconds * 1e3);
  return text.data();
}

std::string tuning_text(const TuningEntry& entry) {
  std::string text = entry.tile + ", " + milliseconds_text(entry.seconds);
  if (entry.tile == entry.model) return text + ", as the planner chose";
  return text + "; the planner's " + entry.model + ", " + milliseconds_text(entry.model_seconds);
}

std::string digest_of(const Program& program) {
  return hex(sha256(print(nameless(program))));
}

std::string layout_class(const Program& program, const Sizes& sizes,
                         std::span<const Layout> layouts) {
  const std::vector<Layout> dense = dense_layouts(program, sizes);
  std::string text;
  std::size_t i = 0;
  const auto add = [&](const Type& type) {
    text += (i == 0 ? "" : " ") + class_of(type, sizes, layouts[i], dense[i]);
    ++i;
  };
  for (const Param& param : program.params()) add(param.type);
  for (const coda::Result& result : program.results()) add(result.type);
  return text;
}

// ---- tables ----

TuningTable TuningTable::parse(std::string_view text, const std::string& file) {
  TuningTable table;
  try {
    const json from = json::parse(text);
    if (from.at(kFormat) != kVersion) {
      throw ProgramError("the tuning table " + file + " is of format " + from[kFormat].dump() +
                             ", but " + std::to_string(kVersion) + " is read",
                         "delete it and tune again, or use the coda that wrote it");
    }
    for (const json& entry : from.at("entries")) table.add(entry_from(entry));
  } catch (const json::exception& error) {
    throw ProgramError("the tuning table " + file + " is damaged: " + error.what(),
                       "delete it and tune again");
  }
  return table;
}

TuningTable TuningTable::read(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  return parse(read_file(path), path);
}

std::string TuningTable::text() const {
  json entries = json::array();
  for (const TuningEntry& entry : entries_) entries.push_back(entry_json(entry));
  return json{{kFormat, kVersion}, {"entries", std::move(entries)}}.dump(1) + "\n";
}

void TuningTable::add(TuningEntry entry) {
  const auto known = std::ranges::find_if(
      entries_, [&](const TuningEntry& each) { return same_subject(each, entry); });
  if (known != entries_.end()) {
    *known = std::move(entry);
  } else {
    entries_.push_back(std::move(entry));
  }
}

const TuningEntry* TuningTable::find(const TuningEntry& subject) const {
  const auto known = std::ranges::find_if(
      entries_, [&](const TuningEntry& each) { return same_subject(each, subject); });
  return known == entries_.end() ? nullptr : &*known;
}

void add_to_table(const std::string& path, std::span<const TuningEntry> entries) {
  TuningTable table = TuningTable::read(path);
  for (const TuningEntry& entry : entries) table.add(entry);
  const fs::path folder = fs::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);  // a failure shows in the next line
  write_file(path, table.text());
}

// ---- of a machine ----

Tuning::Tuning(std::string gpu, std::string toolkit, std::span<const TuningTable> tables)
    : gpu_(std::move(gpu)), toolkit_(std::move(toolkit)) {
  for (const TuningTable& table : tables) {
    for (const TuningEntry& entry : table.entries()) {
      if (entry.gpu == gpu_ && entry.toolkit == toolkit_) table_.add(entry);
    }
  }
}

std::shared_ptr<const Tuning> Tuning::process() {
  static const std::shared_ptr<const Tuning> tuning = [] {
    std::vector<TuningTable> tables;
    for (const DeviceFile& file : shipped_tunings()) {
      tables.push_back(TuningTable::parse(file.text, file.name));
    }
    try {
      if (!tuning_path().empty()) tables.push_back(TuningTable::read(tuning_path()));
    } catch (const ProgramError&) {
      // coda env says what is wrong with it; kernels are as right without.
    }
    const std::string gpu = Driver::problem() ? kDefaultGpu : Driver::get().device().name;
    return std::make_shared<const Tuning>(gpu, toolkit_of_process(), tables);
  }();
  return tuning;
}

TuningEntry Tuning::subject(const Program& program, const Sizes& sizes,
                            std::span<const Layout> layouts) const {
  return {.gpu = gpu_,
          .toolkit = toolkit_,
          .program = digest_of(program),
          .layouts = layout_class(program, sizes, layouts),
          .sizes = sizes,
          .name = program.name()};
}

const TuningEntry* Tuning::find(const Program& program, const Sizes& sizes,
                                std::span<const Layout> layouts) const {
  if (empty()) return nullptr;
  return table_.find(subject(program, sizes, layouts));
}

std::vector<TuningSource> tuning_sources() {
  std::vector<TuningSource> sources;
  for (const DeviceFile& file : shipped_tunings()) {
    sources.push_back({.path = file.name + " (shipped)",
                       .entries = TuningTable::parse(file.text, file.name).entries().size()});
  }
  if (tuning_path().empty()) return sources;
  TuningSource own{.path = tuning_path()};
  try {
    own.entries = TuningTable::read(own.path).entries().size();
  } catch (const ProgramError& error) {
    own.problem = error.diagnostics().front().message;
  }
  sources.push_back(std::move(own));
  return sources;
}

std::string tuning_path() {
  const std::string folder = flags::cache();
  return folder.empty() ? "" : folder + "/tuning.json";
}

}  // namespace coda::cuda
