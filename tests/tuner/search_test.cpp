// tune() whole: through the real child on a device that is this host, and without a device through
// the real compiler.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>

#include "cache/leases.h"
#include "runtime/plan_record.h"
#include "tests/tuner/toy_op.h"
#include "tuner/device_tools.h"
#include "tuner/tuner.h"

namespace kiln::tuner {
namespace {

using cache::DecisionKind;
using testing::ToyBehaviour;

constexpr const char* kHost = "a host that plays an A100";

std::string config_text(int64_t behaviour) {
  return fmt::format("{{\"behaviour\":{},\"twin\":0}}", behaviour);
}

class Search : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { testing::register_toy(); }

  Search() : store_(cache::Store::open({.path = ":memory:"})) {
    testing::store_toy_binaries(*store_, "sm_80");
    options_.device = "cuda:0";
    options_.ops = {"toy"};
    options_.workload =
        R"({"ops": [{"op": "toy", "shape": {"scale": 3}, "sizes": {"num_rows": [64, 64]}}]})";
    options_.worker = TOY_WORKER;
    options_.hang_timeout_s = 0.5;
    options_.log = [this](const std::string& line) { log_ += line + "\n"; };
  }

  ProblemReport tune_space(std::vector<int64_t> behaviours) {
    testing::set_toy_space(std::move(behaviours));
    report_ = tune(*store_, options_);
    EXPECT_EQ(report_.problems.size(), 1u);
    return report_.problems.at(0);
  }
  std::optional<cache::DecisionRow> decision(const std::string& slug = "a100-sxm4-80gb",
                                             int64_t rows = 64) {
    return store_->find_decision(
        problem(rows), slug == "a100-sxm4-80gb" ? host_class() : gpu_class_key(find_gpu(slug)));
  }
  static cache::Problem problem(int64_t rows = 64) {
    return runtime::problem_of(testing::toy_op(), {{"scale", 3}}, {{"R", rows}});
  }
  // The host plays an A100 with a small L2.
  static std::string host_class() {
    Gpu gpu = find_gpu("a100-sxm4-80gb");
    gpu.l2_bytes = 64 << 10;
    return gpu_class_key(gpu);
  }

  // The plan of a config as this source makes it, or as one would that led to another binary.
  enum class Source { current, other };
  static cache::PlanRecord plan_of(int64_t behaviour, Source source) {
    const templates::Op& op = testing::toy_op();
    const templates::Config config{{"behaviour", behaviour}, {"twin", 0}};
    const templates::LaunchPlan launches =
        op.plan({{"scale", 3}}, config, find_gpu("a100-sxm4-80gb"));
    const Hash128 key =
        source == Source::current
            ? jit::binary_key(templates::kernel_source(op, launches.kernels[0]), "sm_80",
                              templates::compile_options(launches.kernels[0]))
            : jit::binary_key(
                  tool_source(tool_kernels().front().first, tool_kernels().front().second), "sm_80",
                  {});
    return runtime::plan_record(op, {{"scale", 3}}, config, "sm_80", launches,
                                std::vector<Hash128>{key});
  }
  cache::Decision forge(int64_t behaviour, DecisionKind kind, Source source,
                        cache::Decision::Scope scope = cache::Decision::Scope::all,
                        const std::string& gpu_class = host_class()) {
    cache::TuningResult forged;
    forged.plans = {plan_of(behaviour, source)};
    forged.decision = {.problem = problem(),
                       .gpu_class = gpu_class,
                       .gpu_label = "a100-sxm4-80gb",
                       .config = config_text(behaviour),
                       .plan = forged.plans[0].id,
                       .kind = kind,
                       .reason = "forged by a test",
                       .scope = scope,
                       .time_ns = 1,
                       .default_time_ns = 2,
                       .decided_at = 1};
    EXPECT_TRUE(store_->put(forged));
    return forged.decision;
  }

  // Says of the plan of a decision what a run of it on a card found.
  enum class Found { right, wrong };
  void prove(const cache::Decision& decision, const std::string& card, Found found) {
    ASSERT_TRUE(store_->put_verification({.plan = decision.plan,
                                          .problem = decision.problem,
                                          .by = cache::Verified::device,
                                          .passed = found == Found::right,
                                          .detail = "said by a test",
                                          .card = card,
                                          .driver = "older"}));
  }

  // Spends the budget on the first candidate that is rejected.
  void let_a_rejection_end_the_budget() {
    options_.budget_s = 4;
    options_.log = [this](const std::string& line) {
      log_ += line + "\n";
      if (line.find("rejected") != std::string::npos)
        std::this_thread::sleep_for(std::chrono::milliseconds(2600));
    };
  }

