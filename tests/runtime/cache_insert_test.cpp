// The ops that write caches, through the C interface on a simulated GPU: what readers get out of
// every format is what the source rows say; fused steps give the bits of the ops one by one; and
// offsets do not end at 32 bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "templates/kit_insert.h"
#include "templates/kit_norm.h"
#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

using templates::CacheLayout;
using templates::Quantiser;
using templates::RowBits;

constexpr uint8_t kPoison = 0xa5;
constexpr int64_t kPositions = 400;

uint16_t bf16_at(uint64_t stream, int64_t i) {
  const uint64_t draw = templates::counter_bits(7, stream, static_cast<uint64_t>(i));
  return static_cast<uint16_t>((draw & 0x8000) | (120 + (draw >> 32) % 8) << 7 | (draw & 0x7f));
}

std::vector<uint16_t> random_rows(uint64_t stream, int64_t rows, int64_t columns) {
  std::vector<uint16_t> values(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < values.size(); ++i) values[i] = bf16_at(stream, static_cast<int64_t>(i));
  return values;
}

std::vector<float> rope_table(bool has_yarn) {
  std::vector<float> table;
  for (int64_t position = 0; position < kPositions; ++position) {
    for (int64_t i = 0; i < 64; ++i) table.push_back(templates::rope_angle(has_yarn, position, i));
  }
  return table;
}

const char* format_name(CacheLayout layout) {
  constexpr const char* kNames[] = {"", "f1", "f2", "f3", "f4", "f5", "f6"};
  return kNames[static_cast<size_t>(layout)];
}

int64_t round_up_16(int64_t bytes) { return (bytes + 15) / 16 * 16; }

class CacheInsert : public testing::Test {
 protected:
  void SetUp() override {
    kiln_options options{};
    options.size = sizeof options;
    options.device = "sim:rtx-3090";
    options.store = store_.c_str();
    ASSERT_OK(kiln_open(&options, &session_));
  }
  void TearDown() override { EXPECT_OK(kiln_close(session_)); }

  void* allocate(uint64_t bytes) {
    void* memory = nullptr;
    EXPECT_OK(kiln_memory_allocate(session_, bytes, &memory));
    return memory;
  }
  template <class T>
  void write(T* to, const std::vector<T>& values) {
    EXPECT_OK(kiln_memory_write(session_, to, values.data(), values.size() * sizeof(T)));
  }
  template <class T>
  T* on_device(const std::vector<T>& values) {
    T* memory = static_cast<T*>(allocate(values.size() * sizeof(T)));
    write(memory, values);
    return memory;
  }
  template <class T>
  std::vector<T> read(const T* from, size_t count) {
    EXPECT_OK(kiln_synchronize(session_, nullptr));
    std::vector<T> values(count);
    EXPECT_OK(kiln_memory_read(session_, values.data(), from, count * sizeof(T)));
    return values;
  }
  kiln_plan* plan(const char* op, const std::string& shape) {
    kiln_plan* plan = nullptr;
    EXPECT_OK(kiln_plan_create(session_, op, shape.c_str(), &plan));
    return plan;
  }

  struct Paging {
    int64_t page_size = 0, num_pages = 0;
  };
  // Of an op that inserts: all but the rows.
  template <class Args>
  Args insert_args(uint8_t* cache, int64_t stride, Paging paging,
                   const std::vector<int32_t>& positions, const std::vector<int64_t>& slots,
                   bool has_yarn) {
    Args args{};
    args.struct_bytes = sizeof args;
    args.positions = on_device(positions);
    args.slots = on_device(slots);
    args.rope_table = on_device(rope_table(has_yarn));
    args.rope_table_stride = 64;
    args.cache = cache;
    args.cache_stride = stride;
    args.num_rows = static_cast<int64_t>(positions.size());
    args.num_positions = kPositions;
    args.page_size = paging.page_size;
    args.num_pages = paging.num_pages;
    return args;
  }

