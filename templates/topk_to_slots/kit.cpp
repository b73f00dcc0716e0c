// Inputs, truth and oracle of topk_to_slots.
//
// Knobs of a case: visible_low, visible_high (entries that a row may choose from), padded_rows (at
// the end: is_valid 0, requests and entries of an earlier call), holes, far, bad_pages,
// bad_requests (one in so many entries is negative or lies beyond the table, table entries are no
// page, requests do not exist; 0: none), worked (1: the example of ops.md B13.1).
#include <algorithm>
#include <vector>

#include "templates/kit_batch.h"

namespace kiln::templates {

extern const Op topk_to_slots;
extern const Kit topk_to_slots_kit;

namespace {

enum Stream : uint64_t { kVisible, kHole, kFar, kPage, kBadPage, kBadRequest, kWhich };

bool is_padding(const Case& c, int64_t t) {
  return c.has("is_valid") && t >= c.sizes["T"] - c.knobs.get("padded_rows", 0);
}

int64_t request_of(const Case& c, int64_t t) {
  const int64_t rows = c.sizes["T"], requests = c.sizes["R"];
  if (is_padding(c, t)) return requests + t;
  if (one_in(c, "bad_requests", kBadRequest, t)) return not_below(c, kWhich, t, requests);
  return t * requests / rows;
}

int64_t entry_at(const Case& c, int64_t t, int64_t column) {
  if (c.knobs.get("worked", 0) != 0) {
    constexpr int64_t kExample[] = {0, 63, 64, 130};
    return column < 4 ? kExample[column] : -1;
  }
  const int64_t top_k = c.sizes["K"];
  const int64_t index = t * top_k + column;
  const int64_t visible = counter_range(c.seed, kVisible, static_cast<uint64_t>(t),
                                        c.knobs["visible_low"], c.knobs["visible_high"]);
  const int64_t chosen = std::min(visible, top_k);
  if (column >= chosen) return -1;
  if (one_in(c, "holes", kHole, index)) return any_of(c, kWhich, index, {-1, -2, kLeastInt32});
  if (one_in(c, "far", kFar, index))
    return any_of(c, kWhich, index, {c.sizes["table_width"] * c.sizes["page_size"], kLargestInt32});
  return column * visible / chosen;
}

int64_t page_at(const Case& c, int64_t b, int64_t column) {
  const int64_t pages = c.sizes["num_pages"];
  if (c.knobs.get("worked", 0) != 0) {
    constexpr int64_t kExample[] = {7, 3, 12};
    return kExample[column % 3];
  }
  const int64_t index = b * c.sizes["table_width"] + column;
  if (one_in(c, "bad_pages", kBadPage, index)) return not_below(c, kWhich, index, pages);
  return counter_range(c.seed, kPage, static_cast<uint64_t>(index), 0, pages - 1);
}

struct Paging {
  int64_t page_size = 64;
  int64_t num_pages = 5000;
};

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, int64_t requests,
               Paging paging, NamedInts knobs, uint64_t seed = 1) {
  const int64_t width =
      (knobs.get("visible_high", 0) + paging.page_size - 1) / paging.page_size + 1;
  Case c{.name = std::move(name), .knobs = std::move(knobs), .seed = seed};
  c.sizes = fixed_sizes.merged({{"T", rows},
                                {"R", requests},
                                {"table_width", width},
                                {"page_size", paging.page_size},
                                {"num_pages", paging.num_pages}});
  return c;
}

// Rows of a decode step up to 256, of a prefill chunk of four requests above.
Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  const int64_t rows = bucket["T"];
  return make_case("measured", fixed_sizes, rows, rows <= 256 ? rows : 4, {64, 20000},
                   {{"visible_low", 32768}, {"visible_high", 32768}});
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  Case worked = make_case("worked example of B13.1", fixed_sizes, 1, 1, {64, 13}, {{"worked", 1}});
  worked.sizes.set("table_width", 3);
  worked.absent = {"is_valid"};
  cases.push_back(worked);
  cases.push_back(make_case("padded rows", fixed_sizes, 37, 5, {64, 5000},
                            {{"visible_low", 0}, {"visible_high", 1500}, {"padded_rows", 6}}, 2));
  cases.push_back(make_case("all padding", fixed_sizes, 9, 2, {64, 5000},
                            {{"visible_low", 0}, {"visible_high", 600}, {"padded_rows", 9}}, 3));
  cases.push_back(make_case("no page size of two", fixed_sizes, 19, 4, {48, 333},
                            {{"visible_low", 100}, {"visible_high", 3000}}, 4));
  cases.push_back(make_case("one entry a page", fixed_sizes, 6, 2, {1, 900},
                            {{"visible_low", 1}, {"visible_high", 700}}, 5));
  cases.push_back(make_case("what does not exist", fixed_sizes, 64, 7, {64, 900},
                            {{"visible_low", 0},
                             {"visible_high", 900},
                             {"holes", 9},
                             {"far", 11},
                             {"bad_pages", 4},
                             {"bad_requests", 5},
                             {"padded_rows", 3}},
                            6));
  cases.push_back(make_case("no request", fixed_sizes, 5, 0, {64, 900},
                            {{"visible_low", 10}, {"visible_high", 900}}, 7));
  cases.push_back(make_case("the largest slots", fixed_sizes, 7, 3, {65536, 32767},
                            {{"visible_low", 60000}, {"visible_high", 200000}}, 8));
  Case odd = make_case("odd strides", fixed_sizes, 21, 3, {32, 700},
                       {{"visible_low", 300}, {"visible_high", 900}, {"padded_rows", 2}}, 9);
  odd.strides = {{"topk_stride", fixed_sizes["K"] + 5},
                 {"slots_stride", fixed_sizes["K"] + 3},
                 {"block_table_stride", odd.sizes["table_width"] + 1}};
  cases.push_back(odd);
  cases.push_back(
      make_case("no row", fixed_sizes, 0, 2, {64, 900}, {{"visible_low", 1}, {"visible_high", 9}}));
  cases.push_back(measured_case(fixed_sizes, bucket));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 70, kRequests = 9;
  const auto with = [&](const char* name, NamedInts knobs, uint64_t seed) {
    Case c = make_case(name, fixed_sizes, kRows, kRequests, {64, 900}, std::move(knobs), seed);
    c.sizes.set("table_width", 33);
    return c;
  };
  return {
      with("full", {{"visible_low", 2000}, {"visible_high", 2048}}, 1),
      with("padded", {{"visible_low", 0}, {"visible_high", 700}, {"padded_rows", 31}}, 2),
      with("nothing visible", {{"visible_low", 0}, {"visible_high", 0}}, 3),
      with("all padding", {{"visible_low", 0}, {"visible_high", 700}, {"padded_rows", kRows}}, 4),
      with("full again", {{"visible_low", 512}, {"visible_high", 2048}, {"bad_pages", 7}}, 5),
  };
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  for (const int64_t rows : {65535, 65536, 65537}) {
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows, 3, {64, 900},
                              {{"visible_low", 0}, {"visible_high", 3000}, {"padded_rows", 2}}));
  }
  constexpr int64_t kFar = int64_t{1} << 27;
  for (const bool table : {false, true}) {
    Case far =
        make_case(table ? "tables beyond 2^31 elements" : "rows beyond 2^31 elements", fixed_sizes,
                  18, 18, {64, 900}, {{"visible_low", 500}, {"visible_high", 2000}});
    if (table) {
      far.strides = {{"block_table_stride", kFar}};
    } else {
      far.strides = {{"topk_stride", kFar}, {"slots_stride", kFar}};
    }
    cases.push_back(far);
  }
  return cases;
}

