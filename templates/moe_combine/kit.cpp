// Inputs, truth and oracle of moe_combine.
//
// Knobs of a case: experts (ids are below), padded_rows (at the end: experts all -1), missing (one
// in so many pairs has no expert; 0: none), twice (one in so many rows has one expert twice), far
// (one in so many ids lies beyond the map), away (one in so many experts is another rank's),
// any_bits (1: infinities and NaN among the results). Pairs that add nothing hold NaN.
#include <algorithm>
#include <cmath>
#include <vector>

#include "templates/kit_batch.h"
#include "templates/kit_bf16.h"

namespace kiln::templates {

extern const Op moe_combine;
extern const Kit moe_combine_kit;

namespace {

enum Stream : uint64_t {
  kFirst,
  kStep,
  kTurn,
  kMissing,
  kTwice,
  kFar,
  kAway,
  kPair,
  kShared,
  kWhich
};

constexpr int64_t kF32 = 1;
constexpr uint16_t kNan = 0x7fc1;

int64_t expert_at(const Case& c, int64_t t, int64_t column) {
  const int64_t top_k = c.sizes["K"], experts = c.knobs["experts"];
  if (t >= c.sizes["T"] - c.knobs.get("padded_rows", 0)) return -1;
  const int64_t index = t * top_k + column;
  if (one_in(c, "missing", kMissing, index)) return any_of(c, kWhich, index, {-1, -7, kLeastInt32});
  if (one_in(c, "far", kFar, index))
    return any_of(c, kWhich, index, {c.sizes["E"], c.sizes["E"] + 1, kLargestInt32});
  // Experts of a row are apart: steps of at most experts / top_k. Their columns are turned, in half
  // of the rows the other way round.
  const auto row = static_cast<uint64_t>(t);
  const int64_t first = counter_range(c.seed, kFirst, row, 0, experts - 1);
  const int64_t step = counter_range(c.seed, kStep, row, 1, std::max<int64_t>(experts / top_k, 1));
  const int64_t turn = counter_range(c.seed, kTurn, row, 0, 2 * top_k - 1);
  int64_t place = (column + turn) % top_k;
  if (turn >= top_k) place = top_k - 1 - place;
  if (one_in(c, "twice", kTwice, t) && place == 1) place = 0;
  return (first + place * step) % experts;
}

int64_t mapped(const Case& c, int64_t expert) {
  if (one_in(c, "away", kAway, expert)) return any_of(c, kWhich, expert, {-1, kLeastInt32});
  return expert * 7 % 3;  // also 0
}

bool adds(const Case& c, int64_t expert) {
  if (expert < 0) return false;
  return !c.has("expert_map") || (expert < c.sizes["E"] && mapped(c, expert) >= 0);
}

// Of any size, so that another order is another sum.
uint16_t number_bits(const Case& c, uint64_t stream, int64_t index) {
  const uint64_t draw = counter_bits(c.seed, stream, static_cast<uint64_t>(index));
  if (c.knobs.get("any_bits", 0) != 0 && (draw >> 32) % 64 == 0)
    return static_cast<uint16_t>(draw >> 16);
  const auto exponent = static_cast<int64_t>(112 + (draw >> 40) % 20);
  return static_cast<uint16_t>((draw & 0x8000) | exponent << 7 | (draw & 0x7f));
}

uint16_t pair_bits(const Case& c, int64_t t, int64_t column, int64_t h) {
  return number_bits(c, kPair, (t * c.sizes["K"] + column) * c.sizes["H"] + h);
}

uint16_t shared_bits(const Case& c, int64_t t, int64_t h) {
  return number_bits(c, kShared, t * c.sizes["H"] + h);
}

// Columns in the order in which they are added; elements come row by row, so the last is kept.
const std::vector<int64_t>& kept_order(const Case& c, int64_t t) {
  struct Kept {
    Case of;
    int64_t row = -1;
    std::vector<int64_t> order;
  };
  thread_local Kept kept;
  const bool is_same = kept.row == t && kept.of.seed == c.seed && kept.of.knobs == c.knobs &&
                       kept.of.sizes == c.sizes && kept.of.absent == c.absent;
  if (is_same) return kept.order;
  kept = {c, t, {}};
  for (int64_t i = 0; i < c.sizes["K"]; ++i) {
    if (adds(c, expert_at(c, t, i))) kept.order.push_back(i);
  }
  std::stable_sort(kept.order.begin(), kept.order.end(),
                   [&](int64_t a, int64_t b) { return expert_at(c, t, a) < expert_at(c, t, b); });
  return kept.order;
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  const int64_t t = index[0], h = index[1];
  float sum = 0;
  for (const int64_t column : kept_order(c, t)) sum += bf16_float(pair_bits(c, t, column, h));
  if (arg.name == "y_f32") return static_cast<double>(sum);
  if (c.has("shared")) sum += bf16_float(shared_bits(c, t, h));
  return bf16_double(float_to_bf16(static_cast<double>(sum)));
}

// --- cases

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, NamedInts knobs,
               uint64_t seed) {
  if (!knobs.contains("experts")) knobs.set("experts", 384);
  Case c{.name = std::move(name), .knobs = std::move(knobs), .seed = seed};
  c.sizes = fixed_sizes.merged({{"T", rows}, {"E", c.knobs["experts"]}});
  return c;
}

Case without_map(Case c) {
  c.absent.push_back("expert_map");
  c.sizes.set("E", 0);
  return c;
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return without_map(make_case("measured", fixed_sizes, bucket["T"], {}, 1));
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  for (const int64_t rows : {1, 2, 5}) {
    cases.push_back(without_map(make_case(fmt::format("{} rows", rows), fixed_sizes, rows, {},
                                          static_cast<uint64_t>(rows))));
  }
  cases.push_back(without_map(make_case("padded rows, pairs without expert", fixed_sizes, 9,
                                        {{"padded_rows", 2}, {"missing", 3}}, 6)));
  cases.push_back(make_case("experts of other ranks", fixed_sizes, 8,
                            {{"away", 2}, {"missing", 5}, {"far", 7}}, 7));
  cases.push_back(without_map(make_case("an expert twice", fixed_sizes, 6, {{"twice", 1}}, 8)));
  cases.push_back(without_map(make_case("one expert", fixed_sizes, 3, {{"experts", 1}}, 9)));
  cases.push_back(without_map(make_case("any bits", fixed_sizes, 7, {{"any_bits", 1}}, 10)));
  Case alone = without_map(
      make_case("no shared expert", fixed_sizes, 4, {{"missing", 4}, {"padded_rows", 1}}, 11));
  alone.absent.push_back("shared");
  cases.push_back(alone);
  Case odd = make_case("padded strides", fixed_sizes, 5, {{"away", 3}}, 12);
  const int64_t hidden = fixed_sizes["H"], row = hidden + 16;
  odd.strides = {{"pairs_stride0", row * fixed_sizes["K"] + 8},
                 {"pairs_stride1", row},
                 {"experts_stride", fixed_sizes["K"] + 3}};
  if (fixed_sizes["result"] == kF32) {
    odd.strides.set("y_f32_stride", hidden + 12);
  } else {
    odd.strides.set("shared_stride", hidden + 24);
    odd.strides.set("y_stride", hidden + 40);
  }
  cases.push_back(odd);
  cases.push_back(without_map(make_case("no row", fixed_sizes, 0, {}, 13)));
  constexpr int64_t kMostElements = int64_t{1} << 22;
  const int64_t of_row = hidden * (fixed_sizes["K"] + 1);
  cases.push_back(
      without_map(make_case("near the measured size", fixed_sizes,
                            std::min(bucket["T"], kMostElements / of_row + 1), {}, 14)));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 19;
  return {
      make_case("full", fixed_sizes, kRows, {}, 1),
      make_case("padded", fixed_sizes, kRows, {{"padded_rows", 7}}, 2),
      make_case("other ranks", fixed_sizes, kRows, {{"away", 2}, {"missing", 4}}, 3),
      make_case("all padding", fixed_sizes, kRows, {{"padded_rows", kRows}}, 4),
      make_case("any bits", fixed_sizes, kRows, {{"any_bits", 1}, {"far", 5}}, 5),
  };
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  constexpr int64_t kNarrow = 512;  // wide rows take the host long to fill
  if (fixed_sizes["H"] <= kNarrow) {
    for (const int64_t rows : {65535, 65536, 65537}) {
      cases.push_back(without_map(
          make_case(fmt::format("{} rows", rows), fixed_sizes, rows, {{"padded_rows", 3}}, 1)));
    }
  }
  Case far = make_case("rows beyond 2^31 elements", fixed_sizes, 4, {{"away", 4}}, 2);
  constexpr int64_t kFar = (int64_t{1} << 30) + 8;
  far.strides = {{"pairs_stride0", kFar}, {"experts_stride", kFar / 2}};
  far.strides.set(fixed_sizes["result"] == kF32 ? "y_f32_stride" : "y_stride", kFar / 2 + 4);
  cases.push_back(far);
  return cases;
}

std::vector<Sizes> further_shapes() {
  constexpr int64_t kBf16 = 0;
  return {{{"K", 8}, {"H", 7168}, {"result", kBf16}},
          {{"K", 1}, {"H", 8}, {"result", kF32}},
          {{"K", 6}, {"H", 4096}, {"result", kBf16}},
          {{"K", 9}, {"H", 128 * 33}, {"result", kBf16}},
          {{"K", 32}, {"H", 264}, {"result", kF32}}};
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  if (arg.dtype == DType::i32) {
    auto* values = reinterpret_cast<int32_t*>(row.data());
    const auto count = static_cast<int64_t>(row.size() / sizeof(int32_t));
    for (int64_t i = 0; i < count; ++i) {
      values[i] =
          static_cast<int32_t>(arg.name == "experts" ? expert_at(c, outer[0], i) : mapped(c, i));
    }
    return;
  }
  auto* values = reinterpret_cast<uint16_t*>(row.data());
  const auto count = static_cast<int64_t>(row.size() / sizeof(uint16_t));
  if (arg.name == "pairs" && !adds(c, expert_at(c, outer[0], outer[1]))) {
    std::fill_n(values, count, kNan);
    return;
  }
  for (int64_t h = 0; h < count; ++h) {
    values[h] =
        arg.name == "pairs" ? pair_bits(c, outer[0], outer[1], h) : shared_bits(c, outer[0], h);
  }
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "moe_combine_oracle"};
  launch.constants = {constant("hidden", s["H"]),
                      constant("top_k", s["K"]),
                      {"result_is_f32", "bool", s["result"] == kF32 ? "true" : "false"}};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = 128;
  return launch;
}

}  // namespace

const Kit moe_combine_kit{
    .op = &moe_combine,
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