  TemporaryFolder folder_;
  std::string store_ = folder_.file("kiln.db");
  kiln_session* session_ = nullptr;
};

// A cache of one request whose pages lie in no order, with poison between them.
struct Cache {
  CacheLayout layout{};
  Quantiser quantiser{};
  int64_t page_size = 32;
  std::vector<int32_t> table{3, 0, 4};
  int64_t num_pages = 6;
  int64_t page_bytes = 0, stride = 0;
  uint8_t* memory = nullptr;
  int64_t entries = 0;
  std::vector<uint16_t> source;    // before RoPE
  std::vector<int64_t> rows;       // of the source, of each entry
  std::vector<int64_t> positions;  // that each entry rotates by
  bool has_yarn = false;

  int64_t slot(int64_t entry) const {
    return table[static_cast<size_t>(entry / page_size)] * page_size + entry % page_size;
  }
  uint16_t bits(int64_t entry, int64_t e) const {
    const auto row = [&](int64_t i) {
      return source[static_cast<size_t>(rows[static_cast<size_t>(entry)] * 512 + i)];
    };
    const int64_t position = positions[static_cast<size_t>(entry)];
    return templates::rotated_bits(
        row, 512, e, [&](int64_t i) { return templates::rope_angle(has_yarn, position, i); });
  }
  double value(int64_t entry, int64_t e) const {
    return templates::stored_value(
        layout, quantiser, [&](int64_t i) { return bits(entry, i); }, e);
  }
};

class RoundTrip : public CacheInsert {
 protected:
  Cache cache(CacheLayout layout, Quantiser quantiser, int64_t page_size, int64_t entries) {
    Cache c{.layout = layout, .quantiser = quantiser, .page_size = page_size, .entries = entries};
    c.page_bytes = page_size * templates::entry_bytes(layout);
    c.stride = round_up_16(c.page_bytes) + 48;
    c.memory =
        on_device(std::vector<uint8_t>(static_cast<size_t>(c.num_pages * c.stride), kPoison));
    return c;
  }

  // All but the rows.
  template <class Args>
  Args insert_args(const Cache& c, const std::vector<int32_t>& positions,
                   const std::vector<int64_t>& slots) {
    return CacheInsert::insert_args<Args>(c.memory, c.stride, {c.page_size, c.num_pages}, positions,
                                          slots, c.has_yarn);
  }

