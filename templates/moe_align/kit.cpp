// Inputs, truth and oracle of moe_align.
//
// Knobs of a case: spread (see Spread), short_by (entries that capacity lacks).
#include <vector>

#include "templates/kit.h"
#include "templates/kit_batch.h"

namespace kiln::templates {

extern const Op moe_align;
extern const Kit moe_align_kit;

namespace {

enum Stream : uint64_t { kId, kMap, kOther };

enum class Spread : int64_t {
  any = 0,    // some ids negative or too large
  one = 1,    // all tokens on one expert
  steps = 2,  // experts with 0, 1, block_size and block_size + 1 pairs
  none = 3,   // no pair is of this rank
};

Spread spread_of(const Case& c) { return static_cast<Spread>(c.knobs.get("spread", 0)); }

int64_t id_of(const Case& c, int64_t pair) {
  const int64_t experts = c.has("expert_map") ? c.sizes["G"] : c.sizes["E"];
  const uint64_t draw = counter_bits(c.seed, kId, static_cast<uint64_t>(pair));
  switch (spread_of(c)) {
    case Spread::any:
      if (draw % 16 == 0 || experts == 0) return not_below(c, kOther, pair, experts);
      return static_cast<int64_t>((draw >> 8) % static_cast<uint64_t>(experts));
    case Spread::one:
      return experts - 1;
    case Spread::steps: {
      // Expert 1 has one pair, expert 2 a block, expert 3 one more, the last the rest.
      const int64_t block = c.sizes["block"];
      const int64_t expert = pair < 1               ? 1
                             : pair < 1 + block     ? 2
                             : pair < 2 + 2 * block ? 3
                                                    : experts - 1;
      return std::min(expert, experts - 1);
    }
    case Spread::none:
      return not_below(c, kOther, pair, experts);
  }
  fail(Status::internal, "moe_align: unknown spread {}", c.knobs.get("spread", 0));
}

// Every other expert, from the last on, is of this rank.
int64_t mapped(const Case& c, int64_t global) {
  const int64_t place = (c.sizes["G"] - 1 - global) / 2;
  if ((c.sizes["G"] - 1 - global) % 2 != 0)
    return counter_bits(c.seed, kMap, static_cast<uint64_t>(global)) % 2 == 0 ? -1 : kLeastInt32;
  return place < c.sizes["E"] ? place : -1;
}

int64_t expert_of(const Case& c, int64_t pair) {
  const int64_t id = id_of(c, pair);
  const int64_t experts = c.has("expert_map") ? c.sizes["G"] : c.sizes["E"];
  if (id < 0 || id >= experts) return -1;
  return c.has("expert_map") ? mapped(c, id) : id;
}

// --- truth

struct Sorted {
  std::vector<int64_t> ids;
  std::vector<int64_t> experts;  // of blocks
};

Sorted sorted_of(const Case& c) {
  const int64_t pairs = c.sizes["T"] * c.sizes["top_k"], block = c.sizes["block"];
  std::vector<std::vector<int64_t>> of_experts(static_cast<size_t>(c.sizes["E"]));
  for (int64_t pair = 0; pair < pairs; ++pair) {
    if (const int64_t expert = expert_of(c, pair); expert >= 0)
      of_experts[static_cast<size_t>(expert)].push_back(pair);
  }
  Sorted sorted;
  for (size_t expert = 0; expert < of_experts.size(); ++expert) {
    for (const int64_t pair : of_experts[expert]) sorted.ids.push_back(pair);
    while (sorted.ids.size() % static_cast<size_t>(block) != 0) sorted.ids.push_back(pairs);
    sorted.experts.resize(sorted.ids.size() / static_cast<size_t>(block),
                          static_cast<int64_t>(expert));
  }
  return sorted;
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  struct Kept {
    Case of;
    bool is_set = false;
    Sorted sorted;
  };
  thread_local Kept kept;
  if (!kept.is_set || kept.of.seed != c.seed || kept.of.knobs != c.knobs ||
      kept.of.sizes != c.sizes || kept.of.absent != c.absent)
    kept = {c, true, sorted_of(c)};
  const Sorted& sorted = kept.sorted;
  if (arg.name == "num_tokens_post_pad") return static_cast<double>(sorted.ids.size());
  const auto place = static_cast<size_t>(index[0]);
  if (arg.name == "expert_ids")
    return static_cast<double>(place < sorted.experts.size() ? sorted.experts[place] : -1);
  const int64_t pairs = c.sizes["T"] * c.sizes["top_k"];
  return static_cast<double>(place < sorted.ids.size() ? sorted.ids[place] : pairs);
}

// --- cases

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, Spread spread,
               uint64_t seed = 1, int64_t short_by = 0) {
  const int64_t block = fixed_sizes["block"], experts = fixed_sizes["E"];
  const int64_t wanted = rows * fixed_sizes["top_k"] + experts * (block - 1);
  const int64_t capacity = std::max<int64_t>((wanted + block - 1) / block * block - short_by, 0);
  return Case{.name = std::move(name),
              .sizes = fixed_sizes.merged({{"T", rows}, {"G", 2 * experts + 3}, {"P", capacity}}),
              .strides = {},
              .knobs = {{"spread", static_cast<int64_t>(spread)}, {"short_by", short_by}},
              .absent = {},
              .seed = seed};
}

Case without_map(Case c) {
  c.absent = {"expert_map"};
  return c;
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return without_map(make_case("measured", fixed_sizes, bucket["T"], Spread::any));
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  for (const int64_t rows : {1, 5, 97}) {
    cases.push_back(without_map(make_case(fmt::format("{} rows", rows), fixed_sizes, rows,
                                          Spread::any, static_cast<uint64_t>(rows))));
  }
  cases.push_back(make_case("an expert map", fixed_sizes, 60, Spread::any, 2));
  cases.push_back(make_case("no row", fixed_sizes, 0, Spread::any));
  cases.push_back(without_map(make_case("one expert", fixed_sizes, 70, Spread::one)));
  cases.push_back(without_map(
      make_case("0, 1, m and m + 1 pairs", fixed_sizes, 3 * fixed_sizes["block"], Spread::steps)));
  cases.push_back(make_case("none of this rank", fixed_sizes, 9, Spread::none));
  cases.push_back(without_map(
      make_case("little capacity", fixed_sizes, 40, Spread::any, 3,
                fixed_sizes["E"] * (fixed_sizes["block"] - 1) + fixed_sizes["top_k"] * 20)));
  Case padded = make_case("padded strides", fixed_sizes, 31, Spread::any, 4);
  padded.strides = {{"ids_stride", fixed_sizes["top_k"] + 5}};
  cases.push_back(padded);
  constexpr int64_t kMostRows = 512;
  cases.push_back(measured_case(fixed_sizes, {{"T", std::min(bucket["T"], kMostRows)}}));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 50;
  return {make_case("any experts", fixed_sizes, kRows, Spread::any, 1),
          make_case("others", fixed_sizes, kRows, Spread::any, 2),
          make_case("one expert", fixed_sizes, kRows, Spread::one, 3),
          make_case("none", fixed_sizes, kRows, Spread::none, 4)};
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  cases.push_back(without_map(make_case("65537 rows", fixed_sizes, 65537, Spread::any)));
  Case far = make_case("ids beyond 2^31 elements", fixed_sizes, 4, Spread::any);
  far.strides = {{"ids_stride", (int64_t{1} << 30) + 3}};
  cases.push_back(far);
  return cases;
}

std::vector<Sizes> further_shapes() {
  return {{{"E", 1}, {"top_k", 1}, {"block", 1}},
          {{"E", 33}, {"top_k", 2}, {"block", 7}},
          {{"E", 1024}, {"top_k", 8}, {"block", 16}},
          {{"E", 48}, {"top_k", 6}, {"block", 128}}};
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  auto* values = reinterpret_cast<int32_t*>(row.data());
  for (size_t i = 0; i < row.size() / sizeof(int32_t); ++i) {
    const auto place = static_cast<int64_t>(i);
    values[i] = static_cast<int32_t>(
        arg.name == "ids" ? id_of(c, outer[0] * c.sizes["top_k"] + place) : mapped(c, place));
  }
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "moe_align_oracle"};
  launch.constants = {constant("num_experts", s["E"]), constant("top_k", s["top_k"]),
                      constant("block_size", s["block"])};
  launch.grid_x = {.offset = 1, .scale = 0};
  launch.threads = 1;
  return launch;
}

}  // namespace

const Kit moe_align_kit{
    .op = &moe_align,
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
