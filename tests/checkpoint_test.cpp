// tests/checkpoint_test.cpp: training that is stopped, killed, out of space, and goes on.
#include "coda/model/checkpoint.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "coda/core/error.h"
#include "coda/cpu/cpu.h"
#include "tests/refusal.h"
#include "tests/train_command.h"

namespace coda {
namespace {

#ifdef CODA_BINARY

std::vector<std::string> resumed(const std::string& folder, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"train",    "--data", text_file("text.txt", 3000),
                                        "--output", folder,   "--resume"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// What the checkpoint of a folder says, without the names of files.
std::string bits_of(const std::string& folder) {
  const Checkpoint checkpoint = load_checkpoint(folder);
  std::string bits = checkpoint.training.metadata.at("state");
  for (const Safetensors* file : {&checkpoint.model, &checkpoint.training}) {
    for (const auto& [name, tensor] : file->tensors) {
      bits += name + std::string(tensor.as<char>(), tensor.bytes());
    }
  }
  return bits;
}

// Files of a folder, but for the run's report.
std::size_t files_in(const std::string& folder) {
  return static_cast<std::size_t>(std::count_if(
      fs::directory_iterator(folder), fs::directory_iterator(), [](const auto& entry) {
        const std::string name = entry.path().filename().string();
        return name != "log.jsonl" && name != "report.html";
      }));
}

// ---- the same bits ----

TEST(Checkpoint, FortyStepsAreTwentyAndTwentyMoreOnAnyThreads) {
  const std::vector<std::vector<std::string>> kinds = {{"--dtype", "f32"},
                                                       {"--dtype", "bf16", "--tied"}};
  for (const std::vector<std::string>& kind : kinds) {
    const std::string whole = path("whole-" + kind[1]), halves = path("halves-" + kind[1]);
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.end(), kind.begin(), kind.end());
      more.insert(more.end(), {"--steps", "40"});
      return small(more);
    };
    ASSERT_EQ(coda_command(with({"--output", whole, "--threads", "1"})).code, 0);
    ASSERT_EQ(coda_command(with({"--output", halves, "--stop-at", "20"})).code, 0);
    EXPECT_EQ(load_checkpoint(halves).position.done, 20);
    const Outcome second = coda_command(resumed(halves, {"--threads", "2"}));
    ASSERT_EQ(second.code, 0) << second.err;
    EXPECT_EQ(load_checkpoint(halves).position.done, 40);
    EXPECT_EQ(read_file(whole + "/model.safetensors"), read_file(halves + "/model.safetensors"));
    EXPECT_EQ(bits_of(whole), bits_of(halves));
    EXPECT_EQ(files_in(halves), 3u);
  }
}

TEST(Checkpoint, AFinishedRunResumedChangesNothing) {
  ASSERT_EQ(coda_command(small({"--steps", "3", "--output", path("finished")})).code, 0);
  const std::string before = bits_of(path("finished"));
  const Outcome again = coda_command(resumed(path("finished")));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.out.find("Held-out loss after"), std::string::npos);
  EXPECT_EQ(bits_of(path("finished")), before);
}

// ---- interrupted ----

TEST(Checkpoint, FifteenKillsLoseNothingThatWasSaved) {
  const std::string folder = path("killed"), model = folder + "/model.safetensors";
  const auto inode = [&] {
    struct stat status{};
    return stat(model.c_str(), &status) == 0 ? status.st_ino : 0;
  };
  Random random(7);
  std::int64_t step = 0;
  for (int round = 0; round < 15; ++round) {
    const auto before = inode();
    const pid_t child = start_coda(
        round == 0 ? small({"--steps", "100000", "--output", folder, "--save-every", "1"})
                   : resumed(folder, {"--save-every", "1"}));
    wait_until([&] { return inode() != before; });
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(8000)));
    kill(child, SIGKILL);
    ASSERT_EQ(wait_for(child).code, -SIGKILL) << read_file(path("err"));
    const Checkpoint checkpoint = load_checkpoint(folder);
    EXPECT_GT(checkpoint.position.done, step);
    step = checkpoint.position.done;
  }
  const std::string end = std::to_string(step + 1);
  ASSERT_EQ(coda_command(resumed(folder, {"--stop-at", end})).code, 0);
  EXPECT_EQ(files_in(folder), 3u);
  ASSERT_EQ(
      coda_command(small({"--steps", "100000", "--output", path("never-killed"), "--stop-at", end}))
          .code,
      0);
  EXPECT_EQ(bits_of(folder), bits_of(path("never-killed")));
}