  // Of 70 tokens and three padded rows.
  Cache window(CacheLayout layout) {
    constexpr int64_t kTokens = 70, kRows = kTokens + 3, kFirst = 300;
    const bool is_f3 = layout == CacheLayout::f3;
    Cache c = cache(layout, is_f3 ? Quantiser::q8d : Quantiser::q8a, 32, kTokens);
    c.source = random_rows(1, kRows, 512);
    std::vector<int64_t> slots(kRows, -1);
    std::vector<int32_t> positions(kRows, -1);
    for (int64_t t = 0; t < kTokens; ++t) {
      c.rows.push_back(t);
      c.positions.push_back(kFirst + t);
      slots[static_cast<size_t>(t)] = c.slot(t);
      positions[static_cast<size_t>(t)] = static_cast<int32_t>(kFirst + t);
    }
    auto args = insert_args<kiln_window_kv_insert_args>(c, positions, slots);
    args.kv = on_device(c.source);
    args.kv_stride = 512;
    const std::string shape =
        std::string(R"({"format": ")") + format_name(layout) + R"(", "norm": "none"})";
    EXPECT_OK(kiln_window_kv_insert(plan("window_kv_insert", shape), &args, nullptr));
    return c;
  }

  // Of 141 tokens from position 0, every second of which completes an entry.
  Cache compressed(CacheLayout layout) {
    constexpr int64_t kTokens = 141, kRatio = 2;
    const Quantiser quantiser = layout == CacheLayout::f1   ? Quantiser::q8a
                                : layout == CacheLayout::f3 ? Quantiser::q8d
                                                            : Quantiser::q4n;
    Cache c = cache(layout, quantiser, 64, kTokens / kRatio);
    c.has_yarn = true;
    c.source = random_rows(2, kTokens, 512);
    std::vector<int64_t> slots(kTokens, -1);
    std::vector<int32_t> positions;
    for (int64_t p = 0; p < kTokens; ++p) {
      positions.push_back(static_cast<int32_t>(p));
      if ((p + 1) % kRatio != 0) continue;
      const int64_t entry = p / kRatio;
      slots[static_cast<size_t>(p)] = c.slot(entry);
      c.rows.push_back(p);
      c.positions.push_back(entry * kRatio);
    }
    auto args = insert_args<kiln_compressed_kv_insert_args>(c, positions, slots);
    args.latent = on_device(c.source);
    args.latent_stride = 512;
    const std::string shape =
        std::string(R"({"format": ")") + format_name(layout) + R"(", "ratio": 2})";
    EXPECT_OK(kiln_compressed_kv_insert(plan("compressed_kv_insert", shape), &args, nullptr));
    return c;
  }

  // Bytes of entries are the writer's, all others are poison.
  void expect_bytes(const Cache& c) {
    std::map<int64_t, int64_t> entry_of_slot;
    for (int64_t entry = 0; entry < c.entries; ++entry) entry_of_slot[c.slot(entry)] = entry;
    const std::vector<uint8_t> bytes = read(c.memory, static_cast<size_t>(c.num_pages * c.stride));
    int64_t wrong = 0;
    for (int64_t i = 0; i < c.num_pages * c.stride; ++i) {
      const int64_t page = i / c.stride, byte = i % c.stride;
      int want = kPoison;
      if (byte < c.page_bytes) {
        const auto found = entry_of_slot.find(
            page * c.page_size + templates::entry_of_byte(c.layout, c.page_size, byte));
        if (found != entry_of_slot.end()) {
          const RowBits row = [&](int64_t e) { return c.bits(found->second, e); };
          want = templates::entry_byte(c.layout, c.quantiser, row, c.page_size, byte);
        }
      }
      wrong += bytes[static_cast<size_t>(i)] == want ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0) << format_name(c.layout);
  }

  void expect_gathered(const Cache& c) {
    kiln_gather_dequant_kv_args args{};
    args.struct_bytes = sizeof args;
    args.cache = c.memory;
    args.cache_stride = c.stride;
    args.lens = on_device(std::vector<int32_t>{static_cast<int32_t>(c.entries)});
    args.block_table = on_device(c.table);
    args.block_table_stride = args.table_width = static_cast<int64_t>(c.table.size());
    const size_t count = static_cast<size_t>(c.entries) * 512;
    args.out = on_device(std::vector<uint16_t>(count, 0xffff));
    args.out_stride0 = static_cast<int64_t>(count);
    args.out_stride1 = 512;
    args.num_requests = 1;
    args.max_rows = c.entries;
    args.page_size = c.page_size;
    args.num_pages = c.num_pages;
    const std::string shape = std::string(R"({"format": ")") + format_name(c.layout) + "\"}";
    EXPECT_OK(kiln_gather_dequant_kv(plan("gather_dequant_kv", shape), &args, nullptr));
    const std::vector<uint16_t> out = read(args.out, count);
    for (int64_t entry = 0; entry < c.entries; ++entry) {
      for (int64_t e = 0; e < 512; ++e) {
        ASSERT_EQ(templates::bf16_double(out[static_cast<size_t>(entry * 512 + e)]),
                  c.value(entry, e))
            << format_name(c.layout) << " entry " << entry << " element " << e;
      }
    }
  }

  void expect_attended(const Cache& w, const Cache& c);
};

// Two rows: one sees all, the other a part, both with -1 among their columns.
void RoundTrip::expect_attended(const Cache& w, const Cache& c) {
  constexpr int64_t kRows = 2, kHeads = 8;
  const auto columns = [](const Cache& cache, int64_t row) {
    std::vector<int32_t> slots;
    for (int64_t entry = 0; entry < cache.entries; ++entry)
      slots.push_back(row == 1 && entry % 3 == 0 ? -1 : static_cast<int32_t>(cache.slot(entry)));
    return slots;
  };
  const std::vector<uint16_t> q = random_rows(3, kRows, kHeads * 512);
  kiln_sparse_mla_decode_args args{};
  args.struct_bytes = sizeof args;
  args.q = on_device(q);
  args.q_stride0 = args.out_stride0 = kHeads * 512;
  args.q_stride1 = args.out_stride1 = 512;
  const auto lists = [&](const Cache& cache, const int32_t*& slots, const int32_t*& lens) {
    std::vector<int32_t> both;
    for (int64_t row = 0; row < kRows; ++row) {
      for (const int32_t slot : columns(cache, row)) both.push_back(slot);
    }
    slots = on_device(both);
    lens = on_device(std::vector<int32_t>(kRows, static_cast<int32_t>(cache.entries)));
  };
  lists(w, args.window_slots, args.window_lens);
  lists(c, args.compressed_slots, args.compressed_lens);
  args.window_slots_stride = args.window_width = w.entries;
  args.compressed_slots_stride = args.compressed_width = c.entries;
  args.window_cache = w.memory;
  args.window_cache_stride = w.stride;
  args.window_page_size = w.page_size;
  args.num_window_pages = w.num_pages;
  args.compressed_cache = c.memory;
  args.compressed_cache_stride = c.stride;
  args.compressed_page_size = c.page_size;
  args.num_compressed_pages = c.num_pages;
  const size_t count = kRows * kHeads * 512;
  args.out = on_device(std::vector<uint16_t>(count, 0xffff));
  args.num_rows = kRows;
  const std::string shape = std::string(R"({"num_heads": 8, "window_format": ")") +
                            format_name(w.layout) + R"(", "compressed_format": ")" +
                            format_name(c.layout) +
                            R"(", "probability": "bf16", "inverse_rope": "none"})";
  const std::string workload = R"({"ops": [{"op": "sparse_mla_decode", "shape": )" + shape + "}]}";
  EXPECT_OK(kiln_prepare(session_, workload.c_str(), nullptr, nullptr));
  kiln_plan* decode = plan("sparse_mla_decode", shape);
  EXPECT_OK(kiln_sparse_mla_decode_workspace(decode, &args, &args.workspace_bytes));
  if (args.workspace_bytes > 0) args.workspace = allocate(args.workspace_bytes);
  EXPECT_OK(kiln_sparse_mla_decode(decode, &args, nullptr));
  const std::vector<uint16_t> out = read(args.out, count);

