// Inputs, truth and oracle of moe_route.
//
// Knobs of a case: values (see Values), biases (see Biases), images (one in so many rows; 0: none),
// padded_rows (at the end: is_valid 0, logits like any).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "templates/kit_batch.h"

namespace kiln::templates {

extern const Op moe_route;
extern const Kit moe_route_kit;

namespace {

enum Stream : uint64_t { kLogit, kSpread, kBias, kBiasImage, kImage };

enum class Values : int64_t {
  model = 0,  // about -6 to 3, some experts far ahead
  wide = 1,   // -100 to 100
  ties = 2,   // few different numbers
  any = 3,    // any bits, NaN and infinities among them
  edges = 4,  // what is far below, at 0, at the threshold of 20, NaN
  few = 5,    // NaN but for 0 to top_k experts
  sweep = 6,  // row t: expert 0 from -220 to 60, expert 1 at 0, others NaN
  equal = 7,  // all the same
};
enum class Biases : int64_t { model = 0, none = 1, coarse = 2, shut = 3 };

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float float_of(uint64_t bits) {
  const auto narrow = static_cast<uint32_t>(bits);
  float value = 0;
  std::memcpy(&value, &narrow, sizeof(value));
  return value;
}

// From low to high in 2^20 steps.
float between(uint64_t draw, double low, double high) {
  return static_cast<float>(low + (high - low) * static_cast<double>(draw >> 44) / (1 << 20));
}

Values values_of(const Case& c) { return static_cast<Values>(c.knobs.get("values", 0)); }

float logit_at(const Case& c, int64_t t, int64_t expert) {
  const int64_t index = t * c.sizes["E"] + expert;
  const uint64_t draw = counter_bits(c.seed, kLogit, static_cast<uint64_t>(index));
  switch (values_of(c)) {
    case Values::model:
      return draw % 32 == 0 ? between(draw, 0, 3) : between(draw, -6, 0.5);
    case Values::wide:
      return between(draw, -100, 100);
    case Values::ties: {
      constexpr float kFew[] = {-3, -0.5F, 0, 0.25F, 1.5F};
      return kFew[(draw >> 8) % 5];
    }
    case Values::any:
      return draw % 4 == 0 ? float_of(draw >> 32) : between(draw, -8, 8);
    case Values::edges: {
      constexpr float kEdges[] = {-1e30F, -kInfinity, -211, -207, -174.5F, -104,  -103.5F,   -88,
                                  -87.5F, -30,        -17,  -5,   -1e-30F, -0.0F, 0,         1e-40F,
                                  1,      10,         20,   kNan, 20.001F, 25,    kInfinity, 1e30F};
      return kEdges[static_cast<uint64_t>(t) % 2 == 0 ? (draw >> 8) % 24 : (draw >> 8) % 16];
    }
    case Values::few: {
      const int64_t numbers = t % (c.sizes["K"] + 1);
      const int64_t first = t * 31 % c.sizes["E"];
      const int64_t place = (expert - first + c.sizes["E"]) % c.sizes["E"];
      return place < numbers ? between(draw, -9, 9) : kNan;
    }
    case Values::sweep: {
      if (expert > 1) return kNan;
      const double part = static_cast<double>(t) / static_cast<double>(c.sizes["T"]);
      return expert == 0 ? static_cast<float>(-220 + 280 * part) : 0.0F;
    }
    case Values::equal:
      return -1.25F;
  }
  fail(Status::internal, "moe_route: unknown values {}", c.knobs.get("values", 0));
}

float bias_at(const Case& c, bool of_images, int64_t expert) {
  const uint64_t draw =
      counter_bits(c.seed, of_images ? kBiasImage : kBias, static_cast<uint64_t>(expert));
  switch (static_cast<Biases>(c.knobs.get("biases", 0))) {
    case Biases::model:
      return between(draw, -0.4, 0.6);
    case Biases::none:
      return 0;
    case Biases::coarse:
      return static_cast<float>((draw >> 8) % 3) * 0.5F - 0.5F;
    case Biases::shut: {
      constexpr float kShut[] = {-kInfinity, kNan, -1e30F, 3, -0.0F, 1e-40F, 0.125F, -0.75F};
      return kShut[(draw >> 8) % 8];
    }
  }
  fail(Status::internal, "moe_route: unknown biases {}", c.knobs.get("biases", 0));
}

bool is_padding(const Case& c, int64_t t) {
  return c.has("is_valid") && t >= c.sizes["T"] - c.knobs.get("padded_rows", 0);
}

bool is_image(const Case& c, int64_t t) { return one_in(c, "images", kImage, t); }

// --- truth: the steps of the description's score, each rounded to fp32

// exp(distance / -2).
float exp_of_half(float distance) {
  const float half = std::min(distance, 210.0F) * 0.5F;
  // In float64 the product is exact, so that it is rounded once, to the whole number.
  const auto n = static_cast<float>(
      std::nearbyint(static_cast<double>(half) * static_cast<double>(-1.44269502F)));
  float r = std::fma(n, -0.693145752F, -half);
  r = std::fma(n, -1.42860677e-6F, r);
  float p = 0.00139261759F;
  for (const float coefficient : {0.00836317334F, 0.0416665561F, 0.166665778F, 0.5F, 1.0F, 1.0F})
    p = std::fma(p, r, coefficient);
  return static_cast<float>(std::ldexp(static_cast<double>(p), static_cast<int>(n)));
}

float score_of(float x) {
  const float root_of_t = exp_of_half(std::fabs(x));
  const float t = root_of_t * root_of_t;
  float p = 0.00512610236F;
  for (const float coefficient : {-0.0290740654F, 0.0775160864F, -0.136022478F, 0.190768808F,
                                  -0.248353988F, 0.333181202F, -0.499994457F, 1.0F})
    p = std::fma(p, t, coefficient);
  return x < 0 ? root_of_t * std::sqrt(p) : std::sqrt(std::fma(t, p, x));
}

struct Route {
  std::vector<int64_t> experts;
  std::vector<float> weights;
};

Route route_of(const Case& c, int64_t t) {
  const auto top_k = static_cast<size_t>(c.sizes["K"]);
  Route route{std::vector<int64_t>(top_k, -1), std::vector<float>(top_k, 0.0F)};
  if (is_padding(c, t)) return route;
  const bool with_images = c.has("is_image") && c.has("bias_image") && is_image(c, t);
  std::vector<float> scores, keys;
  std::vector<int64_t> order;
  for (int64_t e = 0; e < c.sizes["E"]; ++e) {
    const float logit = logit_at(c, t, e);
    scores.push_back(std::isnan(logit) ? kNan : score_of(logit));
    keys.push_back(scores.back() + bias_at(c, with_images, e));
    if (keys.back() > -kInfinity) order.push_back(e);
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return keys[static_cast<size_t>(a)] > keys[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), top_k));
  float sum = 0;
  for (const int64_t e : order) sum += scores[static_cast<size_t>(e)];
  for (size_t i = 0; i < order.size(); ++i) {
    route.experts[i] = order[i];
    route.weights[i] = scores[static_cast<size_t>(order[i])] / (sum + 1e-20F) * 1.5F;
  }
  return route;
}

// Elements come row by row, so the last row is kept.
const Route& kept_route(const Case& c, int64_t t) {
  struct Kept {
    Case of;
    int64_t row = -1;
    Route route;
  };
  thread_local Kept kept;
  const bool is_same = kept.row == t && kept.of.seed == c.seed && kept.of.knobs == c.knobs &&
                       kept.of.sizes == c.sizes && kept.of.absent == c.absent;
  if (!is_same) kept = {c, t, route_of(c, t)};
  return kept.route;
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  const Route& route = kept_route(c, index[0]);
  const auto i = static_cast<size_t>(index[1]);
  return arg.name == "experts" ? static_cast<double>(route.experts[i])
                               : static_cast<double>(route.weights[i]);
}

// --- cases

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, Values values,
               Biases biases, uint64_t seed, NamedInts knobs = {}) {
  knobs.set("values", static_cast<int64_t>(values));
  knobs.set("biases", static_cast<int64_t>(biases));
  return Case{.name = std::move(name),
              .sizes = fixed_sizes.merged({{"T", rows}}),
              .knobs = std::move(knobs),
              .seed = seed};
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return make_case("measured", fixed_sizes, bucket["T"], Values::model, Biases::model, 1,
                   {{"images", 9}});
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  cases.push_back(make_case("images and padded rows", fixed_sizes, 37, Values::model, Biases::model,
                            2, {{"images", 3}, {"padded_rows", 5}}));
  cases.push_back(
      make_case("logits from -100 to 100", fixed_sizes, 33, Values::wide, Biases::none, 3));
  cases.push_back(make_case("ties", fixed_sizes, 32, Values::ties, Biases::coarse, 4));
  cases.push_back(make_case("all equal", fixed_sizes, 3, Values::equal, Biases::none, 5));
  cases.push_back(make_case("any bits", fixed_sizes, 48, Values::any, Biases::model, 6));
  cases.push_back(make_case("edges", fixed_sizes, 40, Values::edges, Biases::none, 7));
  cases.push_back(make_case("experts shut out", fixed_sizes, 17, Values::model, Biases::shut, 8,
                            {{"images", 2}}));
  cases.push_back(make_case("few numbers", fixed_sizes, 2 * fixed_sizes["K"] + 3, Values::few,
                            Biases::coarse, 9));
  cases.push_back(make_case("all padding", fixed_sizes, 6, Values::any, Biases::model, 10,
                            {{"padded_rows", 6}}));
  cases.push_back(
      make_case("from subnormal scores on", fixed_sizes, 57, Values::sweep, Biases::none, 15));
  Case plain = make_case("no masks", fixed_sizes, 5, Values::model, Biases::model, 11);
  plain.absent = {"is_image", "is_valid", "bias_image"};
  cases.push_back(plain);
  Case text = make_case("no bias for images", fixed_sizes, 9, Values::model, Biases::model, 12,
                        {{"images", 2}});
  text.absent = {"bias_image"};
  cases.push_back(text);
  Case odd = make_case("odd strides", fixed_sizes, 13, Values::model, Biases::coarse, 13,
                       {{"images", 4}, {"padded_rows", 2}});
  odd.strides = {{"logits_stride", fixed_sizes["E"] + 3},
                 {"experts_stride", fixed_sizes["K"] + 1},
                 {"weights_stride", fixed_sizes["K"] + 5}};
  cases.push_back(odd);
  cases.push_back(make_case("no row", fixed_sizes, 0, Values::model, Biases::model, 14));
  cases.push_back(measured_case(fixed_sizes, bucket));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 45;
  const auto with = [&](const char* name, Values values, Biases biases, int64_t padded_rows) {
    return make_case(name, fixed_sizes, kRows, values, biases,
                     static_cast<uint64_t>(padded_rows + 1),
                     {{"images", 3}, {"padded_rows", padded_rows}});
  };
  return {
      with("full", Values::model, Biases::model, 0),
      with("padded", Values::wide, Biases::model, 17),
      with("ties", Values::ties, Biases::coarse, 3),
      with("all padding", Values::any, Biases::model, kRows),
      with("few numbers", Values::few, Biases::shut, 1),
  };
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  for (const int64_t rows : {65535, 65536, 65537}) {
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows, Values::model,
                              Biases::model, 1, {{"images", 5}, {"padded_rows", 2}}));
  }
  Case far =
      make_case("rows beyond 2^31 elements", fixed_sizes, 6, Values::model, Biases::model, 2);
  constexpr int64_t kFar = (int64_t{1} << 29) + 4;
  far.strides = {{"logits_stride", kFar}, {"experts_stride", kFar}, {"weights_stride", kFar}};
  cases.push_back(far);
  return cases;
}

std::vector<Sizes> further_shapes() {
  return {{{"E", 1}, {"K", 1}},    {{"E", 6}, {"K", 6}},    {{"E", 257}, {"K", 8}},
          {{"E", 1024}, {"K", 6}}, {{"E", 100}, {"K", 32}}, {{"E", 1023}, {"K", 4}}};
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
  const auto count = static_cast<int64_t>(row.size() / sizeof(float));
  for (int64_t e = 0; e < count; ++e) {
    values[e] =
        arg.name == "logits" ? logit_at(c, outer[0], e) : bias_at(c, arg.name == "bias_image", e);
  }
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "moe_route_oracle"};
  launch.constants = {constant("experts", s["E"]), constant("top_k", s["K"])};
  launch.grid_x = {.terms = {{.symbol = "T", .divisor = 32}}};
  launch.threads = 32;
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
