// The inputs and the truth of act_quant against the literal vectors of ops.md (e) and (f)4, and
// what its cases have to reach.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "templates/kit.h"
#include "tests/templates/cases.h"

namespace kiln::templates {
namespace {

enum Format : int64_t { kQ8a = 0, kQ8c = 1, kQ8d = 2, kQ4m = 3, kQ4n = 4 };
enum Output : int64_t { kCodes = 0, kBf16 = 1 };

const Kit& kit() { return require_kit(require_op("act_quant")); }

int64_t group_of(int64_t format) { return format == kQ8d ? 64 : format == kQ4n ? 16 : 32; }

uint16_t bf16(double value) {
  const float narrow = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &narrow, sizeof(bits));
  EXPECT_EQ(bits & 0xffff, 0u) << value << " is no bf16 number";
  return static_cast<uint16_t>(bits >> 16);
}

std::vector<Case> cases_of(int64_t format, Output output, int64_t columns) {
  return kit().verify_cases({{"format", format}, {"K", columns}, {"output", output}}, {{"T", 1}});
}

// Rows of one group, so that a row is a vector.
Case case_named(const std::string& name, int64_t format, Output output) {
  return named(cases_of(format, output, group_of(format)), name);
}

std::vector<uint16_t> x_row(const Case& c, int64_t row) {
  std::vector<uint16_t> x(static_cast<size_t>(c.sizes["K"]), 0xdead);
  const std::vector<int64_t> outer{row};
  kit().fill(c, *kit().op->find_arg("x"), outer, std::as_writable_bytes(std::span(x)));
  return x;
}

double expected(const Case& c, const char* arg, int64_t row, int64_t column) {
  const std::vector<int64_t> index{row, column};
  const std::optional<double> value = kit().expected(c, *kit().op->find_arg(arg), index);
  EXPECT_TRUE(value.has_value());
  return value.value_or(0);
}

// What a group becomes, found among the vectors by what it begins with.
struct Quantised {
  int scale = -1;
  std::vector<int> codes;  // bytes
  std::vector<double> y;
};

Quantised quantised(int64_t format, std::vector<uint16_t> front) {
  const Case codes = case_named("vectors and edges", format, kCodes);
  const Case values = case_named("vectors and edges", format, kBf16);
  const int64_t columns = group_of(format);
  front.resize(static_cast<size_t>(columns), 0);
  for (int64_t row = 0; row < codes.sizes["T"]; ++row) {
    if (x_row(codes, row) != front) continue;
    EXPECT_EQ(x_row(values, row), front);
    Quantised q{.scale = static_cast<int>(expected(codes, "scales", row, 0))};
    const int64_t code_bytes = with_derived(*kit().op, codes.sizes)["code_bytes"];
    for (int64_t i = 0; i < code_bytes; ++i)
      q.codes.push_back(static_cast<int>(expected(codes, "codes", row, i)));
    for (int64_t i = 0; i < columns; ++i) q.y.push_back(expected(values, "y", row, i));
    return q;
  }
  ADD_FAILURE() << "no vector begins with " << fmt::format("{:#x}", fmt::join(front, " "));
  return {};
}

int exponent_of_scale(int64_t format, std::vector<uint16_t> front) {
  return quantised(format, std::move(front)).scale - 127;
}

TEST(ActQuant, ScalesOfQ8aInE) {
  const auto exponent = [](double largest) { return exponent_of_scale(kQ8a, {bf16(largest)}); };
  EXPECT_EQ(exponent(448), 0);
  EXPECT_EQ(exponent(450), 1);  // (e) has 449, which is no bf16 number
  EXPECT_EQ(exponent(446), 0);  // 447
  EXPECT_EQ(exponent(224), -1);
  EXPECT_EQ(exponent(3.5), -7);
  EXPECT_EQ(exponent(1), -8);
  EXPECT_EQ(exponent(0.050048828125), -13);  // 0.05
  EXPECT_EQ(exponent_of_scale(kQ8a, {}), -22);
}

TEST(ActQuant, ScalesOfQ4mInE) {
  const auto exponent = [](double largest) { return exponent_of_scale(kQ4m, {bf16(largest)}); };
  EXPECT_EQ(exponent(6), 0);
  EXPECT_EQ(exponent(6.5), 1);
  EXPECT_EQ(exponent(5.90625), 0);  // 5.9
  EXPECT_EQ(exponent(3), -1);
  EXPECT_EQ(exponent(1.5), -2);
  EXPECT_EQ(exponent(1), -2);
  EXPECT_EQ(exponent(0.75), -3);
  EXPECT_EQ(exponent_of_scale(kQ4m, {}), -126);
}

TEST(ActQuant, BytesOfQ4nInE) {
  std::vector<uint16_t> x;
  for (const double value : {0.75, -0.6484375, -0.55078125, 0.44921875, -0.349609375, -0.25,
                             0.150390625, -0.050048828125, 0.050048828125, -0.150390625, 0.25,
                             0.349609375, -0.44921875, 0.55078125, 0.6484375, -0.75})
    x.push_back(bf16(value));
  const Quantised q = quantised(kQ4n, x);
  EXPECT_EQ(q.scale, 0x20);  // 0.125
  EXPECT_EQ(q.codes, (std::vector<int>{0xf7, 0x6e, 0xcd, 0x92, 0xa1, 0x54, 0x6e, 0xf7}));
  const std::vector<double> magnitudes{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const std::vector<int> codes{7, 15, 14, 6, 13, 12, 2, 9, 1, 10, 4, 5, 14, 6, 7, 15};
  for (size_t i = 0; i < codes.size(); ++i) {
    const double sign = codes[i] < 8 ? 1 : -1;
    EXPECT_EQ(q.y[i], sign * 0.125 * magnitudes[static_cast<size_t>(codes[i] % 8)]) << i;
  }
}

TEST(ActQuant, TiesOfQ4nInE) {
  // A quotient of exactly -1.25; the reciprocal of the scale would give -1.5.
  const Quantised division = quantised(kQ4n, {bf16(0.71875), bf16(-0.146484375)});
  EXPECT_EQ(division.y[0], 0.703125);
  EXPECT_EQ(division.y[1], -0.1171875);
  // 6.375 / 6 lies between the E4M3 numbers 1 and 1.125.
  const Quantised scale = quantised(kQ4n, {bf16(6.375), bf16(1.0625)});
  EXPECT_EQ(scale.scale, 0x38);
  EXPECT_EQ(scale.y[0], 6);
  EXPECT_EQ(scale.y[1], 1);
  // 1e5 saturates.
  const Quantised large = quantised(kQ4n, {bf16(99840)});
  EXPECT_EQ(large.scale, 0x7e);
  EXPECT_EQ(large.y[0], 2688);
}

TEST(ActQuant, ScalesAtTheirFloors) {
  EXPECT_EQ(exponent_of_scale(kQ8a, {0x38d1}), -22);  // below 1e-4
  EXPECT_EQ(exponent_of_scale(kQ8a, {0x38e0}), -22);  // 448 * 2^-22
  EXPECT_EQ(exponent_of_scale(kQ8a, {0x38e1}), -21);
  EXPECT_EQ(exponent_of_scale(kQ8d, {0x0001, 0x8001}), -22);
  EXPECT_EQ(exponent_of_scale(kQ8d, {0x38e1}), -21);
  EXPECT_EQ(exponent_of_scale(kQ8c, {0x38d1}), -22);  // no floor: just the power of two
  EXPECT_EQ(exponent_of_scale(kQ8c, {0x01c1}), -126);
  EXPECT_EQ(quantised(kQ8c, {0x0001, 0x8001}).scale, 1);  // B4's pow2ceil ends at 2^-126
  EXPECT_EQ(exponent_of_scale(kQ4m, {0x01bf}), -126);
  EXPECT_EQ(exponent_of_scale(kQ4m, {0x01c0}), -126);  // 6 * 2^-126
  EXPECT_EQ(exponent_of_scale(kQ4m, {0x01c1}), -125);
  EXPECT_EQ(quantised(kQ4n, {0x3c3f}).scale, 1);
  EXPECT_EQ(quantised(kQ4n, {0x3c40}).scale, 1);  // 6 * 2^-9
  EXPECT_EQ(quantised(kQ4n, {0x3c8f}).scale, 1);
  EXPECT_EQ(quantised(kQ4n, {0x3c90}).scale, 2);  // 9 * 2^-9: the tie of 1 and 2, to even
  EXPECT_EQ(quantised(kQ4n, {0x3c91}).scale, 2);
}

TEST(ActQuant, ZeroGroups) {
  EXPECT_EQ(quantised(kQ8a, {}).scale, 105);
  EXPECT_EQ(quantised(kQ8d, {}).scale, 105);
  EXPECT_EQ(quantised(kQ8c, {}).scale, 0);
  EXPECT_EQ(quantised(kQ4m, {}).scale, 1);
  EXPECT_EQ(quantised(kQ4n, {}).scale, 1);
  for (const int64_t format : {kQ8a, kQ8c, kQ8d, kQ4m, kQ4n}) {
    const Quantised zeros = quantised(format, {});
    EXPECT_EQ(zeros.codes, std::vector<int>(zeros.codes.size(), 0)) << format;
    EXPECT_EQ(zeros.y, std::vector<double>(zeros.y.size(), 0.0)) << format;
  }
  // The sign of a zero is kept, but for the zero group of q8c.
  EXPECT_EQ(quantised(kQ8a, {0x8000}).codes[0], 0x80);
  EXPECT_TRUE(std::signbit(quantised(kQ8a, {0x8000}).y[0]));
  EXPECT_EQ(quantised(kQ4m, {0x8000}).codes[0], 0x08);
  EXPECT_EQ(quantised(kQ8c, {0x8000}).codes[0], 0);
  EXPECT_FALSE(std::signbit(quantised(kQ8c, {0x8000}).y[0]));
  EXPECT_EQ(quantised(kQ8c, {0x8000, 0x3f80, 0x0000, 0x8000}).codes[3], 0x80);
}

TEST(ActQuant, GroupsThatAreNotFinite) {
  const std::vector<std::vector<uint16_t>> fronts{
      {0x3f80, 0x7f80}, {0xff80}, {0x7fc0, 0x4000}, {0x3f80, 0xffff}, {0x7f81, 0xff80, 0x7f80}};
  for (const int64_t format : {kQ8a, kQ8c, kQ8d, kQ4m, kQ4n}) {
    for (const std::vector<uint16_t>& front : fronts) {
      const Quantised q = quantised(format, front);
      EXPECT_EQ(q.scale, format == kQ4n ? 0x7f : 255) << format;
      const int code = format == kQ4m || format == kQ4n ? 0 : 0x7f;
      EXPECT_EQ(q.codes, std::vector<int>(q.codes.size(), code)) << format;
      for (const double y : q.y) EXPECT_TRUE(std::isnan(y)) << format;
    }
  }
}

TEST(ActQuant, LargestNumbersStayFinite) {
  for (const int64_t format : {kQ8a, kQ8c, kQ8d, kQ4m, kQ4n}) {
    const Quantised q = quantised(format, {0x7f7f, 0xff7f, 0x0001});
    EXPECT_TRUE(std::isfinite(q.y[0])) << format;
    EXPECT_EQ(q.y[0], -q.y[1]) << format;
  }
  EXPECT_EQ(quantised(kQ8a, {0x7f7f, 0xff7f, 0x0001}).scale, 247);
  EXPECT_EQ(quantised(kQ4m, {0x7f7f, 0xff7f, 0x0001}).scale, 253);
}

// The decision points of B4 as it lists them, met under every scale by the case of ties.
TEST(ActQuant, TiesGoToTheEvenCode) {
  const std::map<double, int> e2m1{{0.25, 0}, {0.75, 2}, {1.25, 2}, {1.75, 4},
                                   {2.5, 4},  {3.5, 6},  {5, 6}};
  for (const int64_t format : {kQ4m, kQ4n}) {
    const Case c = case_named("ties under every scale", format, kCodes);
    const double largest = 6;
    std::set<double> met;
    for (int64_t row = 0; row < c.sizes["T"]; ++row) {
      const std::vector<uint16_t> x = x_row(c, row);
      const auto value = [&](int64_t i) {
        const uint32_t wide = uint32_t{x[static_cast<size_t>(i)]} << 16;
        float narrow = 0;
        std::memcpy(&narrow, &wide, sizeof(narrow));
        return static_cast<double>(narrow);
      };
      const double scale = std::fabs(value(0)) / largest;
      for (int64_t i = 1; i < group_of(format); ++i) {
        const auto tie = e2m1.find(std::fabs(value(i)) / scale);
        if (tie == e2m1.end()) continue;
        const int byte = static_cast<int>(expected(c, "codes", row, i / 2));
        EXPECT_EQ((i % 2 == 0 ? byte : byte >> 4) & 7, tie->second) << "row " << row;
        met.insert(std::copysign(tie->first, value(i)));
      }
    }
    EXPECT_EQ(met.size(), 2 * e2m1.size()) << format;
  }
  for (const int64_t format : {kQ8a, kQ8c, kQ8d}) {
    const Case c = case_named("ties under every scale", format, kCodes);
    std::set<int> rounded_down, rounded_up;  // codes below the tie
    for (int64_t row = 0; row < c.sizes["T"]; ++row) {
      for (int64_t i = 1; i < group_of(format); ++i) {
        const int64_t number = (row * (group_of(format) - 1) + i - 1) % (6 * 126);
        if (number % 6 != 2) continue;  // positive, exactly between
        const int low = static_cast<int>(number / 6);
        const int code = static_cast<int>(expected(c, "codes", row, i));
        EXPECT_EQ(code, low % 2 == 0 ? low : low + 1) << "row " << row;
        (code == low ? rounded_down : rounded_up).insert(low);
      }
    }
    EXPECT_EQ(rounded_down.size() + rounded_up.size(), 126u) << format;
  }
}

TEST(ActQuant, EveryMagnitudeIsAloneOnceInItsGroup) {
  for (const int64_t format : {kQ8a, kQ8c, kQ8d, kQ4m, kQ4n}) {
    std::set<uint16_t> magnitudes, signs;
    std::set<size_t> places;
    for (const Case& c : cases_of(format, kCodes, group_of(format))) {
      if (c.name != "every magnitude alone") continue;
      for (int64_t row = 0; row < c.sizes["T"]; ++row) {
        const std::vector<uint16_t> x = x_row(c, row);
        int others = 0;
        for (size_t i = 0; i < x.size(); ++i) {
          if ((x[i] & 0x7fff) == 0) continue;
          ++others;
          magnitudes.insert(x[i] & 0x7fff);
          signs.insert(x[i] >> 15);
          places.insert(i);
        }
        ASSERT_LE(others, 1);
      }
    }
    EXPECT_EQ(magnitudes.size(), 32767u) << format;  // all but zero
    EXPECT_EQ(signs.size(), 2u) << format;
    EXPECT_EQ(places.size(), static_cast<size_t>(group_of(format))) << format;
  }
}

TEST(ActQuant, ColumnsAreWholeGroups) {
  const Op& op = *kit().op;
  const auto shape = [&](const char* format, int columns) {
    return parse_shape(op, Json{{"format", format}, {"columns", columns}, {"output", "codes"}});
  };
  EXPECT_NO_THROW(shape("q4n", 48));
  try {
    shape("q8d", 480);
    ADD_FAILURE() << "480 columns of q8d are legal";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("a multiple of 64, the group of q8d, but is 480"),
              std::string::npos)
        << error.what();
  }
}

TEST(ActQuant, ArgumentsFollowTheOutput) {
  const Op& op = *kit().op;
  const auto presence = [&](const char* arg, Output output) {
    return op.find_arg(arg)->presence_in({{"format", kQ8a}, {"K", 32}, {"output", output}});
  };
  EXPECT_EQ(presence("codes", kCodes), Presence::required);
  EXPECT_EQ(presence("scales", kCodes), Presence::required);
  EXPECT_EQ(presence("y", kCodes), Presence::absent);
  EXPECT_EQ(presence("codes", kBf16), Presence::absent);
  EXPECT_EQ(presence("scales", kBf16), Presence::absent);
  EXPECT_EQ(presence("y", kBf16), Presence::required);
}

// Each CTA of the grid has work but for less than one row of CTAs, and none is missing.
TEST(ActQuant, GridCoversAllPieces) {
  const Op& op = *kit().op;
  for (const Sizes& shape : op.model_shapes(8)) {
    for (const Config& config : enumerate(op, shape, find_gpu("rtx-3090")).configs) {
      const LaunchPlan plan = op.plan(shape, config, find_gpu("rtx-3090"));
      const int64_t of_cta = 8 * config["threads"] * config["pieces"];
      for (const int64_t rows : {0, 1, 2, 3, 31, 4096}) {
        const int64_t ctas = plan.kernels.front().grid_x.value({{"T", rows}});
        const int64_t needed = (rows * shape["K"] + of_cta - 1) / of_cta;
        EXPECT_GE(ctas, needed) << shape_json(op, shape).dump() << config_json(config).dump();
        EXPECT_LE(ctas, needed + shape["K"] / 8) << config_json(config).dump();
      }
    }
  }
}

}  // namespace
}  // namespace kiln::templates
