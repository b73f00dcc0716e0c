// The truth of gather_dequant_kv against the literal examples of ops.md B8 and B15, and its
// writer's layouts.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "templates/kit.h"
#include "tests/templates/cases.h"

namespace kiln::templates {
namespace {

const Kit& kit() { return require_kit(require_op("gather_dequant_kv")); }

Case case_named(const std::string& name, int64_t format) {
  return named(kit().verify_cases({{"format", format}}, {{"R", 1}, {"M", 256}}), name);
}

std::optional<double> out_at(const Case& c, int64_t b, int64_t row, int64_t element) {
  const std::vector<int64_t> index{b, row, element};
  return kit().expected(c, *kit().op->find_arg("out"), index);
}

std::vector<uint8_t> page_bytes(const Case& c, int64_t page) {
  const Arg& cache = *kit().op->find_arg("cache");
  std::vector<uint8_t> bytes(static_cast<size_t>(tensor_layout(*kit().op, cache, c).dims[1]), 0xee);
  const std::vector<int64_t> outer{page};
  kit().fill(c, cache, outer, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// (b, column) of the table entry that names `page`.
std::pair<int64_t, int64_t> table_place(const Case& c, int64_t page) {
  const int64_t width = c.sizes["table_width"];
  for (int64_t b = 0; b < c.sizes["R"]; ++b) {
    std::vector<int32_t> row(static_cast<size_t>(width));
    const std::vector<int64_t> outer{b};
    kit().fill(c, *kit().op->find_arg("block_table"), outer,
               std::as_writable_bytes(std::span(row)));
    for (int64_t column = 0; column < width; ++column) {
      if (row[static_cast<size_t>(column)] == page) return {b, column};
    }
  }
  ADD_FAILURE() << "page " << page << " is in no table";
  return {0, 0};
}

TEST(GatherDequantKv, WorkedExampleWritesExactlyTheRowsOfB15) {
  const Case compressed = case_named("worked example of B15.1, compressed", 2);
  const auto written = [](const Case& c, int64_t b, int64_t row) {
    return out_at(c, b, row, 0).has_value();
  };
  for (int64_t row = 0; row < 231; ++row) {
    EXPECT_EQ(written(compressed, 0, row), row <= 100) << row;
    EXPECT_EQ(written(compressed, 1, row), row <= 1) << row;  // flat rows 231 and 232
  }
  const Case window = case_named("worked example of B15.1, window", 1);
  for (int64_t row = 0; row < 231; ++row) {
    EXPECT_EQ(written(window, 0, row), row >= 101) << row;
    EXPECT_EQ(written(window, 1, row), row >= 101 && row <= 105) << row;  // flat rows 332 to 336
  }
}

TEST(GatherDequantKv, AddressExampleOfB8) {
  Case c = kit().measured_case({{"format", 2}}, {{"R", 1}, {"M", 2048}});
  ASSERT_EQ(c.sizes["page_size"], 64);
  const int64_t slot = 770, element = 449;
  const std::vector<uint8_t> page = page_bytes(c, slot / 64);
  const uint8_t code = page[221920 - 221184] >> 4;
  const uint8_t scale = page[237660 - 221184];
  const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const int exponent = scale >> 3 & 15, mantissa = scale & 7;
  const double scale_value =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  const double want = (code & 8 ? -1 : 1) * magnitudes[code & 7] * scale_value;
  const auto [b, column] = table_place(c, slot / 64);
  EXPECT_EQ(out_at(c, b, column * 64 + slot % 64, element), want);
}

TEST(GatherDequantKv, C09PagesHoldCodesThenScalesThenNothing) {
  struct Row {
    int64_t format, bytes;
  };
  for (const auto& [format, bytes] : {Row{1, 528}, Row{2, 288}, Row{3, 584}, Row{4, 1024}}) {
    const Case c = case_named("pages of one entry", format);
    EXPECT_EQ(page_bytes(c, 0).size(), static_cast<size_t>(bytes)) << format;
  }
  const Case f3 = case_named("pages of one entry", 3);
  EXPECT_EQ(page_bytes(f3, 0)[583], 0);  // the eighth scale byte of F3 is written 0
}

TEST(GatherDequantKv, EveryPairOfCodeAndScaleOccurs) {
  for (const int64_t format : {1, 2, 3}) {
    const Case c = case_named("every pair of code and scale", format);
    const int64_t page_size = c.sizes["page_size"];
    const int64_t code_bytes = format == 1 ? 512 : format == 2 ? 256 : 576;
    const int64_t scale_bytes = format == 1 ? 16 : format == 2 ? 32 : 8;
    const int64_t group = format == 1 ? 32 : format == 2 ? 16 : 64;
    const int64_t coded = format == 3 ? 448 : 512;
    std::set<std::pair<int, int>> pairs;
    for (int64_t p = 0; p < c.sizes["num_pages"]; ++p) {
      const std::vector<uint8_t> page = page_bytes(c, p);
      for (int64_t r = 0; r < page_size; ++r) {
        for (int64_t e = 0; e < coded; ++e) {
          const uint8_t byte =
              page[static_cast<size_t>(r * code_bytes + (format == 2 ? e / 2 : e))];
          const int code = format == 2 ? (e % 2 == 0 ? byte & 15 : byte >> 4) : byte;
          pairs.insert(
              {code,
               page[static_cast<size_t>(page_size * code_bytes + r * scale_bytes + e / group)]});
        }
      }
    }
    EXPECT_EQ(pairs.size(), format == 2 ? 16u * 256u : 256u * 256u) << "format " << format;
  }
}

TEST(GatherDequantKv, TruthKeepsSubnormalsOverflowsAndNaN) {
  // In "every pair", F1 slot s, group g holds scale (16 s + g) / 8 and codes (16 s + g) % 8 * 32 +
  // e % 32.
  const Case c = case_named("every pair of code and scale", 1);
  const auto value_of = [&](int scale, int code) {
    const int64_t unit = scale * 8 + code / 32;
    const int64_t slot = unit / 16, group = unit % 16;
    const auto [b, column] = table_place(c, slot / 64);
    return *out_at(c, b, column * 64 + slot % 64, group * 32 + code % 32);
  };
  EXPECT_EQ(value_of(127, 0x38), 1.0);
  EXPECT_EQ(value_of(127, 0xb8), -1.0);
  EXPECT_EQ(value_of(127, 0x01), std::ldexp(1, -9));
  EXPECT_EQ(value_of(0, 0x38), std::ldexp(1, -127));  // byte 0 is 2^-127, kept as a subnormal
  EXPECT_EQ(value_of(0, 0x01), 0.0);  // 2^-136 is below half of the least subnormal 2^-133
  EXPECT_EQ(value_of(3, 0x01), std::ldexp(1, -133));
  EXPECT_EQ(value_of(2, 0x01), 0.0);                  // 2^-134: a tie, to even
  EXPECT_EQ(value_of(2, 0x03), std::ldexp(1, -132));  // 3 * 2^-134 = 1.5 * 2^-133: a tie, to even
  EXPECT_EQ(value_of(246, 0x7e), std::ldexp(448, 119));
  EXPECT_TRUE(std::isinf(value_of(254, 0x7e)));
  EXPECT_TRUE(std::isnan(value_of(255, 0x00)));
  EXPECT_TRUE(std::isnan(value_of(127, 0x7f)));
  EXPECT_TRUE(std::isnan(value_of(127, 0xff)));
  EXPECT_TRUE(std::signbit(value_of(127, 0x80)));
}

TEST(GatherDequantKv, MissingEntriesAreZeroNotGarbage) {
  const Case c = case_named("pages and columns out of range", 1);
  int64_t zeros = 0;
  for (int64_t b = 0; b < c.sizes["R"]; ++b) {
    for (int64_t row = 0; row < c.sizes["M"]; ++row) {
      const std::optional<double> first = out_at(c, b, row, 0), second = out_at(c, b, row, 1);
      if (first == 0.0 && second == 0.0) ++zeros;
    }
  }
  EXPECT_GT(zeros, 8);
}

}  // namespace
}  // namespace kiln::templates
