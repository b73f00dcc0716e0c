// Inputs, truth and oracle of gather_dequant_kv.
// Source values are counter-based per physical slot; fill() places them by the writer's formula of
// ops.md B8, expected() decodes the source values themselves and never looks at a cache.
//
// Knobs of a case: values (0: what a writer stores; 1: any byte; 2: every pair of a code and a
// scale in the first 192 slots), lens_low, lens_high (lens[b]; both left out: max_rows), lens_<b>,
// gather_<b> (of one request, given), gather_low, gather_high, gather_beyond_length
// (gather_lens[b], where there is one), bad_pages (one in so many table entries is out of range),
// page_spacing (distance of the pages in use).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "templates/kit.h"
#include "templates/kit_bf16.h"

namespace kiln::templates {

extern const Op gather_dequant_kv;
extern const Kit gather_dequant_kv_kit;

namespace {

enum Stream : uint64_t { kLens, kGather, kCodes, kScales, kBf16, kBadPage, kBadPageValue };
enum Format : int64_t { kF1 = 1, kF2 = 2, kF3 = 3, kF4 = 4 };

enum class Values : int64_t { writer = 0, any_byte = 1, all_pairs = 2 };

// What the slots of a cache hold, before any layout.
class Source {
 public:
  explicit Source(const Case& c)
      : seed_(c.seed), values_(static_cast<Values>(c.knobs.get("values", 0))) {}

  // F1 has 16 groups of 32 elements, F3 has 7 of 64 before its bf16 tail.
  uint8_t f1_code(int64_t slot, int64_t element) const { return e4m3_code(slot, element, 16, 32); }
  uint8_t f1_scale(int64_t slot, int64_t group) const { return ue8m0_scale(slot, group, 16, 32); }
  uint8_t f3_code(int64_t slot, int64_t element) const { return e4m3_code(slot, element, 7, 64); }
  uint8_t f3_scale(int64_t slot, int64_t group) const { return ue8m0_scale(slot, group, 7, 64); }

  uint8_t e2m1_code(int64_t slot, int64_t element) const {
    if (values_ == Values::all_pairs) return static_cast<uint8_t>(element % 16);
    const uint8_t byte = drawn_byte(kCodes, slot, element / 2);
    return element % 2 == 0 ? byte & 15 : byte >> 4;
  }

  uint8_t e4m3_scale(int64_t slot, int64_t group) const {
    if (values_ == Values::all_pairs) return static_cast<uint8_t>(slot * 32 + group);
    const uint8_t byte = drawn_byte(kScales, slot, group);
    return values_ == Values::any_byte ? byte : static_cast<uint8_t>(1 + byte % 126);  // B4
  }

  uint16_t bf16(int64_t slot, int64_t element) const {
    if (values_ == Values::all_pairs) return static_cast<uint16_t>(slot * 512 + element);
    const uint64_t word =
        counter_bits(seed_, kBf16, static_cast<uint64_t>(slot * 128 + element / 4));
    const auto bits = static_cast<uint16_t>(word >> (16 * (element % 4)));
    const bool special = (bits & 0x7f80) == 0x7f80;
    return values_ == Values::writer && special ? static_cast<uint16_t>(bits & 0xbfff) : bits;
  }

 private:
  uint8_t e4m3_code(int64_t slot, int64_t element, int64_t groups, int64_t group_elements) const {
    if (values_ == Values::all_pairs) {
      const int64_t blocks = 256 / group_elements;  // groups that it takes to hold all codes once
      const int64_t unit = slot * groups + element / group_elements;
      return static_cast<uint8_t>(unit % blocks * group_elements + element % group_elements);
    }
    const uint8_t byte = drawn_byte(kCodes, slot, element);
    const bool is_nan = (byte & 0x7f) == 0x7f;
    return values_ == Values::writer && is_nan ? static_cast<uint8_t>(byte ^ 1) : byte;
  }