  double error = 0, squares = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    std::vector<std::vector<double>> keys;
    for (const Cache* cache : {&w, &c}) {
      for (int64_t entry = 0; entry < cache->entries; ++entry) {
        if (columns(*cache, row)[static_cast<size_t>(entry)] < 0) continue;
        std::vector<double>& key = keys.emplace_back();
        for (int64_t e = 0; e < 512; ++e) key.push_back(cache->value(entry, e));
      }
    }
    for (int64_t head = 0; head < kHeads; ++head) {
      const size_t first = static_cast<size_t>((row * kHeads + head) * 512);
      std::vector<double> scores, sums(512);
      double total = 0;
      for (const std::vector<double>& key : keys) {
        double dot = 0;
        for (size_t e = 0; e < 512; ++e) dot += templates::bf16_double(q[first + e]) * key[e];
        scores.push_back(std::exp(dot / std::sqrt(512.0)));
        total += scores.back();
        for (size_t e = 0; e < 512; ++e) sums[e] += scores.back() * key[e];
      }
      for (size_t e = 0; e < 512; ++e) {
        error += std::pow(templates::bf16_double(out[first + e]) - sums[e] / total, 2);
        squares += std::pow(sums[e] / total, 2);
      }
    }
  }
  EXPECT_GT(squares, 0);
  EXPECT_LT(std::sqrt(error / squares), 1.0 / 256) << shape;
}

