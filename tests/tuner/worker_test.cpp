// The child process and its parent's side: what is lost when a candidate misbehaves, and who is
// blamed.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/tuner/toy_op.h"
#include "tuner/binaries.h"
#include "tuner/device_worker.h"
#include "tuner/worker.h"

namespace kiln::tuner {
namespace {

using testing::ToyBehaviour;

constexpr double kShortHangS = 0.5;

class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~ScopedEnvironment() { unsetenv(name_); }

 private:
  const char* name_;
};

// True when no such process runs; one that only waits to be reaped is gone too.
bool gone(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(stat, text)) return true;
  return text.substr(text.rfind(')') + 2, 1) == "Z";
}

bool gone_within(pid_t pid, double seconds) {
  const double deadline_s = now_s() + seconds;
  while (!gone(pid) && now_s() < deadline_s)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return gone(pid);
}

class WorkerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { testing::register_toy(); }

  WorkerTest() : store_(cache::Store::open({.path = ":memory:"})), binaries_(*store_) {
    testing::store_toy_binaries(*store_, "sm_80");
  }

  std::unique_ptr<DeviceWorker> open() {
    auto worker = std::make_unique<DeviceWorker>(WorkerOptions{
        .executable = TOY_WORKER, .device = "cuda:0", .hang_timeout_s = kShortHangS, .log = {}});
    worker->set_tools(binaries_.tools("sm_80"));
    return worker;
  }
  PlanWork plan(int64_t behaviour) {
    const templates::Op& op = testing::toy_op();
    const templates::Config config{{"behaviour", behaviour}, {"twin", 0}};
    const templates::KernelLaunch launch =
        op.plan(shape_, config, find_gpu("a100-sxm4-80gb")).kernels[0];
    return {.op = &op,
            .fixed = shape_,
            .config = config,
            .limits = {},
            .binaries = {binaries_.get(templates::kernel_source(op, launch), "sm_80",
                                       templates::compile_options(launch))},
            .smem_bytes = {0}};
  }
  RunVerdict verify(DeviceWorker& worker, int64_t behaviour) {
    const templates::Kit& kit = testing::toy_kit();
    return worker.verify(plan(behaviour), binaries_.oracle(kit, shape_, "sm_80"),
                         kit.verify_cases(shape_, {{"R", 4}}));
  }
  MeasureResult measure(DeviceWorker& worker, const std::vector<int64_t>& behaviours,
                        int rounds = 3) {
    std::vector<PlanWork> plans;
    for (const int64_t behaviour : behaviours) plans.push_back(plan(behaviour));
    return worker.measure(plans, testing::toy_kit().measured_case(shape_, {{"R", 4}}), rounds, 0);
  }

  const templates::Sizes shape_{{"scale", 3}};
  std::unique_ptr<cache::Store> store_;
  Binaries binaries_;
};

TEST_F(WorkerTest, OpensTheDeviceAndDescribesIt) {
  const auto worker = open();
  EXPECT_EQ(worker->info().match, "a100-sxm4-80gb");
  EXPECT_EQ(worker->info().gpu.sm_count, 108);
  EXPECT_GT(worker->memory_bytes(), 0);
}

TEST_F(WorkerTest, RightCandidateIsVerifiedInEveryCase) {
  const auto worker = open();
  const RunVerdict verdict = verify(*worker, testing::kToyFast);
  EXPECT_EQ(verdict.outcome, Outcome::passed) << verdict.detail;
  EXPECT_EQ(verdict.detail, "3 cases");
}

TEST_F(WorkerTest, WrongCandidateCostsNoProcess) {
  const auto worker = open();
  const RunVerdict verdict = verify(*worker, testing::kToyWrong);
  EXPECT_EQ(verdict.outcome, Outcome::wrong);
  EXPECT_NE(verdict.detail.find("part of the columns"), std::string::npos) << verdict.detail;
  EXPECT_EQ(verify(*worker, testing::kToyFast).outcome, Outcome::passed);
  EXPECT_EQ(worker->restarts(), 0);
}

