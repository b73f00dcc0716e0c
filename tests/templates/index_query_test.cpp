// The truth of index_query by hand: the vectors of ops.md (e) and one rotation.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "templates/kit.h"
#include "tests/templates/cases.h"

namespace kiln::templates {
namespace {

enum Output : int64_t { kQ4m = 0, kQ8k = 1, kBf16 = 2 };

const Kit& kit() { return require_kit(require_op("index_query")); }

Case case_named(const std::string& name, const Sizes& fixed) {
  return named(kit().verify_cases(fixed, {{"T", 1}}), name);
}

double expected(const Case& c, const char* arg, std::vector<int64_t> index) {
  return kit().expected(c, *kit().op->find_arg(arg), index).value();
}

template <class T>
std::vector<T> filled(const Case& c, const char* arg, std::vector<int64_t> outer, size_t count) {
  std::vector<T> values(count);
  kit().fill(c, *kit().op->find_arg(arg), outer, std::as_writable_bytes(std::span(values)));
  return values;
}

double bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof(value));
  return static_cast<double>(value);
}

// ops.md (e), Q4m: 6 -> 2^0, 6.5 -> 2^1, 3 -> 2^-1, 1.5 -> 2^-2, 0.75 -> 2^-3, 0 -> 2^-126.
TEST(IndexQuery, ScalesOfTheSpec) {
  const std::map<double, int> bytes{{6, 127},   {6.5, 128},  {3, 126},
                                    {1.5, 125}, {0.75, 124}, {0, 1}};
  const Case c = case_named("vectors and edges", {{"H", 32}, {"output", kQ4m}});
  size_t met = 0;
  for (int64_t t = 0; t < c.sizes["T"]; ++t) {
    for (int64_t head = 0; head < 32; ++head) {
      const auto x = filled<uint16_t>(c, "q", {t, head}, 128);
      for (int64_t group = 0; group < 4; ++group) {
        double largest = 0;
        for (int64_t e = 32 * group; e < 32 * group + 32; ++e)
          largest = std::fmax(largest, std::fabs(bf16(x[static_cast<size_t>(e)])));
        const auto want = bytes.find(largest);
        if (want == bytes.end()) continue;
        bool is_finite = true;
        for (int64_t e = 32 * group; e < 32 * group + 32; ++e)
          is_finite &= std::isfinite(bf16(x[static_cast<size_t>(e)]));
        if (!is_finite) continue;
        EXPECT_EQ(expected(c, "scales", {t, head, group}), want->second) << largest;
        ++met;
      }
    }
  }
  EXPECT_GE(met, bytes.size());
}

TEST(IndexQuery, TheLast64ElementsRotateByTheRowsPosition) {
  const Case c = case_named("3 rows", {{"H", 32}, {"output", kBf16}});
  for (int64_t t = 0; t < 3; ++t) {
    const int32_t position = filled<int32_t>(c, "positions", {}, 3)[static_cast<size_t>(t)];
    const auto angles = filled<float>(c, "rope_table", {position}, 64);
    // Frequencies of ops.md B5 at i = 0, 15 and 20.
    for (const auto& [i, f] :
         std::map<size_t, double>{{0, 1}, {15, 0.00363553858}, {20, 2.96977778e-4}}) {
      EXPECT_NEAR(angles[i], std::cos(position * f), 1e-5) << i;
      EXPECT_NEAR(angles[32 + i], std::sin(position * f), 1e-5) << i;
    }
    for (const int64_t head : {0, 31}) {
      const auto x = filled<uint16_t>(c, "q", {t, head}, 128);
      double error = 0, squares = 0;
      for (size_t i = 0; i < 32; ++i) {
        const double a = bf16(x[64 + 2 * i]), b = bf16(x[65 + 2 * i]);
        const double cos = angles[i], sin = angles[32 + i];
        const auto at = static_cast<int64_t>(64 + 2 * i);
        error += std::pow(expected(c, "y", {t, head, at}) - (a * cos - b * sin), 2) +
                 std::pow(expected(c, "y", {t, head, at + 1}) - (a * sin + b * cos), 2);
        squares += a * a + b * b;
      }
      EXPECT_LE(error, squares / 16);  // E2M1 is off by a sixth of the largest at most
    }
  }
}

TEST(IndexQuery, WeightsTakeTheFactorAndInQ8kTheScale) {
  for (const int64_t output : {kQ4m, kQ8k, kBf16}) {
    const Case c = case_named("3 rows", {{"H", 32}, {"output", output}});
    const auto weights = filled<uint16_t>(c, "head_weights", {1}, 32);
    const auto x = filled<uint16_t>(c, "q", {1, 5}, 128);
    const double weight = bf16(weights[5]) / 64, got = expected(c, "weights", {1, 5});
    if (output != kQ8k) {
      EXPECT_EQ(got, weight);
      continue;
    }
    double largest = 0;
    for (const uint16_t bits : x) largest = std::fmax(largest, std::fabs(bf16(bits)));
    if (weight == 0 || largest == 0) continue;
    const double scale = got / weight;
    EXPECT_EQ(scale, std::exp2(std::round(std::log2(scale))));
    EXPECT_LE(largest / scale, 448 * 1.5);  // rotated pairs may be longer than their elements
    EXPECT_GE(largest / scale, 448 / 4.0);
  }
}

}  // namespace
}  // namespace kiln::templates
