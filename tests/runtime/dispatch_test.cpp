// The tables of a call agree with the description they are made from: extents, derived sizes,
// buckets.
#include "runtime/dispatch.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/call_checks.h"
#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

using templates::Extent;
using templates::Op;
using templates::Sizes;

Op op_of_sizes(int64_t (*derive)(const Sizes&)) {
  Op op;
  op.name = "sized";
  op.sizes = {templates::fixed("F", "factor", "", 1, 1 << 20), templates::dynamic("A", "a", ""),
              templates::dynamic("B", "b", "", 1), templates::derived("D", "", derive)};
  return op;
}

TEST(FieldExtent, SameValueAsTheDescription) {
  const Op op = op_of_sizes([](const Sizes& s) { return s["F"] * 2; });
  std::mt19937_64 random(20240607);
  const auto number = [&](int bits) { return static_cast<int64_t>(random() >> (64 - bits)); };
  for (int round = 0; round < 20000; ++round) {
    const Sizes fixed{{"F", 1 + number(10)}};
    const FieldResolver resolver(op, fixed);
    Extent extent{.offset = number(20) - (1 << 19), .scale = number(8) - 10};
    for (const char* symbol : {"A", "F", "B", "D"}) {
      if (random() % 2 == 0) continue;
      extent.terms.push_back(
          {.symbol = symbol,
           .divisor = 1 + number(7),
           .cap = random() % 2 == 0 ? std::numeric_limits<int64_t>::max() : number(12)});
    }
    const int bits = random() % 8 == 0 ? 62 : 20;  // large ones saturate
    const Sizes sizes = templates::with_derived(
        op,
        fixed.merged({{"A", number(bits) - (random() % 4 == 0 ? 100 : 0)}, {"B", number(bits)}}));
    const int64_t fields[] = {24, sizes["A"], sizes["B"]};
    ASSERT_EQ(resolver.compile(extent, "grid").value(fields), extent.value(sizes)) << round;
  }
}

TEST(FieldExtent, SumOfOneSizeIsRoundedUp) {
  Op op = op_of_sizes([](const Sizes& s) { return s["F"] * s["A"] + 5000; });
  op.sizes.push_back(templates::derived("P", "", [](const Sizes&) {
    return Extent{.scale = 48, .terms = {{"D", 48}}};
  }));
  std::mt19937_64 random(20241201);
  for (int round = 0; round < 2000; ++round) {
    const Sizes fixed{{"F", 1 + static_cast<int64_t>(random() % 40)}};
    const auto a = static_cast<int64_t>(random() >> (1 + random() % 60));
    const int64_t fields[] = {24, a, 1};
    const FieldResolver::Place place = FieldResolver(op, fixed).find("P");
    ASSERT_EQ(place.kind, FieldResolver::Place::Kind::extent);
    if (a < int64_t{1} << 56) {
      const int64_t entries = fixed["F"] * a + 5000;
      ASSERT_EQ(place.extent.value(fields), (entries + 47) / 48 * 48) << a;
    }
    ASSERT_GE(place.extent.value(fields), 5000);
  }
}

TEST(FieldExtent, SumOfTwoSizesIsRefused) {
  const Op op = op_of_sizes([](const Sizes& s) { return s["A"] + s["B"]; });
  const FieldResolver resolver(op, {{"F", 1}});
  EXPECT_THROW(resolver.compile({.terms = {{"D", 16}}}, "grid"), Error);
}

TEST(FieldResolver, DerivedSumsAreComputedFromFields) {
  const Op op = op_of_sizes([](const Sizes& s) { return 3 * s["A"] + s["F"] * s["B"] - 5; });
  const FieldResolver::Place place = FieldResolver(op, {{"F", 528}}).find("D");
  ASSERT_EQ(place.kind, FieldResolver::Place::Kind::sum);
  EXPECT_EQ(place.constant, -5);
  ASSERT_EQ(place.summands.size(), 2u);
  EXPECT_EQ(place.summands[0].factor, 3);
  EXPECT_EQ(place.summands[1].factor, 528);
}

