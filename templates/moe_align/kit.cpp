// Inputs, truth and oracle of moe_align.
//
// Knobs of a case: routing (see Routing), ids (experts of the rows are below), padded_rows (at the
// end: experts all -1), missing, far (one in so many pairs has no expert, one beyond all; 0: none),
// away, wild (one in so many experts of the map is another rank's, is none that exists).
#include <algorithm>
#include <vector>

#include "templates/kit_batch.h"

namespace kiln::templates {

extern const Op moe_align;
extern const Kit moe_align_kit;

namespace {

enum Stream : uint64_t { kFirst, kStep, kMissing, kFar, kAway, kWild, kWhich };

enum class Routing : int64_t {
  spread = 0,  // different experts for the pairs of a row
  one = 1,     // all pairs go to one expert
  edges = 2,   // experts with 0, 1, m and m + 1 pairs, as far as there are pairs; others have none
  uneven = 3,  // half of all pairs go to four experts
};

// A pair that comes `place`-th in another order of all pairs.
int64_t edge_expert(const Case& c, int64_t place) {
  const int64_t block = c.sizes["block"];
  const int64_t counts[] = {0, 1, block, block + 1};
  const int64_t of_four = 2 * block + 2;
  const int64_t four = place / of_four, rest = place % of_four;
  int64_t within = 0;
  for (int64_t end = counts[0]; rest >= end; end += counts[++within]) {
  }
  return 4 * four + within;
}

int64_t id_at(const Case& c, int64_t pair) {
  const int64_t top_k = c.sizes["K"], ids = c.knobs["ids"];
  const int64_t t = pair / top_k, column = pair % top_k;
  if (t >= c.sizes["T"] - c.knobs.get("padded_rows", 0)) return -1;
  if (one_in(c, "missing", kMissing, pair)) return any_of(c, kWhich, pair, {-1, -9, kLeastInt32});
  if (one_in(c, "far", kFar, pair)) return any_of(c, kWhich, pair, {ids, ids + 1, kLargestInt32});
  const auto row = static_cast<uint64_t>(t);
  switch (static_cast<Routing>(c.knobs.get("routing", 0))) {
    case Routing::one:
      return ids * 2 / 3;
    case Routing::edges: {
      constexpr int64_t kPrime = 7919;  // the order of pairs is none of the order of experts
      const int64_t expert = edge_expert(c, pair * kPrime % (c.sizes["T"] * top_k));
      return expert < ids ? expert : -1;
    }
    case Routing::uneven:
      if (counter_range(c.seed, kFirst, static_cast<uint64_t>(pair), 0, 1) == 0)
        return counter_range(c.seed, kStep, static_cast<uint64_t>(pair), 0, 3) * 5 % ids;
      [[fallthrough]];
    case Routing::spread: {
      const int64_t first = counter_range(c.seed, kFirst, row, 0, ids - 1);
      const int64_t step = counter_range(c.seed, kStep, row, 1, std::max<int64_t>(ids / top_k, 1));
      return (first + column * step) % ids;
    }
  }
  fail(Status::internal, "moe_align: unknown routing {}", c.knobs.get("routing", 0));
}

int64_t mapped(const Case& c, int64_t id) {
  if (one_in(c, "away", kAway, id)) return any_of(c, kWhich, id, {-1, kLeastInt32});
  if (one_in(c, "wild", kWild, id)) return any_of(c, kWhich, id, {c.sizes["E"], kLargestInt32});
  return (id + 3) % c.sizes["E"];
}

// -1: the pair is skipped.
int64_t expert_of(const Case& c, int64_t pair) {
  int64_t expert = id_at(c, pair);
  if (c.has("expert_map")) expert = expert < 0 || expert >= c.sizes["G"] ? -1 : mapped(c, expert);
  return expert < 0 || expert >= c.sizes["E"] ? -1 : expert;
}

struct Sorted {
  std::vector<int64_t> token_ids, expert_ids, counts;
  int64_t end = 0;
};

Sorted sorted(const Case& c) {
  const int64_t pairs = c.sizes["T"] * c.sizes["K"], block = c.sizes["block"];
  const int64_t experts = c.sizes["E"];
  const int64_t blocks = (pairs + experts * (block - 1) + block - 1) / block;
  std::vector<std::vector<int64_t>> of_experts(static_cast<size_t>(experts));
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int64_t expert = expert_of(c, pair);
    if (expert >= 0) of_experts[static_cast<size_t>(expert)].push_back(pair);
  }
  Sorted all;
  for (int64_t expert = 0; expert < experts; ++expert) {
    const std::vector<int64_t>& run = of_experts[static_cast<size_t>(expert)];
    all.counts.push_back(static_cast<int64_t>(run.size()));
    all.token_ids.insert(all.token_ids.end(), run.begin(), run.end());
    while (static_cast<int64_t>(all.token_ids.size()) % block != 0) all.token_ids.push_back(pairs);
    all.expert_ids.resize(all.token_ids.size() / static_cast<size_t>(block), expert);
  }
  all.end = static_cast<int64_t>(all.token_ids.size());
  all.token_ids.resize(static_cast<size_t>(blocks * block), pairs);
  all.expert_ids.resize(static_cast<size_t>(blocks), -1);
  return all;
}

const Sorted& kept_sorted(const Case& c) {
  struct Kept {
    Case of;
    Sorted sorted;
  };
  thread_local Kept kept;
  const bool is_same = !kept.sorted.counts.empty() && kept.of.seed == c.seed &&
                       kept.of.knobs == c.knobs && kept.of.sizes == c.sizes &&
                       kept.of.absent == c.absent;
  if (!is_same) kept = {c, sorted(c)};
  return kept.sorted;
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  const Sorted& all = kept_sorted(c);
  if (arg.name == "num_tokens_post_pad") return static_cast<double>(all.end);
  const std::vector<int64_t>& values = arg.name == "sorted_token_ids" ? all.token_ids
                                       : arg.name == "expert_ids"     ? all.expert_ids
                                                                      : all.counts;
  return static_cast<double>(values[static_cast<size_t>(index[0])]);
}

// --- cases

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, Routing routing,
               uint64_t seed, NamedInts knobs = {}) {
  knobs.set("routing", static_cast<int64_t>(routing));
  if (!knobs.contains("ids")) knobs.set("ids", fixed_sizes["E"]);
  Case c{.name = std::move(name), .knobs = std::move(knobs), .seed = seed};
  c.sizes = fixed_sizes.merged({{"T", rows}, {"G", c.knobs["ids"]}});
  return c;
}

