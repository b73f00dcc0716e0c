// Inputs, truth and oracle of act_quant.
// Knob of a case: values (see QuantiserInput).
#include <algorithm>
#include <vector>

#include "templates/kit.h"
#include "templates/kit_quantise.h"

namespace kiln::templates {

extern const Op act_quant;
extern const Kit act_quant_kit;

namespace {

enum Output : int64_t { kCodes = 0, kBf16 = 1 };

constexpr Quantiser kQuantisers[] = {Quantiser::q8a, Quantiser::q8c, Quantiser::q8d, Quantiser::q4m,
                                     Quantiser::q4n};

Quantiser quantiser_of(const Sizes& s) { return static_cast<Quantiser>(s["format"]); }

InputRows input_rows(const Case& c) {
  return {.input = static_cast<QuantiserInput>(c.knobs.get("values", 0)),
          .quantiser = quantiser_of(c.sizes),
          .columns = c.sizes["K"],
          .seed = c.seed};
}

GroupScale scale_at(const Case& c, int64_t row, int64_t index) {
  const int64_t size = group_of(quantiser_of(c.sizes));
  std::vector<uint16_t> group(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i)
    group[static_cast<size_t>(i)] = input_rows(c).bits(row, index * size + i);
  return group_scale(quantiser_of(c.sizes), group);
}

QuantisedElement element_at(const Case& c, int64_t row, int64_t column) {
  const Quantiser quantiser = quantiser_of(c.sizes);
  return quantised_element(quantiser, scale_at(c, row, column / group_of(quantiser)),
                           input_rows(c).bits(row, column));
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  const int64_t row = index[0];
  if (arg.name == "scales") return scale_at(c, row, index[1]).byte;
  if (arg.name == "y") return element_at(c, row, index[1]).value;
  if (is_e4m3(quantiser_of(c.sizes))) return element_at(c, row, index[1]).code;
  return element_at(c, row, 2 * index[1]).code | element_at(c, row, 2 * index[1] + 1).code << 4;
}

// --- cases

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, QuantiserInput values,
               uint64_t seed = 1) {
  return Case{.name = std::move(name),
              .sizes = fixed_sizes.merged({{"T", rows}}),
              .knobs = {{"values", static_cast<int64_t>(values)}},
              .seed = seed};
}

// Rows that hold so many groups.
int64_t rows_of(const Sizes& fixed_sizes, int64_t groups) {
  return InputRows{.quantiser = quantiser_of(fixed_sizes), .columns = fixed_sizes["K"]}.rows_of(
      groups);
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return make_case("measured", fixed_sizes, bucket["T"], QuantiserInput::activations);
}

Sizes padded_strides(const Sizes& fixed_sizes) {
  const Sizes all = with_derived(act_quant, fixed_sizes);
  Sizes strides{{"x_stride", all["K"] + 24}};
  if (all["output"] == kBf16) return strides.merged({{"y_stride", all["K"] + 40}});
  return strides.merged({{"codes_stride", (all["code_bytes"] + 7) / 8 * 8 + 16},
                         {"scales_stride", all["groups"] + 5}});
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  const Quantiser quantiser = quantiser_of(fixed_sizes);
  const int64_t columns = fixed_sizes["K"];
  std::vector<Case> cases;
  cases.push_back(make_case("vectors and edges", fixed_sizes,
                            rows_of(fixed_sizes, groups_of_vectors()), QuantiserInput::vectors));
  cases.push_back(make_case("ties under every scale", fixed_sizes,
                            rows_of(fixed_sizes, groups_of_ties(quantiser)), QuantiserInput::ties));
  // Every magnitude decides about its group. The arithmetic depends neither on the width nor, but
  // for the last product, on the output: it is done once a format, where a row is one group.
  if (columns == group_of(quantiser) && fixed_sizes["output"] == kCodes)
    cases.push_back(make_case("every magnitude alone", fixed_sizes, 32768, QuantiserInput::alone));
  cases.push_back(make_case("no row", fixed_sizes, 0, QuantiserInput::activations));
  for (const int64_t rows : {1, 2, 5}) {
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows,
                              QuantiserInput::activations, static_cast<uint64_t>(rows)));
  }
  cases.push_back(
      make_case("any bits", fixed_sizes, rows_of(fixed_sizes, 600), QuantiserInput::any_bits));
  Case padded = make_case("padded strides", fixed_sizes, 7, QuantiserInput::any_bits, 2);
  padded.strides = padded_strides(fixed_sizes);
  cases.push_back(padded);
  constexpr int64_t kMostElements = int64_t{1} << 22;
  cases.push_back(make_case("near the measured size", fixed_sizes,
                            std::min(bucket["T"], kMostElements / columns + 1),
                            QuantiserInput::activations, 3));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 37;
  return {
      make_case("activations", fixed_sizes, kRows, QuantiserInput::activations, 1),
      make_case("other activations", fixed_sizes, kRows, QuantiserInput::activations, 2),
      make_case("any bits", fixed_sizes, kRows, QuantiserInput::any_bits, 3),
      make_case("ties", fixed_sizes, kRows, QuantiserInput::ties, 4),
      make_case("vectors", fixed_sizes, kRows, QuantiserInput::vectors, 5),
  };
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  // Wide rows have as many CTAs at fewer rows, and take the host long to fill.
  constexpr int64_t kNarrow = 512;
  if (fixed_sizes["K"] <= kNarrow) {
    for (const int64_t rows : {65535, 65536, 65537})
      cases.push_back(
          make_case(fmt::format("{} rows", rows), fixed_sizes, rows, QuantiserInput::activations));
  }
  Case far = make_case("rows beyond 2^31 elements", fixed_sizes, 4, QuantiserInput::any_bits);
  constexpr int64_t kFar = (int64_t{1} << 30) + 8;
  far.strides = {{"x_stride", kFar}};
  if (fixed_sizes["output"] == kBf16) {
    far.strides.set("y_stride", kFar);
  } else {
    far.strides.set("codes_stride", kFar);
    far.strides.set("scales_stride", kFar + 3);
  }
  cases.push_back(far);
  return cases;
}