std::vector<Sizes> further_shapes() {
  return {{{"K", 1}}, {{"K", 6}}, {{"K", 130}}, {{"K", 2176}}};
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  if (arg.name == "is_valid") {
    fill_validity(row, [&](int64_t t) { return is_padding(c, t); });
    return;
  }
  auto* values = reinterpret_cast<int32_t*>(row.data());
  const int64_t count = static_cast<int64_t>(row.size() / sizeof(int32_t));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t value = arg.name == "topk"       ? entry_at(c, outer[0], i)
                          : arg.name == "requests" ? request_of(c, i)
                                                   : page_at(c, outer[0], i);
    values[i] = static_cast<int32_t>(value);
  }
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  const int64_t t = index[0];
  if (arg.name == "lens") {
    int64_t count = 0;
    for (int64_t i = 0; i < c.sizes["K"] && !is_padding(c, t); ++i) count += entry_at(c, t, i) >= 0;
    return static_cast<double>(count);
  }
  const int64_t entry = entry_at(c, t, index[1]);
  const int64_t b = request_of(c, t);
  if (is_padding(c, t) || entry < 0 || b < 0 || b >= c.sizes["R"]) return -1.0;
  const int64_t page_size = c.sizes["page_size"];
  if (entry / page_size >= c.sizes["table_width"]) return -1.0;
  const int64_t page = page_at(c, b, entry / page_size);
  if (page < 0 || page >= c.sizes["num_pages"]) return -1.0;
  return static_cast<double>(page * page_size + entry % page_size);
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "topk_to_slots_oracle"};
  launch.constants = {{"top_k", "int", std::to_string(s["K"])}};
  launch.grid_x = {.terms = {{"T"}}};
  launch.threads = 32;
  return launch;
}

}  // namespace

const Kit topk_to_slots_kit{
    .op = &topk_to_slots,
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
