// Inputs, truth and oracle of engram_hash.
//
// Knobs of a case: those of kit_batch.h, values (see Values), misplaced (so many rows at first name
// the last request, which begins behind them).
#include <array>
#include <cstring>
#include <vector>

#include "templates/kit.h"
#include "templates/kit_batch.h"

namespace kiln::templates {

extern const Op engram_hash;
extern const Kit engram_hash_kit;

namespace {

enum Stream : uint64_t { kId = kBatchStreams, kOther };

constexpr int64_t kLookBacks = 3;
constexpr int64_t kIds = 99092;  // of the model's vocabulary
constexpr int64_t kPadId = 2;

enum class Values : int64_t {
  text = 0,     // one id in eight is dead
  vectors = 1,  // the tokens of ops.md (e), with the numbers of layer 1
};

Values values_of(const Case& c) { return static_cast<Values>(c.knobs.get("values", 0)); }

const Batch& batch_of(const Case& c) {
  return made_once<Batch>(
      c, [](const Case& of) { return cut_batch(of.sizes["T"], of.sizes["R"], of.knobs, of.seed); });
}

// Of the token at an absolute position of a request; -1 where the sequence has none.
int64_t id_at(const Case& c, int64_t request, int64_t position) {
  if (position < 0) return -1;
  if (values_of(c) == Values::vectors) {
    // A request is one of three texts of four tokens.
    constexpr int64_t kTexts[3][4] = {{2, 3, 4, 5}, {12345, 50000, 0, 99091}, {-1, -1, -1, 7}};
    return kTexts[request % 3][position % 4];
  }
  const auto index = static_cast<uint64_t>(request * 1000003 + position);
  const uint64_t draw = counter_bits(c.seed, kId, index);
  if (draw % 8 == 0) return draw % 16 == 0 ? -1 : kLeastInt32;
  return static_cast<int64_t>((draw >> 8) % static_cast<uint64_t>(kIds));
}

uint64_t multiplier(const Case& c, int64_t n) {
  constexpr uint64_t kLayer1[] = {76632096046245, 4839876093313, 35959672319349, 73987337458391};
  constexpr uint64_t kLayer14[] = {67716810739261, 51510806800915, 30921347202721, 82619226485591};
  return c.seed % 2 == 1 || values_of(c) == Values::vectors ? kLayer1[n] : kLayer14[n];
}

// The model's for its 24 columns of layer 1; beyond, odd numbers that need be no primes.
int64_t prime(int64_t column) {
  constexpr int64_t kPrimes[] = {16000057, 16000079, 16000081, 16000097, 16000121, 16000129,
                                 16000133, 16000183, 16000189, 16000207, 16000211, 16000253,
                                 16000277, 16000289, 16000307, 16000321, 16000339, 16000381,
                                 16000393, 16000399, 16000403, 16000409, 16000447, 16000463};
  constexpr int64_t kCount = 24;
  return column < kCount ? kPrimes[column] : 9000001 + 2 * column;
}

int64_t offset(int64_t column) {
  int64_t sum = 0;
  for (int64_t before = 0; before < column; ++before) sum += prime(before);
  return sum;
}

bool is_misplaced(const Case& c, int64_t t) { return t < c.knobs.get("misplaced", 0); }

std::optional<double> expected(const Case& c, const Arg&, std::span<const int64_t> index) {
  const Token token = token_at(batch_of(c), index[0]);
  if (token.request < 0 || is_misplaced(c, index[0])) return -1.0;
  uint64_t hash = 0;
  bool is_over = false;
  for (int64_t n = 0; n <= 1 + index[1] / c.sizes["heads"]; ++n) {
    const int64_t id = id_at(c, token.request, token.position - n);
    is_over = is_over || id < 0;
    hash ^= static_cast<uint64_t>(is_over ? c.sizes["pad_id"] : id) * multiplier(c, n);
  }
  return static_cast<double>(hash % static_cast<uint64_t>(prime(index[1]))) +
         static_cast<double>(offset(index[1]));
}

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, int64_t requests,
               NamedInts knobs, uint64_t seed = 1) {
  return Case{.name = std::move(name),
              .sizes = fixed_sizes.merged({{"T", rows}, {"R", requests}, {"pad_id", kPadId}}),
              .strides = {},
              .knobs = std::move(knobs),
              .absent = {},
              .seed = seed};
}

// Decode rows up to 256, a prefill chunk of four requests above.
Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  constexpr int64_t kMostDecodeRows = 256;
  const int64_t rows = bucket["T"];
  return make_case("measured", fixed_sizes, rows, rows <= kMostDecodeRows ? rows : 4,
                   {{"prefix_low", 3}, {"prefix_high", 1000}});
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  cases.push_back(make_case("vectors", fixed_sizes, 12, 3, {{"values", 1}}));
  // The same tokens, of which three are history.
  cases.push_back(make_case("vectors behind history", fixed_sizes, 3, 3,
                            {{"values", 1}, {"prefix_low", 3}, {"prefix_high", 3}}));
  cases.push_back(make_case("chunks at every border", fixed_sizes, 45, 9,
                            {{"prefix_low", 0}, {"prefix_high", 5}, {"padded_rows", 3}}, 2));
  cases.push_back(make_case("several requests, some empty", fixed_sizes, 37, 21,
                            {{"uneven", 1},
                             {"prefix_low", 0},
                             {"prefix_high", 90},
                             {"padded_rows", 2},
                             {"first_row", 41}},
                            3));
  cases.push_back(make_case("rows before their request", fixed_sizes, 40, 4,
                            {{"prefix_high", 4}, {"misplaced", 6}}, 8));
  cases.push_back(make_case("one row", fixed_sizes, 1, 1, {{"prefix_high", 4}}, 4));
  cases.push_back(make_case("all padding", fixed_sizes, 6, 2, {{"padded_rows", 6}}, 5));
  cases.push_back(make_case("no request", fixed_sizes, 5, 0, {{"padded_rows", 5}}, 6));
  cases.push_back(make_case("no row", fixed_sizes, 0, 2, {}));
  Case odd = make_case("odd strides", fixed_sizes, 19, 4, {{"prefix_high", 6}}, 7);
  odd.strides = {{"history_stride", 5}, {"rows_stride", 3 * fixed_sizes["heads"] + 7}};
  cases.push_back(odd);
  constexpr int64_t kMostRows = 2048;
  cases.push_back(measured_case(fixed_sizes, {{"T", std::min(bucket["T"], kMostRows)}}));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 30, kRequests = 5;
  return {make_case("chunks", fixed_sizes, kRows, kRequests, {{"prefix_high", 9}}, 1),
          make_case("uneven chunks", fixed_sizes, kRows, kRequests,
                    {{"uneven", 1}, {"prefix_high", 9}}, 3),
          make_case("padded rows", fixed_sizes, kRows, kRequests,
                    {{"padded_rows", 12}, {"prefix_high", 9}}, 5)};
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  cases.push_back(make_case("65537 rows", fixed_sizes, 65537, 700, {{"prefix_high", 9}}));
  Case far = make_case("rows beyond 2^31 elements", fixed_sizes, 5, 2, {{"prefix_high", 9}});
  far.strides = {{"rows_stride", (int64_t{1} << 29) + 64}};
  cases.push_back(far);
  return cases;
}

