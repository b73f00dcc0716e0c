// The commands that work: tune, build, verify, bench, and doctor, on a machine without a GPU.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "cache/leases.h"
#include "cache/sqlite.h"
#include "tests/tools/cli.h"

namespace kiln::cli {
namespace {

using namespace std::chrono_literals;

bool has_nvrtc() {
  try {
    jit::Compiler::load();
    return true;
  } catch (const Error&) {
    return false;
  }
}

class BuildCommand : public CliTest {
 protected:
  void SetUp() override {
    if (!has_nvrtc()) GTEST_SKIP() << "no NVRTC on this machine";
  }

  // The problem of make_seed(): the smallest thing to build.
  std::string small_workload() const {
    const templates::Op& op = *templates::ops().front();
    Json sizes = Json::object();
    const templates::Sizes bucket = templates::all_buckets(op).back();
    const Json edges = templates::dynamic_json(op, bucket);
    for (const auto& [field, value] : edges.items()) {
      sizes[field] = {value, value};
    }
    const Json item = {{"op", op.name},
                       {"shape", templates::shape_json(op, op.model_shapes(2).front())},
                       {"sizes", sizes}};
    write_file("workload.json", Json{{"ops", {item}}}.dump());
    return path("workload.json");
  }
};

// A library that leaves a mark when it is loaded stands in for the driver.
TEST_F(BuildCommand, C11C87RanksForTheNamedGpuWithoutLoadingTheDriver) {
  environment["KILN_LIBCUDA"] = KILN_MARKING_LIBRARY;
  environment["KILN_TEST_MARK"] = path("mark");
  run({"devices"});
  ASSERT_TRUE(std::filesystem::remove(path("mark"))) << "the stand-in is not what devices loads";

  const Result result = run({"build", "--gpu", "rtx-3090", "--workload", small_workload()});
  ASSERT_EQ(result.code, 0) << result;
  EXPECT_FALSE(std::filesystem::exists(path("mark"))) << result;
  EXPECT_TRUE(contains(result.out, "predicted")) << result;
  EXPECT_TRUE(contains(result.out, "Next:")) << result;
  EXPECT_TRUE(contains(result.out, "kiln verify")) << result;

  const Json list = run({"ls", "--json"}).json();
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0]["gpu"], "rtx-3090");
  EXPECT_EQ(list[0]["kind"], "predicted");
  EXPECT_TRUE(list[0]["verified"].is_null());
  EXPECT_GT(list[0]["time_ns"].get<double>(), 0);

  const Json answer = run({"explain", templates::ops().front()->name, "--sizes",
                           list[0]["problem"]["bucket"].dump(), "--gpu", "rtx-3090", "--json"})
                          .json()["buckets"][0];
  EXPECT_EQ(answer["kind"], "predicted");
  EXPECT_EQ(answer["binaries"][0]["in_store"], true) << answer;
  EXPECT_EQ(answer["binaries"][0]["key"], answer["binaries"][0]["measured_key"]) << answer;

  const Result doctor = run({"doctor", "--json"});
  EXPECT_EQ(doctor.json()["store"]["defects"], Json::array()) << doctor;
}

TEST_F(BuildCommand, InvariantDecidesAlikeAndKeepsThat) {
  for (const char* outcome : {"1 decided now", "1 kept from before"}) {
    const Result result =
        run({"build", "--gpu", "rtx-3090", "--workload", small_workload(), "--invariant"});
    EXPECT_EQ(result.code, 0) << result;
    EXPECT_TRUE(contains(result.err, outcome)) << result;
  }
}

TEST_F(BuildCommand, KeepsWhatWasDecidedBetterBefore) {
  store_seed(db(), make_seed("rtx-3090"));
  const Result result =
      run({"build", "--gpu", "rtx-3090", "--workload", small_workload(), "--json"});
  ASSERT_EQ(result.code, 0) << result;
  EXPECT_EQ(result.json()["problems"][0]["state"], "kept") << result;
  EXPECT_EQ(result.json()["problems"][0]["kind"], "measured") << result;
  EXPECT_TRUE(contains(result.err, "--again")) << result;
}

