// Inputs, truth and oracle of moe_route. Truth is the formula in float64; keys of one token are the
// same to the bit or further apart than fp32 could confuse.
//
// Knob of a case: values (see Values).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "templates/kit.h"
#include "templates/kit_batch.h"

namespace kiln::templates {

extern const Op moe_route;
extern const Kit moe_route_kit;

namespace {

enum Stream : uint64_t { kOrder, kBias, kImageBias, kImage, kValid };

enum class Values : int64_t {
  activations = 0,  // logits from -8 to 8, in another order for each token
  wide = 1,         // from -100 to 100
  ties = 2,         // of few different keys
  closed = 4,       // from -40 to -20, where 1 + exp(x) is 1, without bias
  odd = 3,          // NaN and infinities among them, up to tokens without a number
};

Values values_of(const Case& c) { return static_cast<Values>(c.knobs.get("values", 0)); }

float logit_of(const Case& c, int64_t t, int64_t e) {
  const int64_t experts = c.sizes["E"];
  const uint64_t of_row = counter_bits(c.seed, kOrder, static_cast<uint64_t>(t));
  // A step that shares no factor with the number of experts visits every rank once.
  int64_t step = 1 + static_cast<int64_t>(of_row % 97);
  while (std::gcd(step, experts) != 1) ++step;
  const int64_t rank = (e * step + static_cast<int64_t>(of_row >> 32) % experts) % experts;
  const double place = (static_cast<double>(rank) + 0.5) / static_cast<double>(experts);
  switch (values_of(c)) {
    case Values::activations:
      return static_cast<float>(16 * place - 8);
    case Values::wide:
      return static_cast<float>(200 * place - 100);
    case Values::closed:
      return static_cast<float>(20 * place - 40);
    case Values::ties:
      return static_cast<float>(rank % 3) - 1;
    case Values::odd: {
      const uint64_t draw = counter_bits(c.seed, kOrder, static_cast<uint64_t>(t * experts + e));
      const bool has_number = of_row % 4 != 0 && draw % 3 != 0;
      if (!has_number) return NAN;
      if (draw % 64 == 1) return INFINITY;
      return draw % 64 == 2 ? -INFINITY : static_cast<float>(16 * place - 8);
    }
  }
  fail(Status::internal, "moe_route: unknown values {}", c.knobs.get("values", 0));
}

// Quarters, so that sums with scores stay apart.
float bias_of(const Case& c, Stream stream, int64_t e) {
  if (values_of(c) == Values::closed) return 0;
  if (values_of(c) == Values::ties) return 0.25f * static_cast<float>(e % 2);
  const uint64_t draw = counter_bits(c.seed, stream, static_cast<uint64_t>(e));
  if (values_of(c) == Values::odd && draw % 16 == 0) return -INFINITY;
  return 0.25f * static_cast<float>(static_cast<int64_t>((draw >> 8) % 5) - 2);
}

bool is_image(const Case& c, int64_t t) {
  return counter_bits(c.seed, kImage, static_cast<uint64_t>(t)) % 3 == 0;
}
bool is_padding(const Case& c, int64_t t) {
  return counter_bits(c.seed, kValid, static_cast<uint64_t>(t)) % 5 == 0;
}

// --- truth

double score_of(float logit) {
  const double x = logit;
  return std::sqrt(logit > 20 ? x : std::log1p(std::exp(x)));
}

struct Choice {
  std::vector<int64_t> ids;
  std::vector<double> weights;
};

Choice choice_of(const Case& c, int64_t t) {
  struct Candidate {
    float key;
    int64_t id;
    double score;
  };
  std::vector<Candidate> candidates;
  const bool is_valid = !c.has("is_valid") || !is_padding(c, t);
  const bool has_image_bias = c.has("is_image") && c.has("image_bias") && is_image(c, t);
  for (int64_t e = 0; is_valid && e < c.sizes["E"]; ++e) {
    const float logit = logit_of(c, t, e);
    if (std::isnan(logit)) continue;
    const double score = score_of(logit);
    const float key =
        static_cast<float>(score) + bias_of(c, has_image_bias ? kImageBias : kBias, e);
    if (key > -INFINITY) candidates.push_back({key, e, score});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.key > b.key; });
  const auto top_k = static_cast<size_t>(c.sizes["top_k"]);
  if (candidates.size() > top_k) candidates.resize(top_k);
  double sum = 1e-20;
  for (const Candidate& candidate : candidates) sum += candidate.score;
  Choice choice;
  for (size_t i = 0; i < top_k; ++i) {
    const bool has_one = i < candidates.size();
    choice.ids.push_back(has_one ? candidates[i].id : -1);
    choice.weights.push_back(has_one ? candidates[i].score / sum * 1.5 : 0);
  }
  return choice;
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  struct Kept {
    Case of;
    int64_t row = -1;
    Choice choice;
  };
  thread_local Kept kept;
  if (kept.row != index[0] || kept.of.seed != c.seed || kept.of.knobs != c.knobs ||
      kept.of.sizes != c.sizes || kept.of.absent != c.absent)
    kept = {c, index[0], choice_of(c, index[0])};
  const auto place = static_cast<size_t>(index[1]);
  if (arg.name == "ids") return static_cast<double>(kept.choice.ids[place]);
  return kept.choice.weights[place];
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
  c.absent = {"image_bias", "is_image", "is_valid"};
  return c;
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  for (const int64_t rows : {1, 2, 33}) {
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows, Values::activations,
                              static_cast<uint64_t>(rows)));
  }
  cases.push_back(make_case("no row", fixed_sizes, 0, Values::activations));
  cases.push_back(make_case("logits to 100", fixed_sizes, 9, Values::wide));
  cases.push_back(make_case("closed", fixed_sizes, 9, Values::closed));
  cases.push_back(make_case("ties", fixed_sizes, 9, Values::ties));
  Case odd = make_case("no numbers", fixed_sizes, 19, Values::odd);
  cases.push_back(odd);
  Case plain = make_case("no masks", fixed_sizes, 7, Values::activations, 4);
  plain.absent = {"image_bias", "is_image", "is_valid"};
  cases.push_back(plain);
  Case one_bias = make_case("one bias", fixed_sizes, 7, Values::activations, 5);
  one_bias.absent = {"image_bias"};
  cases.push_back(one_bias);
  Case padded = make_case("padded strides", fixed_sizes, 7, Values::activations, 2);
  padded.strides = {{"logits_stride", fixed_sizes["E"] + 5},
                    {"ids_stride", fixed_sizes["top_k"] + 3},
                    {"weights_stride", fixed_sizes["top_k"] + 1}};
  cases.push_back(padded);
  constexpr int64_t kMostLogits = int64_t{1} << 16;
  cases.push_back(make_case("near the measured size", fixed_sizes,
                            std::min(bucket["T"], kMostLogits / fixed_sizes["E"] + 1),
                            Values::activations, 3));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 21;
  return {make_case("activations", fixed_sizes, kRows, Values::activations, 1),
          make_case("logits to 100", fixed_sizes, kRows, Values::wide, 2),
          make_case("ties", fixed_sizes, kRows, Values::ties, 3),
          make_case("others", fixed_sizes, kRows, Values::activations, 4)};
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  constexpr int64_t kFew = 16;  // many experts take the host long to fill
  if (fixed_sizes["E"] <= kFew)
    cases.push_back(make_case("65537 rows", fixed_sizes, 65537, Values::activations));
  Case far = make_case("logits beyond 2^31 elements", fixed_sizes, 3, Values::activations);
  far.strides = {{"logits_stride", (int64_t{1} << 30) + 5}};
  cases.push_back(far);
  return cases;
}

std::vector<Sizes> further_shapes() {
  return {{{"E", 1}, {"top_k", 1}},   {{"E", 8}, {"top_k", 8}},    {{"E", 33}, {"top_k", 2}},
          {{"E", 256}, {"top_k", 8}}, {{"E", 513}, {"top_k", 32}}, {{"E", 1024}, {"top_k", 6}}};
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  if (arg.name == "is_valid") {
    fill_validity(row, [&](int64_t t) { return is_padding(c, t); });
    return;
  }
  if (arg.name == "is_image") {
    fill_validity(row, [&](int64_t t) { return !is_image(c, t); });
    return;
  }
  auto* values = reinterpret_cast<float*>(row.data());
  for (size_t k = 0; k < row.size() / sizeof(float); ++k) {
    const auto e = static_cast<int64_t>(k);
    values[k] = arg.name == "logits" ? logit_of(c, outer[0], e)
                                     : bias_of(c, arg.name == "bias" ? kBias : kImageBias, e);
  }
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "moe_route_oracle"};
  launch.constants = {constant("num_experts", s["E"]), constant("top_k", s["top_k"])};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = 1;
  return launch;
}

}  // namespace

const Kit moe_route_kit{
    .op = &moe_route,
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