TEST_F(RoundTrip, ReadersGetWhatTheSourceRowsSay) {
  const std::pair<CacheLayout, CacheLayout> pairs[] = {{CacheLayout::f1, CacheLayout::f1},
                                                       {CacheLayout::f1, CacheLayout::f2},
                                                       {CacheLayout::f3, CacheLayout::f3},
                                                       {CacheLayout::f4, CacheLayout::f4}};
  for (const auto& [window_layout, compressed_layout] : pairs) {
    const Cache w = window(window_layout), c = compressed(compressed_layout);
    for (const Cache* one : {&w, &c}) {
      expect_bytes(*one);
      expect_gathered(*one);
    }
    expect_attended(w, c);
  }
}

// --- fused steps beside the ops one by one

class FusedAndUnfused : public CacheInsert {
 protected:
  static constexpr int64_t kRows = 33;

  // Rows of any bits, so that no step may rely on finite numbers.
  std::vector<uint16_t> any_rows(int64_t columns) {
    std::vector<uint16_t> values(static_cast<size_t>(kRows * columns));
    for (size_t i = 0; i < values.size(); ++i) {
      const bool is_any = templates::counter_bits(5, 1, i) % 64 == 0;
      values[i] = is_any ? static_cast<uint16_t>(templates::counter_bits(5, 2, i))
                         : bf16_at(4, static_cast<int64_t>(i));
    }
    return values;
  }
  std::vector<int32_t> positions(int64_t step) {
    std::vector<int32_t> of_rows;
    for (int64_t t = 0; t < kRows; ++t)
      of_rows.push_back(static_cast<int32_t>(t % 11 == 10 ? -1 : t * step));
    return of_rows;
  }
  // What rows rotate by where the ratio is 2.
  static std::vector<int32_t> first_of_pairs(std::vector<int32_t> positions) {
    for (int32_t& position : positions) position = position < 0 ? position : position / 2 * 2;
    return positions;
  }

  void rotate(uint16_t* x, int64_t columns, const std::vector<int32_t>& at) {
    kiln_rope_args args{};
    args.struct_bytes = sizeof args;
    args.x = x + columns - 64;
    args.x_stride0 = columns;
    args.x_stride1 = 64;
    args.positions = on_device(at);
    args.rope_table = on_device(rope_table(true));
    args.rope_table_stride = 64;
    args.num_rows = kRows;
    args.num_positions = kPositions;
    EXPECT_OK(
        kiln_rope(plan("rope", R"({"num_heads": 1, "direction": "forward"})"), &args, nullptr));
  }

