// Two requests whose contexts grow step by step on a simulated GPU, with odd borders and with
// speculation that is taken back: the latents that compressor_update leaves, and the slots of
// topk_to_slots and window_slots, against a float64 reference that knows tokens alone, no rings and
// no pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

constexpr int kRequests = 2, kChannels = 512, kTopK = 512, kWindow = 128, kBlockRows = 8;
constexpr int kPageSize = 16, kTableWidth = 64, kPages = 160;

// Positions [begin, end) of a request in a step; tokens from `true_end` on will be taken back.
struct Chunk {
  int begin, end, true_end;
};
struct Step {
  Chunk chunks[kRequests];
};
// Borders at 1, 2, 3, 127, 128, 129, 512 for one request; chunks as long as that for the other.
constexpr Step kSteps[] = {
    {{{0, 1, 1}, {0, 1, 1}}},
    {{{1, 2, 2}, {1, 3, 3}}},
    {{{2, 3, 3}, {3, 6, 6}}},
    {{{3, 127, 127}, {6, 133, 133}}},
    {{{127, 128, 128}, {133, 261, 261}}},
    {{{128, 129, 129}, {261, 267, 261}}},
    {{{129, 135, 131}, {261, 390, 390}}},
    {{{131, 512, 512}, {390, 902, 902}}},
};

// The finaliser of SplitMix64.
uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

class Source {
 public:
  explicit Source(int ratio) : ratio_(ratio) {}

  // `is_true` false: a draft that will be taken back.
  float value(int b, int position, int channel, bool is_true) const {
    return 4 * unit(b, position, channel, is_true ? 0 : 1);
  }
  float score(int b, int position, int channel, bool is_true) const {
    return 12 * unit(b, position, channel, is_true ? 2 : 3);
  }
  static uint16_t weight(int channel) {
    return static_cast<uint16_t>(0x3f00 + mixed(static_cast<uint64_t>(channel)) % 0x100);
  }

  std::vector<double> latent(int b, int entry) const {
    std::vector<double> x(kChannels);
    double sum = 0;
    for (int c = 0; c < kChannels; ++c) {
      x[static_cast<size_t>(c)] = to_bf16(pooled(b, entry, c));
      sum += x[static_cast<size_t>(c)] * x[static_cast<size_t>(c)];
    }
    const double r = 1 / std::sqrt(sum / kChannels + 1e-20);
    for (int c = 0; c < kChannels; ++c) x[static_cast<size_t>(c)] *= r * from_bf16(weight(c));
    return x;
  }
  static double from_bf16(uint16_t bits) {
    const uint32_t wide = uint32_t{bits} << 16;
    float value = 0;
    std::memcpy(&value, &wide, sizeof(value));
    return static_cast<double>(value);
  }
  static double ulp(double value) { return std::ldexp(1.0, std::ilogb(value) - 7); }

 private:
  static float unit(int b, int position, int channel, uint64_t stream) {
    const auto index = static_cast<uint64_t>((b * 4096 + position) * kChannels + channel);
    return std::ldexp(static_cast<float>(mixed(mixed(stream) ^ index) >> 40), -23) - 1;
  }
  static double to_bf16(double value) {
    return value == 0 ? 0 : std::nearbyint(value / ulp(value)) * ulp(value);
  }
  double pooled(int b, int entry, int c) const {
    if (ratio_ == 1) return value(b, entry, c, true);
    const int p = 2 * entry;
    const double score_a = score(b, p, c, true), score_b = score(b, p + 1, c, true);
    const double a = 1 / (1 + std::exp(score_b - score_a));
    return a * value(b, p, c, true) + (1 - a) * value(b, p + 1, c, true);
  }

  int ratio_;
};

// Where an entry lies, by the writer's rule of ops.md B8.
int slot_of(const std::vector<int32_t>& table, int b, int entry) {
  return table[static_cast<size_t>(b * kTableWidth + entry / kPageSize)] * kPageSize +
         entry % kPageSize;
}

class CompressorChain : public testing::Test {
 protected:
  void SetUp() override {
    kiln_options options{};
    options.size = sizeof options;
    options.device = "sim:rtx-3090";
    options.store = store_.c_str();
    ASSERT_OK(kiln_open(&options, &session_));
  }
  void TearDown() override { EXPECT_OK(kiln_close(session_)); }

