// Inputs, truth and oracle of ragged_keys.
//
// Knobs of a case: those of kit_batch.h, bad_pages (one in so many table entries is no page; 0:
// none).
#include <algorithm>
#include <vector>

#include "templates/kit_batch.h"

namespace kiln::templates {

extern const Op ragged_keys;
extern const Kit ragged_keys_kit;

namespace {

enum Stream : uint64_t { kPage = kBatchStreams, kBadPage, kBadPageValue };

struct Keys : Batch {
  std::vector<int64_t> first_key;  // R + 1, whatever the capacity
};

Keys make_keys(const Case& c) {
  Keys keys{cut_batch(c.sizes["T"], c.sizes["R"], c.knobs, c.seed), {0}};
  for (const int64_t length : keys.seq_len)
    keys.first_key.push_back(keys.first_key.back() + length / c.sizes["ratio"]);
  return keys;
}
const Keys& keys_of(const Case& c) { return made_once<Keys>(c, make_keys); }

int64_t page_at(const Case& c, int64_t b, int64_t column) {
  const int64_t pages = c.sizes["num_pages"];
  const int64_t index = b * c.sizes["table_width"] + column;
  if (one_in(c, "bad_pages", kBadPage, index)) return not_below(c, kBadPageValue, index, pages);
  return counter_range(c.seed, kPage, static_cast<uint64_t>(index), 0, pages - 1);
}

struct Paging {
  int64_t page_size = 64;
  int64_t num_pages = 3000;
};

Case make_case(std::string name, const Sizes& fixed, int64_t rows, int64_t requests, Paging paging,
               NamedInts knobs, uint64_t seed = 1) {
  Case c{.name = std::move(name), .knobs = std::move(knobs), .seed = seed};
  c.sizes = fixed.merged({{"T", rows},
                          {"R", requests},
                          {"page_size", paging.page_size},
                          {"num_pages", paging.num_pages}});
  const Keys batch = make_keys(c);
  int64_t longest = 1;
  for (const int64_t length : batch.seq_len) longest = std::max(longest, length / fixed["ratio"]);
  c.sizes.set("M", longest);
  c.sizes.set("N", batch.first_key.back());
  c.sizes.set("table_width", (longest + paging.page_size - 1) / paging.page_size);
  return c;
}

// Decode rows where requests are many, a chunk of 1024 rows each where they are few.
Case measured_case(const Sizes& fixed, const Sizes& bucket) {
  const int64_t requests = bucket["R"], tokens = bucket["M"] * fixed["ratio"];
  const int64_t query = requests > 4 ? 1 : std::min<int64_t>(tokens, 1024);
  Case c = make_case("measured", fixed, requests * query, requests, {64, 20000},
                     {{"prefix_low", tokens - query}, {"prefix_high", tokens - query}});
  c.sizes.set("M", bucket["M"]);
  return c;
}

std::vector<Case> verify_cases(const Sizes& fixed, const Sizes& bucket) {
  std::vector<Case> cases;
  cases.push_back(make_case("worked example of B15", fixed, 8, 2, {64, 3000},
                            {{"prefix_0", 200}, {"query_0", 3}, {"prefix_1", 0}, {"query_1", 5}}));
  cases.push_back(make_case("several requests, some empty", fixed, 97, 9, {64, 3000},
                            {{"uneven", 1},
                             {"prefix_low", 0},
                             {"prefix_high", 900},
                             {"padded_rows", 3},
                             {"first_row", 41}},
                            2));
  cases.push_back(make_case("many requests", fixed, 1500, 1100, {16, 3000},
                            {{"uneven", 1}, {"prefix_high", 40}, {"padded_rows", 5}}, 3));
  cases.push_back(make_case("pages of no power of two", fixed, 300, 3, {48, 333},
                            {{"prefix_low", 2000}, {"prefix_high", 9000}}, 4));
  Case missing = make_case("pages that do not exist", fixed, 40, 5, {64, 900},
                           {{"prefix_low", 0}, {"prefix_high", 2000}, {"bad_pages", 3}}, 5);
  missing.sizes.set("table_width", (missing.sizes["table_width"] + 1) / 2);
  cases.push_back(missing);
  Case small = make_case("more keys than there is room for", fixed, 30, 6, {64, 900},
                         {{"prefix_low", 100}, {"prefix_high", 400}}, 6);
  small.sizes.set("N", small.sizes["N"] / 2);
  cases.push_back(small);
  Case hint = make_case("requests longer than max_keys", fixed, 20, 2, {64, 900},
                        {{"prefix_low", 3000}, {"prefix_high", 9000}}, 7);
  hint.sizes.set("M", 1);
  cases.push_back(hint);
  Case without = make_case("no indices", fixed, 20, 4, {64, 900},
                           {{"prefix_low", 30}, {"prefix_high", 400}, {"padded_rows", 4}}, 8);
  without.absent = {"indices"};
  cases.push_back(without);
  Case odd = make_case("odd strides, room to spare", fixed, 15, 3, {64, 900},
                       {{"prefix_low", 30}, {"prefix_high", 400}}, 9);
  odd.sizes.set("N", odd.sizes["N"] + 77);
  odd.strides = {{"block_table_stride", odd.sizes["table_width"] + 3}};
  cases.push_back(odd);
  cases.push_back(
      make_case("all lengths zero", fixed, 12, 4, {64, 900}, {{"zero_lengths", 1}}, 10));
  cases.push_back(make_case("all padding", fixed, 700, 3, {64, 900}, {{"padded_rows", 700}}, 11));
  cases.push_back(make_case("no request", fixed, 5, 0, {64, 900}, {{"padded_rows", 5}}, 12));
  cases.push_back(make_case("no row", fixed, 0, 2, {64, 900}, {{"prefix_high", 90}}, 13));
  cases.push_back(measured_case(fixed, bucket));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed) {
  std::vector<Case> cases{
      make_case("full", fixed, 90, 12, {64, 900}, {{"prefix_low", 900}, {"prefix_high", 1500}}, 1),
      make_case("padded", fixed, 90, 12, {64, 900},
                {{"uneven", 1}, {"prefix_high", 700}, {"padded_rows", 31}}, 2),
      make_case("all lengths zero", fixed, 90, 12, {64, 900}, {{"zero_lengths", 1}}, 3),
      make_case("all padding", fixed, 90, 12, {64, 900}, {{"padded_rows", 90}}, 4),
      make_case("full again", fixed, 90, 12, {64, 900},
                {{"uneven", 1}, {"prefix_high", 1500}, {"first_row", 19}}, 5),
  };
  for (const char* size : {"M", "N", "table_width"}) {
    int64_t largest = 0;
    for (const Case& c : cases) largest = std::max(largest, c.sizes[size]);
    for (Case& c : cases) c.sizes.set(size, largest);
  }
  return cases;
}

std::vector<Case> large_cases(const Sizes& fixed) {
  std::vector<Case> cases;
  for (const int64_t rows : {65535, 65536, 65537}) {
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed, rows, 3, {64, 3000},
                              {{"prefix_low", 100}, {"prefix_high", 3000}, {"padded_rows", 2}}));
  }
  cases.push_back(make_case("70000 requests", fixed, 70000, 70000, {64, 3000},
                            {{"prefix_low", 0}, {"prefix_high", 60}}));
  Case far = make_case("tables beyond 2^31 elements", fixed, 36, 18, {64, 900},
                       {{"prefix_low", 500}, {"prefix_high", 2000}});
  far.strides = {{"block_table_stride", int64_t{1} << 27}};
  cases.push_back(far);
  return cases;
}

