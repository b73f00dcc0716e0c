// Inputs, truth and oracle of engram_inject. Truth is the formula in float64, rounded to bf16.
//
// Knob of a case: values (see Values).
#include <cmath>
#include <vector>

#include "templates/kit.h"
#include "templates/kit_batch.h"
#include "templates/kit_bf16.h"

namespace kiln::templates {

extern const Op engram_inject;
extern const Kit engram_inject_kit;

namespace {

enum Stream : uint64_t { kH, kKey, kQ, kK, kId };

enum class Values : int64_t {
  activations = 0,  // keys that have little to do with the streams
  aligned = 1,      // keys along the streams or against them: gates open and shut
  faint = 2,        // streams near 1e-10, where 1e-20 counts; some rows of zeros
};

Values values_of(const Case& c) { return static_cast<Values>(c.knobs.get("values", 0)); }
int64_t width_of(const Case& c) { return (c.sizes["C"] + 1) * c.sizes["K"]; }

bool is_dead(const Case& c, int64_t t) {
  return counter_bits(c.seed, kId, static_cast<uint64_t>(t)) % 5 == 0;
}

uint16_t drawn(uint64_t draw, int64_t top) {
  return static_cast<uint16_t>((draw & 0x8000) |
                               (top - static_cast<int64_t>((draw >> 32) % 4)) << 7 | (draw & 0x7f));
}

uint16_t h_bits(const Case& c, int64_t t, int64_t stream, int64_t column) {
  if (values_of(c) == Values::faint && t % 4 == 3) return 0;
  const int64_t index = (t * c.sizes["C"] + stream) * c.sizes["K"] + column;
  return drawn(counter_bits(c.seed, kH, static_cast<uint64_t>(index)),
               values_of(c) == Values::faint ? 94 : 128);
}

// Of a dead row no number.
uint16_t key_bits(const Case& c, int64_t t, int64_t column) {
  if (c.has("ids") && is_dead(c, t)) return 0x7fc0;
  const int64_t stream = column / c.sizes["K"];
  if (values_of(c) == Values::aligned && stream < c.sizes["C"]) {
    const uint16_t along = h_bits(c, t, stream, column % c.sizes["K"]);
    return (t + stream) % 2 == 0 ? along : along ^ 0x8000;
  }
  return drawn(counter_bits(c.seed, kKey, static_cast<uint64_t>(t * width_of(c) + column)), 128);
}

uint16_t weight_bits(const Case& c, Stream which, int64_t stream, int64_t column) {
  const uint64_t draw =
      counter_bits(c.seed, which, static_cast<uint64_t>(stream * c.sizes["K"] + column));
  return static_cast<uint16_t>(drawn(draw, 127) & 0x7fff);
}

// --- truth

double gate_in_float64(const Case& c, int64_t t, int64_t stream) {
  const int64_t columns = c.sizes["K"];
  double dot = 0, squares = 0, of_key = 0;
  for (int64_t k = 0; k < columns; ++k) {
    const double h = bf16_double(h_bits(c, t, stream, k));
    const double key = bf16_double(key_bits(c, t, stream * columns + k));
    dot += h * bf16_double(weight_bits(c, kQ, stream, k)) *
           bf16_double(weight_bits(c, kK, stream, k)) * key;
    squares += h * h;
    of_key += key * key;
  }
  const double count = static_cast<double>(columns);
  const double normed = dot / std::sqrt(squares / count + 1e-20) /
                        std::sqrt(of_key / count + 1e-20) / std::sqrt(count);
  const double root = std::copysign(std::sqrt(std::max(std::abs(normed), 1e-6)), normed);
  return 1 / (1 + std::exp(-root));
}

// Elements come row by row, so the last gate is kept.
double kept_gate(const Case& c, int64_t t, int64_t stream) {
  struct Kept {
    Case of;
    int64_t row = -1;
    int64_t stream = -1;
    double gate = 0;
  };
  thread_local Kept kept;
  if (kept.row != t || kept.stream != stream || kept.of.seed != c.seed ||
      kept.of.knobs != c.knobs || kept.of.sizes != c.sizes || kept.of.absent != c.absent)
    kept = {c, t, stream, gate_in_float64(c, t, stream)};
  return kept.gate;
}

std::optional<double> expected(const Case& c, const Arg&, std::span<const int64_t> index) {
  const int64_t t = index[0], stream = index[1], column = index[2];
  const double h = bf16_double(h_bits(c, t, stream, column));
  if (c.has("ids") && is_dead(c, t)) return h;
  const double value = bf16_double(key_bits(c, t, c.sizes["C"] * c.sizes["K"] + column));
  return round_to_bf16(static_cast<float>(h + kept_gate(c, t, stream) * value));
}

// --- cases

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
  Case c = make_case("measured", fixed_sizes, bucket["T"], Values::activations);
  c.absent = {"ids"};
  return c;
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  for (const int64_t rows : {1, 2, 17}) {
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows, Values::activations,
                              static_cast<uint64_t>(rows)));
  }
  cases.push_back(make_case("no row", fixed_sizes, 0, Values::activations));
  cases.push_back(make_case("aligned", fixed_sizes, 6, Values::aligned));
  cases.push_back(make_case("faint", fixed_sizes, 8, Values::faint));
  Case all = make_case("none dead", fixed_sizes, 5, Values::activations, 4);
  all.absent = {"ids"};
  cases.push_back(all);
  Case padded = make_case("padded strides", fixed_sizes, 7, Values::activations, 2);
  const int64_t columns = fixed_sizes["K"] + 24;
  padded.strides = {{"h_stride1", columns},
                    {"h_stride0", columns * fixed_sizes["C"] + 16},
                    {"keys_and_value_stride", (fixed_sizes["C"] + 1) * fixed_sizes["K"] + 8},
                    {"q_weight_stride", columns},
                    {"k_weight_stride", columns + 8}};
  cases.push_back(padded);
  constexpr int64_t kMostElements = int64_t{1} << 18;
  cases.push_back(make_case("near the measured size", fixed_sizes,
                            std::min(bucket["T"], kMostElements / fixed_sizes["K"] + 1),
                            Values::activations, 3));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 21;
  return {make_case("activations", fixed_sizes, kRows, Values::activations, 1),
          make_case("other activations", fixed_sizes, kRows, Values::activations, 2),
          make_case("aligned", fixed_sizes, kRows, Values::aligned, 3),
          make_case("faint", fixed_sizes, kRows, Values::faint, 4)};
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