TEST_F(BuildCommand, CtrlCEndsCleanlyAndCanBeResumed) {
  const pid_t pid = start({"build"});
  // The line that names the store comes right before the work.
  for (int i = 0; i < 3000 && !contains(err_so_far(), "the store is"); ++i) {
    std::this_thread::sleep_for(10ms);
  }
  ASSERT_TRUE(contains(err_so_far(), "the store is")) << err_so_far();
  std::this_thread::sleep_for(200ms);
  kill(pid, SIGINT);
  const Result result = finish(pid);
  EXPECT_EQ(result.code, code(ExitCode::interrupted)) << result;
  EXPECT_TRUE(contains(result.err, "Run the same command again to resume.")) << result;
  const Result doctor = run({"doctor", "--json"});
  EXPECT_EQ(doctor.json()["store"]["defects"], Json::array()) << doctor;
}

TEST_F(BuildCommand, SpentBudgetKeepsWhatWasCompiled) {
  const Result result = run({"build", "--gpu", "rtx-3090", "--workload", small_workload(),
                             "--budget", "150ms", "--json"});
  ASSERT_EQ(result.code, 0) << result;
  const Json store = run({"doctor", "--json"}).json()["store"];
  EXPECT_GE(store["binaries"], 1) << store.dump();
}

TEST_F(BuildCommand, DamagedWinnerIsMadeAnew) {
  const std::vector<std::string> build = {"build",      "--gpu",          "rtx-3090",
                                          "--workload", small_workload(), "--json"};
  ASSERT_EQ(run(build).code, 0);
  cache::Database(db(), SQLITE_OPEN_READWRITE)
      .execute("UPDATE images SET data = zeroblob(length(data))");
  EXPECT_EQ(run({"doctor"}).code, code(ExitCode::store));
  const Result again = run(build);
  EXPECT_EQ(again.json()["problems"][0]["state"], "tuned") << again;
  EXPECT_EQ(run({"doctor"}).code, 0);
}

TEST_F(BuildCommand, SecondInterruptEndsAtOnce) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "so slow a program may end before it gets the second one";
#endif
  const pid_t pid = start({"build"});
  for (int i = 0; i < 3000 && !contains(err_so_far(), "the store is"); ++i) {
    std::this_thread::sleep_for(10ms);
  }
  std::this_thread::sleep_for(200ms);
  kill(pid, SIGSTOP);  // so that it does not end between the two
  kill(pid, SIGINT);
  kill(pid, SIGTERM);  // another signal, since two of one kind may arrive as one
  kill(pid, SIGCONT);
  const Result result = finish(pid);
  EXPECT_EQ(result.code, code(ExitCode::interrupted)) << result;
  EXPECT_EQ(result.out, "") << "it went on to the closing table\n" << result;
}

class BuildPacks : public BuildCommand {
 protected:
  void SetUp() override {
    BuildCommand::SetUp();
    workload_ = testing::Test::IsSkipped() ? "" : small_workload();
  }
  Result build(const std::string& place, std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"build",   "--gpu",          "rtx-3090",
                                      "--gpu",   "a100-sxm4-80gb", "--workload",
                                      workload_, "--pack",         place};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  std::vector<std::string> files_in(const std::string& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path(folder))) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  // On another machine, without a store, a compiler and a driver of its own.
  void move_to_another_machine(const std::string& pack) {
    environment["KILN_DB"] = path("other.db");
    environment["KILN_PACK"] = pack;
    environment["KILN_NVRTC"] = path("no-such-libnvrtc.so");
  }
  std::vector<std::string> gpus_listed() {
    std::vector<std::string> gpus;
    for (const Json& row : run({"ls", "--json"}).json()) gpus.push_back(row["gpu"]);
    std::sort(gpus.begin(), gpus.end());
    return gpus;
  }

  std::string workload_;
};