  std::unique_ptr<cache::Store> store_;
  TuneOptions options_;
  TuneReport report_;
  std::string log_;
};

TEST_F(Search, FastOneBeatsTheDefaultPlantedTwiceAsSlow) {
  const ProblemReport row =
      tune_space({testing::kToyDefault, testing::kToyFast, testing::kToyMiddling});
  EXPECT_EQ(row.state_text(), "tuned") << log_;
  EXPECT_EQ(row.winner, config_text(testing::kToyFast));
  EXPECT_EQ(row.kind, DecisionKind::measured);
  EXPECT_DOUBLE_EQ(row.winner_ns, 1e6);
  EXPECT_DOUBLE_EQ(row.default_ns, 2e6);
  EXPECT_DOUBLE_EQ(row.median_ns, 1.5e6);
  EXPECT_EQ(row.measured, 3);
}

TEST_F(Search, DecisionComesWithPlanBinaryProofAndTimes) {
  tune_space({testing::kToyDefault, testing::kToyFast});
  const auto row = decision();
  ASSERT_TRUE(row.has_value());
  EXPECT_EQ(row->decision.config, config_text(testing::kToyFast));
  EXPECT_EQ(row->verified, cache::Verified::device);
  EXPECT_EQ(row->decision.gpu_label, "a100-sxm4-80gb");
  const auto plan = store_->find_plan(row->decision.plan);
  ASSERT_TRUE(plan.has_value());
  EXPECT_TRUE(store_->has_binary(plan->kernels.at(0).binary));
  // The runner-up keeps its time, the default always has one.
  EXPECT_EQ(store_->timings(problem(), host_class()).size(), 2u);
}

TEST_F(Search, WinnersOfOneShapeAddInOneOrderWhenThatIsAskedFor) {
  testing::set_toy_space({testing::kToyDefault, testing::kToyForFewRows, testing::kToyForManyRows});
  options_.workload =
      R"({"ops": [{"op": "toy", "shape": {"scale": 3}, "sizes": {"num_rows": [4, 64]}}]})";
  const auto winners = [&] {
    std::vector<std::string> configs;
    for (const ProblemReport& row : tune(*store_, options_).problems) {
      EXPECT_EQ(row.state, ProblemReport::State::tuned) << row.detail << log_;
      configs.push_back(row.winner);
    }
    return configs;
  };
  const std::string few = config_text(testing::kToyForFewRows);
  const std::string many = config_text(testing::kToyForManyRows);
  EXPECT_EQ(winners(), (std::vector<std::string>{few, many}));
  // Both are decided, but not alike, so both are decided anew.
  options_.invariance = TuneOptions::Invariance::all_sizes;
  EXPECT_EQ(winners(), (std::vector<std::string>{many, many})) << log_;
  EXPECT_EQ(decision("a100-sxm4-80gb", 4)->decision.config, many);
  for (const ProblemReport& row : tune(*store_, options_).problems)
    EXPECT_EQ(row.state, ProblemReport::State::kept);
}

TEST_F(Search, EqualConfigsAreMerged) {
  const ProblemReport row =
      tune_space({testing::kToyDefault, testing::kToyFast, testing::kToyMiddling});
  EXPECT_EQ(row.space_size, 6);  // with a twin each
  EXPECT_EQ(row.kept, 5);        // the twin of the default is not legal
  EXPECT_EQ(row.distinct_binaries, 3);
  EXPECT_EQ(row.rejected.at("the twin of the default is not legal"), 1);
}

TEST_F(Search, C106C118EveryBadOneIsRejectedWithItsReasonAndTheFastOneWins) {
  const ProblemReport row = tune_space({testing::kToyDefault, testing::kToyFast, testing::kToyWrong,
                                        testing::kToyTrap, testing::kToyHang, testing::kToyAbort,
                                        testing::kToyRefused, testing::kToyTrapsWhenTimed,
                                        testing::kToyHangsWhenTimed, testing::kToyImpossible});
  EXPECT_EQ(row.winner, config_text(testing::kToyFast)) << log_;
  EXPECT_EQ(row.rejected.at("wrong"), 1);
  EXPECT_EQ(row.rejected.at("trap"), 2);
  EXPECT_EQ(row.rejected.at("timeout"), 2);
  EXPECT_EQ(row.rejected.at("crash"), 1);
  EXPECT_EQ(row.rejected.at("launch"), 1);
  EXPECT_EQ(row.rejected.at("impossible"), 1);
  EXPECT_EQ(report_.worker_restarts, 5);

  const std::vector<cache::Rejection> stored = store_->rejections(problem(), host_class());
  const auto reason_of = [&](int64_t behaviour) {
    const auto found = std::find_if(stored.begin(), stored.end(), [&](const auto& r) {
      return r.config == config_text(behaviour);
    });
    return found == stored.end() ? std::string("none") : found->stage + " " + found->reason;
  };
  EXPECT_EQ(reason_of(testing::kToyWrong), "verify wrong");
  EXPECT_EQ(reason_of(testing::kToyTrap), "verify trap");
  EXPECT_EQ(reason_of(testing::kToyHang), "verify timeout");
  EXPECT_EQ(reason_of(testing::kToyAbort), "verify crash");
  EXPECT_EQ(reason_of(testing::kToyRefused), "verify launch");
  EXPECT_EQ(reason_of(testing::kToyTrapsWhenTimed), "measure trap");
  EXPECT_EQ(reason_of(testing::kToyHangsWhenTimed), "measure timeout");
  EXPECT_EQ(reason_of(testing::kToyImpossible), "measure impossible");
  EXPECT_EQ(reason_of(testing::kToyFast), "none");
}

TEST_F(Search, C25OnlyTheDefaultAndTheModelsFirstAreTriedInAWideSpace) {
  options_.tries = 2;
  const ProblemReport row = tune_space({testing::kToyDefault, testing::kToyFast,
                                        testing::kToyMiddling, testing::kToyFastMoreRegisters});
  EXPECT_EQ(row.measured, 2);
  EXPECT_EQ(row.rejected.at("not tried: the model puts it behind"), 2);
  EXPECT_GT(row.default_ns, 0);
}

TEST_F(Search, TieGoesToTheOneWithFewerResources) {
  const ProblemReport row =
      tune_space({testing::kToyDefault, testing::kToyFastMoreRegisters, testing::kToyFast});
  EXPECT_EQ(row.winner, config_text(testing::kToyFast));
  EXPECT_EQ(row.tie_group.size(), 2u);
}

TEST_F(Search, FinalTimesComeFromAllRoundsWhenTheDefaultIsTheSlowestOfNine) {
  std::vector<int64_t> space{testing::kToyDefault};
  for (int64_t right = testing::kToyRight; right < testing::kToyRightEnd; ++right)
    space.push_back(right);
  const ProblemReport row = tune_space(space);
  EXPECT_EQ(row.winner, config_text(testing::kToyRight));
  EXPECT_EQ(row.measured, 9);
  const std::vector<cache::Timing> timings = store_->timings(problem(), host_class());
  EXPECT_EQ(timings.size(), 9u);
  for (const cache::Timing& timing : timings) EXPECT_EQ(timing.rounds, 15);
}

TEST_F(Search, TwoRunsGiveTheSameWinner) {
  const std::vector<int64_t> space{testing::kToyDefault, testing::kToyFastMoreRegisters,
                                   testing::kToyFast, testing::kToyMiddling};
  const ProblemReport first = tune_space(space);
  options_.redo = TuneOptions::Redo::again;
  const ProblemReport second = tune_space(space);
  EXPECT_EQ(first.winner, second.winner);
  EXPECT_EQ(second.state_text(), "tuned");
}

TEST_F(Search, C97C98DefaultThatNothingBeatsStays) {
  const ProblemReport row = tune_space({testing::kToyDefault});
  EXPECT_EQ(row.winner, config_text(testing::kToyDefault));
  EXPECT_EQ(row.kind, DecisionKind::measured);
}

TEST_F(Search, FinishedProblemIsKeptOnTheNextRun) {
  tune_space({testing::kToyDefault, testing::kToyFast});
  const ProblemReport row = tune_space({testing::kToyDefault, testing::kToyFast});
  EXPECT_EQ(row.state_text(), "kept");
  EXPECT_EQ(row.winner, config_text(testing::kToyFast));
  EXPECT_EQ(row.measured, 0);
}

TEST_F(Search, RejectedCandidateIsNotTriedAgainButWithRedoItIs) {
  tune_space({testing::kToyDefault, testing::kToyFast, testing::kToyTrap});
  store_->forget(problem(), host_class());
  EXPECT_EQ(tune_space({testing::kToyDefault, testing::kToyFast, testing::kToyTrap})
                .rejected.at("rejected before"),
            1);
  EXPECT_EQ(report_.worker_restarts, 0);
  options_.redo = TuneOptions::Redo::again;
  EXPECT_EQ(
      tune_space({testing::kToyDefault, testing::kToyFast, testing::kToyTrap}).rejected.at("trap"),
      1);
  EXPECT_EQ(report_.worker_restarts, 1);
}

TEST_F(Search, TimeoutIsTriedAgainOnTheNextRun) {
  tune_space({testing::kToyDefault, testing::kToyFast, testing::kToyHang});
  store_->forget(problem(), host_class());
  const ProblemReport row =
      tune_space({testing::kToyDefault, testing::kToyFast, testing::kToyHang});
  EXPECT_FALSE(row.rejected.contains("rejected before"));
  EXPECT_EQ(row.rejected.at("timeout"), 1);
}

TEST_F(Search, RejectionOfOtherBinariesOrOfTheDefaultIsNoReasonToSkip) {
  std::vector<cache::Rejection> old;
  for (const int64_t behaviour : {testing::kToyDefault, testing::kToyFast}) {
    old.push_back({.problem = problem(),
                   .gpu_class = host_class(),
                   .config = config_text(behaviour),
                   .plan = plan_of(behaviour, behaviour == testing::kToyDefault ? Source::current
                                                                                : Source::other)
                               .id,
                   .stage = "verify",
                   .reason = "wrong",
                   .detail = "y is wrong"});
  }
  ASSERT_TRUE(store_->put_rejections(old));
  const ProblemReport row = tune_space({testing::kToyDefault, testing::kToyFast});
  EXPECT_EQ(row.measured, 2);
  EXPECT_EQ(row.winner, config_text(testing::kToyFast));
}

TEST_F(Search, C95aBudgetThatEndsASearchLeavesItPartialAndTheNextRunTakesItUp) {
  let_a_rejection_end_the_budget();
  const std::vector<int64_t> space{testing::kToyDefault, testing::kToyFast, testing::kToyWrong,
                                   testing::kToyMiddling};
  const ProblemReport row = tune_space(space);
  EXPECT_EQ(row.state_text(), "partial");
  EXPECT_EQ(row.measured, 2);
  EXPECT_EQ(report_.end, TuneReport::End::budget);
  EXPECT_EQ(row.winner, config_text(testing::kToyFast));
  EXPECT_EQ(decision()->decision.scope, cache::Decision::Scope::part);
  options_.budget_s = 0;
  EXPECT_EQ(tune_space(space).state_text(), "tuned");
  EXPECT_EQ(tune_space(space).state_text(), "kept");
}

TEST_F(Search, PartialResultDoesNotReplaceACompleteDecision) {
  tune_space({testing::kToyDefault, testing::kToyRight, testing::kToyMiddling});
  const auto complete = decision();
  ASSERT_EQ(complete->decision.config, config_text(testing::kToyRight));
  options_.redo = TuneOptions::Redo::again;
  let_a_rejection_end_the_budget();
  const ProblemReport row = tune_space(
      {testing::kToyDefault, testing::kToyMiddling, testing::kToyWrong, testing::kToyRight});
  EXPECT_EQ(row.state_text(), "partial");
  EXPECT_EQ(row.measured, 2);
  EXPECT_EQ(row.winner, config_text(testing::kToyRight));
  EXPECT_NE(log_.find("the earlier decision among all stays"), std::string::npos) << log_;
  EXPECT_EQ(decision()->decision.config, complete->decision.config);
  EXPECT_EQ(decision()->decision.reason, complete->decision.reason);
  EXPECT_EQ(decision()->decision.decided_at, complete->decision.decided_at);
  // What was found out is kept all the same.
  EXPECT_EQ(store_->rejections(problem(), host_class()).size(), 1u);
}

TEST_F(Search, PartialResultReplacesWhatTheSameRunFoundWrongOrWhatIsStale) {
  options_.redo = TuneOptions::Redo::again;
  let_a_rejection_end_the_budget();
  const std::vector<int64_t> space{testing::kToyDefault, testing::kToyFast, testing::kToyWrong,
                                   testing::kToyMiddling};
  forge(testing::kToyWrong, DecisionKind::measured, Source::current);
  EXPECT_EQ(tune_space(space).winner, config_text(testing::kToyFast));
  store_->forget(problem(), host_class());
  forge(testing::kToyMiddling, DecisionKind::measured, Source::other);
  EXPECT_EQ(tune_space(space).winner, config_text(testing::kToyFast));
}

TEST_F(Search, DecisionThatTurnsOutWrongIsDisprovenAtOnce) {
  prove(forge(testing::kToyWrong, DecisionKind::measured, Source::current), kHost, Found::right);
  EXPECT_EQ(decision()->verified, cache::Verified::device);
  std::atomic<bool> stop{false};
  options_.stop = &stop;
  options_.redo = TuneOptions::Redo::again;
  options_.log = [&](const std::string& line) {
    if (line.find("rejected") != std::string::npos) stop = true;
  };
  EXPECT_EQ(tune_space({testing::kToyDefault, testing::kToyWrong}).state_text(), "stopped");
  EXPECT_EQ(decision()->verified, cache::Verified::none);
  EXPECT_NE(decision()->failure.find("wrong"), std::string::npos) << decision()->failure;
}

TEST_F(Search, ScopeOfADecisionIsNotReadOutOfItsReason) {
  const std::vector<int64_t> space{testing::kToyDefault, testing::kToyFast};
  cache::TuningResult forged;
  forged.decision = forge(testing::kToyFast, DecisionKind::measured, Source::current);
  forged.decision.reason = "only a part was tried within the budget: so it was said";
  ASSERT_TRUE(store_->put(forged));
  prove(forged.decision, kHost, Found::right);
  EXPECT_EQ(tune_space(space).state_text(), "kept");
  store_->forget(problem(), host_class());
  forge(testing::kToyFast, DecisionKind::measured, Source::current, cache::Decision::Scope::part);
  EXPECT_EQ(tune_space(space).state_text(), "tuned");
}

TEST_F(Search, DisprovedWinnerIsTunedAnew) {
  const std::vector<int64_t> space{testing::kToyDefault, testing::kToyFast, testing::kToyWrong};
  prove(forge(testing::kToyWrong, DecisionKind::measured, Source::current), kHost, Found::wrong);
  const ProblemReport row = tune_space(space);
  EXPECT_EQ(row.state_text(), "tuned");
  EXPECT_EQ(row.winner, config_text(testing::kToyFast));
  EXPECT_EQ(decision()->failure, "");
  EXPECT_EQ(tune_space(space).state_text(), "kept");
}

TEST_F(Search, WinnerThatFailedOnAnotherCardIsNotChosenAgain) {
  const std::vector<int64_t> space{testing::kToyDefault, testing::kToyFast, testing::kToyMiddling};
  tune_space(space);
  prove(decision()->decision, "another A100", Found::wrong);
  const ProblemReport row = tune_space(space);
  EXPECT_EQ(row.state_text(), "tuned");
  EXPECT_EQ(row.rejected.at("failed verification"), 1);
  EXPECT_EQ(row.winner, config_text(testing::kToyMiddling));
  EXPECT_EQ(decision()->failure, "");
}

TEST_F(Search, PinThatFailedIsToldAndTheProblemIsTuned) {
  const std::vector<int64_t> space{testing::kToyDefault, testing::kToyFast, testing::kToyMiddling};
  prove(forge(testing::kToyMiddling, DecisionKind::pinned, Source::current), "another A100",
        Found::wrong);
  for (const char* state : {"tuned", "kept"}) {
    log_.clear();
    const ProblemReport row = tune_space(space);
    EXPECT_EQ(row.state_text(), state);
    EXPECT_EQ(row.winner, config_text(testing::kToyFast));
    EXPECT_EQ(row.kind, DecisionKind::measured);
    EXPECT_NE(log_.find("which no session uses: it failed verification on another A100"),
              std::string::npos)
        << log_;
  }
  log_.clear();
  options_.redo = TuneOptions::Redo::again;
  tune_space(space);
  EXPECT_EQ(log_.find("serves whatever is measured"), std::string::npos) << log_;
  EXPECT_NE(log_.find("which no session uses"), std::string::npos) << log_;
}

TEST_F(Search, PinIsKeptAndTheStaleOneIsTold) {
  const std::vector<int64_t> space{testing::kToyDefault, testing::kToyFast, testing::kToyMiddling};
  forge(testing::kToyMiddling, DecisionKind::pinned, Source::current);
  EXPECT_EQ(tune_space(space).state_text(), "kept");
  EXPECT_EQ(log_.find("pinned"), std::string::npos) << log_;
  store_->forget(problem(), host_class());
  forge(testing::kToyMiddling, DecisionKind::pinned, Source::other);
  for (int run = 0; run < 2; ++run) {
    log_.clear();
    const ProblemReport row = tune_space(space);
    EXPECT_EQ(row.state_text(), "kept");
    EXPECT_EQ(row.measured, 0);
    EXPECT_EQ(row.kind, DecisionKind::pinned);
    EXPECT_NE(log_.find("it stays pinned to " + config_text(testing::kToyMiddling)),
              std::string::npos)
        << log_;
  }
}

TEST_F(Search, AgainMeasuresBesideThePin) {
  forge(testing::kToyMiddling, DecisionKind::pinned, Source::current);
  options_.redo = TuneOptions::Redo::again;
  const ProblemReport row =
      tune_space({testing::kToyDefault, testing::kToyFast, testing::kToyMiddling});
  EXPECT_EQ(row.state_text(), "tuned");
  EXPECT_EQ(row.winner, config_text(testing::kToyFast));
  EXPECT_NE(log_.find("it is pinned to"), std::string::npos) << log_;
  EXPECT_EQ(decision()->decision.config, config_text(testing::kToyMiddling));
  EXPECT_EQ(store_->find_decision(problem(), host_class(), DecisionKind::measured)->decision.config,
            config_text(testing::kToyFast));
}

TEST_F(Search, C26NoMemoryIsAStateOfTheRow) {
  setenv("KILN_TOY_MEMORY_BYTES", "100000", 1);
  const ProblemReport row = tune_space({testing::kToyDefault, testing::kToyFast});
  unsetenv("KILN_TOY_MEMORY_BYTES");
  EXPECT_EQ(row.state_text(), "no memory");
  EXPECT_TRUE(row.winner.empty());
  EXPECT_FALSE(decision().has_value());
}

TEST_F(Search, ResultThatTheStoreDoesNotKeepIsAStateOfItsOwn) {
  std::string folder = ::testing::TempDir() + "kiln_search_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/kiln.db";
  testing::store_toy_binaries(*cache::Store::open({.path = path}), "sm_80");
  store_ = cache::Store::open({.path = path, .mode = cache::StoreOptions::Mode::read_only});
  const ProblemReport row = tune_space({testing::kToyDefault, testing::kToyFast});
  store_.reset();
  std::filesystem::remove_all(folder);
  EXPECT_EQ(row.state, ProblemReport::State::not_stored);
  EXPECT_EQ(row.state_text(), "failed: the store did not keep the result");
  EXPECT_EQ(report_.json().at("problems").at(0).at("state"), row.state_text());
  EXPECT_TRUE(row.winner.empty());
}

TEST_F(Search, StopBeforeTheFirstProblemLeavesTheRest) {
  std::atomic<bool> stop{true};
  options_.stop = &stop;
  const ProblemReport row = tune_space({testing::kToyDefault, testing::kToyFast});
  EXPECT_EQ(row.state_text(), "stopped");
  EXPECT_EQ(report_.end, TuneReport::End::stopped);
}

TEST_F(Search, StopInTheMiddleKeepsWhatWasFoundOut) {
  std::atomic<bool> stop{false};
  options_.stop = &stop;
  options_.log = [&](const std::string& line) {
    if (line.find("rejected") != std::string::npos) stop = true;
  };
  const ProblemReport row =
      tune_space({testing::kToyDefault, testing::kToyFast, testing::kToyTrap});
  EXPECT_EQ(row.state_text(), "stopped");
  EXPECT_FALSE(decision().has_value());
  EXPECT_EQ(store_->rejections(problem(), host_class()).size(), 1u);
  options_.stop = nullptr;
  EXPECT_EQ(tune_space({testing::kToyDefault, testing::kToyFast, testing::kToyTrap}).state_text(),
            "tuned");
}

TEST_F(Search, SpentBudgetLeavesProblemsUntuned) {
  options_.budget_s = 1e-9;
  const ProblemReport row = tune_space({testing::kToyDefault, testing::kToyFast});
  EXPECT_EQ(row.state_text(), "budget");
  EXPECT_EQ(report_.end, TuneReport::End::budget);
}

TEST_F(Search, ProgressCountsProblemsToTheEnd) {
  options_.workload = R"({"ops": [{"op": "toy", "shape": {"scale": 3}}]})";
  std::vector<int> done;
  options_.progress = [&](int now, int total, const std::string&, double) {
    EXPECT_EQ(total, 2);
    done.push_back(now);
  };
  testing::set_toy_space({testing::kToyDefault, testing::kToyFast});
  tune(*store_, options_);
  EXPECT_EQ(done, (std::vector<int>{0, 1, 2}));
}

TEST_F(Search, ReportIsJsonWithOneRowPerProblem) {
  tune_space({testing::kToyDefault, testing::kToyFast, testing::kToyWrong});
  const Json json = report_.json();
  EXPECT_EQ(json.at("end"), "finished");
  const Json& row = json.at("problems").at(0);
  EXPECT_EQ(row.at("op"), "toy");
  EXPECT_EQ(row.at("rejected").at("wrong"), 1);
  EXPECT_EQ(row.at("winner").at("behaviour"), testing::kToyFast);
  EXPECT_EQ(row.at("kind"), "measured");
}

TEST_F(Search, VerifyProvesStoredWinnersAndRecordsIt) {
  tune_space({testing::kToyDefault, testing::kToyFast});
  const std::vector<VerifyRow> rows =
      verify(*store_, {.device = "cuda:0", .ops = {"toy"}, .worker = TOY_WORKER, .log = {}});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_TRUE(rows[0].passed) << rows[0].detail;
  EXPECT_EQ(rows[0].outcome, VerifyOutcome::passed);
  EXPECT_EQ(rows[0].config, config_text(testing::kToyFast));
}

TEST_F(Search, VerifyMakesThePlanOfAPinThatHasNone) {
  testing::set_toy_space({testing::kToyDefault, testing::kToyFast});
  cache::TuningResult pin;
  pin.decision = {.problem = problem(),
                  .gpu_class = host_class(),
                  .gpu_label = "a100-sxm4-80gb",
                  .config = config_text(testing::kToyFast),
                  .kind = DecisionKind::pinned,
                  .reason = "pinned by a test",
                  .decided_at = 1};
  ASSERT_TRUE(store_->put(pin));
  const std::vector<VerifyRow> rows = verify(*store_, {.device = "cuda:0", .worker = TOY_WORKER});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_TRUE(rows[0].passed) << rows[0].detail;
  const auto row = store_->find_decision(problem(), host_class(), DecisionKind::pinned);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->decision.plan, plan_of(testing::kToyFast, Source::current).id);
  EXPECT_EQ(row->decision.reason, "pinned by a test");
  EXPECT_EQ(row->verified, cache::Verified::device);
  EXPECT_TRUE(store_->check().empty());
}

