// Inputs, truth and oracle of linear_fp8. The truth is summed in float64 from the numbers that the
// codes stand for; fill() places the codes, for the packed layout by the drawing of pack_weights.
//
// Knobs of a case: values of x (0: activations, some groups of zeros and some with an outlier; 1:
// each group's largest number is 448 times a power of two and the others lie between two E4M3
// codes; 2: every second row is 0; 3: activations times 2^100; 4: every third row holds a NaN, or
// an infinity where x is quantised; 5: any finite codes and scales, where x is codes; 6: one number
// of each group is so large that the others become subnormal codes), codes of w (0: any that are
// finite; 1: with 0x7f and 0xff, which read as +-480; 2: 0 where the large numbers of values 6
// stand, so that the sum shows how the others were rounded), scales of w (0: of trained weights; 1:
// bytes 100 to 150; 2: one in four is 0; 3: as 0, but 255 for the first block), first_row (the rows
// are part of a longer call).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "templates/kit.h"
#include "templates/kit_bf16.h"

namespace kiln::templates {

extern const Op linear_fp8;
extern const Kit linear_fp8_kit;

namespace {

constexpr int64_t kGroup = 32;  // elements of x that share a scale; rows and columns of w that do

enum Draw : uint64_t { kValue, kExponent, kKind, kSign, kCode, kScale, kWeight, kWeightScale };
enum class Values : int64_t {
  activations = 0,
  ties = 1,
  zero_rows = 2,
  huge = 3,
  not_finite = 4,
  any_codes = 5,
  one_large = 6,
  nan_codes = 7
};
constexpr int64_t kPlaceOfTheLarge = 5;  // in its group
enum class Scales : int64_t { trained = 0, wide = 1, zeros = 2, one_nan = 3 };
enum XFormat : int64_t { kBf16Q8a = 0, kCodesQ8a = 1, kBf16 = 2 };
enum YFormat : int64_t { kYBf16 = 0, kYF32 = 1 };
enum WLayout : int64_t { kCheckpoint = 0, kPacked = 1 };

Values values_of(const Case& c) { return static_cast<Values>(c.knobs.get("values", 0)); }
Scales scales_of(const Case& c) { return static_cast<Scales>(c.knobs.get("scales", 0)); }

// Byte number `index` of a stream.
uint8_t drawn_byte(uint64_t seed, uint64_t stream, int64_t index) {
  const auto place = static_cast<uint64_t>(index);
  return static_cast<uint8_t>(counter_bits(seed, stream, place / 8) >> (8 * (place % 8)));
}

// --- E4M3, with 0x7f and 0xff as 480 and -480

double e4m3_magnitude(int code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

const std::array<double, 256>& e4m3() {
  static const std::array<double, 256> values = [] {
    std::array<double, 256> all{};
    for (int code = 0; code < 256; ++code)
      all[static_cast<size_t>(code)] = e4m3_magnitude(code) * (code & 128 ? -1 : 1);
    return all;
  }();
  return values;
}

// Nearest code to a magnitude of at most 448, ties to the even one.
int e4m3_code(double magnitude) {
  const auto* begin = e4m3().data();
  const auto* end = begin + 0x7f;
  const auto* above = std::upper_bound(begin, end, magnitude);
  const auto below = static_cast<int>(above - begin) - 1;
  if (above == end) return below;
  const double middle = (*(above - 1) + *above) / 2;
  if (magnitude == middle) return below + below % 2;
  return magnitude > middle ? below + 1 : below;
}

// --- x

// A row of x of one group of the linear, in every form.
struct XRow {
  std::vector<uint16_t> bf16;
  std::vector<uint8_t> codes, scales;  // Q8a
  std::vector<double> values;          // what multiplies the weights
};

int64_t row_of(const Case& c, int64_t row) { return row + c.knobs.get("first_row", 0); }

// Elements of 32 neighbours of x before any quantising.
void draw_group(const Case& c, int64_t row, int64_t group, int64_t k, double* x) {
  const Values values = values_of(c);
  const int64_t number = ((row * c.sizes["G"] + group) * c.sizes["K"] + k) / kGroup;
  const auto index = static_cast<uint64_t>(number);
  const int64_t exponent = counter_range(c.seed, kExponent, index, -3, 3);
  const int64_t kind = counter_range(c.seed, kKind, index, 0, 36);
  const auto sign = counter_bits(c.seed, kSign, index);
  if (values == Values::zero_rows && row % 2 == 0) {
    std::fill(x, x + kGroup, 0.0);
    return;
  }
  for (int64_t i = 0; i < kGroup; ++i) {
    const auto place = static_cast<uint64_t>(number * kGroup + i);
    if (values == Values::ties) {
      const int below = static_cast<int>(counter_range(c.seed, kValue, place, 0, 0x7d));
      const double magnitude =
          i == number % kGroup ? 448 : (e4m3_magnitude(below) + e4m3_magnitude(below + 1)) / 2;
      x[i] = std::ldexp(magnitude, static_cast<int>(exponent)) * (sign >> i & 1 ? -1 : 1);
      continue;
    }
    const auto drawn = static_cast<double>(counter_range(c.seed, kValue, place, -32768, 32767));
    if (values == Values::one_large) {
      x[i] = i == kPlaceOfTheLarge
                 ? std::ldexp(448.0, static_cast<int>(exponent))
                 : round_to_bf16(std::ldexp(drawn, static_cast<int>(exponent) - 15 - 5));
      continue;
    }
    x[i] = kind == 0 ? 0 : round_to_bf16(std::ldexp(drawn / 32768, static_cast<int>(exponent)));
    if (kind == 1 && i == number % kGroup) x[i] *= 64;
    if (values == Values::huge) x[i] = std::ldexp(x[i], 100);
  }
  const int64_t bad = row * 7 % c.sizes["K"];
  if (values == Values::not_finite && row % 3 == 1 && bad / kGroup == k / kGroup)
    x[bad % kGroup] = c.sizes["x_format"] != kBf16 && row % 2 == 0 ? INFINITY : NAN;
}

// Q8a of ops.md B4; a group that is not finite by (f)4.
void quantise(const double* x, uint8_t* codes, uint8_t* scale, double* values) {
  float largest = 1e-4f;
  bool is_finite = true;
  for (int64_t i = 0; i < kGroup; ++i) {
    is_finite = is_finite && std::isfinite(x[i]);
    largest = std::max(largest, static_cast<float>(std::fabs(x[i])));
  }
  if (!is_finite) {
    *scale = 255;
    std::fill(codes, codes + kGroup, uint8_t{0x7f});
    std::fill(values, values + kGroup, NAN);
    return;
  }
  int exponent = 0;
  const float fraction = std::frexp(largest * (1.0f / 448), &exponent);
  if (fraction == 0.5f) --exponent;
  *scale = static_cast<uint8_t>(exponent + 127);
  for (int64_t i = 0; i < kGroup; ++i) {
    const int code = e4m3_code(std::ldexp(std::fabs(x[i]), -exponent));
    codes[i] = static_cast<uint8_t>(code | (std::signbit(x[i]) ? 128 : 0));
    values[i] = std::ldexp(e4m3()[codes[i]], exponent);
  }
}

void draw_codes(const Case& c, int64_t row, int64_t group, int64_t k, XRow& x) {
  const int64_t first = (row * c.sizes["G"] + group) * c.sizes["K"] + k;
  const auto scale = static_cast<int>(
      counter_range(c.seed, kScale, static_cast<uint64_t>(first / kGroup), 105, 125));
  x.scales[static_cast<size_t>(k / kGroup)] = static_cast<uint8_t>(scale);
  for (int64_t i = 0; i < kGroup; ++i) {
    uint8_t code = drawn_byte(c.seed, kCode, first + i);
    if ((code & 127) == 127) code ^= 1;
    // Under an ordinary scale, in every third row.
    if (values_of(c) == Values::nan_codes && row % 3 == 1 && k + i == row * 7 % c.sizes["K"])
      code |= 127;
    x.codes[static_cast<size_t>(k + i)] = code;
    x.values[static_cast<size_t>(k + i)] =
        (code & 127) == 127 ? NAN : std::ldexp(e4m3()[code], scale - 127);
  }
}

XRow make_row(const Case& c, int64_t row, int64_t group) {
  const int64_t columns = c.sizes["K"];
  const auto count = static_cast<size_t>(columns);
  XRow x{.bf16 = std::vector<uint16_t>(count),
         .codes = std::vector<uint8_t>(count),
         .scales = std::vector<uint8_t>(count / kGroup),
         .values = std::vector<double>(count)};
  for (int64_t k = 0; k < columns; k += kGroup) {
    const bool draws_codes = values_of(c) == Values::any_codes || values_of(c) == Values::nan_codes;
    if (c.sizes["x_format"] == kCodesQ8a && draws_codes) {
      draw_codes(c, row, group, k, x);
      continue;
    }
    const auto at = static_cast<size_t>(k);
    double drawn[kGroup];
    draw_group(c, row, group, k, drawn);
    for (size_t i = 0; i < kGroup; ++i) x.bf16[at + i] = bf16_bits(drawn[i]);
    if (c.sizes["x_format"] == kBf16)
      std::copy(drawn, drawn + kGroup, &x.values[at]);
    else
      quantise(drawn, &x.codes[at], &x.scales[at / kGroup], &x.values[at]);
  }
  return x;
}

// Rows are asked for in turn, each many times over.
const XRow& x_row(const Case& c, int64_t row, int64_t group) {
  struct Last {
    uint64_t seed = 0;
    Sizes sizes;
    NamedInts knobs;
    int64_t row = -1, group = -1;
    XRow x;
  };
  thread_local Last last;
  const int64_t wanted = row_of(c, row);
  if (last.row != wanted || last.group != group || last.seed != c.seed || last.sizes != c.sizes ||
      last.knobs != c.knobs)
    last = {c.seed, c.sizes, c.knobs, wanted, group, make_row(c, wanted, group)};
  return last.x;
}

// --- w

int scale_byte(const Case& c, int64_t block_row, int64_t block) {
  const auto place = static_cast<uint64_t>(block_row * (c.sizes["K"] / kGroup) + block);
  const auto drawn = [&](int low, int high) {
    return static_cast<int>(counter_range(c.seed, kWeightScale, place, low, high));
  };
  switch (scales_of(c)) {
    case Scales::trained:
      return drawn(112, 122);
    case Scales::wide:
      return drawn(100, 150);
    case Scales::zeros:
      return drawn(0, 3) == 0 ? 0 : drawn(112, 122);
    case Scales::one_nan:
      return block_row == 0 && block == 0 ? 255 : drawn(112, 122);
  }
  fail(Status::internal, "linear_fp8: unknown scales {}", c.knobs.get("scales", 0));
}

// Codes of eight elements, the first a multiple of eight; row: of all groups.
uint64_t eight_codes(const Case& c, int64_t row, int64_t k) {
  const auto place = static_cast<uint64_t>((row * c.sizes["K"] + k) / 8);
  uint64_t codes = counter_bits(c.seed, kWeight, place);
  if (c.knobs.get("codes", 0) == 1) return codes;
  if (c.knobs.get("codes", 0) == 2 && k % kGroup == kPlaceOfTheLarge / 8 * 8)
    codes &= ~(uint64_t{0xff} << (8 * (kPlaceOfTheLarge % 8)));
  // A byte of 0x7f or 0xff becomes 0x7e or 0xfe.
  constexpr uint64_t kOnes = 0x0101010101010101u;
  const uint64_t nans = (((codes & (0x7f * kOnes)) + kOnes) >> 7) & kOnes;
  return codes & ~nans;
}

// Where bits 0..7 of the codes a and b stand in a half word of packed weights.
constexpr int kPlaceOfA[] = {4, 5, 6, 7, 8, 9, 10, 15};
constexpr int kPlaceOfB[] = {0, 1, 2, 3, 12, 13, 14, 11};

struct Spread {
  std::array<uint16_t, 256> a{}, b{};
};
const Spread& spread() {
  static const Spread table = [] {
    Spread all;
    for (int code = 0; code < 256; ++code) {
      for (int bit = 0; bit < 8; ++bit) {
        all.a[static_cast<size_t>(code)] |=
            static_cast<uint16_t>((code >> bit & 1) << kPlaceOfA[bit]);
        all.b[static_cast<size_t>(code)] |=
            static_cast<uint16_t>((code >> bit & 1) << kPlaceOfB[bit]);
      }
    }
    return all;
  }();
  return table;
}

// Rows 8 r to 8 r + 7, in blocks of 64 columns.
void fill_packed(const Case& c, int64_t block_row, std::span<std::byte> bytes) {
  for (int64_t at = 0; at < static_cast<int64_t>(bytes.size()); at += 8) {
    const int64_t row = 8 * block_row + at % 512 / 64;
    const int64_t column = at / 512 * 64 + at % 64;
    const uint64_t codes = column < c.sizes["K"] ? eight_codes(c, row, column) : 0;
    const auto half = [&](int a, int b) {
      return static_cast<uint16_t>(spread().a[codes >> (8 * a) & 255] |
                                   spread().b[codes >> (8 * b) & 255]);
    };
    const uint16_t halves[4] = {half(0, 2), half(1, 3), half(4, 6), half(5, 7)};
    std::memcpy(bytes.data() + at, halves, sizeof(halves));
  }
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  const auto count = static_cast<int64_t>(row.size());
  if (arg.name == "w_scales") {
    for (int64_t block = 0; block < count; ++block)
      row[static_cast<size_t>(block)] = static_cast<std::byte>(scale_byte(c, outer[0], block));
  } else if (arg.name == "w" && c.sizes["w_layout"] == kPacked) {
    fill_packed(c, outer[0], row);
  } else if (arg.name == "w") {
    for (int64_t k = 0; k < count; k += 8) {
      const uint64_t codes = eight_codes(c, outer[0], k);
      std::memcpy(row.data() + k, &codes, sizeof(codes));
    }
  } else {
    const XRow& x = x_row(c, outer[0], outer[1]);
    const void* from = arg.name == "x"         ? static_cast<const void*>(x.bf16.data())
                       : arg.name == "x_codes" ? static_cast<const void*>(x.codes.data())
                                               : static_cast<const void*>(x.scales.data());
    std::memcpy(row.data(), from, row.size());
  }
}

// --- truth

std::optional<double> expected(const Case& c, const Arg&, std::span<const int64_t> index) {
  const int64_t columns = c.sizes["K"];
  const XRow& x = x_row(c, index[0], index[1]);
  const int64_t row = index[1] * c.sizes["N"] + index[2];
  const std::array<double, 256>& values = e4m3();
  double sum = 0;
  for (int64_t k = 0; k < columns; k += kGroup) {
    double of_block = 0;
    for (int64_t i = 0; i < kGroup; i += 8) {
      const uint64_t codes = eight_codes(c, row, k + i);
      for (int64_t j = 0; j < 8; ++j)
        of_block += x.values[static_cast<size_t>(k + i + j)] * values[codes >> (8 * j) & 255];
    }
    const int scale = scale_byte(c, row / kGroup, k / kGroup);
    sum += scale == 255 ? NAN : std::ldexp(of_block, scale - 127);
  }
  return sum;
}

// --- cases

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows,
               Values values = Values::activations, Scales scales = Scales::trained,
               uint64_t seed = 1) {
  return Case{
      .name = std::move(name),
      .sizes = fixed_sizes.merged({{"M", rows}}),
      .knobs = {{"values", static_cast<int64_t>(values)}, {"scales", static_cast<int64_t>(scales)}},
      .seed = seed};
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return make_case("measured", fixed_sizes, bucket["M"]);
}

// Gaps behind the rows of each group, then behind the groups.
Case with_padded_strides(Case c) {
  const int64_t features = c.sizes["K"], columns = c.sizes["N"], groups = c.sizes["G"];
  if (c.sizes["x_format"] == kCodesQ8a) {
    c.strides.set("x_codes_stride1", features + 16);
    c.strides.set("x_codes_stride0", groups * (features + 16) + 48);
    c.strides.set("x_scales_stride1", features / kGroup + 3);
    c.strides.set("x_scales_stride0", groups * (features / kGroup + 3) + 5);
  } else {
    c.strides.set("x_stride1", features + 8);
    c.strides.set("x_stride0", groups * (features + 8) + 24);
  }
  const std::string y = c.sizes["y_format"] == kYF32 ? "y_f32" : "y";
  c.strides.set(y + "_stride1", columns + 8);
  c.strides.set(y + "_stride0", groups * (columns + 8) + 40);
  return c;
}

int64_t weights(const Sizes& s) { return s["N"] * s["K"] * s["G"]; }

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  const auto with = [&](std::string name, int64_t rows, Values values,
                        Scales scales = Scales::trained) {
    return make_case(std::move(name), fixed_sizes, rows, values, scales,
                     static_cast<uint64_t>(rows));
  };
  // What does not depend on the width is shown where the weights are few.
  constexpr int64_t kFewWeights = int64_t{1} << 19;
  constexpr int64_t kMostWork = int64_t{1} << 35;
  std::vector<Case> cases{with("no row", 0, Values::activations),
                          with("one row", 1, Values::activations)};
  if (weights(fixed_sizes) > kFewWeights) {
    const int64_t rows = std::clamp<int64_t>(kMostWork / weights(fixed_sizes), 1, bucket["M"]);
    if (rows > 1) {
      cases.push_back(with_padded_strides(with("17 rows, padded strides", 17, Values::ties)));
      cases.push_back(with("near the measured size", rows, Values::activations));
    }
    return cases;
  }
  for (const int64_t rows : {8, 15, 16, 17, 33, 70})
    cases.push_back(with(fmt::format("{} rows", rows), rows, Values::activations));
  cases.push_back(with("between two codes", 18, Values::ties));
  cases.push_back(with("rows of zeros", 9, Values::zero_rows));
  cases.push_back(with("huge rows", 3, Values::huge));
  cases.push_back(with("rows that are not finite", 10, Values::not_finite));
  cases.push_back(with("wide scales", 5, Values::activations, Scales::wide));
  cases.push_back(with("scales of 0", 6, Values::activations, Scales::zeros));
  cases.push_back(with("one large number in a group", 12, Values::one_large));
  cases.back().knobs.set("codes", 2);
  cases.push_back(with("codes that read as 480", 4, Values::activations));
  cases.back().knobs.set("codes", 1);
  if (fixed_sizes["x_format"] == kCodesQ8a) {
    cases.push_back(with("any codes of x", 7, Values::any_codes));
    cases.push_back(with("codes of x that are no number", 8, Values::nan_codes));
  }
  cases.push_back(with_padded_strides(with("padded strides", 19, Values::activations)));
  if (bucket["M"] > 70)
    cases.push_back(with("near the measured size", bucket["M"] + 1, Values::activations));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 21;
  return {make_case("activations", fixed_sizes, kRows),
          make_case("other weights", fixed_sizes, kRows, Values::activations, Scales::wide, 2),
          make_case("between two codes", fixed_sizes, kRows, Values::ties, Scales::trained, 3),
          make_case("rows of zeros", fixed_sizes, kRows, Values::zero_rows, Scales::trained, 4)};
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  if (weights(fixed_sizes) <= int64_t{8} << 20) {
    for (const int64_t rows : {65535, 65536, 65537})
      cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows));
  }
  Case far = make_case("rows beyond 2^31 elements", fixed_sizes, 4);
  constexpr int64_t kFar = (int64_t{1} << 30) + 16;
  if (fixed_sizes["x_format"] == kCodesQ8a) {
    far.strides = {{"x_codes_stride0", kFar}, {"x_scales_stride0", kFar + 3}};
  } else {
    far.strides = {{"x_stride0", kFar}};
  }
  far.strides.set(fixed_sizes["y_format"] == kYF32 ? "y_f32_stride0" : "y_stride0", kFar);
  cases.push_back(far);
  return cases;
}

