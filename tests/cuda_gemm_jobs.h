// tests/cuda_gemm_jobs.h: products to plan with every tile, to run on the host, and to judge by the
// verifier.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coda/check/bind.h"
#include "coda/cuda/gemm.h"
#include "coda/reference/verify.h"
#include "tests/cases.h"
#include "tests/cuda_gemm_pages.h"
#include "tests/every_program.h"

namespace coda::cuda {

// A program at some sizes, on a GPU of few processors, so that each has several tiles.
struct Job {
  std::string label;
  std::shared_ptr<const Checked> checked;
  Sizes sizes;
  Target target;
  GemmTile tile;
  int free = 0;  // so many of its processors are; 0: all
};

inline std::optional<Plan> plan_of(const Job& job, std::span<const Layout> layouts) {
  std::vector<std::string> reasons;
  return plan_gemm(*job.checked, job.sizes, layouts, job.target, &job.tile, reasons);
}

class Jobs {
 public:
  // A job for every tile that `choose` takes; false: the fast path refuses.
  bool add(const std::string& label, const Program& program, const Sizes& given, int processors,
           const std::function<bool(std::size_t tile, std::size_t tiles)>& choose, int free = 0) {
    Job job{label,
            std::make_shared<const Checked>(check(program)),
            bind_sizes(program, given),
            {.processors = processors},
            {},
            free};
    std::vector<std::string> reasons;
    const std::vector<Layout> layouts = dense_layouts(program, job.sizes);
    const std::vector<GemmTile> tiles =
        gemm_tiles(*job.checked, job.sizes, layouts, job.target, reasons);
    bool any = false;
    for (std::size_t t = 0; t < tiles.size(); ++t) {
      if (!choose(t, tiles.size())) continue;
      job.tile = tiles[t];
      job.label = label + " " + testing::text_of(job.sizes) + ", tile " + tiles[t].text() + ", " +
                  std::to_string(processors) + " processors";
      const std::optional<Plan> plan = plan_of(job, layouts);
      if (!plan) continue;
      any = true;
      GemmPages::all().want(*plan);
      jobs_.push_back(job);
    }
    return any;
  }

  // One seed is a quick look: what fails it is judged by as many as the contract asks for. Its two
  // runs have different schedules, and must give the same bits.
  void run() const {
    for (const Job& job : jobs_) {
      SCOPED_TRACE(job.label);
      std::uint64_t seed = 0;
      const auto execute = [&](const Program& program, const Sizes& sizes,
                               std::span<const Tensor> params, std::span<const Tensor> results) {
        auto plan = plan_of(job, layouts_of(program, sizes, params, results));
        if (job.free > 0) plan->launches.back().grid[0] = job.free;
        EXPECT_EQ(launch_gemm(*plan, params, results, ++seed).conflicts, 0) << "of banks";
      };
      try {
        const Program& program = job.checked->program();
        VerifyOptions options{.inputs = {Inputs::normal}, .seeds = 1};
        if (passed(verify(program, job.sizes, execute, options))) continue;
        options.seeds = 8;
        const std::vector<Verdict> verdicts = verify(program, job.sizes, execute, options);
        EXPECT_TRUE(passed(verdicts)) << table(verdicts);
      } catch (const InternalError& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
  std::size_t size() const { return jobs_.size(); }

 private:
  static bool passed(const std::vector<Verdict>& verdicts) {
    return std::ranges::all_of(verdicts, &Verdict::passed);
  }
  std::vector<Job> jobs_;
};

}  // namespace coda::cuda