// Rows of one group for every format, and widths beside powers of two.
std::vector<Sizes> further_shapes() {
  const auto shape = [](Quantiser quantiser, int64_t columns, int64_t output) {
    return Sizes{{"format", static_cast<int64_t>(quantiser)}, {"K", columns}, {"output", output}};
  };
  std::vector<Sizes> shapes;
  for (const int64_t output : {kCodes, kBf16}) {
    for (const Quantiser quantiser : kQuantisers)
      shapes.push_back(shape(quantiser, group_of(quantiser), output));
  }
  shapes.push_back(shape(Quantiser::q8c, 5120, kCodes));
  shapes.push_back(shape(Quantiser::q8a, 288, kCodes));  // 2304 / 8
  shapes.push_back(shape(Quantiser::q4m, 96, kCodes));
  shapes.push_back(shape(Quantiser::q4n, 48, kCodes));
  return shapes;
}

void fill(const Case& c, const Arg&, std::span<const int64_t> outer, std::span<std::byte> row) {
  const InputRows x = input_rows(c);
  auto* values = reinterpret_cast<uint16_t*>(row.data());
  const int64_t count = static_cast<int64_t>(row.size() / sizeof(uint16_t));
  for (int64_t column = 0; column < count; ++column) values[column] = x.bits(outer[0], column);
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "act_quant_oracle"};
  launch.constants = {constant("format", s["format"]), constant("output", s["output"]),
                      constant("columns", s["K"])};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = s["K"] / group_of(quantiser_of(s)) <= 32 ? 32 : 128;
  return launch;
}

}  // namespace

const Kit act_quant_kit{
    .op = &act_quant,
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
