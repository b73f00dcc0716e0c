// The truth of linear_fp8 against sums written out here, its packed weights against their
// drawing, and its plans.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "templates/kit.h"
#include "tests/templates/cases.h"

namespace kiln::templates {
namespace {

enum XFormat : int64_t { kBf16Q8a = 0, kCodesQ8a = 1, kBf16 = 2 };
enum WLayout : int64_t { kCheckpoint = 0, kPacked = 1 };

const Op& op() { return require_op("linear_fp8"); }
const Kit& kit() { return require_kit(op()); }

Sizes shape(int64_t out_features, int64_t in_features, int64_t groups, int64_t x_format,
            int64_t w_layout = kCheckpoint, int64_t y_format = 0) {
  return {{"N", out_features},    {"K", in_features},     {"G", groups},
          {"x_format", x_format}, {"y_format", y_format}, {"w_layout", w_layout}};
}

Case case_named(const std::string& name, const Sizes& fixed_sizes) {
  return named(kit().verify_cases(fixed_sizes, {{"M", 1}}), name);
}

double y_at(const Case& c, int64_t row, int64_t group, int64_t column) {
  const std::vector<int64_t> index{row, group, column};
  return *kit().expected(c, *op().find_arg("y"), index);
}

template <class T>
std::vector<T> row_of(const Case& c, const std::string& arg, const std::vector<int64_t>& outer) {
  const Arg& description = *op().find_arg(arg);
  std::vector<T> row(static_cast<size_t>(tensor_layout(op(), description, c).dims.back()));
  kit().fill(c, description, outer, std::as_writable_bytes(std::span(row)));
  return row;
}

double bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

double e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 128 ? -magnitude : magnitude;
}

// The sum of B6.1 over what fill() gave, x as these values.
double sum_of(const Case& c, const std::vector<double>& x, int64_t group, int64_t column) {
  const int64_t row = group * c.sizes["N"] + column;
  const auto w = row_of<uint8_t>(c, "w", {row});
  const auto scales = row_of<uint8_t>(c, "w_scales", {row / 32});
  double sum = 0;
  for (size_t k = 0; k < x.size(); ++k)
    sum += x[k] * e4m3(w[k]) * std::ldexp(1.0, scales[k / 32] - 127);
  return sum;
}

TEST(LinearFp8, SumOfUnquantisedRows) {
  const Case c = case_named("8 rows", shape(64, 96, 2, kBf16));
  for (const auto& [row, group, column] : {std::tuple{0, 0, 0}, {3, 1, 40}, {7, 1, 63}}) {
    std::vector<double> x;
    for (const uint16_t bits : row_of<uint16_t>(c, "x", {row, group})) x.push_back(bf16(bits));
    const double want = sum_of(c, x, group, column);
    EXPECT_NEAR(y_at(c, row, group, column), want, 1e-12 * std::fabs(want));
  }
}

TEST(LinearFp8, SumOfCodes) {
  for (const char* name : {"any codes of x", "17 rows"}) {
    const Case c = case_named(name, shape(64, 96, 2, kCodesQ8a));
    for (const auto& [row, group, column] : {std::tuple{0, 0, 0}, {3, 1, 40}, {6, 1, 63}}) {
      const auto codes = row_of<uint8_t>(c, "x_codes", {row, group});
      const auto scales = row_of<uint8_t>(c, "x_scales", {row, group});
      std::vector<double> x;
      for (size_t k = 0; k < codes.size(); ++k)
        x.push_back(e4m3(codes[k]) * std::ldexp(1.0, scales[k / 32] - 127));
      const double want = sum_of(c, x, group, column);
      EXPECT_NEAR(y_at(c, row, group, column), want, 1e-12 * std::fabs(want)) << name;
    }
  }
}

TEST(LinearFp8, CodeThatIsNoNumberSpoilsItsRowAlone) {
  const Case c = case_named("codes of x that are no number", shape(64, 96, 2, kCodesQ8a));
  for (int64_t row = 0; row < c.sizes["M"]; ++row) {
    const auto codes = row_of<uint8_t>(c, "x_codes", {row, 1});
    const auto scales = row_of<uint8_t>(c, "x_scales", {row, 1});
    const auto is_nan = [](uint8_t code) { return (code & 127) == 127; };
    EXPECT_EQ(std::count_if(codes.begin(), codes.end(), is_nan), row % 3 == 1 ? 1 : 0) << row;
    EXPECT_EQ(std::count(scales.begin(), scales.end(), 255), 0) << row;
    EXPECT_EQ(std::isnan(y_at(c, row, 1, 40)), row % 3 == 1) << row;
  }
}

// Quantised inside or before, it is the same linear.
TEST(LinearFp8, CodesAreTheQ8aOfX) {
  for (const char* name : {"17 rows", "between two codes", "rows of zeros", "huge rows"}) {
    const Case inside = case_named(name, shape(64, 96, 2, kBf16Q8a));
    const Case before = case_named(name, shape(64, 96, 2, kCodesQ8a));
    for (int64_t row = 0; row < inside.sizes["M"]; ++row)
      EXPECT_EQ(y_at(inside, row, 1, 33), y_at(before, row, 1, 33)) << name << " row " << row;
  }
}

// Where x is given in both forms, the codes are those that act_quant has to write.
TEST(LinearFp8, TiesGoToTheEvenCode) {
  const Sizes fixed_sizes = shape(32, 96, 1, kCodesQ8a);
  const Case codes_case = case_named("between two codes", fixed_sizes);
  const Case x_case = case_named("between two codes", shape(32, 96, 1, kBf16));
  int ties = 0;
  for (int64_t row = 0; row < codes_case.sizes["M"]; ++row) {
    const auto x = row_of<uint16_t>(x_case, "x", {row, 0});
    const auto codes = row_of<uint8_t>(codes_case, "x_codes", {row, 0});
    const auto scales = row_of<uint8_t>(codes_case, "x_scales", {row, 0});
    for (size_t k = 0; k < x.size(); ++k) {
      const double quotient = std::fabs(bf16(x[k])) / std::ldexp(1.0, scales[k / 32] - 127);
      const int code = codes[k] & 127;
      if (quotient == e4m3(code)) continue;  // the group's largest
      ++ties;
      EXPECT_EQ(code % 2, 0);
      const int other = quotient > e4m3(code) ? code + 1 : code - 1;
      EXPECT_EQ(quotient - e4m3(code), e4m3(other) - quotient) << code;
    }
  }
  EXPECT_GT(ties, 1000);
}

TEST(LinearFp8, ZeroHugeAndBrokenRows) {
  const Sizes fixed_sizes = shape(32, 96, 1, kBf16Q8a);
  const Case zeros = case_named("rows of zeros", fixed_sizes);
  EXPECT_EQ(y_at(zeros, 0, 0, 5), 0);
  EXPECT_NE(y_at(zeros, 1, 0, 5), 0);
  const Case huge = case_named("huge rows", fixed_sizes);
  EXPECT_GT(std::fabs(y_at(huge, 0, 0, 5)), 1e25);
  EXPECT_TRUE(std::isfinite(static_cast<float>(y_at(huge, 0, 0, 5))));
  for (const int64_t x_format : {kBf16Q8a, kCodesQ8a, kBf16}) {
    const Case c = case_named("rows that are not finite", shape(32, 96, 1, x_format));
    for (int64_t row = 0; row < c.sizes["M"]; ++row)
      EXPECT_EQ(std::isnan(y_at(c, row, 0, 5)), row % 3 == 1) << row;
  }
}

TEST(LinearFp8, ScaleBytesReachBothEnds) {
  const Sizes fixed_sizes = shape(288, 288, 1, kBf16Q8a);
  std::set<uint8_t> met;
  for (const Case& c : kit().verify_cases(fixed_sizes, {{"M", 1}})) {
    for (int64_t row = 0; row < 9; ++row) {
      for (const uint8_t byte : row_of<uint8_t>(c, "w_scales", {row})) met.insert(byte);
    }
  }
  EXPECT_TRUE(met.contains(0));
  EXPECT_GT(*met.rbegin(), 134);  // beyond 2^7 a code takes two multiplications
  EXPECT_LT(*met.rbegin(), 255);  // undefined
}

// The same codes, once as the checkpoint has them and once as pack_weights draws them.
TEST(LinearFp8, PackedWeightsFollowTheDrawing) {
  const Case plain = case_named("17 rows", shape(64, 96, 2, kBf16, kCheckpoint));
  const Case packed = case_named("17 rows", shape(64, 96, 2, kBf16, kPacked));
  ASSERT_EQ(tensor_layout(op(), *op().find_arg("w"), packed).dims,
            (std::vector<int64_t>{16, 1024}));
  for (int64_t block_row = 0; block_row < 16; ++block_row) {
    const auto bytes = row_of<uint8_t>(packed, "w", {block_row});
    for (int64_t row = 0; row < 8; ++row) {
      auto codes = row_of<uint8_t>(plain, "w", {8 * block_row + row});
      codes.resize(128);
      for (size_t k = 0; k < 128; k += 4) {
        uint32_t word = 0;
        std::memcpy(&word, &bytes[k / 64 * 512 + static_cast<size_t>(row) * 64 + k % 64], 4);
        for (const size_t half : {size_t{0}, size_t{1}}) {
          const uint32_t bits = word >> (16 * half) & 0xffff;
          EXPECT_EQ((bits >> 15) << 7 | (bits >> 4 & 127), codes[k + half]);
          EXPECT_EQ((bits >> 11 & 1) << 7 | (bits >> 12 & 7) << 4 | (bits & 15),
                    codes[k + 2 + half]);
        }
      }
    }
  }
}

TEST(LinearFp8, ArgumentsFollowTheFormats) {
  const auto presence = [&](const char* arg, int64_t x_format, int64_t y_format) {
    return op().find_arg(arg)->presence_in(shape(32, 32, 1, x_format, kCheckpoint, y_format));
  };
  for (const int64_t x_format : {kBf16Q8a, kCodesQ8a, kBf16}) {
    const bool has_codes = x_format == kCodesQ8a;
    EXPECT_EQ(presence("x", x_format, 0), has_codes ? Presence::absent : Presence::required);
    EXPECT_EQ(presence("x_codes", x_format, 0), has_codes ? Presence::required : Presence::absent);
    EXPECT_EQ(presence("x_scales", x_format, 0), has_codes ? Presence::required : Presence::absent);
  }
  EXPECT_EQ(presence("y", kBf16, 0), Presence::required);
  EXPECT_EQ(presence("y_f32", kBf16, 0), Presence::absent);
  EXPECT_EQ(presence("y", kBf16, 1), Presence::absent);
  EXPECT_EQ(presence("y_f32", kBf16, 1), Presence::required);
}

TEST(LinearFp8, FeaturesAreMultiplesOf32) {
  const auto parse = [&](int out_features, int in_features) {
    return parse_shape(op(), Json{{"out_features", out_features},
                                  {"in_features", in_features},
                                  {"groups", 1},
                                  {"x_format", "bf16"},
                                  {"y_format", "bf16"},
                                  {"w_layout", "packed"}});
  };
  EXPECT_NO_THROW(parse(288, 32));
  for (const auto& [out_features, in_features] : {std::pair{288, 48}, {40, 32}}) {
    try {
      parse(out_features, in_features);
      ADD_FAILURE() << out_features << " x " << in_features << " is legal";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("must be a multiple of 32, but is"),
                std::string::npos)
          << error.what();
    }
  }
}

