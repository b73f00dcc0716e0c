// Inputs, truth and oracle of sparse_mla_decode.
// Source values are counter-based per physical slot. A writer's quantiser (ops.md B4) makes numbers
// of them, which are the truth, and codes, which fill() places by the layouts of B8.
//
// Every page_spacing-th page is in use; the others, and entries that nobody wrote, hold bytes that
// are NaN in every format. So does what columns beyond a length point at.
//
// Knobs of a case: queries (0: scores of about +-2; 1: each column in turn has nearly all the
// weight; 2: scores to +-100; 3: zero), sinks (0: drawn; 1: -inf; 2: 0; 3: 88; 4: -30; 5: all of
// these and +inf by turns), holes (one column in so many is -1), bad_slots (one in so many is out
// of range), empty_rows (one row in so many has no valid column), lens_below, lens_above (lengths
// are drawn from -lens_below to the width + lens_above, and the width where that is no range),
// page_spacing, window_runs (1: neighbouring columns of the window are neighbours in the cache),
// rotation (of the columns of a list), bad_positions (1: some are outside of the table), first_row
// and slot_rows (the rows are part of a longer call of slot_rows rows).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "templates/kit.h"
#include "templates/kit_bf16.h"

namespace kiln::templates {

extern const Op sparse_mla_decode;
extern const Kit sparse_mla_decode_kit;

namespace {

constexpr int64_t kHeadDim = 512;
constexpr int64_t kRopeDims = 64;

enum Stream : uint64_t {
  kQuery,
  kSink,
  kPosition,
  kAngle,
  kEmptyRow,
  kPerList,  // the streams below, once for each list
  kValue = kPerList,
  kGroup,
  kHole,
  kBadSlot,
  kBadSlotValue,
  kLength,
  kEndPerList
};
enum Format : int64_t { kNone = 0, kF1 = 1, kF2 = 2, kF3 = 3, kF4 = 4 };

enum class ListKind { window, compressed };
constexpr ListKind kLists[] = {ListKind::window, ListKind::compressed};

uint64_t stream_of(ListKind list, Stream stream) {
  return stream + (list == ListKind::window ? 0 : kEndPerList - kPerList);
}

// What the description calls the sizes of a list.
struct ListSizes {
  int64_t format, width, page_size, num_pages;

  ListSizes(const Case& c, ListKind list)
      : format(c.sizes[list == ListKind::window ? "window_format" : "compressed_format"]),
        width(c.sizes[list == ListKind::window ? "Kw" : "Kc"]),
        page_size(c.sizes[list == ListKind::window ? "window_page_size" : "compressed_page_size"]),
        num_pages(c.sizes[list == ListKind::window ? "num_window_pages" : "num_compressed_pages"]) {
    if (format == kNone) width = 0;
  }
};

// Uniform in [-1, 1).
double drawn_unit(uint64_t seed, uint64_t stream, uint64_t index) {
  const uint64_t word = counter_bits(seed, stream, index / 4);
  return static_cast<double>(static_cast<uint16_t>(word >> (16 * (index % 4)))) / 32768 - 1;
}

double round_to_step(double value, double step) { return std::nearbyint(value / step) * step; }

// --- quantisers of ops.md B4

float pow2ceil(float value) {
  int exponent = 0;
  const float mantissa = std::frexp(value, &exponent);
  return std::ldexp(1.0f, mantissa == 0.5f ? exponent - 1 : exponent);
}

double e4m3_rounded(double value) {
  const double clamped = std::clamp(value, -448.0, 448.0);
  if (clamped == 0) return clamped;
  return round_to_step(clamped, std::ldexp(1.0, std::max(std::ilogb(clamped), -6) - 3));
}

// Of a number that E4M3 has.
uint8_t e4m3_code(double value) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude < std::ldexp(1.0, -6))
    return static_cast<uint8_t>(sign | static_cast<int>(std::ldexp(magnitude, 9)));
  const int exponent = std::ilogb(magnitude);
  const int mantissa = static_cast<int>(std::ldexp(magnitude, 3 - exponent)) - 8;
  return static_cast<uint8_t>(sign | (exponent + 7) << 3 | mantissa);
}