TEST_F(BuildPacks, C54OnePackForEachArchitecture) {
  const Result built = build(path("packs"), {"--json"});
  ASSERT_EQ(built.code, 0) << built;
  EXPECT_EQ(files_in("packs"), (std::vector<std::string>{"sm_80.db", "sm_86.db"}));
  const Json packs = built.json()["packs"];
  ASSERT_EQ(packs.size(), 2u) << built;
  EXPECT_EQ(packs[1]["path"], path("packs/sm_86.db"));
  EXPECT_EQ(packs[1]["gpus"], Json({"rtx-3090"}));
  EXPECT_EQ(packs[1]["decisions"], 1);
  EXPECT_EQ(packs[1]["missing_kernels"], 0);

  const auto pack = cache::Store::open(
      {.path = path("packs/sm_86.db"), .pack = ":", .mode = cache::StoreOptions::Mode::read_only});
  EXPECT_TRUE(pack->warnings().empty());
  EXPECT_TRUE(pack->check().empty());
  const std::vector<cache::BinaryRow> binaries = pack->list_binaries();
  EXPECT_EQ(packs[1]["kernels"], binaries.size());
  size_t provers = 0;  // the oracle and the tools of the tuner
  for (const cache::BinaryRow& binary : binaries) {
    EXPECT_EQ(binary.arch, "sm_86");
    EXPECT_TRUE(pack->has_binary(binary.key));
    provers += binary.op.empty() ? 1 : 0;
  }
  EXPECT_GT(provers, 1u);
  EXPECT_GT(binaries.size(), provers);
}

TEST_F(BuildPacks, PacksServeAMachineThatHasNothingElse) {
  ASSERT_EQ(build(path("packs")).code, 0);
  const std::string bytes = read_file(path("packs/sm_86.db"));
  move_to_another_machine(path("packs"));
  EXPECT_EQ(gpus_listed(), (std::vector<std::string>{"a100-sxm4-80gb", "rtx-3090"}));
  const Json answer =
      run({"explain", templates::ops().front()->name, "--gpu", "rtx-3090", "--json"})
          .json()["buckets"];
  const auto decided = std::find_if(answer.begin(), answer.end(), [](const Json& bucket) {
    return bucket["kind"] == "predicted";
  });
  ASSERT_NE(decided, answer.end()) << answer.dump();
  EXPECT_EQ((*decided)["binaries"][0]["in_store"], true);
  // Beneath a build it is a store like any other: all is decided, so nothing is compiled.
  const Result again = run({"build", "--gpu", "rtx-3090", "--workload", workload_, "--json"});
  EXPECT_EQ(again.code, 0) << again;
  EXPECT_EQ(again.json()["problems"][0]["state"], "kept") << again;
  EXPECT_EQ(read_file(path("packs/sm_86.db")), bytes);
  EXPECT_EQ(files_in("packs"), (std::vector<std::string>{"sm_80.db", "sm_86.db"}));

  environment["KILN_PACK"] = path("packs/sm_80.db");
  environment["KILN_DB"] = path("third.db");
  EXPECT_EQ(gpus_listed(), std::vector<std::string>{"a100-sxm4-80gb"});
}

TEST_F(BuildPacks, OneFileForAllGpusAlsoOfWhatLiesInPacksBeneath) {
  ASSERT_EQ(build(path("packs")).code, 0);
  move_to_another_machine(path("packs"));
  const Result built = build(path("all.db"));
  ASSERT_EQ(built.code, 0) << built;
  EXPECT_TRUE(contains(built.err, "2 decisions and")) << built;
  EXPECT_TRUE(contains(built.out, "name it with KILN_PACK")) << built;
  environment["KILN_DB"] = path("third.db");
  environment["KILN_PACK"] = path("all.db");
  EXPECT_EQ(gpus_listed(), (std::vector<std::string>{"a100-sxm4-80gb", "rtx-3090"}));
}

