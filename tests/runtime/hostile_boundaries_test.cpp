// Boundaries of requests that no batch has, on a simulated GPU: ragged_keys stays within its rows.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

class HostileBoundaries : public ::testing::Test {
 protected:
  void SetUp() override {
    kiln_options options{};
    options.size = sizeof options;
    options.device = "sim:a100-sxm4-80gb";
    options.store = ":memory:";
    ASSERT_EQ(kiln_open(&options, &session_), KILN_OK) << kiln_last_error();
    ASSERT_EQ(kiln_plan_create(session_, "ragged_keys", R"({"ratio": 1})", &plan_), KILN_OK)
        << kiln_last_error();
  }
  void TearDown() override {
    if (session_ != nullptr) {
      EXPECT_EQ(kiln_close(session_), KILN_OK) << kiln_last_error();
    }
  }
  int32_t* on_device(const std::vector<int32_t>& values) {
    void* memory = nullptr;
    EXPECT_EQ(kiln_memory_allocate(session_, values.size() * 4, &memory), KILN_OK);
    EXPECT_EQ(kiln_memory_write(session_, memory, values.data(), values.size() * 4), KILN_OK);
    return static_cast<int32_t*>(memory);
  }
  std::vector<int32_t> read(const int32_t* memory, size_t count) {
    std::vector<int32_t> values(count);
    EXPECT_EQ(kiln_memory_read(session_, values.data(), memory, count * 4), KILN_OK);
    return values;
  }

  // Rows between guards, as several arguments carved from one allocation.
  static constexpr int kRows = 4, kGuard = 8;
  int32_t* guarded() { return on_device(std::vector<int32_t>(kRows + 2 * kGuard, 77)) + kGuard; }
  std::vector<int32_t> read_guarded(const int32_t* rows) {
    const std::vector<int32_t> all = read(rows - kGuard, kRows + 2 * kGuard);
    for (int i = 0; i < kGuard; ++i) {
      EXPECT_EQ(all[static_cast<size_t>(i)], 77) << i;
      EXPECT_EQ(all[static_cast<size_t>(kGuard + kRows + i)], 77) << i;
    }
    return {all.begin() + kGuard, all.begin() + kGuard + kRows};
  }
  struct Outputs {
    std::vector<int32_t> gather_lens, requests, key_end;
  };
  Outputs call(const std::vector<int32_t>& query_start_loc, const std::vector<int32_t>& seq_lens) {
    const std::vector<int32_t> of_requests(seq_lens.size(), 77);
    kiln_ragged_keys_args args{};
    args.struct_bytes = sizeof args;
    args.query_start_loc = on_device(query_start_loc);
    args.seq_lens = on_device(seq_lens);
    args.block_table = on_device(std::vector<int32_t>(4 * seq_lens.size(), 0));
    args.block_table_stride = 4;
    args.lens = on_device(of_requests);
    args.gather_lens = on_device(of_requests);
    args.indptr = on_device(query_start_loc);
    args.requests = guarded();
    args.positions = guarded();
    args.key_begin = guarded();
    args.key_end = guarded();
    args.num_rows = kRows;
    args.num_requests = static_cast<int64_t>(seq_lens.size());
    args.max_keys = 4;
    args.capacity = 8;
    args.table_width = 4;
    args.page_size = 4;
    args.num_pages = 4;
    EXPECT_EQ(kiln_ragged_keys(plan_, &args, nullptr), KILN_OK) << kiln_last_error();
    EXPECT_EQ(kiln_synchronize(session_, nullptr), KILN_OK) << kiln_last_error();
    read_guarded(args.positions);
    read_guarded(args.key_begin);
    return {read(args.gather_lens, seq_lens.size()), read_guarded(args.requests),
            read_guarded(args.key_end)};
  }

  kiln_session* session_ = nullptr;
  kiln_plan* plan_ = nullptr;
};

TEST_F(HostileBoundaries, ThatDoNotAscendLeadNowhere) {
  call({5, 3, 8}, {9, 9});
  call({INT32_MIN, 0, INT32_MAX}, {9, 9});
  call({INT32_MAX, INT32_MIN, 0}, {9, 9});
}

TEST_F(HostileBoundaries, LengthsFarBelowZeroHaveNoKeys) {
  const Outputs outputs = call({0, 2}, {INT32_MIN});
  EXPECT_EQ(outputs.gather_lens, std::vector<int32_t>{0});
  EXPECT_EQ(outputs.requests, (std::vector<int32_t>{0, 0, -1, -1}));
  EXPECT_EQ(outputs.key_end, (std::vector<int32_t>{0, 0, 0, 0}));
}

}  // namespace
}  // namespace kiln::runtime
