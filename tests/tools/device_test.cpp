// The commands that use a device, from the command line to the store and back. The device is this
// host (tests/tuner/host_device.h): `kiln`, its child process, the protocol, the proof against the
// oracle, measuring and deciding are the real ones; the toy op's kernels are host functions, and
// their times are planted. The driver that lists the device is the fake one, whose cuda:0 is an
// A100 too. What a GPU computes is not tested here.
#include <signal.h>
#include <sqlite3.h>

#include <algorithm>
#include <thread>

#include "cache/sqlite.h"
#include "tests/tools/cli.h"
#include "tests/tuner/toy_op.h"

namespace kiln::cli {
namespace {

using namespace std::chrono_literals;

Json config(int64_t behaviour) { return {{"behaviour", behaviour}, {"twin", 0}}; }

class ToyDevice : public CliTest {
 protected:
  static void SetUpTestSuite() { testing::register_toy(); }

  void SetUp() override {
    environment["KILN_LIBCUDA"] = KILN_FAKE_LIBCUDA;
    environment["KILN_NVRTC"] = path("no-such-libnvrtc.so");  // all binaries are in the store
    environment["KILN_TOY_L2_BYTES"] = std::to_string(find_gpu("a100-sxm4-80gb").l2_bytes);
    environment["KILN_TOY_MEMORY_BYTES"] = std::to_string(int64_t{256} << 20);
    set_space({testing::kToyDefault, testing::kToyFast, testing::kToyWrong});
    testing::store_toy_binaries(*cache::Store::open({.path = db()}), "sm_80");
  }