  struct Quantised {
    std::vector<uint8_t> codes, scales;
    std::vector<uint16_t> y;
  };
  Quantised quantise(const uint16_t* x, int64_t stride, const std::string& format, int64_t columns,
                     int64_t code_bytes, int64_t groups, bool is_bf16) {
    kiln_act_quant_args args{};
    args.struct_bytes = sizeof args;
    args.x = x;
    args.x_stride = stride;
    args.codes_stride = code_bytes;
    args.scales_stride = groups;
    args.y_stride = columns;
    if (is_bf16) {
      args.y = on_device(std::vector<uint16_t>(static_cast<size_t>(kRows * columns)));
    } else {
      args.codes = on_device(std::vector<uint8_t>(static_cast<size_t>(kRows * code_bytes)));
      args.scales = on_device(std::vector<uint8_t>(static_cast<size_t>(kRows * groups)));
    }
    args.num_rows = kRows;
    const std::string shape = R"({"format": ")" + format + R"(", "columns": )" +
                              std::to_string(columns) + R"(, "output": ")" +
                              (is_bf16 ? "bf16" : "codes") + "\"}";
    EXPECT_OK(kiln_act_quant(plan("act_quant", shape), &args, nullptr));
    if (is_bf16) return {.y = read(args.y, static_cast<size_t>(kRows * columns))};
    return {.codes = read(args.codes, static_cast<size_t>(kRows * code_bytes)),
            .scales = read(args.scales, static_cast<size_t>(kRows * groups))};
  }

  // A page that holds all rows in order.
  uint8_t* page(int64_t bytes) {
    return on_device(std::vector<uint8_t>(static_cast<size_t>(bytes), kPoison));
  }

  template <class Args>
  Args insert_args(uint8_t* cache, int64_t bytes, const std::vector<int32_t>& at) {
    std::vector<int64_t> slots_in_order;
    for (int64_t t = 0; t < kRows; ++t) slots_in_order.push_back(t);
    return CacheInsert::insert_args<Args>(cache, bytes, {kRows, 1}, at, slots_in_order, true);
  }

  static std::vector<uint8_t> bytes_of(const std::vector<uint16_t>& values) {
    std::vector<uint8_t> bytes(values.size() * 2);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  static std::vector<uint8_t> joined(std::vector<uint8_t> a, const std::vector<uint8_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  // Codes and 64 bf16 a row, then scales and a zero.
  std::vector<uint8_t> f3_page(const uint16_t* x) {
    const Quantised q = quantise(x, 512, "q8d", 448, 448, 7, false);
    const std::vector<uint8_t> rows = bytes_of(read(x, kRows * 512));
    std::vector<uint8_t> bytes, scales;
    for (int64_t t = 0; t < kRows; ++t) {
      bytes.insert(bytes.end(), q.codes.begin() + t * 448, q.codes.begin() + (t + 1) * 448);
      bytes.insert(bytes.end(), rows.begin() + t * 1024 + 896, rows.begin() + (t + 1) * 1024);
      scales.insert(scales.end(), q.scales.begin() + t * 7, q.scales.begin() + (t + 1) * 7);
      scales.push_back(0);
    }
    return joined(bytes, scales);
  }
};

TEST_F(FusedAndUnfused, WindowKvInsertIsRopeThenActQuant) {
  const std::vector<int32_t> at = positions(7);
  const uint16_t* x = on_device(any_rows(512));
  uint16_t* rotated = on_device(any_rows(512));
  rotate(rotated, 512, at);
  const auto inserted = [&](const char* format, int64_t entry_bytes) {
    const int64_t bytes = kRows * entry_bytes;
    uint8_t* cache = page(bytes);
    auto args = insert_args<kiln_window_kv_insert_args>(cache, bytes, at);
    args.kv = x;
    args.kv_stride = 512;
    const std::string shape = std::string(R"({"format": ")") + format + R"(", "norm": "none"})";
    EXPECT_OK(kiln_window_kv_insert(plan("window_kv_insert", shape), &args, nullptr));
    return read(cache, static_cast<size_t>(bytes));
  };
  const Quantised q = quantise(rotated, 512, "q8a", 512, 512, 16, false);
  EXPECT_EQ(inserted("f1", 528), joined(q.codes, q.scales));
  EXPECT_EQ(inserted("f3", 584), f3_page(rotated));
  EXPECT_EQ(inserted("f4", 1024), bytes_of(quantise(rotated, 512, "q8a", 512, 0, 0, true).y));
}

TEST_F(FusedAndUnfused, WindowKvInsertWithItsNormIsRmsNormBefore) {
  const std::vector<int32_t> at = positions(3);
  const uint16_t* kv = on_device(any_rows(512));
  const uint16_t* weight = on_device(random_rows(9, 1, 512));
  kiln_rms_norm_args norm{};
  norm.struct_bytes = sizeof norm;
  norm.x = kv;
  norm.weight = weight;
  norm.y = on_device(std::vector<uint16_t>(kRows * 512));
  norm.x_stride = norm.y_stride = 512;
  norm.num_rows = kRows;
  EXPECT_OK(kiln_rms_norm(plan("rms_norm", R"({"columns": 512})"), &norm, nullptr));
  for (const char* format : {"f1", "f3", "f4"}) {
    std::vector<uint8_t> pages[2];
    for (const bool is_fused : {false, true}) {
      const int64_t bytes = kRows * 1024;
      uint8_t* cache = page(bytes);
      auto args = insert_args<kiln_window_kv_insert_args>(cache, bytes, at);
      args.kv = is_fused ? kv : norm.y;
      args.kv_stride = 512;
      args.weight = is_fused ? weight : nullptr;
      const std::string shape = std::string(R"({"format": ")") + format + R"(", "norm": ")" +
                                (is_fused ? "rms" : "none") + "\"}";
      EXPECT_OK(kiln_window_kv_insert(plan("window_kv_insert", shape), &args, nullptr));
      pages[is_fused ? 1 : 0] = read(cache, static_cast<size_t>(bytes));
    }
    EXPECT_EQ(pages[0], pages[1]) << format;
    EXPECT_NE(pages[0][0], kPoison);
  }
}

TEST_F(FusedAndUnfused, CompressedKvInsertIsRopeAtTheGroupThenActQuant) {
  const uint16_t* x = on_device(any_rows(512));
  uint16_t* rotated = on_device(any_rows(512));
  const std::vector<int32_t> at = positions(5);
  rotate(rotated, 512, first_of_pairs(at));
  const auto inserted = [&](const char* format, int64_t entry_bytes) {
    const int64_t bytes = kRows * entry_bytes;
    uint8_t* cache = page(bytes);
    auto args = insert_args<kiln_compressed_kv_insert_args>(cache, bytes, at);
    args.latent = x;
    args.latent_stride = 512;
    const std::string shape = std::string(R"({"format": ")") + format + R"(", "ratio": 2})";
    EXPECT_OK(kiln_compressed_kv_insert(plan("compressed_kv_insert", shape), &args, nullptr));
    return read(cache, static_cast<size_t>(bytes));
  };
  const Quantised q8a = quantise(rotated, 512, "q8a", 512, 512, 16, false);
  EXPECT_EQ(inserted("f1", 528), joined(q8a.codes, q8a.scales));
  const Quantised q = quantise(rotated, 512, "q4n", 512, 256, 32, false);
  EXPECT_EQ(inserted("f2", 288), joined(q.codes, q.scales));
  EXPECT_EQ(inserted("f3", 584), f3_page(rotated));
  EXPECT_EQ(inserted("f4", 1024), bytes_of(quantise(rotated, 512, "q4n", 512, 0, 0, true).y));
}

TEST_F(FusedAndUnfused, IndexKeyInsertIsRmsNormThenRopeThenActQuant) {
  const std::vector<int32_t> at = positions(5);  // odd ones too: ratio 2 has to matter
  const uint16_t* k = on_device(any_rows(128));
  const uint16_t* weight = on_device(random_rows(6, 1, 128));
  kiln_rms_norm_args norm{};
  norm.struct_bytes = sizeof norm;
  norm.x = k;
  norm.weight = weight;
  norm.y = on_device(std::vector<uint16_t>(kRows * 128));
  norm.x_stride = norm.y_stride = 128;
  norm.num_rows = kRows;
  EXPECT_OK(kiln_rms_norm(plan("rms_norm", R"({"columns": 128})"), &norm, nullptr));
  rotate(norm.y, 128, first_of_pairs(at));
  const Quantised q = quantise(norm.y, 128, "q4m", 128, 64, 4, false);

  const int64_t bytes = kRows * 68;
  uint8_t* cache = page(bytes);
  auto args = insert_args<kiln_index_key_insert_args>(cache, bytes, at);
  args.k = k;
  args.k_stride = 128;
  args.weight = weight;
  EXPECT_OK(kiln_index_key_insert(plan("index_key_insert", R"({"format": "f5", "ratio": 2})"),
                                  &args, nullptr));
  EXPECT_EQ(read(cache, static_cast<size_t>(bytes)), joined(q.codes, q.scales));
}

// --- 64-bit offsets. The simulated memory is only there where it is touched.

class FarInserts : public CacheInsert {
 protected:
  // One row in row 2 of kv, at position 2, to the last slot.
  void expect_written(int64_t num_pages, int64_t cache_stride, int64_t kv_stride,
                      int64_t table_stride) {
    const std::vector<uint16_t> row = random_rows(8, 1, 512);
    std::vector<float> angles;
    for (int64_t i = 0; i < 64; ++i) angles.push_back(templates::rope_angle(false, 2, i));
    kiln_window_kv_insert_args args{};
    args.struct_bytes = sizeof args;
    auto* kv = static_cast<uint16_t*>(allocate(static_cast<uint64_t>(2 * kv_stride + 512) * 2));
    write(kv + 2 * kv_stride, row);
    write(kv, row);
    write(kv + kv_stride, row);
    auto* table = static_cast<float*>(allocate(static_cast<uint64_t>(2 * table_stride + 64) * 4));
    write(table + 2 * table_stride, angles);
    auto* cache = static_cast<uint8_t*>(
        allocate(static_cast<uint64_t>((num_pages - 1) * cache_stride + 528)));
    args.kv = kv;
    args.kv_stride = kv_stride;
    args.positions = on_device(std::vector<int32_t>{-1, -1, 2});
    args.slots = on_device(std::vector<int64_t>{-1, num_pages, num_pages - 1});
    args.rope_table = table;
    args.rope_table_stride = table_stride;
    args.cache = cache;
    args.cache_stride = cache_stride;
    args.num_rows = 3;
    args.num_positions = 3;
    args.page_size = 1;
    args.num_pages = num_pages;
    EXPECT_OK(kiln_window_kv_insert(plan("window_kv_insert", R"({"format": "f1", "norm": "none"})"),
                                    &args, nullptr));
    const std::vector<uint8_t> bytes = read(cache + (num_pages - 1) * cache_stride, 528);
    const RowBits rotated = [&](int64_t e) {
      return templates::rotated_bits([&](int64_t i) { return row[static_cast<size_t>(i)]; }, 512, e,
                                     [&](int64_t i) { return angles[static_cast<size_t>(i)]; });
    };
    for (int64_t byte = 0; byte < 528; ++byte) {
      ASSERT_EQ(bytes[static_cast<size_t>(byte)],
                templates::entry_byte(CacheLayout::f1, Quantiser::q8a, rotated, 1, byte))
          << byte;
    }
    for (void* memory :
         {static_cast<void*>(kv), static_cast<void*>(table), static_cast<void*>(cache)})
      EXPECT_OK(kiln_memory_free(session_, memory));
  }
};

TEST_F(FarInserts, SlotsBeyond2To22) { expect_written((int64_t{1} << 22) + 3, 528, 512, 64); }

TEST_F(FarInserts, PagesOf149760BytesBeyond2GiB) { expect_written(14'341, 149'760, 512, 64); }

TEST_F(FarInserts, StridesBeyond2To31) {
  expect_written(3, (int64_t{1} << 31) + 16, 512, 64);
  expect_written(2, 528, (int64_t{1} << 31) + 8, 64);
  expect_written(2, 528, 512, (int64_t{1} << 31) + 4);
}

}  // namespace
}  // namespace kiln::runtime