TEST_F(Search, VerifyFindsAWinnerThatIsWrongHere) {
  tune_space({testing::kToyDefault, testing::kToyFast});
  // As if the store came from another machine, whose binary goes wrong on this one.
  const auto row = decision();
  cache::TuningResult forged{.decision = row->decision};
  const templates::Config bad{{"behaviour", testing::kToyWrong}, {"twin", 0}};
  const templates::LaunchPlan launches =
      testing::toy_op().plan({{"scale", 3}}, bad, find_gpu("a100-sxm4-80gb"));
  const Hash128 key =
      jit::binary_key(templates::kernel_source(testing::toy_op(), launches.kernels[0]), "sm_80",
                      templates::compile_options(launches.kernels[0]));
  forged.plans = {runtime::plan_record(testing::toy_op(), {{"scale", 3}}, bad, "sm_80", launches,
                                       std::vector<Hash128>{key})};
  forged.decision.config = config_text(testing::kToyWrong);
  forged.decision.plan = forged.plans[0].id;
  ++forged.decision.decided_at;
  testing::set_toy_space({testing::kToyDefault, testing::kToyWrong});
  ASSERT_TRUE(store_->put(forged));
  const std::vector<VerifyRow> rows =
      verify(*store_, {.device = "cuda:0", .ops = {}, .worker = TOY_WORKER, .log = {}});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_FALSE(rows[0].passed);
  EXPECT_EQ(rows[0].outcome, VerifyOutcome::failed);
  EXPECT_NE(rows[0].detail.find("wrong"), std::string::npos) << rows[0].detail;
}

