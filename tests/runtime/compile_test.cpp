// From an empty store with the real NVRTC to kernels that the fake driver accepts, and a second
// session that compiles nothing.
#include <cuda.h>
#include <sqlite3.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "jit/base/error.h"
#include "jit/base/gpu.h"
#include "runtime/plan_record.h"
#include "runtime/session.h"
#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

class CompileTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    unsetenv("KILN_NVRTC");
    fake_cuda_set_driver_version(kDriverOfAnyNvrtc);
    store_path_ = folder_.file("cold.db");
  }
  void TearDown() override {
    unsetenv("CUDA_HOME");
    RuntimeTest::TearDown();
  }

  static constexpr int kCudaMajorOfAnyNvrtc = 97;
  static constexpr int kDriverOfAnyNvrtc = kCudaMajorOfAnyNvrtc * 1000;
};

// A test that waits for another thread has to end. False: what it waits for has not come.
bool comes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

constexpr const char* kWorkload =
    "{\"ops\": [{\"op\": \"staged_rows\", \"shape\": {\"format\": \"plain\", \"width\": 64}}]}";

TEST_F(CompileTest, C22ColdThenWarmThenDamaged) {
  {
    kiln_session* cold = open();
    ASSERT_OK(kiln_prepare(cold, kWorkload, nullptr, nullptr));
    EXPECT_EQ(stats(cold).compiles, 2u);
    EXPECT_EQ(stats(cold).miss_absent, 2u);
    EXPECT_TRUE(log_.has("compiling 2 kernels with NVRTC"));
    kiln_plan* rows = plan(cold, "staged_rows", kStagedShape);
    EXPECT_OK(call_staged_rows(rows, staged_rows_args(100)));
    EXPECT_EQ(fake_cuda_launches(), 2u);
    EXPECT_OK(kiln_close(cold));
  }
  {
    kiln_session* warm = open();
    ASSERT_OK(kiln_prepare(warm, kWorkload, nullptr, nullptr));
    EXPECT_EQ(stats(warm).compiles, 0u);
    EXPECT_EQ(stats(warm).binary_hits, 2u);
    EXPECT_OK(kiln_close(warm));
  }
  with_store([](cache::Store& store) {
    // The plan was kept beside its binaries.
    const templates::Sizes fixed{{"format", 0}, {"C", 64}};
    const templates::Config config = staged_rows().default_config(fixed);
    std::vector<Hash128> keys;
    for (const jit::Binary& binary : fake_binaries(staged_rows(), fixed, config, fake_gpu(0))) {
      keys.push_back(binary.key);
    }
    const cache::PlanRecord record =
        plan_record(staged_rows(), fixed, config, "sm_80",
                    staged_rows().plan(fixed, config, fake_gpu(0)), keys);
    EXPECT_TRUE(store.find_plan(record.id).has_value());
    // One kernel for another card under the right key: the driver refuses it.
    jit::Binary wrong = *store.find_binary(keys[0]);
    wrong.image = fake_binaries(staged_rows(), fixed, config, fake_gpu(1)).front().image;
    ASSERT_TRUE(store.put_binary(wrong));
  });
  {
    kiln_session* healed = open();
    ASSERT_OK(kiln_prepare(healed, kWorkload, nullptr, nullptr));
    EXPECT_EQ(stats(healed).compiles, 1u);
    EXPECT_EQ(stats(healed).miss_unloadable, 1u);
    EXPECT_OK(kiln_close(healed));
  }
  kiln_session* again = open();
  ASSERT_OK(kiln_prepare(again, kWorkload, nullptr, nullptr));
  EXPECT_EQ(stats(again).compiles, 0u);
  EXPECT_EQ(stats(again).miss_unloadable, 0u);
}

