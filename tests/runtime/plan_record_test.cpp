// What a plan is called, and when it is still what its config means.
#include "runtime/plan_record.h"

#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

class PlanRecordTest : public testing::Test {
 protected:
  cache::PlanRecord record() const {
    std::vector<Hash128> keys;
    for (const jit::Binary& binary : fake_binaries(staged_rows(), fixed_, config_, gpu_)) {
      keys.push_back(binary.key);
    }
    return plan_record(staged_rows(), fixed_, config_, gpu_.arch(), launches_, keys);
  }
  bool current(const cache::PlanRecord& plan) {
    return plans_.has(plan, staged_rows(), fixed_, gpu_.sm());
  }

  const Gpu& gpu_ = fake_gpu(0);
  const templates::Sizes fixed_{{"format", 0}, {"C", 64}};
  const templates::Config config_{{"rows_per_cta", 4}, {"splits", 2}};
  TodaysPlans plans_{gpu_};
  templates::LaunchPlan launches_ = staged_rows().plan(fixed_, config_, gpu_);
};

TEST_F(PlanRecordTest, C73IdTellsHowTheBinariesAreLaunched) {
  const Hash128 id = record().id;
  EXPECT_EQ(record().id, id);
  launches_.kernels.back().threads *= 2;
  const Hash128 wider = record().id;
  EXPECT_NE(wider, id);
  launches_.kernels.back().dynamic_smem_bytes += 16;
  EXPECT_NE(record().id, wider);
}

TEST_F(PlanRecordTest, CurrentIsWhatItsConfigMeansToday) {
  EXPECT_TRUE(current(record()));

  cache::PlanRecord plan = record();
  plan.kernels.back().binary = hash_text("of another source");
  EXPECT_FALSE(current(plan));

  plan = record();
  plan.kernels.back().threads *= 2;
  EXPECT_FALSE(current(plan));

  plan = record();
  plan.kernels.back().dynamic_smem_bytes += 16;
  EXPECT_FALSE(current(plan));

  plan = record();
  plan.kernels.pop_back();
  EXPECT_FALSE(current(plan));

  plan = record();
  plan.config = R"({"rows_per_cta":4,"splits":16})";
  EXPECT_FALSE(current(plan)) << "that config breaks a rule";
}

TEST_F(PlanRecordTest, PlanOfAnotherArchIsNotCurrentHere) {
  TodaysPlans there(fake_gpu(1));
  EXPECT_FALSE(there.has(record(), staged_rows(), fixed_, fake_gpu(1).sm()));
}

TEST_F(PlanRecordTest, TodaysPlansAreMadeOnceAndAreThoseThatAreRecorded) {
  const cache::PlanRecord& made = plans_.plan(staged_rows(), fixed_, config_, gpu_.sm());
  EXPECT_EQ(made.id, record().id);
  EXPECT_EQ(&plans_.plan(staged_rows(), fixed_, config_, gpu_.sm()), &made);
  EXPECT_NE(plans_.plan(staged_rows(), {{"format", 0}, {"C", 32}}, config_, gpu_.sm()).id, made.id);
}

}  // namespace
}  // namespace kiln::runtime
