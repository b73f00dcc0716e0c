// rope and rope_table: their truth against ops.md B5 and (e) in float64, and what their cases have
// to reach.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "templates/kit.h"
#include "tests/templates/cases.h"

namespace kiln::templates {
namespace {

const Kit& rope_kit() { return require_kit(require_op("rope")); }
const Kit& table_kit() { return require_kit(require_op("rope_table")); }

double table_value(int64_t frequencies, int64_t position, int64_t column) {
  const Case c{.name = "one",
               .sizes = {{"frequencies", frequencies}, {"P", 1}, {"first_position", position}},
               .strides = {},
               .knobs = {},
               .absent = {}};
  const std::vector<int64_t> index{0, column};
  const auto& arg = *table_kit().op->find_arg("rope_table");
  return static_cast<double>(static_cast<float>(table_kit().expected(c, arg, index).value()));
}

double bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

TEST(RopeTable, YarnFrequenciesOfB5AndE) {
  const std::vector<double> listed{1,
                                   .687656022,
                                   .472870805,
                                   .325172456,
                                   .223606798,
                                   .153764561,
                                   .105737126,
                                   .0727107717,
                                   .05,
                                   .0343828011,
                                   .0236435402,
                                   .0162586228,
                                   .0111803399,
                                   .00768822805,
                                   .00528685632,
                                   .00363553858,
                                   .002265625,
                                   .00139680129,
                                   .000849689727,
                                   .000508081963,
                                   .000296977778,
                                   .000168179989,
                                   9.0867843e-5,
                                   4.54442323e-5,
                                   1.953125e-5,
                                   5.37231267e-6,
                                   3.69430316e-6,
                                   2.54040981e-6,
                                   1.74692811e-6,
                                   1.20128563e-6,
                                   8.260713e-7,
                                   5.68052904e-7};
  for (size_t i = 0; i < listed.size(); ++i) {
    const double angle = std::asin(table_value(1, 1, 32 + static_cast<int64_t>(i)));
    EXPECT_NEAR(angle, listed[i], listed[i] * 2e-7) << i;
  }
}

TEST(RopeTable, Base10000) {
  for (int64_t i = 0; i < 32; ++i) {
    const double frequency = std::pow(10000.0, -static_cast<double>(i) / 32);
    EXPECT_NEAR(std::asin(table_value(0, 1, 32 + i)), frequency, frequency * 2e-7) << i;
  }
}

// One base for all layers would pass only until the sliding window is full.
TEST(RopeTable, L34TheSetsDifferFromPosition127On) {
  for (int64_t column = 0; column < 64; ++column) {
    EXPECT_EQ(table_value(0, 0, column), column < 32 ? 1 : 0);
    EXPECT_EQ(table_value(1, 0, column), column < 32 ? 1 : 0);
  }
  for (const int64_t position : {127, 128, 1000000}) {
    for (const int64_t pair : {1, 12, 20})
      EXPECT_GT(
          std::fabs(table_value(0, position, 32 + pair) - table_value(1, position, 32 + pair)),
          1e-3)
          << position << " " << pair;
  }
}

// The angle is the fp32 product: at 10^6 another one than the exact product.
TEST(RopeTable, AngleIsTheProductInFp32) {
  const double frequency = std::pow(10000.0, -1.0 / 32);
  const float angle = 1e6f * static_cast<float>(frequency);
  EXPECT_EQ(table_value(0, 1000000, 1), static_cast<float>(std::cos(static_cast<double>(angle))));
  EXPECT_GT(std::fabs(std::cos(1e6 * frequency) - table_value(0, 1000000, 1)), 1e-3);
}

TEST(RopeTable, SinesAndCosinesLieOnTheCircle) {
  for (const int64_t position : {1, 4095, 1048575, 16777215}) {
    for (int64_t pair = 0; pair < 32; ++pair) {
      EXPECT_NEAR(std::hypot(table_value(1, position, pair), table_value(1, position, 32 + pair)),
                  1, 1e-7);
    }
  }
}

struct Row {
  int32_t position;
  std::vector<double> x, y, angles;
};

// Head 0 of a row.
Row row_of(const Case& c, int64_t row) {
  const Kit& kit = rope_kit();
  Row result{};
  std::vector<int32_t> positions(static_cast<size_t>(c.sizes["T"]));
  kit.fill(c, *kit.op->find_arg("positions"), {}, std::as_writable_bytes(std::span(positions)));
  result.position = positions[static_cast<size_t>(row)];
  std::vector<uint16_t> bits(64);
  const std::vector<int64_t> outer{row, 0};
  kit.fill(c, *kit.op->find_arg("x"), outer, std::as_writable_bytes(std::span(bits)));
  for (const uint16_t each : bits) result.x.push_back(bf16(each));
  for (int64_t i = 0; i < 64; ++i) {
    const std::vector<int64_t> index{row, 0, i};
    result.y.push_back(kit.expected(c, *kit.op->find_arg("x"), index).value());
  }
  if (result.position < 0 || result.position >= c.sizes["P"]) return result;
  std::vector<float> table(64);
  const std::vector<int64_t> of_table{result.position};
  kit.fill(c, *kit.op->find_arg("rope_table"), of_table, std::as_writable_bytes(std::span(table)));
  result.angles.assign(table.begin(), table.end());
  return result;
}

Case case_named(const std::string& name, int64_t direction) {
  return named(rope_kit().verify_cases({{"H", 2}, {"direction", direction}}, {{"T", 1}}), name);
}

// (a + ib) * (cos + i sin), or by the conjugate.
TEST(Rope, TruthIsTheComplexProduct) {
  for (const int64_t direction : {0, 1}) {
    for (const char* name : {"base 10000", "YaRN", "positions to 2^20", "YaRN to 2^20"}) {
      const Case c = case_named(name, direction);
      for (int64_t row = 0; row < c.sizes["T"]; ++row) {
        const Row r = row_of(c, row);
        for (size_t i = 0; i < 32; ++i) {
          const double a = r.x[2 * i], b = r.x[2 * i + 1];
          const double cosine = r.angles[i], sine = (direction == 0 ? 1 : -1) * r.angles[32 + i];
          const double fp32 = (std::fabs(a) + std::fabs(b)) * 0x1p-23;
          EXPECT_NEAR(r.y[2 * i], a * cosine - b * sine, fp32);
          EXPECT_NEAR(r.y[2 * i + 1], a * sine + b * cosine, fp32);
        }
      }
    }
  }
}

TEST(Rope, CasesTurnByLargeAngles) {
  double least_cosine = 1;
  const Case c = case_named("YaRN to 2^20", 0);
  for (int64_t row = 0; row < c.sizes["T"]; ++row) {
    for (size_t i = 0; i < 32; ++i) least_cosine = std::min(least_cosine, row_of(c, row).angles[i]);
  }
  EXPECT_LT(least_cosine, -0.99);
}

TEST(Rope, RowsWithoutAPositionStayAsTheyAre) {
  for (const char* name : {"positions outside", "no row has a position", "empty table"}) {
    const Case c = case_named(name, 0);
    int below = 0, above = 0;
    for (int64_t row = 0; row < c.sizes["T"]; ++row) {
      const Row r = row_of(c, row);
      below += r.position < 0 ? 1 : 0;
      above += r.position >= c.sizes["P"] ? 1 : 0;
      if (r.angles.empty()) {
        EXPECT_EQ(r.x, r.y) << name;
      }
    }
    EXPECT_GT(below + above, 0) << name;
    if (c.sizes["P"] > 0) {
      EXPECT_GT(below * above, 0) << name;
    }
  }
}

}  // namespace
}  // namespace kiln::templates