TEST_F(Search, VerifyRunsWhatServesAndWhatFailedAboveIt) {
  testing::set_toy_space({testing::kToyDefault, testing::kToyFast, testing::kToyMiddling});
  prove(forge(testing::kToyMiddling, DecisionKind::predicted, Source::current), kHost,
        Found::right);
  prove(forge(testing::kToyFast, DecisionKind::measured, Source::current), kHost, Found::wrong);
  const auto run = [&] {
    return verify(*store_, {.device = "cuda:0", .ops = {}, .worker = TOY_WORKER, .log = {}});
  };
  // It failed with another driver, and the one here has been mended.
  std::vector<VerifyRow> rows = run();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].kind, DecisionKind::measured);
  EXPECT_EQ(rows[1].kind, DecisionKind::predicted);
  for (const VerifyRow& row : rows) EXPECT_EQ(row.outcome, VerifyOutcome::passed) << row.detail;
  EXPECT_EQ(decision()->decision.kind, DecisionKind::measured);
  EXPECT_EQ(decision()->verified, cache::Verified::device);
  // What failed below the one that serves concerns nobody.
  prove(forge(testing::kToyMiddling, DecisionKind::predicted, Source::current), kHost,
        Found::wrong);
  rows = run();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].kind, DecisionKind::measured);
}