constexpr double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

uint8_t e2m1_code(float value) {
  const float a = std::fabs(value);
  const int code =
      (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5);
  return static_cast<uint8_t>(code | (std::signbit(value) ? 8 : 0));
}

// An entry as its writer stores it and as a reader has to see it.
struct Entry {
  std::array<uint8_t, kHeadDim> codes{};  // E4M3, or E2M1 one to a byte
  std::array<uint8_t, 32> scales{};
  std::array<double, kHeadDim> values{};  // bf16 numbers
};

// Q8a and Q8d.
void quantise_e4m3(Entry& entry, int64_t elements, int64_t group_elements) {
  for (int64_t first = 0; first < elements; first += group_elements) {
    float amax = 1e-4f;
    for (int64_t e = first; e < first + group_elements; ++e)
      amax = std::max(amax, static_cast<float>(std::fabs(entry.values[static_cast<size_t>(e)])));
    const float scale = pow2ceil(amax * (1.0f / 448));
    entry.scales[static_cast<size_t>(first / group_elements)] =
        static_cast<uint8_t>(std::ilogb(scale) + 127);
    for (int64_t e = first; e < first + group_elements; ++e) {
      double& value = entry.values[static_cast<size_t>(e)];
      const double code = e4m3_rounded(value / scale);
      entry.codes[static_cast<size_t>(e)] = e4m3_code(code);
      value = code * scale;
    }
  }
}

// Q4n.
void quantise_e2m1(Entry& entry) {
  constexpr int64_t kGroup = 16;
  for (int64_t first = 0; first < kHeadDim; first += kGroup) {
    float amax = std::ldexp(6.0f, -9);
    for (int64_t e = first; e < first + kGroup; ++e)
      amax = std::max(amax, static_cast<float>(std::fabs(entry.values[static_cast<size_t>(e)])));
    const double scale = e4m3_rounded(amax / 6.0f);
    entry.scales[static_cast<size_t>(first / kGroup)] = e4m3_code(scale);
    for (int64_t e = first; e < first + kGroup; ++e) {
      double& value = entry.values[static_cast<size_t>(e)];
      const float quotient = static_cast<float>(value) / static_cast<float>(scale);
      const uint8_t code = e2m1_code(std::clamp(quotient, -6.0f, 6.0f));
      entry.codes[static_cast<size_t>(e)] = code;
      value = (code & 8 ? -1 : 1) * kE2m1[code & 7] * scale;
    }
  }
}

// Groups of 16 differ by powers of two, so that no two neighbouring scales are alike.
Entry entry_of(const Case& c, ListKind list, int64_t slot) {
  Entry entry;
  for (int64_t e = 0; e < kHeadDim; ++e) {
    const auto group = static_cast<uint64_t>(slot * 32 + e / 16);
    const int64_t exponent = counter_range(c.seed, stream_of(list, kGroup), group, -2, 2);
    const double unit =
        drawn_unit(c.seed, stream_of(list, kValue), static_cast<uint64_t>(slot * kHeadDim + e));
    entry.values[static_cast<size_t>(e)] =
        round_to_bf16(std::ldexp(unit, static_cast<int>(exponent)));
  }
  switch (ListSizes(c, list).format) {
    case kF1:
      quantise_e4m3(entry, kHeadDim, 32);
      break;
    case kF2:
      quantise_e2m1(entry);
      break;
    case kF3:
      quantise_e4m3(entry, kHeadDim - kRopeDims, 64);
      break;
    case kF4:  // fake-quantised, as the model's reference keeps it
      list == ListKind::window ? quantise_e4m3(entry, kHeadDim, 32) : quantise_e2m1(entry);
      break;
    default:
      fail(Status::internal, "sparse_mla_decode: unknown format");
  }
  return entry;
}

