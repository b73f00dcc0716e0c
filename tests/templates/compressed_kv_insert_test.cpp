// The truth of compressed_kv_insert by hand: vectors of ops.md (e), the address example of B8, and
// rotation by the first position of a group.
#include "templates/kit_insert.h"
#include "tests/templates/insert_testing.h"

namespace kiln::templates {
namespace {

constexpr int64_t kF1 = 1, kF2 = 2, kF4 = 4;

using Ints = std::vector<int>;

// Groups of 16: vector v of the list is group v % 32 of row v / 32.
TEST(CompressedKvInsert, F2HoldsTheBytesOfQ4nInE) {
  const InsertedBytes f2("compressed_kv_insert", {{"format", kF2}, {"ratio", 1}},
                         "vectors and edges");
  EXPECT_EQ(f2.codes(0, 256, 0, 8), (Ints{0xf7, 0x6e, 0xcd, 0x92, 0xa1, 0x54, 0x6e, 0xf7}));
  EXPECT_EQ(f2.scales(0, 256, 32, 0, 4), (Ints{0x20, 0x1f, 0x38, 0x7e}));  // .125 .1171875 1 448
  EXPECT_EQ(f2.codes(0, 256, 8, 1), Ints{0xa7});   // 0.71875, -0.146484375: a tie to -1
  EXPECT_EQ(f2.codes(0, 256, 16, 1), Ints{0x27});  // 6.375, 1.0625: 6 and 1
  EXPECT_EQ(f2.codes(0, 256, 24, 1), Ints{0x07});  // 1e5 saturates
}

// Groups of 32: 0.75 and -0.6484375 with the scale 2^-9 are 384 and -332, nearest to -320 of the
// codes 32 apart.
TEST(CompressedKvInsert, F1HoldsTheCodesOfQ8a) {
  const InsertedBytes f1("compressed_kv_insert", {{"format", kF1}, {"ratio", 2}},
                         "vectors and edges");
  EXPECT_EQ(f1.codes(0, 512, 0, 2), (Ints{0x7c, 0xfa}));
  EXPECT_EQ(f1.scales(0, 512, 16, 0, 1), Ints{127 - 9});
  EXPECT_EQ(f1.scales(0, 512, 16, 4, 3), (Ints{127, 128, 127}));  // 448, 450, 446
}

TEST(CompressedKvInsert, F4HoldsWhatF2StandsFor) {
  const InsertedBytes f4("compressed_kv_insert", {{"format", kF4}, {"ratio", 2}},
                         "vectors and edges");
  EXPECT_EQ(f4.codes(0, 1024, 0, 4), (Ints{0x40, 0x3f, 0x40, 0xbf}));  // 0.75, -0.75
}

TEST(CompressedKvInsert, AddressExampleOfB8) {
  constexpr int64_t kPageSize = 64, kSlot = 770, kElement = 449, kPage = 12, kBase = 221184;
  const int64_t code = 221920 - kBase, scale = 237660 - kBase;
  EXPECT_EQ(kSlot / kPageSize, kPage);
  EXPECT_EQ(entry_of_byte(CacheLayout::f2, kPageSize, code), kSlot % kPageSize);
  EXPECT_EQ(entry_of_byte(CacheLayout::f2, kPageSize, scale), kSlot % kPageSize);
  // Only that element is not zero: 3, then 3 / 6 = 0.5 is the scale (0x30) and 6 the code (7).
  const RowBits row = [](int64_t e) -> uint16_t { return e == kElement ? 0x4040 : 0; };
  EXPECT_EQ(entry_byte(CacheLayout::f2, Quantiser::q4n, row, kPageSize, code), 0x70);
  EXPECT_EQ(entry_byte(CacheLayout::f2, Quantiser::q4n, row, kPageSize, scale), 0x30);
}

TEST(CompressedKvInsert, TokensOfAGroupRotateAlike) {
  const InsertedBytes pairs("compressed_kv_insert", {{"format", kF2}, {"ratio", 2}}, "5 rows");
  InsertedBytes single("compressed_kv_insert", {{"format", kF2}, {"ratio", 1}}, "5 rows");
  int odd = 0;
  for (int64_t row = 0; row < 5; ++row) {
    const int32_t position = pairs.input<int32_t>("positions", 0)[static_cast<size_t>(row)];
    const auto rotated_by = [&](int32_t at) {
      single.call.knobs.set("position", at);
      return single.codes(row, 256, 224, 32);
    };
    const Ints codes = pairs.codes(row, 256, 224, 32);
    EXPECT_EQ(codes, rotated_by(position - position % 2)) << position;
    if (position % 2 == 0) continue;
    ++odd;
    EXPECT_NE(codes, rotated_by(position)) << position;
  }
  EXPECT_GT(odd, 0);
}

}  // namespace
}  // namespace kiln::templates
