// Inputs, truth and oracle of moe_combine. Truth adds in fp32, as the order is part of the op.
//
// Knob of a case: values (see Values).
#include <algorithm>
#include <vector>

#include "templates/kit.h"
#include "templates/kit_batch.h"
#include "templates/kit_bf16.h"

namespace kiln::templates {

extern const Op moe_combine;
extern const Kit moe_combine_kit;

namespace {

enum Stream : uint64_t { kId, kPair, kShared };

enum class Values : int64_t {
  activations = 0,  // about 1, distinct experts, some of other ranks
  any_bits = 1,     // infinities and NaN included, ids of any sign, equal ones among them
  cancelling = 2,   // large numbers of both signs, where another order gives another sum
};

Values values_of(const Case& c) { return static_cast<Values>(c.knobs.get("values", 0)); }

int32_t id_of(const Case& c, int64_t t, int64_t i) {
  const int64_t top_k = c.sizes["top_k"];
  const uint64_t draw = counter_bits(c.seed, kId, static_cast<uint64_t>(t * top_k + i));
  if (values_of(c) == Values::any_bits) {
    constexpr int64_t kIds[] = {-1, 0, 7, 7, kLargestInt32, kLeastInt32};
    return static_cast<int32_t>(kIds[draw % 6]);
  }
  if (draw % 8 == 0) return -1;
  // Distinct, in no order: experts i, i + top_k, i + 2 * top_k ..
  return static_cast<int32_t>(i + top_k * static_cast<int64_t>((draw >> 8) % 16));
}

uint16_t drawn(const Case& c, uint64_t draw) {
  const auto sign = static_cast<uint16_t>(draw & 0x8000);
  if (values_of(c) == Values::any_bits && (draw >> 40) % 16 == 0)
    return static_cast<uint16_t>(draw >> 16);
  const uint64_t range = values_of(c) == Values::cancelling ? 30 : 6;
  return static_cast<uint16_t>(sign | (128 - (draw >> 32) % range) << 7 | (draw & 0x7f));
}

uint16_t pair_bits(const Case& c, int64_t t, int64_t i, int64_t column) {
  // Where an expert is none, its row holds NaN.
  if (id_of(c, t, i) < 0) return 0x7fc0;
  const int64_t index = (t * c.sizes["top_k"] + i) * c.sizes["K"] + column;
  return drawn(c, counter_bits(c.seed, kPair, static_cast<uint64_t>(index)));
}

uint16_t shared_bits(const Case& c, int64_t t, int64_t column) {
  return drawn(c, counter_bits(c.seed, kShared, static_cast<uint64_t>(t * c.sizes["K"] + column)));
}

std::optional<double> expected(const Case& c, const Arg&, std::span<const int64_t> index) {
  std::vector<std::pair<int32_t, int64_t>> order;
  for (int64_t i = 0; i < c.sizes["top_k"]; ++i) {
    if (const int32_t id = id_of(c, index[0], i); id >= 0) order.emplace_back(id, i);
  }
  std::sort(order.begin(), order.end());
  float sum = 0;
  for (const auto& [id, i] : order) sum += bf16_float(pair_bits(c, index[0], i, index[1]));
  if (c.has("shared")) sum += bf16_float(shared_bits(c, index[0], index[1]));
  return bf16_double(float_to_bf16(sum));
}

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, Values values,
               uint64_t seed = 1) {
  return Case{.name = std::move(name),
              .sizes = fixed_sizes.merged({{"T", rows}}),
              .strides = {},
              .knobs = {{"values", static_cast<int64_t>(values)}},
              .absent = {},
              .seed = seed};
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return make_case("measured", fixed_sizes, bucket["T"], Values::activations);
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  for (const int64_t rows : {1, 2, 17}) {
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows, Values::activations,
                              static_cast<uint64_t>(rows)));
  }
  cases.push_back(make_case("no row", fixed_sizes, 0, Values::activations));
  cases.push_back(make_case("any bits", fixed_sizes, 13, Values::any_bits));
  cases.push_back(make_case("cancelling", fixed_sizes, 6, Values::cancelling));
  Case without = make_case("no shared expert", fixed_sizes, 5, Values::activations, 4);
  without.absent = {"shared"};
  cases.push_back(without);
  Case padded = make_case("padded strides", fixed_sizes, 7, Values::cancelling, 2);
  const int64_t columns = fixed_sizes["K"] + 24, top_k = fixed_sizes["top_k"];
  padded.strides = {{"pairs_stride1", columns},
                    {"pairs_stride0", columns * top_k + 16},
                    {"ids_stride", top_k + 3},
                    {"shared_stride", columns},
                    {"y_stride", columns + 8}};
  cases.push_back(padded);
  constexpr int64_t kMostElements = int64_t{1} << 19;
  cases.push_back(make_case("near the measured size", fixed_sizes,
                            std::min(bucket["T"], kMostElements / (fixed_sizes["K"] * top_k) + 1),
                            Values::activations, 3));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 21;
  return {make_case("activations", fixed_sizes, kRows, Values::activations, 1),
          make_case("other activations", fixed_sizes, kRows, Values::activations, 2),
          make_case("any bits", fixed_sizes, kRows, Values::any_bits, 3),
          make_case("cancelling", fixed_sizes, kRows, Values::cancelling, 4)};
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  constexpr int64_t kNarrow = 128;  // wide rows take the host long to fill
  if (fixed_sizes["K"] <= kNarrow)
    cases.push_back(make_case("65537 rows", fixed_sizes, 65537, Values::activations));
  Case far = make_case("pairs beyond 2^31 elements", fixed_sizes, 3, Values::activations);
  far.strides = {{"pairs_stride0", (int64_t{1} << 30) + 8}};
  cases.push_back(far);
  return cases;
}

std::vector<Sizes> further_shapes() {
  return {{{"K", 4096}, {"top_k", 8}}, {{"K", 7168}, {"top_k", 1}}, {{"K", 8}, {"top_k", 32}},
          {{"K", 128}, {"top_k", 6}},  {{"K", 1272}, {"top_k", 2}}, {{"K", 16384}, {"top_k", 4}}};
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  if (arg.name == "ids") {
    auto* ids = reinterpret_cast<int32_t*>(row.data());
    for (size_t i = 0; i < row.size() / sizeof(int32_t); ++i)
      ids[i] = id_of(c, outer[0], static_cast<int64_t>(i));
    return;
  }
  auto* values = reinterpret_cast<uint16_t*>(row.data());
  for (size_t k = 0; k < row.size() / sizeof(uint16_t); ++k) {
    const auto column = static_cast<int64_t>(k);
    values[k] = arg.name == "pairs" ? pair_bits(c, outer[0], outer[1], column)
                                    : shared_bits(c, outer[0], column);
  }
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "moe_combine_oracle"};
  launch.constants = {constant("columns", s["K"]), constant("top_k", s["top_k"])};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = s["K"] <= 512 ? 32 : 128;
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