TEST_F(BuildPacks, WhatCannotBeMadeIsRefusedBeforeAnyWork) {
  write_file("taken.db", "somebody's");
  write_file("file", "no folder");
  for (const auto& [place, sentence] :
       {std::pair{path("taken.db"), "exists"}, std::pair{path("file"), "cannot be made"},
        std::pair{db(), "is the store that the build works in"}}) {
    const Result result = build(place);
    EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
    EXPECT_TRUE(contains(result.err, sentence)) << result;
  }
  EXPECT_EQ(read_file(path("taken.db")), "somebody's");
  EXPECT_FALSE(std::filesystem::exists(db()));
}

TEST_F(BuildPacks, NoneIsMadeOfAnUnfinishedBuild) {
  const Result result = build(path("packs"), {"--budget", "1ms", "--json"});
  EXPECT_TRUE(contains(result.err, "no pack is made, because the build is not complete")) << result;
  EXPECT_EQ(result.json()["packs"], Json::array());
  EXPECT_EQ(files_in("packs"), std::vector<std::string>{});
}

class TuneCommand : public BuildCommand {};

TEST_F(TuneCommand, WithoutAGpuItSaysSoAndRanksForBothArchitectures) {
  // Both problems are decided, so that nothing is compiled.
  store_seed(db(), make_seed("a100-sxm4-80gb"));
  store_seed(db(), make_seed("rtx-3090"));
  const Result result = run({"tune", "--json", "--workload", small_workload()});
  ASSERT_EQ(result.code, 0) << result;
  EXPECT_TRUE(contains(result.err, "kiln: no GPU here (")) << result;
  EXPECT_TRUE(contains(result.err, "ranking for a100-sxm4-80gb and rtx-3090")) << result;
  EXPECT_EQ(result.json()["problems"].size(), 2U) << result;
}

class TuneFailure : public CliTest {};

TEST_F(TuneFailure, NamedDeviceThatIsNotThereIsExitCodeThree) {
  const Result result = run({"tune", "--device", "cuda:0"});
  EXPECT_EQ(result.code, code(ExitCode::no_device)) << result;
  EXPECT_TRUE(contains(result.err, "kiln build --gpu SLUG")) << result;

  environment["KILN_LIBCUDA"] = KILN_FAKE_LIBCUDA;
  const Result other = run({"tune", "--device", "cuda:7"});
  EXPECT_EQ(other.code, code(ExitCode::no_device)) << other;
  EXPECT_TRUE(contains(other.err, "cuda:1 (")) << other;
}

TEST_F(TuneFailure, StoreThatCannotBeWrittenIsToldBeforeAnyWork) {
  write_file("file", "not a folder");
  const Result result = run({"build", "--db", path("file") + "/kiln.db"});
  EXPECT_EQ(result.code, code(ExitCode::store)) << result;
  EXPECT_TRUE(contains(result.err, "--db PATH")) << result;
  EXPECT_EQ(result.out, "") << result;
}

TEST_F(TuneFailure, NoPlaceForTheStoreIsToldBeforeAnyWork) {
  environment.erase("KILN_DB");
  environment.erase("HOME");
  const Result result = run({"build"});
  EXPECT_EQ(result.code, code(ExitCode::store)) << result;
}

TEST_F(TuneFailure, MissingNvrtcIsExitCodeFour) {
  environment["KILN_NVRTC"] = path("no-such-libnvrtc.so");
  const Result result = run({"build"});
  EXPECT_EQ(result.code, code(ExitCode::no_compiler)) << result;
  EXPECT_TRUE(contains(result.err, "KILN_NVRTC")) << result;
}

TEST_F(TuneFailure, WorkloadMistakeNamesTheEntry) {
  write_file("workload.json", R"({"ops": [{"op": "no_such_op"}]})");
  const Result result = run({"build", "--workload", path("workload.json")});
  EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
  EXPECT_TRUE(contains(result.err, "no_such_op")) << result;
}

