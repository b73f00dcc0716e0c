#include "jit/base/gpu.h"

#include <set>

#include "tests/jit/jit_testing.h"

#if __has_include(<cuda_occupancy.h>)
#define KILN_HAS_OCCUPANCY_HEADER
// The vendor's header spells casts in the old style and leaves parameters unused.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-function"
#include <cuda_occupancy.h>
#pragma GCC diagnostic pop
#endif

namespace kiln {
namespace {

using jit::Caught;
using jit::error_of;

TEST(GpuTable, C111SlugsAndAliasesNameOneRowEach) {
  std::set<std::string> names;
  for (const Gpu& gpu : gpu_table()) {
    EXPECT_TRUE(names.insert(gpu.slug).second) << gpu.slug;
    for (const std::string& alias : gpu.aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
  }
}

TEST(GpuTable, EveryRowIsComplete) {
  for (const Gpu& gpu : gpu_table()) {
    SCOPED_TRACE(gpu.slug);
    EXPECT_GT(gpu.sm_count, 0);
    EXPECT_GT(gpu.l2_bytes, 0);
    EXPECT_GT(gpu.dram_bytes, 0);
    EXPECT_GT(gpu.dram_gb_per_s, 0);
    EXPECT_GT(gpu.boost_mhz, 0);
    EXPECT_GT(gpu.fp32_fma_per_clk_sm, 0);
    EXPECT_GT(gpu.bf16_mma_fma_per_clk_sm, 0);
    EXPECT_EQ(gpu.smem_per_sm_bytes, gpu.smem_per_cta_optin_bytes + 1024);
    EXPECT_EQ(&find_gpu(gpu.slug), &gpu);
  }
}

// bf16 peak in TFLOPS, as the datasheets print it.
TEST(GpuTable, RatesGiveTheDatasheetPeaks) {
  const std::pair<const char*, double> peaks[] = {
      {"a100-sxm4-80gb", 312}, {"a30", 165},   {"rtx-3090", 71}, {"rtx-3090-ti", 80},
      {"rtx-a6000", 154.8},    {"a40", 149.7}, {"a10", 125}};
  for (const auto& [slug, tflops] : peaks) {
    const Gpu& gpu = find_gpu(slug);
    const double computed = 2e-6 * gpu.sm_count * gpu.bf16_mma_fma_per_clk_sm * gpu.boost_mhz;
    EXPECT_NEAR(computed, tflops, 0.01 * tflops) << slug;
  }
}

TEST(FindGpu, TakesSlugsAndDriverNamesInAnyCase) {
  EXPECT_EQ(find_gpu("A100-SXM4-80GB").slug, "a100-sxm4-80gb");
  EXPECT_EQ(find_gpu("NVIDIA A100-SXM4-80GB").slug, "a100-sxm4-80gb");
  EXPECT_EQ(find_gpu("nvidia geforce rtx 3090").slug, "rtx-3090");
  EXPECT_EQ(find_gpu("a800-sxm4-80gb").slug, "a100-sxm4-80gb");
  EXPECT_EQ(find_gpu("NVIDIA H200").slug, "h200");
}

TEST(FindGpu, UnknownNameListsTheSlugs) {
  const Caught caught = error_of([] { find_gpu("rtx-3091"); });
  EXPECT_EQ(caught.status, Status::not_found);
  EXPECT_TRUE(caught.says("\"rtx-3091\"") && caught.says("rtx-3090-ti") && caught.says("h200"))
      << caught.text;
}

TEST(GpuArch, IsSpelledAsCompilersWantIt) {
  EXPECT_EQ(find_gpu("a30").arch(), "sm_80");
  EXPECT_EQ(find_gpu("a10").arch(), "sm_86");
  EXPECT_EQ(find_gpu("h200").arch(), "sm_90");
}

TEST(GpuClass, BandwidthWithinTenPercentOfARowGivesTheKeyOfTheRow) {
  for (const Gpu& gpu : gpu_table()) {
    for (double factor : {0.901, 0.97, 1.0, 1.024, 1.099}) {
      Gpu reported = gpu;
      reported.name = "a name nobody knows";
      reported.dram_gb_per_s = gpu.dram_gb_per_s * factor;
      const Gpu* match = match_gpu(reported);
      ASSERT_NE(match, nullptr) << gpu.slug << " " << factor;
      // The A6000 and the A40 differ in bandwidth alone, by 10.3 %; between them the nearer row
      // counts.
      if (gpu.slug == "rtx-a6000" && factor < 0.95) continue;
      if (gpu.slug == "a40" && factor > 1.05) continue;
      EXPECT_EQ(gpu_class_key(reported), gpu_class_key(gpu)) << gpu.slug << " " << factor;
    }
  }
}

TEST(GpuClass, ReportedBandwidthsOfRealCardsMatchTheirRows) {
  // Bus width in bits x memory clock in kHz x 2, as drivers report them.
  const std::tuple<const char*, int, int> cards[] = {{"a100-sxm4-40gb", 5120, 1215000},
                                                     {"a100-sxm4-80gb", 5120, 1593000},
                                                     {"a30", 3072, 1215000},
                                                     {"rtx-3090", 384, 9751000},
                                                     {"rtx-3090-ti", 384, 10501000},
                                                     {"rtx-a6000", 384, 8001000},
                                                     {"a40", 384, 7251000},
                                                     {"a10", 384, 6251000},
                                                     {"h200", 6144, 3201000}};
  for (const auto& [slug, bus_bits, memory_khz] : cards) {
    Gpu reported = find_gpu(slug);
    reported.dram_gb_per_s = 2.0 * memory_khz * 1e3 * bus_bits / 8 / 1e9;
    ASSERT_NE(match_gpu(reported), nullptr) << slug;
    EXPECT_EQ(match_gpu(reported)->slug, slug);
  }
}

TEST(GpuClass, OutsideTenPercentIsNoMatch) {
  Gpu reported = find_gpu("a30");
  reported.dram_gb_per_s = 933 * 1.12;
  EXPECT_EQ(match_gpu(reported), nullptr);
  EXPECT_NE(gpu_class_key(reported), gpu_class_key(find_gpu("a30")));
}

TEST(GpuClass, AnyOtherLimitIsNoMatch) {
  Gpu reported = find_gpu("rtx-3090");
  reported.sm_count = 84;
  reported.dram_gb_per_s = 936;
  ASSERT_NE(match_gpu(reported), nullptr);
  EXPECT_EQ(match_gpu(reported)->slug, "rtx-3090-ti");  // 936 is within 10 % of 1008
  reported.l2_bytes /= 2;
  EXPECT_EQ(match_gpu(reported), nullptr);
}

TEST(GpuClass, NamesClocksAndMemorySizeAreNotPartOfIt) {
  Gpu other = find_gpu("rtx-3090");
  other.name = "Something";
  other.slug = "something";
  other.boost_mhz = 1000;
  other.dram_bytes *= 2;
  EXPECT_EQ(gpu_class_key(other), gpu_class_key(find_gpu("rtx-3090")));
}

TEST(GpuClass, CardsOfEqualLimitsAndBandwidthAreOneClass) {
  EXPECT_EQ(gpu_class_key(find_gpu("a100-sxm4-40gb")), gpu_class_key(find_gpu("a100-pcie-40gb")));
  EXPECT_EQ(gpu_class_key(find_gpu("a100-sxm4-80gb")), gpu_class_key(find_gpu("a100-pcie-80gb")));
}

TEST(GpuClass, CardsThatDifferAreDifferentClasses) {
  std::set<std::string> keys;
  for (const char* slug : {"a100-sxm4-40gb", "a100-sxm4-80gb", "a30", "rtx-3090", "rtx-3090-ti",
                           "rtx-a6000", "a40", "a10", "h200"}) {
    EXPECT_TRUE(keys.insert(gpu_class_key(find_gpu(slug))).second) << slug;
  }
}

TEST(GpuClass, GoldenKey) {
  EXPECT_EQ(gpu_class_key(find_gpu("rtx-3090")),
            R"({"bandwidth_gb_per_s":936,"cc":86,"ctas_per_sm":16,"l2_bytes":6291456,)"
            R"("registers_per_sm":65536,"registers_per_thread":255,"sm_count":82,)"
            R"("smem_per_cta_optin_bytes":101376,"smem_per_sm_bytes":102400,)"
            R"("smem_reserved_per_cta_bytes":1024,"warps_per_sm":48})");
}

TEST(GpuClass, DriverNameDecidesBetweenRowsOfOneClass) {
  Gpu reported = find_gpu("a100-pcie-40gb");
  reported.name = "NVIDIA A100-PCIE-40GB";
  EXPECT_EQ(match_gpu(reported)->slug, "a100-pcie-40gb");
}

TEST(CtasPerSm, C116WarpAndCtaLimitsAreThoseOfTheCard) {
  const Gpu& a100 = find_gpu("a100-sxm4-80gb");
  const Gpu& rtx_3090 = find_gpu("rtx-3090");
  EXPECT_EQ(ctas_per_sm(a100, 256, 32, 0), 8);      // 64 warps
  EXPECT_EQ(ctas_per_sm(rtx_3090, 256, 32, 0), 6);  // 48 warps
  EXPECT_EQ(ctas_per_sm(a100, 32, 16, 0), 32);
  EXPECT_EQ(ctas_per_sm(rtx_3090, 32, 16, 0), 16);
  EXPECT_EQ(ctas_per_sm(a100, 1024, 32, 0), 2);
  EXPECT_EQ(ctas_per_sm(rtx_3090, 1024, 32, 0), 1);
}

TEST(CtasPerSm, SharedMemoryCountsTheReservedKilobyte) {
  const Gpu& a100 = find_gpu("a100-sxm4-80gb");
  const Gpu& rtx_3090 = find_gpu("rtx-3090");
  EXPECT_EQ(ctas_per_sm(a100, 128, 32, 48 * 1024), 3);
  EXPECT_EQ(ctas_per_sm(rtx_3090, 128, 32, 48 * 1024), 2);
  EXPECT_EQ(ctas_per_sm(rtx_3090, 128, 32, 49 * 1024), 2);
  EXPECT_EQ(ctas_per_sm(rtx_3090, 128, 32, 49 * 1024 + 1), 1);
  EXPECT_EQ(ctas_per_sm(a100, 128, 32, 100 * 1024), 1);
  EXPECT_EQ(ctas_per_sm(rtx_3090, 128, 32, 100 * 1024), 0);
  EXPECT_EQ(ctas_per_sm(rtx_3090, 128, 32, 99 * 1024), 1);
}

TEST(CtasPerSm, RegistersAreDealtToWarpsInUnits) {
  const Gpu& a100 = find_gpu("a100-sxm4-80gb");
  EXPECT_EQ(ctas_per_sm(a100, 256, 64, 0), 4);
  EXPECT_EQ(ctas_per_sm(a100, 256, 65, 0), 3);   // 72 after rounding
  EXPECT_EQ(ctas_per_sm(a100, 128, 168, 0), 3);  // 3 warps in each quarter of the SM
  EXPECT_EQ(ctas_per_sm(a100, 256, 255, 0), 1);
  EXPECT_EQ(ctas_per_sm(a100, 512, 255, 0), 0);
}

TEST(CtasPerSm, ShapesThatNoSmTakesGiveZero) {
  const Gpu& gpu = find_gpu("rtx-3090");
  EXPECT_EQ(ctas_per_sm(gpu, 0, 32, 0), 0);
  EXPECT_EQ(ctas_per_sm(gpu, 1025, 32, 0), 0);
  EXPECT_EQ(ctas_per_sm(gpu, 128, 256, 0), 0);
  EXPECT_EQ(ctas_per_sm(gpu, 128, 32, -1), 0);
}

#ifdef KILN_HAS_OCCUPANCY_HEADER
TEST(CtasPerSm, AgreesWithTheVendorsCalculator) {
  for (const char* slug : {"a100-sxm4-80gb", "rtx-3090", "h200"}) {
    const Gpu& gpu = find_gpu(slug);
    cudaOccDeviceProp device;
    device.computeMajor = gpu.cc_major;
    device.computeMinor = gpu.cc_minor;
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = gpu.max_warps_per_sm * 32;
    device.regsPerBlock = 65536;
    device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.sharedMemPerBlock = 48 * 1024;
    device.sharedMemPerMultiprocessor = static_cast<size_t>(gpu.smem_per_sm_bytes);
    device.numSms = gpu.sm_count;
    device.sharedMemPerBlockOptin = static_cast<size_t>(gpu.smem_per_cta_optin_bytes);
    device.reservedSharedMemPerBlock = 1024;
    cudaOccDeviceState state;
    state.carveoutConfig = 100;
    for (int threads = 32; threads <= 1024; threads += 96) {
      for (int registers = 16; registers <= 255; registers += 7) {
        for (int smem_bytes = 0; smem_bytes <= 166'912; smem_bytes += 8'190) {
          cudaOccFuncAttributes attributes;
          attributes.maxThreadsPerBlock = 1024;
          attributes.numRegs = registers;
          attributes.sharedSizeBytes = 0;
          attributes.maxDynamicSharedSizeBytes = static_cast<size_t>(smem_bytes);
          attributes.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
          cudaOccResult result;
          const cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(
              &result, &device, &attributes, &state, threads, static_cast<size_t>(smem_bytes));
          const int expected = error == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : 0;
          ASSERT_EQ(ctas_per_sm(gpu, threads, registers, smem_bytes), expected)
              << slug << " threads " << threads << " registers " << registers << " smem "
              << smem_bytes;
        }
      }
    }
  }
}
#endif

}  // namespace
}  // namespace kiln
