// Residual streams: inputs and truth of their kits against the formulas of ops.md B1 in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "templates/kit.h"
#include "templates/kit_bf16.h"
#include "tests/templates/cases.h"

namespace kiln::templates {
namespace {

constexpr int64_t kStreams = 4;

const Kit& kit() { return require_kit(require_op("hc_post_fold_norm")); }
Sizes shape(int64_t columns) { return {{"K", columns}, {"x_format", 0}, {"sqrsum", 1}}; }

Case case_named(const std::string& name, int64_t columns) {
  return named(kit().verify_cases(shape(columns), {{"T", 1}}), name);
}

template <typename Element>
std::vector<Element> row_of(const Case& c, const char* arg, std::vector<int64_t> outer,
                            int64_t count) {
  return filled<Element>(kit(), c, arg, outer, count);
}

double expected(const Case& c, const char* arg, std::vector<int64_t> index) {
  return templates::expected(kit(), c, arg, index);
}

// One row in float64, from what the kit fills.
struct Row {
  std::vector<std::vector<double>> mixed;  // by stream, before bf16
  std::vector<double> largest_product;     // by column
  std::vector<float> pre;
};
Row row_in_float64(const Case& c, int64_t t) {
  const int64_t columns = c.sizes["K"];
  const auto y = row_of<uint16_t>(c, "y", {t}, columns);
  const auto post = row_of<float>(c, "post", {t}, kStreams);
  Row row{.mixed = {}, .largest_product = {}, .pre = row_of<float>(c, "pre", {t}, kStreams)};
  row.largest_product.resize(static_cast<size_t>(columns));
  std::vector<std::vector<uint16_t>> h;
  std::vector<std::vector<float>> comb;
  for (int64_t i = 0; i < kStreams; ++i) {
    h.push_back(row_of<uint16_t>(c, "h", {t, i}, columns));
    comb.push_back(row_of<float>(c, "comb", {t, i}, kStreams));
  }
  for (size_t j = 0; j < kStreams; ++j) {
    std::vector<double> stream;
    for (size_t k = 0; k < static_cast<size_t>(columns); ++k) {
      double sum = double{post[j]} * bf16_double(y[k]);
      double largest = std::abs(sum);
      for (size_t i = 0; i < kStreams; ++i) {  // the first index of comb
        const double product = double{comb[i][j]} * bf16_double(h[i][k]);
        sum += product;
        largest = std::max(largest, std::abs(product));
      }
      stream.push_back(sum);
      row.largest_product[k] = std::max(row.largest_product[k], largest);
    }
    row.mixed.push_back(stream);
  }
  return row;
}

// (f)1: a bf16 rounding is at most 2^-8 of the value; five fp32 roundings of the largest product.
TEST(Hc, TruthIsTheFormulaOfB14) {
  for (const int64_t columns : {8, 384, 5120}) {
    const Case c = case_named("33 rows", columns);
    for (int64_t t = 0; t < c.sizes["T"]; t += 3) {
      const Row row = row_in_float64(c, t);
      for (int64_t j = 0; j < kStreams; ++j) {
        for (int64_t k = 0; k < columns; k += 7) {
          const double right = row.mixed[static_cast<size_t>(j)][static_cast<size_t>(k)];
          const double bound =
              0x1p-8 * std::abs(right) + 0x1p-21 * row.largest_product[static_cast<size_t>(k)];
          ASSERT_NEAR(expected(c, "h", {t, j, k}), right, bound) << t << " " << j << " " << k;
        }
      }
    }
  }
}

TEST(Hc, TruthOfFoldMeanAndSquaresFollowsTheMixedStreams) {
  constexpr int64_t kColumns = 384;
  const Case c = case_named("5 rows", kColumns);
  for (int64_t t = 0; t < c.sizes["T"]; ++t) {
    const auto pre = row_of<float>(c, "pre", {t}, kStreams);
    const auto weight = row_of<uint16_t>(c, "weight", {}, kColumns);
    double squares = 0, of_folded = 0;
    std::vector<double> folded;
    for (int64_t k = 0; k < kColumns; ++k) {
      double fold = 0, mean = 0, largest = 0;
      for (int64_t j = 0; j < kStreams; ++j) {
        const double h = expected(c, "h", {t, j, k});
        squares += h * h;
        mean += h / 4;
        fold += double{pre[static_cast<size_t>(j)]} * h;
        largest = std::max(largest, std::abs(h));
      }
      ASSERT_NEAR(expected(c, "mean", {t, k}), mean, 0x1p-8 * std::abs(mean) + 0x1p-21 * largest);
      folded.push_back(fold);
      of_folded += fold * fold;
    }
    const double of_parts = expected(c, "sqrsum", {t, 0}) + expected(c, "sqrsum", {t, 1});
    EXPECT_NEAR(of_parts, squares, 1e-5 * squares);
    const double factor = 1 / std::sqrt(of_folded / kColumns + 1e-20);
    double error = 0, total = 0;
    for (int64_t k = 0; k < kColumns; ++k) {
      const auto column = static_cast<size_t>(k);
      const double right = folded[column] * factor * bf16_double(weight[column]);
      error += std::pow(expected(c, "x", {t, k}) - right, 2);
      total += right * right;
    }
    // Two bf16 roundings, rms 1.65e-3 each at most.
    EXPECT_LE(std::sqrt(error / total), 4e-3) << t;
  }
}

TEST(Hc, OneGateAndOneStreamGiveThatStream) {
  const Case c = case_named("single gates", 384);
  int64_t seen = 0;
  for (int64_t t = 0; t < c.sizes["T"]; ++t) {
    const auto post = row_of<float>(c, "post", {t}, kStreams);
    for (int64_t j = 0; j < kStreams; ++j) {
      for (int64_t k = 0; k < 8; ++k) {
        // Every row and column has one stream that is not zero.
        double right = double{post[static_cast<size_t>(j)]} *
                       bf16_double(row_of<uint16_t>(c, "y", {t}, 384)[static_cast<size_t>(k)]);
        for (int64_t i = 0; i < kStreams; ++i) {
          right += double{row_of<float>(c, "comb", {t, i}, kStreams)[static_cast<size_t>(j)]} *
                   bf16_double(row_of<uint16_t>(c, "h", {t, i}, 384)[static_cast<size_t>(k)]);
        }
        seen += right != 0 ? 1 : 0;
        ASSERT_NEAR(expected(c, "h", {t, j, k}), right, 0x1p-8 * std::abs(right) + 1e-30);
      }
    }
  }
  EXPECT_GT(seen, 20);
}

// ops.md (e): Sinkhorn.
TEST(HcStats, TruthOfTheVectorsIsTheMatrixOfTheSpec) {
  constexpr double kMatrix[4][4] = {{0.5211828, 0.1010692, 0.2359436, 0.1418030},
                                    {0.3058067, 0.0761459, 0.0032560, 0.6147911},
                                    {0.0405411, 0.7076579, 0.0302585, 0.2215422},
                                    {0.1324684, 0.1151260, 0.7305408, 0.0218626}};
  const Op& op = require_op("hc_stats");
  const Kit& stats = require_kit(op);
  const std::vector<Case> cases =
      stats.verify_cases({{"K", 128}, {"S", 4}, {"precision", 0}}, {{"T", 1}});
  ASSERT_EQ(cases.front().name, "vectors");
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < 4; ++c) {
      const std::vector<int64_t> index{1, r, c};
      EXPECT_NEAR(stats.expected(cases.front(), *op.find_arg("comb"), index).value(), kMatrix[r][c],
                  6e-8);
    }
  }
}

}  // namespace
}  // namespace kiln::templates