Case without_map(Case c) {
  c.absent.push_back("expert_map");
  c.sizes.set("G", 0);
  return c;
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return without_map(make_case("measured", fixed_sizes, bucket["T"], Routing::spread, 1));
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  const int64_t experts = fixed_sizes["E"], top_k = fixed_sizes["K"];
  std::vector<Case> cases;
  for (const int64_t rows : {1, 2, 5, 17}) {
    cases.push_back(without_map(make_case(fmt::format("{} rows", rows), fixed_sizes, rows,
                                          Routing::spread, static_cast<uint64_t>(rows))));
  }
  const int64_t few = 600 / top_k + 1;  // rows of about 600 pairs
  cases.push_back(without_map(make_case("all on one expert", fixed_sizes, few, Routing::one, 6)));
  cases.push_back(without_map(
      make_case("experts with 0, 1, m and m + 1 pairs", fixed_sizes, 2 * few, Routing::edges, 7)));
  cases.push_back(without_map(make_case("uneven, pairs without expert", fixed_sizes, few,
                                        Routing::uneven, 8, {{"missing", 5}, {"far", 7}})));
  cases.push_back(without_map(
      make_case("padded rows", fixed_sizes, few, Routing::spread, 9, {{"padded_rows", few / 3}})));
  cases.push_back(without_map(
      make_case("all padding", fixed_sizes, 7, Routing::spread, 10, {{"padded_rows", 7}})));
  cases.push_back(make_case("experts of other ranks", fixed_sizes, few, Routing::spread, 11,
                            {{"ids", 4 * experts}, {"away", 2}, {"missing", 9}, {"far", 11}}));
  cases.push_back(make_case("a map of numbers that do not exist", fixed_sizes, 33, Routing::uneven,
                            12, {{"ids", experts + 5}, {"wild", 3}, {"away", 4}}));
  Case uncounted = without_map(
      make_case("no counts, odd strides", fixed_sizes, 23, Routing::spread, 13, {{"missing", 6}}));
  uncounted.absent.push_back("expert_counts");
  uncounted.strides = {{"experts_stride", top_k + 3}};
  cases.push_back(uncounted);
  cases.push_back(without_map(make_case("no row", fixed_sizes, 0, Routing::spread, 14)));
  cases.push_back(
      without_map(make_case("many pairs", fixed_sizes, 3000 / top_k, Routing::uneven, 15)));
  cases.push_back(measured_case(fixed_sizes, bucket));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 90;
  const auto with = [&](const char* name, Routing routing, NamedInts knobs, uint64_t seed) {
    return make_case(name, fixed_sizes, kRows, routing, seed, std::move(knobs));
  };
  return {
      with("full", Routing::spread, {}, 1),
      with("padded", Routing::uneven, {{"padded_rows", 31}}, 2),
      with("all on one expert", Routing::one, {}, 3),
      with("all padding", Routing::spread, {{"padded_rows", kRows}}, 4),
      with("other ranks", Routing::spread, {{"away", 2}, {"missing", 3}}, 5),
  };
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  for (const int64_t rows : {65535, 65536, 65537}) {
    cases.push_back(without_map(make_case(fmt::format("{} rows", rows), fixed_sizes, rows,
                                          Routing::spread, 1, {{"padded_rows", 5}})));
  }
  cases.push_back(
      without_map(make_case("65537 rows on one expert", fixed_sizes, 65537, Routing::one, 2)));
  Case far = make_case("rows beyond 2^31 elements", fixed_sizes, 9, Routing::spread, 3);
  far.strides = {{"experts_stride", int64_t{1} << 28}};
  cases.push_back(far);
  return cases;
}

std::vector<Sizes> further_shapes() {
  return {{{"E", 1}, {"K", 1}, {"block", 16}},
          {{"E", 1024}, {"K", 8}, {"block", 128}},
          {{"E", 48}, {"K", 6}, {"block", 32}},
          {{"E", 7}, {"K", 2}, {"block", 24}},
          {{"E", 385}, {"K", 6}, {"block", 128}}};
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  auto* values = reinterpret_cast<int32_t*>(row.data());
  const auto count = static_cast<int64_t>(row.size() / sizeof(int32_t));
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<int32_t>(arg.name == "experts" ? id_at(c, outer[0] * c.sizes["K"] + i)
                                                           : mapped(c, i));
  }
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "moe_align_oracle"};
  launch.constants = {constant("experts", s["E"]), constant("top_k", s["K"]),
                      constant("block", s["block"])};
  launch.grid_x = {.offset = 1, .scale = 0};
  launch.threads = static_cast<int>((s["E"] + 31) / 32 * 32);
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
