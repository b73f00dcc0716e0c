// qkv_norm: its truth against the formula of ops.md B3 and B7 in float64, and what its cases have
// to reach.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "templates/kit.h"
#include "tests/templates/cases.h"

namespace kiln::templates {
namespace {

constexpr int64_t kQ = 1280, kKv = 512;

const Kit& kit() { return require_kit(require_op("qkv_norm")); }

double bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

std::vector<double> row_of(const Case& c, const char* arg, int64_t row, int64_t columns) {
  std::vector<uint16_t> bits(static_cast<size_t>(columns));
  const std::vector<int64_t> outer{row};
  kit().fill(c, *kit().op->find_arg(arg), outer, std::as_writable_bytes(std::span(bits)));
  std::vector<double> values;
  for (const uint16_t each : bits) values.push_back(bf16(each));
  return values;
}

double expected(const Case& c, const char* arg, int64_t row, int64_t column) {
  const std::vector<int64_t> index{row, column};
  return kit().expected(c, *kit().op->find_arg(arg), index).value();
}

Case case_named(const std::string& name) {
  return named(kit().verify_cases({{"Q", kQ}, {"V", kKv}, {"qr_format", 2}}, {{"T", 1}}), name);
}

double e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code < 128 ? magnitude : -magnitude;
}

TEST(QkvNorm, TruthIsTheNormOfEachPart) {
  const Case c = case_named("33 rows");
  const std::vector<double> q_weight = row_of(c, "q_weight", 0, kQ);
  const std::vector<double> kv_weight = row_of(c, "kv_weight", 0, kKv);
  const auto check = [&](const char* arg, int64_t row, std::span<const double> x,
                         std::span<const double> weight) {
    double sum = 0;
    for (const double value : x) sum += value * value;
    if (sum > 1e38) return 0;  // leaves fp32
    const double factor = 1 / std::sqrt(sum / static_cast<double>(x.size()) + 1e-20);
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = x[i] * factor * weight[i];
      const double got = expected(c, arg, row, static_cast<int64_t>(i));
      EXPECT_LE(std::fabs(got - want), std::fabs(want) * 0x1p-7) << arg << " " << row << " " << i;
    }
    return 1;
  };
  int checked = 0;
  for (int64_t row = 0; row < c.sizes["T"]; ++row) {
    const std::vector<double> x = row_of(c, "qkv", row, kQ + kKv);
    checked += check("qr", row, std::span(x).first(kQ), q_weight);
    checked += check("kv", row, std::span(x).last(kKv), kv_weight);
  }
  EXPECT_GT(checked, 40);
}

// Half of a step of the code, or of the smallest one, beside qr.
TEST(QkvNorm, CodesAndScalesStandForQr) {
  const Case c = case_named("equal magnitudes");
  int ties = 0;
  for (int64_t row = 0; row < c.sizes["T"]; ++row) {
    for (int64_t column = 0; column < kQ; ++column) {
      const double scale =
          std::ldexp(1.0, static_cast<int>(expected(c, "qr_scales", row, column / 32)) - 127);
      const int code = static_cast<int>(expected(c, "qr_codes", row, column));
      const double quotient = expected(c, "qr", row, column) / scale;
      const double step =
          std::ldexp(1.0, std::max(quotient == 0 ? -6 : std::ilogb(quotient), -6) - 3);
      ASSERT_LE(std::fabs(e4m3(code) - quotient), step / 2) << row << " " << column;
      if (std::fabs(e4m3(code) - quotient) == step / 2) {
        ++ties;
        EXPECT_EQ(code % 2, 0);
      }
    }
  }
  EXPECT_GT(ties, 100);
}

TEST(QkvNorm, ArgumentsFollowTheFormat) {
  const auto presence = [&](const char* arg, int64_t format) {
    return kit().op->find_arg(arg)->presence_in({{"Q", kQ}, {"V", kKv}, {"qr_format", format}});
  };
  for (const char* arg : {"qr_codes", "qr_scales"}) {
    EXPECT_EQ(presence(arg, 0), Presence::absent);
    EXPECT_EQ(presence(arg, 1), Presence::required);
    EXPECT_EQ(presence(arg, 2), Presence::required);
  }
  EXPECT_EQ(presence("qr", 0), Presence::required);
  EXPECT_EQ(presence("qr", 1), Presence::absent);
  EXPECT_EQ(presence("qr", 2), Presence::required);
}

TEST(QkvNorm, PartsAreWholeGroupsAndVectors) {
  const auto parse = [&](int q, int kv) {
    return parse_shape(*kit().op,
                       Json{{"q_columns", q}, {"kv_columns", kv}, {"qr_format", "bf16"}});
  };
  EXPECT_NO_THROW(parse(96, 24));
  EXPECT_THROW(parse(88, 24), Error);
  EXPECT_THROW(parse(96, 20), Error);
}

TEST(QkvNorm, DefaultsServeTheWidestParts) {
  const Op& op = *kit().op;
  const Gpu& gpu = find_gpu("rtx-3090");
  for (const int64_t q : {32, 1280, 8192}) {
    for (const int64_t kv : {8, 512, 4096}) {
      const Sizes shape{{"Q", q}, {"V", kv}, {"qr_format", 1}};
      const Config config = op.default_config(shape);
      EXPECT_NO_THROW(parse_config(op, shape, gpu, config_json(config))) << q << " " << kv;
    }
  }
}

}  // namespace
}  // namespace kiln::templates
