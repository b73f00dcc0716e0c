// Inputs, truth and oracle of combine_topk_swa.
//
// Knobs of a case: those of kit_batch.h (zero_lengths: gather_lens are 0 too), replay (window rows
// taken from the front of what is gathered), invalid_topk (one in so many top-k values is out of
// range; 0: none).
#include <algorithm>
#include <vector>

#include "templates/kit_batch.h"

namespace kiln::templates {

extern const Op combine_topk_swa;
extern const Kit combine_topk_swa_kit;

namespace {

enum Stream : uint64_t { kInvalid = kBatchStreams, kInvalidValue };

struct Gathered : Batch {
  std::vector<int64_t> gather_len;
};

Gathered make_gathered(int64_t tokens, int64_t requests, const NamedInts& knobs, uint64_t seed) {
  Gathered batch{cut_batch(tokens, requests, knobs, seed), {}};
  const bool zero = knobs.get("zero_lengths", 0) != 0;
  for (int64_t b = 0; b < requests; ++b) {
    const int64_t query = batch.query(b), prefix = batch.prefix[static_cast<size_t>(b)];
    const int64_t gathered =
        std::max<int64_t>(query + std::min<int64_t>(prefix, 127) - knobs.get("replay", 0),
                          std::min<int64_t>(query, 1));
    batch.gather_len.push_back(zero ? 0 : gathered);
  }
  return batch;
}
const Gathered& batch_of(const Case& c) {
  return made_once<Gathered>(c, [](const Case& of) {
    return make_gathered(of.sizes["T"], of.sizes["R"], of.knobs, of.seed);
  });
}

int64_t visible_entries(const Case& c, const Token& token) {
  const int64_t ratio = c.sizes["ratio"];
  return ratio == 0 || token.request < 0 || token.position < 0 ? 0 : (token.position + 1) / ratio;
}

// Ascending, the valid ones first; the tail is a value that must not be used.
int64_t topk_at(const Case& c, const Token& token, int64_t t, int64_t column) {
  constexpr int64_t kUnusedTail = 0;
  const int64_t visible = visible_entries(c, token);
  const int64_t valid = std::min(visible, c.sizes["K"]);
  if (column >= valid) return kUnusedTail;
  const int64_t index = t * c.sizes["K"] + column;
  if (one_in(c, "invalid_topk", kInvalid, index))
    return not_below(c, kInvalidValue, index, c.sizes["N"]);
  return column * visible / valid;
}

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t tokens, int64_t requests,
               NamedInts knobs, uint64_t seed = 1) {
  const Gathered batch = make_gathered(tokens, requests, knobs, seed);
  const int64_t ratio = fixed_sizes["ratio"];
  int64_t compressed = 0, gathered = 0;
  for (size_t b = 0; b < batch.seq_len.size(); ++b) {
    if (ratio != 0) compressed = std::max(compressed, batch.seq_len[b] / ratio);
    gathered = std::max(gathered, batch.gather_len[b]);
  }
  const int64_t width = (fixed_sizes["K"] + 128 + 127) / 128 * 128;
  Case c{.name = std::move(name), .knobs = std::move(knobs), .seed = seed};
  c.sizes = fixed_sizes.merged({{"T", tokens},
                                {"R", requests},
                                {"W", width},
                                {"M", compressed + gathered},
                                {"N", compressed}});
  return c;
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  const int64_t tokens = bucket["T"];
  return make_case("measured", fixed_sizes, tokens, std::min<int64_t>(tokens, 4),
                   {{"prefix_low", 4096}, {"prefix_high", 4096}});
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  cases.push_back(make_case("worked example of B15.2", fixed_sizes, 8, 2,
                            {{"prefix_0", 200}, {"query_0", 3}, {"prefix_1", 0}, {"query_1", 5}}));
  cases.push_back(make_case("several requests, some empty", fixed_sizes, 97, 9,
                            {{"uneven", 1},
                             {"prefix_low", 0},
                             {"prefix_high", 900},
                             {"padded_rows", 3},
                             {"first_row", 41}}));
  cases.push_back(make_case("short contexts", fixed_sizes, 33, 31,
                            {{"uneven", 1}, {"prefix_low", 0}, {"prefix_high", 3}}, 2));
  cases.push_back(make_case("more requests than a warp has lanes", fixed_sizes, 150, 70,
                            {{"uneven", 1},
                             {"prefix_low", 0},
                             {"prefix_high", 1300},
                             {"padded_rows", 5},
                             {"first_row", 7}},
                            3));
  for (const int64_t requests :
       {32, 33, 1100}) {  // where the search of a row's request takes another round
    cases.push_back(
        make_case(fmt::format("{} requests", requests), fixed_sizes, requests + 40, requests,
                  {{"uneven", 1}, {"prefix_low", 0}, {"prefix_high", 700}, {"padded_rows", 2}}, 9));
  }
  cases.push_back(make_case("invalid top-k values", fixed_sizes, 40, 3,
                            {{"prefix_low", 1100}, {"prefix_high", 1200}, {"invalid_topk", 3}}, 4));
  cases.push_back(make_case("bounded replay", fixed_sizes, 20, 2,
                            {{"prefix_low", 300}, {"prefix_high", 400}, {"replay", 60}}, 5));
  cases.push_back(make_case("all lengths zero", fixed_sizes, 12, 2, {{"zero_lengths", 1}}, 6));
  cases.push_back(make_case("no request", fixed_sizes, 5, 0, {}, 7));
  Case wide = make_case("wide, odd strides", fixed_sizes, 21, 2,
                        {{"prefix_low", 600}, {"prefix_high", 2000}}, 8);
  wide.sizes.set("W", wide.sizes["W"] + 37);
  wide.strides = {{"topk_stride", wide.sizes["K"] + 5}, {"idx_stride", wide.sizes["W"] + 3}};
  cases.push_back(wide);
  cases.push_back(measured_case(fixed_sizes, bucket));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kTokens = 90, kRequests = 12;
  std::vector<Case> cases{
      make_case("full", fixed_sizes, kTokens, kRequests,
                {{"uneven", 1}, {"prefix_low", 900}, {"prefix_high", 1500}}, 1),
      make_case("padded", fixed_sizes, kTokens, kRequests,
                {{"uneven", 1}, {"prefix_low", 0}, {"prefix_high", 700}, {"padded_rows", 31}}, 2),
      make_case("all lengths zero", fixed_sizes, kTokens, kRequests, {{"zero_lengths", 1}}, 3),
      make_case("all padding", fixed_sizes, kTokens, kRequests, {{"padded_rows", kTokens}}, 4),
      make_case("full again", fixed_sizes, kTokens, kRequests,
                {{"prefix_low", 0}, {"prefix_high", 1500}, {"first_row", 19}}, 5),
  };
  // The graph holds one N and M; the host takes the largest that any replay may need.
  int64_t compressed = 0, gathered = 0;
  for (const Case& c : cases) {
    compressed = std::max(compressed, c.sizes["N"]);
    gathered = std::max(gathered, c.sizes["M"] - c.sizes["N"]);
  }
  for (Case& c : cases) c.sizes = c.sizes.merged({{"N", compressed}, {"M", compressed + gathered}});
  return cases;
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  for (const int64_t tokens : {65535, 65536, 65537}) {
    cases.push_back(make_case(fmt::format("{} tokens", tokens), fixed_sizes, tokens, 3,
                              {{"prefix_low", 100}, {"prefix_high", 3000}}));
  }
  Case far = make_case("rows beyond 2^31 elements", fixed_sizes, 18, 2,
                       {{"prefix_low", 500}, {"prefix_high", 2000}});
  far.strides = {{"topk_stride", int64_t{1} << 27}, {"idx_stride", int64_t{1} << 27}};
  cases.push_back(far);
  return cases;
}

std::vector<Sizes> further_shapes() {
  return {{{"ratio", 1}, {"K", 3}},  {{"ratio", 1}, {"K", 6}},    {{"ratio", 2}, {"K", 510}},
          {{"ratio", 4}, {"K", 64}}, {{"ratio", 2}, {"K", 2176}}, {{"ratio", 128}, {"K", 8192}}};
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  const Gathered& batch = batch_of(c);
  auto* values = reinterpret_cast<int32_t*>(row.data());
  const int64_t count = static_cast<int64_t>(row.size() / sizeof(int32_t));
  if (arg.name == "topk") {
    const Token token = token_at(batch, outer[0]);
    for (int64_t i = 0; i < count; ++i)
      values[i] = static_cast<int32_t>(topk_at(c, token, outer[0], i));
    return;
  }
  const std::vector<int64_t>& source = arg.name == "query_start_loc" ? batch.first_row
                                       : arg.name == "seq_lens"      ? batch.seq_len
                                                                     : batch.gather_len;
  const int64_t base = arg.name == "query_start_loc" ? c.knobs.get("first_row", 0) : 0;
  for (int64_t i = 0; i < count; ++i)
    values[i] = static_cast<int32_t>(base + source[static_cast<size_t>(i)]);
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  const Gathered& batch = batch_of(c);
  const int64_t t = index[0];
  const Token token = token_at(batch, t);
  int64_t lc = 0, lw = 0, g0 = 0, ws = 0;
  if (token.request >= 0) {
    const size_t b = static_cast<size_t>(token.request);
    lc = std::min(visible_entries(c, token), c.sizes["K"]);
    g0 = batch.seq_len[b] - batch.gather_len[b];
    ws = std::max({token.position - 127, int64_t{0}, g0});
    lw = std::max<int64_t>(token.position - ws + 1, 0);
  }
  if (arg.name == "len") return static_cast<double>(lc + lw);

  const int64_t column = index[1];
  const int64_t request_row = token.request * c.sizes["M"];
  if (column < lc) {
    const int64_t entry = topk_at(c, token, t, column);
    return entry >= 0 && entry < c.sizes["N"] ? static_cast<double>(request_row + entry) : -1.0;
  }
  if (column < lc + lw)
    return static_cast<double>(request_row + c.sizes["N"] + (ws - g0) + (column - lc));
  return -1.0;
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "combine_topk_swa_oracle"};
  launch.constants = {{"ratio", "int", std::to_string(s["ratio"])},
                      {"top_k", "int", std::to_string(s["K"])}};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = 32;
  return launch;
}

}  // namespace

const Kit combine_topk_swa_kit{
    .op = &combine_topk_swa,
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
