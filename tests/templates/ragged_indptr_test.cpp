// The truth of ragged_indptr against rows that are packed by hand.
#include <gtest/gtest.h>

#include "templates/kit.h"

namespace kiln::templates {
namespace {

const Kit& kit() { return require_kit(require_op("ragged_indptr")); }

std::optional<double> expected(const Case& c, const char* arg, int64_t index) {
  return kit().expected(c, *kit().op->find_arg(arg), std::vector<int64_t>{index});
}

std::vector<int32_t> filled(const Case& c, const char* arg, std::vector<int64_t> outer,
                            int64_t count) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  kit().fill(c, *kit().op->find_arg(arg), outer, std::as_writable_bytes(std::span(values)));
  return values;
}

TEST(RaggedIndptr, RowsStandOneBehindTheOther) {
  for (const Case& c : kit().verify_cases({}, {{"T", 16}})) {
    const int64_t rows = c.sizes["T"], width = c.sizes["W"], capacity = c.sizes["N"];
    if (rows > 100) continue;
    const std::vector<int32_t> lens = filled(c, "lens", {}, rows);
    std::vector<double> packed;
    for (int64_t t = 0; t <= rows; ++t) {
      const auto begin = std::min<int64_t>(static_cast<int64_t>(packed.size()), capacity);
      EXPECT_EQ(expected(c, "indptr", t), static_cast<double>(begin)) << c.name << " " << t;
      if (t == rows) break;
      const std::vector<int32_t> slots = filled(c, "slots", {t}, width);
      for (int64_t i = 0; i < width && i < lens[static_cast<size_t>(t)]; ++i)
        packed.push_back(slots[static_cast<size_t>(i)]);
    }
    for (int64_t i = 0; i < capacity; ++i) {
      const auto want = i < static_cast<int64_t>(packed.size())
                            ? std::optional(packed[static_cast<size_t>(i)])
                            : std::nullopt;
      ASSERT_EQ(expected(c, "indices", i), want) << c.name << " " << i;
    }
  }
}

}  // namespace
}  // namespace kiln::templates