// Small, beside the tiles of every kernel: half a chunk, three groups, one block.
std::vector<Sizes> further_shapes() {
  const auto shape = [](int64_t out_features, int64_t in_features, int64_t groups, XFormat x_format,
                        YFormat y_format, WLayout w_layout) {
    return Sizes{{"N", out_features},    {"K", in_features},     {"G", groups},
                 {"x_format", x_format}, {"y_format", y_format}, {"w_layout", w_layout}};
  };
  return {
      shape(32, 32, 1, kBf16Q8a, kYBf16, kCheckpoint),
      shape(160, 224, 1, kBf16Q8a, kYF32, kPacked),
      shape(160, 288, 1, kBf16Q8a, kYF32, kCheckpoint),
      shape(96, 160, 3, kBf16, kYBf16, kPacked),
      shape(64, 96, 2, kBf16, kYF32, kCheckpoint),
      shape(352, 160, 1, kCodesQ8a, kYF32, kPacked),
      shape(96, 352, 2, kCodesQ8a, kYBf16, kCheckpoint),
  };
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "linear_fp8_oracle"};
  launch.constants = {constant("out_features", s["N"]),    constant("in_features", s["K"]),
                      constant("groups", s["G"]),          constant("x_format", s["x_format"]),
                      constant("y_format", s["y_format"]), constant("w_layout", s["w_layout"])};
  launch.grid_x = {.scale = s["G"] * s["N"] / kGroup, .terms = {{"M"}}};
  launch.threads = 32;
  return launch;
}

}  // namespace

const Kit linear_fp8_kit{
    .op = &linear_fp8,
    .measured_case = measured_case,
    .verify_cases = verify_cases,
    .replay_cases = replay_cases,
    .large_cases = large_cases,
    .further_shapes = further_shapes,
    .fill = fill,
    .expected = expected,
    .oracle = oracle,
};

}  // namespace kiln::templates