TEST_F(WorkerTest, C100CandidateThatScribblesDoesNotSpoilTheNext) {
  const auto worker = open();
  EXPECT_EQ(verify(*worker, testing::kToyChangesInput).outcome, Outcome::wrong);
  EXPECT_EQ(verify(*worker, testing::kToyFast).outcome, Outcome::passed);
}

TEST_F(WorkerTest, DamageToAnotherCaseIsNotBlamedOnTheNextCandidate) {
  const auto worker = open();
  // Right in every case, but the large one is left with the first one's input changed.
  EXPECT_EQ(verify(*worker, testing::kToyChangesEarlierInput).outcome, Outcome::passed);
  const RunVerdict verdict = verify(*worker, testing::kToyFast);
  EXPECT_EQ(verdict.outcome, Outcome::passed) << verdict.detail;
}

TEST_F(WorkerTest, C104TrapCostsTheProcessAndTheNextOneGoesOn) {
  const auto worker = open();
  EXPECT_EQ(verify(*worker, testing::kToyTrap).outcome, Outcome::trap);
  EXPECT_EQ(verify(*worker, testing::kToyFast).outcome, Outcome::passed);
  EXPECT_EQ(worker->restarts(), 1);
}

TEST_F(WorkerTest, RefusedLaunchIsTold) {
  const auto worker = open();
  const RunVerdict verdict = verify(*worker, testing::kToyRefused);
  EXPECT_EQ(verdict.outcome, Outcome::launch);
  EXPECT_NE(verdict.detail.find("toy: error 1"), std::string::npos) << verdict.detail;
  EXPECT_EQ(worker->restarts(), 0);
}

TEST_F(WorkerTest, DeathOfTheChildIsBlamedOnTheCandidateWithItsLastWords) {
  const auto worker = open();
  const RunVerdict verdict = verify(*worker, testing::kToyAbort);
  EXPECT_EQ(verdict.outcome, Outcome::crash);
  EXPECT_NE(verdict.detail.find("toy: about to abort"), std::string::npos) << verdict.detail;
  EXPECT_EQ(verify(*worker, testing::kToyFast).outcome, Outcome::passed);
}

TEST_F(WorkerTest, HangIsKilledAndTheNextOneGoesOn) {
  const auto worker = open();
  const pid_t child = worker->child_pid();
  ASSERT_GT(child, 0);
  const RunVerdict verdict = verify(*worker, testing::kToyHang);
  EXPECT_EQ(verdict.outcome, Outcome::timeout);
  EXPECT_NE(verdict.detail.find("killed after 0.5 s"), std::string::npos) << verdict.detail;
  EXPECT_EQ(kill(child, 0), -1);  // dead and reaped
  EXPECT_EQ(verify(*worker, testing::kToyFast).outcome, Outcome::passed);
  EXPECT_EQ(worker->restarts(), 1);
}

TEST_F(WorkerTest, MeasuringTellsTimesByPlanAndRound) {
  const auto worker = open();
  const MeasureResult result = measure(*worker, {testing::kToyDefault, testing::kToyFast}, 4);
  ASSERT_EQ(result.outcome, Outcome::passed) << result.detail;
  ASSERT_EQ(result.samples.times_ns.size(), 2u);
  EXPECT_EQ(result.samples.times_ns[0], std::vector<double>(4, 2e6));
  EXPECT_EQ(result.samples.times_ns[1], std::vector<double>(4, 1e6));
  EXPECT_EQ(result.samples.rounds.size(), 4u);
  EXPECT_GE(result.calls, 4);
  EXPECT_EQ(result.calls % result.copies, 0);
  EXPECT_GT(result.copies, 1);
}

TEST_F(WorkerTest, WhoTrapsWhileMeasuredIsNamed) {
  const auto worker = open();
  const MeasureResult result =
      measure(*worker, {testing::kToyDefault, testing::kToyTrapsWhenTimed, testing::kToyFast});
  EXPECT_EQ(result.outcome, Outcome::trap) << result.detail;
  EXPECT_EQ(result.index, 1);
  EXPECT_EQ(measure(*worker, {testing::kToyDefault, testing::kToyFast}).outcome, Outcome::passed);
}

