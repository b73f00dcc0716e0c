// Inputs, truth and oracle of embed_expand.
//
// Knob of a case: ids (see Ids).
#include <vector>

#include "templates/kit.h"
#include "templates/kit_batch.h"
#include "templates/kit_bf16.h"

namespace kiln::templates {

extern const Op embed_expand;
extern const Kit embed_expand_kit;

namespace {

enum Stream : uint64_t { kId, kElement };

enum class Ids : int64_t {
  any = 0,   // mostly of this rank; others before and behind it, negative ones and the edges
  own = 1,   // all of this rank
  none = 2,  // of other ranks
};

int64_t id_of(const Case& c, int64_t t) {
  const int64_t first = c.sizes["first_id"], count = c.sizes["V"];
  const auto index = static_cast<uint64_t>(t);
  const uint64_t draw = counter_bits(c.seed, kId, index);
  const auto ids = static_cast<Ids>(c.knobs.get("ids", 0));
  const bool is_own = ids == Ids::own || (ids == Ids::any && draw % 4 != 0);
  if (is_own && count > 0)
    return first + static_cast<int64_t>((draw >> 8) % static_cast<uint64_t>(count));
  const int64_t others[] = {-1, first - 1, first + count, kLargestInt32, kLeastInt32};
  const int64_t other = others[(draw >> 8) % 5];
  return other > kLargestInt32 ? -1 : other;
}

uint16_t element_bits(const Case& c, int64_t entry, int64_t column) {
  return static_cast<uint16_t>(
      counter_bits(c.seed, kElement, static_cast<uint64_t>(entry * c.sizes["K"] + column)));
}

std::optional<double> expected(const Case& c, const Arg&, std::span<const int64_t> index) {
  const int64_t entry = id_of(c, index[0]) - c.sizes["first_id"];
  if (entry < 0 || entry >= c.sizes["V"]) return 0.0;
  return bf16_double(element_bits(c, entry, index[2]));
}

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, int64_t entries,
               int64_t first_id, Ids ids, uint64_t seed = 1) {
  return Case{.name = std::move(name),
              .sizes = fixed_sizes.merged({{"T", rows}, {"V", entries}, {"first_id", first_id}}),
              .strides = {},
              .knobs = {{"ids", static_cast<int64_t>(ids)}},
              .absent = {},
              .seed = seed};
}

// Enough embeddings that few rows share one.
Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return make_case("measured", fixed_sizes, bucket["T"], 4 * bucket["T"], 0, Ids::own);
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  for (const int64_t rows : {1, 5, 33})
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows, 50, 1000, Ids::any,
                              static_cast<uint64_t>(rows)));
  cases.push_back(make_case("no row", fixed_sizes, 0, 50, 0, Ids::any));
  cases.push_back(make_case("no embedding", fixed_sizes, 6, 0, 0, Ids::none));
  cases.push_back(make_case("other ranks", fixed_sizes, 6, 9, 18, Ids::none));
  Case padded = make_case("padded strides", fixed_sizes, 7, 11, 3, Ids::any, 2);
  const int64_t columns = fixed_sizes["K"] + 24;
  padded.strides = {{"table_stride", columns},
                    {"h_stride1", columns},
                    {"h_stride0", columns * fixed_sizes["C"] + 16}};
  cases.push_back(padded);
  constexpr int64_t kMostElements = int64_t{1} << 20;
  cases.push_back(make_case("near the measured size", fixed_sizes,
                            std::min(bucket["T"], kMostElements / fixed_sizes["K"] + 1), 100, 0,
                            Ids::own, 3));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 21, kEntries = 40, kFirst = 400;
  return {make_case("any ids", fixed_sizes, kRows, kEntries, kFirst, Ids::any, 1),
          make_case("other ids", fixed_sizes, kRows, kEntries, kFirst, Ids::any, 2),
          make_case("of other ranks", fixed_sizes, kRows, kEntries, kFirst, Ids::none, 3)};
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  constexpr int64_t kNarrow = 128;  // wide rows take the host long to look at
  if (fixed_sizes["K"] <= kNarrow)
    cases.push_back(make_case("65537 rows", fixed_sizes, 65537, 100, 0, Ids::any));
  Case far = make_case("embeddings beyond 2^31 elements", fixed_sizes, 5, 3, 7, Ids::own);
  constexpr int64_t kFar = (int64_t{1} << 30) + 8;
  far.strides = {{"table_stride", kFar}};
  cases.push_back(far);
  return cases;
}

std::vector<Sizes> further_shapes() {
  return {{{"K", 4096}, {"C", 4}}, {{"K", 7168}, {"C", 2}}, {{"K", 8}, {"C", 8}},
          {{"K", 128}, {"C", 4}},  {{"K", 1272}, {"C", 3}}, {{"K", 16384}, {"C", 1}}};
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  if (arg.name == "ids") {
    auto* ids = reinterpret_cast<int32_t*>(row.data());
    for (size_t t = 0; t < row.size() / sizeof(int32_t); ++t)
      ids[t] = static_cast<int32_t>(id_of(c, static_cast<int64_t>(t)));
    return;
  }
  auto* values = reinterpret_cast<uint16_t*>(row.data());
  for (size_t k = 0; k < row.size() / sizeof(uint16_t); ++k)
    values[k] = element_bits(c, outer[0], static_cast<int64_t>(k));
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "embed_expand_oracle"};
  launch.constants = {constant("columns", s["K"]), constant("copies", s["C"])};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = s["K"] <= 512 ? 32 : 128;
  return launch;
}

}  // namespace

const Kit embed_expand_kit{
    .op = &embed_expand,
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