TEST_F(Search, VerifyDisprovesNoConfigThatTheMachineMayHaveStopped) {
  for (const int64_t behaviour : {testing::kToyHang, testing::kToyAbort, testing::kToyRefused}) {
    testing::set_toy_space({testing::kToyDefault, behaviour});
    forge(behaviour, DecisionKind::predicted, Source::current);
    const std::vector<VerifyRow> rows =
        verify(*store_, {.device = "cuda:0", .ops = {}, .worker = TOY_WORKER, .log = {}});
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0].outcome, VerifyOutcome::unproven) << rows[0].detail;
    EXPECT_FALSE(rows[0].passed);
    EXPECT_EQ(decision()->failure, "") << rows[0].detail;
    store_->forget(problem(), host_class());
  }
}

TEST_F(Search, VerifyDisprovesAConfigThatTraps) {
  testing::set_toy_space({testing::kToyDefault, testing::kToyTrap});
  forge(testing::kToyTrap, DecisionKind::predicted, Source::current);
  const std::vector<VerifyRow> rows =
      verify(*store_, {.device = "cuda:0", .ops = {}, .worker = TOY_WORKER, .log = {}});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].outcome, VerifyOutcome::failed);
  EXPECT_NE(decision()->failure.find("trap"), std::string::npos) << decision()->failure;
}

