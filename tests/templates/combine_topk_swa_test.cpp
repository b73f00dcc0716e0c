// The truth of combine_topk_swa against the literal tables of ops.md B15.2.
#include <gtest/gtest.h>

#include "templates/kit.h"

namespace kiln::templates {
namespace {

// `first` to `last`, both included.
std::vector<int64_t> span_of(int64_t first, int64_t last) {
  std::vector<int64_t> values;
  for (int64_t value = first; value <= last; ++value) values.push_back(value);
  return values;
}

std::vector<int64_t> joined(std::vector<int64_t> a, const std::vector<int64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class WorkedExample : public testing::Test {
 protected:
  // Requests A (prefix 200, query 3) and B (prefix 0, query 5).
  static Case with_ratio(int64_t ratio, int64_t top_k) {
    for (const Case& c : kit().verify_cases({{"ratio", ratio}, {"K", top_k}}, {{"T", 1}})) {
      if (c.name == "worked example of B15.2") return c;
    }
    ADD_FAILURE() << "the example is no case of the kit";
    return {};
  }
  static const Kit& kit() { return require_kit(require_op("combine_topk_swa")); }

  static void expect_row(const Case& c, int64_t t, const std::vector<int64_t>& values) {
    const Arg& idx = *kit().op->find_arg("idx");
    const Arg& len = *kit().op->find_arg("len");
    const std::vector<int64_t> row{t};
    EXPECT_EQ(kit().expected(c, len, row), static_cast<double>(values.size()))
        << "len of row " << t;
    for (int64_t column = 0; column < c.sizes["W"]; ++column) {
      const std::vector<int64_t> index{t, column};
      const int64_t want =
          column < static_cast<int64_t>(values.size()) ? values[static_cast<size_t>(column)] : -1;
      ASSERT_EQ(kit().expected(c, idx, index), static_cast<double>(want))
          << "row " << t << " column " << column;
    }
  }
};

TEST_F(WorkedExample, Ratio2) {
  const Case c = with_ratio(2, 512);
  EXPECT_EQ(c.sizes["N"], 101);
  EXPECT_EQ(c.sizes["M"], 231);
  EXPECT_EQ(c.sizes["W"], 640);
  expect_row(c, 0, joined(span_of(0, 99), span_of(101, 228)));
  expect_row(c, 1, joined(span_of(0, 100), span_of(102, 229)));
  expect_row(c, 2, joined(span_of(0, 100), span_of(103, 230)));
  expect_row(c, 3, {332});
  expect_row(c, 4, {231, 332, 333});
  expect_row(c, 5, {231, 332, 333, 334});
  expect_row(c, 6, {231, 232, 332, 333, 334, 335});
  expect_row(c, 7, {231, 232, 332, 333, 334, 335, 336});
}

TEST_F(WorkedExample, Ratio1) {
  const Case c = with_ratio(1, 512);
  EXPECT_EQ(c.sizes["N"], 203);
  EXPECT_EQ(c.sizes["M"], 333);
  expect_row(c, 0, joined(span_of(0, 200), span_of(203, 330)));
  expect_row(c, 7, joined(span_of(333, 337), span_of(536, 540)));
}

TEST_F(WorkedExample, Ratio0) {
  const Case c = with_ratio(0, 0);
  EXPECT_EQ(c.sizes["N"], 0);
  EXPECT_EQ(c.sizes["M"], 130);
  EXPECT_EQ(c.sizes["W"], 128);
  expect_row(c, 0, span_of(0, 127));
  expect_row(c, 1, span_of(1, 128));
  expect_row(c, 7, span_of(130, 134));
}

TEST(CombineTopkSwa, CasesReachPaddingEmptyRequestsAndWideRows) {
  const Kit& kit = require_kit(require_op("combine_topk_swa"));
  const Arg& len = *kit.op->find_arg("len");
  bool padding = false, odd_width = false, many_requests = false;
  for (const Case& c : kit.verify_cases({{"ratio", 2}, {"K", 512}}, {{"T", 64}})) {
    const std::vector<int64_t> last{c.sizes["T"] - 1};
    padding |= kit.expected(c, len, last) == 0.0;
    odd_width |= c.sizes["W"] % 4 != 0;
    many_requests |= c.sizes["R"] > 32;
  }
  EXPECT_TRUE(padding && odd_width && many_requests);
}

}  // namespace
}  // namespace kiln::templates
