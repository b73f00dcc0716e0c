// The truth of window_kv_insert by hand: vectors of ops.md (e) at their bytes, rotation, what is
// not written.
#include <cmath>

#include "tests/templates/insert_testing.h"

namespace kiln::templates {
namespace {

constexpr int64_t kF1 = 1, kF3 = 3, kF4 = 4;

using Ints = std::vector<int>;

// Groups of 32: vector v of the list is group v % 16 of row v / 16.
TEST(WindowKvInsert, F1HoldsTheScalesOfQ8aInE) {
  const InsertedBytes f1("window_kv_insert", {{"format", kF1}, {"norm", 0}}, "vectors and edges");
  const auto exponent = [&](int64_t vector) {
    return f1.scales(vector / 16, 512, 16, vector % 16, 1)[0] - 127;
  };
  constexpr uint16_t k448 = 0x43e0;
  ASSERT_EQ(f1.input<uint16_t>("kv", 0)[4 * 32], k448);
  EXPECT_EQ(exponent(4), 0);     // 448
  EXPECT_EQ(exponent(5), 1);     // 450, for 449
  EXPECT_EQ(exponent(6), 0);     // 446, for 447
  EXPECT_EQ(exponent(7), -1);    // 224
  EXPECT_EQ(exponent(8), -7);    // 3.5
  EXPECT_EQ(exponent(9), -8);    // 1
  EXPECT_EQ(exponent(10), -13);  // 0.05
  EXPECT_EQ(exponent(11), -22);  // 0
  EXPECT_EQ(f1.codes(0, 512, 4 * 32, 2), (Ints{0x7e, 0}));
}

TEST(WindowKvInsert, F4HoldsWhatF1StandsFor) {
  const InsertedBytes f4("window_kv_insert", {{"format", kF4}, {"norm", 0}}, "vectors and edges");
  // 450 = 225 * 2 is stored as 224 * 2 = 448; little-endian.
  EXPECT_EQ(f4.codes(0, 1024, 2 * 5 * 32, 2), (Ints{0xe0, 0x43}));
}

TEST(WindowKvInsert, F3EndsWithRotatedBf16AndAZeroScale) {
  const InsertedBytes f3("window_kv_insert", {{"format", kF3}, {"norm", 0}}, "3 rows");
  for (int64_t row = 0; row < 3; ++row) {
    const std::vector<uint16_t> kv = f3.input<uint16_t>("kv", row);
    const int32_t position = f3.input<int32_t>("positions", 0)[static_cast<size_t>(row)];
    const std::vector<float> angles = f3.input<float>("rope_table", position);
    const auto value = [&](int64_t e) {
      return std::ldexp((kv[static_cast<size_t>(e)] & 0x7f) + 128.0,
                        (kv[static_cast<size_t>(e)] >> 7 & 0xff) - 134) *
             (kv[static_cast<size_t>(e)] >> 15 != 0 ? -1 : 1);
    };
    for (int64_t i = 0; i < 32; ++i) {
      if ((kv[static_cast<size_t>(448 + 2 * i)] & 0x7f80) == 0) continue;
      if ((kv[static_cast<size_t>(449 + 2 * i)] & 0x7f80) == 0) continue;
      const double a = value(448 + 2 * i), b = value(449 + 2 * i);
      const double cos = angles[static_cast<size_t>(i)], sin = angles[static_cast<size_t>(32 + i)];
      const Ints bytes = f3.codes(row, 576, 448 + 4 * i, 4);
      const auto stored = [&](size_t half) {
        const int bits = bytes[2 * half] | bytes[2 * half + 1] << 8;
        return std::ldexp((bits & 0x7f) + 128.0, (bits >> 7 & 0xff) - 134) * (bits >> 15 ? -1 : 1);
      };
      const double magnitude = std::hypot(a, b);
      EXPECT_NEAR(stored(0), a * cos - b * sin, magnitude / 128) << row << " " << i;
      EXPECT_NEAR(stored(1), a * sin + b * cos, magnitude / 128) << row << " " << i;
    }
    EXPECT_EQ(f3.scales(row, 576, 8, 7, 1), Ints{0});
  }
}

TEST(WindowKvInsert, TableAngleIsTheProductInFp32) {
  const InsertedBytes f1("window_kv_insert", {{"format", kF1}, {"norm", 0}}, "5 rows");
  const std::vector<float> angles = f1.input<float>("rope_table", 3);
  EXPECT_EQ(angles[0], static_cast<float>(std::cos(3.0)));  // f_0 = 1
  EXPECT_EQ(angles[32], static_cast<float>(std::sin(3.0)));
  EXPECT_NEAR(angles[32 + 16], std::sin(0.03), 1e-8);  // f_16 = 10000^-0.5: no YaRN
}

TEST(WindowKvInsert, RowsWithoutASlotAndGapsAreLeftAlone) {
  const InsertedBytes f1("window_kv_insert", {{"format", kF1}, {"norm", 0}}, "rows without a slot");
  const int64_t pages = f1.call.sizes["num_pages"], slots = pages * f1.page_size();
  int64_t written = 0, wanted = 0;
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int64_t page = slot / f1.page_size(), r = slot % f1.page_size();
    const bool has_codes = f1.byte(page, r * 512 + 511) >= 0;
    EXPECT_EQ(f1.byte(page, f1.page_size() * 512 + r * 16) >= 0, has_codes) << slot;
    written += has_codes ? 1 : 0;
  }
  for (const int64_t slot : f1.input<int64_t>("slots", 0)) wanted += slot >= 0 && slot < slots;
  EXPECT_EQ(written, wanted);
  EXPECT_LT(wanted, f1.call.sizes["T"] - 10);
  EXPECT_GT(wanted, 10);
  for (int64_t page = 1; page < pages; page += 2)
    EXPECT_EQ(f1.byte(page, 0), -1) << "a page between those in use";
}

}  // namespace
}  // namespace kiln::templates