// Every shape of B6.2 as a rank has it, without padding.
TEST(LinearFp8, C03ShapesOfTheModel) {
  const auto has = [&](int tensor_parallel, const Sizes& part) {
    for (const Sizes& shape : op().model_shapes(tensor_parallel)) {
      if (shape.merged(part) == shape) return true;
    }
    return false;
  };
  for (const int tp : {1, 2, 4, 8}) {
    for (const auto& [out_features, in_features] :
         std::vector<std::pair<int64_t, int64_t>>{{1792, 5120},
                                                  {32768 / tp, 1280},
                                                  {5120, 8192 / tp},
                                                  {4096, 1280},
                                                  {2304 / tp, 5120},
                                                  {5120, 2304 / tp},
                                                  {25600, 6144},
                                                  {5120, 15360}}) {
      EXPECT_TRUE(has(tp, {{"N", out_features}, {"K", in_features}, {"x_format", kBf16Q8a}}))
          << out_features << " x " << in_features;
    }
    EXPECT_TRUE(has(tp, {{"N", 1024}, {"K", 4096}, {"G", 8 / tp}, {"x_format", kBf16}}));
  }
}

// A search has to end within minutes.
TEST(LinearFp8, SpaceIsAFewDozen) {
  for (const char* gpu : {"a100-sxm4-80gb", "rtx-3090", "h200"}) {
    for (const Sizes& shape : op().model_shapes(2)) {
      const Enumeration all = enumerate(op(), shape, find_gpu(gpu));
      int streams = 0;
      for (const Config& config : all.configs) streams += config["kernel"] == 0;
      EXPECT_LE(all.configs.size(), 50u) << gpu << " " << shape_json(op(), shape).dump();
      EXPECT_GE(streams, 2) << gpu << " " << shape_json(op(), shape).dump();
    }
  }
}

