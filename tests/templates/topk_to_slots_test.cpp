// The truth of topk_to_slots against the literal example of ops.md B13.1; what its cases reach.
#include <gtest/gtest.h>

#include "templates/kit.h"

namespace kiln::templates {
namespace {

const Kit& kit() { return require_kit(require_op("topk_to_slots")); }

double expected(const Case& c, const char* arg, std::vector<int64_t> index) {
  return kit().expected(c, *kit().op->find_arg(arg), index).value();
}

TEST(TopkToSlots, WorkedExample) {
  const std::vector<Case> cases = kit().verify_cases({{"K", 512}}, {{"T", 1}});
  const Case& c = cases.front();
  ASSERT_EQ(c.name, "worked example of B13.1");
  const std::vector<double> slots{448, 511, 192, 770};
  for (int64_t i = 0; i < 512; ++i) {
    const double want = i < 4 ? slots[static_cast<size_t>(i)] : -1;
    EXPECT_EQ(expected(c, "slots", {0, i}), want) << i;
  }
  EXPECT_EQ(expected(c, "lens", {0}), 4);
}

TEST(TopkToSlots, CasesReachEveryReasonForMinusOne) {
  for (const Case& c : kit().verify_cases({{"K", 512}}, {{"T", 64}})) {
    if (c.name != "what does not exist") continue;
    int rows_with_holes = 0, rows_without_slots = 0, padded = 0;
    for (int64_t t = 0; t < c.sizes["T"]; ++t) {
      int64_t slots = 0;
      for (int64_t i = 0; i < 512; ++i) slots += expected(c, "slots", {t, i}) >= 0;
      const double len = expected(c, "lens", {t});
      padded += len == 0;
      rows_without_slots += len > 0 && slots == 0;
      rows_with_holes += slots > 0 && static_cast<double>(slots) < len;
    }
    EXPECT_GE(padded, 3);
    EXPECT_GE(rows_without_slots, 3);
    EXPECT_GE(rows_with_holes, 20);
    return;
  }
  FAIL() << "there is no such case";
}

}  // namespace
}  // namespace kiln::templates
