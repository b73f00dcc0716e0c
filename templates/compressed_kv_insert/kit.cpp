// Inputs, truth and oracle of compressed_kv_insert; what they consist of is in kit_insert.h.
#include "templates/kit_insert.h"

namespace kiln::templates {

extern const Op compressed_kv_insert;
extern const Kit compressed_kv_insert_kit;

namespace {

const InsertOp kInsert{
    .op = &compressed_kv_insert,
    .source = "latent",
    .page_size = 64,
    .has_yarn = true,
    .quantiser =
        [](const Sizes& fixed) {
          const auto layout = static_cast<CacheLayout>(fixed["format"]);
          return layout == CacheLayout::f1   ? Quantiser::q8a
                 : layout == CacheLayout::f3 ? Quantiser::q8d
                                             : Quantiser::q4n;
        },
};

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "compressed_kv_insert_oracle"};
  launch.constants = {constant("format", s["format"]), constant("ratio", s["ratio"])};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = 64;
  return launch;
}

// Ratios that no model has.
std::vector<Sizes> further_shapes() {
  return {{{"format", static_cast<int64_t>(CacheLayout::f2)}, {"ratio", 3}},
          {{"format", static_cast<int64_t>(CacheLayout::f4)}, {"ratio", 128}}};
}

}  // namespace

const Kit compressed_kv_insert_kit{
    .op = &compressed_kv_insert,
    .measured_case =
        [](const Sizes& fixed, const Sizes& bucket) {
          return insert_measured_case(kInsert, fixed, bucket);
        },
    .verify_cases = [](const Sizes& fixed,
                       const Sizes& bucket) { return insert_verify_cases(kInsert, fixed, bucket); },
    .replay_cases = [](const Sizes& fixed) { return insert_replay_cases(kInsert, fixed); },
    .large_cases = [](const Sizes& fixed) { return insert_large_cases(kInsert, fixed); },
    .further_shapes = further_shapes,
    .fill = [](const Case& c, const Arg& arg, std::span<const int64_t> outer,
               std::span<std::byte> row) { insert_fill(kInsert, c, arg, outer, row); },
    .expected = [](const Case& c, const Arg&,
                   std::span<const int64_t> index) { return insert_expected(kInsert, c, index); },
    .written_by = [](const Case& c, const Arg&,
                     int64_t t) { return insert_written_by(kInsert, c, t); },
    .oracle = oracle,
};

}  // namespace kiln::templates