// --- lists

int64_t row_of(const Case& c, int64_t t) { return t + c.knobs.get("first_row", 0); }
int64_t slot_rows(const Case& c) { return c.knobs.get("slot_rows", c.sizes["T"]); }
int64_t page_spacing(const Case& c) { return c.knobs.get("page_spacing", 2); }
int64_t entries_in_use(const Case& c, ListKind list) {
  return slot_rows(c) * ListSizes(c, list).width;
}

bool is_drawn(const Case& c, const char* knob, uint64_t stream, int64_t index) {
  const int64_t one_in = c.knobs.get(knob, 0);
  return one_in > 0 &&
         counter_range(c.seed, stream, static_cast<uint64_t>(index), 0, one_in - 1) == 0;
}

int64_t length_of(const Case& c, ListKind list, int64_t t) {
  const int64_t width = ListSizes(c, list).width;
  const int64_t least = -c.knobs.get("lens_below", -width);
  const int64_t most = width + c.knobs.get("lens_above", 0);
  if (most < least) return width;
  return counter_range(c.seed, stream_of(list, kLength), static_cast<uint64_t>(row_of(c, t)), least,
                       most);
}

// The slot of a column that counts, whether valid or not.
int64_t drawn_slot(const Case& c, ListKind list, int64_t t, int64_t column) {
  const ListSizes sizes(c, list);
  const int64_t row = row_of(c, t);
  const int64_t place =
      row * sizes.width + (column + c.knobs.get("rotation", 0)) % sizes.width;  // of all columns
  if (is_drawn(c, "empty_rows", kEmptyRow, row) ||
      is_drawn(c, "holes", stream_of(list, kHole), place))
    return -1;
  if (is_drawn(c, "bad_slots", stream_of(list, kBadSlot), place)) {
    const int64_t bad[] = {-2, sizes.num_pages * sizes.page_size,
                           std::numeric_limits<int32_t>::max(),
                           std::numeric_limits<int32_t>::min()};
    return bad[counter_range(c.seed, stream_of(list, kBadSlotValue), static_cast<uint64_t>(place),
                             0, 3)];
  }
  constexpr int64_t kPrime = 1000003;
  const int64_t count = entries_in_use(c, list);
  const bool in_runs = list == ListKind::window && c.knobs.get("window_runs", 0) != 0;
  const int64_t entry = in_runs || count % kPrime == 0 ? place : (place * kPrime + 17) % count;
  // Pages in use are taken from the last to the first.
  const int64_t pages = (count + sizes.page_size - 1) / sizes.page_size;
  const int64_t page =
      (pages - 1 - entry / sizes.page_size) * page_spacing(c) + page_spacing(c) - 1;
  return page * sizes.page_size + entry % sizes.page_size;
}

bool is_valid(const ListSizes& sizes, int64_t slot) {
  return slot >= 0 && slot < sizes.num_pages * sizes.page_size;
}

// Slots of the valid columns in their order.
std::vector<int64_t> valid_slots(const Case& c, ListKind list, int64_t t) {
  const ListSizes sizes(c, list);
  std::vector<int64_t> slots;
  for (int64_t column = 0; column < std::min(length_of(c, list, t), sizes.width); ++column) {
    const int64_t slot = drawn_slot(c, list, t, column);
    if (is_valid(sizes, slot)) slots.push_back(slot);
  }
  return slots;
}

