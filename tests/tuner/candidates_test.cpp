#include "tuner/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tuner/toy_op.h"

namespace kiln::tuner {
namespace {

TEST(PaddedSmem, LetsNoMoreCtasInThanTheOtherGpuHolds) {
  const Gpu& h200 = find_gpu("h200");
  for (const char* slug : {"rtx-3090", "a100-sxm4-80gb"}) {
    const Gpu& gpu = find_gpu(slug);
    for (const int threads : {32, 128, 256, 512, 1024}) {
      for (const int registers : {24, 40, 64}) {
        for (const int64_t smem_bytes :
             {int64_t{0}, int64_t{8} << 10, int64_t{40} << 10, int64_t{90} << 10}) {
          const jit::Resources resources{.registers = registers};
          const int wanted = ctas_per_sm(gpu, threads, registers, smem_bytes);
          if (wanted == 0) continue;
          const int64_t padded = padded_smem_bytes(h200, threads, resources, smem_bytes, wanted);
          const int resident = ctas_per_sm(h200, threads, registers, padded);
          EXPECT_GE(padded, smem_bytes);
          EXPECT_LE(resident, wanted)
              << slug << " " << threads << " " << registers << " " << smem_bytes;
          EXPECT_GE(resident, 1) << slug << " " << threads << " " << registers << " " << smem_bytes;
        }
      }
    }
  }
}

TEST(PaddedSmem, LeavesAloneWhatFitsNoMoreAnyway) {
  EXPECT_EQ(padded_smem_bytes(find_gpu("rtx-3090"), 256, {.registers = 40}, 1024, 16), 1024);
}

class Candidates : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { testing::register_toy(); }
  Candidates() : store_(cache::Store::open({.path = ":memory:"})), binaries_(*store_) {
    testing::store_toy_binaries(*store_, "sm_80");
    testing::set_toy_space({testing::kToyDefault, testing::kToyFast, testing::kToyMiddling});
  }
  // Changes what a stored binary says about itself.
  void set_resources(int64_t behaviour, const jit::Resources& resources) {
    const auto launch = testing::toy_op()
                            .plan({{"scale", 3}}, {{"behaviour", behaviour}, {"twin", 0}}, gpu_)
                            .kernels[0];
    auto binary =
        store_->find_binary(jit::binary_key(templates::kernel_source(testing::toy_op(), launch),
                                            "sm_80", templates::compile_options(launch)));
    binary->resources = resources;
    other_ = cache::Store::open({.path = ":memory:"});
    other_->put_binary(*binary);
    for (int64_t b = 0; b < testing::kToyBehaviours; ++b) {
      const auto l =
          testing::toy_op().plan({{"scale", 3}}, {{"behaviour", b}, {"twin", 0}}, gpu_).kernels[0];
      const auto key = jit::binary_key(templates::kernel_source(testing::toy_op(), l), "sm_80",
                                       templates::compile_options(l));
      if (b != behaviour) other_->put_binary(*store_->find_binary(key));
    }
  }
  CandidateSet make(Binaries& binaries) {
    return make_candidates(testing::toy_op(), {{"scale", 3}},
                           {.gpu = gpu_, .limits = {}, .device = gpu_}, binaries, {});
  }

