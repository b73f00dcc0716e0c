// Which of the decisions that a store holds for one problem serves it.
#include "runtime/choice.h"

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
  Choice choice() { return choose(*store_, staged_rows(), fixed_, bucket_, fake_gpu(0)); }

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

TEST_F(ChoiceTest, SoundPinServesWithoutARefusal) {
  decide(DecisionKind::measured, 2, Proof::passed);
  decide(DecisionKind::pinned, 4, Proof::passed);
  EXPECT_EQ(choice().kind, DecisionKind::pinned);
  EXPECT_EQ(choice().refused, "");
}

}  // namespace
}  // namespace kiln::runtime