  template <class T>
  T* on_device(const std::vector<T>& values) {
    void* memory = nullptr;
    EXPECT_OK(kiln_memory_allocate(session_, values.size() * sizeof(T), &memory));
    EXPECT_OK(kiln_memory_write(session_, memory, values.data(), values.size() * sizeof(T)));
    return static_cast<T*>(memory);
  }
  template <class T>
  std::vector<T> read(const T* memory, size_t count) {
    std::vector<T> values(count);
    EXPECT_OK(kiln_memory_read(session_, values.data(), memory, count * sizeof(T)));
    return values;
  }
  kiln_plan* plan(const char* op, const std::string& shape) {
    kiln_plan* plan = nullptr;
    EXPECT_OK(kiln_plan_create(session_, op, shape.c_str(), &plan));
    return plan;
  }
  // Every page of its own, in no order.
  static std::vector<int32_t> table(int factor) {
    std::vector<int32_t> pages(kRequests * kTableWidth);
    for (size_t i = 0; i < pages.size(); ++i)
      pages[i] = static_cast<int32_t>((i * static_cast<size_t>(factor) + 11) % kPages);
    return pages;
  }

  TemporaryFolder folder_;
  std::string store_ = folder_.file("kiln.db");
  kiln_session* session_ = nullptr;
};

class GrowingContext : public CompressorChain, public testing::WithParamInterface<int> {};

