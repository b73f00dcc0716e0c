#include "templates/kit_insert.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "templates/kit_batch.h"
#include "templates/kit_norm.h"

namespace kiln::templates {
namespace {

enum Stream : uint64_t { kBadSlot = 16, kBadSlotValue, kBadPosition, kPosition, kEntry, kWeight };

constexpr int64_t kRopeDims = 64;
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr int64_t kMinInt64 = std::numeric_limits<int64_t>::min();

struct LayoutRow {
  CacheLayout layout;
  int64_t code_bytes, scale_bytes;  // of an entry
};
constexpr LayoutRow kLayouts[] = {
    {CacheLayout::f1, 512, 16}, {CacheLayout::f2, 256, 32}, {CacheLayout::f3, 576, 8},
    {CacheLayout::f4, 1024, 0}, {CacheLayout::f5, 64, 4},   {CacheLayout::f6, 128, 4},
};
const LayoutRow& layout_row(CacheLayout layout) {
  return kLayouts[static_cast<size_t>(layout) - 1];
}

bool is_tail_of_f3(CacheLayout layout, int64_t element) {
  return layout == CacheLayout::f3 && element >= 448;
}

GroupScale scale_at(Quantiser quantiser, const RowBits& row, int64_t group) {
  const int64_t size = group_of(quantiser);
  std::vector<uint16_t> bits;
  for (int64_t e = group * size; e < (group + 1) * size; ++e) bits.push_back(row(e));
  return group_scale(quantiser, bits);
}

QuantisedElement element_at(Quantiser quantiser, const RowBits& row, int64_t e) {
  return quantised_element(quantiser, scale_at(quantiser, row, e / group_of(quantiser)), row(e));
}

int byte_of_bf16(uint16_t bits, int64_t byte) { return byte % 2 == 0 ? bits & 0xff : bits >> 8; }

// Code 256 times the largest scale is an infinity.
uint16_t fake_bits(const QuantisedElement& element) {
  return std::isnan(element.value) ? 0x7fc0 : float_to_bf16(element.value);
}

// Of the fp32 scale of F6.
int byte_of_float(const GroupScale& scale, int64_t byte) {
  const auto value = static_cast<float>(scale.value);
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if (std::isnan(scale.value)) bits = 0x7fc00000;
  return static_cast<int>(bits >> (8 * byte) & 0xff);
}

// --- pages

int64_t page_spacing(const Case& c) { return c.knobs.get("page_spacing", 2); }
int64_t pages_in_use(const Case& c) { return c.sizes["num_pages"] / page_spacing(c); }

// A rotation of the reversed order, and back.
int64_t page_of(const Case& c, int64_t index) {
  const int64_t used = pages_in_use(c);
  return page_spacing(c) * ((2 * used - 1 - index + static_cast<int64_t>(c.seed) % used) % used);
}
int64_t index_of(const Case& c, int64_t page) {
  const int64_t used = pages_in_use(c);
  return (2 * used - 1 - page / page_spacing(c) + static_cast<int64_t>(c.seed) % used) % used;
}

// The number of a row's entry among all entries of the pages in use.
int64_t entry_of_row(const Case& c, int64_t t) {
  const int64_t page_size = c.sizes["page_size"];
  if (c.knobs.get("spread", 0) == 0) return c.knobs.get("first_entry", 0) + t;
  return t * page_size + counter_range(c.seed, kEntry, static_cast<uint64_t>(t), 0, page_size - 1);
}

std::optional<int64_t> row_of(const Case& c, int64_t page, int64_t r) {
  if (page % page_spacing(c) != 0) return std::nullopt;
  const int64_t index = index_of(c, page);
  const int64_t entry = index * c.sizes["page_size"] + r;
  const int64_t t = c.knobs.get("spread", 0) != 0 ? index : entry - c.knobs.get("first_entry", 0);
  if (t < 0 || t >= c.sizes["T"] || entry_of_row(c, t) != entry) return std::nullopt;
  if (slot_of(c, t) != page * c.sizes["page_size"] + r) return std::nullopt;
  return t;
}

}  // namespace

int64_t entry_bytes(CacheLayout layout) {
  return layout_row(layout).code_bytes + layout_row(layout).scale_bytes;
}

int64_t entry_of_byte(CacheLayout layout, int64_t page_size, int64_t byte) {
  const LayoutRow& of = layout_row(layout);
  const int64_t codes = page_size * of.code_bytes;
  return byte < codes ? byte / of.code_bytes : (byte - codes) / of.scale_bytes;
}

int entry_byte(CacheLayout layout, Quantiser quantiser, const RowBits& row, int64_t page_size,
               int64_t byte) {
  const LayoutRow& of = layout_row(layout);
  const int64_t codes = page_size * of.code_bytes;
  if (byte >= codes) {
    const int64_t at = (byte - codes) % of.scale_bytes;
    if (layout == CacheLayout::f6) return byte_of_float(scale_at(quantiser, row, 0), at);
    if (layout == CacheLayout::f3 && at == 7) return 0;
    return scale_at(quantiser, row, at).byte;
  }
  const int64_t at = byte % of.code_bytes;
  switch (layout) {
    case CacheLayout::f1:
    case CacheLayout::f6:
      return element_at(quantiser, row, at).code;
    case CacheLayout::f2:
    case CacheLayout::f5:
      return element_at(quantiser, row, 2 * at).code | element_at(quantiser, row, 2 * at + 1).code
                                                           << 4;
    case CacheLayout::f3:
      if (at >= 448) return byte_of_bf16(row(448 + (at - 448) / 2), at);
      return element_at(quantiser, row, at).code;
    case CacheLayout::f4:
      return byte_of_bf16(fake_bits(element_at(quantiser, row, at / 2)), at);
  }
  fail(Status::internal, "unknown cache layout {}", static_cast<int64_t>(layout));
}

double stored_value(CacheLayout layout, Quantiser quantiser, const RowBits& row, int64_t e) {
  return is_tail_of_f3(layout, e) ? bf16_double(row(e)) : element_at(quantiser, row, e).value;
}

InputRows insert_input(const InsertOp& insert, const Case& c) {
  return {.input = static_cast<QuantiserInput>(c.knobs.get("values", 0)),
          .quantiser = insert.quantiser(c.sizes),
          .columns = insert.width,
          .seed = c.seed};
}

int64_t slot_of(const Case& c, int64_t t) {
  const int64_t page_size = c.sizes["page_size"];
  const int64_t slots = c.sizes["num_pages"] * page_size;
  if (pages_in_use(c) == 0) return t % 2 == 0 ? -1 : t;
  if (one_in(c, "bad_slots", kBadSlot, t)) {
    const int64_t bad[] = {-1,         -1,
                           -page_size, kMinInt64,
                           slots,      slots + (int64_t{1} << 32),
                           kMaxInt64,  int64_t{1} << 32};
    return bad[counter_range(c.seed, kBadSlotValue, static_cast<uint64_t>(t), 0, 7)];
  }
  const int64_t entry = entry_of_row(c, t);
  return page_of(c, entry / page_size) * page_size + entry % page_size;
}

int64_t position_of(const Case& c, int64_t t) {
  const int64_t positions = c.sizes["P"];
  if (one_in(c, "bad_positions", kBadPosition, t)) {
    const int64_t bad[] = {-1, positions, kLargestInt32, kLeastInt32};
    return bad[t % 4];
  }
  if (positions == 0) return 0;
  return c.knobs.get("position",
                     counter_range(c.seed, kPosition, static_cast<uint64_t>(t), 0, positions - 1));
}

uint16_t norm_weight_bits(const Case& c, int64_t column) {
  const uint64_t draw = counter_bits(c.seed, kWeight, static_cast<uint64_t>(column));
  const auto exponent = static_cast<int64_t>(122 + (draw >> 32) % 8);
  return static_cast<uint16_t>((draw & 0x8000) | exponent << 7 | (draw & 0x7f));
}

// Bytes come row by row, so the last factor is kept.
RowBits normalised_row(const InsertOp& insert, const Case& c, int64_t row) {
  struct Kept {
    Case of;
    int64_t row = -1;
    float factor = 0;
  };
  thread_local Kept kept;
  const InputRows input = insert_input(insert, c);
  const bool is_same = kept.row == row && kept.of.seed == c.seed && kept.of.knobs == c.knobs &&
                       kept.of.sizes == c.sizes;
  if (!is_same) {
    const auto source = [&](int64_t column) { return input.bits(row, column); };
    kept = {c, row, norm_factor(source, insert.width)};
  }
  const float factor = kept.factor;
  return [=](int64_t column) {
    return normalised_bits(input.bits(row, column), factor, norm_weight_bits(c, column));
  };
}

std::optional<RowBits> written_row(const InsertOp& insert, const Case& c, int64_t t) {
  const int64_t position = position_of(c, t), slot = slot_of(c, t);
  if (slot < 0 || slot >= c.sizes["num_pages"] * c.sizes["page_size"]) return std::nullopt;
  const InputRows input = insert_input(insert, c);
  RowBits before = [input, t](int64_t e) { return input.bits(t, e); };
  if (insert.before_rope != nullptr) before = insert.before_rope(c, t);
  const int64_t ratio = c.sizes.get("ratio", 1);
  const int64_t first = position / ratio * ratio;
  const bool rotates = position >= 0 && position < c.sizes["P"];
  const bool has_yarn = insert.has_yarn;
  const int64_t width = insert.width;
  return [=](int64_t e) {
    if (!rotates) return before(e);
    return rotated_bits(before, width, e,
                        [=](int64_t i) { return rope_angle(has_yarn, first, i); });
  };
}

// --- cases

namespace {

struct CaseSizes {
  int64_t rows = 0;
  int64_t page_size = 32;
  int64_t table_rows = 300;
  int64_t pages = -1;  // in use; left out: as many as the rows need
};

Case make_case(std::string name, const Sizes& fixed, const CaseSizes& sizes, NamedInts knobs,
               uint64_t seed) {
  Case c{.name = std::move(name), .knobs = std::move(knobs), .seed = seed};
  const int64_t entries = c.knobs.get("first_entry", 0) + sizes.rows;
  const int64_t needed = c.knobs.get("spread", 0) != 0
                             ? sizes.rows
                             : (entries + sizes.page_size - 1) / sizes.page_size;
  const int64_t pages = sizes.pages >= 0 ? sizes.pages : std::max<int64_t>(needed, 1);
  c.sizes = fixed.merged({{"T", sizes.rows},
                          {"P", sizes.table_rows},
                          {"page_size", sizes.page_size},
                          {"num_pages", page_spacing(c) * pages}});
  return c;
}

int64_t values(QuantiserInput input) { return static_cast<int64_t>(input); }

}  // namespace

// Decode: every row in a page of its own; prefill: neighbours.
Case insert_measured_case(const InsertOp& insert, const Sizes& fixed, const Sizes& bucket) {
  constexpr int64_t kMostDecodeRows = 256;
  const bool is_decode = bucket["T"] <= kMostDecodeRows;
  return make_case("measured", fixed,
                   {.rows = bucket["T"], .page_size = insert.page_size, .table_rows = 8192},
                   {{"spread", is_decode ? 1 : 0}, {"page_spacing", 1}}, 1);
}

std::vector<Case> insert_verify_cases(const InsertOp& insert, const Sizes& fixed,
                                      const Sizes& bucket) {
  const InputRows input{.quantiser = insert.quantiser(fixed), .columns = insert.width};
  std::vector<Case> cases;
  // At position 0 nothing rotates, so that the quantiser meets its edges.
  cases.push_back(make_case("vectors and edges", fixed,
                            {.rows = input.rows_of(groups_of_vectors())},
                            {{"values", values(QuantiserInput::vectors)}, {"position", 0}}, 1));
  cases.push_back(make_case("ties under every scale", fixed,
                            {.rows = input.rows_of(groups_of_ties(input.quantiser))},
                            {{"values", values(QuantiserInput::ties)}, {"position", 0}}, 1));
  cases.push_back(make_case("no row", fixed, {.rows = 0}, {}, 1));
  for (const int64_t rows : {1, 2, 3, 5}) {
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed, {.rows = rows, .page_size = 7},
                              {{"first_entry", rows}}, static_cast<uint64_t>(rows)));
  }
  cases.push_back(make_case("any bits", fixed, {.rows = 40},
                            {{"values", values(QuantiserInput::any_bits)}, {"spread", 0}}, 2));
  cases.push_back(make_case("rows without a slot", fixed, {.rows = 67, .page_size = 7},
                            {{"bad_slots", 3}, {"first_entry", 3}}, 3));
  cases.push_back(make_case("no row has a slot", fixed, {.rows = 9}, {{"bad_slots", 1}}, 4));
  cases.push_back(
      make_case("positions beyond the table", fixed, {.rows = 21}, {{"bad_positions", 3}}, 5));
  cases.push_back(make_case("no page", fixed, {.rows = 4, .pages = 0}, {}, 6));
  cases.push_back(
      make_case("no position in the table", fixed, {.rows = 4, .table_rows = 0}, {}, 7));
  cases.push_back(make_case("pages of one entry", fixed, {.rows = 17, .page_size = 1}, {}, 8));
  cases.push_back(make_case("a page to each row", fixed, {.rows = 6, .page_size = 64},
                            {{"spread", 1}, {"page_spacing", 3}}, 9));
  Case strided = make_case("padded strides", fixed, {.rows = 13, .page_size = 5},
                           {{"bad_slots", 5}, {"values", values(QuantiserInput::any_bits)}}, 10);
  // Pages at an odd multiple of the least that the op asks for.
  const int64_t least = insert.op->find_arg("cache")->stride_multiple;
  const int64_t page_bytes = 5 * entry_bytes(insert.layout(fixed));
  strided.strides = {{std::string(insert.source) + "_stride", insert.width + 24},
                     {"rope_table_stride", kRopeDims + 12},
                     {"cache_stride", (page_bytes + 15) / 16 * 16 + 32 + least}};
  strided.knobs.set("page_spacing", 1);
  cases.push_back(strided);
  cases.push_back(make_case("near the measured size", fixed,
                            {.rows = std::min<int64_t>(bucket["T"], 4096),
                             .page_size = insert.page_size,
                             .table_rows = 4096},
                            {{"bad_slots", 50}}, 11));
  return cases;
}

