// Inputs, truth and oracle of hc_stats. Truth is the formula in float64.
//
// Knob of a case: values (see Values).
#include <vector>

#include "templates/kit.h"
#include "templates/kit_bf16.h"
#include "templates/kit_hc.h"
#include "templates/kit_hc_stats.h"

namespace kiln::templates {

extern const Op hc_stats;
extern const Kit hc_stats_kit;

namespace {

enum Stream : uint64_t { kElement, kRow };

constexpr uint16_t kNan = 0x7fc1, kMinusInfinity = 0xff80;

enum class Values : int64_t {
  activations = 0,  // rows of any magnitude, of zeros too; gates from closed to open
  same_sign = 1,    // every product positive: sums that grow from column to column
  alone = 3,        // one column of each row: m is that of fn, with all of its bits
  vectors = 2,      // rows of zeros, so that base alone counts: the matrix of ops.md (e)
  extreme = 4,      // likewise, of logits from -1e4 to 1e4
  no_numbers = 5,   // a NaN or an infinity in every third row
};

Values values_of(const Case& c) { return static_cast<Values>(c.knobs.get("values", 0)); }

// --- inputs

uint16_t h_bits(const Case& c, int64_t t, int64_t column) {
  if (values_of(c) == Values::vectors || values_of(c) == Values::extreme) return 0;
  const int64_t width = c.sizes["S"] * c.sizes["K"];
  const uint64_t draw = counter_bits(c.seed, kElement, static_cast<uint64_t>(t * width + column));
  const auto mantissa = static_cast<uint16_t>(draw & 0x7f);
  const auto alone = static_cast<int64_t>(counter_bits(c.seed, kRow, static_cast<uint64_t>(t)) %
                                          static_cast<uint64_t>(width));
  if (values_of(c) == Values::alone && column != alone) return 0;
  if (values_of(c) == Values::same_sign || values_of(c) == Values::alone)
    return static_cast<uint16_t>((127 - (draw >> 32) % 2) << 7 | mantissa);
  if (values_of(c) == Values::no_numbers && t % 3 == 1 && column == alone)
    return t % 2 == 0 ? kNan : kMinusInfinity;
  const uint64_t of_row = counter_bits(c.seed, kRow, static_cast<uint64_t>(t));
  const auto sign = static_cast<uint16_t>(draw & 0x8000);
  if (of_row % 8 == 0 || (draw >> 16) % 32 == 0) return sign;
  // Also where 1e-20 counts, and where the squares leave fp32.
  constexpr uint64_t kTops[] = {128, 127, 130, 126, 95, 94, 128, 200};
  return static_cast<uint16_t>(sign | (kTops[of_row / 8 % 8] - (draw >> 32) % 8) << 7 | mantissa);
}

// --- truth

// Elements come row by row, so the last row is kept, of each output.
std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  struct Kept {
    Case of;
    int64_t row = -1;
    HcGates gates;
  };
  thread_local Kept kept;
  if (kept.row != index[0] || kept.of.seed != c.seed || kept.of.knobs != c.knobs ||
      kept.of.sizes != c.sizes)
    kept = {c, index[0], hc_gates_of(c, [&](int64_t column) {
              return bf16_double(h_bits(c, index[0], column));
            })};
  const auto second = static_cast<size_t>(index[1]);
  if (arg.name == "pre") return kept.gates.pre[second];
  if (arg.name == "post") return kept.gates.post[second];
  return kept.gates.comb[second][static_cast<size_t>(index[2])];
}

// --- cases

HcFn fn_for(Values values) {
  switch (values) {
    case Values::activations:
    case Values::no_numbers:
      return HcFn::both_signs;
    case Values::same_sign:
      return HcFn::positive;
    case Values::alone:
      return HcFn::large;
    case Values::vectors:
      return HcFn::matrix;
    case Values::extreme:
      return HcFn::extreme;
  }
  fail(Status::internal, "hc_stats: unknown values {}", static_cast<int64_t>(values));
}

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, Values values,
               uint64_t seed = 1) {
  return Case{.name = std::move(name),
              .sizes = fixed_sizes.merged({{"T", rows}}),
              .strides = {},
              .knobs = {{"values", static_cast<int64_t>(values)},
                        {"fn", static_cast<int64_t>(fn_for(values))}},
              .absent = {},
              .seed = seed};
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return make_case("measured", fixed_sizes, bucket["T"], Values::activations);
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  cases.push_back(make_case("vectors", fixed_sizes, 2, Values::vectors));
  for (const int64_t rows : {1, 5, 17}) {
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows, Values::activations,
                              static_cast<uint64_t>(rows)));
  }
  cases.push_back(make_case("no row", fixed_sizes, 0, Values::activations));
  cases.push_back(make_case("extreme logits", fixed_sizes, 2, Values::extreme));
  cases.push_back(make_case("no numbers", fixed_sizes, 19, Values::no_numbers, 4));
  cases.push_back(make_case("one sign", fixed_sizes, 3, Values::same_sign));
  cases.push_back(make_case("one column", fixed_sizes, 9, Values::alone));
  Case padded = make_case("padded strides", fixed_sizes, 7, Values::activations, 2);
  padded.strides = hc_padded_strides(hc_stats, fixed_sizes, 24);
  cases.push_back(padded);
  constexpr int64_t kMostElements = int64_t{1} << 20;
  cases.push_back(
      make_case("near the measured size", fixed_sizes,
                std::min(bucket["T"], kMostElements / (fixed_sizes["S"] * fixed_sizes["K"]) + 1),
                Values::activations, 3));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 19;
  return {make_case("activations", fixed_sizes, kRows, Values::activations, 1),
          make_case("other activations", fixed_sizes, kRows, Values::activations, 2),
          make_case("one sign", fixed_sizes, kRows, Values::same_sign, 3),
          make_case("one column", fixed_sizes, kRows, Values::alone, 5),
          make_case("vectors", fixed_sizes, kRows, Values::vectors, 4)};
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  constexpr int64_t kNarrow = 128;  // wide rows take the host long to fill
  if (fixed_sizes["K"] <= kNarrow)
    cases.push_back(make_case("65537 rows", fixed_sizes, 65537, Values::activations));
  Case far = make_case("rows beyond 2^31 elements", fixed_sizes, 3, Values::activations);
  far.strides = {{"h_stride0", (int64_t{1} << 30) + 8}};
  cases.push_back(far);
  return cases;
}

// Other hidden sizes, an odd multiple of 128 and the narrowest.
std::vector<Sizes> further_shapes() {
  return {{{"K", 4096}, {"S", 4}, {"precision", 0}}, {{"K", 7168}, {"S", 4}, {"precision", 1}},
          {{"K", 1408}, {"S", 4}, {"precision", 0}}, {{"K", 1408}, {"S", 1}, {"precision", 1}},
          {{"K", 128}, {"S", 4}, {"precision", 0}},  {{"K", 32}, {"S", 1}, {"precision", 0}}};
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  if (arg.name == "h") {
    auto* to = reinterpret_cast<uint16_t*>(row.data());
    for (size_t k = 0; k < row.size() / sizeof(uint16_t); ++k)
      to[k] = h_bits(c, outer[0], outer[1] * c.sizes["K"] + static_cast<int64_t>(k));
    return;
  }
  hc_stats_fill(c, arg, outer, row);
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "hc_stats_oracle"};
  constexpr int kThreads = 128;
  launch.constants = {constant("columns", s["K"]), constant("num_streams", s["S"]),
                      constant("threads", kThreads)};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = kThreads;
  return launch;
}

}  // namespace

const Kit hc_stats_kit{
    .op = &hc_stats,
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
