// Inputs, truth and oracle of index_key_insert; what they consist of is in kit_insert.h.
//
// Knob of a case beside those: from_weight (1: rows of ones, so that their norm is the weight,
// which holds groups seed, seed + 1, .. of the quantiser's vectors).
#include "templates/kit_insert.h"

namespace kiln::templates {

extern const Op index_key_insert;
extern const Kit index_key_insert_kit;

namespace {

constexpr int64_t kColumns = 128;
constexpr uint16_t kOne = 0x3f80;

Quantiser quantiser_of(const Sizes& fixed) {
  return static_cast<CacheLayout>(fixed["format"]) == CacheLayout::f5 ? Quantiser::q4m
                                                                      : Quantiser::q8k;
}

RowBits key_row(const Case& c, int64_t row);

const InsertOp kInsert{.op = &index_key_insert,
                       .source = "k",
                       .width = kColumns,
                       .quantiser = quantiser_of,
                       .before_rope = key_row};

bool is_from_weight(const Case& c) { return c.knobs.get("from_weight", 0) != 0; }

uint16_t k_bits(const Case& c, int64_t row, int64_t column) {
  return is_from_weight(c) ? kOne : insert_input(kInsert, c).bits(row, column);
}

uint16_t weight_bits(const Case& c, int64_t column) {
  if (is_from_weight(c)) {
    const InputRows vectors{
        .input = QuantiserInput::vectors, .quantiser = quantiser_of(c.sizes), .columns = kColumns};
    return vectors.bits(static_cast<int64_t>(c.seed), column);
  }
  return norm_weight_bits(c, column);
}

RowBits key_row(const Case& c, int64_t row) {
  if (!is_from_weight(c)) return normalised_row(kInsert, c, row);
  return [=](int64_t column) { return weight_bits(c, column); };
}

std::vector<Case> verify_cases(const Sizes& fixed, const Sizes& bucket) {
  std::vector<Case> cases = insert_verify_cases(kInsert, fixed, bucket);
  const InputRows rows{.quantiser = quantiser_of(fixed), .columns = kColumns};
  for (int64_t row = 0; row < rows.rows_of(groups_of_vectors()); ++row) {
    Case c = cases.front();
    c.name = fmt::format("vectors as weight, row {}", row);
    c.sizes = c.sizes.merged({{"T", 2}, {"page_size", 2}, {"num_pages", 2}});
    c.knobs.set("from_weight", 1);
    c.seed = static_cast<uint64_t>(row);
    cases.push_back(c);
  }
  return cases;
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  auto* values = reinterpret_cast<uint16_t*>(row.data());
  const int64_t count = static_cast<int64_t>(row.size() / sizeof(uint16_t));
  if (arg.name == "weight") {
    for (int64_t column = 0; column < count; ++column) values[column] = weight_bits(c, column);
  } else if (arg.name == "k") {
    for (int64_t column = 0; column < count; ++column) values[column] = k_bits(c, outer[0], column);
  } else {
    insert_fill(kInsert, c, arg, outer, row);
  }
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "index_key_insert_oracle"};
  launch.constants = {constant("format", s["format"]), constant("ratio", s["ratio"])};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = 32;
  return launch;
}

}  // namespace

const Kit index_key_insert_kit{
    .op = &index_key_insert,
    .measured_case =
        [](const Sizes& fixed, const Sizes& bucket) {
          return insert_measured_case(kInsert, fixed, bucket);
        },
    .verify_cases = verify_cases,
    .replay_cases = [](const Sizes& fixed) { return insert_replay_cases(kInsert, fixed); },
    .large_cases = [](const Sizes& fixed) { return insert_large_cases(kInsert, fixed); },
    .fill = fill,
    .expected = [](const Case& c, const Arg&,
                   std::span<const int64_t> index) { return insert_expected(kInsert, c, index); },
    .written_by = [](const Case& c, const Arg&,
                     int64_t t) { return insert_written_by(kInsert, c, t); },
    .oracle = oracle,
};

}  // namespace kiln::templates