std::vector<Case> insert_replay_cases(const InsertOp&, const Sizes& fixed) {
  const auto with = [&](std::string name, NamedInts knobs, uint64_t seed) {
    return make_case(std::move(name), fixed, {.rows = 37, .pages = 3}, std::move(knobs), seed);
  };
  return {
      with("full", {}, 1),
      with("other slots and positions", {{"first_entry", 11}}, 2),
      with("padded rows", {{"bad_slots", 2}}, 3),
      with("no row has a slot", {{"bad_slots", 1}}, 4),
      with("any bits", {{"values", values(QuantiserInput::any_bits)}}, 5),
  };
}

std::vector<Case> insert_large_cases(const InsertOp& insert, const Sizes& fixed) {
  std::vector<Case> cases;
  for (const int64_t rows : {65535, 65536, 65537})
    cases.push_back(make_case(fmt::format("{} rows", rows), fixed, {.rows = rows},
                              {{"page_spacing", 1}, {"bad_slots", 100}}, 1));
  // The last slots lie beyond 2^22, and beyond 2^31 bytes but for index keys.
  cases.push_back(make_case("slots beyond 2^22", fixed, {.rows = 640, .page_size = 64},
                            {{"page_spacing", 7501}}, 2));
  Case far = make_case("pages, rows and angles beyond 2^31", fixed,
                       {.rows = 3, .page_size = 1, .table_rows = 3}, {{"page_spacing", 1}}, 3);
  constexpr int64_t kFar = (int64_t{1} << 30) + 64;
  far.strides = {{std::string(insert.source) + "_stride", kFar},
                 {"rope_table_stride", kFar / 2},
                 {"cache_stride", kFar + kFar / 4}};
  cases.push_back(far);
  return cases;
}