TEST(LinearFp8, OneSignatureServesEveryNumberOfRows) {
  for (const Sizes& shape : op().model_shapes(2)) {
    std::set<std::string> of_few, of_many;
    for (const Config& config : enumerate(op(), shape, find_gpu("a100-sxm4-80gb")).configs) {
      const std::string signature =
          op().plan(shape, config, find_gpu("a100-sxm4-80gb")).reduction_signature;
      (config["kernel"] == 0 ? of_few : of_many).insert(signature);
    }
    EXPECT_TRUE(of_many.contains("K in 1 parts"));
    std::set<std::string> both;
    for (const std::string& signature : of_few) {
      if (of_many.contains(signature)) both.insert(signature);
    }
    // Where K is worth splitting among tiles, both kernels have a way to add alike.
    if (shape["N"] * shape["G"] <= 2048 && shape["K"] >= 4096) {
      EXPECT_FALSE(both.empty()) << shape_json(op(), shape).dump();
    }
  }
}

TEST(LinearFp8, GridsCoverEveryRow) {
  const Gpu& gpu = find_gpu("rtx-3090");
  for (const Sizes& shape : kit().further_shapes()) {
    const int64_t tiles = (shape["N"] + 127) / 128 * shape["G"];  // of 64 rows and 128 columns
    const bool prepares = shape["x_format"] != kBf16;
    for (const int64_t splits : {2, 3}) {
      const LaunchPlan plan =
          op().plan(shape, op().default_config(shape).merged({{"splits", splits}}), gpu);
      const bool adds = splits == 2 && prepares;  // in the kernel itself
      ASSERT_EQ(plan.kernels.size(), 1u + (prepares ? 1 : 0) + (adds ? 0 : 1));
      for (const int64_t rows : {1, 2, 33, 65, 4096}) {
        const int64_t row_tiles = (rows + 63) / 64;
        if (prepares) {
          EXPECT_GE(plan.kernels[0].grid_x.value({{"M", rows}}) * plan.kernels[0].threads * 16,
                    rows * shape["G"] * shape["K"]);
        }
        EXPECT_EQ(plan.kernels[prepares].grid_x.value({{"M", rows}}), row_tiles * tiles * splits);
        const int64_t elements = row_tiles * tiles * 64 * 128;
        if (!adds) {
          EXPECT_GE(
              plan.kernels.back().grid_x.value({{"M", rows}}) * plan.kernels.back().threads * 8,
              elements);
        }
        EXPECT_GE(plan.workspace_bytes.value({{"M", rows}}),
                  4 * splits * elements + (prepares ? 2 * rows * shape["G"] * shape["K"] : 0) +
                      (adds ? row_tiles * ((tiles * 4 * 4 + 255) / 256 * 256) : 0));
      }
      for (const KernelLaunch& kernel : plan.kernels) EXPECT_EQ(kernel.grid_x.value({{"M", 0}}), 0);
    }
  }
}

}  // namespace
}  // namespace kiln::templates