void fill_page(const Case& c, ListKind list, int64_t page, std::span<uint8_t> bytes) {
  std::memset(bytes.data(), 0xff, bytes.size());
  const ListSizes sizes(c, list);
  const int64_t spacing = page_spacing(c);
  if (page % spacing != spacing - 1) return;
  const int64_t count = entries_in_use(c, list);
  const int64_t pages = (count + sizes.page_size - 1) / sizes.page_size;
  const int64_t first_entry = (pages - 1 - page / spacing) * sizes.page_size;
  const auto put = [&](int64_t at, uint8_t value) { bytes[static_cast<size_t>(at)] = value; };
  const auto put_bf16 = [&](int64_t at, double value) {
    const uint16_t bits = bf16_bits(value);
    std::memcpy(&bytes[static_cast<size_t>(at)], &bits, 2);
  };
  for (int64_t r = 0; r < sizes.page_size && first_entry + r < count; ++r) {
    const Entry entry = entry_of(c, list, page * sizes.page_size + r);
    const auto code = [&](int64_t e) { return entry.codes[static_cast<size_t>(e)]; };
    const auto scale = [&](int64_t g) { return entry.scales[static_cast<size_t>(g)]; };
    const auto value = [&](int64_t e) { return entry.values[static_cast<size_t>(e)]; };
    switch (sizes.format) {
      case kF1:
        for (int64_t e = 0; e < 512; ++e) put(r * 512 + e, code(e));
        for (int64_t g = 0; g < 16; ++g) put(sizes.page_size * 512 + r * 16 + g, scale(g));
        break;
      case kF2:
        for (int64_t e = 0; e < 512; e += 2)
          put(r * 256 + e / 2, static_cast<uint8_t>(code(e) | code(e + 1) << 4));
        for (int64_t g = 0; g < 32; ++g) put(sizes.page_size * 256 + r * 32 + g, scale(g));
        break;
      case kF3:
        for (int64_t e = 0; e < 448; ++e) put(r * 576 + e, code(e));
        for (int64_t e = 448; e < 512; ++e) put_bf16(r * 576 + 448 + 2 * (e - 448), value(e));
        for (int64_t g = 0; g < 7; ++g) put(sizes.page_size * 576 + r * 8 + g, scale(g));
        put(sizes.page_size * 576 + r * 8 + 7, 0);
        break;
      case kF4:
        for (int64_t e = 0; e < 512; ++e) put_bf16(r * 1024 + 2 * e, value(e));
        break;
    }
  }
}

// --- what is not a list

enum class Queries : int64_t { plain = 0, peaks = 1, hot = 2, zero = 3 };

using Vector = std::array<double, kHeadDim>;

Vector query_of(const Case& c, int64_t t, int64_t h) {
  const auto kind = static_cast<Queries>(c.knobs.get("queries", 0));
  const int64_t number = row_of(c, t) * c.sizes["H"] + h;
  const auto unit = [&](int64_t e) {
    return drawn_unit(c.seed, kQuery, static_cast<uint64_t>(number * kHeadDim + e));
  };
  Vector query{};
  if (kind == Queries::zero) return query;
  if (kind == Queries::peaks) {
    // Along the key of one column, so that its score is 11 and the others stay within about +-2.
    const ListSizes window(c, ListKind::window);
    const ListSizes compressed(c, ListKind::compressed);
    const int64_t column = number % std::max<int64_t>(window.width + compressed.width, 1);
    const ListKind list = column < window.width ? ListKind::window : ListKind::compressed;
    const int64_t slot =
        drawn_slot(c, list, t, list == ListKind::window ? column : column - window.width);
    const Entry key = entry_of(c, list, slot);
    double squares = 0;
    for (const double value : key.values) squares += value * value;
    const double along = 11 * std::sqrt(static_cast<double>(kHeadDim)) / squares;
    for (int64_t e = 0; e < kHeadDim; ++e) {
      query[static_cast<size_t>(e)] =
          round_to_bf16(along * key.values[static_cast<size_t>(e)] + 0.25 * unit(e));
    }
    return query;
  }
  const double amplitude = kind == Queries::hot ? 50 : 3;
  for (int64_t e = 0; e < kHeadDim; ++e)
    query[static_cast<size_t>(e)] = round_to_bf16(amplitude * unit(e));
  return query;
}

