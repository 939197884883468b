// coda/cuda/gemm_page.cpp: parts of text put together.
#include "coda/cuda/gemm_page.h"

#include <algorithm>
#include <sstream>

#include "coda/cuda/tile_merge.h"

namespace coda::cuda {
namespace {

constexpr const char* kHook = "static __device__ __forceinline__ ";

std::string indented(const std::string& text, const std::string& indent) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    out += (line.empty() || line[0] == '#' ? "" : indent) + line + "\n";
  }
  return out;
}

std::string commented(const std::string& text) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    out += line.empty() ? "//\n" : "// " + line + "\n";
  }
  return out;
}

// `switch (s)` over equal expressions once.
std::string choice(const std::string& signature, const std::string& variable,
                   const std::vector<std::string>& expressions) {
  std::string out = std::string("  ") + kHook + signature + " {\n";
  for (std::size_t i = 0; i + 1 < expressions.size(); ++i) {
    if (expressions[i] == expressions.back()) continue;
    out += "    if (" + variable + " == " + std::to_string(i) + ") return static_cast<int>(" +
           expressions[i] + ");\n";
  }
  return out + "    return static_cast<int>(" + expressions.back() + ");\n  }\n";
}

std::string space_struct(const GemmPage& page, const SpaceText& space, std::size_t kind) {
  const std::string arguments = "const Arguments& args, int s, ";
  std::string out = "  struct Space" + std::to_string(kind) + " {\n    using P = Page;\n";
  out += "    static constexpr int kSlotsUsed = " + std::to_string(space.slots.size()) + ";\n";
  out += "    struct Columns {\n" + space.column_fields + "    };\n";
  out += "    struct State {\n" + space.state_fields + "    };\n";
  out += "    static __device__ constexpr int bytes(int slot) {\n";
  for (std::size_t i = 0; i < space.slots.size(); ++i) {
    if (space.slots[i].bytes == 0) continue;
    out += "      if (slot == " + std::to_string(i) + ") return " +
           std::to_string(space.slots[i].bytes) + ";\n";
  }
  out += "      return 0;\n    }\n";
  out +=
      std::string("    template <int kSlot>\n    ") + kHook + "void load(" + arguments +
      "u32 to, u32 barrier, int row,\n                                             int unit) {\n";
  for (std::size_t i = 0; i < space.slots.size(); ++i) {
    if (space.slots[i].load.empty()) continue;
    out += "      if constexpr (kSlot == " + std::to_string(i) + ") " + space.slots[i].load + "\n";
  }
  out += std::string("    }\n    template <int kSlot>\n    ") + kHook + "void store(" + arguments +
         "u32 from, int row, int unit,\n                                              int lane_id) "
         "{\n";
  for (std::size_t i = 0; i < space.slots.size(); ++i) {
    const SlotUse& slot = space.slots[i];
    if (!slot.store.empty()) {
      out += "      if constexpr (kSlot == " + std::to_string(i) +
             ") {\n        if (elected()) {\n" + "          " + slot.store +
             "\n          tma_commit();\n          tma_wait_read();\n        }\n      }\n";
    } else if (!slot.drain.empty()) {
      out += "      if constexpr (kSlot == " + std::to_string(i) + ") {\n" +
             indented(slot.drain, "  ") + "      }\n";
    }
  }
  out += std::string("    }\n    ") + kHook + "Columns columns(" + arguments +
         "int unit, int lane_id) {\n      Columns out;\n" + space.column_code +
         "      return out;\n    }\n";
  out += std::string("    template <int N>\n    ") + kHook + "void unit(" + arguments +
         (page.shape.across ? "u32 rows_at, const Row& head_sum," : "u32 rows_at,") +
         "\n        const Columns& columns, State& state, const float (&acc)[N], " +
         "int h, int i, const u32* slot,\n        int row0, int unit, int warp, int lane_id) {\n";
  const std::string rows = "const Rows rows = P::rows(rows_at);\n";
  out += "      " + rows;
  const int row_bytes = page.shape.head != 0 || page.shape.unit == 32 ? 64 : 128;
  out += "      [[maybe_unused]] const MatrixLane<" + std::to_string(row_bytes) +
         "> matrices(warp * 16, lane_id);\n";
  out += "      [[maybe_unused]] const PairLane pairs(warp * 16, lane_id);\n";
  out += "      [[maybe_unused]] const int first_row = row0 + warp * 16 + lane_id / 4;\n";
  out +=
      "      [[maybe_unused]] const int row_count = P::row_count(args, s);\n      [[maybe_unused]] "
      "const int column_count = P::columns(args, s);\n";
  out += indented(space.before, "");
  out += "#pragma unroll\n      for (int j = 0; j < " + std::to_string(chunks_of(page.shape)) +
         "; j++) {\n";
  // Else the compiler reads the vectors of all chunks at once, until registers are gone.
  if (space.late) out += "        __syncwarp();\n";
  // Else what a pass has computed of them would live until here.
  if (space.passes) out += "        " + rows;
  out += space.loads + "#pragma unroll\n        for (int g = 0; g < 2; g++) {\n";
  out += "        [[maybe_unused]] const int column = " + chunk_column(page.shape, "unit") + ";\n";
  out += space.chunk + "        }\n" + space.stores + "      }\n" + space.after + "    }\n";
  out += std::string("    ") + kHook + "void finish(" + arguments +
         "u32 rows_at,\n        State& state, int row, int first_column, int lane_id) "
         "{\n";
  out +=
      "      [[maybe_unused]] const int row_count = P::row_count(args, s);\n      [[maybe_unused]] "
      "const int column_count = P::columns(args, s);\n";
  out += "      [[maybe_unused]] const bool first = first_column == 0;\n" + space.finish_once;
  if (!space.finish.empty()) {
    out +=
        "#pragma unroll\n      for (int i = 0; i < 2; i++) {\n        const Rows rows = "
        "P::rows(rows_at + i * 64 * kRowBytes);\n" +
        space.finish + "      }\n";
  }
  out += "    }\n";
  if (page.shape.across) {
    out +=
        std::string("    template <int N>\n    ") + kHook + "void head_sum(" + arguments +
        "u32 rows_at, const float (&acc)[N],\n        int h, int unit, int lane_id, Row& sum) {\n" +
        (space.head_sum.empty() ? "" : "      " + rows + space.head_sum) + "    }\n    " + kHook +
        "void leave_head(" + arguments +
        "u32 rows_at, const Row& head_sum,\n        int first_row, int unit, int lane_id) {\n" +
        (space.leave_head.empty() ? "" : "      " + rows + space.leave_head) + "    }\n";
  }
  return out + "  };\n\n";
}

}  // namespace