  void set_space(const std::vector<int64_t>& behaviours) {
    environment["KILN_TOY_SPACE"] = fmt::format("{}", fmt::join(behaviours, ","));
  }
  // One of the op's two problems.
  std::string one_problem() const {
    write_file("workload.json", R"({"ops": [{"op": "toy", "sizes": {"num_rows": [64, 64]}}]})");
    return path("workload.json");
  }
  size_t decisions() const {
    return cache::Store::open({.path = db(), .mode = cache::StoreOptions::Mode::read_only})
        ->list_decisions()
        .size();
  }
  void tune() {
    const Result result = run({"tune", "--op", "toy"});
    ASSERT_EQ(result.code, 0) << result;
  }
};

TEST_F(ToyDevice, TuneDecidesEveryProblemAndSaysSo) {
  const Result result = run({"tune", "--op", "toy", "--json"});
  ASSERT_EQ(result.code, 0) << result;
  const Json report = result.json();
  EXPECT_EQ(report["end"], "finished");
  ASSERT_EQ(report["problems"].size(), 2U) << result;
  for (const Json& problem : report["problems"]) {
    EXPECT_EQ(problem["state"], "tuned");
    EXPECT_EQ(problem["kind"], "measured");
    EXPECT_EQ(problem["winner"], config(testing::kToyFast));
    EXPECT_EQ(problem["time_ns"], 1e6);
    EXPECT_EQ(problem["default_ns"], 2e6);
    EXPECT_EQ(problem["rejected"]["wrong"], 1);
  }
  EXPECT_TRUE(contains(result.err, "tuning on cuda:0; the store is " + db())) << result;
  EXPECT_TRUE(contains(result.err, "2 decided now, 0 in part, 0 kept from before, 0 failed"))
      << result;

  const Result again = run({"tune", "--op", "toy"});
  EXPECT_EQ(again.code, 0) << again;
  EXPECT_TRUE(contains(again.out, "kept")) << again;
  EXPECT_TRUE(contains(again.err, "nothing was left to do")) << again;
}

TEST_F(ToyDevice, WhatWasTunedIsListedShownAndExplained) {
  tune();
  const Json list = run({"ls", "--json"}).json();
  ASSERT_EQ(list.size(), 2U);
  for (const Json& row : list) {
    EXPECT_EQ(row["op"], "toy");
    EXPECT_EQ(row["gpu"], "a100-sxm4-80gb");
    EXPECT_EQ(row["kind"], "measured");
    EXPECT_EQ(row["verified"], "device");
    EXPECT_EQ(row["config"], config(testing::kToyFast));
  }

  const Result show = run({"show", "toy", "num_rows=64", "--json"});
  ASSERT_EQ(show.code, 0) << show;
  ASSERT_EQ(show.json()["problems"].size(), 1U) << show;
  const Json problem = show.json()["problems"][0];
  EXPECT_EQ(problem["timings"].size(), 2U) << show;
  EXPECT_EQ(problem["verifications"].size(), 2U) << show;
  ASSERT_EQ(problem["rejections"].size(), 1U) << show;
  EXPECT_EQ(problem["rejections"][0]["reason"], "wrong");
  EXPECT_EQ(problem["binaries"][0]["in_store"], true);
  EXPECT_TRUE(contains(run({"show", "toy"}).out, "clocks unknown"));  // the host has no NVML

  const Result explain = run({"explain", "toy", "--device", "cuda:0", "--json"});
  ASSERT_EQ(explain.code, 0) << explain;
  const Json answers = explain.json()["buckets"];
  ASSERT_EQ(answers.size(), 2U) << explain;
  for (const Json& answer : answers) {
    EXPECT_EQ(answer["kind"], "measured");
    EXPECT_EQ(answer["verified"], "device");
    EXPECT_EQ(answer["gain_over_default"], 2.0);
  }
}

TEST_F(ToyDevice, VerifyProvesWhatIsStored) {
  tune();
  const Result result = run({"verify", "--op", "toy", "--json"});
  EXPECT_EQ(result.code, 0) << result;
  ASSERT_EQ(result.json().size(), 2U) << result;
  for (const Json& row : result.json()) {
    EXPECT_EQ(row["outcome"], "passed");
    EXPECT_EQ(row["passed"], true);
    EXPECT_EQ(row["detail"], "3 cases");
  }
  EXPECT_TRUE(contains(result.err, "2 of 2 stored configs passed on cuda:0")) << result;
}

TEST_F(ToyDevice, VerifyWaitsForALaunchAsLongAsItIsTold) {
  tune();
  environment["KILN_TOY_BEHAVIOUR"] = std::to_string(testing::kToyHang);
  const Result result = run({"verify", "--op", "toy", "--hang-timeout", "1s", "--json"});
  EXPECT_EQ(result.code, code(ExitCode::failed)) << result;
  for (const Json& row : result.json()) {
    EXPECT_EQ(row["outcome"], "unproven");
    EXPECT_TRUE(contains(row["detail"], "killed after 1 s without an answer")) << result;
  }
  const Result none = run({"verify", "--hang-timeout", "0"});
  EXPECT_EQ(none.code, code(ExitCode::usage)) << none;
  EXPECT_TRUE(contains(none.err, "Leave --hang-timeout out")) << none;
}

TEST_F(ToyDevice, ConfigThatComputesSomethingElseIsExitCodeFiveAndIsServedNoMore) {
  tune();
  environment["KILN_TOY_BEHAVIOUR"] = std::to_string(testing::kToyWrong);
  const Result result = run({"verify", "--op", "toy", "--json"});
  EXPECT_EQ(result.code, code(ExitCode::not_verified)) << result;
  ASSERT_EQ(result.json().size(), 2U) << result;
  for (const Json& row : result.json()) EXPECT_EQ(row["outcome"], "failed");
  EXPECT_TRUE(contains(result.err, "2 of 2 stored configs failed")) << result;
  const Json answers = run({"explain", "toy", "--device", "cuda:0", "--json"}).json()["buckets"];
  for (const Json& answer : answers) EXPECT_EQ(answer["kind"], "default");
}

TEST_F(ToyDevice, PredictionServesInPlaceOfAMeasurementThatFailedAndTuneDecidesAnew) {
  set_space({testing::kToyDefault, testing::kToyMiddling});
  const Result built =
      run({"build", "--gpu", "a100-sxm4-80gb", "--workload", one_problem(), "--json"});
  ASSERT_EQ(built.code, 0) << built;
  ASSERT_EQ(built.json()["problems"][0]["winner"], config(testing::kToyMiddling)) << built;
  set_space({testing::kToyDefault, testing::kToyMiddling, testing::kToyFast});
  ASSERT_EQ(run({"tune", "--workload", one_problem()}).code, 0);

  const auto kind = [&] {
    return run({"explain", "toy", "--device", "cuda:0", "--sizes", R"({"num_rows": 64})", "--json"})
        .json()["buckets"][0]["kind"];
  };
  EXPECT_EQ(kind(), "measured");
  environment["KILN_TOY_BEHAVIOUR"] = std::to_string(testing::kToyWrong);
  const Result verified = run({"verify"});
  EXPECT_EQ(verified.code, code(ExitCode::not_verified)) << verified;
  EXPECT_TRUE(contains(verified.err, "the next sound decision does, or else the default"))
      << verified;
  EXPECT_FALSE(contains(verified.err, "--again")) << verified;
  EXPECT_EQ(kind(), "predicted");

  environment.erase("KILN_TOY_BEHAVIOUR");
  const Result again = run({"tune", "--workload", one_problem(), "--json"});
  EXPECT_EQ(again.json()["problems"][0]["state"], "tuned") << again;
  EXPECT_EQ(kind(), "measured");
}

TEST_F(ToyDevice, WhatIsNeitherStoredNorCompiledIsUnproven) {
  tune();
  sqlite3* store = nullptr;
  ASSERT_EQ(sqlite3_open(db().c_str(), &store), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(store,
                         "DELETE FROM images WHERE binary IN (SELECT binary FROM plan_kernels "
                         "JOIN decisions USING (plan))",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(store);
  const Result verify = run({"verify", "--op", "toy", "--json"});
  EXPECT_EQ(verify.code, code(ExitCode::failed)) << verify;
  for (const Json& row : verify.json()) {
    EXPECT_EQ(row["outcome"], "unproven");
    EXPECT_TRUE(contains(row["detail"], "and it cannot be compiled: ")) << verify;
    EXPECT_TRUE(contains(row["detail"], "no-such-libnvrtc.so")) << verify;
  }
}

TEST_F(ToyDevice, ImageFromElsewhereServesOnceItIsProvenWithoutACompiler) {
  tune();
  sqlite3* store = nullptr;
  ASSERT_EQ(sqlite3_open(db().c_str(), &store), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(store,
                         "UPDATE images SET trusted = 0 WHERE binary IN (SELECT binary FROM "
                         "plan_kernels JOIN decisions USING (plan)); DELETE FROM verifications",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(store);
  const auto untrusted = [this] {
    int64_t count = 0;
    for (const cache::BinaryRow& row :
         cache::Store::open({.path = db(), .mode = cache::StoreOptions::Mode::read_only})
             ->list_binaries()) {
      count += row.trusted ? 0 : 1;
    }
    return count;
  };
  ASSERT_GT(untrusted(), 0);

  // What computes something else stays untrusted.
  environment["KILN_TOY_BEHAVIOUR"] = std::to_string(testing::kToyWrong);
  EXPECT_EQ(run({"verify", "--op", "toy"}).code, code(ExitCode::not_verified));
  EXPECT_GT(untrusted(), 0);

  environment.erase("KILN_TOY_BEHAVIOUR");
  const Result verify = run({"verify", "--op", "toy", "--json"});
  EXPECT_EQ(verify.code, 0) << verify;
  for (const Json& row : verify.json()) EXPECT_EQ(row["outcome"], "passed");
  EXPECT_EQ(untrusted(), 0);
}

TEST_F(ToyDevice, WhatCannotBeRunIsUnprovenAndUnmeasuredAndExitCodeOne) {
  tune();
  environment["KILN_TOY_MEMORY_BYTES"] = "100000";
  const Result verify = run({"verify", "--op", "toy", "--json"});
  EXPECT_EQ(verify.code, code(ExitCode::failed)) << verify;
  ASSERT_EQ(verify.json().size(), 2U) << verify;
  for (const Json& row : verify.json()) {
    EXPECT_EQ(row["outcome"], "unproven");
    EXPECT_EQ(row["passed"], false);
  }
  EXPECT_TRUE(contains(verify.err, "could not be proven")) << verify;
  for (const Json& row : run({"ls", "--json"}).json()) EXPECT_EQ(row["verified"], "device");

  const Result bench = run({"bench", "--op", "toy", "--json"});
  EXPECT_EQ(bench.code, code(ExitCode::failed)) << bench;
  ASSERT_EQ(bench.json().size(), 2U) << bench;
  for (const Json& row : bench.json()) {
    EXPECT_TRUE(contains(row["problem"].get<std::string>(), "no memory")) << bench;
    EXPECT_TRUE(row["time_ns"].is_null());
  }
  EXPECT_TRUE(contains(bench.err, "was not measured: no memory")) << bench;

  const Result tuned = run({"tune", "--op", "toy", "--again", "--json"});
  const Json rows = tuned.json()["problems"];
  EXPECT_EQ(rows.size(), 2U) << tuned;
  for (const Json& row : rows) EXPECT_EQ(row["state"], "no memory") << tuned;
}

TEST_F(ToyDevice, BenchTimesTheStoredConfigsBesideTheDefault) {
  tune();
  const Result result = run({"bench", "--op", "toy", "--json"});
  EXPECT_EQ(result.code, 0) << result;
  ASSERT_EQ(result.json().size(), 2U) << result;
  for (const Json& row : result.json()) {
    EXPECT_EQ(row["config"], config(testing::kToyFast));
    EXPECT_EQ(row["kind"], "measured");
    EXPECT_EQ(row["time_ns"], 1e6);
    EXPECT_EQ(row["default_ns"], 2e6);
    EXPECT_GT(row["bytes"].get<double>(), 0);
    EXPECT_GT(row["ceiling_gb_per_s"].get<double>(), 0);
    EXPECT_TRUE(row["problem"].is_null());
  }
  const Result text = run({"bench", "--op", "toy", "--sizes", R"({"num_rows": 64})"});
  EXPECT_EQ(text.code, 0) << text;
  EXPECT_TRUE(contains(text.out, "1.00 ms")) << text;
}

TEST_F(ToyDevice, BenchUnderLimitsTimesTheConfigsOfThatGpu) {
  const Result before = run({"bench", "--op", "toy", "--limits", "a30", "--json"});
  ASSERT_EQ(before.code, 0) << before;
  for (const Json& row : before.json()) EXPECT_EQ(row["kind"], "default") << before;
  const Result tuned = run({"tune", "--op", "toy", "--limits", "a30"});
  ASSERT_EQ(tuned.code, 0) << tuned;
  const Result after = run({"bench", "--op", "toy", "--limits", "a30", "--json"});
  ASSERT_EQ(after.code, 0) << after;
  ASSERT_EQ(after.json().size(), 2U) << after;
  for (const Json& row : after.json()) {
    EXPECT_EQ(row["kind"], "predicted") << after;  // of a stand-in
    EXPECT_EQ(row["config"], config(testing::kToyFast)) << after;
  }
  const Result unknown = run({"bench", "--op", "toy", "--limits", "a31"});
  EXPECT_EQ(unknown.code, 2) << unknown;
}

TEST_F(ToyDevice, SpentBudgetLeavesAPartialDecisionThatTheNextRunTakesUp) {
  // The one that hangs costs more than the budget; whoever comes after it is not tried.
  set_space({testing::kToyDefault, testing::kToyFast, testing::kToyHang, testing::kToyMiddling});
  const std::string workload = one_problem();
  const Result result = run({"tune", "--workload", workload, "--budget", "3s", "--json"});
  EXPECT_EQ(result.code, 0) << result;
  EXPECT_EQ(result.json()["end"], "budget") << result;
  ASSERT_EQ(result.json()["problems"].size(), 1U) << result;
  EXPECT_EQ(result.json()["problems"][0]["state"], "partial") << result;
  EXPECT_EQ(result.json()["problems"][0]["winner"], config(testing::kToyFast)) << result;
  EXPECT_TRUE(contains(result.err, "0 decided now, 1 in part")) << result;
  EXPECT_TRUE(contains(result.err, "the budget is spent")) << result;
  EXPECT_EQ(decisions(), 1U);

  set_space({testing::kToyDefault, testing::kToyFast, testing::kToyMiddling});
  const Result again = run({"tune", "--workload", workload, "--json"});
  EXPECT_EQ(again.json()["problems"][0]["state"], "tuned") << again;
}

TEST_F(ToyDevice, InterruptedTuneKeepsWhatWasFinishedAndIsResumed) {
  set_space({testing::kToyDefault, testing::kToyFast, testing::kToyHang});
  const pid_t pid = start({"tune", "--op", "toy", "--json"});
  // Each problem waits for the one that hangs, so the second is not finished when the first is
  // stored.
  for (int i = 0; i < 6000 && decisions() == 0; ++i) std::this_thread::sleep_for(10ms);
  kill(pid, SIGINT);
  const Result result = finish(pid);
  EXPECT_EQ(result.code, code(ExitCode::interrupted)) << result;
  EXPECT_EQ(result.json()["end"], "stopped") << result;
  ASSERT_EQ(result.json()["problems"].size(), 2U) << result;
  EXPECT_EQ(result.json()["problems"][0]["state"], "tuned") << result;
  EXPECT_EQ(result.json()["problems"][1]["state"], "stopped") << result;
  EXPECT_EQ(run({"ls", "--json"}).json().size(), 1U);

  set_space({testing::kToyDefault, testing::kToyFast});
  const Result resumed = run({"tune", "--op", "toy", "--json"});
  EXPECT_EQ(resumed.code, 0) << resumed;
  EXPECT_EQ(resumed.json()["problems"][0]["state"], "kept") << resumed;
  EXPECT_EQ(resumed.json()["problems"][1]["state"], "tuned") << resumed;
}

TEST_F(ToyDevice, StoreThatIsReplacedMeanwhileIsExitCodeSix) {
  std::filesystem::copy_file(db(), path("other.db"));
  set_space({testing::kToyDefault, testing::kToyFast, testing::kToyHang});
  const pid_t pid = start({"tune", "--op", "toy"});
  for (int i = 0; i < 6000 && decisions() == 0; ++i) std::this_thread::sleep_for(10ms);
  for (const char* suffix : {"-wal", "-shm"}) std::filesystem::remove(db() + suffix);
  std::filesystem::rename(path("other.db"), db());
  const Result result = finish(pid);
  EXPECT_EQ(result.code, code(ExitCode::store)) << result;
  EXPECT_TRUE(contains(result.err, "was removed or replaced meanwhile")) << result;
  EXPECT_FALSE(contains(result.out, "Next:")) << result;
  EXPECT_EQ(decisions(), 1U);  // the second problem went into the file that is there now
}

TEST_F(ToyDevice, StoreThatIsOverwrittenMeanwhileIsExitCodeSix) {
  set_space({testing::kToyDefault, testing::kToyFast, testing::kToyHang});
  const pid_t pid = start({"tune", "--op", "toy"});
  for (int i = 0; i < 6000 && decisions() == 0; ++i) std::this_thread::sleep_for(10ms);
  std::filesystem::resize_file(db() + "-wal", 0);
  const Result result = finish(pid);
  EXPECT_EQ(result.code, code(ExitCode::store)) << result;
}

TEST_F(ToyDevice, StoreOnADiskThatFillsUpIsExitCodeSix) {
  most_file_bytes = 36 << 10;  // shared memory of 32 KiB fits, a log with a result does not
  const Result result = run({"tune", "--op", "toy"});
  EXPECT_EQ(result.code, code(ExitCode::store)) << result;
  EXPECT_TRUE(contains(result.err, "what this command found out may be lost")) << result;

  most_file_bytes = -1;
  tune();
  // Who reads keeps the log from being emptied into the file.
  cache::Database reader(db(), SQLITE_OPEN_READWRITE);
  const cache::Transaction snapshot(reader, cache::Transaction::Kind::read);
  reader.query_integer("SELECT count(*) FROM decisions");
  most_file_bytes = 36 << 10;
  for (int proofs = 0; proofs < 40; ++proofs) {  // until the log has no more room
    const Result verified = run({"verify"});
    if (verified.code == 0) continue;
    EXPECT_EQ(verified.code, code(ExitCode::store)) << verified;
    return;
  }
  FAIL() << "the disk never filled up";
}

TEST_F(ToyDevice, WorkerThatDiesWhileOpeningIsExitCodeOneWithTheReason) {
  environment["KILN_TOY_DIE"] = "open";
  for (const char* command : {"tune", "verify", "bench"}) {
    const Result result = run({command, "--op", "toy"});
    EXPECT_EQ(result.code, code(ExitCode::failed)) << result;
    EXPECT_TRUE(contains(result.err, "signal 6")) << result;
    EXPECT_EQ(result.out, "") << result;
  }
}

}  // namespace
}  // namespace kiln::cli