double sink_of(const Case& c, int64_t h) {
  const double drawn = 2 * drawn_unit(c.seed, kSink, static_cast<uint64_t>(h));
  const double by_turns[] = {-INFINITY, 0, 88, -30, drawn, INFINITY};
  switch (c.knobs.get("sinks", 0)) {
    case 0:
      return drawn;
    case 5:
      return by_turns[h % 6];
    case 1:
    case 2:
    case 3:
    case 4:
      return by_turns[c.knobs["sinks"] - 1];
  }
  fail(Status::internal, "sparse_mla_decode: unknown sinks");
}

int64_t position_of(const Case& c, int64_t t) {
  const int64_t positions = c.sizes["P"];
  const auto row = static_cast<uint64_t>(row_of(c, t));
  if (c.knobs.get("bad_positions", 0) != 0 && row % 2 == 0) return row % 4 == 0 ? -1 : positions;
  return counter_range(c.seed, kPosition, row, 0, positions - 1);
}

// Columns of a row of the table: 32 cosines, then 32 sines.
float rope_entry(const Case& c, int64_t position, int64_t column) {
  const double angle =
      M_PI * drawn_unit(c.seed, kAngle, static_cast<uint64_t>(position * 32 + column % 32));
  return static_cast<float>(column < 32 ? std::cos(angle) : std::sin(angle));
}

// --- truth

// Rows and heads come one after another, so the last ones are kept.
class Truth {
 public:
  const Vector& out(const Case& c, int64_t t, int64_t h) {
    find(c, t, h);
    return out_;
  }
  double lse(const Case& c, int64_t t, int64_t h) {
    find(c, t, h);
    return lse_;
  }

 private:
  void find(const Case& c, int64_t t, int64_t h) {
    const bool same_case = case_ && case_->seed == c.seed && case_->knobs == c.knobs &&
                           case_->sizes == c.sizes && case_->absent == c.absent;
    if (!same_case) case_ = std::make_unique<Case>(c);
    if (!same_case || t != row_) {
      keys_.clear();
      for (const ListKind list : kLists) {
        if (ListSizes(c, list).format == kNone) continue;
        for (const int64_t slot : valid_slots(c, list, t))
          keys_.push_back(entry_of(c, list, slot).values);
      }
    }
    if (same_case && t == row_ && h == head_) return;
    row_ = t;
    head_ = h;
    attend(c);
  }

  void attend(const Case& c) {
    const Vector query = query_of(c, row_, head_);
    std::vector<double> scores;
    double largest = -INFINITY;
    for (const Vector& key : keys_) {
      double dot = 0;
      for (size_t e = 0; e < kHeadDim; ++e) dot += query[e] * key[e];
      scores.push_back(dot / std::sqrt(static_cast<double>(kHeadDim)));
      largest = std::max(largest, scores.back());
    }
    out_.fill(0);
    lse_ = -INFINITY;
    if (keys_.empty()) return;
    double sum = 0;
    for (size_t n = 0; n < keys_.size(); ++n) {
      const double p = std::exp(scores[n] - largest);
      sum += p;
      for (size_t e = 0; e < kHeadDim; ++e) out_[e] += p * keys_[n][e];
    }
    lse_ = largest + std::log(sum);
    if (c.has("sink")) sum += std::exp(sink_of(c, head_) - largest);
    for (double& value : out_) value /= sum;
    if (c.sizes["inverse_rope"] != 0) rotate_back(c);
  }

  void rotate_back(const Case& c) {
    const int64_t position = position_of(c, row_);
    if (position < 0 || position >= c.sizes["P"]) return;
    for (int64_t pair = 0; pair < kRopeDims / 2; ++pair) {
      const auto at = static_cast<size_t>(kHeadDim - kRopeDims + 2 * pair);
      const double cosine = rope_entry(c, position, pair);
      const double sine = rope_entry(c, position, pair + 32);
      const double a = out_[at];
      const double b = out_[at + 1];
      out_[at] = a * cosine + b * sine;
      out_[at + 1] = b * cosine - a * sine;
    }
  }

