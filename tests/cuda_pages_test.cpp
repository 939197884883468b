// tests/cuda_pages_test.cpp: every program of the library and of the golden schedules compiles for
// sm_90a, as the planners choose for it, without spills and within a budget of registers.
//
// All pages of large sizes, and a third of the others; `cuda_pages_test --long` takes all. Needs
// NVRTC, and no GPU. `--list` prints each page's registers, spills and seconds, `--keep=FOLDER`
// writes the pages that spill.
#include <gtest/gtest.h>

#include <atomic>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "coda/check/check.h"
#include "coda/core/file.h"
#include "coda/cuda/choose.h"
#include "coda/cuda/nvrtc.h"
#include "tests/every_program.h"

namespace coda::cuda {
namespace {

using ::coda::testing::Found;

// --long, --list, --keep.
bool everything = false, list = false;
std::string keep;

// Under sanitizers a sample shows that the planners are sound; the compiler is not ours.
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kEach = 40;
#else
constexpr std::size_t kEach = 1;
#endif

struct Size {
  const char* name;
  Sizes sizes;
};
// As a layer of width 2048 has them; small; and odd everywhere, where TMA takes nothing.
const std::vector<Size> kSizes = {
    {"large", testing::layer_sizes()},
    {"small",
     {{"B", 2},
      {"S", 64},
      {"T", 64},
      {"M", 128},
      {"D", 256},
      {"H", 4},
      {"G", 2},
      {"E", 64},
      {"F", 192},
      {"N", 256},
      {"K", 256},
      {"Q", 256},
      {"P", 128},
      {"A", 256},
      {"V", 320},
      {"R", 8}}},
    {"odd",
     {{"B", 3},
      {"S", 21},
      {"T", 21},
      {"M", 63},
      {"D", 65},
      {"H", 3},
      {"G", 1},
      {"E", 10},
      {"F", 129},
      {"N", 33},
      {"K", 65},
      {"Q", 33},
      {"P", 11},
      {"A", 31},
      {"V", 129},
      {"R", 6}}},
};

// One page, and who asked for it first.
struct Page {
  std::string where, size, sizes;
  Plan plan;
};

// A page without comments, and with its own names by number: what the compiler makes a kernel of.
// Names of device/ keep their meaning.
std::string essence(const std::string& page) {
  const auto is_letter = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  static const std::set<std::string> known = [&] {
    std::set<std::string> words;
    for (const DeviceFile& file : device_files()) {
      std::string word;
      for (const char c : file.text) {
        if (is_letter(c)) {
          word += c;
        } else if (!word.empty()) {
          words.insert(std::exchange(word, ""));
        }
      }
    }
    return words;
  }();
  std::map<std::string, std::string> names;
  std::string out;
  for (std::size_t at = 0; at < page.size();) {
    if (page.compare(at, 2, "//") == 0) {
      at = std::min(page.find('\n', at), page.size());
      continue;
    }
    const std::size_t first = at;
    while (at < page.size() && is_letter(page[at])) ++at;
    if (at == first) {
      if (page[at] != ' ' && page[at] != '\n') out += page[at];
      ++at;
      continue;
    }
    const std::string word = page.substr(first, at - first);
    if (std::isdigit(static_cast<unsigned char>(word[0])) != 0 || known.contains(word)) {
      out += word + " ";
    } else {
      out += names.emplace(word, "_" + std::to_string(names.size())).first->second + " ";
    }
  }
  return out;
}

struct Collected {
  std::vector<Page> pages;
  std::map<std::string, int> paths;  // "gemm", "stream", "general": of programs and sizes
  std::vector<std::string> without_sizes;
};

const Collected& collected() {
  static const Collected all = [] {
    Collected out;
    std::set<std::string> seen;
    std::size_t products = 0;
    const auto add = [&](const Found& found, const Size& size, const Sizes& sizes, Plan plan) {
      if (plan.launches.empty() || !seen.insert(essence(plan.page)).second) return;
      out.pages.push_back({found.where, size.name, testing::text_of(sizes), std::move(plan)});
    };
    for (const Found& found : testing::every_program()) {
      const Checked checked = check(found.program);
      for (const Size& size : kSizes) {
        Sizes sizes;
        try {
          sizes = testing::sizes_from(found.program, size.sizes);
        } catch (const ProgramError& error) {
          out.without_sizes.push_back(found.where + " " + size.name + ": " + error.what());
          continue;
        }
        const std::vector<Layout> layouts = dense_layouts(found.program, sizes);
        Plan plan = choose_plan(checked, sizes, layouts, {});
        ++out.paths[plan.path.substr(0, plan.path.find_first_of(" :"))];
        const bool product = plan.path.starts_with("gemm") && size.name == kSizes[0].name;
        add(found, size, sizes, std::move(plan));
        // A GPU that others use too: some, as all would be as many again.
        if (product && (everything || products++ % 5 == 0)) {
          add(found, size, sizes, choose_plan(checked, sizes, layouts, {.exclusive = false}));
        }
      }
    }
    return out;
  }();
  return all;
}

std::string path_of(const Page& page) {
  return page.plan.path.substr(0, page.plan.path.find_first_of(" :"));
}

struct Outcome {
  std::string fault;  // empty: the page is as it should be, but for what it spills
  int registers = 0, spills = 0;
  double seconds = 0;
};

Outcome outcome_of(const Page& page) {
  Outcome outcome;
  try {
    const Compiled compiled = compile(page.plan.name, page.plan.page, device_files());
    outcome.seconds = compiled.seconds;
    for (const Launch& launch : page.plan.launches) {
      const auto entry = std::ranges::find(compiled.entries, launch.entry, &Compiled::Entry::name);
      if (entry == compiled.entries.end()) return {"no kernel " + launch.entry};
      const int spills = entry->spill_stores + entry->spill_loads;
      outcome.registers = std::max(outcome.registers, entry->registers);
      outcome.spills += spills;
      if (spills == 0 && entry->stack > 0) {
        outcome.fault += " stack " + std::to_string(entry->stack);
      }
      // As many as let a block of that size run: 168 of 384 threads.
      if (entry->registers > 65536 / launch.block / 8 * 8) {
        outcome.fault += " " + std::to_string(entry->registers) + " registers";
      }
    }
  } catch (const InternalError& error) {
    outcome.fault = std::string(error.what()).substr(0, 600);
  }
  return outcome;
}

TEST(CudaPages, EveryProgramHasSizesAndAPlan) {
  for (const std::string& each : collected().without_sizes) ADD_FAILURE() << each;
  for (const auto& [path, count] : collected().paths) {
    std::printf("%s: %d programs and sizes\n", path.c_str(), count);
  }
  std::map<std::string, int> pages;
  for (const Page& page : collected().pages) ++pages[path_of(page) + " " + page.size];
  for (const auto& [kind, count] : pages) std::printf("%s: %d pages\n", kind.c_str(), count);
}

TEST(CudaPages, CompileWithoutSpillsWithinTheirRegisters) {
  if (const auto problem = nvrtc_problem()) GTEST_SKIP() << "skipped: no NVRTC: " << *problem;
  std::vector<const Page*> pages;
  std::size_t others = 0;
  for (const Page& page : collected().pages) {
    if (everything || page.size == "large" || others++ % 3 == 0) pages.push_back(&page);
  }
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::vector<std::string> faults;
  const auto work = [&] {
    for (std::size_t i = next++; i < pages.size(); i = next++) {
      if (i % kEach != 0) continue;
      const Page& page = *pages[i];
      const Outcome outcome = outcome_of(page);
      const std::lock_guard lock(mutex);
      const std::string text = page.where + " (" + page.sizes + ") " + page.plan.path;
      if (list) {
        std::printf("%s: %d registers, %d bytes spilled, %.2f s\n", text.c_str(), outcome.registers,
                    outcome.spills, outcome.seconds);
      }
      if (!outcome.fault.empty()) faults.push_back(text + ": " + outcome.fault);
      if (outcome.spills == 0) continue;
      faults.push_back(text + ": spills " + std::to_string(outcome.spills) + " bytes");
      if (!keep.empty()) {
        write_file(keep + "/" + std::to_string(i) + "_" + page.plan.name + ".cu", page.plan.page);
      }
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back(work);
  }
  threads.clear();
  std::ranges::sort(faults);
  for (const std::string& fault : faults) ADD_FAILURE() << fault;
}

}  // namespace
}  // namespace coda::cuda

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    coda::cuda::everything |= std::string_view(argv[i]) == "--long";
    coda::cuda::list |= std::string_view(argv[i]) == "--list";
    if (std::string_view(argv[i]).starts_with("--keep=")) coda::cuda::keep = argv[i] + 7;
  }
  return RUN_ALL_TESTS();
}