std::vector<Sizes> further_shapes() { return {{{"ratio", 3}}, {{"ratio", 128}}}; }

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  const Keys& batch = keys_of(c);
  auto* values = reinterpret_cast<int32_t*>(row.data());
  const int64_t count = static_cast<int64_t>(row.size() / sizeof(int32_t));
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t value = arg.name == "query_start_loc"
                              ? c.knobs.get("first_row", 0) + batch.first_row[at]
                          : arg.name == "seq_lens" ? batch.seq_len[at]
                                                   : page_at(c, outer[0], i);
    values[i] = static_cast<int32_t>(value);
  }
}

double of_row(const Case& c, const Keys& batch, const std::string& name, int64_t t) {
  const bool is_index = name == "requests" || name == "positions";
  if (t >= batch.first_row.back()) return is_index ? -1 : 0;
  const Token token = token_at(batch, t);
  if (name == "requests") return static_cast<double>(token.request);
  if (name == "positions") return static_cast<double>(token.position);
  const int64_t visible =
      name == "key_end" ? std::max<int64_t>(token.position + 1, 0) / c.sizes["ratio"] : 0;
  return static_cast<double>(
      std::min(batch.first_key[static_cast<size_t>(token.request)] + visible, c.sizes["N"]));
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  const Keys& batch = keys_of(c);
  const int64_t i = index[0];
  const auto at = static_cast<size_t>(i);
  if (arg.dims.front() == "T") return of_row(c, batch, arg.name, i);
  if (arg.name == "lens") return static_cast<double>(batch.seq_len[at] / c.sizes["ratio"]);
  if (arg.name == "gather_lens") {
    const int64_t query = batch.query(i);
    const int64_t prefix = batch.seq_len[at] - query;
    return static_cast<double>(std::max<int64_t>(query + std::min<int64_t>(prefix, 127), 0));
  }
  if (arg.name == "indptr") return static_cast<double>(std::min(batch.first_key[at], c.sizes["N"]));
  if (i >= batch.first_key.back()) return std::nullopt;
  const int64_t b = last_at_most(batch.first_key, i), page_size = c.sizes["page_size"];
  const int64_t key = i - batch.first_key[static_cast<size_t>(b)];
  if (key / page_size >= c.sizes["table_width"]) return -1.0;
  const int64_t page = page_at(c, b, key / page_size);
  if (page < 0 || page >= c.sizes["num_pages"]) return -1.0;
  return static_cast<double>(page * page_size + key % page_size);
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "ragged_keys_oracle"};
  launch.constants = {constant("ratio", s["ratio"])};
  launch.grid_x = {.offset = 1, .terms = {{"R"}}};
  launch.threads = 64;
  return launch;
}

}  // namespace

const Kit ragged_keys_kit{
    .op = &ragged_keys,
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
