// The truth of moe_combine against sums in the order of ops.md B18.3; what its cases reach.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "templates/kit.h"
#include "templates/kit_bf16.h"
#include "tests/templates/cases.h"

namespace kiln::templates {
namespace {

constexpr int64_t kTopK = 6, kHidden = 5120;
const Sizes kBf16{{"K", kTopK}, {"H", kHidden}, {"result", 0}};
const Sizes kF32{{"K", kTopK}, {"H", kHidden}, {"result", 1}};

const Kit& kit() { return require_kit(require_op("moe_combine")); }

template <class T>
std::vector<T> filled(const Case& c, const char* arg, std::vector<int64_t> outer, int64_t count) {
  return templates::filled<T>(kit(), c, arg, outer, count);
}

double expected(const Case& c, const char* arg, int64_t row, int64_t column) {
  return templates::expected(kit(), c, arg, {row, column});
}

Case case_named(const std::string& name, const Sizes& shape) {
  return named(kit().verify_cases(shape, {{"T", 4}}), name);
}

// Columns of a row that add something, ascending by expert.
std::vector<int64_t> order_of(const Case& c, int64_t t) {
  const auto experts = filled<int32_t>(c, "experts", {t}, kTopK);
  const auto map = filled<int32_t>(c, "expert_map", {}, c.sizes["E"]);
  std::vector<std::pair<int64_t, int64_t>> all;
  for (int64_t i = 0; i < kTopK; ++i) {
    const int64_t expert = experts[static_cast<size_t>(i)];
    if (expert < 0) continue;
    const bool is_mapped = c.has("expert_map");
    if (is_mapped && (expert >= c.sizes["E"] || map[static_cast<size_t>(expert)] < 0)) continue;
    all.emplace_back(expert, i);
  }
  std::sort(all.begin(), all.end());
  std::vector<int64_t> columns;
  for (const auto& pair : all) columns.push_back(pair.second);
  return columns;
}

TEST(MoeCombine, TruthIsTheSumInAscendingOrderOfExperts) {
  int rows = 0, without_any = 0, partly = 0, other_in_columns = 0;
  for (const Sizes& shape : {kBf16, kF32}) {
    for (const char* name : {"5 rows", "padded rows, pairs without expert",
                             "experts of other ranks", "an expert twice", "no shared expert"}) {
      const Case c = case_named(name, shape);
      for (int64_t t = 0; t < c.sizes["T"]; ++t) {
        const std::vector<int64_t> order = order_of(c, t);
        ++rows;
        without_any += order.empty();
        partly += !order.empty() && order.size() < kTopK;
        std::vector<std::vector<uint16_t>> pairs;
        for (const int64_t i : order)
          pairs.push_back(filled<uint16_t>(c, "pairs", {t, i}, kHidden));
        const auto shared = filled<uint16_t>(c, "shared", {t}, kHidden);
        for (int64_t h = 0; h < kHidden; h += 7) {
          const auto at = static_cast<size_t>(h);
          float sum = 0;
          for (const auto& pair : pairs) sum += bf16_float(pair[at]);
          float by_column = 0;
          for (int64_t i = 0; i < kTopK; ++i) {
            const auto found = std::find(order.begin(), order.end(), i);
            if (found == order.end()) continue;
            by_column += bf16_float(pairs[static_cast<size_t>(found - order.begin())][at]);
          }
          other_in_columns += by_column != sum;
          if (shape == kF32) {
            ASSERT_EQ(expected(c, "y_f32", t, h), sum) << name;
            continue;
          }
          if (c.has("shared")) sum += bf16_float(shared[at]);
          const double y = expected(c, "y", t, h);
          ASSERT_LE(std::abs(y - static_cast<double>(sum)), std::abs(sum) / 256) << name;
        }
      }
    }
  }
  EXPECT_EQ(rows, 64);
  EXPECT_GE(without_any, 4);
  EXPECT_GE(partly, 20);
  EXPECT_GE(other_in_columns, 500);  // so that a kernel that adds by columns is seen
}

TEST(MoeCombine, PairsThatAddNothingHoldNan) {
  for (const char* name : {"padded rows, pairs without expert", "experts of other ranks"}) {
    const Case c = case_named(name, kBf16);
    int nans = 0;
    for (int64_t t = 0; t < c.sizes["T"]; ++t) {
      const std::vector<int64_t> order = order_of(c, t);
      for (int64_t i = 0; i < kTopK; ++i) {
        const bool adds = std::find(order.begin(), order.end(), i) != order.end();
        const bool is_nan =
            std::isnan(bf16_float(filled<uint16_t>(c, "pairs", {t, i}, kHidden)[5]));
        EXPECT_NE(adds, is_nan) << name;
        nans += is_nan;
      }
      EXPECT_FALSE(std::isnan(expected(c, "y", t, 5)));
    }
    EXPECT_GE(nans, 10) << name;
  }
}

TEST(MoeCombine, OddHiddenSizesAreRefused) {
  const char* shape = R"({"top_k":6,"hidden_size":5124,"result":"bf16"})";
  EXPECT_THROW(parse_shape(*kit().op, Json::parse(shape)), Error);
}

}  // namespace
}  // namespace kiln::templates
