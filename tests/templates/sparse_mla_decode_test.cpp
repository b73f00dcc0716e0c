// The truth of sparse_mla_decode against small examples, its writer's layouts, and its plans.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "templates/kit.h"
#include "tests/templates/cases.h"

namespace kiln::templates {
namespace {

enum Format : int64_t { kNone = 0, kF1 = 1, kF2 = 2, kF3 = 3, kF4 = 4 };

const Op& op() { return require_op("sparse_mla_decode"); }
const Kit& kit() { return require_kit(op()); }

Sizes shape(int64_t heads, int64_t window, int64_t compressed) {
  return {{"H", heads},
          {"window_format", window},
          {"compressed_format", compressed},
          {"probability", 0},
          {"inverse_rope", 0}};
}

Case case_named(const std::string& name, const Sizes& fixed_sizes) {
  return named(kit().verify_cases(fixed_sizes, {{"T", 1}}), name);
}

double out_at(const Case& c, int64_t t, int64_t h, int64_t e) {
  const std::vector<int64_t> index{t, h, e};
  return *kit().expected(c, *op().find_arg("out"), index);
}

double lse_at(const Case& c, int64_t t, int64_t h) {
  const std::vector<int64_t> index{t, h};
  return *kit().expected(c, *op().find_arg("lse"), index);
}

template <class T>
std::vector<T> row_of(const Case& c, const std::string& arg, const std::vector<int64_t>& outer,
                      int64_t count) {
  std::vector<T> row(static_cast<size_t>(count));
  kit().fill(c, *op().find_arg(arg), outer, std::as_writable_bytes(std::span(row)));
  return row;
}

std::vector<uint8_t> page_of(const Case& c, const std::string& arg, int64_t page) {
  return row_of<uint8_t>(c, arg, {page}, tensor_layout(op(), *op().find_arg(arg), c).dims[1]);
}

double e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 128 ? -magnitude : magnitude;
}

double e2m1(int code) {
  const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -magnitudes[code & 7] : magnitudes[code & 7];
}

double bf16(const uint8_t* at) {
  const uint32_t bits = static_cast<uint32_t>(at[0] << 16) | static_cast<uint32_t>(at[1]) << 24;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Element e of entry r by the table of ops.md B8.
double element_of(int64_t format, const std::vector<uint8_t>& page, int64_t bs, int64_t r,
                  int64_t e) {
  const auto byte = [&](int64_t at) { return page[static_cast<size_t>(at)]; };
  switch (format) {
    case kF1:
      return e4m3(byte(r * 512 + e)) * std::ldexp(1.0, byte(bs * 512 + r * 16 + e / 32) - 127);
    case kF2:
      return e2m1(byte(r * 256 + e / 2) >> (e % 2 == 0 ? 0 : 4) & 15) *
             e4m3(byte(bs * 256 + r * 32 + e / 16));
    case kF3:
      if (e >= 448) return bf16(&page[static_cast<size_t>(r * 576 + 448 + 2 * (e - 448))]);
      return e4m3(byte(r * 576 + e)) * std::ldexp(1.0, byte(bs * 576 + r * 8 + e / 64) - 127);
    default:
      return bf16(&page[static_cast<size_t>(r * 1024 + 2 * e)]);
  }
}

// Column 0 is the only one that counts, so that the output is its key.
Case only_the_first_column(Case c) {
  c.knobs.set("sinks", 1);
  c.knobs.set("lens_below", -1);
  c.knobs.set("lens_above", 1 - std::max(c.sizes["Kw"], c.sizes["Kc"]));
  return c;
}

TEST(SparseMlaDecode, AddressExampleOfB8) {
  Case c = only_the_first_column(case_named("one column", shape(1, kF1, kF2)));
  c.knobs.set("page_spacing", 13);
  c.sizes.set("Kw", 0);
  c.sizes.set("Kc", 3);
  c.sizes.set("num_compressed_pages", 13);
  c.knobs.set("lens_above", -2);
  ASSERT_EQ(row_of<int32_t>(c, "compressed_slots", {0}, 3)[0], 770);
  const std::vector<uint8_t> page = page_of(c, "compressed_cache", 12);
  ASSERT_EQ(page.size(), 18432u);
  const double code = e2m1(page[221920 - 221184] >> 4);
  EXPECT_EQ(out_at(c, 0, 0, 449), code * e4m3(page[237660 - 221184]));
}

TEST(SparseMlaDecode, C09PagesHoldWhatTheTruthSaysInEveryFormat) {
  for (const int64_t format : {kF1, kF2, kF3, kF4}) {
    for (const bool in_window : {true, false}) {
      Case c = only_the_first_column(
          case_named("one column", in_window ? shape(1, format, kF1) : shape(1, kF1, format)));
      c.sizes.set(in_window ? "Kc" : "Kw", 0);
      const std::string list = in_window ? "window" : "compressed";
      const int64_t bs = c.sizes[list + "_page_size"];
      const int64_t slot = row_of<int32_t>(c, list + "_slots", {0}, 1)[0];
      const std::vector<uint8_t> page = page_of(c, list + "_cache", slot / bs);
      for (int64_t e = 0; e < 512; ++e) {
        ASSERT_EQ(out_at(c, 0, 0, e), element_of(format, page, bs, slot % bs, e))
            << list << " f" << format << " element " << e;
      }
    }
  }
}

TEST(SparseMlaDecode, ScalesAreAsSmallAsTheirGroupAllows) {
  Case c = case_named("one column", shape(1, kF1, kF2));
  const std::vector<uint8_t> window = page_of(c, "window_cache", 1);
  for (int group = 0; group < 16; ++group) {
    double largest = 0;
    for (int i = 0; i < 32; ++i)
      largest = std::max(largest, std::fabs(e4m3(window[static_cast<size_t>(32 * group + i)])));
    EXPECT_GT(largest, 200);
    EXPECT_LE(largest, 448);
  }
  const std::vector<uint8_t> compressed = page_of(c, "compressed_cache", 1);
  for (int group = 0; group < 32; ++group) {
    double largest = 0;
    for (int i = 0; i < 8; ++i) {
      const int byte = compressed[static_cast<size_t>(8 * group + i)];
      largest = std::max({largest, std::fabs(e2m1(byte & 15)), std::fabs(e2m1(byte >> 4))});
    }
    EXPECT_EQ(largest, 6);
  }
}

TEST(SparseMlaDecode, NeighbouringScalesDiffer) {
  const Case c = case_named("one column", shape(1, kF1, kF2));
  const int64_t bs = c.sizes["compressed_page_size"];
  const std::vector<uint8_t> page = page_of(c, "compressed_cache", 1);
  const std::set<uint8_t> scales(page.begin() + bs * 256, page.begin() + bs * 256 + 32);
  EXPECT_GT(scales.size(), 8u);
}

TEST(SparseMlaDecode, EqualScoresAverageAndTheSinkJoinsTheDenominatorOnce) {
  Case c = case_named("equal scores", shape(2, kF1, kF2));
  const double columns = static_cast<double>(c.sizes["Kw"] + c.sizes["Kc"]);
  EXPECT_NEAR(lse_at(c, 0, 1), std::log(columns), 1e-12);
  c.knobs.set("sinks", 1);  // -inf
  const double without = out_at(c, 0, 1, 7);
  c.knobs.set("sinks", 2);  // 0, as every score
  EXPECT_NEAR(out_at(c, 0, 1, 7), without * columns / (columns + 1), 1e-12);
  EXPECT_NEAR(lse_at(c, 0, 1), std::log(columns), 1e-12);
  c.absent = {"sink"};
  EXPECT_EQ(out_at(c, 0, 1, 7), without);
}

TEST(SparseMlaDecode, RowsWithoutColumnsAreZeroAndMinusInfinity) {
  const Case c = case_named("no columns", shape(4, kF3, kF3));
  for (int64_t h = 0; h < 4; ++h) {
    EXPECT_EQ(lse_at(c, 1, h), -INFINITY);
    EXPECT_EQ(out_at(c, 1, h, 511), 0);
    EXPECT_FALSE(std::signbit(out_at(c, 1, h, 511)));
  }
}

TEST(SparseMlaDecode, CasesHoldLengthsBelowZeroWithinAndAboveTheWidth) {
  const Case c = case_named("lengths below zero and beyond the width", shape(2, kF1, kF2));
  Case many = c;
  many.sizes.set("T", 200);
  const std::vector<int32_t> lens = row_of<int32_t>(many, "window_lens", {}, 200);
  const auto [least, most] = std::minmax_element(lens.begin(), lens.end());
  EXPECT_LT(*least, 0);
  EXPECT_GT(*most, c.sizes["Kw"]);
}

TEST(SparseMlaDecode, WhatDoesNotCountIsNaN) {
  Case c = case_named("plain", shape(1, kF1, kF2));
  for (const char* cache : {"window_cache", "compressed_cache"}) {
    const std::vector<uint8_t> page = page_of(c, cache, 0);
    EXPECT_EQ(page, std::vector<uint8_t>(page.size(), 0xff)) << cache;
  }
  c = only_the_first_column(c);
  const std::vector<int32_t> slots = row_of<int32_t>(c, "window_slots", {0}, c.sizes["Kw"]);
  EXPECT_GE(slots[0], c.sizes["window_page_size"]);
  for (size_t column = 1; column < slots.size(); ++column) EXPECT_EQ(slots[column], 0);
}

TEST(SparseMlaDecode, EachSlotInTurnHasNearlyAllTheWeight) {
  for (const int64_t heads : {1, 6, 32, 64}) {
    const Case c =
        case_named("each slot in turn has nearly all the weight", shape(heads, kF1, kF2));
    ASSERT_GE(c.sizes["T"] * heads, c.sizes["Kw"] + c.sizes["Kc"]);
    for (int64_t t = 0; t < c.sizes["T"]; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const std::vector<uint16_t> query = row_of<uint16_t>(c, "q", {t, h}, 512);
        double score = 0;  // of the output as a key: 11 times the weight of the column, nearly
        for (size_t e = 0; e < 512; ++e) {
          score += bf16(reinterpret_cast<const uint8_t*>(&query[e])) *
                   out_at(c, t, h, static_cast<int64_t>(e));
        }
        EXPECT_GT(score / std::sqrt(512.0), 0.9 * 11) << t << " " << h;
      }
    }
  }
}

TEST(SparseMlaDecode, SlotsOfACallAreDistinct) {
  const Case c = kit().measured_case(shape(8, kF1, kF2), {{"T", 4}});
  for (const char* list : {"window", "compressed"}) {
    std::set<int32_t> slots;
    const int64_t width = c.sizes[list == std::string("window") ? "Kw" : "Kc"];
    for (int64_t t = 0; t < 4; ++t) {
      for (const int32_t slot : row_of<int32_t>(c, std::string(list) + "_slots", {t}, width))
        slots.insert(slot);
    }
    EXPECT_EQ(static_cast<int64_t>(slots.size()), 4 * width) << list;
    EXPECT_GE(*slots.begin(), 0);
  }
}

TEST(SparseMlaDecode, RotationBackIsTheInverseOfRope) {
  Sizes rotated = shape(1, kF1, kF2);
  rotated.set("inverse_rope", 1);
  const Case with = case_named("plain", rotated);
  const Case without = case_named("plain", shape(1, kF1, kF2));
  const int64_t position = row_of<int32_t>(with, "positions", {}, 3)[2];
  const std::vector<float> table = row_of<float>(with, "rope_table", {position}, 64);
  for (int64_t pair = 0; pair < 32; ++pair) {
    const double cosine = table[static_cast<size_t>(pair)];
    const double sine = table[static_cast<size_t>(32 + pair)];
    const double a = out_at(with, 2, 0, 448 + 2 * pair);
    const double b = out_at(with, 2, 0, 449 + 2 * pair);
    EXPECT_NEAR(a * cosine - b * sine, out_at(without, 2, 0, 448 + 2 * pair), 1e-6);
    EXPECT_NEAR(a * sine + b * cosine, out_at(without, 2, 0, 449 + 2 * pair), 1e-6);
  }
  EXPECT_EQ(out_at(with, 2, 0, 447), out_at(without, 2, 0, 447));
}

TEST(SparseMlaDecode, OnlySplitsNeedAWorkspace) {
  const Gpu& gpu = find_gpu("rtx-3090");
  const Sizes fixed_sizes = shape(12, kF1, kF2);
  Config config = op().default_config(fixed_sizes);
  const LaunchPlan one = op().plan(fixed_sizes, config, gpu);
  EXPECT_EQ(one.kernels.size(), 1u);
  EXPECT_EQ(one.workspace_bytes.value({{"T", 1000}}), 0);
  config.set("splits", 8);
  const LaunchPlan eight = op().plan(fixed_sizes, config, gpu);
  EXPECT_EQ(eight.kernels.size(), 2u);
  EXPECT_EQ(eight.workspace_bytes.value({{"T", 3}}), 3 * 8 * 16 * (512 * 3 + 8));
  EXPECT_NE(one.reduction_signature, eight.reduction_signature);
}

TEST(SparseMlaDecode, DefaultsOfEveryShapeAreSmall) {
  std::vector<Sizes> shapes = kit().further_shapes();
  for (const int tensor_parallel : {1, 2, 4, 8}) {
    for (const Sizes& model_shape : op().model_shapes(tensor_parallel))
      shapes.push_back(model_shape);
  }
  for (const Sizes& fixed_sizes : shapes) {
    const Config config = op().default_config(fixed_sizes);
    for (const char* slug : {"rtx-3090", "a100-sxm4-80gb"}) {
      const Gpu& gpu = find_gpu(slug);
      EXPECT_NO_THROW(parse_config(op(), fixed_sizes, gpu, config_json(config))) << slug;
      EXPECT_LE(op().plan(fixed_sizes, config, gpu).kernels[0].dynamic_smem_bytes, 48 * 1024);
    }
  }
}

}  // namespace
}  // namespace kiln::templates