TEST(Checkpoint, CtrlCAndSigtermSaveAndASecondOneKills) {
  const auto interrupted = [](const std::string& name, const std::vector<int>& signals) {
    return coda_command(small({"--steps", "1000000", "--output", path(name)}), "step 1/1000000",
                        signals);
  };
  EXPECT_EQ(interrupted("sigint", {SIGINT}).code, 128 + SIGINT);
  EXPECT_GT(load_checkpoint(path("sigint")).position.done, 0);
  const Outcome terminated = interrupted("sigterm", {SIGTERM});
  ASSERT_EQ(terminated.code, 128 + SIGTERM) << terminated.out << terminated.err;
  EXPECT_NE(terminated.out.find("Stopped by SIGTERM"), std::string::npos);
  EXPECT_GT(load_checkpoint(path("sigterm")).position.done, 0);
  // NOTE: on a busy machine the first ones may arrive as one.
  EXPECT_EQ(interrupted("twice", std::vector<int>(50, SIGINT)).code, -SIGINT);
}

// A tmpfs of `bytes` at `at`, seen by this thread and its children alone. The reason where there
// can be none.
std::string mount_small(const std::string& at, std::size_t bytes) {
  fs::create_directories(at);
  const std::string size = "size=" + std::to_string(bytes);
  const bool mounted = unshare(CLONE_NEWNS) == 0 &&
                       mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                       mount("tmpfs", at.c_str(), "tmpfs", 0, size.c_str()) == 0;
  return mounted ? "" : std::strerror(errno);
}

