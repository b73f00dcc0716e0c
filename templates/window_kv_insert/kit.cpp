// Inputs, truth and oracle of window_kv_insert; what they consist of is in kit_insert.h.
#include "templates/kit_insert.h"

namespace kiln::templates {

extern const Op window_kv_insert;
extern const Kit window_kv_insert_kit;

namespace {

RowBits before_rope(const Case& c, int64_t row);

const InsertOp kInsert{
    .op = &window_kv_insert,
    .source = "kv",
    .page_size = 32,
    .has_yarn = false,
    .quantiser =
        [](const Sizes& fixed) {
          return static_cast<CacheLayout>(fixed["format"]) == CacheLayout::f3 ? Quantiser::q8d
                                                                              : Quantiser::q8a;
        },
    .before_rope = before_rope,
};

RowBits before_rope(const Case& c, int64_t row) {
  if (c.sizes["norm"] != 0) return normalised_row(kInsert, c, row);
  const InputRows input = insert_input(kInsert, c);
  return [=](int64_t e) { return input.bits(row, e); };
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "window_kv_insert_oracle"};
  launch.constants = {constant("format", s["format"]),
                      {"has_norm", "bool", s["norm"] != 0 ? "true" : "false"}};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = 64;
  return launch;
}

}  // namespace

const Kit window_kv_insert_kit{
    .op = &window_kv_insert,
    .measured_case =
        [](const Sizes& fixed, const Sizes& bucket) {
          return insert_measured_case(kInsert, fixed, bucket);
        },
    .verify_cases = [](const Sizes& fixed,
                       const Sizes& bucket) { return insert_verify_cases(kInsert, fixed, bucket); },
    .replay_cases = [](const Sizes& fixed) { return insert_replay_cases(kInsert, fixed); },
    .large_cases = [](const Sizes& fixed) { return insert_large_cases(kInsert, fixed); },
    .fill = [](const Case& c, const Arg& arg, std::span<const int64_t> outer,
               std::span<std::byte> row) { insert_fill(kInsert, c, arg, outer, row); },
    .expected = [](const Case& c, const Arg&,
                   std::span<const int64_t> index) { return insert_expected(kInsert, c, index); },
    .written_by = [](const Case& c, const Arg&,
                     int64_t t) { return insert_written_by(kInsert, c, t); },
    .oracle = oracle,
};

}  // namespace kiln::templates