  uint8_t ue8m0_scale(int64_t slot, int64_t group, int64_t groups, int64_t group_elements) const {
    if (values_ == Values::all_pairs) {
      return static_cast<uint8_t>((slot * groups + group) / (256 / group_elements));
    }
    const uint8_t byte = drawn_byte(kScales, slot, group);
    return values_ == Values::any_byte ? byte : static_cast<uint8_t>(105 + byte % 143);  // B4
  }

  uint8_t drawn_byte(Stream stream, int64_t slot, int64_t index) const {
    const uint64_t word = counter_bits(seed_, stream, static_cast<uint64_t>(slot * 64 + index / 8));
    return static_cast<uint8_t>(word >> (8 * (index % 8)));
  }

  uint64_t seed_;
  Values values_;
};

void fill_page(const Case& c, int64_t page, std::span<uint8_t> bytes) {
  const int64_t page_size = c.sizes["page_size"];
  const Source source(c);
  const auto put_bf16 = [&](int64_t at, uint16_t value) {
    std::memcpy(&bytes[static_cast<size_t>(at)], &value, 2);
  };
  const auto put = [&](int64_t at, uint8_t value) { bytes[static_cast<size_t>(at)] = value; };
  for (int64_t r = 0; r < page_size; ++r) {
    const int64_t slot = page * page_size + r;
    switch (c.sizes["format"]) {
      case kF1:
        for (int64_t e = 0; e < 512; ++e) put(r * 512 + e, source.f1_code(slot, e));
        for (int64_t g = 0; g < 16; ++g)
          put(page_size * 512 + r * 16 + g, source.f1_scale(slot, g));
        break;
      case kF2:
        for (int64_t e = 0; e < 512; e += 2) {
          put(r * 256 + e / 2,
              static_cast<uint8_t>(source.e2m1_code(slot, e) | source.e2m1_code(slot, e + 1) << 4));
        }
        for (int64_t g = 0; g < 32; ++g)
          put(page_size * 256 + r * 32 + g, source.e4m3_scale(slot, g));
        break;
      case kF3:
        for (int64_t e = 0; e < 448; ++e) put(r * 576 + e, source.f3_code(slot, e));
        for (int64_t e = 448; e < 512; ++e)
          put_bf16(r * 576 + 448 + 2 * (e - 448), source.bf16(slot, e));
        for (int64_t g = 0; g < 7; ++g) put(page_size * 576 + r * 8 + g, source.f3_scale(slot, g));
        put(page_size * 576 + r * 8 + 7, 0);
        break;
      case kF4:
        for (int64_t e = 0; e < 512; ++e) put_bf16(r * 1024 + 2 * e, source.bf16(slot, e));
        break;
      default:
        fail(Status::internal, "gather_dequant_kv: unknown format {}", c.sizes["format"]);
    }
  }
}

double e2m1_double(uint8_t code) {
  constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}

double element_value(const Case& c, int64_t slot, int64_t e) {
  const Source source(c);
  switch (c.sizes["format"]) {
    case kF1:
      return dequantised(e4m3_double(source.f1_code(slot, e)) *
                         ue8m0_double(source.f1_scale(slot, e / 32)));
    case kF2:
      return dequantised(e2m1_double(source.e2m1_code(slot, e)) *
                         e4m3_double(source.e4m3_scale(slot, e / 16)));
    case kF3:
      if (e >= 448) return bf16_double(source.bf16(slot, e));
      return dequantised(e4m3_double(source.f3_code(slot, e)) *
                         ue8m0_double(source.f3_scale(slot, e / 64)));
    case kF4:
      return bf16_double(source.bf16(slot, e));
  }
  fail(Status::internal, "gather_dequant_kv: unknown format {}", c.sizes["format"]);
}

int64_t length_of(const Case& c, int64_t b) {
  const std::string given = fmt::format("lens_{}", b);
  if (c.knobs.contains(given)) return c.knobs[given];
  if (!c.knobs.contains("lens_high")) return c.sizes["M"];
  return counter_range(c.seed, kLens, static_cast<uint64_t>(b), c.knobs.get("lens_low", 0),
                       c.knobs["lens_high"]);
}

int64_t gathered_of(const Case& c, int64_t b) {
  const int64_t length = length_of(c, b);
  if (!c.has("gather_lens")) return length;
  const std::string given = fmt::format("gather_{}", b);
  if (c.knobs.contains(given)) return c.knobs[given];
  const int64_t drawn =
      counter_range(c.seed, kGather, static_cast<uint64_t>(b), c.knobs.get("gather_low", 0),
                    c.knobs.get("gather_high", 130));
  return c.knobs.get("gather_beyond_length", 0) != 0 ? drawn : std::min(drawn, length);
}

// Every page_spacing-th page is in use, in a scattered order that never repeats; the others are
// never written and hold poison.
int64_t page_spacing(const Case& c) { return c.knobs.get("page_spacing", 2); }

int64_t page_of(const Case& c, int64_t b, int64_t column) {
  const int64_t spacing = page_spacing(c);
  const int64_t used = std::max<int64_t>(c.sizes["num_pages"] / spacing, 1);
  const int64_t index = b * c.sizes["table_width"] + column;
  constexpr int64_t kPrime = 1000003;
  return used % kPrime == 0 ? spacing * index : spacing * ((index * kPrime + 17) % used);
}

int64_t table_entry(const Case& c, int64_t b, int64_t column) {
  const int64_t one_in = c.knobs.get("bad_pages", 0);
  const auto index = static_cast<uint64_t>(b * c.sizes["table_width"] + column);
  if (one_in > 0 && counter_range(c.seed, kBadPage, index, 0, one_in - 1) == 0) {
    const int64_t bad[] = {-1, c.sizes["num_pages"], std::numeric_limits<int32_t>::max(),
                           std::numeric_limits<int32_t>::min()};
    return bad[counter_range(c.seed, kBadPageValue, index, 0, 3)];
  }
  return page_of(c, b, column);
}

struct CaseSizes {
  int64_t requests = 1;
  int64_t max_rows = 0;
  int64_t offset = 0;
  int64_t page_size = 64;
  int64_t table_rows = 0;  // entries that the table covers; 0: max_rows
};

enum class WithGather { no, yes };

Case make_case(std::string name, const Sizes& fixed_sizes, const CaseSizes& sizes, NamedInts knobs,
               WithGather gather, uint64_t seed) {
  const int64_t covered = std::max(sizes.table_rows, sizes.max_rows);
  const int64_t columns = (covered + sizes.page_size - 1) / sizes.page_size;
  Case c{.name = std::move(name), .knobs = std::move(knobs), .seed = seed};
  c.sizes = fixed_sizes.merged({{"R", sizes.requests},
                                {"M", sizes.max_rows},
                                {"offset", sizes.offset},
                                {"page_size", sizes.page_size},
                                {"num_pages", page_spacing(c) * sizes.requests * columns},
                                {"table_width", columns}});
  if (gather == WithGather::no) c.absent = {"gather_lens"};
  return c;
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return make_case("measured", fixed_sizes, {.requests = bucket["R"], .max_rows = bucket["M"]},
                   {{"page_spacing", 1}}, WithGather::no, 1);
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  cases.push_back(make_case("every pair of code and scale", fixed_sizes,
                            {.requests = 1, .max_rows = 192}, {{"values", 2}, {"page_spacing", 1}},
                            WithGather::no, 1));
  cases.push_back(make_case("worked example of B15.1, compressed", fixed_sizes,
                            {.requests = 2, .max_rows = 231}, {{"lens_0", 101}, {"lens_1", 2}},
                            WithGather::no, 1));
  cases.push_back(make_case(
      "worked example of B15.1, window", fixed_sizes,
      {.requests = 2, .max_rows = 130, .offset = 101, .page_size = 32, .table_rows = 203},
      {{"lens_0", 203}, {"lens_1", 5}, {"gather_0", 130}, {"gather_1", 5}}, WithGather::yes, 1));
  cases.push_back(make_case("every code and scale byte", fixed_sizes,
                            {.requests = 2, .max_rows = 300}, {{"values", 1}}, WithGather::no, 1));
  cases.push_back(make_case(
      "window after an offset", fixed_sizes,
      {.requests = 5, .max_rows = 131, .offset = 101, .page_size = 32, .table_rows = 1000},
      {{"lens_low", 0}, {"lens_high", 1000}, {"gather_high", 130}}, WithGather::yes, 2));
  cases.push_back(make_case("lengths from zero to capacity", fixed_sizes,
                            {.requests = 67, .max_rows = 70, .page_size = 7},
                            {{"lens_low", 0}, {"lens_high", 70}}, WithGather::no, 3));
  cases.push_back(make_case("pages of one entry", fixed_sizes,
                            {.requests = 3, .max_rows = 65, .page_size = 1},
                            {{"lens_low", 0}, {"lens_high", 65}}, WithGather::no, 4));
  cases.push_back(make_case("pages of 256 entries", fixed_sizes,
                            {.requests = 2, .max_rows = 515, .page_size = 256},
                            {{"lens_low", 255}, {"lens_high", 515}}, WithGather::no, 5));
  cases.push_back(make_case("more wanted than capacity", fixed_sizes,
                            {.requests = 3, .max_rows = 33, .page_size = 16, .table_rows = 90},
                            {{"lens_low", 34}, {"lens_high", 90}}, WithGather::no, 6));
  cases.push_back(make_case("pages and columns out of range", fixed_sizes,
                            {.requests = 4, .max_rows = 100, .page_size = 8},
                            {{"lens_low", 50}, {"lens_high", 140}, {"bad_pages", 4}},
                            WithGather::no, 7));
  cases.push_back(make_case("more wanted than there is", fixed_sizes,
                            {.requests = 4, .max_rows = 40, .page_size = 8},
                            {{"lens_low", 0},
                             {"lens_high", 30},
                             {"gather_low", 0},
                             {"gather_high", 40},
                             {"gather_beyond_length", 1}},
                            WithGather::yes, 8));
  Case strided = make_case("padded strides", fixed_sizes,
                           {.requests = 3, .max_rows = 50, .offset = 3, .page_size = 5},
                           {{"lens_low", 0}, {"lens_high", 50}}, WithGather::no, 9);
  const Sizes derived_sizes = with_derived(gather_dequant_kv, strided.sizes);
  const int64_t out_stride1 = 512 + 24;
  strided.strides = {{"cache_stride", (derived_sizes["page_bytes"] + 7) / 8 * 8 + 40},
                     {"out_stride1", out_stride1},
                     {"out_stride0", derived_sizes["out_rows"] * out_stride1 + 64},
                     {"block_table_stride", derived_sizes["table_width"] + 3}};
  cases.push_back(strided);
  // Beyond 1024 tiles of 32 rows: CTAs take several tiles where their number is capped.
  cases.push_back(make_case(
      "several tiles for a CTA", fixed_sizes, {.requests = 2, .max_rows = 1024 * 32 + 33},
      {{"lens_0", 1024 * 32 + 33}, {"lens_1", 5}, {"page_spacing", 1}}, WithGather::no, 11));
  constexpr int64_t kLargestVerified = 16384;
  cases.push_back(
      make_case("near the measured size", fixed_sizes,
                {.requests = bucket["R"], .max_rows = std::min(bucket["M"], kLargestVerified)}, {},
                WithGather::no, 10));
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  const CaseSizes sizes{
      .requests = 5, .max_rows = 90, .offset = 11, .page_size = 16, .table_rows = 400};
  const auto with_lengths = [&](std::string name, int64_t low, int64_t high, int64_t wanted,
                                uint64_t seed) {
    return make_case(std::move(name), fixed_sizes, sizes,
                     {{"lens_low", low}, {"lens_high", high}, {"gather_high", wanted}},
                     WithGather::yes, seed);
  };
  return {
      with_lengths("full", 400, 400, 90, 1),
      with_lengths("shorter, other tables", 0, 400, 90, 2),
      with_lengths("all lengths zero", 0, 0, 0, 3),
      with_lengths("some empty", 0, 3, 90, 4),
      with_lengths("beyond capacity", 100, 400, 300, 5),
  };
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  for (const int64_t requests : {65535, 65536, 65537}) {
    cases.push_back(make_case(fmt::format("{} requests", requests), fixed_sizes,
                              {.requests = requests, .max_rows = 1, .page_size = 1},
                              {{"page_spacing", 1}}, WithGather::no, 1));
  }
  // Slots beyond 2^22, bytes of the cache beyond 2^31.
  cases.push_back(make_case("slots beyond 2^22", fixed_sizes, {.requests = 1, .max_rows = 1280},
                            {{"page_spacing", 4001}}, WithGather::no, 2));
  Case far = make_case(
      "pages and rows beyond 2^31", fixed_sizes, {.requests = 3, .max_rows = 20, .page_size = 16},
      {{"lens_low", 0}, {"lens_high", 20}, {"page_spacing", 1}}, WithGather::no, 3);
  far.strides = {{"cache_stride", int64_t{1} << 30},
                 {"out_stride1", 512},
                 {"out_stride0", (int64_t{1} << 31) + 8}};
  cases.push_back(far);
  return cases;
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  if (arg.name == "cache") {
    const bool in_use = outer[0] % page_spacing(c) == 0;
    if (in_use) {
      fill_page(c, outer[0], {reinterpret_cast<uint8_t*>(row.data()), row.size()});
    } else {
      std::memset(row.data(), 0xff, row.size());
    }
    return;
  }
  auto* values = reinterpret_cast<int32_t*>(row.data());
  const int64_t count = static_cast<int64_t>(row.size() / sizeof(int32_t));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t value = arg.name == "lens"          ? length_of(c, i)
                          : arg.name == "gather_lens" ? gathered_of(c, i)
                                                      : table_entry(c, outer[0], i);
    values[i] = static_cast<int32_t>(value);
  }
}

std::optional<double> expected(const Case& c, const Arg&, std::span<const int64_t> index) {
  const int64_t b = index[0];
  const int64_t i = index[1] - c.sizes["offset"];
  const int64_t gathered = gathered_of(c, b);
  if (i < 0 || i >= std::min(gathered, c.sizes["M"])) return std::nullopt;
  const int64_t x = length_of(c, b) - gathered + i;
  const int64_t page_size = c.sizes["page_size"];
  if (x < 0 || x / page_size >= c.sizes["table_width"]) return 0.0;
  const int64_t page = table_entry(c, b, x / page_size);
  if (page < 0 || page >= c.sizes["num_pages"]) return 0.0;
  return element_value(c, page * page_size + x % page_size, index[2]);
}

KernelLaunch oracle(const Sizes& s) {
  KernelLaunch launch{.file = "oracle.cu", .entry = "gather_dequant_kv_oracle"};
  launch.constants = {{"format", "int", std::to_string(s["format"])}};
  launch.grid_x = {.terms = {{"R"}, {"M"}}};
  launch.threads = 128;
  return launch;
}

}  // namespace

const Kit gather_dequant_kv_kit{
    .op = &gather_dequant_kv,
    .measured_case = measured_case,
    .verify_cases = verify_cases,
    .replay_cases = replay_cases,
    .large_cases = large_cases,
    .fill = fill,
    .expected = expected,
    .oracle = oracle,
};

}  // namespace kiln::templates
