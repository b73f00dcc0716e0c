// Many processes that start on one empty store at once: ranks over the C interface, on the fake
// driver and on simulated GPUs with the compiler that is there, and tunings.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cache/leases.h"
#include "cache/store.h"
#include "jit/base/json.h"
#include "jit/compiler.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

#ifdef __SANITIZE_ADDRESS__
constexpr size_t kMany = 8;  // each takes several times the memory
#else
constexpr size_t kMany = 32;
#endif

struct Result {
  int status = -1;  // as of waitpid
  std::string out;
  std::string err;
  Json json() const {
    Json value = Json::parse(out, nullptr, false);
    EXPECT_TRUE(value.is_object()) << out << err;
    return value.is_object() ? value : Json::object();
  }
};

class ProcessesOnOneStore : public testing::Test {
 protected:
  void SetUp() override {
    try {
      jit::Compiler::load();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    std::string name = (fs::temp_directory_path() / "kiln-ranks-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    for (const char* variable : {"PATH", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS",
                                 "TSAN_OPTIONS", "KILN_NVRTC", "CUDA_HOME", "CUDA_PATH"}) {
      if (const char* value = std::getenv(variable)) environment_[variable] = value;
    }
    environment_["HOME"] = name;
    environment_["KILN_DB"] = db();
    environment_["KILN_LOCAL"] = "/dev/null";
    environment_["KILN_LIBCUDA"] = KILN_FAKE_LIBCUDA;
    environment_["KILN_FAKE_CUDA_DRIVER"] = "97000";  // of any NVRTC
  }
  void TearDown() override {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string db() const { return path("kiln.db"); }

  pid_t start(const Words& words, const std::string& name) const {
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    std::vector<std::string> variables;
    for (const auto& [key, value] : environment_) variables.push_back(key + "=" + value);
    std::vector<char*> envp;
    for (std::string& variable : variables) envp.push_back(variable.data());
    envp.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    const int flags = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, path(name + ".out").c_str(), flags,
                                     0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, path(name + ".err").c_str(), flags,
                                     0600);
    pid_t pid = -1;
    EXPECT_EQ(posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), envp.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
  }
  Result finish(pid_t pid, const std::string& name) const {
    Result result;
    EXPECT_EQ(::waitpid(pid, &result.status, 0), pid);
    result.out = read_file(path(name + ".out"));
    result.err = read_file(path(name + ".err"));
    return result;
  }
  Result run(const Words& words, const std::string& name) const {
    return finish(start(words, name), name);
  }

  struct Rank {
    std::string device;
    std::string store;  // "": the one of all
    bool dies = false;
  };
  // All at once; each that does not die has to end well.
  std::vector<Result> run_ranks(const std::vector<Rank>& ranks, const std::string& workload) const {
    std::vector<pid_t> pids;
    for (size_t i = 0; i < ranks.size(); ++i) {
      Words words = {KILN_RANK, ranks[i].device, ranks[i].store.empty() ? db() : ranks[i].store,
                     workload};
      if (ranks[i].dies) words.push_back("die");
      pids.push_back(start(words, "rank" + std::to_string(i)));
    }
    std::vector<Result> results;
    for (size_t i = 0; i < ranks.size(); ++i) {
      results.push_back(finish(pids[i], "rank" + std::to_string(i)));
      if (!ranks[i].dies) {
        EXPECT_EQ(results.back().status, 0) << results.back().err;
      }
    }
    return results;
  }

  int64_t binaries() const {
    return cache::Store::open({.path = db(), .mode = cache::StoreOptions::Mode::read_only})
        ->info()
        .binaries;
  }
  void expect_sound_and_free() const {
    const auto store = cache::Store::open({.path = db()});
    EXPECT_EQ(store->check(), std::vector<std::string>{});
    EXPECT_TRUE(cache::list_leases(*store).empty());
  }

  fs::path folder_;
  std::map<std::string, std::string> environment_;
};

int64_t sum_of_compiles(const std::vector<Result>& results) {
  int64_t sum = 0;
  for (const Result& result : results) sum += result.json().value("compiles", int64_t{0});
  return sum;
}

class Ranks : public ProcessesOnOneStore {
 protected:
  // Seven kernels an arch.
  const std::string workload_ =
      R"({"ops": [{"op": "combine_topk_swa"}, {"op": "gather_dequant_kv"}]})";
};

TEST_F(Ranks, EightOnOneStoreWithMixedGpus) {
  std::vector<Rank> ranks;
  for (int i = 0; i < 4; ++i) {
    ranks.push_back({.device = "cuda:0"});
    ranks.push_back({.device = "cuda:1"});
  }
  const std::vector<Result> results = run_ranks(ranks, workload_);
  EXPECT_EQ(sum_of_compiles(results), binaries());
  EXPECT_EQ(binaries(), 14);
  std::set<std::string> exact[2];
  std::set<std::string> numerics;
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].json()["kernels"], 7) << results[i].err;
    exact[i % 2].insert(results[i].json()["exact"]);
    numerics.insert(results[i].json()["numerics"]);
  }
  EXPECT_EQ(exact[0].size(), 1u);
  EXPECT_EQ(exact[1].size(), 1u);
  EXPECT_NE(exact[0], exact[1]);
  EXPECT_EQ(numerics.size(), 1u);
  expect_sound_and_free();

  for (const Result& result : run_ranks(ranks, workload_)) {
    EXPECT_EQ(result.json()["compiles"], 0) << result.err;
  }
}

