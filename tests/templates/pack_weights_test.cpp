// The truth of pack_weights against a block written out by hand, and its plan.
#include <gtest/gtest.h>

#include <set>

#include "templates/kit.h"

namespace kiln::templates {
namespace {

const Op& op() { return require_op("pack_weights"); }
const Kit& kit() { return require_kit(op()); }

Case case_of(int64_t rows, int64_t columns) {
  Case c = kit().measured_case({{"format", 0}}, {});
  c.sizes.set("R", rows);
  c.sizes.set("K", columns);
  return c;
}

int packed_byte(const Case& c, int64_t row, int64_t at) {
  const std::vector<int64_t> index{row, at};
  return static_cast<int>(*kit().expected(c, *op().find_arg("packed"), index));
}

std::vector<uint8_t> codes_of(const Case& c, int64_t row) {
  std::vector<uint8_t> codes(static_cast<size_t>(c.sizes["K"]));
  const std::vector<int64_t> outer{row};
  kit().fill(c, *op().find_arg("w"), outer, std::as_writable_bytes(std::span(codes)));
  return codes;
}

TEST(PackWeights, AWordIsWhatTheDrawingSays) {
  const Case c = case_of(32, 96);
  for (const auto& [row, column] : {std::pair{0, 0}, {13, 68}, {31, 92}}) {
    const std::vector<uint8_t> codes = codes_of(c, row);
    for (const int half : {0, 1}) {
      const int a = codes[static_cast<size_t>(column + half)];
      const int b = codes[static_cast<size_t>(column + half + 2)];
      const int want =
          (a >> 7) << 15 | (b >> 4 & 7) << 12 | (b >> 7) << 11 | (a & 127) << 4 | (b & 15);
      const int64_t at = column / 64 * 512 + row % 8 * 64 + column % 64 + 2 * half;
      EXPECT_EQ(packed_byte(c, row / 8, at) | packed_byte(c, row / 8, at + 1) << 8, want)
          << "row " << row << " column " << column + half;
    }
  }
}

TEST(PackWeights, ColumnsBeyondTheLastAreZero) {
  const Case c = case_of(32, 96);
  for (int64_t at = 512; at < 1024; ++at) {
    if (at % 64 < 32) continue;
    EXPECT_EQ(packed_byte(c, 0, at), 0) << at;
  }
}

TEST(PackWeights, EveryCodeIsMetAtEveryPlaceOfAWord) {
  std::vector<std::set<uint8_t>> met(4);
  for (const Case& c : kit().verify_cases({{"format", 0}}, {})) {
    if (c.name != "every code at every place") continue;
    for (int64_t row = 0; row < c.sizes["R"]; ++row) {
      const std::vector<uint8_t> codes = codes_of(c, row);
      for (size_t k = 0; k < codes.size(); ++k) met[k % 4].insert(codes[k]);
    }
  }
  for (const auto& codes : met) EXPECT_EQ(codes.size(), 256u);
}

TEST(PackWeights, BytesOfThePackedMatrix) {
  const auto bytes = [&](int64_t rows, int64_t columns) {
    return dense_bytes(op(), *op().find_arg("packed"), {{"format", 0}},
                       {{"R", rows}, {"K", columns}});
  };
  EXPECT_EQ(bytes(5120, 4096), 5120 * 4096);
  EXPECT_EQ(bytes(288, 288), 288 * 320);
  EXPECT_EQ(bytes(0, 32), 0);
}

TEST(PackWeights, PackedWeightsOfALinearHaveAsManyBytes) {
  const Op& linear = require_op("linear_fp8");
  for (const int tensor_parallel : {1, 8}) {
    for (const Sizes& shape : linear.model_shapes(tensor_parallel)) {
      const int64_t wanted =
          dense_bytes(linear, *linear.find_arg("w"), shape.merged({{"w_layout", 1}}), {{"M", 0}});
      EXPECT_EQ(wanted, dense_bytes(op(), *op().find_arg("packed"), {{"format", 0}},
                                    {{"R", shape["G"] * shape["N"]}, {"K", shape["K"]}}))
          << shape_json(linear, shape).dump();
    }
  }
}

TEST(PackWeights, GridHasAWarpForEveryBlock) {
  for (const Config& config : enumerate(op(), {{"format", 0}}, find_gpu("rtx-3090")).configs) {
    const LaunchPlan plan = op().plan({{"format", 0}}, config, find_gpu("rtx-3090"));
    const KernelLaunch& kernel = plan.kernels.front();
    EXPECT_EQ(kernel.grid_x.value({{"R", 96}, {"K", 288}}) * kernel.threads / 32, 12 * 5);
    EXPECT_EQ(kernel.grid_x.value({{"R", 0}, {"K", 288}}), 0);
  }
}

}  // namespace
}  // namespace kiln::templates