TEST_F(WorkerTest, WhoHangsWhileMeasuredIsNamed) {
  const auto worker = open();
  const MeasureResult result =
      measure(*worker, {testing::kToyDefault, testing::kToyFast, testing::kToyHangsWhenTimed});
  EXPECT_EQ(result.outcome, Outcome::timeout);
  EXPECT_EQ(result.index, 2);
}

TEST_F(WorkerTest, SlowClocksAreNotBlamedOnACandidate) {
  const ScopedEnvironment slow("KILN_TOY_CLOCKS_MS", "1000");  // twice what a candidate may take
  const auto worker = open();
  const MeasureResult result = measure(*worker, {testing::kToyDefault, testing::kToyFast});
  EXPECT_EQ(result.outcome, Outcome::passed) << result.detail;
  EXPECT_EQ(worker->restarts(), 0);
}

TEST_F(WorkerTest, TooLittleMemoryIsAnAnswer) {
  const ScopedEnvironment little("KILN_TOY_MEMORY_BYTES", "100000");
  const auto worker = open();
  EXPECT_EQ(verify(*worker, testing::kToyFast).outcome, Outcome::no_memory);
  EXPECT_EQ(worker->restarts(), 0);
}

TEST_F(WorkerTest, DeathWhileOpeningIsAnErrorWithTheReason) {
  const ScopedEnvironment die("KILN_TOY_DIE", "open");
  try {
    open();
    FAIL() << "a dead child was taken for an open device";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::driver_error);
    EXPECT_NE(std::string(error.what()).find("signal 6"), std::string::npos) << error.what();
  }
}

TEST_F(WorkerTest, MissingExecutableIsNotFound) {
  EXPECT_THROW(find_worker("/nowhere/kiln-worker"), Error);
  EXPECT_THROW(ChildProcess("/nowhere/kiln-worker"), Error);
}

TEST_F(WorkerTest, OtherProtocolVersionIsRefused) {
  ChildProcess child(TOY_WORKER);
  ASSERT_TRUE(
      child.channel().send({{"do", "hello"}, {"protocol", kProtocol + 1}, {"parent", getpid()}}));
  Frame frame;
  ASSERT_EQ(child.channel().receive(frame, 60), Received::frame);
  EXPECT_FALSE(frame.header.at("ok"));
  EXPECT_NE(frame.header.at("error").get<std::string>().find("version"), std::string::npos);
}

TEST_F(WorkerTest, RequestOutOfOrderIsRefusedNotFatal) {
  ChildProcess child(TOY_WORKER);
  ASSERT_TRUE(child.channel().send({{"do", "verify"}}));
  Frame frame;
  ASSERT_EQ(child.channel().receive(frame, 60), Received::frame);
  EXPECT_FALSE(frame.header.at("ok"));
  ASSERT_TRUE(
      child.channel().send({{"do", "hello"}, {"protocol", kProtocol}, {"parent", getpid()}}));
  ASSERT_EQ(child.channel().receive(frame, 60), Received::frame);
  EXPECT_TRUE(frame.header.at("ok"));
}

TEST_F(WorkerTest, ChildEndsByItselfWhenTheChannelCloses) {
  ChildProcess child(TOY_WORKER);
  EXPECT_EQ(child.end(60), "exit code 0");
}

TEST_F(WorkerTest, KilledParentLeavesNoChild) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    ChildProcess child(TOY_WORKER);
    const pid_t pid = child.pid();
    child.channel().send({{"do", "hello"}, {"protocol", kProtocol}, {"parent", getpid()}});
    Frame frame;
    child.channel().receive(frame, 60);
    const bool told = write(pipe_ends[1], &pid, sizeof(pid)) == sizeof(pid);
    pause();
    _exit(told ? 0 : 1);
  }
  pid_t child = -1;
  ASSERT_EQ(read(pipe_ends[0], &child, sizeof(child)), static_cast<ssize_t>(sizeof(child)));
  EXPECT_FALSE(gone(child));
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  EXPECT_TRUE(gone_within(child, 20));
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

}  // namespace
}  // namespace kiln::tuner
