// engram_fetch: its truth against numbers made by hand, and what its plans are.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "templates/kit.h"
#include "templates/kit_bf16.h"

namespace kiln::templates {
namespace {

Sizes shape(int64_t source, int64_t format) {
  return {{"H", 12}, {"K", 256}, {"source", source}, {"x_format", format}};
}

TEST(EngramFetch, TruthOfElementsIsTheExactProductRoundedOnce) {
  struct Vector {
    uint8_t code, scale;
    double value;
  };
  const Vector vectors[] = {
      {0x38, 127, 1.0},
      {0xb8, 126, -0.5},
      {0x7e, 127, 448.0},
      {0x01, 127, std::ldexp(1.0, -9)},    // the least code
      {0x0f, 120, std::ldexp(15.0, -16)},  // 15 / 8 * 2^-6 * 2^-7
      {0x38, 0, std::ldexp(1.0, -127)},    // a scale of 0 is no zero
      {0x08, 0, std::ldexp(1.0, -133)},    // the least number of bf16
      {0x01, 0, 0.0},                      // 2^-136 is less than half of it
      {0x07, 2, std::ldexp(4.0, -133)},    // 3.5 steps of a subnormal: the even one
      {0x7e, 254, std::numeric_limits<double>::infinity()},
      {0xfe, 254, -std::numeric_limits<double>::infinity()},
  };
  for (const Vector& vector : vectors) {
    EXPECT_EQ(dequantised(e4m3_double(vector.code) * ue8m0_double(vector.scale)), vector.value)
        << int{vector.code} << " " << int{vector.scale};
  }
  EXPECT_TRUE(std::isnan(dequantised(e4m3_double(0x7f) * ue8m0_double(127))));
  EXPECT_TRUE(std::isnan(dequantised(e4m3_double(0xff) * ue8m0_double(127))));
  EXPECT_TRUE(std::isnan(dequantised(e4m3_double(0x38) * ue8m0_double(255))));
}

TEST(EngramFetch, OnlyClaimsNeedAWorkspace) {
  const Op& op = require_op("engram_fetch");
  const Gpu& gpu = find_gpu("a100-sxm4-80gb");
  for (const int64_t format : {0, 1}) {
    const LaunchPlan device = op.plan(shape(0, format), op.default_config(shape(0, format)), gpu);
    EXPECT_EQ(device.kernels.size(), 1u);
    EXPECT_EQ(device.workspace_bytes.value({{"T", 4096}}), 0);
    const LaunchPlan host = op.plan(shape(1, format), op.default_config(shape(1, format)), gpu);
    EXPECT_EQ(host.kernels.size(), 3u);
    EXPECT_EQ(host.workspace_bytes.value({{"T", 4096}}), int64_t{4096} * 12 * 20);
    EXPECT_EQ(host.workspace_bytes.value({{"T", 0}}), 0);
    const Config scan{{"threads", 128}, {"pairs_per_warp", 1}, {"loads", 1}, {"scan", 1}};
    const LaunchPlan scanned = op.plan(shape(1, format), scan, gpu);
    EXPECT_EQ(scanned.kernels.size(), 1u);
    EXPECT_EQ(scanned.workspace_bytes.value({{"T", 4096}}), 0);
  }
}

// What is measured over the bus has as many distinct rows as the cost says.
TEST(EngramFetch, CostCountsTheDistinctRowsOfTheMeasuredCase) {
  const Op& op = require_op("engram_fetch");
  const Kit& kit = require_kit(op);
  for (const int64_t source : {0, 1}) {
    for (const int64_t rows : {1, 3, 4, 5, 64}) {
      const Case c = kit.measured_case(shape(source, 0), {{"T", rows}});
      std::set<int32_t> distinct;
      std::vector<std::byte> row(12 * sizeof(int32_t));
      for (int64_t t = 0; t < rows; ++t) {
        const std::vector<int64_t> outer{t};
        kit.fill(c, *op.find_arg("rows"), outer, row);
        const auto* values = reinterpret_cast<const int32_t*>(row.data());
        distinct.insert(values, values + 12);
      }
      const Cost cost = op.cost(with_derived(op, c.sizes));
      EXPECT_EQ(source == 0 ? cost.bus_read_bytes : cost.cold_read_bytes, 0);
      EXPECT_EQ(static_cast<double>(distinct.size()) * (256 + 8),
                source == 0 ? cost.cold_read_bytes : cost.bus_read_bytes)
          << source << " " << rows;
    }
  }
}

}  // namespace
}  // namespace kiln::templates