TEST_F(CompileTest, DamagedBinariesAreCompiledAnewAndHealed) {
  const auto compiles_of_a_session = [&] {
    kiln_session* session = open();
    EXPECT_OK(kiln_prepare(session, kWorkload, nullptr, nullptr));
    const kiln_stats counted = stats(session);
    EXPECT_OK(kiln_close(session));
    EXPECT_EQ(counted.compiles, counted.miss_absent + counted.miss_damaged);
    return counted.compiles;
  };
  EXPECT_EQ(compiles_of_a_session(), 2u);
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(store_path_.c_str(), &db), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(db, "UPDATE images SET data = zeroblob(64)", nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  EXPECT_EQ(compiles_of_a_session(), 2u);
  EXPECT_EQ(compiles_of_a_session(), 0u);
}

TEST_F(CompileTest, ImagesThatNobodyVouchesForAreCompiledAnewAndUseIsNoted) {
  const auto change_store = [&](const char* sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(store_path_.c_str(), &db), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), SQLITE_OK);
    EXPECT_EQ(sqlite3_changes(db), 2) << sql;
    sqlite3_close(db);
  };
  const auto compiles_of_a_session = [&] {
    kiln_session* session = open();
    EXPECT_OK(kiln_prepare(session, kWorkload, nullptr, nullptr));
    const kiln_stats counted = stats(session);
    EXPECT_OK(kiln_close(session));
    EXPECT_EQ(counted.compiles, counted.miss_absent);
    return counted.compiles;
  };
  EXPECT_EQ(compiles_of_a_session(), 2u);
  change_store("UPDATE images SET trusted = 0");
  EXPECT_EQ(compiles_of_a_session(), 2u);
  change_store("UPDATE images SET used_at = 0 WHERE trusted = 1");
  EXPECT_EQ(compiles_of_a_session(), 0u);
  change_store("UPDATE images SET used_at = 0 WHERE used_at > 0");
}