std::vector<Sizes> further_shapes() { return {{{"heads", 1}}, {{"heads", 5}}, {{"heads", 64}}}; }

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  if (arg.name == "multipliers") {
    for (int64_t n = 0; n <= kLookBacks; ++n) {
      const uint64_t value = multiplier(c, n);
      std::memcpy(&row[static_cast<size_t>(8 * n)], &value, sizeof(value));
    }
    return;
  }
  auto* values = reinterpret_cast<int32_t*>(row.data());
  const auto count = static_cast<int64_t>(row.size() / sizeof(int32_t));
  for (int64_t i = 0; i < count; ++i) {
    int64_t value = 0;
    if (arg.name == "primes") {
      value = prime(i);
    } else if (arg.name == "offsets") {
      value = offset(i);
    } else if (arg.name == "query_start_loc") {
      value = c.knobs.get("first_row", 0) + batch_of(c).first_row[static_cast<size_t>(i)];
    } else if (arg.name == "history") {
      const int64_t prefix = batch_of(c).prefix[static_cast<size_t>(outer[0])];
      value = id_at(c, outer[0], prefix - kLookBacks + i);
    } else {
      const Token token = token_at(batch_of(c), i);
      if (arg.name == "requests") {
        value = is_misplaced(c, i)   ? c.sizes["R"] - 1
                : token.request >= 0 ? token.request
                                     : not_below(c, kOther, i, c.sizes["R"]);
      } else {
        value = token.request >= 0 ? id_at(c, token.request, token.position) : kLargestInt32;
      }
    }
    values[i] = static_cast<int32_t>(value);
  }
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "engram_hash_oracle"};
  launch.constants = {constant("num_heads", s["heads"])};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = 32;
  return launch;
}

}  // namespace

const Kit engram_hash_kit{
    .op = &engram_hash,
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
