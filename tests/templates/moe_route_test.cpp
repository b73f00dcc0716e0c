// The truth of moe_route against the formula of ops.md B17 in float64 and the numbers of (e).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "templates/kit.h"
#include "tests/templates/cases.h"

namespace kiln::templates {
namespace {

const Kit& kit() { return require_kit(require_op("moe_route")); }

double expected(const Case& c, const char* arg, int64_t row, int64_t column) {
  return templates::expected(kit(), c, arg, {row, column});
}

std::vector<float> filled(const Case& c, const char* arg, std::vector<int64_t> outer) {
  return templates::filled<float>(kit(), c, arg, outer, c.sizes["E"]);
}

std::vector<uint8_t> marks(const Case& c, const char* arg) {
  return templates::filled<uint8_t>(kit(), c, arg, {}, c.sizes["T"]);
}

Case case_named(const std::string& name, const Sizes& shape) {
  return named(kit().verify_cases(shape, {{"T", 4}}), name);
}

double score(double logit) {
  return std::sqrt(logit > 0 ? logit + std::log1p(std::exp(-logit)) : std::log1p(std::exp(logit)));
}

// Expert 0 has logits from -220 to 60, expert 1 has 0; the others are out.
Case sweep(int64_t rows) {
  Case c = kit().measured_case({{"E", 8}, {"K", 2}}, {{"T", rows}});
  c.knobs = {{"values", 6}, {"biases", 1}};
  return c;
}
double weight_of(const Case& c, int64_t row, int64_t expert) {
  for (int64_t i = 0; i < c.sizes["K"]; ++i) {
    if (expected(c, "experts", row, i) == static_cast<double>(expert))
      return expected(c, "weights", row, i);
  }
  return 0;
}

TEST(MoeRoute, ScoresAreTheNumbersOfTheSpec) {
  const Case c = sweep(280);
  constexpr double kOfZero = 0.832554611;
  const std::vector<std::pair<int64_t, double>> numbers{{-30, 3.05902321e-7}, {-5, 0.0819472299},
                                                        {0, kOfZero},         {1, 1.1459763},
                                                        {10, 3.16228484},     {25, 5}};
  for (const auto& [logit, of_spec] : numbers) {
    const int64_t row = logit + 220;
    EXPECT_NEAR(weight_of(c, row, 0) / weight_of(c, row, 1) * kOfZero / of_spec, 1, 5e-7) << logit;
  }
}

// (f)10 asks for 1e-6 where the score is a normal number: from -174.6 on.
TEST(MoeRoute, WeightsAreThoseOfFloat64WhereverTheScoreIsANormalNumber) {
  const Case c = sweep(200000);
  double worst = 0;
  for (int64_t t = 0; t < c.sizes["T"]; ++t) {
    const double logit = filled(c, "logits", {t})[0];
    if (logit < -174.6) continue;
    const double of_formula = score(logit) / (score(logit) + score(0) + 1e-20) * 1.5;
    worst = std::max(worst, std::abs(weight_of(c, t, 0) / of_formula - 1));
  }
  EXPECT_LE(worst, 4e-7);
  std::printf("worst relative error of a weight: %.3g\n", worst);
}

TEST(MoeRoute, ScoresFarBelowZeroDoNotUnderflow) {
  const Case c = sweep(2800);
  EXPECT_GT(weight_of(c, 1200, 0), 0);  // -100: exp(-100) is below the least fp32 number
  EXPECT_NEAR(weight_of(c, 1200, 0) / (1.5 * std::exp(-50) / score(0)), 1, 1e-6);
}

// Where float64 says that the next key is far enough off, the choice is its choice.
TEST(MoeRoute, TruthIsTheFormulaOfB17) {
  constexpr double kFarEnough = 1e-6;
  int64_t rows = 0, clear = 0;
  for (const Sizes& shape :
       {Sizes{{"E", 384}, {"K", 6}}, Sizes{{"E", 128}, {"K", 3}}, Sizes{{"E", 1023}, {"K", 4}}}) {
    for (const char* name : {"images and padded rows", "logits from -100 to 100", "no masks"}) {
      const Case c = case_named(name, shape);
      const std::vector<uint8_t> is_image = marks(c, "is_image"), is_valid = marks(c, "is_valid");
      const auto top_k = static_cast<size_t>(c.sizes["K"]);
      for (int64_t t = 0; t < c.sizes["T"]; ++t) {
        const auto row = static_cast<size_t>(t);
        if (c.has("is_valid") && is_valid[row] == 0) {
          EXPECT_EQ(expected(c, "experts", t, 0), -1);
          EXPECT_EQ(expected(c, "weights", t, 0), 0);
          continue;
        }
        const bool with_images = c.has("is_image") && is_image[row] != 0;
        const std::vector<float> bias = filled(c, with_images ? "bias_image" : "bias", {});
        const std::vector<float> logits = filled(c, "logits", {t});
        std::vector<std::pair<double, int64_t>> keys;
        for (size_t e = 0; e < logits.size(); ++e)
          keys.emplace_back(-score(logits[e]) - bias[e], static_cast<int64_t>(e));
        std::sort(keys.begin(), keys.end());
        double sum = 1e-20;
        bool is_clear = true;
        for (size_t i = 0; i < top_k; ++i) {
          sum += score(logits[static_cast<size_t>(keys[i].second)]);
          is_clear &= keys[i + 1].first - keys[i].first > kFarEnough;
        }
        ++rows;
        if (!is_clear) continue;
        ++clear;
        for (size_t i = 0; i < top_k; ++i) {
          const auto e = static_cast<size_t>(keys[i].second);
          EXPECT_EQ(expected(c, "experts", t, static_cast<int64_t>(i)), static_cast<double>(e));
          EXPECT_NEAR(
              expected(c, "weights", t, static_cast<int64_t>(i)) / (score(logits[e]) / sum * 1.5),
              1, 1e-6);
        }
      }
    }
  }
  EXPECT_GE(rows, 180);
  EXPECT_GE(clear * 10, rows * 9);
}

TEST(MoeRoute, EqualKeysGoToTheLowerExpertAndNoneIsChosenTwice) {
  const Sizes shape{{"E", 384}, {"K", 6}};
  const Case equal = case_named("all equal", shape);
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(expected(equal, "experts", 1, i), static_cast<double>(i));
    EXPECT_NEAR(expected(equal, "weights", 1, i), 0.25, 1e-7);
  }
  for (const char* name : {"ties", "any bits", "edges", "few numbers", "experts shut out"}) {
    const Case c = case_named(name, shape);
    for (int64_t t = 0; t < c.sizes["T"]; ++t) {
      std::set<double> chosen;
      size_t count = 0;
      for (int64_t i = 0; i < 6; ++i) {
        const double e = expected(c, "experts", t, i);
        if (e < 0) continue;
        ++count;
        chosen.insert(e);
        EXPECT_FALSE(std::isnan(filled(c, "logits", {t})[static_cast<size_t>(e)])) << name;
        const bool with_images = marks(c, "is_image")[static_cast<size_t>(t)] != 0;
        const float bias =
            filled(c, with_images ? "bias_image" : "bias", {})[static_cast<size_t>(e)];
        EXPECT_GT(bias, -HUGE_VALF) << name;
      }
      EXPECT_EQ(chosen.size(), count) << name;
    }
  }
}

TEST(MoeRoute, MissingExpertsAreMinusOneWithWeightZero) {
  const Case c = case_named("few numbers", {{"E", 384}, {"K", 6}});
  for (int64_t t = 0; t < c.sizes["T"]; ++t) {
    double sum = 0;
    for (int64_t i = 0; i < 6; ++i) {
      const bool is_there = i < t % 7;
      EXPECT_EQ(expected(c, "experts", t, i) >= 0, is_there) << t << " " << i;
      if (!is_there) {
        EXPECT_EQ(expected(c, "weights", t, i), 0);
      }
      sum += expected(c, "weights", t, i);
    }
    EXPECT_NEAR(sum, t % 7 > 0 ? 1.5 : 0, 1e-6);
  }
}

TEST(MoeRoute, MoreChoicesThanExpertsAreRefused) {
  try {
    parse_shape(*kit().op, Json::parse(R"({"num_experts":4,"top_k":5})"));
    FAIL() << "it was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("top_k is 5"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace kiln::templates
