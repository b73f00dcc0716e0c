// The truth of moe_align against the words of ops.md B18.1; what its cases reach.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "templates/kit.h"

namespace kiln::templates {
namespace {

const Kit& kit() { return require_kit(require_op("moe_align")); }

double expected(const Case& c, const char* arg, int64_t index) {
  return kit().expected(c, *kit().op->find_arg(arg), std::vector<int64_t>{index}).value();
}

std::vector<int32_t> filled(const Case& c, const char* arg, std::vector<int64_t> outer,
                            int64_t count) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  kit().fill(c, *kit().op->find_arg(arg), outer, std::as_writable_bytes(std::span(values)));
  return values;
}

// Of each pair; -1: it is skipped.
std::vector<int64_t> experts_of(const Case& c) {
  const int64_t top_k = c.sizes["K"];
  const std::vector<int32_t> map = filled(c, "expert_map", {}, c.sizes["G"]);
  std::vector<int64_t> experts;
  for (int64_t t = 0; t < c.sizes["T"]; ++t) {
    for (int64_t id : filled(c, "experts", {t}, top_k)) {
      if (c.has("expert_map"))
        id = id >= 0 && id < c.sizes["G"] ? map[static_cast<size_t>(id)] : -1;
      experts.push_back(id >= 0 && id < c.sizes["E"] ? id : -1);
    }
  }
  return experts;
}

const std::vector<Sizes>& shapes() {
  static const std::vector<Sizes> all{{{"E", 384}, {"K", 6}, {"block", 64}},
                                      {{"E", 128}, {"K", 3}, {"block", 16}},
                                      {{"E", 7}, {"K", 2}, {"block", 24}}};
  return all;
}

TEST(MoeAlign, EveryPairStandsOnceInAnOrderedRunOfWholeBlocksOfItsExpert) {
  for (const Sizes& shape : shapes()) {
    for (const Case& c : kit().verify_cases(shape, {{"T", 4}})) {
      const int64_t block = shape["block"], experts = shape["E"];
      const std::vector<int64_t> expert_of = experts_of(c);
      const auto pairs = static_cast<int64_t>(expert_of.size());
      const int64_t least_room = pairs + experts * (block - 1);
      const Sizes sizes = with_derived(*kit().op, c.sizes);
      const int64_t room = sizes["entries"], blocks = sizes["blocks"];
      ASSERT_GE(room, least_room);
      ASSERT_LT(room, least_room + block);
      ASSERT_EQ(blocks * block, room);
      const auto end = static_cast<int64_t>(expected(c, "num_tokens_post_pad", 0));
      std::map<int64_t, int64_t> counts;
      int64_t last_expert = -1, last_pair = -1, placed = 0;
      for (int64_t i = 0; i < room; ++i) {
        const auto expert = static_cast<int64_t>(expected(c, "expert_ids", i / block));
        const auto pair = static_cast<int64_t>(expected(c, "sorted_token_ids", i));
        if (i >= end) {
          ASSERT_EQ(expert, -1) << c.name;
          ASSERT_EQ(pair, pairs) << c.name;
          continue;
        }
        ASSERT_GE(expert, last_expert) << c.name;
        if (expert != last_expert) last_pair = -1;
        last_expert = expert;
        if (pair == pairs) {
          // Padding ends the run: only more of it follows, and less than a block of it.
          last_pair = pairs;
          continue;
        }
        ASSERT_GT(pair, last_pair) << c.name;
        ASSERT_EQ(expert_of[static_cast<size_t>(pair)], expert) << c.name;
        last_pair = pair;
        ++placed;
        ++counts[expert];
      }
      int64_t wanted = 0, whole = 0;
      for (const int64_t expert : expert_of) wanted += expert >= 0;
      EXPECT_EQ(placed, wanted) << c.name;
      for (int64_t expert = 0; expert < experts; ++expert) {
        const int64_t count = counts.contains(expert) ? counts[expert] : 0;
        EXPECT_EQ(expected(c, "expert_counts", expert), static_cast<double>(count)) << c.name;
        whole += (count + block - 1) / block * block;
      }
      EXPECT_EQ(end, whole) << c.name;
    }
  }
}

TEST(MoeAlign, L59CasesReachExpertsWithNoneOneABlockAndOneMore) {
  const Sizes shape{{"E", 128}, {"K", 3}, {"block", 16}};
  for (const Case& c : kit().verify_cases(shape, {{"T", 4}})) {
    std::set<double> counts;
    for (int64_t e = 0; e < 128; ++e) counts.insert(expected(c, "expert_counts", e));
    if (c.name == "experts with 0, 1, m and m + 1 pairs") {
      EXPECT_TRUE(counts.contains(0) && counts.contains(1) && counts.contains(16) &&
                  counts.contains(17));
    }
    if (c.name == "all on one expert") {
      EXPECT_EQ(counts.size(), 2u);
      EXPECT_TRUE(counts.contains(static_cast<double>(c.sizes["T"] * 3)));
    }
    if (c.name == "all padding" || c.name == "no row") {
      EXPECT_EQ(expected(c, "num_tokens_post_pad", 0), 0);
    }
  }
}

TEST(MoeAlign, RoomIsThatOfTheSpec) {
  const Sizes sizes =
      with_derived(*kit().op, {{"E", 384}, {"K", 6}, {"block", 64}, {"T", 1}, {"G", 0}});
  EXPECT_EQ(sizes["entries"], 24256);  // 6 + 384 * 63 = 24198, rounded up
  EXPECT_EQ(sizes["blocks"], 379);
}

TEST(MoeAlign, OddBlocksAreRefused) {
  const char* shape = R"({"num_experts":384,"top_k":6,"block_size":20})";
  EXPECT_THROW(parse_shape(*kit().op, Json::parse(shape)), Error);
}

}  // namespace
}  // namespace kiln::templates
