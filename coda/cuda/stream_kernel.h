// coda/cuda/stream_kernel.h: one space of a streaming program as device code.
//
// A team of threads takes a row. Each thread holds vectors of neighbouring columns; what all
// reductions of a row need is loaded once, before anything is computed, and kept in registers where
// it fits. Where only sums along rows are wanted, a team takes some columns of many rows instead.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coda/cuda/arguments.h"
#include "coda/cuda/maps.h"
#include "coda/cuda/stream.h"
#include "coda/cuda/stream_space.h"

namespace coda::cuda::streaming {

// Memory, or positions, that a loop reads, or where it stores.
struct Access {
  std::int32_t value = -1;  // what is read
  View view;                // tensor -1: positions
  Path path;
  std::vector<std::int64_t> strides;         // of each axis of the loop
  std::int64_t base = 0;                     // elements before the piece
  std::int64_t block = 0, block_stride = 0;  // of the innermost axis' blocks
  bool lanes = false;                        // differs along the innermost axis
  bool vector = false;                       // neighbours, and aligned
  bool loads = false;                        // it is this access that fills the pack
  int parts = 1, part = 0;                   // pieces that alternate: 2e and 2e + 1
  std::int32_t ids = -1;                     // a gather's
  int late = 0;  // kept, and the same in all rows: loaded when this level comes
  std::set<int> levels;
  std::string name;
};

std::string operation(Op op);

struct Work {
  enum class Kind : std::uint8_t { store, reduce, accumulate } kind = Kind::store;
  int result = -1;         // store
  Value value;             // what is evaluated
  std::int32_t node = -1;  // reduce, accumulate: whose operand it is
  Path path;
};

// Rows that start at any address: vectors from the first element on that is aligned.
struct Lead {
  View view;            // whose address it is
  bool aligned = true;  // the tensor's first element is
  int width = 1;
  std::string tag;
};

struct Loop {
  std::vector<Axis> axes;
  std::map<int, std::vector<Work>> works;  // by level
  std::map<std::pair<std::int32_t, Path>, Access> reads;
  std::map<std::pair<int, Path>, Access> writes;
  bool infinite = false;            // where nothing is loaded, packs hold -infinity instead of 0
  bool fixed = false;               // something depends on single axes: they are not merged
  std::int64_t lanes_together = 0;  // elements of the innermost axis that are reduced together
  int width = 1;                    // elements of a vector
  std::int64_t vectors = 1;         // of the innermost axis
  std::int64_t padded = 1;          // the same, as many as threads are spent on
  std::int64_t items = 1;
  int slots = 1;             // vectors of a thread
  int natural = 1;           // the width if all were aligned
  std::optional<Lead> lead;  // of the vectors, and of the edges
  bool edges = false;        // what lies before and behind the vectors, one by one
};

// How threads share the work.
struct Shape {
  enum class Kind : std::uint8_t { rows, columns } kind = Kind::rows;
  int team = 32;            // threads of a row; columns: threads side by side
  int teams = 8;            // of a block
  bool keeps = true;        // rows: everything is loaded once, before the first pass
  bool whole = true;        // rows: each thread's vectors are unrolled, else `unroll` at a time
  bool by_slot = false;     // whole, without keeping: one vector after another
  int unroll = 1;           // columns: rows at a time
  std::int64_t chunks = 1;  // rows without statistics: blocks of a row
};

class Kernel {
 public:
  // `tile`: how threads share the work; nullptr: as it seems best.
  Kernel(const Space& space, Arguments& arguments, int number, const StreamTile* tile);

  // Threads that suit it best; then the code, for blocks of that many threads.
  int threads() const { return shape_.team * shape_.teams; }
  void set_threads(int threads);
  bool suits_any() const;  // does as well with another number of threads
  // Blocks of a processor for which registers should suffice; 0: as the compiler sees fit.
  int least_blocks() const;
  StreamTile tile() const { return {shape_.team, shape_.teams, shape_.unroll}; }
  std::vector<StreamTile> candidates() const;
  std::string text();
  std::int64_t blocks() const;
  // Sums along many rows: each block adds up some rows into the workspace, a second launch the
  // rest.
  bool has_second() const { return parts_; }
  void set_workspace(std::int64_t offset) { workspace_ = offset; }
  std::int64_t workspace() const;
  std::int64_t second_blocks() const;
  std::string name() const { return "space_" + std::to_string(number_); }
  std::string summary() const;

 private:
  // stream_collect.cpp: what there is to do, and what it reads.
  void collect();
  void collect_result(int r);
  void collect_reduction(const Node& node);
  std::vector<std::pair<Value, Path>> operands(Value v, const Path& path) const;
  std::vector<Axis> axes(Value v, const Path& path);
  Loop& loop_of(const std::vector<Axis>& axes);
  void visit(Loop& loop, Value v, const Path& path, int level);
  Access access(const Loop& loop, View view, const Path& path) const;
  void place_factor(const Loop& loop, const Factor& factor, std::int64_t stride, const Path& path,
                    Access& out) const;
  void read(Loop& loop, std::int32_t id, View view, const Path& path, int level, int ids);