TEST_F(Search, DecisionOfAnotherSourceIsStaleAndNotKept) {
  tune_space({testing::kToyDefault, testing::kToyFast});
  // As an older source would have left it: the plan names another binary of the store.
  cache::TuningResult old{.decision = decision()->decision};
  const templates::Config fast{{"behaviour", testing::kToyFast}, {"twin", 0}};
  const Hash128 other = jit::binary_key(
      tool_source(tool_kernels().front().first, tool_kernels().front().second), "sm_80", {});
  old.plans = {
      runtime::plan_record(testing::toy_op(), {{"scale", 3}}, fast, "sm_80",
                           testing::toy_op().plan({{"scale", 3}}, fast, find_gpu("a100-sxm4-80gb")),
                           std::vector<Hash128>{other})};
  old.decision.plan = old.plans[0].id;
  ++old.decision.decided_at;
  ASSERT_TRUE(store_->put(old));
  const std::vector<VerifyRow> rows =
      verify(*store_, {.device = "cuda:0", .ops = {}, .worker = TOY_WORKER, .log = {}});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].outcome, VerifyOutcome::unproven);
  EXPECT_NE(rows[0].detail.find("stale"), std::string::npos) << rows[0].detail;
  EXPECT_EQ(tune_space({testing::kToyDefault, testing::kToyFast}).state_text(), "tuned");
}

