// coda/cuda/tuning.h: which candidate was measured to be the fastest: tables, shipped and one's
// own.
//
// A table is a JSON file {"coda tuning": 1, "entries": […]}. An entry holds for one GPU, one major
// version of the compiler, one computation, the class of its tensors' layouts and its sizes.
// Candidates go by the names that PlanOptions::tile takes.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coda/cuda/plan.h"

namespace coda::cuda {

struct TuningEntry {
  // ---- what it is about ----
  std::string gpu;      // "NVIDIA H200"
  std::string toolkit;  // "13"
  std::string program;  // digest_of
  std::string layouts;  // layout_class
  Sizes sizes;
  // ---- what was measured ----
  std::string name;  // of the program, for people
  std::string tile;  // the fastest candidate
  double seconds = 0;
  std::string model;  // the planner's own choice
  double model_seconds = 0;
};

// Whether both are about the same.
bool same_subject(const TuningEntry& a, const TuningEntry& b);
std::string milliseconds_text(double seconds);  // "1.204 ms"
// "128x128, 1.204 ms; the planner's 128x192, 1.310 ms".
std::string tuning_text(const TuningEntry& entry);

// Of the canonical text, dtypes and dimensions included, without the names of the program and its
// tensors.
std::string digest_of(const Program& program);
// One word a tensor: its factors from the outermost in memory to the innermost, `dense` where that
// is the declared order; `+` where there are gaps, `0` where a stride is; then the alignment where
// it is under 16 bytes.
std::string layout_class(const Program& program, const Sizes& sizes,
                         std::span<const Layout> layouts);

class TuningTable {
 public:
  // Throws ProgramError that names the file where the text is no table.
  static TuningTable parse(std::string_view text, const std::string& file);
  // An empty one where there is no file.
  static TuningTable read(const std::string& path);

  std::string text() const;
  const std::vector<TuningEntry>& entries() const { return entries_; }
  // In place of one about the same.
  void add(TuningEntry entry);
  const TuningEntry* find(const TuningEntry& subject) const;  // null: there is none

 private:
  std::vector<TuningEntry> entries_;
};

// Adds entries to the file: it is read again and renamed into place, so that readers see a whole
// table. Of two processes that add at the same moment, one may lose its entries.
void add_to_table(const std::string& path, std::span<const TuningEntry> entries);

// What is known for one machine. Immutable.
class Tuning {
 public:
  // Entries of the later tables go before those of the earlier ones.
  Tuning(std::string gpu, std::string toolkit, std::span<const TuningTable> tables);

  // For the GPU of this process, or else an H200: the shipped tables, then the user's, which is not
  // used where it is damaged. Read once.
  static std::shared_ptr<const Tuning> process();

  // An entry about that, without measurements.
  TuningEntry subject(const Program& program, const Sizes& sizes,
                      std::span<const Layout> layouts) const;
  // Null: nothing was measured.
  const TuningEntry* find(const Program& program, const Sizes& sizes,
                          std::span<const Layout> layouts) const;
  bool empty() const { return table_.entries().empty(); }  // for this machine

 private:
  std::string gpu_, toolkit_;
  TuningTable table_;
};

// The tables that this process has: for coda env.
struct TuningSource {
  std::string path;  // "h200.json (shipped)", or a file's
  std::size_t entries = 0;
  std::string problem;  // why it is not used; empty: it is
};
std::vector<TuningSource> tuning_sources();

// The user's table, tuning.json in flags::cache(); empty: there is no such folder.
std::string tuning_path();

// The files of tuning/, built into the library.
std::span<const DeviceFile> shipped_tunings();

}  // namespace coda::cuda
