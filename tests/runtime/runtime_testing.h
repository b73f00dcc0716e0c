// What the runtime's tests share: the fake driver, a store in a temporary folder filled with
// binaries that the fake driver accepts, and a test-only op. No compiler runs in these tests unless
// one asks for it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cache/store.h"
#include "runtime/abi/kiln.h"
#include "templates/op.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace kiln::runtime {

// The test-only op "staged_rows": two kernels, the second with its rows on grid y; a workspace;
// named formats; every kind of check.
//   fixed: format ("plain", "packed"), width 1..4096     dynamic: num_rows 0..10,000,000; width_out
//   0.. config: rows_per_cta {1, 2, 4, 8}, splits {1, 2, 4, 16} (16 breaks a rule)
const templates::Op& staged_rows();
int staged_rows_index();

struct StagedRowsArgs {
  uint64_t struct_bytes = sizeof(StagedRowsArgs);
  const void* in = nullptr;
  int64_t in_stride = 0;
  const void* scale = nullptr;  // optional
  int64_t scale_stride = 0;
  void* out = nullptr;
  int64_t out_stride0 = 0;
  int64_t out_stride1 = 0;
  int64_t num_rows = 0;
  int64_t width_out = 0;
  void* workspace = nullptr;
  uint64_t workspace_bytes = 0;
};

// A legal call of {"format": "plain", "width": 64}.
StagedRowsArgs staged_rows_args(int64_t num_rows);
inline constexpr const char* kStagedShape = "{\"format\": \"plain\", \"width\": 64}";

kiln_status call_staged_rows(kiln_plan* plan, const StagedRowsArgs& args, void* stream = nullptr);

// A legal call of combine_topk_swa {"ratio": 2, "top_k": 512}; its pointers are never followed.
kiln_combine_topk_swa_args combine_args(int64_t num_tokens);
inline constexpr const char* kCombineShape = "{\"ratio\": 2, \"top_k\": 512}";

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

struct LogLines {
  std::mutex mutex;
  std::vector<std::string> lines;

  static void receive(void* user, kiln_log_level level, const char* line);
  bool has(std::string_view part);
  int count(std::string_view part);
  std::string text();
};

void expect_contains(std::string_view text, std::string_view part);

// Fake binaries for every kernel of a config on a GPU, as a compile would have left them in the
// store.
std::vector<jit::Binary> fake_binaries(const templates::Op& op, const templates::Sizes& fixed,
                                       const templates::Config& config, const Gpu& gpu);
// Seeds the store with the default config of every model shape of every op (and of staged_rows) for
// the GPU.
void seed_defaults(cache::Store& store, const Gpu& gpu);
// What the newest verification of a plan said; none: there was none.
enum class Proof { passed, failed, none };
struct Decided {
  const templates::Op* op = nullptr;
  templates::Sizes fixed;
  templates::Sizes bucket;
  templates::Config config;
  cache::DecisionKind kind = cache::DecisionKind::measured;
  Proof proof = Proof::passed;
};
// Seeds a decision with its plan, binaries and verification.
void seed_decision(cache::Store& store, const Gpu& gpu, const Decided& decided);

// The GPUs as the fake driver shows them: 0 an A100, 1 an RTX 3090.
const Gpu& fake_gpu(int device);

// The primary context of device 0, current for this thread as in a serving process.
class CurrentContext {
 public:
  CurrentContext();
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
};

// The ops of the library but combine_topk_swa, which tests have a plan of, and their exported
// functions, called with arguments that nobody looks at: the plan is not of theirs.
std::vector<const templates::Op*> other_ops();
kiln_status call_exported(const templates::Op& op, kiln_plan* plan);
kiln_status call_exported_workspace(const templates::Op& op, kiln_plan* plan);

class RuntimeTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Changes the store before a session opens it.
  void with_store(const std::function<void(cache::Store&)>& change);
  kiln_session* open(const char* device = "cuda:0");
  kiln_plan* plan(kiln_session* session, const char* op, const char* shape);
  kiln_stats stats(kiln_session* session);

  TemporaryFolder folder_;
  std::string store_path_ = folder_.file("kiln.db");
  LogLines log_;

 private:
  std::vector<kiln_session*> opened_;
};

#define EXPECT_OK(call) EXPECT_EQ((call), KILN_OK) << kiln_last_error()
#define ASSERT_OK(call) ASSERT_EQ((call), KILN_OK) << kiln_last_error()
#define EXPECT_REFUSED(call, status, sentence)        \
  do {                                                \
    EXPECT_EQ((call), (status)) << kiln_last_error(); \
    expect_contains(kiln_last_error(), (sentence));   \
  } while (false)

}  // namespace kiln::runtime