  std::unique_ptr<Case> case_;
  int64_t row_ = -1;
  int64_t head_ = -1;
  std::vector<Vector> keys_;
  Vector out_{};
  double lse_ = 0;
};

std::optional<double> expected(const Case& c, const Arg& arg, std::span<const int64_t> index) {
  thread_local Truth truth;
  if (arg.name == "lse") return truth.lse(c, index[0], index[1]);
  return truth.out(c, index[0], index[1])[static_cast<size_t>(index[2])];
}

// --- cases

struct CaseSizes {
  int64_t rows = 1;
  int64_t window = 0;
  int64_t compressed = 0;
  int64_t window_page = 32;
  int64_t compressed_page = 64;
};

int64_t round_to(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

Case make_case(std::string name, const Sizes& fixed_sizes, CaseSizes sizes, NamedInts knobs,
               std::vector<std::string> absent = {}) {
  const bool has_compressed = fixed_sizes["compressed_format"] != kNone;
  if (!has_compressed) sizes.compressed = sizes.compressed_page = 0;
  Case c{.name = std::move(name),
         .sizes = {},
         .strides = {},
         .knobs = std::move(knobs),
         .absent = std::move(absent),
         .seed = 1};
  const int64_t spacing = page_spacing(c);
  const int64_t rows = c.knobs.get("slot_rows", sizes.rows);
  const auto pages = [&](int64_t width, int64_t page_size) {
    if (page_size == 0) return int64_t{0};
    return spacing * std::max<int64_t>((rows * width + page_size - 1) / page_size, 1);
  };
  constexpr int64_t kPositions = 50;
  c.sizes =
      fixed_sizes.merged({{"T", sizes.rows},
                          {"Kw", sizes.window},
                          {"Kc", sizes.compressed},
                          {"window_page_size", sizes.window_page},
                          {"num_window_pages", pages(sizes.window, sizes.window_page)},
                          {"compressed_page_size", sizes.compressed_page},
                          {"num_compressed_pages", pages(sizes.compressed, sizes.compressed_page)},
                          {"P", fixed_sizes["inverse_rope"] != 0 ? kPositions : 0}});
  // Not every page is a multiple of 16 bytes, but strides are.
  const Sizes all = with_derived(sparse_mla_decode, c.sizes);
  c.strides = {{"window_cache_stride", round_to(all["window_page_bytes"], 16)}};
  if (has_compressed)
    c.strides.set("compressed_cache_stride", round_to(all["compressed_page_bytes"], 16));
  return c;
}

Case measured_case(const Sizes& fixed_sizes, const Sizes& bucket) {
  return make_case("measured", fixed_sizes,
                   {.rows = bucket["T"], .window = 128, .compressed = 512, .window_page = 64},
                   {{"page_spacing", 1}, {"window_runs", 1}}, {"lse"});
}

std::vector<Case> verify_cases(const Sizes& fixed_sizes, const Sizes& bucket) {
  std::vector<Case> cases;
  const auto add = [&](std::string name, const CaseSizes& sizes, NamedInts knobs,
                       std::vector<std::string> absent = {}) -> Case& {
    cases.push_back(
        make_case(std::move(name), fixed_sizes, sizes, std::move(knobs), std::move(absent)));
    return cases.back();
  };
  const int64_t heads = fixed_sizes["H"];
  add("plain", {.rows = 3, .window = 40, .compressed = 24}, {});
  constexpr int64_t kPeaks = 41;
  const int64_t peak_window = fixed_sizes["compressed_format"] == kNone ? kPeaks : 24;
  add("each slot in turn has nearly all the weight",
      {.rows = (kPeaks + heads - 1) / heads, .window = peak_window, .compressed = kPeaks - 24},
      {{"queries", 1}});
  add("-1 anywhere",
      {.rows = 3, .window = 33, .compressed = 20, .window_page = 7, .compressed_page = 16},
      {{"holes", 3}, {"sinks", 1}, {"bad_positions", 1}});
  add("lengths below zero and beyond the width", {.rows = 5, .window = 20, .compressed = 30},
      {{"lens_below", 3}, {"lens_above", 5}, {"sinks", 5}});
  add("slots out of range", {.rows = 2, .window = 30, .compressed = 18},
      {{"bad_slots", 3}, {"sinks", 2}});
  add("rows without valid columns", {.rows = 5, .window = 17, .compressed = 9},
      {{"empty_rows", 2}, {"sinks", 5}});
  add("no rows", {.rows = 0, .window = 16, .compressed = 16}, {});
  add("no columns", {.rows = 2}, {});
  add("one column", {.rows = 1, .window = 1, .compressed = 1}, {{"sinks", 1}});
  add("17 rows", {.rows = 17, .window = 9, .compressed = 5, .window_page = 64}, {});
  add("no sink and no lse", {.rows = 1, .window = 16, .compressed = 16}, {}, {"lse", "sink"});
  add("sinks at 88", {.rows = 1, .window = 32, .compressed = 3}, {{"sinks", 3}});
  add("sinks at -30", {.rows = 1, .window = 20, .compressed = 14}, {{"sinks", 4}});
  add("scores to +-100", {.rows = 1, .window = 36, .compressed = 33}, {{"queries", 2}}, {"sink"});
  add("equal scores", {.rows = 1, .window = 18, .compressed = 10}, {{"queries", 3}});
  add("pages of 1 and of 256 entries",
      {.rows = 1, .window = 50, .compressed = 20, .window_page = 1, .compressed_page = 256},
      {{"holes", 8}});
  add("many columns", {.rows = 1, .window = 133, .compressed = 70, .window_page = 64}, {});

  Case& strided =
      add("padded strides", {.rows = 3, .window = 21, .compressed = 19, .compressed_page = 16}, {});
  const auto more = [&](const char* stride, int64_t padding) {
    strided.strides.set(stride, strided.strides[stride] + padding);
  };
  more("window_cache_stride", 512);
  if (strided.strides.contains("compressed_cache_stride")) more("compressed_cache_stride", 48);
  strided.strides = strided.strides.merged({{"q_stride1", 520},
                                            {"q_stride0", heads * 520 + 8},
                                            {"out_stride1", 528},
                                            {"out_stride0", heads * 528 + 40},
                                            {"window_slots_stride", 24},
                                            {"compressed_slots_stride", 33},
                                            {"rope_table_stride", 67},
                                            {"lse_stride", heads + 3}});

  constexpr int64_t kMostRows = 64;
  add("near the measured size",
      {.rows = std::min(bucket["T"], kMostRows), .window = 128, .compressed = 512}, {});
  for (size_t i = 0; i < cases.size(); ++i) cases[i].seed = i + 1;
  return cases;
}

std::vector<Case> replay_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  const auto add = [&](std::string name, NamedInts knobs) {
    cases.push_back(make_case(std::move(name), fixed_sizes,
                              {.rows = 6, .window = 40, .compressed = 30}, std::move(knobs)));
    cases.back().seed = cases.size();
  };
  add("full", {});
  add("shorter, other slots", {{"lens_below", 0}});
  add("some rows are padding", {{"empty_rows", 2}, {"lens_below", 0}});
  add("all rows are padding", {{"empty_rows", 1}});
  add("holes, other sinks", {{"holes", 2}, {"sinks", 5}});
  return cases;
}

