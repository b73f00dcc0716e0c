// Which of the decisions that a store holds for one problem serves it.
#include "runtime/choice.h"

#include "runtime/plan_record.h"
#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

using cache::DecisionKind;

class ChoiceTest : public testing::Test {
 protected:
  void decide(DecisionKind kind, int64_t splits, Proof proof) {
    seed_decision(*store_, fake_gpu(0),
                  {.op = &staged_rows(),
                   .fixed = fixed_,
                   .bucket = bucket_,
                   .config = {{"rows_per_cta", 4}, {"splits", splits}},
                   .kind = kind,
                   .proof = proof});
  }
  // As another source would have left it: its plan names a binary that this source does not make.
  void decide_stale(DecisionKind kind, int64_t splits) {
    decide(kind, splits, Proof::passed);
    cache::TuningResult stale;
    stale.decision = store_
                         ->find_decision(problem_of(staged_rows(), fixed_, bucket_),
                                         gpu_class_key(fake_gpu(0)), kind)
                         ->decision;
    cache::PlanRecord plan = *store_->find_plan(stale.decision.plan);
    stale.binaries = fake_binaries(staged_rows(), {{"format", 0}, {"C", 32}},
                                   {{"rows_per_cta", 1}, {"splits", splits}}, fake_gpu(0));
    plan.kernels[0].binary = stale.binaries[0].key;
    plan.id = hash_text("of another source");
    stale.plans = {plan};
    stale.decision.plan = plan.id;
    ++stale.decision.decided_at;
    stale.verifications = {{.plan = plan.id,
                            .problem = stale.decision.problem,
                            .by = cache::Verified::device,
                            .passed = true,
                            .card = "Seed Card"}};
    ASSERT_TRUE(store_->put(stale));
  }
  Choice choice() {
    TodaysPlans plans(fake_gpu(0));
    return choose(*store_, staged_rows(), fixed_, bucket_, plans);
  }

  const templates::Sizes fixed_{{"format", 0}, {"C", 64}};
  const templates::Sizes bucket_{{"T", 256}};
  std::unique_ptr<cache::Store> store_ = cache::Store::open({.path = ":memory:"});
};

TEST_F(ChoiceTest, BestSoundKindServesInPlaceOfAPinThatFailed) {
  decide(DecisionKind::predicted, 1, Proof::passed);
  decide(DecisionKind::measured, 2, Proof::passed);
  decide(DecisionKind::pinned, 4, Proof::failed);
  const Choice chosen = choice();
  EXPECT_EQ(chosen.kind, DecisionKind::measured);
  EXPECT_EQ(chosen.config["splits"], 2);
  EXPECT_EQ(chosen.verified, cache::Verified::device);
  EXPECT_TRUE(chosen.recorded);
  expect_contains(chosen.reason, "the pinned decision");
  expect_contains(chosen.refused, "failed verification");
}

TEST_F(ChoiceTest, DefaultServesWhenEveryKindFailed) {
  decide(DecisionKind::predicted, 1, Proof::failed);
  decide(DecisionKind::pinned, 4, Proof::failed);
  const Choice chosen = choice();
  EXPECT_EQ(chosen.kind, DecisionKind::fallback);
  EXPECT_EQ(chosen.config, staged_rows().default_config(fixed_));
  EXPECT_TRUE(chosen.has_decision);
  expect_contains(chosen.reason, "the pinned decision");
  expect_contains(chosen.reason, "the predicted decision");
}

TEST_F(ChoiceTest, StaleMeasurementDoesNotHideACurrentPrediction) {
  decide(DecisionKind::predicted, 1, Proof::passed);
  decide_stale(DecisionKind::measured, 2);
  const Choice chosen = choice();
  EXPECT_EQ(chosen.kind, DecisionKind::predicted);
  EXPECT_EQ(chosen.config["splits"], 1);
  EXPECT_EQ(chosen.verified, cache::Verified::device);
  EXPECT_GT(chosen.time_ns, 0);
  expect_contains(chosen.refused, "the measured decision");
  expect_contains(chosen.refused, "stale");
}

TEST_F(ChoiceTest, StalePinServesWithoutItsEvidence) {
  decide(DecisionKind::measured, 2, Proof::passed);
  decide_stale(DecisionKind::pinned, 4);
  const Choice chosen = choice();
  EXPECT_EQ(chosen.kind, DecisionKind::pinned);
  EXPECT_EQ(chosen.config["splits"], 4);
  EXPECT_EQ(chosen.verified, cache::Verified::none);
  EXPECT_EQ(chosen.time_ns, 0);
  EXPECT_EQ(chosen.default_time_ns, 0);
  EXPECT_EQ(chosen.refused, "");
  expect_contains(chosen.reason, "source has changed");
}

TEST_F(ChoiceTest, SoundPinServesWithoutARefusal) {
  decide(DecisionKind::measured, 2, Proof::passed);
  decide(DecisionKind::pinned, 4, Proof::passed);
  EXPECT_EQ(choice().kind, DecisionKind::pinned);
  EXPECT_EQ(choice().refused, "");
}

}  // namespace
}  // namespace kiln::runtime
