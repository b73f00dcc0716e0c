// Inputs, truth and oracle of window_slots.
//
// Knobs of a case: prefix_low, prefix_high (context before the step), prefix_0 (of request 0,
// given), padded_rows (at the end: is_valid 0, request and position of no use), replay (distance
// of replay_start before the first row, where the argument is given), bad_pages, bad_requests,
// bad_positions (one in so many does not exist; 0: none), worked (1: the example of ops.md B13.2).
// Table entries before every window of a request are no pages: they may have been freed.
#include <algorithm>
#include <vector>

#include "templates/kit_batch.h"

namespace kiln::templates {

extern const Op window_slots;
extern const Kit window_slots_kit;

namespace {

enum Stream : uint64_t { kPrefix, kPage, kBadPage, kBadRequest, kBadPosition, kWhich };
enum Form : int64_t { kCausal = 0, kDraft = 1 };

bool is_worked(const Case& c) { return c.knobs.get("worked", 0) != 0; }
bool is_draft(const Case& c) { return c.sizes["form"] == kDraft; }

int64_t real_rows(const Case& c) {
  return c.has("is_valid") ? c.sizes["T"] - c.knobs.get("padded_rows", 0) : c.sizes["T"];
}
bool is_padding(const Case& c, int64_t t) { return t >= real_rows(c); }

int64_t first_row(const Case& c, int64_t b) { return b * real_rows(c) / c.sizes["R"]; }

int64_t request_of(const Case& c, int64_t t) {
  if (is_padding(c, t)) return c.sizes["R"] + t;
  if (one_in(c, "bad_requests", kBadRequest, t)) return not_below(c, kWhich, t, c.sizes["R"]);
  if (c.sizes["R"] == 0) return 0;
  int64_t b = t * c.sizes["R"] / real_rows(c);
  while (first_row(c, b + 1) <= t) ++b;
  return b;
}

int64_t prefix_of(const Case& c, int64_t b) {
  if (b == 0 && c.knobs.contains("prefix_0")) return c.knobs["prefix_0"];
  return counter_range(c.seed, kPrefix, static_cast<uint64_t>(b), c.knobs.get("prefix_low", 0),
                       c.knobs.get("prefix_high", 0));
}

int64_t seq_len(const Case& c, int64_t b) {
  return prefix_of(c, b) + first_row(c, b + 1) - first_row(c, b);
}

int64_t position_of(const Case& c, int64_t t) {
  if (is_worked(c)) return t == 0 ? 2 : 130;
  if (one_in(c, "bad_positions", kBadPosition, t))
    return any_of(c, kWhich, t, {-1, kLeastInt32, kLargestInt32, 1 << 30});
  if (is_padding(c, t)) return 7;
  const int64_t b = request_of(c, t);
  return b >= 0 && b < c.sizes["R"] ? prefix_of(c, b) + t - first_row(c, b) : t;
}

int64_t replay_start(const Case& c, int64_t b) {
  return std::max<int64_t>(prefix_of(c, b) - c.knobs.get("replay", 0), 0);
}

struct Span {
  int64_t start = 0;
  int64_t count = 0;
};

Span span_of(const Case& c, int64_t t) {
  const int64_t b = request_of(c, t), window = c.sizes["window"];
  const bool exists = b >= 0 && b < c.sizes["R"];
  if (is_padding(c, t) || (is_draft(c) && !exists)) return {};
  int64_t last = 0, start = 0;
  if (is_draft(c)) {
    last = seq_len(c, b) - 1;
    start = std::max<int64_t>(prefix_of(c, b) - window, 0);
  } else {
    last = position_of(c, t);
    if (last < 0) return {};
    start = std::max<int64_t>(last - window + 1, 0);
    if (exists && c.has("replay_start")) start = std::max(start, replay_start(c, b));
  }
  return {start, std::clamp<int64_t>(last - start + 1, 0, c.sizes["W"])};
}

int64_t page_at(const Case& c, int64_t group, int64_t b, int64_t column) {
  if (is_worked(c)) {
    constexpr int64_t kExample[] = {5, 9, 2, 8, 11};
    return kExample[column % 5];
  }
  const int64_t window = c.sizes["window"];
  const int64_t first = std::max<int64_t>(prefix_of(c, b) - (is_draft(c) ? window : window - 1), 0);
  if (column < first / c.sizes["page_size"]) return kLargestInt32;
  const int64_t pages = c.sizes["num_pages"];
  const int64_t index = (group * c.sizes["R"] + b) * c.sizes["table_width"] + column;
  if (one_in(c, "bad_pages", kBadPage, index)) return not_below(c, kWhich, index, pages);
  return counter_range(c.seed, kPage, static_cast<uint64_t>(index), 0, pages - 1);
}

struct Paging {
  int64_t page_size = 32;
  int64_t num_pages = 3000;
};

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, int64_t requests,
               Paging paging, NamedInts knobs, uint64_t seed = 1) {
  Case c{.name = std::move(name), .knobs = std::move(knobs), .seed = seed};
  const int64_t window = fixed_sizes["window"];
  const int64_t block =
      fixed_sizes["form"] == kDraft ? rows / std::max<int64_t>(requests, 1) + 1 : 0;
  c.sizes = fixed_sizes.merged({{"T", rows},
                                {"R", requests},
                                {"G", 1},
                                {"W", (window + block + 127) / 128 * 128},
                                {"page_size", paging.page_size},
                                {"num_pages", paging.num_pages}});
  int64_t longest = 131;
  for (int64_t b = 0; b < requests; ++b) longest = std::max(longest, seq_len(c, b));
  c.sizes.set("table_width", (longest + paging.page_size - 1) / paging.page_size);
  if (!c.knobs.contains("replay")) c.absent.push_back("replay_start");
  return c;
}

// Decode rows or blocks of five drafts up to 256 rows, a prefill chunk of four requests above.
Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  const int64_t rows = bucket["T"];
  const bool draft = fixed_sizes["form"] == kDraft;
  const int64_t requests = draft ? (rows + 4) / 5 : rows <= 256 ? rows : 4;
  return make_case("measured", fixed_sizes, rows, requests, {32, 20000},
                   {{"prefix_low", 4096}, {"prefix_high", 4096}});
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  if (fixed_sizes["form"] == kCausal) {
    Case worked =
        make_case("worked example of B13.2", fixed_sizes, 2, 1, {32, 12}, {{"worked", 1}});
    worked.absent.push_back("is_valid");
    cases.push_back(worked);
    cases.push_back(make_case("bounded replay", fixed_sizes, 60, 4, {32, 3000},
                              {{"prefix_low", 90}, {"prefix_high", 400}, {"replay", 20}}, 2));
    cases.push_back(make_case("positions that do not exist", fixed_sizes, 40, 5, {32, 3000},
                              {{"prefix_low", 0}, {"prefix_high", 300}, {"bad_positions", 3}}, 3));
    cases.push_back(make_case("positions that do not exist, odd pages", fixed_sizes, 40, 5,
                              {7, 3000},
                              {{"prefix_low", 0}, {"prefix_high", 300}, {"bad_positions", 3}}, 3));
  } else {
    Case worked =
        make_case("draft example of B13.2", fixed_sizes, 4, 1, {1, 100}, {{"prefix_0", 10}});
    worked.absent.push_back("is_valid");
    cases.push_back(worked);
    Case narrow = make_case("blocks longer than a row", fixed_sizes, 30, 2, {32, 3000},
                            {{"prefix_low", 100}, {"prefix_high", 400}}, 2);
    narrow.sizes.set("W", fixed_sizes["window"]);
    cases.push_back(narrow);
  }
  cases.push_back(make_case("padded rows", fixed_sizes, 83, 9, {32, 3000},
                            {{"prefix_low", 0}, {"prefix_high", 600}, {"padded_rows", 6}}, 4));
  cases.push_back(make_case("all padding", fixed_sizes, 9, 2, {32, 3000},
                            {{"prefix_low", 0}, {"prefix_high", 600}, {"padded_rows", 9}}, 5));
  cases.push_back(make_case("requests without rows", fixed_sizes, 11, 40, {32, 3000},
                            {{"prefix_low", 0}, {"prefix_high", 200}}, 6));
  Case groups = make_case("three groups, odd strides", fixed_sizes, 14, 3, {48, 500},
                          {{"prefix_low", 50}, {"prefix_high", 900}, {"padded_rows", 2}}, 7);
  groups.sizes.set("G", 3);
  groups.sizes.set("W", groups.sizes["W"] + 5);
  const int64_t slots_row = groups.sizes["W"] + 2, table_row = groups.sizes["table_width"] + 3;
  groups.strides = {{"slots_stride1", slots_row},
                    {"slots_stride0", slots_row * 14 + 9},
                    {"block_table_stride1", table_row},
                    {"block_table_stride0", table_row * 3 + 11}};
  cases.push_back(groups);
  Case many_groups = make_case("forty groups", fixed_sizes, 6, 6, {32, 900},
                               {{"prefix_low", 100}, {"prefix_high", 300}}, 8);
  many_groups.sizes.set("G", 40);
  cases.push_back(many_groups);
  Case missing = make_case("what does not exist", fixed_sizes, 90, 30, {32, 3000},
                           {{"prefix_low", 0},
                            {"prefix_high", 500},
                            {"bad_pages", 4},
                            {"bad_requests", 5},
                            {"padded_rows", 3}},
                           9);
  missing.sizes.set("table_width", 11);
  cases.push_back(missing);
  cases.push_back(make_case("no request", fixed_sizes, 5, 0, {32, 900}, {}, 10));
  cases.push_back(make_case("the largest slots", fixed_sizes, 7, 3, {65536, 32767},
                            {{"prefix_low", 65500}, {"prefix_high", 65550}}, 11));
  cases.push_back(make_case("no row", fixed_sizes, 0, 2, {32, 900}, {}));
  cases.push_back(measured_case(fixed_sizes, bucket));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 60, kRequests = 12;
  const auto with = [&](const char* name, NamedInts knobs, uint64_t seed) {
    Case c = make_case(name, fixed_sizes, kRows, kRequests, {32, 900}, std::move(knobs), seed);
    c.sizes.set("table_width", 40);
    c.sizes.set("W", (fixed_sizes["window"] + kRows + 127) / 128 * 128);
    return c;
  };
  return {
      with("full", {{"prefix_low", 900}, {"prefix_high", 1100}}, 1),
      with("padded", {{"prefix_low", 0}, {"prefix_high", 700}, {"padded_rows", 31}}, 2),
      with("no context", {}, 3),
      with("all padding", {{"prefix_low", 0}, {"prefix_high", 700}, {"padded_rows", kRows}}, 4),
      with("full again", {{"prefix_low", 0}, {"prefix_high", 1100}, {"bad_pages", 7}}, 5),
  };
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  for (const int64_t rows : {65535, 65536, 65537}) {
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows, rows / 5, {32, 3000},
                              {{"prefix_low", 0}, {"prefix_high", 300}, {"padded_rows", 2}}));
  }
  for (const char* arg : {"slots", "block_table"}) {
    Case far = make_case(fmt::format("{} beyond 2^31 elements", arg), fixed_sizes, 9, 9, {32, 900},
                         {{"prefix_low", 500}, {"prefix_high", 2000}});
    far.sizes.set("G", 2);
    far.strides = {{fmt::format("{}_stride1", arg), int64_t{1} << 27},
                   {fmt::format("{}_stride0", arg), (int64_t{1} << 31) + 4}};
    cases.push_back(far);
  }
  return cases;
}

