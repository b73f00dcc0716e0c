// What goes wrong under a session: every driver function failing at every point, binaries that are
// damaged or refused, no compiler.
#include <cuda.h>
#include <sqlite3.h>

#include <map>
#include <set>

#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

class FaultsTest : public RuntimeTest {
 protected:
  // A session from open to close with calls in between; the first status that is not KILN_OK.
  kiln_status run_once() {
    kiln_options options{};
    options.size = sizeof options;
    options.store = store_path_.c_str();
    kiln_session* session = nullptr;
    kiln_status status = kiln_open(&options, &session);
    if (status != KILN_OK) return status;
    status = use(session);
    EXPECT_OK(kiln_close(session));
    return status;
  }

  // That of this thread, read by setting it twice.
  static CUstreamCaptureMode capture_mode() {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    CUstreamCaptureMode again = mode;
    EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&again), CUDA_SUCCESS);
    return mode;
  }

  void change_store(const std::string& sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(store_path_.c_str(), &db), SQLITE_OK);
    char* problem = nullptr;
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, &problem), SQLITE_OK) << problem;
    EXPECT_GT(sqlite3_changes(db), 0);
    sqlite3_close(db);
  }

 private:
  static kiln_status use(kiln_session* session) {
    kiln_status status =
        kiln_prepare(session, "{\"ops\": [{\"op\": \"combine_topk_swa\"}]}", nullptr, nullptr);
    if (status != KILN_OK) return status;
    kiln_plan* combine = nullptr;
    status = kiln_plan_create(session, "combine_topk_swa", kCombineShape, &combine);
    if (status != KILN_OK) return status;
    const kiln_combine_topk_swa_args args = combine_args(8);
    status = kiln_combine_topk_swa(combine, &args, nullptr);
    if (status != KILN_OK) return status;
    kiln_plan* unprepared = nullptr;  // its first call asks for the capture state
    status = kiln_plan_create(session, "staged_rows", kStagedShape, &unprepared);
    if (status != KILN_OK) return status;
    return call_staged_rows(unprepared, staged_rows_args(8));
  }
};

TEST_F(FaultsTest, C119AnyDriverCallMayFailAndTheNextSessionWorks) {
  ASSERT_EQ(run_once(), KILN_OK) << kiln_last_error();
  std::map<std::string, int> calls;
  for (size_t i = 0; i < fake_cuda_log_size(); ++i) ++calls[fake_cuda_log_entry(i)];
  ASSERT_GT(calls.size(), 8u);
  const std::set<kiln_status> clean = {KILN_OK,           KILN_DRIVER_ERROR, KILN_NO_DRIVER,
                                       KILN_NOT_FOUND,    KILN_UNSUPPORTED,  KILN_NO_COMPILER,
                                       KILN_OUT_OF_MEMORY};
  int refused = 0;
  for (const auto& [function, count] : calls) {
    for (int after = 0; after < std::min(count, 6); ++after) {
      for (const int error : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY}) {
        fake_cuda_reset();
        ASSERT_EQ(fake_cuda_fail_times(function.c_str(), error, after, 1), 1) << function;
        const kiln_status status = run_once();
        EXPECT_TRUE(clean.contains(status))
            << function << " call " << after << ": " << kiln_status_name(status) << ": "
            << kiln_last_error();
        if (status != KILN_OK) {
          ++refused;
          EXPECT_GT(std::string(kiln_last_error()).size(), 20u) << function;
        }
        if (function.find("CtxPop") == std::string::npos) {  // a pop that fails cannot be made good
          EXPECT_EQ(fake_cuda_context_depth(), 0) << function << " call " << after;
        }
        ASSERT_EQ(run_once(), KILN_OK)
            << function << " call " << after << ": " << kiln_last_error();
        EXPECT_EQ(capture_mode(), CU_STREAM_CAPTURE_MODE_GLOBAL) << function << " call " << after;
      }
    }
  }
  EXPECT_GT(refused, 10);
}

TEST_F(FaultsTest, CardThatCannotBeDescribedIsADriverError) {
  for (const char* function : {"cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute",
                               "cuDeviceTotalMem", "cuDeviceGetPCIBusId"}) {
    fake_cuda_reset();
    ASSERT_EQ(fake_cuda_fail_times(function, CUDA_ERROR_UNKNOWN, 0, 1), 1);
    EXPECT_REFUSED(run_once(), KILN_DRIVER_ERROR, "CUDA_ERROR_UNKNOWN");
  }
}

TEST_F(FaultsTest, C78BinaryForAnotherGpuIsCompiledAnewAndSaidWhenItCannotBe) {
  with_store([](cache::Store& store) {  // under the right key, but sm_86 code for an sm_80 card
    const templates::Op& op = templates::require_op("combine_topk_swa");
    const templates::Sizes fixed{{"ratio", 2}, {"K", 512}};
    const templates::Config config = op.default_config(fixed);
    jit::Binary right = fake_binaries(op, fixed, config, fake_gpu(0)).front();
    right.image = fake_binaries(op, fixed, config, fake_gpu(1)).front().image;
    ASSERT_TRUE(store.put_binary(right));
  });
  kiln_session* session = open();
  EXPECT_EQ(kiln_prepare(session, "{\"ops\": [{\"op\": \"combine_topk_swa\"}]}", nullptr, nullptr),
            KILN_NO_COMPILER);
  EXPECT_EQ(stats(session).miss_unloadable, 1u);
  EXPECT_TRUE(log_.has("the driver refused the stored kernel"));
}

TEST_F(FaultsTest, DamagedBinaryIsAMissWithAReason) {
  change_store("UPDATE images SET data = zeroblob(64)");
  kiln_session* session = open();
  EXPECT_EQ(kiln_prepare(session, nullptr, nullptr, nullptr), KILN_NO_COMPILER);
  EXPECT_GE(stats(session).miss_damaged, 1u);
  EXPECT_TRUE(log_.has("damaged"));
}

}  // namespace
}  // namespace kiln::runtime
