// tests/train_test.cpp: `coda train` and `coda generate` as a user runs them.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "coda/core/file.h"
#include "tests/train_command.h"

namespace coda {
namespace {

#ifdef CODA_BINARY

TEST(Train, LearnsSavesAndReportsAsJson) {
  const Outcome run =
      coda_command(small({"--steps", "40", "--output", path("model"), "--json", "--profile"}));
  ASSERT_EQ(run.code, 0) << run.err;
  const auto report = nlohmann::json::parse(run.out);
  EXPECT_EQ(report["steps"], 40);
  EXPECT_NEAR(report["held_out_loss"]["before"].get<double>(), std::log(256.0), 0.1);
  EXPECT_LT(report["held_out_loss"]["after"], 3.0);
  EXPECT_EQ(report["sample"].get<std::string>().size(), 400u);
  EXPECT_LT(report["ledger"]["fused"]["bytes_read"], report["ledger"]["unfused"]["bytes_read"]);
  EXPECT_FALSE(report["profile"].empty());
  EXPECT_NE(run.err.find("Held-out loss after"), std::string::npos);

  const auto generate = [](const char* seed) {
    return coda_command({"generate", "--model", path("model"), "--prompt", "the ", "--bytes", "60",
                         "--seed", seed});
  };
  const Outcome text = generate("1");
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out.size(), 4u + 60 + 1);
  EXPECT_EQ(text.out.substr(0, 4), "the ");
  EXPECT_EQ(generate("1").out, text.out);
  EXPECT_NE(generate("2").out, text.out);
}

TEST(Train, GivesTheSameModelWithAnyNumberOfThreads) {
  for (const char* threads : {"1", "2"}) {
    const Outcome run = coda_command(small(
        {"--steps", "5", "--output", path(std::string("model") + threads), "--threads", threads}));
    ASSERT_EQ(run.code, 0) << run.err;
  }
  EXPECT_EQ(read_file(path("model1/model.safetensors")),
            read_file(path("model2/model.safetensors")));
}

TEST(Train, StopsCleanlyAtCtrlC) {
  const Outcome run =
      coda_command(small({"--steps", "1000000", "--output", path("stopped")}), "step 1/1000000");
  EXPECT_EQ(run.code, 130) << run.err;
  EXPECT_NE(run.out.find("Stopped by Ctrl-C"), std::string::npos);
  EXPECT_NE(run.out.find("Held-out loss after"), std::string::npos);
  EXPECT_NE(run.out.find("A sample"), std::string::npos);
  EXPECT_TRUE(fs::exists(path("stopped/model.safetensors")));
  EXPECT_NE(run.out.find(path("stopped/report.html")), std::string::npos) << run.out;
  EXPECT_NE(read_file(path("stopped/report.html")).find("stopped by a signal"), std::string::npos);
}

TEST(Train, RefusesBadDataWithOneClearError) {
  text_file("short.txt", 65);
  write_file(path("empty.txt"), "");
  struct Bad {
    std::string file, says;
  };
  for (const Bad& bad : {Bad{path("no-such.txt"), "no-such.txt"}, Bad{folder().string(), "fix"},
                         Bad{path("empty.txt"), "is empty"}, Bad{path("short.txt"), "65 bytes"}}) {
    const Outcome run = coda_command(
        {"train", "--data", bad.file, "--seq", "32", "--steps", "1", "--output", path("none")});
    EXPECT_EQ(run.code, 1) << bad.file;
    EXPECT_NE(run.err.find(bad.says), std::string::npos) << run.err;
    EXPECT_NE(run.err.find("fix: "), std::string::npos) << run.err;
    EXPECT_EQ(run.out, "") << run.out;
    EXPECT_FALSE(fs::exists(path("none")));
  }
}

TEST(Train, RefusesSizesThatMakeNoModel) {
  EXPECT_EQ(coda_command(small({"--steps", "0"})).code, 2);
  EXPECT_EQ(coda_command(small({"--steps", "3", "--minutes", "1"})).code, 2);
  const Outcome run = coda_command(
      {"train", "--data", path("text.txt"), "--width", "100", "--heads", "3", "--steps", "1"});
  EXPECT_EQ(run.code, 1);
  EXPECT_NE(run.err.find("--width 100"), std::string::npos) << run.err;
}

TEST(Train, RefusesAnOutputThatIsAFileBeforeItTrains) {
  const Outcome run = coda_command(small({"--steps", "1000000", "--output", path("text.txt")}));
  EXPECT_EQ(run.code, 1);
  EXPECT_NE(run.err.find("text.txt"), std::string::npos) << run.err;
  EXPECT_EQ(run.out, "");
}

TEST(Generate, NamesTheFolderThatHoldsNoModel) {
  const Outcome run = coda_command({"generate", "--model", path("nowhere")});
  EXPECT_EQ(run.code, 1);
  EXPECT_NE(run.err.find("nowhere"), std::string::npos) << run.err;
}

#endif

}  // namespace
}  // namespace coda
