// engram_hash: its truth against the vectors of ops.md (e).
#include <gtest/gtest.h>

#include "templates/kit.h"

namespace kiln::templates {
namespace {

// Rows of layer 1 for (t0, t1, t2, t3): columns 0, 7, 8, 15, 16, 23 and the sum of all 24.
TEST(EngramHash, TruthOfTheVectorsIsThatOfTheSpec) {
  struct Vector {
    int64_t row;  // of the case: the last token of each text
    int64_t columns[6];
    int64_t sum;
  };
  constexpr Vector kVectors[] = {
      {3, {22259, 117124931, 142558994, 249163395, 261693639, 380883595}, 4588694744},
      {7, {13293893, 127916039, 131494926, 250788504, 259489750, 379968683}, 4647653551},
      {11, {8939594, 121427189, 128454377, 241631034, 263018334, 373889199}, 4631331210},
  };
  const Op& op = require_op("engram_hash");
  const Kit& kit = require_kit(op);
  const std::vector<Case> cases = kit.verify_cases({{"heads", 8}}, {{"T", 1}});
  ASSERT_EQ(cases[0].name, "vectors");
  ASSERT_EQ(cases[1].name, "vectors behind history");
  const auto at = [&](const Case& c, int64_t row, int64_t column) {
    const std::vector<int64_t> index{row, column};
    return static_cast<int64_t>(kit.expected(c, *op.find_arg("rows"), index).value());
  };
  for (const Vector& vector : kVectors) {
    constexpr int64_t kColumns[] = {0, 7, 8, 15, 16, 23};
    for (size_t i = 0; i < std::size(kColumns); ++i) {
      EXPECT_EQ(at(cases[0], vector.row, kColumns[i]), vector.columns[i]);
      EXPECT_EQ(at(cases[1], vector.row / 4, kColumns[i]), vector.columns[i]);
    }
    int64_t sum = 0;
    for (int64_t column = 0; column < 24; ++column) sum += at(cases[0], vector.row, column);
    EXPECT_EQ(sum, vector.sum);
  }
}

}  // namespace
}  // namespace kiln::templates