std::vector<Sizes> further_shapes() {
  return {{{"K", 4096}, {"C", 4}}, {{"K", 7168}, {"C", 2}}, {{"K", 8}, {"C", 1}},
          {{"K", 128}, {"C", 4}},  {{"K", 1272}, {"C", 3}}, {{"K", 16384}, {"C", 8}}};
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  if (arg.name == "ids") {
    auto* ids = reinterpret_cast<int32_t*>(row.data());
    for (size_t t = 0; t < row.size() / sizeof(int32_t); ++t) {
      const auto place = static_cast<int64_t>(t);
      ids[t] =
          static_cast<int32_t>(is_dead(c, place) ? (t % 2 == 0 ? -1 : kLeastInt32) : 7 * place);
    }
    return;
  }
  auto* values = reinterpret_cast<uint16_t*>(row.data());
  for (size_t k = 0; k < row.size() / sizeof(uint16_t); ++k) {
    const auto column = static_cast<int64_t>(k);
    if (arg.name == "h") {
      values[k] = h_bits(c, outer[0], outer[1], column);
    } else if (arg.name == "keys_and_value") {
      values[k] = key_bits(c, outer[0], column);
    } else {
      values[k] = weight_bits(c, arg.name == "q_weight" ? kQ : kK, outer[0], column);
    }
  }
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "engram_inject_oracle"};
  const int threads = s["K"] <= 512 ? 32 : 128;
  launch.constants = {constant("columns", s["K"]), constant("num_streams", s["C"]),
                      constant("threads", threads)};
  launch.grid_x = {.scale = s["C"], .terms = {{"T"}}};
  launch.threads = threads;
  return launch;
}

}  // namespace

const Kit engram_inject_kit{
    .op = &engram_inject,
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
