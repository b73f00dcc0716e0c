// Inputs, truth and oracle of engram_fetch.
//
// Knob of a case: draw (see Draw).
#include <algorithm>
#include <vector>

#include "templates/kit.h"
#include "templates/kit_batch.h"
#include "templates/kit_bf16.h"

namespace kiln::templates {

extern const Op engram_fetch;
extern const Kit engram_fetch_kit;

namespace {

enum Stream : uint64_t { kRow, kOther, kCode, kScale };

constexpr int64_t kGroup = 32;

enum class Draw : int64_t {
  any = 0,       // of few rows, so that many pairs name the same; one in eight names none
  once = 1,      // no row twice, in no order
  repeated = 2,  // likewise, but every fourth token has the rows of the third before it
  one = 3,       // the last row, always
  none = 4,      // none of the table's
  meeting = 5,   // twice each, rows whose claims all begin at the last place (kernel.cu)
};

Draw draw_of(const Case& c) { return static_cast<Draw>(c.knobs.get("draw", 0)); }
bool is_bf16(const Sizes& s) { return s["x_format"] == 0; }
bool is_on_host(const Sizes& s) { return s["source"] == 1; }

std::vector<int64_t> meeting_rows(const Case& c) {
  const auto claims = static_cast<uint64_t>(2 * c.sizes["T"] * c.sizes["H"]);
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < c.sizes["R"]; ++row) {
    const uint32_t scattered = static_cast<uint32_t>(row) * 0x9e3779b1u;
    if (scattered * claims >> 32 == claims - 1) rows.push_back(row);
  }
  return rows;
}

// In the table; below 0: the pair names none.
int64_t row_of(const Case& c, int64_t t, int64_t head) {
  const int64_t heads = c.sizes["H"], rows = c.sizes["R"];
  const uint64_t draw = counter_bits(c.seed, kRow, static_cast<uint64_t>(t * heads + head));
  switch (draw_of(c)) {
    case Draw::any:
      return draw % 8 == 0 || rows == 0
                 ? -1
                 : static_cast<int64_t>((draw >> 8) % static_cast<uint64_t>(rows));
    case Draw::once:
    case Draw::repeated: {
      // rows is a power of two, the factor odd.
      constexpr uint64_t kFactor = 0x85ebca6b;
      const bool repeats = draw_of(c) == Draw::repeated;
      const int64_t token = repeats && t % 4 == 3 ? t - 3 : t;
      const int64_t number = (repeats ? token - token / 4 : token) * heads + head;
      return static_cast<int64_t>(static_cast<uint64_t>(number) * kFactor %
                                  static_cast<uint64_t>(rows));
    }
    case Draw::one:
      return rows - 1;
    case Draw::none:
      return -1;
    case Draw::meeting: {
      const std::vector<int64_t>& meeting = made_once(c, meeting_rows);
      return meeting[static_cast<size_t>((t * heads + head) / 2) % meeting.size()];
    }
  }
  fail(Status::internal, "engram_fetch: unknown draw {}", c.knobs.get("draw", 0));
}

uint8_t code_of(const Case& c, int64_t row, int64_t column) {
  const int64_t index = row * c.sizes["K"] + column;
  return static_cast<uint8_t>(counter_bits(c.seed, kCode, static_cast<uint64_t>(index / 8)) >>
                              (8 * (index % 8)));
}

// Mostly those of a table, some at both ends, and one in 32 that is no number.
uint8_t scale_of(const Case& c, int64_t row, int64_t group) {
  const auto index = static_cast<uint64_t>(row * (c.sizes["K"] / kGroup) + group);
  const uint64_t draw = counter_bits(c.seed, kScale, index);
  if (draw % 4 != 0) return static_cast<uint8_t>(110 + draw / 4 % 16);
  constexpr uint8_t kEnds[] = {0, 1, 2, 3, 246, 247, 254, 255};
  return kEnds[draw / 4 % std::size(kEnds)];
}

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  const bool is_scale = arg.name == "x_scales";
  const int64_t width = is_scale ? c.sizes["K"] / kGroup : c.sizes["K"];
  const int64_t row = row_of(c, index[0], index[1] / width), place = index[1] % width;
  if (row < 0) return 0.0;
  if (is_scale) return scale_of(c, row, place);
  const uint8_t code = code_of(c, row, place);
  if (!is_bf16(c.sizes)) return code;
  return dequantised(e4m3_double(code) * ue8m0_double(scale_of(c, row, place / kGroup)));
}

// --- cases

Case make_case(std::string name, const Sizes& fixed_sizes, int64_t rows, int64_t table_rows,
               Draw draw, uint64_t seed = 1, int64_t first_row = 0) {
  return Case{
      .name = std::move(name),
      .sizes = fixed_sizes.merged({{"T", rows}, {"R", table_rows}, {"first_row", first_row}}),
      .strides = {},
      .knobs = {{"draw", static_cast<int64_t>(draw)}},
      .absent = {},
      .seed = seed};
}

// A table of a power of two rows, some times as many as are named: neighbours, whose scales share
// what memory delivers at once, are seldom named together, and never in a table of the model.
Case case_of_distinct_rows(std::string name, const Sizes& fixed_sizes, int64_t rows, Draw draw) {
  constexpr int64_t kTimes = 4;
  int64_t table_rows = 1;
  while (table_rows < kTimes * rows * fixed_sizes["H"]) table_rows *= 2;
  return make_case(std::move(name), fixed_sizes, rows, table_rows, draw);
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return case_of_distinct_rows("measured", fixed_sizes, bucket["T"],
                               is_on_host(fixed_sizes) ? Draw::repeated : Draw::once);
}