void insert_fill(const InsertOp& insert, const Case& c, const Arg& arg,
                 std::span<const int64_t> outer, std::span<std::byte> row) {
  const auto put = [&]<class T>(T, const auto& value) {
    auto* values = reinterpret_cast<T*>(row.data());
    for (size_t i = 0; i < row.size() / sizeof(T); ++i)
      values[i] = static_cast<T>(value(static_cast<int64_t>(i)));
  };
  if (arg.name == "weight") {
    put(uint16_t{}, [&](int64_t column) { return norm_weight_bits(c, column); });
  } else if (arg.name == insert.source) {
    const InputRows input = insert_input(insert, c);
    put(uint16_t{}, [&](int64_t e) { return input.bits(outer[0], e); });
  } else if (arg.name == "positions") {
    put(int32_t{}, [&](int64_t t) { return position_of(c, t); });
  } else if (arg.name == "slots") {
    put(int64_t{}, [&](int64_t t) { return slot_of(c, t); });
  } else if (arg.name == "rope_table") {
    put(float{}, [&](int64_t i) { return rope_angle(insert.has_yarn, outer[0], i); });
  } else {
    fail(Status::internal, "{}: nothing is known about the argument {}", insert.op->name, arg.name);
  }
}

std::optional<double> insert_expected(const InsertOp& insert, const Case& c,
                                      std::span<const int64_t> index) {
  const CacheLayout layout = insert.layout(c.sizes);
  const int64_t page_size = c.sizes["page_size"];
  const std::optional<int64_t> t = row_of(c, index[0], entry_of_byte(layout, page_size, index[1]));
  if (!t) return std::nullopt;
  const std::optional<RowBits> row = written_row(insert, c, *t);
  if (!row) return std::nullopt;
  return entry_byte(layout, insert.quantiser(c.sizes), *row, page_size, index[1]);
}

std::vector<ElementRange> insert_written_by(const InsertOp& insert, const Case& c, int64_t t) {
  const int64_t page_size = c.sizes["page_size"], slot = slot_of(c, t);
  if (slot < 0 || slot >= c.sizes["num_pages"] * page_size) return {};
  const LayoutRow& of = layout_row(insert.layout(c.sizes));
  const int64_t page = slot / page_size, r = slot % page_size;
  return {{{page}, r * of.code_bytes, of.code_bytes},
          {{page}, page_size * of.code_bytes + r * of.scale_bytes, of.scale_bytes}};
}

}  // namespace kiln::templates
