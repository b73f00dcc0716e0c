// rms_norm: its inputs and truth against the formula of ops.md B3 in float64 and against rows
// computed by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "templates/kit.h"
#include "tests/templates/cases.h"

namespace kiln::templates {
namespace {

const Kit& kit() { return require_kit(require_op("rms_norm")); }

double bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

std::vector<double> row_of(const Case& c, const char* arg, int64_t row) {
  std::vector<uint16_t> bits(static_cast<size_t>(c.sizes["K"]));
  const std::vector<int64_t> outer{row};
  kit().fill(c, *kit().op->find_arg(arg), outer, std::as_writable_bytes(std::span(bits)));
  std::vector<double> values;
  for (const uint16_t each : bits) values.push_back(bf16(each));
  return values;
}

double expected(const Case& c, int64_t row, int64_t column) {
  const std::vector<int64_t> index{row, column};
  return kit().expected(c, *kit().op->find_arg("y"), index).value();
}

double round_to_bf16(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double step = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
  return std::nearbyint(value / step) * step;
}

Case case_named(const std::string& name, int64_t columns) {
  return named(kit().verify_cases({{"K", columns}}, {{"T", 1}}), name);
}

// Within one bf16 step of the formula, and nearly always the nearest: two roundings in fp32 move
// a value across a tie once in thousands.
TEST(RmsNorm, L62TruthIsTheFormulaOfB3AtEveryHiddenSize) {
  for (const int64_t columns : {8, 128, 512, 1280, 4096, 5120, 7168}) {
    const Case c = case_named("33 rows", columns);
    const std::vector<double> weight = row_of(c, "weight", 0);
    int64_t count = 0, nearest = 0;
    for (int64_t row = 0; row < c.sizes["T"]; ++row) {
      const std::vector<double> x = row_of(c, "x", row);
      double sum = 0;
      for (const double value : x) sum += value * value;
      if (sum > 1e38) continue;  // leaves fp32
      const double factor = 1 / std::sqrt(sum / static_cast<double>(columns) + 1e-20);
      for (int64_t column = 0; column < columns; ++column) {
        const auto at = static_cast<size_t>(column);
        const double want = x[at] * factor * weight[at];
        const double got = round_to_bf16(expected(c, row, column));
        ASSERT_LE(std::fabs(got - want), std::fabs(want) * 0x1p-7) << columns << " row " << row;
        ++count;
        if (got == round_to_bf16(want)) ++nearest;
      }
    }
    EXPECT_GT(count, 16 * columns);
    EXPECT_GT(static_cast<double>(nearest), 0.998 * static_cast<double>(count)) << columns;
  }
}

// sum = x^2 at one column: y = sqrt(columns) * sign(x) * weight there.
TEST(RmsNorm, RowOfOneNumber) {
  constexpr int64_t kColumns = 1024;
  Case c = case_named("vectors", kColumns);
  const std::vector<double> weight = row_of(c, "weight", 0);
  for (const int64_t row : {0, 1, 2, 7}) {
    const int64_t at = row * 37 % kColumns;
    const double sign = row == 1 ? -1 : 1;
    const double want = sign * 32 * weight[static_cast<size_t>(at)];
    EXPECT_NEAR(expected(c, row, at), want, std::fabs(want) * 0x1p-20) << row;
    EXPECT_EQ(expected(c, row, at + 1), 0) << row;
  }
  // 2^-133: 1e-20 is all that counts. -0: a row of zeros.
  EXPECT_NEAR(expected(c, 3, 3 * 37) * 0x1p133, 1e10 * weight[3 * 37], 1e10 * 0x1p-6);
  EXPECT_EQ(expected(c, 6, 6 * 37), 0);
  // The largest number: its square leaves fp32.
  EXPECT_EQ(expected(c, 5, 5 * 37), 0);
}

// All elements of one magnitude: y = +-weight.
TEST(RmsNorm, RowOfEqualMagnitudes) {
  for (const int64_t columns : {8, 128, 5120}) {
    const Case c = case_named("vectors", columns);
    const std::vector<double> weight = row_of(c, "weight", 0);
    for (const int64_t row : {8, 9}) {
      for (int64_t column = 0; column < columns; ++column) {
        const double sign = (column % 2 == 0) == (row == 9) ? 1 : -1;
        EXPECT_EQ(expected(c, row, column), sign * weight[static_cast<size_t>(column)]);
      }
    }
  }
}

TEST(RmsNorm, RowsOfZerosAndRowsBesideThe1em20AreAmongTheCases) {
  const Case c = case_named("33 rows", 512);
  int zeros = 0, beside = 0, plain = 0;
  for (int64_t row = 0; row < c.sizes["T"]; ++row) {
    double sum = 0;
    for (const double value : row_of(c, "x", row)) sum += value * value;
    const double mean = sum / 512;
    zeros += mean == 0 ? 1 : 0;
    beside += mean > 1e-21 && mean < 1e-18 ? 1 : 0;
    plain += mean > 1e-3 && mean < 1e3 ? 1 : 0;
  }
  EXPECT_GE(zeros, 1);
  EXPECT_GE(beside, 1);
  EXPECT_GE(plain, 8);
}

TEST(RmsNorm, ColumnsAreWholeVectors) {
  const Op& op = *kit().op;
  EXPECT_NO_THROW(parse_shape(op, Json{{"columns", 1272}}));
  EXPECT_THROW(parse_shape(op, Json{{"columns", 1276}}), Error);
}

TEST(RmsNorm, DefaultsServeTheWidestRows) {
  const Op& op = *kit().op;
  for (const int64_t columns : {8, 16, 1272, 5120, 16384}) {
    const Sizes shape{{"K", columns}};
    EXPECT_NO_THROW(
        parse_config(op, shape, find_gpu("rtx-3090"), config_json(op.default_config(shape))))
        << columns;
  }
}

}  // namespace
}  // namespace kiln::templates