// How many transactions the write-ahead log of a store holds: each ends with a frame that says the
// size of the file. Reading the log is no danger to SQLite's locks, which are on the other files.
int transactions_in_log(const std::string& store_path) {
  std::ifstream file(store_path + "-wal", std::ios::binary);
  const std::string log((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto number_at = [&](size_t offset) {
    uint32_t number = 0;
    for (size_t i = 0; i < 4; ++i) number = number << 8 | static_cast<uint8_t>(log[offset + i]);
    return number;
  };
  constexpr size_t kHeaderBytes = 32;
  constexpr size_t kFrameHeaderBytes = 24;
  if (log.size() < kHeaderBytes) return 0;
  int transactions = 0;
  const size_t frame_bytes = kFrameHeaderBytes + number_at(8);
  for (size_t at = kHeaderBytes; at + frame_bytes <= log.size(); at += frame_bytes) {
    if (number_at(at + 4) != 0) ++transactions;
  }
  return transactions;
}

class WritesOfAPrepareTest : public CompileTest {
 protected:
  void SetUp() override {
    CompileTest::SetUp();
    setenv("KILN_JOBS", "2", 1);
  }
  void TearDown() override {
    unsetenv("KILN_JOBS");
    CompileTest::TearDown();
  }
  int writes_of_a_prepare(std::chrono::milliseconds write_interval) {
    Session session({.store = store_path_, .timing = {.write_interval = write_interval}});
    const int before = transactions_in_log(store_path_);
    session.prepare(kWorkload, nullptr);
    EXPECT_EQ(session.stats().compiles, 2u);
    return transactions_in_log(store_path_) - before;
  }
};

// Each write may wait for another process, and ranks that start together all write.
TEST_F(WritesOfAPrepareTest, LeasesAndOneMoreAreEnoughForAShortRun) {
  EXPECT_EQ(writes_of_a_prepare(std::chrono::hours(24)), 2);
}

TEST_F(WritesOfAPrepareTest, ALongRunKeepsWhatItHasSoFar) {
  // Leases, two kernels, then the plan.
  EXPECT_EQ(writes_of_a_prepare(std::chrono::milliseconds(0)), 4);
}

TEST_F(WritesOfAPrepareTest, WarmStartWritesNothing) {
  writes_of_a_prepare(std::chrono::hours(24));
  Session session({.store = store_path_});
  const int before = transactions_in_log(store_path_);
  session.prepare(kWorkload, nullptr);
  EXPECT_EQ(session.stats().compiles, 0u);
  EXPECT_EQ(transactions_in_log(store_path_) - before, 0);
}

class UnfinishedPrepareTest : public CompileTest {
 protected:
  void SetUp() override {
    CompileTest::SetUp();
    setenv("KILN_JOBS", std::to_string(kCompiles).c_str(), 1);
  }
  void TearDown() override {
    unsetenv("KILN_JOBS");
    CompileTest::TearDown();
  }
  // Goes on, or stops, once all compiles have begun.
  struct GatedProgress {
    int answer = 0;
    static int receive(void* user, int, int, const char*) {
      const auto pool =
          jit::CompilePool::shared(jit::Compiler::load(kCudaMajorOfAnyNvrtc), kCompiles);
      EXPECT_TRUE(comes_true([&] { return pool->waiting() == 0; }));
      return static_cast<GatedProgress*>(user)->answer;
    }
  };
  void expect_both_kept(kiln_session* session) {
    EXPECT_EQ(stats(session).compiles, 2u);
    ASSERT_OK(kiln_close(session));
    with_store([](cache::Store& store) { EXPECT_EQ(store.info().binaries, 2); });
  }

  static constexpr int kCompiles = 2;
};

TEST_F(UnfinishedPrepareTest, FailureKeepsWhatIsCompiled) {
  kiln_session* session = open();
  fake_cuda_fail("cuLibraryLoadData", CUDA_ERROR_OUT_OF_MEMORY, 0);
  GatedProgress progress;
  EXPECT_EQ(kiln_prepare(session, kWorkload, GatedProgress::receive, &progress),
            KILN_OUT_OF_MEMORY);
  expect_both_kept(session);
}

TEST_F(UnfinishedPrepareTest, InterruptionKeepsWhatIsCompiled) {
  kiln_session* session = open();
  GatedProgress progress{.answer = 1};
  EXPECT_EQ(kiln_prepare(session, kWorkload, GatedProgress::receive, &progress), KILN_INTERRUPTED);
  expect_both_kept(session);
}

// One process, several sessions: the workers are not doubled, and no kernel is compiled twice.
TEST_F(CompileTest, C23SessionsThatPrepareAtOnceShareTheirCompiles) {
  std::atomic<int> begun = 0;
  const auto wait_for_the_other = [](void* user, int done, int, const char*) {
    auto& all = *static_cast<std::atomic<int>*>(user);
    if (done > 0) return 0;
    ++all;
    return comes_true([&] { return all >= 2; }) ? 0 : 1;
  };
  kiln_session* sessions[2];
  for (int i = 0; i < 2; ++i) {
    store_path_ = folder_.file(fmt::format("store{}.db", i));
    sessions[i] = open();
  }
  std::vector<std::thread> threads;
  for (kiln_session* session : sessions) {
    threads.emplace_back(
        [&, session] { EXPECT_OK(kiln_prepare(session, kWorkload, wait_for_the_other, &begun)); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(stats(sessions[0]).compiles + stats(sessions[1]).compiles, 2u);
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(kiln_close(sessions[i]));
    store_path_ = folder_.file(fmt::format("store{}.db", i));
    with_store([](cache::Store& store) { EXPECT_EQ(store.info().binaries, 2); });
  }
}

// Pretended NVRTCs, newer than any real one, that compile nothing.
TEST_F(CompileTest, TheNewestNvrtcThatTheDriverCanLoadIsUsed) {
  namespace fs = std::filesystem;
  const fs::path libraries = folder_.file("toolkit") + "/lib64";
  fs::create_directories(libraries);
  fs::copy_file(KILN_FAKE_NVRTC_98, libraries / "libnvrtc.so.98");
  fs::copy_file(KILN_FAKE_NVRTC_98, libraries / "libnvrtc-builtins.so.98.1");
  fs::copy_file(KILN_FAKE_NVRTC_99, libraries / "libnvrtc.so.99");
  fs::copy_file(KILN_FAKE_NVRTC_99, libraries / "libnvrtc-builtins.so.99.7");
  setenv("CUDA_HOME", libraries.parent_path().c_str(), 1);

  fake_cuda_set_driver_version(98020);
  EXPECT_NE(kiln_prepare(open(), kWorkload, nullptr, nullptr), KILN_OK);
  EXPECT_TRUE(log_.has("with NVRTC 98.1 (")) << log_.text();
  fake_cuda_set_driver_version(99000);
  EXPECT_NE(kiln_prepare(open(), kWorkload, nullptr, nullptr), KILN_OK);
  EXPECT_TRUE(log_.has("with NVRTC 99.7 (")) << log_.text();
  fake_cuda_set_driver_version(10020);
  EXPECT_REFUSED(kiln_prepare(open(), kWorkload, nullptr, nullptr), KILN_NO_COMPILER,
                 "it is of CUDA 98, and the driver, of CUDA 10,");
}

TEST_F(CompileTest, SupportIsAnsweredByTheCompilerWhenTheStoreIsEmpty) {
  kiln_session* session = open();
  EXPECT_OK(
      kiln_op_supported(session, "gather_dequant_kv", "{\"format\": \"f3\"}", nullptr, 0, nullptr));
  EXPECT_EQ(stats(session).compiles, 0u);
}

}  // namespace
}  // namespace kiln::runtime