  // stream_lead.cpp: rows that start anywhere.
  void choose_lead(Loop& loop);
  void emit_leads();

  // stream_shape.cpp: vectors and threads.
  void choose_widths();
  void merge_axes(Loop& loop);
  void choose_width(Loop& loop, int forced);
  void choose_shape();
  void set_slots();
  void take(const StreamTile& tile);
  void choose_columns();
  std::int64_t words(const Loop& loop) const;
  std::int64_t sum_words(const Loop& loop, bool of_slots) const;
  bool rereads() const;

  // stream_text.cpp: the function around the loops.
  void emit_rows();
  void emit_columns();
  void emit_row_work(int level);
  void emit_pass(int level, Loop& loop);
  void emit_loads(Loop& loop, int level);
  void emit_looped(Loop& loop, int level);
  void emit_slots(int level, Loop& loop);
  void emit_load(Loop& loop, int level);
  void declare_packs(const Loop& loop, int level, int slots);
  bool wants(const Access& access, int level) const;
  void choose_late();
  std::string or_none(const Work& work, const std::string& text, const std::string& none) const;
  bool loads_first(const Loop& loop) const;
  void choose_rows(std::int64_t least, bool groups);
  void emit_slot(const Loop& loop);
  void emit_work(Loop& loop, const Work& work);
  void emit_reductions(int level);
  std::int64_t group() const;
  std::int64_t groups() const;
  std::string frame(const std::string& name) const;
  std::string items_of(const Loop& loop);
  std::string partial(std::size_t sum);
  std::string second_text();
  void emit_groups();
  void add_teams();
  void finish_groups();
  void name_reads(Loop& loop);
  std::string loop_name(const Loop& loop) const;
  bool ok_always(const Loop& loop) const;
  int slots_after(const Loop& loop) const;
  std::string slot_of_sum() const;
  Path collapsed_path(const Work& work) const;
  void emit_store(Loop& loop, const Work& work);
  void declare_accumulators();

  // stream_value.cpp: values as expressions.
  std::string value(Value v, const Path& path, Lane wanted);
  std::string row_value(Value v, Lane wanted);
  std::string node_value(Value v, const Path& path, Lane wanted);
  std::string memory(Value v, const Path& path, Lane wanted);
  std::string inside(Value v, const Path& path, Lane wanted);
  std::string map_value(const Node& node, const Path& path, Lane wanted);
  std::string reciprocal(Value v);
  std::string picked(Value v, Lane wanted);
  std::string offset(const Access& access, const std::string& owner);
  std::string row_offset(const View& view, const std::string& owner);
  std::string element(const Access& access);
  DType dtype_of(int tensor) const;
  bool has_lanes(Value v) const;
  std::string print_of(Value v) const;
  std::string print_name(Value v) const;
  std::string print_name_of_param(Value v) const;
  bool is_statement(std::int32_t node) const;
  std::string unique(std::string_view name);
  void line(const std::string& text);
  void comment(std::int32_t node);
  std::string owner_of(const View& view) const;
  Precision precision(const Node& node) const;

  const Space& space_;
  Arguments& arguments_;
  int number_;
  std::deque<Loop> loops_;
  std::map<std::pair<std::int32_t, Path>, std::vector<Axis>> axes_;
  Shape shape_;
  int levels_ = 1;
  bool chunked_ = false;  // rows without statistics

  // Text being written: what is the same for all rows, then the rest.
  std::string single_, body_;
  std::map<int, std::string> row_text_;  // by level
  std::string* out_ = &body_;
  int indent_ = 1, row_indent_ = 1;
  std::set<std::string> taken_;
  std::map<std::pair<std::int32_t, Lane>, std::string> row_names_;
  std::map<std::pair<std::pair<std::int32_t, Path>, Lane>, std::string> slot_names_;
  std::vector<std::pair<std::int32_t, Lane>> slot_rows_;  // columns: of one slot
  std::map<std::int32_t, std::string> reciprocals_;
  std::map<std::int32_t, std::string> reduced_;                // of reductions: their accumulators
  std::map<std::pair<std::int32_t, Path>, std::string> sums_;  // along rows
  // A sum along rows in registers: slots x width of them, of threads `apart` threads apart.
  struct Finished {
    std::string name, type, op;
    int slots = 1, width = 1, apart = 32;
  };
  std::vector<Finished> finished_;
  int boards_ = 0;
  int late_ = 0;
  bool parts_ = false;
  std::int64_t workspace_ = 0;
  std::set<std::int32_t> commented_;
  const Loop* in_ = nullptr;  // the loop whose slot is being written
  bool after_ = false;        // writing what follows the last row of a group
  std::string pack_at_ = "u";
  std::string picked_at_;      // pick: the one column
  bool in_slot_rows_ = false;  // columns: rows are slots
  mutable std::map<std::int32_t, bool> precise_;
};

}  // namespace coda::cuda::streaming