void set_x_stride(Case& c, int64_t beyond) {
  const int64_t columns = c.sizes["H"] * c.sizes["K"];
  if (is_bf16(c.sizes)) {
    c.strides.set("x_stride", columns + beyond);
  } else {
    c.strides.set("x_codes_stride", columns + beyond);
    c.strides.set("x_scales_stride", columns / kGroup + beyond + 3);
  }
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  constexpr int64_t kFewRows = 40;
  for (const int64_t rows : {1, 5, 33}) {
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed_sizes, rows, kFewRows, Draw::any,
                              static_cast<uint64_t>(rows)));
  }
  cases.push_back(case_of_distinct_rows("every row once", fixed_sizes, 9, Draw::once));
  cases.push_back(case_of_distinct_rows("repeated tokens", fixed_sizes, 10, Draw::repeated));
  // Claims of so many different rows meet each other, also at the end of the table of claims.
  constexpr int64_t kManyRows = 3000;
  for (const int64_t rows : {3, 29}) {
    cases.push_back(make_case(fmt::format("{} rows of a large table", rows), fixed_sizes, rows,
                              kManyRows, Draw::any, 104));
  }
  cases.push_back(make_case("one row", fixed_sizes, 19, 3, Draw::one));
  cases.push_back(make_case("none in the table", fixed_sizes, 7, 9, Draw::none));
  constexpr int64_t kNearTheEnd = (int64_t{1} << 31) - 20;
  cases.push_back(
      make_case("rows that would wrap", fixed_sizes, 7, 40, Draw::none, 5, kNearTheEnd));
  constexpr int64_t kEnoughToMeet = 30000, kMostColumns = 300;
  if (is_on_host(fixed_sizes) && fixed_sizes["K"] <= kMostColumns) {
    cases.push_back(make_case("rows that meet", fixed_sizes, 9, kEnoughToMeet, Draw::meeting));
  }
  cases.push_back(make_case("no row", fixed_sizes, 0, 9, Draw::any));
  cases.push_back(make_case("no table", fixed_sizes, 3, 0, Draw::any));
  cases.push_back(
      make_case("a part of the table", fixed_sizes, 11, kFewRows, Draw::any, 2, 300000007));
  Case padded = make_case("padded strides", fixed_sizes, 6, kFewRows, Draw::any, 3, 5);
  padded.strides = {{"rows_stride", fixed_sizes["H"] + 3},
                    {"table_stride", fixed_sizes["K"] + 48},
                    {"table_scales_stride", fixed_sizes["K"] / kGroup + 5}};
  set_x_stride(padded, 16);
  cases.push_back(padded);
  constexpr int64_t kMostRows = 2048;
  cases.push_back(measured_case(fixed_sizes, {{"T", std::min(bucket["T"], kMostRows)}}));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  constexpr int64_t kRows = 20, kTableRows = 64;
  return {make_case("any rows", fixed_sizes, kRows, kTableRows, Draw::any, 1),
          make_case("others", fixed_sizes, kRows, kTableRows, Draw::any, 2),
          make_case("one row", fixed_sizes, kRows, kTableRows, Draw::one, 3),
          make_case("padded rows", fixed_sizes, kRows, kTableRows, Draw::none, 4)};
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  cases.push_back(make_case("65537 rows", fixed_sizes, 65537, 5000, Draw::any));
  constexpr int64_t kFar = (int64_t{1} << 30) + 64;
  Case far = make_case("a table beyond 2^32 bytes", fixed_sizes, 3, 6, Draw::any);
  far.strides = {{"table_stride", kFar}, {"table_scales_stride", kFar + 1}};
  cases.push_back(far);
  Case far_x = make_case("x beyond 2^31 elements", fixed_sizes, 4, 6, Draw::any);
  set_x_stride(far_x, kFar);
  cases.push_back(far_x);
  return cases;
}

std::vector<Sizes> further_shapes() {
  constexpr int64_t kBf16 = 0, kCodes = 1, kDevice = 0, kHost = 1;
  std::vector<Sizes> shapes;
  for (const int64_t format : {kBf16, kCodes}) {
    shapes.push_back({{"H", 1}, {"K", 32}, {"source", kHost}, {"x_format", format}});
    shapes.push_back({{"H", 7}, {"K", 96}, {"source", kHost}, {"x_format", format}});
    shapes.push_back({{"H", 5}, {"K", 1024}, {"source", kDevice}, {"x_format", format}});
  }
  shapes.push_back({{"H", 24}, {"K", 256}, {"source", kHost}, {"x_format", kBf16}});
  return shapes;
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  if (arg.name != "rows") {
    for (size_t i = 0; i < row.size(); ++i) {
      const auto place = static_cast<int64_t>(i);
      row[i] = std::byte{arg.name == "table" ? code_of(c, outer[0], place)
                                             : scale_of(c, outer[0], place)};
    }
    return;
  }
  auto* values = reinterpret_cast<int32_t*>(row.data());
  const int64_t heads = c.sizes["H"], first = c.sizes["first_row"];
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t of_table = row_of(c, outer[0], head);
    const int64_t index = outer[0] * heads + head, end = first + c.sizes["R"];
    const int64_t value =
        of_table >= 0 ? first + of_table
        : end > kLargestInt32
            ? any_of(c, kOther, index, {-1, kLeastInt32, first - 1})
            : any_of(c, kOther, index, {-1, kLeastInt32, first - 1, end, kLargestInt32});
    values[head] = static_cast<int32_t>(value);
  }
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "engram_fetch_oracle"};
  launch.constants = {constant("num_heads", s["H"]), constant("columns", s["K"]),
                      constant("x_format", s["x_format"])};
  launch.grid_x = {.scale = s["H"], .terms = {{"T"}}};
  launch.threads = 32;
  return launch;
}

}  // namespace

const Kit engram_fetch_kit{
    .op = &engram_fetch,
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