  const Gpu& gpu_ = find_gpu("a100-sxm4-80gb");
  std::unique_ptr<cache::Store> store_, other_;
  Binaries binaries_;
};

TEST_F(Candidates, ComeWithTheDefaultFirstAndWithoutTwins) {
  const CandidateSet set = make(binaries_);
  ASSERT_EQ(set.candidates.size(), 3u);
  EXPECT_TRUE(set.candidates[0].is_default());
  EXPECT_EQ(set.candidates[1].registers(), 32 * 128);
}

TEST_F(Candidates, AreCompiledAheadForTheDeviceAndForTheGpuOfTheDecision) {
  const auto empty = cache::Store::open({.path = ":memory:"});
  Binaries binaries(*empty);
  const Target target{.gpu = gpu_, .limits = {}, .device = find_gpu("rtx-3090")};
  compile_ahead(testing::toy_op(), {{"scale", 3}}, target, binaries, {});
  try {
    const auto pool = jit::CompilePool::shared(jit::Compiler::load(), jit::pool_size().workers);
    const auto launch = testing::toy_op().plan(
        {{"scale", 3}}, {{"behaviour", testing::kToyFast}, {"twin", 0}}, gpu_);
    const templates::KernelLaunch& kernel = launch.kernels[0];
    for (const char* arch : {"sm_80", "sm_86"}) {
      EXPECT_FALSE(pool->request(templates::kernel_source(testing::toy_op(), kernel), arch,
                                 templates::compile_options(kernel))
                       .is_first)
          << arch;
    }
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
}

TEST(StandIn, HasTheSmOfTheOneAndTheirNumberOfTheOther) {
  const Gpu& small = find_gpu("rtx-3090");
  const Gpu& device = find_gpu("a100-sxm4-80gb");
  const Target limited{.gpu = small, .limits = small.slug, .device = device};
  const Gpu runs_as = limited.runs_as();
  EXPECT_EQ(runs_as.smem_per_cta_optin_bytes, small.smem_per_cta_optin_bytes);
  EXPECT_EQ(runs_as.max_warps_per_sm, small.max_warps_per_sm);
  EXPECT_EQ(runs_as.sm_count, device.sm_count);
  EXPECT_EQ(runs_as.dram_gb_per_s, device.dram_gb_per_s);
  const Target itself{.gpu = small, .limits = {}, .device = device};
  EXPECT_EQ(itself.runs_as().sm_count, small.sm_count);

  // A stream of weights takes as many CTAs as have a place.
  const templates::Op& op = templates::require_op("linear_fp8");
  const templates::Sizes shape = op.model_shapes(2)[4];
  const templates::Config config = {
      {"columns", 16}, {"kernel", 0}, {"rows", 1}, {"splits", 1}, {"warps_along_depth", 8}};
  const auto ctas = [&](const Gpu& gpu) {
    return op.plan(shape, config, gpu).kernels[0].grid_x.value({{"M", 1}});
  };
  EXPECT_GT(ctas(runs_as), ctas(small));
}

TEST_F(Candidates, ThatSpillAreDroppedWithTheReason) {
  set_resources(testing::kToyFast, {.registers = 255, .spill_store_bytes = 64});
  Binaries binaries(*other_);
  const CandidateSet set = make(binaries);
  EXPECT_EQ(set.candidates.size(), 2u);
  ASSERT_EQ(set.dropped.size(), 2u);  // and its twin
  EXPECT_EQ(set.dropped[0].reason, "spills");
}

TEST_F(Candidates, AreJudgedByTheRulesOfASession) {
  set_resources(testing::kToyFast, {.registers = 32, .static_smem_bytes = 200 << 10});
  Binaries binaries(*other_);
  const CandidateSet set = make(binaries);
  ASSERT_EQ(set.dropped.size(), 2u);  // and its twin
  EXPECT_EQ(set.dropped[0].stage, "resources");
  EXPECT_EQ(set.dropped[0].reason, "shared memory");
  EXPECT_NE(set.dropped[0].detail.find("204800 bytes"), std::string::npos) << set.dropped[0].detail;
}

TEST_F(Candidates, DefaultThatNoSessionCouldRunDoesNotStayForItsSpills) {
  set_resources(testing::kToyDefault,
                {.registers = 255, .spill_store_bytes = 64, .static_smem_bytes = 200 << 10});
  Binaries binaries(*other_);
  const CandidateSet set = make(binaries);
  EXPECT_EQ(set.candidates.size(), 2u);
  ASSERT_EQ(set.dropped.size(), 1u);
  EXPECT_EQ(set.dropped[0].reason, "shared memory");
}

TEST_F(Candidates, DefaultStaysEvenWhenItSpills) {
  set_resources(testing::kToyDefault, {.registers = 255, .spill_store_bytes = 64});
  Binaries binaries(*other_);
  EXPECT_EQ(make(binaries).candidates.size(), 3u);
}

}  // namespace
}  // namespace kiln::tuner