TEST_F(Ranks, EightOnSimulatedGpus) {
  const std::string workload = R"({"ops": [{"op": "combine_topk_swa"}]})";
  std::vector<Rank> ranks;
  for (int i = 0; i < 4; ++i) {
    ranks.push_back({.device = "sim:rtx-3090"});
    ranks.push_back({.device = "sim:a100-sxm4-80gb"});
  }
  const std::vector<Result> results = run_ranks(ranks, workload);
  EXPECT_EQ(sum_of_compiles(results), binaries());
  std::set<std::string> numerics;
  for (const Result& result : results) numerics.insert(result.json()["numerics"]);
  EXPECT_EQ(numerics.size(), 1u);
  expect_sound_and_free();
}

// A table that one rank alone has is seen, though it computes the same.
TEST_F(Ranks, C37C92DigestsTellRanksApart) {
  const std::string workload =
      R"({"ops": [{"op": "combine_topk_swa", "shape": {"ratio": 2, "top_k": 512}}]})";
  const Words pin = {KILN_CLI_PATH,
                     "pin",
                     "combine_topk_swa",
                     "--gpu",
                     "rtx-3090",
                     "--shape",
                     R"({"ratio": 2, "top_k": 512})",
                     "--config",
                     R"({"threads_per_row": 64, "rows_per_cta": 4, "prefetch_topk": 1})",
                     "--db",
                     path("other.db")};
  const Result pinned = run(pin, "pin");
  ASSERT_EQ(pinned.status, 0) << pinned.err;
  const std::vector<Result> results = run_ranks(
      {{.device = "cuda:1"}, {.device = "cuda:1"}, {.device = "cuda:1", .store = path("other.db")}},
      workload);
  EXPECT_EQ(results[0].json()["exact"], results[1].json()["exact"]);
  EXPECT_NE(results[0].json()["exact"], results[2].json()["exact"]);
  EXPECT_EQ(results[0].json()["numerics"], results[2].json()["numerics"]);
}

TEST_F(Ranks, OneDiesInTheMiddle) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<Rank> ranks(8, {.device = "cuda:0"});
  ranks[3].dies = true;
  ranks[3].device = "cuda:1";  // so that its kernels are left to one other
  ranks[4].device = "cuda:1";
  const std::vector<Result> results = run_ranks(ranks, workload_);
  EXPECT_TRUE(WIFSIGNALED(results[3].status)) << results[3].err;
  EXPECT_EQ(binaries(), 14);
  int64_t compiles = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (i != 3) compiles += results[i].json().value("compiles", int64_t{0});
  }
  // What the dead one put into the store is not compiled again, and nothing is twice.
  EXPECT_LE(compiles, 14);
  EXPECT_GE(compiles, 7);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60)) << "it was wedged";
  expect_sound_and_free();
}

class ThirtyTwoProcesses : public ProcessesOnOneStore {};

TEST_F(ThirtyTwoProcesses, OpenTuneAndPrepareOneEmptyStore) {
  constexpr size_t kProcesses = kMany;
  const std::string workload = R"({"ops": [{"op": "pack_weights"}]})";
  std::ofstream(path("workload.json")) << workload;
  std::vector<Result> tuned(kProcesses);
  std::vector<Result> prepared(kProcesses);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kProcesses; ++i) {
    threads.emplace_back([&, i] {
      const std::string name = "process" + std::to_string(i);
      tuned[i] = run({KILN_CLI_PATH, "tune", "--device", "sim:rtx-3090", "--tries", "2",
                      "--workload", path("workload.json"), "--json"},
                     name);
      prepared[i] = run({KILN_RANK, "sim:rtx-3090", db(), workload}, name + "rank");
    });
  }
  for (std::thread& thread : threads) thread.join();

  int64_t tunings = 0;
  int64_t candidates = 0;
  for (size_t i = 0; i < kProcesses; ++i) {
    EXPECT_EQ(tuned[i].status, 0) << tuned[i].err;
    EXPECT_EQ(prepared[i].status, 0) << prepared[i].err;
    const Json problems = tuned[i].json().value("problems", Json::array());
    ASSERT_EQ(problems.size(), 1u) << "C42: each has the whole list";
    if (problems[0]["state"] == "tuned") {
      ++tunings;
      candidates = problems[0]["distinct_binaries"];
    } else {
      EXPECT_EQ(problems[0]["state"], "kept");
    }
    EXPECT_EQ(problems[0]["winner"], tuned[0].json()["problems"][0]["winner"]);
    EXPECT_EQ(prepared[i].json()["exact"], prepared[0].json()["exact"]);
    EXPECT_EQ(prepared[i].json()["compiles"], 0) << "what ran in the tuning is kept";
  }
  EXPECT_EQ(tunings, 1);
  // Everything that was compiled is in the store, but for candidates that were not decided for: as
  // PTX for the simulator and as code of the card.
  std::map<std::string, int64_t> kept;  // of the op, by arch
  const auto store = cache::Store::open({.path = db()});
  for (const cache::BinaryRow& row : store->list_binaries()) {
    if (row.entry == "pack_weights") ++kept[row.arch];
  }
  int64_t dropped = 0;
  for (const auto& [arch, count] : kept) dropped += candidates - count;
  EXPECT_EQ(kept.size(), 2u);
  EXPECT_EQ(sum_of_compiles(tuned), store->info().binaries + dropped);
  EXPECT_EQ(sum_of_compiles(prepared), 0);
}

}  // namespace
}  // namespace kiln