std::vector<Case> large_cases(const Sizes& fixed_sizes) {
  std::vector<Case> cases;
  // A gigabyte of queries takes the host long to draw: once is enough.
  if (fixed_sizes["window_format"] == kF1 && fixed_sizes["compressed_format"] == kNone) {
    cases.push_back(make_case("65537 rows", fixed_sizes,
                              {.rows = 65537, .window = 3, .compressed = 2},
                              {{"page_spacing", 1}}));
  }
  cases.push_back(make_case("slots beyond 2^22", fixed_sizes,
                            {.rows = 1, .window = 128, .compressed = 128},
                            {{"page_spacing", 48000}}));
  Case far = make_case("pages and rows beyond 2^31", fixed_sizes,
                       {.rows = 3, .window = 24, .compressed = 24, .window_page = 16},
                       {{"page_spacing", 1}});
  far.strides.set("window_cache_stride", int64_t{1} << 30);
  far.strides.set("out_stride0", (int64_t{1} << 31) + 8);
  cases.push_back(far);
  return cases;
}

std::vector<Sizes> further_shapes() {
  const auto shape = [](int64_t heads, int64_t window, int64_t compressed, int64_t split,
                        int64_t rope) {
    return Sizes{{"H", heads},
                 {"window_format", window},
                 {"compressed_format", compressed},
                 {"probability", split},
                 {"inverse_rope", rope}};
  };
  return {shape(16, kF2, kF1, 0, 0), shape(8, kF4, kF4, 0, 1), shape(12, kF4, kNone, 0, 0),
          shape(1, kF1, kF2, 1, 0),  shape(6, kF3, kF1, 1, 1), shape(64, kF1, kF2, 0, 1),
          shape(12, kF2, kF3, 0, 0), shape(33, kF1, kF4, 0, 0)};
}