TEST_F(Search, StaleMeasurementIsNotRankedBesideAgainAndAgain) {
  options_.device.clear();
  options_.gpus = {"a100-sxm4-80gb"};
  const std::string gpu_class = gpu_class_key(find_gpu("a100-sxm4-80gb"));
  prove(forge(testing::kToyMiddling, DecisionKind::measured, Source::other,
              cache::Decision::Scope::all, gpu_class),
        kHost, Found::right);
  const std::vector<int64_t> space{testing::kToyDefault, testing::kToyFast, testing::kToyMiddling};
  const ProblemReport first = tune_space(space);
  EXPECT_EQ(first.state_text(), "tuned") << log_;
  EXPECT_EQ(first.kind, DecisionKind::predicted);
  const ProblemReport second = tune_space(space);
  EXPECT_EQ(second.state_text(), "kept");
  EXPECT_EQ(second.kind, DecisionKind::predicted);
  EXPECT_EQ(second.winner, first.winner);
}

TEST_F(Search, ResultIsKeptOverOneThatAClockDatedInTheFuture) {
  const std::vector<int64_t> space{testing::kToyDefault, testing::kToyFast, testing::kToyMiddling};
  cache::TuningResult ahead;
  ahead.decision = forge(testing::kToyMiddling, DecisionKind::measured, Source::other);
  ahead.decision.decided_at = 4'000'000'000;
  ASSERT_TRUE(store_->put(ahead));
  EXPECT_EQ(tune_space(space).state_text(), "tuned");
  EXPECT_EQ(decision()->decision.config, config_text(testing::kToyFast));
  EXPECT_EQ(tune_space(space).state_text(), "kept");
}

TEST_F(Search, LimitsOfAnotherGpuGiveItAPredictedDecision) {
  testing::store_toy_binaries(*store_, "sm_86");
  options_.limits = "rtx-3090";
  const ProblemReport row = tune_space({testing::kToyDefault, testing::kToyFast});
  EXPECT_EQ(row.state_text(), "tuned") << log_;
  EXPECT_EQ(row.gpu, "rtx-3090");
  const auto stored = decision("rtx-3090");
  ASSERT_TRUE(stored.has_value());
  EXPECT_EQ(stored->decision.kind, DecisionKind::predicted);
  EXPECT_EQ(stored->decision.limits, "rtx-3090");
  EXPECT_NE(stored->decision.reason.find("under the limits of rtx-3090"), std::string::npos);
  EXPECT_FALSE(decision().has_value());
  for (const cache::Timing& timing : store_->timings(problem(), host_class()))
    EXPECT_EQ(timing.limits, "rtx-3090");
  EXPECT_EQ(store_->find_plan(stored->decision.plan)->arch, "sm_86");
}

TEST_F(Search, UnknownNamesAreRefused) {
  options_.ops = {"no_such_op"};
  EXPECT_THROW(tune(*store_, options_), Error);
  options_.ops = {"toy"};
  options_.limits = "no-such-gpu";
  EXPECT_THROW(tune(*store_, options_), Error);
}

class Ranking : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { testing::register_toy(); }

  void SetUp() override {
    try {
      jit::Compiler::load();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    options_.ops = {"toy"};
    options_.gpus = {"a100-sxm4-80gb", "rtx-3090"};
    // Only the op's own kernels are compiled here.
    for (const char* arch : {"sm_80", "sm_86"}) testing::store_tool_binaries(*store_, arch);
    options_.workload =
        R"({"ops": [{"op": "toy", "shape": {"scale": 3}, "sizes": {"num_rows": [64, 64]}}]})";
    testing::set_toy_space(
        {testing::kToyDefault, testing::kToyFast, testing::kToyFastMoreRegisters});
  }

  std::unique_ptr<cache::Store> store_ = cache::Store::open({.path = ":memory:"});
  TuneOptions options_;
};

TEST_F(Ranking, C119bStoresAPredictedDecisionWithItsCubinForEachGpu) {
  const TuneReport report = tune(*store_, options_);
  ASSERT_EQ(report.problems.size(), 2u);
  for (const ProblemReport& row : report.problems) {
    EXPECT_EQ(row.state_text(), "tuned");
    EXPECT_EQ(row.kind, DecisionKind::predicted);
    const auto stored = store_->find_decision(row.problem, gpu_class_key(find_gpu(row.gpu)));
    ASSERT_TRUE(stored.has_value()) << row.gpu;
    EXPECT_EQ(stored->verified, cache::Verified::none);
    const auto plan = store_->find_plan(stored->decision.plan);
    ASSERT_TRUE(plan.has_value());
    EXPECT_EQ(plan->arch, find_gpu(row.gpu).arch());
    const auto binary = store_->find_binary(plan->kernels.at(0).binary);
    ASSERT_TRUE(binary.has_value());
    EXPECT_EQ(binary->image.substr(1, 3), "ELF");
    EXPECT_GT(binary->resources.registers, 0);
  }
}

TEST_F(Ranking, PrefersTheConfigWithEnoughThreads) {
  const TuneReport report = tune(*store_, options_);
  EXPECT_NE(report.problems.at(0).winner, config_text(testing::kToyDefault));
  EXPECT_LT(report.problems.at(0).winner_ns, report.problems.at(0).default_ns);
}

TEST_F(Ranking, SecondRunKeepsWhatIsThere) {
  tune(*store_, options_);
  for (const ProblemReport& row : tune(*store_, options_).problems)
    EXPECT_EQ(row.state_text(), "kept");
}

