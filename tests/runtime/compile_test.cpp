// From an empty store with the real NVRTC to kernels that the fake driver accepts, and a second
// session that compiles nothing.
#include <sqlite3.h>

#include <cstdlib>

#include "jit/base/error.h"
#include "jit/base/gpu.h"
#include "runtime/plan_record.h"
#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

class CompileTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    unsetenv("KILN_NVRTC");
    store_path_ = folder_.file("cold.db");
  }
};

constexpr const char* kWorkload =
    "{\"ops\": [{\"op\": \"staged_rows\", \"shape\": {\"format\": \"plain\", \"width\": 64}}]}";

TEST_F(CompileTest, ColdThenWarmThenDamaged) {
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

TEST_F(CompileTest, SupportIsAnsweredByTheCompilerWhenTheStoreIsEmpty) {
  kiln_session* session = open();
  EXPECT_OK(
      kiln_op_supported(session, "gather_dequant_kv", "{\"format\": \"f3\"}", nullptr, 0, nullptr));
  EXPECT_EQ(stats(session).compiles, 0u);
}

}  // namespace
}  // namespace kiln::runtime