void fill(const Case& c, const Arg& arg, std::span<const int64_t> outer, std::span<std::byte> row) {
  if (arg.name == "window_cache" || arg.name == "compressed_cache") {
    fill_page(c, arg.name == "window_cache" ? ListKind::window : ListKind::compressed, outer[0],
              {reinterpret_cast<uint8_t*>(row.data()), row.size()});
    return;
  }
  const auto put = [&](int64_t i, auto value) {
    std::memcpy(row.data() + static_cast<size_t>(i) * sizeof(value), &value, sizeof(value));
  };
  const auto count = static_cast<int64_t>(row.size()) / dtype_bytes(arg.dtype);
  if (arg.name == "q") {
    const Vector query = query_of(c, outer[0], outer[1]);
    for (int64_t e = 0; e < count; ++e) put(e, bf16_bits(query[static_cast<size_t>(e)]));
  } else if (arg.name == "sink") {
    for (int64_t h = 0; h < count; ++h) put(h, static_cast<float>(sink_of(c, h)));
  } else if (arg.name == "positions") {
    for (int64_t t = 0; t < count; ++t) put(t, static_cast<int32_t>(position_of(c, t)));
  } else if (arg.name == "rope_table") {
    for (int64_t i = 0; i < count; ++i) put(i, rope_entry(c, outer[0], i));
  } else {
    const ListKind list = arg.name.starts_with("window") ? ListKind::window : ListKind::compressed;
    if (arg.name.ends_with("lens")) {
      for (int64_t t = 0; t < count; ++t) put(t, static_cast<int32_t>(length_of(c, list, t)));
      return;
    }
    // Columns that do not count name the first page.
    const int64_t length = length_of(c, list, outer[0]);
    for (int64_t column = 0; column < count; ++column) {
      const int64_t slot = column < length ? drawn_slot(c, list, outer[0], column) : 0;
      put(column, static_cast<int32_t>(slot));
    }
  }
}

KernelLaunch oracle(const Sizes& s) {
  constexpr int64_t kHeadsPerBlock = 16;
  KernelLaunch launch{.file = "oracle.cu", .entry = "sparse_mla_decode_oracle"};
  launch.constants = {{"heads", "int", std::to_string(s["H"])},
                      {"window_format", "int", std::to_string(s["window_format"])},
                      {"compressed_format", "int", std::to_string(s["compressed_format"])},
                      {"inverse_rope", "bool", s["inverse_rope"] != 0 ? "true" : "false"}};
  launch.grid_x = {.scale = (s["H"] + kHeadsPerBlock - 1) / kHeadsPerBlock, .terms = {{"T"}}};
  launch.threads = 128;
  return launch;
}

}  // namespace

const Kit sparse_mla_decode_kit{
    .op = &sparse_mla_decode,
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