TEST_F(Ranking, ConfigThatFailedVerificationIsNotRankedFirst) {
  const ProblemReport first = tune(*store_, options_).problems.at(0);
  const std::string gpu_class = gpu_class_key(find_gpu(first.gpu));
  ASSERT_TRUE(store_->put_verification(
      {.plan = store_->find_decision(first.problem, gpu_class)->decision.plan,
       .problem = first.problem,
       .by = cache::Verified::device,
       .passed = false,
       .card = "A100"}));
  const ProblemReport second = tune(*store_, options_).problems.at(0);
  EXPECT_EQ(second.state_text(), "tuned");
  EXPECT_NE(second.winner, first.winner);
  EXPECT_EQ(second.rejected.at("failed verification"), 1);
  EXPECT_EQ(tune(*store_, options_).problems.at(0).state_text(), "kept");
}

TEST_F(Ranking, ShortlistCompilesTheDefaultAndTheModelsFirst) {
  options_.shortlist = 2;
  const TuneReport report = tune(*store_, options_);
  EXPECT_EQ(report.problems.at(0).distinct_binaries, 2);
  EXPECT_GT(report.problems.at(0).default_ns, 0);
}

TEST_F(Ranking, WithoutDeviceAndGpuIsRefused) {
  options_.gpus.clear();
  EXPECT_THROW(tune(*store_, options_), Error);
}

// Several processes that tune into one file.
class TuneProcesses : public Search {
 protected:
  TuneProcesses() {
    std::string pattern = ::testing::TempDir() + "kiln_tune_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/kiln.db";
    const auto store = open();
    for (const int64_t scale : {3, 5}) testing::store_toy_binaries(*store, "sm_80", scale);
    options_.workload =
        R"({"ops": [{"op": "toy", "shape": {"scale": 3}, "sizes": {"num_rows": [64, 64]}},
                    {"op": "toy", "shape": {"scale": 5}, "sizes": {"num_rows": [64, 64]}}]})";
    testing::set_toy_space({testing::kToyDefault, testing::kToyFast});
  }
  ~TuneProcesses() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<cache::Store> open() { return cache::Store::open({.path = path_}); }

  // A process that tunes, and has the first shape when this returns. Exits with the number of
  // problems that it tuned itself.
  pid_t start_tuning(const std::function<void()>& in_the_first) {
    int begun[2];
    EXPECT_EQ(::pipe(begun), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(120);
      options_.progress = [&](int done, int, const std::string&, double) {
        if (done > 0) return;
        if (::write(begun[1], "y", 1) == 1) in_the_first();
      };
      const auto store = open();
      ::_exit(tuned(tune(*store, options_)));
    }
    ::close(begun[1]);
    char answer = 0;
    EXPECT_EQ(::read(begun[0], &answer, 1), 1);
    ::close(begun[0]);
    return child;
  }
  static int tuned(const TuneReport& report) {
    return static_cast<int>(std::count_if(
        report.problems.begin(), report.problems.end(),
        [](const ProblemReport& row) { return row.state == ProblemReport::State::tuned; }));
  }

  std::string folder_, path_;
};

TEST_F(TuneProcesses, C42EachHasTheWholeListAndShapesAreTunedOnce) {
  const pid_t child =
      start_tuning([] { std::this_thread::sleep_for(std::chrono::milliseconds(500)); });
  const auto store = open();
  const TuneReport report = tune(*store, options_);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status) + tuned(report), 2) << log_;
  ASSERT_EQ(report.problems.size(), 2u);
  EXPECT_EQ(report.problems[0].problem.shape, R"({"scale":3})");
  EXPECT_EQ(report.problems[1].problem.shape, R"({"scale":5})");
  EXPECT_EQ(report.problems[0].state_text(), "kept");
  EXPECT_EQ(report.problems[1].state_text(), "tuned");
  for (const ProblemReport& row : report.problems)
    EXPECT_EQ(row.winner, config_text(testing::kToyFast));
  EXPECT_NE(log_.find(fmt::format("process {} on ", child)), std::string::npos) << log_;
  EXPECT_NE(log_.find("has been tuning it for"), std::string::npos) << log_;
  EXPECT_TRUE(cache::list_leases(*store).empty());
}

// What is compiled ahead is compiled by the process that tunes it afterwards.
TEST_F(TuneProcesses, NextShapeIsLeasedWhileTheCandidatesOfTheLastAreTried) {
  testing::set_toy_space({testing::kToyDefault, testing::kToyFast, testing::kToyWrong});
  const auto store = open();
  std::vector<size_t> leases;
  options_.log = [&](const std::string& line) {
    if (line.find("rejected") != std::string::npos)
      leases.push_back(cache::list_leases(*store).size());
  };
  EXPECT_EQ(tuned(tune(*store, options_)), 2);
  EXPECT_EQ(leases, (std::vector<size_t>{2, 1}));
  EXPECT_TRUE(cache::list_leases(*store).empty());
  EXPECT_EQ(tuned(tune(*store, options_)), 0) << "kept";
  EXPECT_TRUE(cache::list_leases(*store).empty());
}

TEST_F(TuneProcesses, C34ShapeOfADeadProcessIsTunedByTheNext) {
  const pid_t child = start_tuning([] {
    for (;;) ::pause();
  });
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const auto store = open();
  EXPECT_EQ(cache::list_leases(*store).size(), 0u);
  EXPECT_EQ(tuned(tune(*store, options_)), 2) << log_;
}

TEST_F(TuneProcesses, StopEndsTheWaitForAnother) {
  const pid_t child = start_tuning([] {
    for (;;) ::pause();
  });
  std::atomic<bool> stop = false;
  options_.stop = &stop;
  options_.log = [&](const std::string& line) {
    if (line.find("has been tuning it for") != std::string::npos) stop = true;
  };
  const auto store = open();
  const TuneReport report = tune(*store, options_);
  EXPECT_EQ(report.problems[0].state_text(), "stopped");
  EXPECT_EQ(report.end, TuneReport::End::stopped);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace kiln::tuner
