// The truth of ragged_keys against the requests of ops.md B15: A with prefix 200 and query 3, B
// with prefix 0 and query 5.
#include <gtest/gtest.h>

#include "templates/kit.h"

namespace kiln::templates {
namespace {

const Kit& kit() { return require_kit(require_op("ragged_keys")); }

std::vector<double> all_of(const Case& c, const char* arg, int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    const std::vector<int64_t> index{i};
    values.push_back(kit().expected(c, *kit().op->find_arg(arg), index).value());
  }
  return values;
}

using Values = std::vector<double>;

// max_keys is a hint: one that is far too large has to stay a launch.
TEST(RaggedKeys, LargestMaxKeysIsOneLaunch) {
  const Op& op = *kit().op;
  const Gpu& gpu = find_gpu("a100-sxm4-80gb");
  constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();
  for (const Config& config : enumerate(op, {{"ratio", 1}}, gpu).configs) {
    const Extent grid = op.plan({{"ratio", 1}}, config, gpu).kernels.front().grid_x;
    EXPECT_LE(grid.value({{"R", (1 << 20) - 1}, {"M", kMostBlocks}}), kMostBlocks);
    EXPECT_LE(grid.value({{"R", kMostBlocks - 1}, {"M", 1}}), kMostBlocks);
    EXPECT_EQ(grid.value({{"R", 3}, {"M", 1}}), 4);
  }
}

TEST(RaggedKeys, WorkedExample) {
  for (const int64_t ratio : {1, 2}) {
    const std::vector<Case> cases = kit().verify_cases({{"ratio", ratio}}, {{"R", 1}, {"M", 256}});
    const Case& c = cases.front();
    ASSERT_EQ(c.name, "worked example of B15");
    EXPECT_EQ(all_of(c, "lens", 2), ratio == 2 ? Values({101, 2}) : Values({203, 5}));
    EXPECT_EQ(all_of(c, "gather_lens", 2), Values({130, 5}));
    EXPECT_EQ(all_of(c, "indptr", 3), ratio == 2 ? Values({0, 101, 103}) : Values({0, 203, 208}));
    EXPECT_EQ(all_of(c, "requests", 8), Values({0, 0, 0, 1, 1, 1, 1, 1}));
    EXPECT_EQ(all_of(c, "positions", 8), Values({200, 201, 202, 0, 1, 2, 3, 4}));
    EXPECT_EQ(all_of(c, "key_begin", 8), ratio == 2 ? Values({0, 0, 0, 101, 101, 101, 101, 101})
                                                    : Values({0, 0, 0, 203, 203, 203, 203, 203}));
    EXPECT_EQ(all_of(c, "key_end", 8), ratio == 2
                                           ? Values({100, 101, 101, 101, 102, 102, 103, 103})
                                           : Values({201, 202, 203, 204, 205, 206, 207, 208}));
    // Page by page, in the order of the table.
    std::vector<int32_t> table(static_cast<size_t>(c.sizes["table_width"]));
    kit().fill(c, *kit().op->find_arg("block_table"), std::vector<int64_t>{0},
               std::as_writable_bytes(std::span(table)));
    const Values slots = all_of(c, "indices", c.sizes["N"]);
    EXPECT_EQ(slots[0], table[0] * 64);
    EXPECT_EQ(slots[63], table[0] * 64 + 63);
    EXPECT_EQ(slots[100], table[1] * 64 + 36);
  }
}

}  // namespace
}  // namespace kiln::templates