TEST_P(GrowingContext, EqualsTheReference) {
  const int ratio = GetParam();
  const Source source(ratio);
  const std::string compressor_shape =
      R"({"ratio": )" + std::to_string(ratio) + R"(, "rounding": "bf16"})";
  const std::string topk_shape = R"({"top_k": 512})";
  const std::string window_shape = R"({"window": 128, "form": "causal"})";
  const std::string workload = R"({"ops": [{"op": "compressor_update", "shape": )" +
                               compressor_shape + R"(}, {"op": "topk_to_slots", "shape": )" +
                               topk_shape + R"(}, {"op": "window_slots", "shape": )" +
                               window_shape + "}]}";
  ASSERT_OK(kiln_prepare(session_, workload.c_str(), nullptr, nullptr));
  ASSERT_OK(kiln_seal(session_));
  kiln_plan* compressor = plan("compressor_update", compressor_shape);
  kiln_plan* topk_to_slots = plan("topk_to_slots", topk_shape);
  kiln_plan* window_slots = plan("window_slots", window_shape);

  const std::vector<int32_t> window_table = table(37), compressed_table = table(53);
  const int32_t* window_table_memory = on_device(window_table);
  const int32_t* compressed_table_memory = on_device(compressed_table);
  // Rows that nobody has written are NaN.
  float* ring = on_device(std::vector<float>(4 * kBlockRows * 1024, std::nanf("")));
  const int32_t* ring_blocks = on_device(std::vector<int32_t>{3, 1});
  std::vector<uint16_t> weights;
  for (int c = 0; c < kChannels; ++c) weights.push_back(Source::weight(c));
  const uint16_t* norm_weight = on_device(weights);

  // What the caches hold.
  std::map<int, std::pair<int, int>> window_cache;  // slot -> request, position
  std::map<int, std::vector<uint16_t>> compressed_cache;
  std::map<int, std::pair<int, int>> compressed_owner;  // slot -> request, entry
  int64_t elements = 0, beyond_one_ulp = 0;

  for (const Step& step : kSteps) {
    struct Row {
      int b, position;
      bool is_true;
    };
    std::vector<Row> rows;
    std::vector<int32_t> starts{0}, positions, requests, topk;
    std::vector<float> projections;
    for (int b = 0; b < kRequests; ++b) {
      const Chunk& chunk = step.chunks[b];
      for (int p = chunk.begin; p < chunk.end; ++p) rows.push_back({b, p, p < chunk.true_end});
      starts.push_back(static_cast<int32_t>(rows.size()));
    }
    for (const Row& row : rows) {
      positions.push_back(row.position);
      requests.push_back(row.b);
      for (int c = 0; c < kChannels; ++c)
        projections.push_back(source.value(row.b, row.position, c, row.is_true));
      for (int c = 0; c < kChannels && ratio == 2; ++c)
        projections.push_back(source.score(row.b, row.position, c, row.is_true));
      const int visible = (row.position + 1) / ratio, chosen = std::min(visible, kTopK);
      for (int i = 0; i < kTopK; ++i) topk.push_back(i < chosen ? i * visible / chosen : -1);
    }
    const auto count = static_cast<int64_t>(rows.size());
    const int32_t* positions_memory = on_device(positions);
    const int32_t* requests_memory = on_device(requests);

    kiln_compressor_update_args pool{};
    pool.struct_bytes = sizeof pool;
    pool.projections = on_device(projections);
    pool.projections_stride = ratio * kChannels;
    pool.positions = positions_memory;
    pool.requests = requests_memory;
    pool.norm_weight = norm_weight;
    pool.latent = on_device(std::vector<uint16_t>(rows.size() * kChannels, 0xffff));
    pool.latent_stride = kChannels;
    pool.num_rows = count;
    pool.num_requests = kRequests;
    if (ratio == 2) {
      pool.query_start_loc = on_device(starts);
      pool.ring_blocks = ring_blocks;
      pool.ring = ring;
      pool.ring_stride0 = kBlockRows * 1024;
      pool.ring_stride1 = 1024;
      pool.num_blocks = 4;
      pool.block_rows = kBlockRows;
    }
    ASSERT_OK(kiln_compressor_update(compressor, &pool, nullptr));

    kiln_topk_to_slots_args compressed{};
    compressed.struct_bytes = sizeof compressed;
    compressed.topk = on_device(topk);
    compressed.topk_stride = compressed.slots_stride = kTopK;
    compressed.requests = requests_memory;
    compressed.block_table = compressed_table_memory;
    compressed.block_table_stride = compressed.table_width = kTableWidth;
    compressed.slots = on_device(std::vector<int32_t>(topk.size(), -7));
    compressed.lens = on_device(std::vector<int32_t>(rows.size(), -7));
    compressed.num_rows = count;
    compressed.num_requests = kRequests;
    compressed.page_size = kPageSize;
    compressed.num_pages = kPages;
    ASSERT_OK(kiln_topk_to_slots(topk_to_slots, &compressed, nullptr));

    kiln_window_slots_args window{};
    window.struct_bytes = sizeof window;
    window.positions = positions_memory;
    window.requests = requests_memory;
    window.block_table = window_table_memory;
    window.block_table_stride1 = window.table_width = kTableWidth;
    window.block_table_stride0 = kRequests * kTableWidth;
    window.slots = on_device(std::vector<int32_t>(rows.size() * kWindow, -7));
    window.slots_stride1 = window.slot_width = kWindow;
    window.slots_stride0 = count * kWindow;
    window.lens = on_device(std::vector<int32_t>(rows.size(), -7));
    window.num_rows = count;
    window.num_groups = 1;
    window.num_requests = kRequests;
    window.page_size = kPageSize;
    window.num_pages = kPages;
    ASSERT_OK(kiln_window_slots(window_slots, &window, nullptr));
    ASSERT_OK(kiln_synchronize(session_, nullptr));

    // The inserts of the step, by the writer's rule.
    const std::vector<uint16_t> latents = read(pool.latent, rows.size() * kChannels);
    for (size_t t = 0; t < rows.size(); ++t) {
      const Row& row = rows[t];
      window_cache[slot_of(window_table, row.b, row.position)] = {row.b, row.position};
      const auto begin = latents.begin() + static_cast<std::ptrdiff_t>(t * kChannels);
      if ((row.position + 1) % ratio != 0) {
        EXPECT_TRUE(std::all_of(begin, begin + kChannels, [](uint16_t x) { return x == 0xffff; }))
            << "position " << row.position << " completes no group";
        continue;
      }
      const int entry = row.position / ratio;
      const int slot = slot_of(compressed_table, row.b, entry);
      compressed_owner[slot] = {row.b, entry};
      compressed_cache[slot] = {begin, begin + kChannels};
      if (!row.is_true) continue;
      const std::vector<double> want = source.latent(row.b, entry);
      for (size_t c = 0; c < kChannels; ++c) {
        const double error =
            std::fabs(Source::from_bf16(begin[static_cast<std::ptrdiff_t>(c)]) - want[c]);
        ++elements;
        beyond_one_ulp += error > Source::ulp(want[c]);
        ASSERT_LE(error, 2 * Source::ulp(want[c]))
            << "request " << row.b << " position " << row.position << " channel " << c;
      }
    }

    // What each row reads through its slots is what its token may see.
    const std::vector<int32_t> slots = read(compressed.slots, topk.size());
    const std::vector<int32_t> lens = read(compressed.lens, rows.size());
    const std::vector<int32_t> window_list = read(window.slots, rows.size() * kWindow);
    const std::vector<int32_t> window_lens = read(window.lens, rows.size());
    for (size_t t = 0; t < rows.size(); ++t) {
      const Row& row = rows[t];
      const int first = std::max(row.position - (kWindow - 1), 0);
      ASSERT_EQ(window_lens[t], row.position - first + 1);
      for (int i = 0; i < kWindow; ++i) {
        const int32_t slot = window_list[t * kWindow + static_cast<size_t>(i)];
        if (i >= window_lens[t]) {
          ASSERT_EQ(slot, -1);
          continue;
        }
        ASSERT_EQ(window_cache.at(slot), std::pair(row.b, first + i))
            << "position " << row.position;
      }
      ASSERT_EQ(lens[t], std::min((row.position + 1) / ratio, kTopK));
      for (size_t i = 0; i < kTopK; ++i) {
        const int32_t slot = slots[t * kTopK + i];
        const int32_t entry = topk[t * kTopK + i];
        if (entry < 0) {
          ASSERT_EQ(slot, -1);
          continue;
        }
        ASSERT_EQ(compressed_owner.at(slot), std::pair(row.b, int{entry}))
            << "position " << row.position;
      }
    }
  }

  // All that the contexts have left behind, read once more.
  for (int b = 0; b < kRequests; ++b) {
    const int entries = kSteps[std::size(kSteps) - 1].chunks[b].end / ratio;
    for (int entry = 0; entry < entries; entry += 7) {
      const std::vector<uint16_t>& got = compressed_cache.at(slot_of(compressed_table, b, entry));
      const std::vector<double> want = source.latent(b, entry);
      for (size_t c = 0; c < kChannels; ++c)
        ASSERT_LE(std::fabs(Source::from_bf16(got[c]) - want[c]), 2 * Source::ulp(want[c]))
            << "request " << b << " entry " << entry;
    }
  }
  EXPECT_GT(elements, 300'000);
  EXPECT_LE(beyond_one_ulp, elements / 200);
  RecordProperty("beyond_one_ulp", static_cast<int>(beyond_one_ulp));
}

// With ratio 1 what is normalised is seen: the norm is that of the op rms_norm.
TEST_F(CompressorChain, LatentsHaveTheBitsOfRmsNorm) {
  const std::string shape = R"({"ratio": 1, "rounding": "bf16"})",
                    norm_shape = R"({"columns": 512})";
  ASSERT_OK(kiln_prepare(session_,
                         (R"({"ops": [{"op": "compressor_update", "shape": )" + shape +
                          R"(}, {"op": "rms_norm", "shape": )" + norm_shape + "}]}")
                             .c_str(),
                         nullptr, nullptr));
  constexpr int kRows = 37;
  const Source source(1);
  std::vector<uint16_t> weights, rounded;
  std::vector<float> projections;
  std::vector<int32_t> positions;
  for (int t = 0; t < kRows; ++t) {
    positions.push_back(t);
    for (int c = 0; c < kChannels; ++c) {
      const float value = source.value(0, t, c, true);
      projections.push_back(value);
      uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof(bits));
      rounded.push_back(static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
      if (t == 0) weights.push_back(Source::weight(c));
    }
  }
  const std::vector<uint16_t> nothing(rounded.size(), 0xffff);

  kiln_compressor_update_args pool{};
  pool.struct_bytes = sizeof pool;
  pool.projections = on_device(projections);
  pool.projections_stride = pool.latent_stride = kChannels;
  pool.positions = on_device(positions);
  pool.requests = on_device(std::vector<int32_t>(kRows, 0));
  pool.norm_weight = on_device(weights);
  pool.latent = on_device(nothing);
  pool.num_rows = kRows;
  pool.num_requests = 1;
  ASSERT_OK(kiln_compressor_update(plan("compressor_update", shape), &pool, nullptr));
  kiln_rms_norm_args norm{};
  norm.struct_bytes = sizeof norm;
  norm.x = on_device(rounded);
  norm.weight = pool.norm_weight;
  norm.y = on_device(nothing);
  norm.x_stride = norm.y_stride = kChannels;
  norm.num_rows = kRows;
  ASSERT_OK(kiln_rms_norm(plan("rms_norm", norm_shape), &norm, nullptr));
  ASSERT_OK(kiln_synchronize(session_, nullptr));
  EXPECT_EQ(read(pool.latent, nothing.size()), read(norm.y, nothing.size()));
}

// A request without a block that starts at an odd position: the partner of its first row is
// nowhere, so that group gives no entry. The caller's slot of -1 keeps the stale row out of the
// cache.
TEST_F(CompressorChain, GroupWhosePartnerHasNoBlockIsNotEmitted) {
  const std::string shape = R"({"ratio": 2, "rounding": "bf16"})",
                    insert_shape = R"({"format": "f4", "ratio": 2})";
  constexpr int kRows = 3, kFirst = 3, kEntries = 3, kEntryBytes = 2 * kChannels;
  const Source source(2);
  std::vector<float> projections;
  std::vector<uint16_t> weights;
  for (int c = 0; c < kChannels; ++c) weights.push_back(Source::weight(c));
  for (int p = kFirst; p < kFirst + kRows; ++p) {
    for (int c = 0; c < kChannels; ++c) projections.push_back(source.value(0, p, c, true));
    for (int c = 0; c < kChannels; ++c) projections.push_back(source.score(0, p, c, true));
  }
  constexpr uint16_t kStale = 0x4049;

  kiln_compressor_update_args pool{};
  pool.struct_bytes = sizeof pool;
  pool.projections = on_device(projections);
  pool.projections_stride = 2 * kChannels;
  pool.positions = on_device(std::vector<int32_t>{3, 4, 5});
  pool.requests = on_device(std::vector<int32_t>(kRows, 0));
  pool.query_start_loc = on_device(std::vector<int32_t>{0, kRows});
  pool.ring_blocks = on_device(std::vector<int32_t>{0});
  pool.ring = on_device(std::vector<float>(2 * kBlockRows * 1024, 1.0f));
  pool.ring_stride0 = kBlockRows * 1024;
  pool.ring_stride1 = 1024;
  pool.num_blocks = 2;
  pool.block_rows = kBlockRows;
  pool.norm_weight = on_device(weights);
  pool.latent = on_device(std::vector<uint16_t>(kRows * kChannels, kStale));
  pool.latent_stride = kChannels;
  pool.num_rows = kRows;
  pool.num_requests = 1;
  ASSERT_OK(kiln_compressor_update(plan("compressor_update", shape), &pool, nullptr));

  constexpr uint8_t kPoison = 0xa5;
  kiln_compressed_kv_insert_args insert{};
  insert.struct_bytes = sizeof insert;
  insert.latent = pool.latent;
  insert.latent_stride = kChannels;
  insert.positions = pool.positions;
  insert.slots = on_device(std::vector<int64_t>{-1, -1, 2});
  insert.rope_table = on_device(std::vector<float>(8 * 64, 0.5f));
  insert.rope_table_stride = 64;
  insert.cache = on_device(std::vector<uint8_t>(kEntries * kEntryBytes, kPoison));
  insert.cache_stride = kEntries * kEntryBytes;
  insert.num_rows = kRows;
  insert.num_positions = 8;
  insert.page_size = kEntries;
  insert.num_pages = 1;
  ASSERT_OK(
      kiln_compressed_kv_insert(plan("compressed_kv_insert", insert_shape), &insert, nullptr));
  ASSERT_OK(kiln_synchronize(session_, nullptr));

  const std::vector<uint16_t> latents = read(pool.latent, kRows * kChannels);
  const std::vector<double> want = source.latent(0, (kFirst + 2) / 2);
  for (size_t c = 0; c < kChannels; ++c) {
    ASSERT_EQ(latents[c], kStale) << "position 3, channel " << c;
    ASSERT_EQ(latents[kChannels + c], kStale) << "position 4, channel " << c;
    ASSERT_LE(std::fabs(Source::from_bf16(latents[2 * kChannels + c]) - want[c]),
              2 * Source::ulp(want[c]))
        << "position 5, channel " << c;
  }
  const std::vector<uint8_t> bytes = read(insert.cache, kEntries * kEntryBytes);
  const auto last = bytes.begin() + (kEntries - 1) * kEntryBytes;
  EXPECT_TRUE(std::all_of(bytes.begin(), last, [](uint8_t byte) { return byte == kPoison; }));
  EXPECT_FALSE(std::all_of(last, bytes.end(), [](uint8_t byte) { return byte == kPoison; }));
}

INSTANTIATE_TEST_SUITE_P(Ratios, GrowingContext, testing::Values(1, 2),
                         [](const auto& ratio) { return "Ratio" + std::to_string(ratio.param); });

}  // namespace
}  // namespace kiln::runtime
