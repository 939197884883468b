// tests/rewrite_random_test.cpp: ten thousand random blocks rewrite, check, and mean what they
// meant, forward and backward; and the work that this takes is bounded.
//
// `rewrite_random_test --blocks=100000 --first=1` takes more of them, `--long` a hundred thousand.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "tests/random_transformer.h"
#include "tests/rewritten_block.h"
#include "tests/shrink_block.h"

namespace coda::testing {

// What the command line asks for.
struct Request {
#ifdef __SANITIZE_ADDRESS__  // ten times slower: a sample will do
  std::uint64_t blocks = 60;
#else
  std::uint64_t blocks = 10000;
#endif
  std::uint64_t first = 1;
} request;

namespace {

// The bound on work: at most so many nodes of all steps, forward and backward, for each node of the
// block, and so many seconds of one thread for a block of `nodes`. Measured: 4 and at most 10
// nodes; 0.5 ms a node, and no more where a block has thousands.
constexpr double kNodesForEachNode = 20;
#ifdef __SANITIZE_ADDRESS__
constexpr double kSlow = 20;
#else
constexpr double kSlow = 1;
#endif

double seconds_allowed(std::size_t nodes) {
  return kSlow * (0.1 + 0.02 * static_cast<double>(nodes));
}

struct Failure {
  std::uint64_t seed = 0;
  std::string why;
};

// Smaller by far, and with the same seed wrong for a reason of the same kind.
std::string report(const Failure& failure) {
  const RandomTransformer random(failure.seed);
  const Program program = random.program();
  const auto kind = [](const std::string& why) {
    const bool is_finite = why.find("error inf") == std::string::npos;
    return why.substr(0, why.find(':')) + (is_finite ? "" : " inf");
  };
  std::string why = failure.why;
  const Program small = shrink(program, [&](const Program& each) {
    const std::string now =
        wrong(each, random.sizes(), known(random.gradients(), each), failure.seed);
    const bool same = !now.empty() && kind(now) == kind(failure.why);
    if (same) why = now;
    return same;
  });
  std::string text = "seed " + std::to_string(failure.seed) + ": " + failure.why +
                     "\nfor short:\n" + print(small) + why + "\nsizes:";
  for (const auto& [name, size] : random.sizes()) text += " " + name + "=" + std::to_string(size);
  text += "\nwrt:";
  for (const std::string& name : known(random.gradients(), small).wrt) text += " " + name;
  return text + "\n";
}

TEST(RewriteRandom, BlocksKeepTheirMeaningForwardAndBackward) {
  std::atomic<std::uint64_t> next = request.first;
  const std::uint64_t end = request.first + request.blocks;
  std::mutex mutex;
  std::vector<Failure> failures;
  Work total;
  double slowest = 0, most_nodes = 0;  // slowest: a share of what is allowed
  std::uint64_t slowest_seed = 0, most_seed = 0;
  const auto worker = [&] {
    for (std::uint64_t seed = next++; seed < end; seed = next++) {
      const RandomTransformer random(seed);
      Work work;
      std::string why;
      try {
        const Program program = random.program();
        why = wrong(program, random.sizes(), random.gradients(), seed, &work);
      } catch (const std::exception& error) {
        why = std::string("ill-typed: ") + error.what() + "\n" + random.text();
      }
      const std::lock_guard lock(mutex);
      if (!why.empty()) failures.push_back({seed, why});
      total.seconds += work.seconds;
      total.nodes += work.nodes;
      total.scheduled += work.scheduled;
      const double share = work.seconds / seconds_allowed(work.nodes);
      if (share > slowest) {
        slowest = share;
        slowest_seed = seed;
      }
      const double growth = static_cast<double>(work.scheduled) /
                            static_cast<double>(std::max<std::size_t>(work.nodes, 1));
      if (growth > most_nodes) {
        most_nodes = growth;
        most_seed = seed;
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::min(2u, std::thread::hardware_concurrency()); ++t) {
    threads.emplace_back(worker);
  }
  for (std::thread& thread : threads) thread.join();

  std::ranges::sort(failures, {}, &Failure::seed);
  for (std::size_t i = 0; i < failures.size() && i < 3; ++i) {
    const bool ill_typed = failures[i].why.starts_with("ill-typed");
    ADD_FAILURE() << (ill_typed ? failures[i].why : report(failures[i]));
  }
  std::string seeds;
  for (const Failure& each : failures) {
    if (seeds.size() < 2000) seeds += " " + std::to_string(each.seed);
  }
  EXPECT_TRUE(failures.empty()) << failures.size() << " of " << request.blocks
                                << " blocks fail:" << seeds;
  std::printf(
      "%llu blocks, %.1f nodes each; rewritten in %.2f ms each, seed %llu in %.0f %% of the time "
      "allowed; "
      "%.1f nodes of steps for each node, seed %llu %.1f\n",
      static_cast<unsigned long long>(request.blocks),
      static_cast<double>(total.nodes) / static_cast<double>(request.blocks),
      1e3 * total.seconds / static_cast<double>(request.blocks),
      static_cast<unsigned long long>(slowest_seed), 100 * slowest,
      static_cast<double>(total.scheduled) / static_cast<double>(total.nodes),
      static_cast<unsigned long long>(most_seed), most_nodes);
  // Beside a busy neighbour on its core a thread takes up to half as long again.
  EXPECT_LT(slowest, 1.5) << "seed " << slowest_seed;
  EXPECT_LT(most_nodes, kNodesForEachNode) << "seed " << most_seed;
}

TEST(RewriteRandom, LongBlocksTakeTheirTimeByTheNode) {
  for (const int pieces : {8, 64}) {
    const RandomTransformer random(1, pieces);
    const Program program = random.program();
    const double before = thread_seconds();
    const Rewritten made = rewrite(program, random.gradients());
    const double seconds = thread_seconds() - before;
    EXPECT_LT(seconds, seconds_allowed(program.nodes().size())) << pieces << " pieces";
    EXPECT_LT(nodes_of(made.forward.schedule) + nodes_of(made.backward->schedule),
              static_cast<std::size_t>(kNodesForEachNode) * program.nodes().size());
  }
}

TEST(RewriteRandom, TheMixHasWhatRulesLookAt) {
  std::map<std::string, int> counts;
  constexpr int kBlocks = 4000;
  for (std::uint64_t seed = 1; seed <= kBlocks; ++seed) {
    const RandomTransformer random(seed);
    for (const std::string& each : random.features()) ++counts[each];
  }
  EXPECT_GE(counts.size(), 45u);
  for (const auto& [feature, count] : counts) EXPECT_GE(count, kBlocks / 200) << feature;
}

}  // namespace
}  // namespace coda::testing

int main(int count, char** arguments) {
  ::testing::InitGoogleTest(&count, arguments);
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    const std::size_t equals = argument.find('=');
    const std::string flag = argument.substr(0, equals);
    if (flag == "--long") {
      coda::testing::request.blocks = 100000;
    } else if (flag == "--blocks" && equals != std::string::npos) {
      coda::testing::request.blocks = std::stoull(argument.substr(equals + 1));
    } else if (flag == "--first" && equals != std::string::npos) {
      coda::testing::request.first = std::stoull(argument.substr(equals + 1));
    } else {
      std::fprintf(stderr, "unknown argument %s; known: --blocks=N --first=SEED --long\n",
                   argument.c_str());
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