TEST(FieldResolver, OtherDerivedSizesAreUnknown) {
  for (auto* derive : {+[](const Sizes& s) { return s["A"] * s["B"]; },
                       +[](const Sizes& s) { return (s["A"] + 127) / 128 * 128; },
                       +[](const Sizes& s) { return std::min<int64_t>(s["A"], 20000); }}) {
    EXPECT_EQ(FieldResolver(op_of_sizes(derive), {{"F", 1}}).find("D").kind,
              FieldResolver::Place::Kind::unknown);
  }
}

TEST(FieldResolver, DerivedExtentsAreComputedFromFields) {
  Op op = op_of_sizes(nullptr);
  op.sizes.back() = templates::derived("D", "", [](const Sizes& s) {
    return Extent{.scale = s["F"], .terms = {{"A", 128}}};
  });
  const FieldResolver::Place place = FieldResolver(op, {{"F", 512}}).find("D");
  ASSERT_EQ(place.kind, FieldResolver::Place::Kind::extent);
  for (const int64_t a : {0, 1, 127, 128, 129, 5120}) {
    const int64_t fields[] = {24, a, 1};
    EXPECT_EQ(place.extent.value(fields), (a + 127) / 128 * 512);
    EXPECT_EQ(templates::with_derived(op, {{"F", 512}, {"A", a}, {"B", 1}})["D"],
              (a + 127) / 128 * 512);
  }
}

TEST(FieldResolver, DerivedFromFixedSizesIsAConstant) {
  const Op op = op_of_sizes([](const Sizes& s) { return s["F"] + 1; });
  const FieldResolver::Place place = FieldResolver(op, {{"F", 7}}).find("D");
  EXPECT_EQ(place.kind, FieldResolver::Place::Kind::constant);
  EXPECT_EQ(place.constant, 8);
}

TEST(BucketAxis, C99TakesTheNearestEdgeByRatioLikeTheDescription) {
  Op op = op_of_sizes([](const Sizes&) { return int64_t{0}; });
  op.buckets = {{"A", {1, 4, 16, 64, 256, 1000, 4096}}};
  const std::vector<int64_t>& edges = op.buckets[0].edges;
  const BucketAxis axis(1, edges);
  for (int64_t value = 0; value < 10000; ++value) {
    ASSERT_EQ(edges[axis.index(value)], templates::nearest_bucket(op, {{"A", value}})["A"])
        << value;
  }
  EXPECT_EQ(axis.index(std::numeric_limits<int64_t>::max()), edges.size() - 1);
}

TEST(BucketAxis, LargeEdgesDoNotOverflow) {
  const int64_t huge = int64_t{1} << 61;
  const BucketAxis axis(0, {1, huge, std::numeric_limits<int64_t>::max()});
  EXPECT_EQ(axis.index(1'518'500'249), 0u);  // the root of 2^61 lies between
  EXPECT_EQ(axis.index(1'518'500'250), 1u);
  EXPECT_EQ(axis.index(huge), 1u);
}

TEST(Dispatch, CombinesAxesInTheOrderOfAllBuckets) {
  Op op = op_of_sizes([](const Sizes&) { return int64_t{0}; });
  op.buckets = {{"A", {1, 16}}, {"B", {1, 16, 256}}};
  const CallChecks checks(op, {{"F", 1}});
  const std::vector<Sizes> buckets = templates::all_buckets(op);
  std::vector<DispatchVariant> variants(buckets.size());
  std::vector<uint32_t> pick;
  for (size_t i = 0; i < buckets.size(); ++i) {
    variants[i].workspace_bytes =
        checks.resolver().compile({.offset = static_cast<int64_t>(i), .scale = 0}, "workspace");
    pick.push_back(static_cast<uint32_t>(i));
  }
  const Dispatch dispatch(checks, std::move(variants), std::move(pick));
  for (size_t i = 0; i < buckets.size(); ++i) {
    const int64_t fields[] = {24, buckets[i]["A"], buckets[i]["B"]};
    EXPECT_EQ(dispatch.bucket(fields), i);
    EXPECT_EQ(dispatch.variant(i).workspace_bytes.value(fields), static_cast<int64_t>(i));
  }
}

}  // namespace
}  // namespace kiln::runtime