std::string gemm_page(const GemmPage& page, const GemmFields& fields, RowsText& rows,
                      const Arguments& arguments) {
  std::string out = "// " + page.name + ": one kernel for sm_90a.\n//\n" + commented(page.text);
  out +=
      page.precision == Precision::fast ? "#define CODA_MAPS fast\n" : "#define CODA_MAPS exact\n";
  out += "#include \"sm90_gemm.cuh\"\n#include \"philox.cuh\"\n\nnamespace coda {\n\n";
  out += arguments.declaration() + "\n";
  out += "struct Page {\n  using Arguments = coda::Arguments;\n  // Config\n";
  const auto constant = [&](const std::string& name, std::int64_t value, const std::string& why) {
    out += "  static constexpr int " + name + " = " + std::to_string(value) + ";" +
           (why.empty() ? "" : "  // " + why) + "\n";
  };
  const auto flag = [&](const std::string& name, bool value, const std::string& why) {
    out += "  static constexpr bool " + name + " = " + (value ? "true" : "false") + ";  // " + why +
           "\n";
  };
  constant("kTileN", page.shape.columns, "accumulator columns of a tile of 128 rows");
  constant("kNarrow", page.narrow, "of a last column tile; 0: none is narrower");
  constant("kStages", page.stages, "of operands, 64 of k each");
  constant("kSlots", page.slots, "of the epilogue's ring");
  constant("kSlotBytes", page.slot_bytes, "");
  constant("kCluster", page.shape.cluster,
           page.shape.across ? "blocks that share the left operand"
                             : "blocks that share the right operand");
  flag("kAcross", page.shape.across,
       page.shape.across ? "and heads that lie in both" : "heads lie in two");
  constant("kTerms", page.terms, "products that are added up");
  constant("kPairs", page.shape.pairs, "products that share the left operand");
  constant("kUnitColumns", page.shape.unit, "of results in a unit");
  constant("kHeads", page.shape.head / 64, "units of a head; 0: units are plain");
  constant("kConsumerRegisters", page.consumer_registers, "");
  constant("kProducerRegisters", 504 - 2 * page.consumer_registers, "");
  const auto any_slot = [&](const auto& is) {
    return std::ranges::any_of(
        page.spaces, [&](const SpaceText& space) { return std::ranges::any_of(space.slots, is); });
  };
  flag("kLoads", any_slot([](const SlotUse& slot) { return slot.bytes > 0; }),
       "some unit reads what slots bring");
  flag("kDrains", any_slot([](const SlotUse& slot) { return !slot.drain.empty(); }),
       "store warps add up what consumers write");
  flag("kSplit", page.split, "workers share tiles along k");
  flag("kDrawn", page.drawn, "workers draw what they do next");
  flag("kJoined", page.joined, "tiles hold units of several spaces");
  flag("kPaced", page.paced, "epilogues wait for the next tile's main loop");
  out += std::string("  static constexpr bool kMnMajorA = ") +
         (page.mn_major_a ? "true" : "false") +
         ", kMnMajorB = " + (page.mn_major_b ? "true" : "false") + ";\n";
  out += std::string("  using Operands = ") +
         (page.operands == DType::bf16 ? "Bf16Operands" : "F16Operands") + ";\n\n";

  out += std::string("  ") + kHook + "const TensorMap* operands(const Arguments& args, int s) {\n" +
         "    return &" + fields.maps + " + s * kTerms * (1 + kPairs);\n  }\n";
  out += std::string("  ") + kHook +
         "const TensorMap* map(const Arguments& args, int s, int k) {\n" + "    return &" +
         fields.maps + " + " +
         std::to_string(page.spaces.size() *
                        static_cast<std::size_t>(page.terms * (1 + page.shape.pairs))) +
         " + s * " + std::to_string(page.maps) + " + k;\n  }\n";
  out += choice("int k_tiles(const Arguments& args, int term)", "term", fields.k_tiles);
  out += choice("int row_count(const Arguments& args, int s)", "s", fields.rows);
  out += choice("int columns(const Arguments& args, int s)", "s", fields.columns);
  if (page.joined) {
    out += std::string("  ") + kHook + "int all_columns(const Arguments& args) {\n" +
           "    return static_cast<int>(" + fields.first_units.back() + ") * kUnitColumns;\n  }\n";
    out += std::string("  ") + kHook + "Unit unit_at(const Arguments& args, int unit) {\n";
    for (std::size_t s = page.spaces.size(); s-- > 1;) {
      const std::string first = "static_cast<int>(" + fields.first_units[s] + ")";
      out += "    if (unit >= " + first + ") return {" + std::to_string(s) + ", unit - " + first +
             "};\n";
    }
    out += "    return {0, unit};\n  }\n";
  }

  out += "\n  // What a row of a tile needs: rows first_row and first_row + 8.\n  struct Rows {\n" +
         rows.fields() + "  };\n";
  constant("kKept", rows.bytes(), "where what leaves at the end of a tile waits");
  constant("kRowBytes", page.row_bytes, "in shared memory");
  out += std::string("  ") + kHook +
         "void put_rows(const Arguments& args, int s, int this_row, bool first, u32 to) {\n"
         "    const long long count = row_count(args, s);\n" +
         indented(rows.code(), "    ") + "  }\n";
  out += std::string("  ") + kHook + "Rows rows(u32 from) {\n    Rows out;\n#pragma unroll\n" +
         "    for (int h = 0; h < 2; h++) {\n" + rows.reads() + "    }\n    return out;\n  }\n";
  out += "\n  // Results that are no part of a tile.\n";
  out += std::string("  ") + kHook +
         "void side(const Arguments& args, long long thread, long long " + "threads) {\n" +
         indented(rows.side(), "    ") + "  }\n\n";

  std::vector<SpaceText> spaces = page.spaces;
  const std::vector<std::size_t> kinds = merge_spaces(spaces);
  for (std::size_t s = 0; s < spaces.size(); ++s) {
    if (kinds[s] == s) out += space_struct(page, spaces[s], s);
  }
  out += std::string("  template <class F>\n  ") + kHook + "void with_space(int s, F f) {\n";
  for (std::size_t s = 0; s < kinds.size(); ++s) {
    if (kinds[s] != s || s == kinds.back()) continue;
    std::string condition;
    for (std::size_t t = s; t < kinds.size(); ++t) {
      if (kinds[t] == s)
        condition += (condition.empty() ? "s == " : " || s == ") + std::to_string(t);
    }
    out += "    if (" + condition + ") return f(Space" + std::to_string(s) + "());\n";
  }
  out += "    f(Space" + std::to_string(kinds.back()) + "());\n  }\n};\n\n}  // namespace coda\n\n";
  out +=
      "extern \"C\" __global__ void __launch_bounds__(384, 1)\n" + identifier(page.name) +
      "(const __grid_constant__ coda::Arguments args) {\n  coda::Gemm<coda::Page>::run(args);\n}\n";
  return out;
}

}  // namespace coda::cuda