TEST_F(TuneFailure, NamesInAWorkloadAreEscapedAndCutNoSentence) {
  const std::string op = R"({"ops": [{"op": ")" + templates::ops().front()->name + '"';
  for (const std::string& text : {std::string(R"({"a\u0000b\n\u001b[2J": 1})"),
                                  std::string(R"({"ops": [{"op": "a\u0000b\n\u001b[2J"}]})"),
                                  op + R"(, "shape": {"a\u0000b\n\u001b[2J": 1}}]})",
                                  op + R"(, "sizes": {"a\u0000b\n\u001b[2J": 1}}]})",
                                  std::string(R"({"a\u0000b\n\u001b[2J": 1,
                                                  "a\u0000b\n\u001b[2J": 2})")}) {
    write_file("workload.json", text);
    const Result result = run({"build", "--workload", path("workload.json")});
    EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
    const size_t name = result.err.find(R"("a\u0000b\n\u001b[2J")");
    ASSERT_NE(name, std::string::npos) << result;
    EXPECT_NE(result.err.find(' ', name), std::string::npos) << "cut after the name\n" << result;
  }
  write_file("workload.json", "{\"\xff\": 1}");
  const Result not_utf8 = run({"build", "--workload", path("workload.json")});
  EXPECT_EQ(not_utf8.code, code(ExitCode::usage)) << not_utf8;
  EXPECT_TRUE(contains(not_utf8.err, "line 1, column 3")) << not_utf8;
  EXPECT_FALSE(contains(not_utf8.err, "\xff")) << not_utf8;
}

TEST_F(TuneFailure, WorkloadThatIsNoRegularFileIsRefusedAtOnce) {
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  for (const std::string& place : {path("fifo"), std::string("/dev/zero"), path(".")}) {
    const pid_t pid = start({"build", "--workload", place});
    const bool ended = ends_within(pid, 60s);
    if (!ended) kill(pid, SIGKILL);
    const Result result = finish(pid);
    EXPECT_TRUE(ended) << place;
    EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
    EXPECT_TRUE(contains(result.err, "is not a regular file")) << result;
    EXPECT_TRUE(contains(result.err, "- to read standard input")) << result;
  }
}

TEST_F(TuneFailure, WorkloadOfMoreThanOneMebibyteIsRefused) {
  write_file("workload.json", std::string((1 << 20) + 1, ' '));
  const Result result = run({"build", "--workload", path("workload.json")});
  EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
  EXPECT_TRUE(contains(result.err, "longer than 1048576 bytes (1 MiB)")) << result;
  standard_input = path("workload.json");
  EXPECT_TRUE(contains(run({"build", "--workload", "-"}).err, "longer than 1048576 bytes"));
  // One byte less is read, and found not to be JSON.
  write_file("workload.json", std::string(1 << 20, ' '));
  EXPECT_TRUE(contains(run({"build", "--workload", "-"}).err, "not valid JSON"));
}

TEST_F(TuneFailure, WorkloadThatIsEmptyIsNotTakenForTheDefault) {
  const Result result = run({"build", "--workload", "-"});
  EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
  EXPECT_TRUE(contains(result.err, "standard input is empty")) << result;
}

TEST_F(TuneFailure, CtrlCEndsAReadOfStandardInput) {
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  standard_input = path("fifo");
  const pid_t pid = start({"build", "--workload", "-"});
  EXPECT_FALSE(ends_within(pid, 1s)) << err_so_far();
  kill(pid, SIGINT);
  const bool ended = ends_within(pid, 60s);
  if (!ended) kill(pid, SIGKILL);
  EXPECT_EQ(finish(pid).signal, SIGINT);
  EXPECT_TRUE(ended);
}

TEST_F(TuneFailure, StoreInMemoryIsRefusedBeforeAnyWork) {
  for (const char* command : {"tune", "build"}) {
    const Result result = run({command, "--db", ":memory:"});
    EXPECT_EQ(result.code, code(ExitCode::store)) << result;
    EXPECT_TRUE(contains(result.err, "in memory (from --db)")) << result;
    EXPECT_EQ(result.out, "") << result;
  }
  environment["KILN_DB"] = ":memory:";
  const Result result = run({"build"});
  EXPECT_EQ(result.code, code(ExitCode::store)) << result;
  EXPECT_TRUE(contains(result.err, "in memory (from KILN_DB)")) << result;
  // An empty variable names no place.
  environment["KILN_DB"] = "";
  environment.erase("HOME");
  const Result nowhere = run({"build"});
  EXPECT_EQ(nowhere.code, code(ExitCode::store)) << nowhere;
  EXPECT_TRUE(contains(nowhere.err, "names a place")) << nowhere;
}

TEST_F(TuneFailure, FileSizeLimitIsAFailureWithASentence) {
  most_file_bytes = 16 << 10;
  const Result result = run({"build"});
  EXPECT_EQ(result.signal, 0) << "ended by the signal of the limit\n" << result;
  EXPECT_EQ(result.code, code(ExitCode::store)) << result;
  EXPECT_TRUE(contains(result.err, "cannot be written")) << result;

  most_file_bytes = 100;
  const Result output = run({"ops", "--json"});
  EXPECT_EQ(output.signal, 0) << output;
  EXPECT_EQ(output.code, code(ExitCode::failed)) << output;
}

class DeviceCommands : public CliTest {};

TEST_F(DeviceCommands, WithoutADeviceTheyAreExitCodeThree) {
  store_seed(db(), make_seed("rtx-3090"));
  for (const char* command : {"verify", "bench"}) {
    const Result result = run({command, "--json"});
    EXPECT_EQ(result.code, code(ExitCode::no_device)) << result;
    EXPECT_TRUE(contains(result.err, "there is no device \"cuda:0\" here")) << result;
    EXPECT_EQ(result.out, "") << result;
  }
}

TEST_F(DeviceCommands, UnknownGpuIsNotSimulated) {
  const Result result = run({"verify", "--device", "sim:rtx-3091"});
  EXPECT_EQ(result.code, code(ExitCode::no_device)) << result;
  EXPECT_TRUE(contains(result.err, "did you mean \"rtx-3090\"?")) << result;
}

TEST_F(DeviceCommands, SimulatedGpuHasNoClockForBench) {
  const Result result = run({"bench", "--device", "sim:rtx-3090"});
  EXPECT_EQ(result.code, code(ExitCode::usage)) << result;
  EXPECT_TRUE(contains(result.err, "has no clock")) << result;
}

TEST_F(TuneCommand, SimulatedGpuProvesEveryCandidateAndWhatIsStored) {
  const Result tuned =
      run({"tune", "--device", "sim:rtx-3090", "--workload", small_workload(), "--json"});
  ASSERT_EQ(tuned.code, 0) << tuned;
  const Json rows = tuned.json()["problems"];
  ASSERT_FALSE(rows.empty()) << tuned;
  for (const Json& row : rows) {
    EXPECT_EQ(row["state"], "tuned") << tuned;
    EXPECT_EQ(row["kind"], "predicted") << tuned;
    EXPECT_EQ(row["gpu"], "rtx-3090") << tuned;
  }
  const Json decisions = run({"ls", "--json"}).json();
  EXPECT_EQ(decisions.size(), rows.size());
  for (const Json& decision : decisions) EXPECT_EQ(decision["verified"], "simulator");

  const Result verified = run({"verify", "--device", "sim:rtx-3090", "--json"});
  EXPECT_EQ(verified.code, 0) << verified;
  const Json proofs = verified.json();
  EXPECT_EQ(proofs.size(), rows.size());
  for (const Json& proof : proofs) {
    EXPECT_EQ(proof["outcome"], "passed") << verified;
    EXPECT_TRUE(contains(proof["detail"], "in place of")) << "the bucket is large: " << verified;
  }

  // The simulator runs PTX of the same source, but what serves the card is the stored image: what
  // is damaged, what nobody vouches for and what is not there is compiled and kept.
  const auto open_store = [&] {
    return cache::Store::open({.path = db(), .mode = cache::StoreOptions::Mode::read_only});
  };
  const std::vector<cache::DecisionRow> stored = open_store()->list_decisions();
  for (const char* loss :
       {"UPDATE images SET data = x'00'", "UPDATE images SET trusted = 0", "DELETE FROM images"}) {
    sqlite3* handle = nullptr;
    ASSERT_EQ(sqlite3_open(db().c_str(), &handle), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(handle, loss, nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(handle);
    const Result again = run({"verify", "--device", "sim:rtx-3090", "--json"});
    EXPECT_EQ(again.code, 0) << again;
    for (const Json& proof : again.json()) EXPECT_EQ(proof["outcome"], "passed") << again;
    const auto store = open_store();
    for (const cache::DecisionRow& row : stored) {
      const std::optional<cache::PlanRecord> plan = store->find_plan(row.decision.plan);
      ASSERT_TRUE(plan);
      for (const auto& kernel : plan->kernels) {
        EXPECT_TRUE(store->find_binary(kernel.binary)) << loss;
      }
    }
  }
}

class DoctorCommand : public CliTest {};

TEST_F(DoctorCommand, MachineWithoutAGpuIsHealthyForBuilding) {
  if (!has_nvrtc()) GTEST_SKIP() << "no NVRTC on this machine";
  const Result result = run({"doctor", "--json"});
  EXPECT_EQ(result.code, 0) << result;
  const Json report = result.json();
  EXPECT_EQ(report["healthy"], true);
  EXPECT_EQ(report["can"]["build"], true);
  EXPECT_EQ(report["can"]["tune"], false);
  EXPECT_EQ(report["store"]["path"], db());
  EXPECT_EQ(report["store"]["why"], "from KILN_DB");
  EXPECT_TRUE(contains(report["driver"]["problem"].get<std::string>(), "libcuda")) << result;
  EXPECT_GE(report["pool"]["workers"].get<int>(), 1);
  size_t chosen = 0;
  for (const Json& candidate : report["compiler"]["candidates"]) {
    chosen += candidate["chosen"].get<bool>() ? 1 : 0;
  }
  EXPECT_EQ(chosen, 1U) << result;
  EXPECT_FALSE(std::filesystem::exists(db())) << "doctor made a store";
}

TEST_F(DoctorCommand, TextSaysWhatWorksAndWhatDoesNot) {
  const Result result = run({"doctor"});
  EXPECT_TRUE(contains(result.out, "On this machine:")) << result;
  EXPECT_TRUE(contains(result.out, "verify   needs a GPU here")) << result;
}

TEST_F(DoctorCommand, MissingNvrtcIsExitCodeFourAndNamesWhatWasSearched) {
  environment["KILN_NVRTC"] = path("no-such-libnvrtc.so");
  const Result result = run({"doctor", "--json"});
  EXPECT_EQ(result.code, code(ExitCode::no_compiler)) << result;
  EXPECT_EQ(result.json()["can"]["build"], false);
  EXPECT_TRUE(
      contains(result.json()["compiler"]["problem"].get<std::string>(), "no-such-libnvrtc.so"))
      << result;
}

TEST_F(DoctorCommand, NvrtcThatIsNewerThanTheDriverIsToldApart) {
  environment["KILN_LIBCUDA"] = KILN_FAKE_LIBCUDA;
  environment["KILN_FAKE_CUDA_DRIVER"] = "12020";
  environment.erase("KILN_NVRTC");
  const Result result = run({"doctor", "--json"});
  const Json compiler = result.json()["compiler"];
  EXPECT_EQ(compiler["driver_cuda_major"], 12) << result;
  size_t newer = 0;
  for (const Json& candidate : compiler["candidates"]) {
    const bool is_newer =
        candidate["usable"] && std::stoi(candidate["version"].get<std::string>()) > 12;
    EXPECT_EQ(candidate["too_new"], is_newer) << candidate;
    if (is_newer) {
      EXPECT_FALSE(candidate["chosen"]) << candidate;
    }
    newer += is_newer ? 1 : 0;
  }
  if (newer == 0) GTEST_SKIP() << "no NVRTC here is newer than 12";
  EXPECT_TRUE(contains(run({"doctor"}).out, "too new"));
}

TEST_F(DoctorCommand, StoreInMemoryIsExitCodeSixAndSaysWhoPutItThere) {
  const Result result = run({"doctor", "--db", ":memory:", "--json"});
  EXPECT_EQ(result.code, code(ExitCode::store)) << result;
  EXPECT_EQ(result.json()["store"]["in_memory"], true);
  EXPECT_EQ(result.json()["store"]["why"], "from --db");
  EXPECT_EQ(result.json()["can"]["build"], false);

  environment.erase("KILN_DB");
  environment.erase("HOME");
  const Result text = run({"doctor"});
  EXPECT_EQ(text.code, code(ExitCode::store)) << text;
  EXPECT_TRUE(contains(text.out,
                       "Store      :memory: (neither KILN_DB, XDG_CACHE_HOME nor HOME names a "
                       "place, /dev/null/kiln-"))
      << text;
  EXPECT_TRUE(contains(text.out, "           IN MEMORY: ")) << text;
  EXPECT_FALSE(contains(text.out, "every row and checksum holds")) << text;
}

TEST_F(DoctorCommand, ListsWhoMakesWhat) {
  const auto store = cache::Store::open({.path = db()});
  cache::take_leases(*store, cache::LeaseOf::binary, {hash_text("a"), hash_text("b")}, 8);
  cache::take_leases(*store, cache::LeaseOf::search, {hash_text("c")}, 8);
  const std::string holder = fmt::format("process {} on ", ::getpid());
  const Result text = run({"doctor"});
  EXPECT_TRUE(contains(text.out, holder)) << text;
  EXPECT_TRUE(contains(text.out, " has been compiling 2 kernels for ")) << text;
  EXPECT_TRUE(contains(text.out, " has been tuning 1 shape for ")) << text;
  const Json leases = run({"doctor", "--json"}).json()["store"]["leases"];
  ASSERT_EQ(leases.size(), 3u);
  for (const Json& lease : leases) {
    EXPECT_EQ(lease["holder"].get<std::string>().find(holder), 0u);
    EXPECT_LE(lease["age_s"].get<int64_t>(), 60);
  }
  EXPECT_EQ(leases[2]["work"], "tune");
}

TEST_F(DoctorCommand, DamagedStoreIsExitCodeSix) {
  store_seed(db(), make_seed("rtx-3090"));
  EXPECT_EQ(run({"doctor", "--json"}).json()["store"]["decisions"], 1);
  write_file("kiln.db", std::string(8192, 'x'));
  const Result result = run({"doctor", "--json"});
  EXPECT_EQ(result.code, code(ExitCode::store)) << result;
  EXPECT_EQ(result.json()["store"]["sound"], false);
}

TEST_F(DoctorCommand, JobsOptionSizesThePool) {
  const Json pool = run({"doctor", "--json", "--jobs", "3"}).json()["pool"];
  EXPECT_EQ(pool["workers"], 3);
}

TEST_F(DoctorCommand, DevicesAreMatchedWithTheGpuTableAndTheStore) {
  store_seed(db(), make_seed("rtx-3090"));
  environment["KILN_LIBCUDA"] = KILN_FAKE_LIBCUDA;
  const Json report = run({"doctor", "--json"}).json();
  ASSERT_EQ(report["driver"]["devices"].size(), 2U);
  EXPECT_EQ(report["driver"]["devices"][1]["gpu"], "rtx-3090");
  EXPECT_EQ(report["driver"]["devices"][0]["decisions"], 0);
  EXPECT_EQ(report["driver"]["devices"][1]["decisions"], 1);
  EXPECT_EQ(report["worker"]["problem"], nullptr);
  EXPECT_EQ(report["can"]["bench"], true);
}

}  // namespace
}  // namespace kiln::cli
