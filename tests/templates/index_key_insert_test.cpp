// The truth of index_key_insert by hand: rows of ones, whose norm is the weight, carry vectors of
// ops.md (e) through the norm.
#include "tests/templates/insert_testing.h"

namespace kiln::templates {
namespace {

constexpr int64_t kF5 = 5, kF6 = 6;

using Ints = std::vector<int>;

// Groups of 32: vectors 4 * row to 4 * row + 3 of the list.
Ints scales_of_f5(int64_t row) {
  const InsertedBytes f5("index_key_insert", {{"format", kF5}, {"ratio", 1}},
                         "vectors as weight, row " + std::to_string(row));
  EXPECT_EQ(f5.input<uint16_t>("k", 0), std::vector<uint16_t>(128, 0x3f80));
  return f5.scales(1, 64, 4, 0, 4);
}

TEST(IndexKeyInsert, F5HoldsTheScalesOfQ4mInE) {
  EXPECT_EQ(scales_of_f5(3), (Ints{127, 128, 127, 126}));  // 6, 6.5, 5.90625 for 5.9, 3
  const Ints next = scales_of_f5(4);
  EXPECT_EQ(next[0], 125);           // 1.5
  EXPECT_EQ(next[1], 124);           // 0.75
  EXPECT_EQ(scales_of_f5(2)[3], 1);  // 0: 2^-126
}

TEST(IndexKeyInsert, F5PutsTheEvenElementIntoTheLowBits) {
  const InsertedBytes f5("index_key_insert", {{"format", kF5}, {"ratio", 1}},
                         "vectors as weight, row 0");
  // 0.75 and -0.6484375 with scale 2^-3: 6 and -5.1875, the latter nearest to -6; 6.375 and 1.0625
  // with 2^1: 3.1875 and 0.53125.
  EXPECT_EQ(f5.codes(0, 64, 0, 1), Ints{0xf7});
  EXPECT_EQ(f5.codes(0, 64, 32, 1), Ints{0x15});
}

TEST(IndexKeyInsert, F6HoldsOneScaleInFp32) {
  const InsertedBytes f6("index_key_insert", {{"format", kF6}, {"ratio", 1}},
                         "vectors as weight, row 5");                     // 450
  EXPECT_EQ(f6.scales(0, 128, 4, 0, 4), (Ints{0x00, 0x00, 0x00, 0x40}));  // 2
  EXPECT_EQ(f6.codes(0, 128, 0, 2), (Ints{0x76, 0}));                     // 224
}

TEST(IndexKeyInsert, KeysThatAreNotFiniteAreStoredAsNaN) {
  const InsertedBytes f6("index_key_insert", {{"format", kF6}, {"ratio", 1}},
                         "vectors as weight, row 36");  // 1, infinity
  EXPECT_EQ(f6.scales(0, 128, 4, 0, 4), (Ints{0x00, 0x00, 0xc0, 0x7f}));
  EXPECT_EQ(f6.codes(0, 128, 0, 3), (Ints{0x7f, 0x7f, 0x7f}));
}

}  // namespace
}  // namespace kiln::templates
