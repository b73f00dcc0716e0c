// What comes from elsewhere, judged by what this build knows.
#include "runtime/import_check.h"

#include <gtest/gtest.h>

#include "jit/base/error.h"
#include "runtime/plan_record.h"
#include "templates/op.h"

namespace kiln::runtime {
namespace {

TEST(GpuOfClassKey, IsTheClassOfEveryCardOfTheTable) {
  for (const Gpu& gpu : gpu_table()) {
    const std::string key = gpu_class_key(gpu);
    const std::optional<Gpu> back = gpu_of_class_key(key);
    ASSERT_TRUE(back) << gpu.slug;
    EXPECT_EQ(gpu_class_key(*back), key);
    EXPECT_EQ(back->sm(), gpu.sm());
    EXPECT_EQ(ctas_per_sm(*back, 256, 128, 40'000), ctas_per_sm(gpu, 256, 128, 40'000));
  }
}

TEST(GpuOfClassKey, NothingElseIsOne) {
  const Json key = Json::parse(gpu_class_key(find_gpu("rtx-3090")));
  for (const auto& [name, value] : key.items()) {
    for (const Json& wrong : {Json(-1), Json(1.5), Json("86"), Json(), Json(1ULL << 60U)}) {
      Json changed = key;
      changed[name] = wrong;
      EXPECT_FALSE(gpu_of_class_key(changed.dump())) << changed;
    }
    Json without = key;
    without.erase(name);
    EXPECT_FALSE(gpu_of_class_key(without.dump())) << without;
  }
  Json more = key;
  more["name"] = "mine";
  EXPECT_FALSE(gpu_of_class_key(more.dump()));
  EXPECT_FALSE(gpu_of_class_key(key.dump(1)));
  for (const char* text : {"", "{}", "[]", "7"}) EXPECT_FALSE(gpu_of_class_key(text));
}

class ImportCheck : public ::testing::Test {
 protected:
  ImportCheck() {
    for (const templates::Op* op : templates::ops()) {
      const templates::Sizes fixed = op->model_shapes(2).front();
      const templates::Config config = op->default_config(fixed);
      const cache::PlanRecord plan = plans_.plan(*op, fixed, config, gpu_.sm());
      contents_.plans.push_back(plan);
      contents_.decisions.push_back(
          {.problem = problem_of(*op, fixed, templates::all_buckets(*op).front()),
           .gpu_class = gpu_class_key(gpu_),
           .config = plan.config,
           .plan = plan.id,
           .kind = cache::DecisionKind::measured,
           .reason = "50 % faster",
           .time_ns = 10});
    }
  }

  const Gpu gpu_ = find_gpu("a100-sxm4-80gb");
  TodaysPlans plans_{gpu_};
  cache::StoreContents contents_;
};

TEST_F(ImportCheck, WhatThisBuildMakesIsTakenAndNamed) {
  const size_t count = contents_.decisions.size();
  EXPECT_TRUE(drop_refused(contents_).empty());
  ASSERT_EQ(contents_.decisions.size(), count);
  EXPECT_EQ(contents_.plans.size(), count);
  for (const cache::Decision& decision : contents_.decisions) {
    EXPECT_EQ(gpu_class_key(find_gpu(decision.gpu_label)), decision.gpu_class);
  }
}

TEST_F(ImportCheck, ConfigThatTheCardCannotRunIsRefused) {
  Gpu tiny = gpu_;
  tiny.smem_per_cta_optin_bytes = 0;
  tiny.max_warps_per_sm = 0;
  tiny.max_ctas_per_sm = 0;
  int refused = 0;
  for (cache::Decision decision : contents_.decisions) {
    decision.gpu_class = gpu_class_key(tiny);
    refused += why_meaningless(decision).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 0);
}

TEST_F(ImportCheck, TextsOfKeysMustBeInTheFormThatKeysHave) {
  cache::Decision decision = contents_.decisions.front();
  decision.config = " " + decision.config;
  EXPECT_NE(why_meaningless(decision), "");
  decision = contents_.decisions.front();
  decision.problem.shape += " ";
  EXPECT_NE(why_meaningless(decision), "");
}

TEST_F(ImportCheck, IdOfAPlanFollowsFromItsFields) {
  const cache::PlanRecord sound = contents_.plans.front();
  EXPECT_EQ(why_meaningless(sound), "");
  for (int field = 0; field < 4; ++field) {
    cache::PlanRecord plan = sound;
    if (field == 0) plan.arch = "sm_99";
    if (field == 1) plan.kernels[0].binary = hash_text("other");
    if (field == 2) plan.kernels[0].threads += 1;
    if (field == 3) plan.kernels[0].dynamic_smem_bytes += 16;
    EXPECT_NE(why_meaningless(plan).find("follows from its fields"), std::string::npos) << field;
  }
  cache::PlanRecord plan = sound;
  plan.kernels.resize(9, plan.kernels[0]);
  EXPECT_NE(why_meaningless(plan).find("9 kernels, of at most 8"), std::string::npos);
}

TEST_F(ImportCheck, BorrowedIsTheBestKindOfOneClass) {
  cache::Decision pinned = contents_.decisions.front();
  pinned.kind = cache::DecisionKind::pinned;
  contents_.decisions.push_back(pinned);
  const size_t problems = contents_.decisions.size() - 1;
  drop_refused(contents_);
  const Gpu& gpu = find_gpu("a100-sxm4-40gb");
  borrow(contents_, gpu);
  ASSERT_EQ(contents_.decisions.size(), problems);
  int from_pins = 0;
  for (const cache::Decision& decision : contents_.decisions) {
    EXPECT_EQ(decision.kind, cache::DecisionKind::borrowed);
    EXPECT_EQ(decision.gpu_class, gpu_class_key(gpu));
    EXPECT_EQ(decision.time_ns, 0);
    from_pins += decision.reason.find(": pinned, ") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(from_pins, 1);
  cache::StoreContents two = contents_;
  two.decisions.front().gpu_class = gpu_class_key(gpu_);
  EXPECT_THROW(borrow(two, gpu), Error);
  EXPECT_THROW(borrow(contents_, find_gpu("rtx-3090")), Error);
}

}  // namespace
}  // namespace kiln::runtime
