// The truth of window_slots against the literal examples of ops.md B13.2.
#include <gtest/gtest.h>

#include "templates/kit.h"
#include "tests/templates/cases.h"

namespace kiln::templates {
namespace {

enum Form : int64_t { kCausal = 0, kDraft = 1 };

const Kit& kit() { return require_kit(require_op("window_slots")); }

double expected(const Case& c, const char* arg, std::vector<int64_t> index) {
  return kit().expected(c, *kit().op->find_arg(arg), index).value();
}

Case case_named(const std::string& name, const Sizes& fixed_sizes) {
  return named(kit().verify_cases(fixed_sizes, {{"T", 1}}), name);
}

TEST(WindowSlots, WorkedExample) {
  const Case c = case_named("worked example of B13.2", {{"window", 128}, {"form", kCausal}});
  EXPECT_EQ(expected(c, "lens", {0}), 3);
  const std::vector<double> first{160, 161, 162, -1, -1};
  for (int64_t i = 0; i < 5; ++i)
    EXPECT_EQ(expected(c, "slots", {0, 0, i}), first[static_cast<size_t>(i)]) << i;
  EXPECT_EQ(expected(c, "lens", {1}), 128);
  for (const auto& [column, slot] : std::vector<std::pair<int64_t, double>>{
           {0, 163}, {28, 191}, {29, 288}, {125, 352}, {127, 354}})
    EXPECT_EQ(expected(c, "slots", {0, 1, column}), slot) << column;
}

// Pages of one entry: the slot is the page, and a page names its position.
TEST(WindowSlots, DraftRowsSeeTheWindowAndTheWholeBlock) {
  const Case c = case_named("draft example of B13.2", {{"window", 8}, {"form", kDraft}});
  std::vector<int32_t> table(static_cast<size_t>(c.sizes["table_width"]));
  kit().fill(c, *kit().op->find_arg("block_table"), std::vector<int64_t>{0, 0},
             std::as_writable_bytes(std::span(table)));
  for (int64_t t = 0; t < 4; ++t) {
    EXPECT_EQ(expected(c, "lens", {t}), 12);
    for (int64_t i = 0; i < c.sizes["W"]; ++i) {
      const double want = i < 12 ? table[static_cast<size_t>(2 + i)] : -1;
      EXPECT_EQ(expected(c, "slots", {0, t, i}), want) << "row " << t << " column " << i;
    }
  }
}

TEST(WindowSlots, AWindowIsTheSamePartOfTheContextInEveryRowForm) {
  // Decode and prefill rows of one position agree: the list depends on the position alone.
  const Sizes shape{{"window", 128}, {"form", kCausal}};
  const Case c = case_named("padded rows", shape);
  for (int64_t t = 0; t + 1 < c.sizes["T"]; ++t) {
    const double len = expected(c, "lens", {t});
    if (len < 128 || expected(c, "lens", {t + 1}) < 128) continue;
    std::vector<double> here, next;
    for (int64_t i = 0; i < 127; ++i) {
      here.push_back(expected(c, "slots", {0, t, i + 1}));
      next.push_back(expected(c, "slots", {0, t + 1, i}));
    }
    std::vector<int32_t> requests(static_cast<size_t>(c.sizes["T"]));
    kit().fill(c, *kit().op->find_arg("requests"), {}, std::as_writable_bytes(std::span(requests)));
    const auto at = static_cast<size_t>(t);
    if (requests[at] == requests[at + 1]) {
      EXPECT_EQ(here, next) << t;
    }
  }
}

}  // namespace
}  // namespace kiln::templates