std::vector<Sizes> further_shapes() {
  return {{{"window", 8}, {"form", kDraft}},
          {{"window", 8}, {"form", kCausal}},
          {{"window", 1}, {"form", kCausal}},
          {{"window", 130}, {"form", kCausal}}};
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  if (arg.name == "is_valid") {
    fill_validity(row, [&](int64_t t) { return is_padding(c, t); });
    return;
  }
  constexpr int64_t kBase = 17;  // query_start_loc may be a slice
  auto* values = reinterpret_cast<int32_t*>(row.data());
  const int64_t count = static_cast<int64_t>(row.size() / sizeof(int32_t));
  for (int64_t i = 0; i < count; ++i) {
    int64_t value = 0;
    if (arg.name == "positions") value = position_of(c, i);
    if (arg.name == "requests") value = request_of(c, i);
    if (arg.name == "query_start_loc") value = kBase + (c.sizes["R"] > 0 ? first_row(c, i) : 0);
    if (arg.name == "seq_lens") value = seq_len(c, i);
    if (arg.name == "replay_start") value = replay_start(c, i);
    if (arg.name == "block_table") value = page_at(c, outer[0], outer[1], i);
    values[i] = static_cast<int32_t>(value);
  }
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  if (arg.name == "lens") return static_cast<double>(span_of(c, index[0]).count);
  const int64_t group = index[0], t = index[1], i = index[2];
  const Span span = span_of(c, t);
  const int64_t b = request_of(c, t), page_size = c.sizes["page_size"];
  const int64_t position = span.start + i;
  if (i >= span.count || b < 0 || b >= c.sizes["R"]) return -1.0;
  if (position / page_size >= c.sizes["table_width"]) return -1.0;
  const int64_t page = page_at(c, group, b, position / page_size);
  if (page < 0 || page >= c.sizes["num_pages"]) return -1.0;
  return static_cast<double>(page * page_size + position % page_size);
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "window_slots_oracle"};
  launch.constants = {{"window", "int", std::to_string(s["window"])},
                      {"is_draft", "bool", s["form"] == kDraft ? "true" : "false"}};
  launch.grid_x = {.terms = {{"T"}, {"G"}}};
  launch.threads = 32;
  return launch;
}

}  // namespace

const Kit window_slots_kit{
    .op = &window_slots,
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
