// Inputs, truth and oracle of index_query.
//
// Knobs of a case: values (see QuantiserInput), position (of all rows; left out: any of the table),
// bad_positions (one in so many rows has one beyond the table; 0: none).
#include <cmath>
#include <vector>

#include "templates/kit_insert.h"
#include "templates/kit_quantise.h"

namespace kiln::templates {

extern const Op index_query;
extern const Kit index_query_kit;

namespace {

enum Stream : uint64_t { kPosition = 80, kBadPosition, kHeadWeight };
enum Output : int64_t { kQ4m = 0, kQ8k = 1, kBf16 = 2 };

constexpr int64_t kColumns = 128;

Quantiser quantiser_of(const Sizes& fixed) {
  return fixed["output"] == kQ8k ? Quantiser::q8k : Quantiser::q4m;
}

int64_t row_position(const Case& c, int64_t t) {
  const auto index = static_cast<uint64_t>(t);
  const int64_t positions = c.sizes["P"], one_in = c.knobs.get("bad_positions", 0);
  if (one_in > 0 && counter_range(c.seed, kBadPosition, index, 0, one_in - 1) == 0) {
    const int64_t bad[] = {-1, positions, std::numeric_limits<int32_t>::max(),
                           std::numeric_limits<int32_t>::min()};
    return bad[t % 4];
  }
  if (positions == 0) return 0;
  return c.knobs.get("position", counter_range(c.seed, kPosition, index, 0, positions - 1));
}

uint16_t query_bits(const Case& c, int64_t t, int64_t head, int64_t element) {
  const InputRows rows{.input = static_cast<QuantiserInput>(c.knobs.get("values", 0)),
                       .quantiser = quantiser_of(c.sizes),
                       .columns = kColumns,
                       .seed = c.seed};
  return rows.bits(t * c.sizes["H"] + head, element);
}

// Of any magnitude whose product with 2^-6 and with any scale is a normal number.
uint16_t head_weight_bits(const Case& c, int64_t t, int64_t head) {
  const auto index = static_cast<uint64_t>(t * c.sizes["H"] + head);
  const uint64_t draw = counter_bits(c.seed, kHeadWeight, index);
  if (draw % 16 == 0) return static_cast<uint16_t>(draw & 0x8000);
  const auto exponent = static_cast<int64_t>(115 + (draw >> 32) % 16);
  return static_cast<uint16_t>((draw & 0x8000) | exponent << 7 | (draw & 0x7f));
}

std::vector<uint16_t> rotated_head(const Case& c, int64_t t, int64_t head) {
  const int64_t position = row_position(c, t);
  const RowBits before = [&](int64_t e) { return query_bits(c, t, head, e); };
  const bool rotates = position >= 0 && position < c.sizes["P"];
  std::vector<uint16_t> x;
  for (int64_t e = 0; e < kColumns; ++e) {
    x.push_back(rotates ? rotated_bits(before, kColumns, e,
                                       [&](int64_t i) { return rope_angle(true, position, i); })
                        : before(e));
  }
  return x;
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  const auto put = [&]<class T>(T, const auto& value) {
    auto* values = reinterpret_cast<T*>(row.data());
    for (size_t i = 0; i < row.size() / sizeof(T); ++i)
      values[i] = static_cast<T>(value(static_cast<int64_t>(i)));
  };
  if (arg.name == "q") {
    put(uint16_t{}, [&](int64_t e) { return query_bits(c, outer[0], outer[1], e); });
  } else if (arg.name == "head_weights") {
    put(uint16_t{}, [&](int64_t head) { return head_weight_bits(c, outer[0], head); });
  } else if (arg.name == "positions") {
    put(int32_t{}, [&](int64_t t) { return row_position(c, t); });
  } else {
    put(float{}, [&](int64_t i) { return rope_angle(true, outer[0], i); });
  }
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  const int64_t t = index[0], head = index[1];
  const Quantiser quantiser = quantiser_of(c.sizes);
  const int64_t group = group_of(quantiser);
  const std::vector<uint16_t> x = rotated_head(c, t, head);
  const auto scale_at = [&](int64_t e) {
    const auto first = static_cast<size_t>(e / group * group);
    return group_scale(quantiser, std::span(x).subspan(first, static_cast<size_t>(group)));
  };
  const auto element_at = [&](int64_t e) {
    return quantised_element(quantiser, scale_at(e), x[static_cast<size_t>(e)]);
  };
  if (arg.name == "weights") {
    const double weight = bf16_double(head_weight_bits(c, t, head)) / 64;
    return c.sizes["output"] == kQ8k ? weight * scale_at(0).value : weight;
  }
  const int64_t at = index[2];
  if (arg.name == "scales") return scale_at(at * group).byte;
  if (arg.name == "y") return element_at(at).value;
  if (c.sizes["output"] == kQ8k) return element_at(at).code;
  return element_at(2 * at).code | element_at(2 * at + 1).code << 4;
}

// --- cases

Case make_case(std::string name, const Sizes& fixed, int64_t rows, int64_t table_rows,
               NamedInts knobs, uint64_t seed) {
  Case c{.name = std::move(name), .knobs = std::move(knobs), .seed = seed};
  c.sizes = fixed.merged({{"T", rows}, {"P", table_rows}});
  return c;
}

int64_t values(QuantiserInput input) { return static_cast<int64_t>(input); }

Case measured_case(const Sizes& fixed, const Sizes& bucket) {
  return make_case("measured", fixed, bucket["T"], 8192, {}, 1);
}

std::vector<Case> verify_cases(const Sizes& fixed, const Sizes& bucket) {
  const InputRows input{.quantiser = quantiser_of(fixed), .columns = kColumns};
  const auto rows_of = [&](int64_t groups) {
    return (input.rows_of(groups) + fixed["H"] - 1) / fixed["H"];
  };
  std::vector<Case> cases;
  // At position 0 nothing rotates, so that the quantiser meets its edges.
  cases.push_back(make_case("vectors and edges", fixed, rows_of(groups_of_vectors()), 300,
                            {{"values", values(QuantiserInput::vectors)}, {"position", 0}}, 1));
  cases.push_back(make_case("ties under every scale", fixed,
                            rows_of(groups_of_ties(input.quantiser)), 300,
                            {{"values", values(QuantiserInput::ties)}, {"position", 0}}, 1));
  for (const int64_t rows : {0, 1, 2, 3, 5}) {
    cases.push_back(
        make_case(fmt::format("{} rows", rows), fixed, rows, 300, {}, static_cast<uint64_t>(rows)));
  }
  cases.push_back(
      make_case("any bits", fixed, 7, 300, {{"values", values(QuantiserInput::any_bits)}}, 2));
  cases.push_back(
      make_case("positions beyond the table", fixed, 13, 300, {{"bad_positions", 3}}, 5));
  cases.push_back(make_case("no position in the table", fixed, 2, 0, {}, 7));
  Case strided = make_case("padded strides", fixed, 5, 40, {{"bad_positions", 4}}, 10);
  const int64_t heads = fixed["H"];
  strided.strides = {{"q_stride1", 136},
                     {"q_stride0", 136 * heads + 24},
                     {"head_weights_stride", heads + 3},
                     {"rope_table_stride", 76},
                     {"weights_stride", heads + 5}};
  if (fixed["output"] == kBf16) {
    strided.strides.set("y_stride1", 144);
    strided.strides.set("y_stride0", 144 * heads + 8);
  } else {
    strided.strides.set("codes_stride1", 136);
    strided.strides.set("codes_stride0", 136 * heads + 8);
  }
  if (fixed["output"] == kQ4m) {
    strided.strides.set("scales_stride1", 5);
    strided.strides.set("scales_stride0", 5 * heads + 3);
  }
  cases.push_back(strided);
  cases.push_back(make_case("near the measured size", fixed, std::min<int64_t>(bucket["T"], 1024),
                            4096, {{"bad_positions", 50}}, 11));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed) {
  const auto with = [&](const char* name, NamedInts knobs, uint64_t seed) {
    return make_case(name, fixed, 17, 300, std::move(knobs), seed);
  };
  return {
      with("full", {}, 1),
      with("other positions", {}, 2),
      with("padded rows", {{"bad_positions", 2}}, 3),
      with("all rows are padding", {{"bad_positions", 1}}, 4),
      with("any bits", {{"values", values(QuantiserInput::any_bits)}}, 5),
  };
}

std::vector<Case> large_cases(const Sizes& fixed) {
  std::vector<Case> cases;
  for (const int64_t rows : {65535, 65536, 65537})
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed, rows, 300, {}, 1));
  Case far = make_case("rows and angles beyond 2^31", fixed, 4, 4, {}, 3);
  constexpr int64_t kFar = (int64_t{1} << 30) + 64;
  far.strides = {{"q_stride0", kFar}, {"rope_table_stride", kFar / 2}};
  far.strides.set(fixed["output"] == kBf16 ? "y_stride0" : "codes_stride0", kFar);
  cases.push_back(far);
  return cases;
}

std::vector<Sizes> further_shapes() {
  return {
      {{"H", 1}, {"output", kQ4m}}, {{"H", 7}, {"output", kQ8k}}, {{"H", 6}, {"output", kBf16}}};
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "index_query_oracle"};
  launch.constants = {constant("heads", s["H"]), constant("output", s["output"])};
  launch.grid_x = {.scale = s["H"], .terms = {{"T"}}};
  launch.threads = 32;
  return launch;
}

}  // namespace

const Kit index_query_kit{
    .op = &index_query,
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
