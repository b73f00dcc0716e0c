// Generic behaviour of descriptions: shapes, buckets, extents, configs, for every op of the
// registry.
#include "templates/op.h"

#include <gtest/gtest.h>

#include <set>

namespace kiln::templates {
namespace {

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Extent, IsAProductOfCappedQuotients) {
  const Extent extent{
      .offset = 3, .scale = 2, .terms = {{.symbol = "T", .divisor = 4}, {.symbol = "R", .cap = 5}}};
  EXPECT_EQ(extent.value({{"T", 9}, {"R", 100}}), 3 + 2 * 3 * 5);
  EXPECT_EQ(extent.value({{"T", 0}, {"R", 100}}), 3);
}

TEST(Extent, SaturatesInsteadOfOverflowing) {
  const Extent extent{.terms = {{"T"}, {"R"}}};
  EXPECT_EQ(extent.value({{"T", int64_t{1} << 40}, {"R", int64_t{1} << 40}}),
            std::numeric_limits<int64_t>::max());
}

TEST(Shape, RoundTripsThroughJsonForEveryModelShape) {
  for (const Op* op : ops()) {
    for (const int tensor_parallel : {1, 2, 4, 8}) {
      for (const Sizes& shape : op->model_shapes(tensor_parallel)) {
        EXPECT_EQ(parse_shape(*op, shape_json(*op, shape)), shape) << op->name;
      }
    }
  }
}

TEST(Shape, MistakesAreNamed) {
  const Op& op = require_op("combine_topk_swa");
  EXPECT_NE(
      error_of([&] { parse_shape(op, Json::parse(R"({"ratio":2})")); }).find("lacks \"top_k\""),
      std::string::npos);
  EXPECT_NE(error_of([&] {
              parse_shape(op, Json::parse(R"({"ratio":2,"top_k":512,"x":1})"));
            }).find("\"x\" is no field"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              parse_shape(op, Json::parse(R"({"ratio":-1,"top_k":512})"));
            }).find("from 0 to 128, but is -1"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              parse_shape(op, Json::parse(R"({"ratio":2.5,"top_k":512})"));
            }).find("but is 2.5"),
            std::string::npos);
  EXPECT_NE(error_of([&] { parse_shape(op, Json::parse("[]")); }).find("must be a JSON object"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              parse_shape(require_op("gather_dequant_kv"), Json::parse(R"({"format":"f9"})"));
            }).find(R"(one of "f1", "f2", "f3", "f4", but is "f9")"),
            std::string::npos);
}

TEST(Shape, OfAnOpWithoutFieldsIsNamedToo) {
  const Op& op = require_op("ragged_indptr");
  EXPECT_EQ(error_of([&] { parse_shape(op, Json::parse(R"({"x":1})")); }),
            "ragged_indptr: \"x\" is no field of the shape (its fields: none)");
  EXPECT_EQ(error_of([&] { parse_shape(op, Json::parse("3")); }),
            "ragged_indptr: the shape must be a JSON object (its fields: none), but is 3");
}

TEST(Shape, UnsignedNumbersBeyondInt64AreRefused) {
  const Op& op = require_op("combine_topk_swa");
  EXPECT_THROW(parse_shape(op, Json::parse(R"({"ratio":18446744073709551615,"top_k":512})")),
               Error);
}

TEST(Registry, UnknownOpNamesTheKnownOnes) {
  EXPECT_NE(error_of([] { require_op("nope"); }).find("act_quant, combine_topk_swa"),
            std::string::npos);
}

TEST(Bucket, NearestIsByRatio) {
  const Op& op = require_op("combine_topk_swa");  // edges 1 4 16 64 256 1024 4096
  const auto bucket = [&](int64_t tokens) { return nearest_bucket(op, {{"T", tokens}})["T"]; };
  EXPECT_EQ(bucket(0), 1);
  EXPECT_EQ(bucket(2), 1);  // sqrt(1 * 4): the lower of two equally near
  EXPECT_EQ(bucket(3), 4);
  EXPECT_EQ(bucket(512), 256);
  EXPECT_EQ(bucket(513), 1024);
  EXPECT_EQ(bucket(std::numeric_limits<int64_t>::max()), 4096);
}

TEST(Bucket, EveryBucketIsNearestToItself) {
  for (const Op* op : ops()) {
    std::set<std::string> keys;
    for (const Sizes& bucket : all_buckets(*op)) {
      EXPECT_EQ(nearest_bucket(*op, bucket), bucket) << op->name;
      EXPECT_TRUE(keys.insert(bucket_key(*op, bucket)).second) << op->name;
    }
  }
}

TEST(Space, C119aDefaultComesFirstAndIsLegalEverywhere) {
  for (const Op* op : ops()) {
    for (const Sizes& shape : op->model_shapes(2)) {
      for (const Gpu& gpu : gpu_table()) {
        const Enumeration all = enumerate(*op, shape, gpu);
        ASSERT_FALSE(all.configs.empty());
        EXPECT_EQ(all.configs.front(), op->default_config(shape)) << op->name;
        EXPECT_NO_THROW(parse_config(*op, shape, gpu, config_json(all.configs.front())))
            << op->name << " " << gpu.slug;
        int64_t dropped = 0;
        for (const auto& [why, count] : all.dropped) dropped += count;
        EXPECT_EQ(static_cast<int64_t>(all.configs.size()) + dropped, all.total) << op->name;
      }
    }
  }
}

TEST(Space, C09aDefaultNeedsAtMost48KilobytesOfSharedMemory) {
  for (const Op* op : ops()) {
    for (const Sizes& shape : op->model_shapes(2)) {
      const LaunchPlan plan = op->plan(shape, op->default_config(shape), find_gpu("rtx-3090"));
      for (const KernelLaunch& kernel : plan.kernels)
        EXPECT_LE(kernel.dynamic_smem_bytes, 48 * 1024) << op->name;
    }
  }
}

TEST(Space, ForeignConfigsAreRefusedByName) {
  const Op& op = require_op("gather_dequant_kv");
  const Sizes shape{{"format", 1}};
  const Gpu& gpu = find_gpu("rtx-3090");
  EXPECT_NE(error_of([&] {
              parse_config(op, shape, gpu, Json::parse(R"({"threads":128})"));
            }).find("exactly the axes"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              parse_config(
                  op, shape, gpu,
                  Json::parse(R"({"threads":96,"rows_per_warp":1,"max_ctas_per_request":1024})"));
            }).find("\"threads\" must be one of"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              parse_config(
                  op, shape, gpu,
                  Json::parse(R"({"threads":512,"rows_per_warp":8,"max_ctas_per_request":1024})"));
            }).find("is not legal on rtx-3090"),
            std::string::npos);
}

}  // namespace
}  // namespace kiln::templates