TEST(Checkpoint, AFullDiskKeepsTheLastOneAndSaysWhatToDo) {
  const std::string folder = path("full");
  const std::string reason = mount_small(folder, 1 << 20);
  if (!reason.empty()) GTEST_SKIP() << "no tmpfs can be mounted here: " << reason;
  ASSERT_EQ(
      coda_command(small({"--steps", "50", "--output", folder + "/model", "--stop-at", "5"})).code,
      0);
  const std::string before = bits_of(folder + "/model");
  const std::size_t rest = fs::space(folder).available;
  write_file(folder + "/filler", std::string(rest - 100'000, 'x'));
  const Outcome run = coda_command(resumed(folder + "/model", {"--save-every", "5"}));
  EXPECT_EQ(run.code, 1);
  for (const char* text : {"No space left", "the checkpoint of step 5",
                           "fix: free space on the "
                           "disk",
                           "--resume"}) {
    EXPECT_NE(run.err.find(text), std::string::npos) << text << " in " << run.err;
  }
  EXPECT_EQ(bits_of(folder + "/model"), before);
  EXPECT_EQ(files_in(folder + "/model"), 3u);
  fs::remove(folder + "/filler");
  EXPECT_EQ(coda_command(resumed(folder + "/model")).code, 0);
  EXPECT_EQ(load_checkpoint(folder + "/model").position.done, 50);
  umount(folder.c_str());
}

// ---- refused ----

TEST(Checkpoint, RefusesOtherOptionsAndAnotherTextByName) {
  const std::string folder = path("options");
  ASSERT_EQ(coda_command(small({"--steps", "6", "--output", folder, "--stop-at", "3"})).code, 0);
  const std::string before = bits_of(folder);
  const std::vector<std::vector<std::string>> others = {
      {"--layers", "2"}, {"--width", "64"},   {"--heads", "4"}, {"--kv-heads", "2"},
      {"--seq", "16"},   {"--batch", "8"},    {"--lr", "0.02"}, {"--seed", "2"},
      {"--steps", "7"},  {"--dtype", "bf16"}, {"--tied"}};
  for (const std::vector<std::string>& other : others) {
    const Outcome run = coda_command(resumed(folder, other));
    EXPECT_EQ(run.code, 1) << other[0];
    EXPECT_NE(run.err.find("error: " + other[0] + " is"), std::string::npos) << run.err;
    EXPECT_NE(run.err.find("fix: leave " + other[0] + " away"), std::string::npos) << run.err;
  }
  for (const std::string other : {"--quick", "--overwrite"}) {
    EXPECT_EQ(coda_command(resumed(folder, {other})).code, 2) << other;
  }
  const Outcome text = coda_command(
      {"train", "--data", text_file("longer.txt", 3001), "--output", folder, "--resume"});
  EXPECT_EQ(text.code, 1);
  EXPECT_NE(text.err.find("longer.txt is not the text"), std::string::npos) << text.err;
  EXPECT_EQ(bits_of(folder), before);
  EXPECT_EQ(coda_command(resumed(folder, {"--lr", "0.01", "--steps", "6"})).code, 0);
}

TEST(Checkpoint, AModelIsReplacedOnlyWhereThatIsAskedFor) {
  const std::string folder = path("replaced");
  ASSERT_EQ(coda_command(small({"--steps", "2", "--output", folder})).code, 0);
  const std::string before = bits_of(folder);
  const Outcome again = coda_command(small({"--steps", "2", "--output", folder}));
  EXPECT_EQ(again.code, 1);
  EXPECT_NE(again.err.find("--resume"), std::string::npos) << again.err;
  EXPECT_NE(again.err.find("--overwrite"), std::string::npos) << again.err;
  EXPECT_EQ(bits_of(folder), before);
  // Of other sizes, so that no file can stay.
  ASSERT_EQ(coda_command(small({"--steps", "2", "--output", folder, "--overwrite", "--tied"})).code,
            0);
  EXPECT_EQ(load_checkpoint(folder).config.embeddings, Embeddings::tied);
  EXPECT_EQ(files_in(folder), 3u);
  EXPECT_EQ(coda_command({"generate", "--model", folder, "--bytes", "3"}).code, 0);
}

TEST(Checkpoint, OneRunAtATimeWritesToAFolder) {
  const std::string folder = path("locked");
  fs::create_directories(folder);
  const FolderLock lock(folder);
  const Outcome run = coda_command(small({"--steps", "1", "--output", folder}));
  EXPECT_EQ(run.code, 1);
  EXPECT_NE(run.err.find("another process is writing into"), std::string::npos) << run.err;
}

TEST(Checkpoint, OnlyItsOwnLeftoversAreRemoved) {
  const std::string folder = path("leftovers");
  fs::create_directories(folder);
  const std::vector<std::string> kept = {"training-data.safetensors", "notes.part-1", "model.bin"};
  for (const std::string& name : kept) write_file(folder + "/" + name, "mine");
  for (const char* name : {"model.safetensors.part-12-0", "config.json.part-12-1",
                           "training-000007.safetensors.part-12-2"}) {
    write_file(folder + "/" + name, "half");
  }
  ASSERT_EQ(coda_command(small({"--steps", "2", "--output", folder})).code, 0);
  EXPECT_EQ(files_in(folder), 3u + kept.size());
  for (const std::string& name : kept) EXPECT_EQ(read_file(folder + "/" + name), "mine");
}

TEST(Checkpoint, RefusesFoldersThatTrainingCannotGoOnFrom) {
  const std::string folder = path("damaged");
  EXPECT_NE(refusal([&] { load_checkpoint(path("nowhere")); }).find("holds no model"),
            std::string::npos);
  ASSERT_EQ(coda_command(small({"--steps", "2", "--output", folder})).code, 0);
  const Checkpoint good = load_checkpoint(folder);
  const std::string state = good.training.metadata.at("state");
  const auto views = [](const Safetensors& file) {
    std::map<std::string, Tensor> tensors;
    for (const auto& [name, tensor] : file.tensors) tensors[name] = tensor.tensor();
    return tensors;
  };
  const auto with = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json changed = nlohmann::json::parse(state);
    changed[nlohmann::json::json_pointer(pointer)] = value;
    return changed.dump();
  };
  struct Case {
    std::string state, reason;
  };
  for (const Case& each : {
           Case{"", "no state of training"},
           Case{"{", "no state of training"},
           Case{"[]", "no state of training"},
           Case{with("/format", 2), "another version"},
           Case{with("/step", "two"), "no state of training"},
           Case{with("/step", -1), "that no training has"},
           Case{with("/step", 3), "that no training has"},
           Case{with("/options/batch", 0), "that no training has"},
           Case{with("/options/dtype", "f8"), "that no training has"},
           Case{with("/data", 3), "no state of training"},
       }) {
    write_safetensors(good.training_path, views(good.training), {{"state", each.state}});
    const std::string text = refusal([&] { load_checkpoint(folder); });
    EXPECT_NE(text.find(each.reason), std::string::npos) << each.state << ": " << text;
    EXPECT_NE(text.find("fix: "), std::string::npos) << text;
  }
  fs::remove(good.training_path);
  EXPECT_NE(refusal([&] { load_checkpoint(folder); }).find("No such file"), std::string::npos);
  for (const char* name : {"", "../training-000002.safetensors", "model.safetensors"}) {
    write_safetensors(folder + "/model.safetensors", views(good.model), {{"training", name}});
    EXPECT_NE(refusal([&] { load_checkpoint(folder); }).find("not the state"), std::string::npos);
  }
}

#endif

}  // namespace
}  // namespace coda
