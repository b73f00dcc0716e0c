// Inputs, truth and oracle of compressor_update.
// Projections are a function of request and position, whatever row, chunk or ring they stand in:
// truth is computed from them and never looks at a ring.
//
// Knobs of a case: those of kit_batch.h, no_block (one in so many requests has none; 0: no
// request), values (see Values).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "templates/kit_batch.h"
#include "templates/kit_bf16.h"

namespace kiln::templates {

extern const Op compressor_update;
extern const Kit compressor_update_kit;

namespace {

enum Stream : uint64_t { kNoBlock = kBatchStreams, kValue, kScore, kWeight };
enum Rounding : int64_t { kBf16 = 0, kNone = 1 };

enum class Values : int64_t {
  plain = 0,  // scores within 8, some within 160, some equal
  edges = 1,  // some rows all zeros, tiny or large values, values that cancel, scores to +-1e4
  tiny = 2,   // all within 2^-58: beside 1e-20 their squares count for nothing
};

constexpr int64_t kChannels = 512;
constexpr int64_t kPositionOfPadding = 7;

const Batch& batch_of(const Case& c) {
  return made_once<Batch>(
      c, [](const Case& of) { return cut_batch(of.sizes["T"], of.sizes["R"], of.knobs, of.seed); });
}
Token token_at(const Case& c, int64_t t) { return token_at(batch_of(c), t); }

// Each request has one of its own; the blocks in between belong to nobody.
int64_t block_of(const Case& c, int64_t b) {
  if (one_in(c, "no_block", kNoBlock, b)) {
    const int64_t none[] = {0, -1, c.sizes["num_blocks"], kLargestInt32};
    return none[b % 4];
  }
  return 1 + 2 * b;
}

bool has_block(const Case& c, int64_t b) {
  const int64_t block = block_of(c, b);
  return block > 0 && block < c.sizes["num_blocks"] && c.sizes["block_rows"] > 0;
}

// --- inputs

uint64_t element_bits_of(const Case& c, Stream stream, int64_t b, int64_t position,
                         int64_t channel) {
  const auto token = static_cast<uint64_t>(b) << 32 ^ static_cast<uint64_t>(position);
  return counter_bits(c.seed, stream, token * kChannels + static_cast<uint64_t>(channel));
}

// In [-1, 1), 24 bits.
double unit(uint64_t bits) { return std::ldexp(static_cast<double>(bits >> 39), -24) - 1.0; }

float value_at(const Case& c, int64_t b, int64_t position, int64_t channel) {
  const uint64_t bits = element_bits_of(c, kValue, b, position, channel);
  const double value = 4 * unit(bits);
  const auto values = static_cast<Values>(c.knobs.get("values", 0));
  if (values == Values::tiny) return static_cast<float>(std::ldexp(value, -60));
  if (values == Values::edges) {
    const int64_t group = position / c.sizes["ratio"];
    switch ((group + b) % 5) {
      case 0:
        return 0;
      case 1:
        return static_cast<float>(std::ldexp(value, -60));
      case 2:
        return static_cast<float>(std::ldexp(value, 50));
      case 3:  // of one size, and of two signs in a pair
        return position % 2 == 0 ? 3.0f : -3.0f;
    }
  }
  return static_cast<float>(value);
}

float score_at(const Case& c, int64_t b, int64_t position, int64_t channel) {
  const int64_t even = position - position % 2;
  const uint64_t of_pair = element_bits_of(c, kScore, b, even, channel);
  const bool is_equal = of_pair % 16 == 0;
  const uint64_t bits = is_equal ? of_pair : element_bits_of(c, kScore, b, position, channel);
  const double range = of_pair % 16 == 1 ? 160 : 8;
  const bool edges = static_cast<Values>(c.knobs.get("values", 0)) == Values::edges;
  return static_cast<float>(unit(bits) * (edges && of_pair % 16 == 2 ? 1e4 : range));
}

uint16_t weight_bits(const Case& c, int64_t channel) {
  const uint64_t bits = counter_bits(c.seed, kWeight, static_cast<uint64_t>(channel));
  return static_cast<uint16_t>((bits & 0x8000) | 0x3f00 | (bits >> 20 & 0xff));  // 0.5 to 2
}

void fill_projections(const Case& c, int64_t b, int64_t position, std::span<float> row) {
  for (size_t i = 0; i < row.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    row[i] =
        at < kChannels ? value_at(c, b, position, at) : score_at(c, b, position, at - kChannels);
  }
}

// A row of the ring holds the newest token before the step that belongs there.
void fill_ring(const Case& c, int64_t block, int64_t row, std::span<float> values) {
  const Batch& batch = batch_of(c);
  const int64_t b = (block - 1) / 2, rows = c.sizes["block_rows"];
  std::memset(values.data(), 0xff, values.size_bytes());
  if (block % 2 == 0 || b >= c.sizes["R"] || block_of(c, b) != block) return;
  const int64_t newest = batch.prefix[static_cast<size_t>(b)] - 1;
  const int64_t position = newest - ((newest - row) % rows + rows) % rows;
  if (position >= 0) fill_projections(c, b, position, values);
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  const std::span<float> floats{reinterpret_cast<float*>(row.data()), row.size() / sizeof(float)};
  if (arg.name == "projections") {
    const Token token = token_at(c, outer[0]);
    if (token.request < 0) {
      std::memset(row.data(), 0xff, row.size());
    } else {
      fill_projections(c, token.request, token.position, floats);
    }
    return;
  }
  if (arg.name == "ring") {
    fill_ring(c, outer[0], outer[1], floats);
    return;
  }
  if (arg.name == "norm_weight") {
    for (int64_t i = 0; i < kChannels; ++i) {
      const uint16_t bits = weight_bits(c, i);
      std::memcpy(row.data() + 2 * i, &bits, 2);
    }
    return;
  }
  auto* values = reinterpret_cast<int32_t*>(row.data());
  const int64_t count = static_cast<int64_t>(row.size() / sizeof(int32_t));
  for (int64_t i = 0; i < count; ++i) {
    int64_t value = 0;
    if (arg.name == "positions") {
      const Token token = token_at(c, i);
      value = token.request < 0 ? kPositionOfPadding : token.position;
    }
    if (arg.name == "requests") {
      const int64_t b = token_at(c, i).request;
      value = b >= 0 ? b : i % 2 == 0 ? -1 : c.sizes["R"] + i;
    }
    if (arg.name == "query_start_loc")
      value = c.knobs.get("first_row", 0) + batch_of(c).first_row[static_cast<size_t>(i)];
    if (arg.name == "ring_blocks") value = block_of(c, i);
    values[i] = static_cast<int32_t>(value);
  }
}

// --- truth

bool completes(const Case& c, const Token& token) {
  if (token.request < 0 || (token.position + 1) % c.sizes["ratio"] != 0) return false;
  const bool partner_in_ring =
      c.sizes["ratio"] == 2 &&
      token.position == batch_of(c).prefix[static_cast<size_t>(token.request)];
  return !partner_in_ring || has_block(c, token.request);
}

double pooled(const Case& c, const Token& token, int64_t channel) {
  const int64_t b = token.request, p = token.position;
  if (c.sizes["ratio"] == 1) return value_at(c, b, p, channel);
  const double score_a = score_at(c, b, p - 1, channel), score_b = score_at(c, b, p, channel);
  const double m = std::max(score_a, score_b);
  const double a = std::exp(score_a - m), e = std::exp(score_b - m);
  return (value_at(c, b, p - 1, channel) * a + value_at(c, b, p, channel) * e) / (a + e);
}

std::vector<double> latent_of(const Case& c, const Token& token) {
  std::vector<double> x;
  double sum = 0;
  for (int64_t i = 0; i < kChannels; ++i) {
    const double value = pooled(c, token, i);
    x.push_back(c.sizes["rounding"] == kBf16 ? round_to_bf16(value) : value);
    sum += x.back() * x.back();
  }
  const double r = 1 / std::sqrt(sum / kChannels + 1e-20);
  for (int64_t i = 0; i < kChannels; ++i) {
    double& value = x[static_cast<size_t>(i)];
    value = round_to_bf16(value * r * bf16_double(weight_bits(c, i)));
  }
  return x;
}

// The elements of a row are asked for one after the other.
double latent_at(const Case& c, int64_t t, int64_t channel) {
  struct Last {
    Sizes sizes;
    NamedInts knobs;
    uint64_t seed = 0;
    int64_t t = -1;
    std::vector<double> latent;
  };
  thread_local Last last;
  if (last.t != t || last.seed != c.seed || last.sizes != c.sizes || last.knobs != c.knobs)
    last = {c.sizes, c.knobs, c.seed, t, latent_of(c, token_at(c, t))};
  return last.latent[static_cast<size_t>(channel)];
}

// What the step stores, or what was there before.
double in_ring(const Case& c, int64_t block, int64_t row, int64_t element) {
  const Batch& batch = batch_of(c);
  const int64_t b = (block - 1) / 2, rows = c.sizes["block_rows"];
  if (block % 2 == 0 || b >= c.sizes["R"] || block_of(c, b) != block) return std::nan("");
  const auto at = static_cast<size_t>(b);
  const int64_t newest = batch.prefix[at] + batch.first_row[at + 1] - batch.first_row[at] - 1;
  const int64_t position = newest - ((newest - row) % rows + rows) % rows;
  if (position < 0) return std::nan("");
  return element < kChannels ? value_at(c, b, position, element)
                             : score_at(c, b, position, element - kChannels);
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  if (arg.name == "ring") return in_ring(c, index[0], index[1], index[2]);
  if (!completes(c, token_at(c, index[0]))) return std::nullopt;
  return latent_at(c, index[0], index[1]);
}

std::vector<ElementRange> written_by(const Case& c, const Arg& arg, int64_t t) {
  const Token token = token_at(c, t);
  if (arg.name != "ring" || token.request < 0 || !has_block(c, token.request)) return {};
  const int64_t rows = c.sizes["block_rows"];
  const auto at = static_cast<size_t>(token.request);
  if (t < batch_of(c).first_row[at + 1] - rows) return {};
  return {{{block_of(c, token.request), token.position % rows}, 0, 2 * kChannels}};
}

// --- cases

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, int64_t requests,
               NamedInts knobs, uint64_t seed = 1, int64_t block_rows = 8) {
  Case c{.name = std::move(name), .knobs = std::move(knobs), .seed = seed};
  const bool has_ring = fixed_sizes["ratio"] == 2;
  c.sizes = fixed_sizes.merged({{"T", rows},
                                {"R", requests},
                                {"num_blocks", has_ring ? 2 * requests + 2 : 0},
                                {"block_rows", has_ring ? block_rows : 0}});
  return c;
}

// Decode rows up to 256, a prefill chunk of four requests above; contexts of both parities.
Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  const int64_t rows = bucket["T"];
  return make_case("measured", fixed_sizes, rows, rows <= 256 ? rows : 4,
                   {{"prefix_low", 4096}, {"prefix_high", 4097}});
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  cases.push_back(make_case("chunks of both parities", fixed_sizes, 41, 8,
                            {{"prefix_low", 0}, {"prefix_high", 300}, {"padded_rows", 3}}, 2));
  cases.push_back(make_case("several requests, some empty", fixed_sizes, 37, 21,
                            {{"uneven", 1},
                             {"prefix_low", 0},
                             {"prefix_high", 90},
                             {"padded_rows", 2},
                             {"first_row", 41}},
                            3));
  // The ring goes round: its rows are read and replaced in one step.
  NamedInts lengths;
  const int64_t queries[] = {1, 1, 2, 2, 7, 7, 8, 8, 9, 9, 15, 16, 17, 24};
  int64_t rows = 0;
  for (size_t b = 0; b < std::size(queries); ++b) {
    lengths.set(fmt::format("query_{}", b), queries[b]);
    lengths.set(fmt::format("prefix_{}", b), static_cast<int64_t>(b % 2 == 0 ? 101 : 12 + b));
    rows += queries[b];
  }
  for (const int64_t block_rows : {8, 2, 1, 6}) {
    cases.push_back(make_case(fmt::format("steps around a ring of {}", block_rows), fixed_sizes,
                              rows, static_cast<int64_t>(std::size(queries)), lengths, 4,
                              block_rows));
  }
  cases.push_back(make_case("requests without a block", fixed_sizes, 40, 17,
                            {{"prefix_low", 0}, {"prefix_high", 40}, {"no_block", 2}}, 5));
  cases.push_back(
      make_case("no ring", fixed_sizes, 20, 7, {{"prefix_low", 0}, {"prefix_high", 40}}, 6, 0));
  cases.push_back(make_case("edges of values", fixed_sizes, 34, 5,
                            {{"prefix_low", 10}, {"prefix_high", 40}, {"values", 1}}, 7));
  // One rms over the whole output would not see its small rows beside others.
  cases.push_back(make_case("tiny values", fixed_sizes, 11, 3,
                            {{"prefix_low", 10}, {"prefix_high", 40}, {"values", 2}}, 11));
  cases.push_back(
      make_case("all padding", fixed_sizes, 6, 2, {{"padded_rows", 6}, {"prefix_high", 9}}, 8));
  cases.push_back(make_case("no request", fixed_sizes, 5, 0, {{"padded_rows", 5}}, 9));
  cases.push_back(make_case("no row", fixed_sizes, 0, 2, {}));
  Case odd = make_case("odd strides", fixed_sizes, 19, 4,
                       {{"prefix_low", 1}, {"prefix_high", 40}, {"padded_rows", 1}}, 10);
  odd.strides = {{"projections_stride", fixed_sizes["ratio"] * kChannels + 12},
                 {"latent_stride", kChannels + 8}};
  if (fixed_sizes["ratio"] == 2) {
    odd.strides.set("ring_stride1", 1028);
    odd.strides.set("ring_stride0", 1028 * 8 + 16);
  }
  cases.push_back(odd);
  cases.push_back(measured_case(fixed_sizes, bucket));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  const auto with = [&](const char* name, NamedInts knobs, uint64_t seed) {
    return make_case(name, fixed_sizes, 60, 11, std::move(knobs), seed);
  };
  return {
      with("full", {{"prefix_low", 900}, {"prefix_high", 1500}}, 1),
      with("padded", {{"uneven", 1}, {"prefix_high", 70}, {"padded_rows", 21}}, 2),
      with("no context", {{"no_block", 3}}, 3),
      with("all padding", {{"padded_rows", 60}}, 4),
      with("full again", {{"uneven", 1}, {"prefix_high", 1500}, {"first_row", 19}}, 5),
  };
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  for (const int64_t rows : {65535, 65536, 65537}) {
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows, 3,
                              {{"prefix_low", 100}, {"prefix_high", 3000}, {"padded_rows", 2}}));
  }
  Case far = make_case("rows beyond 2^31 elements", fixed_sizes, 9, 2,
                       {{"prefix_low", 501}, {"prefix_high", 2000}});
  far.strides = {{"projections_stride", int64_t{1} << 28}, {"latent_stride", int64_t{1} << 28}};
  cases.push_back(far);
  if (fixed_sizes["ratio"] == 2) {
    Case ring = make_case("blocks beyond 2^31 elements", fixed_sizes, 9, 3,
                          {{"prefix_low", 501}, {"prefix_high", 2000}});
    ring.strides = {{"ring_stride0", int64_t{1} << 29}};
    cases.push_back(ring);
  }
  return cases;
}

std::vector<Sizes> further_shapes() {
  return {{{"ratio", 2}, {"rounding", kNone}}, {{"ratio", 1}, {"rounding", kNone}}};
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "compressor_update_oracle"};
  launch.constants = {{"ratio", "int", std::to_string(s["ratio"])},
                      {"rounds_pooled", "bool", s["rounding"] == kBf16 ? "true" : "false"}};
  launch.grid_x = {.terms = {{"R"}}};
  launch.threads = 256;
  return launch;
}

}  // namespace

const Kit compressor_update_kit{
    .op = &compressor_update,
    .measured_case = measured_case,
    .verify_cases = verify_cases,
    .replay_cases = replay_cases,
    .large_cases = large_cases,
    .further_shapes = further_shapes,
    .fill = fill,
    .expected = expected,
    .written_by = written_by,
    .oracle = oracle,
};

}  // namespace kiln::templates
