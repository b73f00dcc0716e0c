#include "templates/kit_hc.h"

#include <array>
#include <cmath>

#include "templates/kit_batch.h"
#include "templates/kit_bf16.h"
#include "templates/kit_norm.h"
#include "templates/kit_quantise.h"

namespace kiln::templates {
namespace {

constexpr int64_t kStreams = 4;

enum Stream : uint64_t { kStreamElement, kOutput, kPost, kComb, kPre, kWeight, kRow };

HcValues values_of(const Case& c) { return static_cast<HcValues>(c.knobs.get("values", 0)); }

// --- inputs

uint16_t drawn_bf16(const Case& c, uint64_t draw, int64_t top) {
  if (values_of(c) == HcValues::any_bits && (draw >> 40) % 1024 == 0)
    return static_cast<uint16_t>(draw);
  const auto sign = static_cast<uint16_t>(draw & 0x8000);
  if ((draw >> 16) % 32 == 0) return sign;
  return static_cast<uint16_t>(sign | (top - static_cast<int64_t>((draw >> 32) % 8)) << 7 |
                               (draw & 0x7f));
}

// Of a row: mostly about 1, else far off: sums that underflow and that overflow.
int64_t top_exponent(const Case& c, int64_t t) {
  constexpr int64_t kTops[] = {128, 127, 130, 128, 129, 94, 60, 200};
  return kTops[counter_bits(c.seed, kRow, static_cast<uint64_t>(t)) % 8];
}

uint16_t h_bits(const Case& c, int64_t t, int64_t i, int64_t column) {
  if (values_of(c) == HcValues::single && (t + column) % kStreams != i) return 0;
  if (values_of(c) == HcValues::cancelling) {
    if (i == 1 || i == 2) return 0;
    if (i == 3) return h_bits(c, t, 0, column) ^ 0x8000;
  }
  const auto index = static_cast<uint64_t>((t * kStreams + i) * c.sizes["K"] + column);
  return drawn_bf16(c, counter_bits(c.seed, kStreamElement, index), top_exponent(c, t));
}

uint16_t y_bits(const Case& c, int64_t t, int64_t column) {
  const auto index = static_cast<uint64_t>(t * c.sizes["K"] + column);
  return drawn_bf16(c, counter_bits(c.seed, kOutput, index), top_exponent(c, t));
}

// In [0, 2), as gates are; of any sign and size, and no number, among any bits.
float gate(const Case& c, Stream stream, int64_t index, int64_t place_in_row) {
  const uint64_t draw = counter_bits(c.seed, stream, static_cast<uint64_t>(index));
  if (values_of(c) == HcValues::any_bits && draw % 32 == 0) {
    constexpr float kOdd[] = {-1.5f, INFINITY, NAN, 3e38f, 1e-40f, -0.0f};
    return kOdd[(draw >> 8) % 6];
  }
  const bool is_alone = place_in_row == static_cast<int64_t>(draw >> 50) % 2;
  if (values_of(c) == HcValues::single && !is_alone) return 0.0f;
  return static_cast<float>(draw >> 40) * 0x1p-23f;
}

float post_of(const Case& c, int64_t t, int64_t j) { return gate(c, kPost, kStreams * t + j, j); }
// Of stream 3 where it is to cancel stream 0.
float nearly(float value) { return value * (1.0f + 0x1p-22f); }

float comb_of(const Case& c, int64_t t, int64_t i, int64_t j) {
  if (values_of(c) == HcValues::cancelling && i == 3) return nearly(comb_of(c, t, 0, j));
  return gate(c, kComb, kStreams * (kStreams * t + i) + j, (i + j) % kStreams);
}
float pre_of(const Case& c, int64_t t, int64_t i) {
  if (values_of(c) == HcValues::cancelling && i == 3) return nearly(pre_of(c, t, 0));
  return gate(c, kPre, kStreams * t + i, i);
}

uint16_t weight_bits(const Case& c, int64_t column) {
  const uint64_t draw = counter_bits(c.seed, kWeight, static_cast<uint64_t>(column));
  const auto exponent = static_cast<int64_t>(122 + (draw >> 32) % 8);
  return static_cast<uint16_t>((draw & 0x8000) | exponent << 7 | (draw & 0x7f));
}

// --- truth

float folded_float(const Case& c, HcStreamsOf streams, int64_t t, int64_t column,
                   const float (&pre)[kStreams]) {
  float sum = 0;
  for (int64_t i = 0; i < kStreams; ++i) {
    const uint16_t h =
        streams == HcStreamsOf::input ? h_bits(c, t, i, column) : hc_mixed_bits(c, t, i, column);
    const float product = pre[i] * bf16_float(h);
    sum = i == 0 ? product : sum + product;
  }
  return sum;
}

// Elements come row by row, so the last row is kept.
const std::vector<uint16_t>& normed_row(const Case& c, HcStreamsOf streams, int64_t t) {
  struct Kept {
    Case of;
    HcStreamsOf streams = HcStreamsOf::input;
    int64_t row = -1;
    std::vector<uint16_t> bits;
  };
  thread_local Kept kept;
  if (kept.row != t || kept.streams != streams || kept.of.seed != c.seed ||
      kept.of.knobs != c.knobs || kept.of.sizes != c.sizes) {
    const int64_t columns = c.sizes["K"];
    std::vector<uint16_t> folded;
    for (int64_t k = 0; k < columns; ++k) folded.push_back(hc_folded_bits(c, streams, t, k));
    const float factor =
        norm_factor([&](int64_t column) { return folded[static_cast<size_t>(column)]; }, columns);
    std::vector<uint16_t> bits;
    for (int64_t k = 0; k < columns; ++k)
      bits.push_back(normalised_bits(folded[static_cast<size_t>(k)], factor, weight_bits(c, k)));
    kept = {c, streams, t, std::move(bits)};
  }
  return kept.bits;
}

}  // namespace

void hc_fill(const Case& c, const Arg& arg, std::span<const int64_t> outer,
             std::span<std::byte> row) {
  const auto fill_bf16 = [&](const auto& bits) {
    auto* to = reinterpret_cast<uint16_t*>(row.data());
    for (size_t k = 0; k < row.size() / sizeof(uint16_t); ++k)
      to[k] = bits(static_cast<int64_t>(k));
  };
  const auto fill_f32 = [&](const auto& value) {
    auto* to = reinterpret_cast<float*>(row.data());
    for (size_t k = 0; k < row.size() / sizeof(float); ++k) to[k] = value(static_cast<int64_t>(k));
  };
  if (arg.name == "h") {
    fill_bf16([&](int64_t k) { return h_bits(c, outer[0], outer[1], k); });
  } else if (arg.name == "y") {
    fill_bf16([&](int64_t k) { return y_bits(c, outer[0], k); });
  } else if (arg.name == "weight") {
    fill_bf16([&](int64_t k) { return weight_bits(c, k); });
  } else if (arg.name == "post") {
    fill_f32([&](int64_t j) { return post_of(c, outer[0], j); });
  } else if (arg.name == "pre") {
    fill_f32([&](int64_t i) { return pre_of(c, outer[0], i); });
  } else if (arg.name == "comb") {
    fill_f32([&](int64_t j) { return comb_of(c, outer[0], outer[1], j); });
  } else {
    fail(Status::internal, "residual streams: no input is called {}", arg.name);
  }
}

uint16_t hc_mixed_bits(const Case& c, int64_t t, int64_t j, int64_t column) {
  float sum = post_of(c, t, j) * bf16_float(y_bits(c, t, column));
  for (int64_t i = 0; i < kStreams; ++i) {
    const float product = comb_of(c, t, i, j) * bf16_float(h_bits(c, t, i, column));
    sum += product;
  }
  return float_to_bf16(sum);
}

uint16_t hc_folded_bits(const Case& c, HcStreamsOf streams, int64_t t, int64_t column) {
  float pre[kStreams];
  for (int64_t i = 0; i < kStreams; ++i) pre[i] = pre_of(c, t, i);
  return float_to_bf16(folded_float(c, streams, t, column, pre));
}

uint16_t hc_mean_bits(const Case& c, int64_t t, int64_t column) {
  float sum = 0;
  for (int64_t i = 0; i < kStreams; ++i) sum += 0.25f * bf16_float(hc_mixed_bits(c, t, i, column));
  return float_to_bf16(sum);
}

float hc_sqrsum(const Case& c, int64_t t, int64_t part) {
  constexpr int64_t kPieces = 32, kPiece = 8;
  std::array<float, kPieces> sums{};
  for (int64_t piece = 0; piece < kPieces; ++piece) {
    const int64_t first = (part * kPieces + piece) * kPiece;
    if (first >= c.sizes["K"]) break;
    for (int64_t j = 0; j < kStreams; ++j) {
      sums[static_cast<size_t>(piece)] += norm_sum_of_squares(
          [&](int64_t column) { return hc_mixed_bits(c, t, j, first + column); }, kPiece);
    }
  }
  for (size_t half = kPieces / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

double hc_normed(const Case& c, HcStreamsOf streams, const Arg& arg,
                 std::span<const int64_t> index) {
  const std::vector<uint16_t>& row = normed_row(c, streams, index[0]);
  if (arg.name == "x") return bf16_double(row[static_cast<size_t>(index[1])]);
  const int64_t size = group_of(Quantiser::q8a);
  const int64_t first = arg.name == "x_scales" ? index[1] * size : index[1] / size * size;
  const std::span<const uint16_t> group(&row[static_cast<size_t>(first)],
                                        static_cast<size_t>(size));
  const GroupScale scale = group_scale(Quantiser::q8a, group);
  if (arg.name == "x_scales") return scale.byte;
  return quantised_element(Quantiser::q8a, scale, group[static_cast<size_t>(index[1] - first)])
      .code;
}

Case hc_case(std::string name, const Sizes& fixed_sizes, int64_t rows, HcValues values,
             uint64_t seed) {
  return Case{.name = std::move(name),
              .sizes = fixed_sizes.merged({{"T", rows}}),
              .strides = {},
              .knobs = {{"values", static_cast<int64_t>(values)}},
              .absent = {},
              .seed = seed};
}

Sizes hc_padded_strides(const Op& op, const Sizes& fixed_sizes, int64_t gap) {
  const Sizes sizes = with_derived(op, fixed_sizes);
  Sizes strides;
  for (const Arg& arg : op.args) {
    if (arg.dims.size() < 2 || arg.presence_in(fixed_sizes) == Presence::absent) continue;
    constexpr int64_t kOdd = 3;
    const int64_t beyond = arg.stride_multiple == 1 ? kOdd : gap;
    const int64_t inner = sizes[arg.dims.back()] + beyond;
    if (arg.dims.size() == 2) {
      strides.set(arg.name + "_stride", inner);
    } else {
      strides.set(arg.name + "_stride1", inner);
      strides.set(arg.name + "_stride0", sizes[arg.dims[1]] * inner + 2 * beyond);
    }
  }
  return strides;
}

std::vector<Case> hc_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  for (const int64_t rows : {1, 2, 5, 33}) {
    cases.push_back(hc_case(fmt::format("{} rows", rows), fixed_sizes, rows, HcValues::activations,
                            static_cast<uint64_t>(rows)));
  }
  cases.push_back(hc_case("no row", fixed_sizes, 0, HcValues::activations));
  cases.push_back(hc_case("any bits", fixed_sizes, 13, HcValues::any_bits));
  cases.push_back(hc_case("single gates", fixed_sizes, 8, HcValues::single));
  cases.push_back(hc_case("cancelling", fixed_sizes, 6, HcValues::cancelling));
  constexpr int64_t kMostElements = int64_t{1} << 19;
  cases.push_back(hc_case("near the measured size", fixed_sizes,
                          std::min(bucket["T"], kMostElements / fixed_sizes["K"] + 1),
                          HcValues::activations, 3));
  return cases;
}

std::vector<Case> hc_replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 21;
  return {hc_case("activations", fixed_sizes, kRows, HcValues::activations, 1),
          hc_case("other activations", fixed_sizes, kRows, HcValues::activations, 2),
          hc_case("any bits", fixed_sizes, kRows, HcValues::any_bits, 3),
          hc_case("single gates", fixed_sizes, kRows, HcValues::single, 4)};
}

}  // namespace kiln::templates
