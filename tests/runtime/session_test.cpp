// The life cycle through the C interface, against the fake driver: order of calls, prepare,
// choices, capture, fork, two devices, threads.
#include <cuda.h>
#include <locale.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>
#include <type_traits>

#include "jit/base/error.h"
#include "jit/base/json.h"
#include "runtime/plan_record.h"
#include "runtime/workshop.h"
#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

using cache::DecisionKind;
using templates::Sizes;

class SessionTest : public RuntimeTest {
 protected:
  Json explain(kiln_session* session, const char* op, const char* shape, const char* sizes) {
    size_t needed = 0;
    EXPECT_OK(kiln_explain(session, op, shape, sizes, nullptr, 0, &needed));
    std::string text(needed, '\0');
    EXPECT_OK(kiln_explain(session, op, shape, sizes, text.data(), text.size(), nullptr));
    text.resize(needed - 1);
    return Json::parse(text);
  }
  kiln_digests digests(kiln_session* session) {
    kiln_digests digests{};
    digests.size = sizeof digests;
    EXPECT_OK(kiln_get_digests(session, &digests));
    return digests;
  }
  // One bucket of staged_rows {"plain", 64} gets this config.
  void decide(int64_t bucket, int64_t splits, DecisionKind kind = DecisionKind::measured,
              Proof proof = Proof::passed) {
    with_store([&](cache::Store& store) {
      seed_decision(store, fake_gpu(0),
                    {.op = &staged_rows(),
                     .fixed = {{"format", 0}, {"C", 64}},
                     .bucket = {{"T", bucket}},
                     .config = {{"rows_per_cta", 4}, {"splits", splits}},
                     .kind = kind,
                     .proof = proof});
    });
  }
  // The same decision, but its plan says that other binaries were verified.
  void make_stale() {
    with_store([&](cache::Store& store) {
      const cache::DecisionRow row = store.list_decisions().front();
      cache::TuningResult other;
      other.decision = row.decision;
      other.decision.decided_at = 2;
      cache::PlanRecord plan = *store.find_plan(row.decision.plan);
      plan.id = hash_text("another");
      const templates::Config config{{"rows_per_cta", 1}, {"splits", 2}};
      other.binaries =
          fake_binaries(staged_rows(), {{"format", 0}, {"C", 64}}, config, fake_gpu(0));
      plan.kernels[0].binary = other.binaries[0].key;
      other.decision.plan = plan.id;
      other.plans = {plan};
      cache::Verification verification;
      verification.plan = plan.id;
      verification.problem = row.decision.problem;
      verification.by = cache::Verified::device;
      verification.passed = true;
      other.verifications = {verification};
      ASSERT_TRUE(store.put(other));
    });
  }
};

using Status = kiln_status;

bool same(const uint8_t (&a)[16], const uint8_t (&b)[16]) { return std::memcmp(a, b, 16) == 0; }

TEST_F(SessionTest, C28C109WholeLifeCycle) {
  kiln_session* session = open();
  ASSERT_OK(kiln_prepare(session, nullptr, nullptr, nullptr));
  ASSERT_OK(kiln_seal(session));
  kiln_plan* combine = plan(session, "combine_topk_swa", kCombineShape);
  const kiln_combine_topk_swa_args args = combine_args(8);
  ASSERT_OK(kiln_combine_topk_swa(combine, &args, nullptr));
  EXPECT_EQ(fake_cuda_launches(), 1u);
  EXPECT_EQ(stats(session).calls, 1u);
  EXPECT_EQ(stats(session).compiles, 0u);
  EXPECT_EQ(stats(session).tunes, 0u);
  ASSERT_OK(kiln_plan_destroy(combine));
  ASSERT_OK(kiln_close(session));
  EXPECT_EQ(fake_cuda_live("contexts"), 0u);
  EXPECT_EQ(fake_cuda_live("images"), 0u);
}

TEST_F(SessionTest, PrepareAfterSealIsBadState) {
  kiln_session* session = open();
  ASSERT_OK(kiln_seal(session));
  ASSERT_OK(kiln_seal(session));
  EXPECT_REFUSED(kiln_prepare(session, nullptr, nullptr, nullptr), KILN_BAD_STATE, "sealed");
}

TEST_F(SessionTest, PlanOfAnUnpreparedShapeIsRefusedAfterSeal) {
  kiln_session* session = open();
  ASSERT_OK(kiln_seal(session));
  kiln_plan* plan = reinterpret_cast<kiln_plan*>(1);
  EXPECT_REFUSED(kiln_plan_create(session, "combine_topk_swa", kCombineShape, &plan),
                 KILN_NOT_PREPARED, "workload of kiln_prepare");
  EXPECT_EQ(plan, nullptr);
}

TEST_F(SessionTest, PlanMadeBeforeSealAndNeverPreparedIsRefusedAtItsCall) {
  kiln_session* session = open();
  kiln_plan* combine = plan(session, "combine_topk_swa", kCombineShape);
  ASSERT_OK(kiln_seal(session));
  const kiln_combine_topk_swa_args args = combine_args(8);
  EXPECT_REFUSED(kiln_combine_topk_swa(combine, &args, nullptr), KILN_NOT_PREPARED, "sealed");
  expect_contains(kiln_last_error(), "let kiln_prepare have all that is called in its workload");
  EXPECT_EQ(fake_cuda_launches(), 0u);
}

TEST_F(SessionTest, ClosedHandlesAnswerClosed) {
  kiln_session* session = open();
  kiln_plan* first = plan(session, "combine_topk_swa", kCombineShape);
  kiln_plan* second = plan(session, "combine_topk_swa", kCombineShape);
  const kiln_combine_topk_swa_args args = combine_args(8);
  ASSERT_OK(kiln_combine_topk_swa(first, &args, nullptr));
  ASSERT_OK(kiln_plan_destroy(first));
  EXPECT_REFUSED(kiln_combine_topk_swa(first, &args, nullptr), KILN_CLOSED, "kiln_plan_destroy");
  EXPECT_REFUSED(kiln_plan_destroy(first), KILN_CLOSED, "closed");
  ASSERT_OK(kiln_close(session));
  EXPECT_REFUSED(kiln_combine_topk_swa(second, &args, nullptr), KILN_CLOSED, "kiln_close");
  uint64_t bytes = 0;
  EXPECT_REFUSED(kiln_combine_topk_swa_workspace(second, &args, &bytes), KILN_CLOSED, "closed");
  EXPECT_REFUSED(kiln_plan_destroy(second), KILN_CLOSED, "closed");
  EXPECT_REFUSED(kiln_close(session), KILN_CLOSED, "closed");
  EXPECT_REFUSED(kiln_prepare(session, nullptr, nullptr, nullptr), KILN_CLOSED, "closed");
  EXPECT_REFUSED(kiln_seal(session), KILN_CLOSED, "closed");
  kiln_plan* plan = nullptr;
  EXPECT_REFUSED(kiln_plan_create(session, "combine_topk_swa", kCombineShape, &plan), KILN_CLOSED,
                 "closed");
  kiln_stats stats{};
  stats.size = sizeof stats;
  EXPECT_REFUSED(kiln_get_stats(session, &stats), KILN_CLOSED, "closed");
  EXPECT_REFUSED(kiln_op_supported(session, "combine_topk_swa", nullptr, nullptr, 0, nullptr),
                 KILN_CLOSED, "closed");
  EXPECT_REFUSED(
      kiln_explain(session, "combine_topk_swa", kCombineShape, nullptr, nullptr, 0, nullptr),
      KILN_CLOSED, "closed");
}

TEST_F(SessionTest, NullHandlesAndPointersAreNamed) {
  EXPECT_OK(kiln_close(nullptr));
  EXPECT_OK(kiln_plan_destroy(nullptr));
  EXPECT_REFUSED(kiln_open(nullptr, nullptr), KILN_INVALID_ARGUMENT, "session is NULL");
  EXPECT_REFUSED(kiln_prepare(nullptr, nullptr, nullptr, nullptr), KILN_INVALID_ARGUMENT,
                 "session is NULL");
  EXPECT_REFUSED(kiln_seal(nullptr), KILN_INVALID_ARGUMENT, "session is NULL");
  const kiln_combine_topk_swa_args args = combine_args(8);
  EXPECT_REFUSED(kiln_combine_topk_swa(nullptr, &args, nullptr), KILN_INVALID_ARGUMENT,
                 "plan is NULL");
  kiln_session* session = open();
  kiln_plan* combine = plan(session, "combine_topk_swa", kCombineShape);
  EXPECT_REFUSED(kiln_combine_topk_swa(combine, nullptr, nullptr), KILN_INVALID_ARGUMENT,
                 "args is NULL");
  EXPECT_REFUSED(kiln_combine_topk_swa_workspace(combine, &args, nullptr), KILN_INVALID_ARGUMENT,
                 "bytes is NULL");
  EXPECT_REFUSED(kiln_plan_create(session, nullptr, nullptr, &combine), KILN_INVALID_ARGUMENT,
                 "op is NULL");
  EXPECT_REFUSED(kiln_plan_create(session, "combine_topk_swa", kCombineShape, nullptr),
                 KILN_INVALID_ARGUMENT, "plan is NULL");
  EXPECT_REFUSED(kiln_get_stats(session, nullptr), KILN_INVALID_ARGUMENT, "stats is NULL");
  EXPECT_REFUSED(kiln_abi_hash(nullptr), KILN_INVALID_ARGUMENT, "hash is NULL");
}

TEST_F(SessionTest, OptionsOfAnotherSize) {
  kiln_session* session = nullptr;
  kiln_options options{};
  EXPECT_REFUSED(kiln_open(&options, &session), KILN_INVALID_ARGUMENT, "sizeof(kiln_options)");
  EXPECT_EQ(session, nullptr);

  struct Newer {
    kiln_options known;
    uint64_t unknown[4];
  } newer{};
  newer.known.size = sizeof newer;
  newer.known.store = ":memory:";
  newer.unknown[2] = 1;
  EXPECT_REFUSED(kiln_open(&newer.known, &session), KILN_INVALID_ARGUMENT, "update libkiln");
  newer.unknown[2] = 0;
  ASSERT_OK(kiln_open(&newer.known, &session));
  EXPECT_OK(kiln_close(session));

  options.size = offsetof(kiln_options, store);  // an older header
  options.device = "cuda:1";
  options.log_level = static_cast<kiln_log_level>(77);  // beyond it, not looked at
  setenv("KILN_DB", ":memory:", 1);
  ASSERT_OK(kiln_open(&options, &session));
  EXPECT_OK(kiln_close(session));

  options.size = sizeof options;
  EXPECT_REFUSED(kiln_open(&options, &session), KILN_INVALID_ARGUMENT, "log_level is 77");
}

TEST_F(SessionTest, ResultStructsOfAnOlderHeaderAreNotOverrun) {
  kiln_session* session = open();
  ASSERT_OK(kiln_prepare(session, nullptr, nullptr, nullptr));
  kiln_stats stats;
  std::memset(&stats, 0xAB, sizeof stats);
  stats.size = offsetof(kiln_stats, miss_absent);
  ASSERT_OK(kiln_get_stats(session, &stats));
  EXPECT_EQ(stats.compiles, 0u);
  EXPECT_EQ(stats.miss_absent, 0xABABABABABABABABu);
  stats.size = 3;
  EXPECT_REFUSED(kiln_get_stats(session, &stats), KILN_INVALID_ARGUMENT, "stats->size is 3");
}

TEST_F(SessionTest, FieldsOfANewerHeaderAreZeroInResults) {
  kiln_session* session = open();
  const auto check = [](auto& newer, kiln_status (*ask)(kiln_session*, decltype(newer.known)*),
                        kiln_session* of) {
    std::memset(&newer, 0xAB, sizeof newer);
    newer.known.size = offsetof(std::remove_reference_t<decltype(newer)>, after);
    ASSERT_OK(ask(of, &newer.known));
    EXPECT_EQ(newer.known.size, offsetof(std::remove_reference_t<decltype(newer)>, after));
    EXPECT_EQ(newer.unknown[0], 0u);
    EXPECT_EQ(newer.unknown[1], 0u);
    EXPECT_EQ(newer.after, 0xABABABABABABABABu);
  };
  struct {
    kiln_stats known;
    uint64_t unknown[2];
    uint64_t after;
  } stats;
  check(stats, kiln_get_stats, session);
  struct {
    kiln_digests known;
    uint64_t unknown[2];
    uint64_t after;
  } digests;
  check(digests, kiln_get_digests, session);
  stats.known.size = size_t{1} << 40;  // never set
  EXPECT_REFUSED(kiln_get_stats(session, &stats.known), KILN_INVALID_ARGUMENT, "sizeof");
}

TEST_F(SessionTest, UnknownDeviceIsNotFound) {
  kiln_options options{};
  options.size = sizeof options;
  options.store = ":memory:";
  kiln_session* session = nullptr;
  for (const char* device : {"cuda:7", "tpu:0", "cuda:x", ""}) {
    options.device = device;
    EXPECT_EQ(kiln_open(&options, &session), KILN_NOT_FOUND) << device;
    EXPECT_EQ(session, nullptr);
  }
}

TEST_F(SessionTest, MissingDriverIsSaid) {
  setenv("KILN_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
  kiln_session* session = nullptr;
  EXPECT_REFUSED(kiln_open(nullptr, &session), KILN_NO_DRIVER, "/nonexistent/libcuda.so.1");
}

TEST_F(SessionTest, WarmStoreNeedsNoCompiler) {
  kiln_session* session = open();
  ASSERT_OK(kiln_prepare(session, "", nullptr, nullptr));
  const kiln_stats after = stats(session);
  EXPECT_EQ(after.compiles, 0u);
  EXPECT_EQ(after.miss_absent + after.miss_damaged + after.miss_unloadable, 0u);
  EXPECT_EQ(after.binary_hits, after.kernels_loaded);
  EXPECT_GE(after.kernels_loaded, 8u);
  EXPECT_TRUE(log_.has(store_path_));
  EXPECT_TRUE(log_.has("0 missing"));
}

TEST_F(SessionTest, EmptyStoreWithoutCompilerSaysBoth) {
  store_path_ = folder_.file("empty.db");
  kiln_session* session = open();
  EXPECT_EQ(kiln_prepare(session, "{\"ops\": [{\"op\": \"gather_dequant_kv\"}]}", nullptr, nullptr),
            KILN_NO_COMPILER);
  expect_contains(kiln_last_error(), "gather_dequant_kv");
  expect_contains(kiln_last_error(), store_path_);
  expect_contains(kiln_last_error(), "/nonexistent");
  EXPECT_GE(stats(session).miss_absent, 1u);
}

TEST_F(SessionTest, PreparingAgainAddsOnly) {
  kiln_session* session = open();
  ASSERT_OK(kiln_prepare(session, "{\"ops\": [{\"op\": \"combine_topk_swa\"}]}", nullptr, nullptr));
  const uint64_t loaded = stats(session).kernels_loaded;
  ASSERT_OK(kiln_prepare(session, "{\"ops\": [{\"op\": \"combine_topk_swa\"}]}", nullptr, nullptr));
  EXPECT_EQ(stats(session).kernels_loaded, loaded);
  ASSERT_OK(kiln_prepare(session, nullptr, nullptr, nullptr));
  EXPECT_GT(stats(session).kernels_loaded, loaded);
}

TEST_F(SessionTest, C12NoRowCountCompilesOrLoadsAfterPrepare) {
  kiln_session* session = open();
  ASSERT_OK(kiln_prepare(session, nullptr, nullptr, nullptr));
  ASSERT_OK(kiln_seal(session));
  kiln_plan* combine = plan(session, "combine_topk_swa", kCombineShape);
  const kiln_stats before = stats(session);
  for (int64_t tokens = 1; tokens <= 8192; ++tokens) {
    const kiln_combine_topk_swa_args args = combine_args(tokens);
    ASSERT_OK(kiln_combine_topk_swa(combine, &args, nullptr));
  }
  const kiln_stats after = stats(session);
  EXPECT_EQ(after.compiles, 0u);
  EXPECT_EQ(after.kernels_loaded, before.kernels_loaded);
  EXPECT_EQ(after.calls, 8192u);
}

TEST_F(SessionTest, C142RowCountsAround65536Run) {
  kiln_session* session = open();
  ASSERT_OK(kiln_prepare(session, nullptr, nullptr, nullptr));
  kiln_plan* combine = plan(session, "combine_topk_swa", kCombineShape);
  for (const int64_t tokens : {65535, 65536, 65537, 1 << 24}) {
    const kiln_combine_topk_swa_args args = combine_args(tokens);
    ASSERT_OK(kiln_combine_topk_swa(combine, &args, nullptr));
    fake_cuda_launch launch{};
    ASSERT_EQ(fake_cuda_last_launch(&launch), 1);
    EXPECT_EQ(launch.grid[0], (tokens + 3) / 4);
    EXPECT_EQ(launch.grid[1], 1u);
    EXPECT_EQ(launch.grid[2], 1u);
  }
}

struct ProgressLog {
  std::vector<int> done;
  int total = 0;
  int stop_at = -1;
  std::function<void()> also;

  static int receive(void* user, int done, int total, const char*) {
    auto* log = static_cast<ProgressLog*>(user);
    log->done.push_back(done);
    log->total = total;
    if (log->also) log->also();
    return log->stop_at == done ? 1 : 0;
  }
};

TEST_F(SessionTest, C14ProgressCountsKernelsUpToTheTotal) {
  kiln_session* session = open();
  ProgressLog progress;
  ASSERT_OK(kiln_prepare(session, nullptr, ProgressLog::receive, &progress));
  ASSERT_FALSE(progress.done.empty());
  EXPECT_EQ(progress.done.front(), 0);
  EXPECT_EQ(progress.done.back(), progress.total);
  EXPECT_TRUE(std::is_sorted(progress.done.begin(), progress.done.end()));
  EXPECT_EQ(static_cast<uint64_t>(progress.total), stats(session).kernels_loaded);
}

TEST_F(SessionTest, C21StoppedPrepareKeepsWhatIsReadyAndCanGoOn) {
  kiln_session* session = open();
  ProgressLog progress;
  progress.stop_at = 2;
  EXPECT_REFUSED(kiln_prepare(session, nullptr, ProgressLog::receive, &progress), KILN_INTERRUPTED,
                 "2 of");
  EXPECT_GE(stats(session).kernels_loaded, 2u);  // and what was loaded ahead
  ASSERT_OK(kiln_prepare(session, nullptr, nullptr, nullptr));
  EXPECT_EQ(stats(session).kernels_loaded, static_cast<uint64_t>(progress.total));
}

TEST_F(SessionTest, CallbackMayAskButNotSealOrClose) {
  kiln_session* session = open();
  ProgressLog progress;
  std::vector<kiln_status> answers;
  progress.also = [&] {
    kiln_stats now{};
    now.size = sizeof now;
    answers = {kiln_get_stats(session, &now), kiln_seal(session), kiln_close(session)};
  };
  ASSERT_OK(kiln_prepare(session, nullptr, ProgressLog::receive, &progress));
  EXPECT_EQ(answers, (std::vector<kiln_status>{KILN_OK, KILN_BAD_STATE, KILN_BAD_STATE}));
  EXPECT_OK(kiln_seal(session));
}

TEST_F(SessionTest, AShapeServesAsSoonAsItsKernelsAreLoaded) {
  ASSERT_OK(kiln_prepare(open(), nullptr, nullptr, nullptr));  // so that the store has them all
  kiln_session* session = open();
  kiln_plan* combine = plan(session, "combine_topk_swa", kCombineShape);
  const kiln_combine_topk_swa_args args = combine_args(8);
  ProgressLog progress;
  bool is_served = false;
  progress.also = [&] {
    if (progress.done.back() + 1 == progress.total)
      is_served = kiln_combine_topk_swa(combine, &args, nullptr) == KILN_OK;
  };
  ASSERT_OK(kiln_prepare(session, nullptr, ProgressLog::receive, &progress));
  EXPECT_TRUE(is_served);
}

TEST_F(SessionTest, PreparingInsideACallbackOfAPrepareIsRefused) {
  kiln_session* session = open();
  kiln_session* other = open();
  kiln_plan* combine = plan(session, "combine_topk_swa", kCombineShape);
  const kiln_combine_topk_swa_args args = combine_args(8);
  ProgressLog progress;
  progress.also = [&] {
    if (progress.done.back() != 0) return;
    EXPECT_REFUSED(kiln_prepare(session, nullptr, nullptr, nullptr), KILN_BAD_STATE,
                   "inside a prepare");
    EXPECT_REFUSED(kiln_combine_topk_swa(combine, &args, nullptr), KILN_BAD_STATE,
                   "inside a prepare");
    EXPECT_OK(kiln_prepare(other, nullptr, nullptr, nullptr));
  };
  ASSERT_OK(kiln_prepare(session, nullptr, ProgressLog::receive, &progress));
  EXPECT_OK(kiln_combine_topk_swa(combine, &args, nullptr));
  EXPECT_OK(kiln_prepare(session, nullptr, nullptr, nullptr));
}

TEST_F(SessionTest, AKernelThatAnotherThreadDoesNotFinishIsMadeHere) {
  const auto device = Device::open("cuda:0");
  const auto store = cache::Store::open({.path = store_path_, .pack = ""});
  const Log log;
  Counters counters;
  Workshop workshop(*device, *store, log, counters);
  const Sizes fixed{{"format", 0}, {"C", 64}};
  const templates::LaunchPlan launches =
      staged_rows().plan(fixed, staged_rows().default_config(fixed), fake_gpu(0));
  std::vector<KernelNeed> stuck_needs;
  for (const templates::KernelLaunch& launch : launches.kernels) {
    stuck_needs.push_back(
        {.key = {.binary = jit::binary_key(templates::kernel_source(staged_rows(), launch),
                                           workshop.arch(), templates::compile_options(launch)),
                 .threads = launch.threads,
                 .dynamic_smem_bytes = launch.dynamic_smem_bytes},
         .launch = launch,
         .subject = {.op = &staged_rows(), .fixed = fixed, .config = ""}});
  }
  std::vector<KernelNeed> needs = stuck_needs;

  KernelRun stuck(workshop, stuck_needs);
  KernelRun run(workshop, needs, {.patience = std::chrono::milliseconds(0)});
  run.finish(nullptr);
  EXPECT_EQ(workshop.kernels().size(), needs.size());
  stuck.finish(nullptr);
  for (size_t i = 0; i < needs.size(); ++i) {
    EXPECT_NE(needs[i].ready, nullptr);
    EXPECT_EQ(stuck_needs[i].ready, needs[i].ready);
  }
}

TEST_F(SessionTest, UnusableStoreIsAWarningAndNoError) {
  store_path_ = folder_.file("");  // a folder
  kiln_session* session = open();
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(log_.count("warning: "), 1) << log_.text();
}

TEST_F(SessionTest, DecisionOfTheNearestBucketIsTaken) {
  decide(256, 4);
  kiln_session* session = open();
  ASSERT_OK(kiln_prepare(session, nullptr, nullptr, nullptr));
  kiln_plan* rows = plan(session, "staged_rows", kStagedShape);
  // Edges 1, 16, 256, 4096: sizes 65 to 1024 are nearest to 256.
  const auto splits_of = [&](int64_t num_rows) {
    const StagedRowsArgs args = staged_rows_args(num_rows);
    const uint64_t before = fake_cuda_launches();
    EXPECT_OK(call_staged_rows(rows, args));
    fake_cuda_launch launch{};
    EXPECT_EQ(fake_cuda_get_launch(before, &launch), 1);
    return launch.grid[0] / static_cast<unsigned>((num_rows + 3) / 4);
  };
  EXPECT_EQ(splits_of(64), 1u);
  EXPECT_EQ(splits_of(65), 4u);
  EXPECT_EQ(splits_of(1024), 4u);
  EXPECT_EQ(splits_of(1025), 1u);

  const Json explained = explain(session, "staged_rows", kStagedShape, "{\"num_rows\": 300}");
  ASSERT_EQ(explained["buckets"].size(), 1u);
  const Json& bucket = explained["buckets"][0];
  EXPECT_EQ(bucket["bucket"], Json({{"num_rows", 256}}));
  EXPECT_EQ(bucket["kind"], "measured");
  EXPECT_EQ(bucket["config"], Json({{"rows_per_cta", 4}, {"splits", 4}}));
  EXPECT_EQ(bucket["verified"], "device");
  EXPECT_EQ(bucket["prepared"], true);
  EXPECT_EQ(bucket["kernels"][0]["registers"], 32);
  EXPECT_EQ(explained["searched"]["store"], store_path_);
}

TEST_F(SessionTest, C04C20C152C153MissesAreCountedAndSaidOncePerKey) {
  decide(256, 4);
  kiln_session* session = open();
  const char* workload = "{\"ops\": [{\"op\": \"staged_rows\"}]}";
  ASSERT_OK(kiln_prepare(session, workload, nullptr, nullptr));
  ASSERT_OK(kiln_prepare(session, workload, nullptr, nullptr));
  EXPECT_EQ(stats(session).decision_hits, 1u);
  EXPECT_EQ(stats(session).decision_defaults, 3u);
  EXPECT_EQ(log_.count("no decision for this problem"), 3);
  EXPECT_EQ(log_.count("{\"num_rows\":4096}: default config"), 1);
}

TEST_F(SessionTest, SizesOfTheWorkloadLimitWhatIsPrepared) {
  decide(4096, 2);
  decide(16, 4);
  kiln_session* session = open();
  ASSERT_OK(kiln_prepare(
      session, "{\"ops\": [{\"op\": \"staged_rows\", \"sizes\": {\"num_rows\": [1, 20]}}]}",
      nullptr, nullptr));
  EXPECT_EQ(stats(session).kernels_loaded, 4u);  // the default and the config of bucket 16
  const Json all = explain(session, "staged_rows", kStagedShape, nullptr);
  ASSERT_EQ(all["buckets"].size(), 4u);
  EXPECT_EQ(all["buckets"][1]["prepared"], true);
  EXPECT_EQ(all["buckets"][3]["prepared"], false);
  EXPECT_EQ(all["buckets"][3]["kind"], "default");
  EXPECT_EQ(all["buckets"][3]["config"], all["buckets"][0]["config"]);
  EXPECT_EQ(all["buckets"][3]["would_take"]["kind"], "measured");
  EXPECT_EQ(all["buckets"][3]["would_take"]["config"], Json({{"rows_per_cta", 4}, {"splits", 2}}));
  EXPECT_EQ(all["buckets"][1]["would_take"], nullptr);
  // Beyond the prepared sizes the default serves, also when sealed.
  ASSERT_OK(kiln_seal(session));
  kiln_plan* rows = plan(session, "staged_rows", kStagedShape);
  EXPECT_OK(call_staged_rows(rows, staged_rows_args(4096)));
}

TEST_F(SessionTest, DecisionThatFailedVerificationIsNotUsed) {
  decide(256, 4, DecisionKind::measured, Proof::failed);
  kiln_session* session = open();
  ASSERT_OK(kiln_prepare(session, nullptr, nullptr, nullptr));
  const Json bucket =
      explain(session, "staged_rows", kStagedShape, "{\"num_rows\": 256}")["buckets"][0];
  EXPECT_EQ(bucket["kind"], "default");
  expect_contains(bucket["reason"].get<std::string>(), "failed verification");
  EXPECT_TRUE(log_.has("warning: staged_rows"));
}

TEST_F(SessionTest, FailureWithAnOlderDriverNoLongerCountsWhenANewerOnePasses) {
  decide(256, 4, DecisionKind::measured, Proof::failed);
  with_store([&](cache::Store& store) {
    cache::Verification verification =
        store.verifications(store.list_decisions().at(0).decision.problem).at(0);
    verification.driver = "newer";
    verification.passed = true;
    ASSERT_TRUE(store.put_verification(verification));
  });
  const Json bucket =
      explain(open(), "staged_rows", kStagedShape, "{\"num_rows\": 256}")["buckets"][0];
  EXPECT_EQ(bucket["kind"], "measured");
  EXPECT_EQ(bucket["verified"], "device");
}

TEST_F(SessionTest, C75MeasuredDecisionThatWasNeverVerifiedIsNotUsed) {
  decide(256, 4, DecisionKind::measured, Proof::none);
  kiln_session* session = open();
  const Json bucket =
      explain(session, "staged_rows", kStagedShape, "{\"num_rows\": 256}")["buckets"][0];
  EXPECT_EQ(bucket["kind"], "default");
  expect_contains(bucket["reason"].get<std::string>(), "never verified");
}

TEST_F(SessionTest, PredictedDecisionIsUsedAndSaid) {
  decide(256, 4, DecisionKind::predicted, Proof::none);
  kiln_session* session = open();
  ASSERT_OK(kiln_prepare(session, nullptr, nullptr, nullptr));
  EXPECT_EQ(
      explain(session, "staged_rows", kStagedShape, "{\"num_rows\": 256}")["buckets"][0]["kind"],
      "predicted");
  EXPECT_TRUE(log_.has("predicted config"));
}

TEST_F(SessionTest, DecisionThatBreaksARuleIsNotUsed) {
  decide(256, 16);
  kiln_session* session = open();
  ASSERT_OK(kiln_prepare(session, nullptr, nullptr, nullptr));
  const Json bucket =
      explain(session, "staged_rows", kStagedShape, "{\"num_rows\": 256}")["buckets"][0];
  EXPECT_EQ(bucket["kind"], "default");
  expect_contains(bucket["reason"].get<std::string>(), "more than 8 splits");
}

TEST_F(SessionTest, DecisionVerifiedWithAnotherSourceIsStale) {
  decide(256, 4);
  make_stale();
  kiln_session* session = open();
  const auto kind = [&] {
    return explain(session, "staged_rows", kStagedShape,
                   "{\"num_rows\": 256}")["buckets"][0]["kind"];
  };
  EXPECT_EQ(kind(), "default");
  ASSERT_OK(kiln_prepare(session, "{\"ops\": [{\"op\": \"staged_rows\"}]}", nullptr, nullptr));
  EXPECT_TRUE(log_.has("stale"));
  EXPECT_EQ(kind(), "default");
  EXPECT_EQ(stats(session).decision_hits, 0u);
  EXPECT_EQ(stats(session).decision_defaults, 4u);
}

TEST_F(SessionTest, StaleMeasurementDoesNotHideACurrentPrediction) {
  decide(256, 4, DecisionKind::measured);
  make_stale();
  decide(256, 2, DecisionKind::predicted);
  kiln_session* session = open();
  const auto bucket = [&] {
    return explain(session, "staged_rows", kStagedShape, "{\"num_rows\": 256}")["buckets"][0];
  };
  const Json before = bucket();
  EXPECT_EQ(before["kind"], "predicted");
  EXPECT_EQ(before["config"], Json({{"rows_per_cta", 4}, {"splits", 2}}));
  EXPECT_EQ(before["verified"], "device");
  ASSERT_OK(kiln_prepare(session, "{\"ops\": [{\"op\": \"staged_rows\"}]}", nullptr, nullptr));
  EXPECT_EQ(bucket()["kind"], "predicted");
  EXPECT_EQ(stats(session).decision_hits, 1u);
  EXPECT_TRUE(log_.has("the measured decision")) << log_.text();
}

TEST_F(SessionTest, PinnedAndPredictedDecisionsKeepNoProofOfAnotherSource) {
  for (const DecisionKind kind : {DecisionKind::predicted, DecisionKind::pinned}) {
    decide(256, 4, kind);
    kiln_session* current = open();
    const auto bucket_of = [&](kiln_session* session) {
      EXPECT_OK(kiln_prepare(session, nullptr, nullptr, nullptr));
      return explain(session, "staged_rows", kStagedShape, "{\"num_rows\": 256}")["buckets"][0];
    };
    EXPECT_EQ(bucket_of(current)["verified"], "device");
    ASSERT_OK(kiln_close(current));
    make_stale();
    const Json bucket = bucket_of(open());
    EXPECT_EQ(bucket["kind"], cache::kind_name(kind));
    EXPECT_EQ(bucket["config"], Json({{"rows_per_cta", 4}, {"splits", 4}}));
    EXPECT_EQ(bucket["verified"], nullptr);
    EXPECT_EQ(bucket["time_ns"], nullptr);
    EXPECT_EQ(bucket["default_time_ns"], nullptr);
    expect_contains(bucket["reason"].get<std::string>(), "source has changed");
  }
}

TEST_F(SessionTest, C117TunedConfigWhoseKernelCannotBeMadeFallsBackToTheDefault) {
  decide(256, 4, DecisionKind::predicted, Proof::none);
  with_store([&](cache::Store& store) { EXPECT_TRUE(store.check().empty()); });
  // A file that holds the decision, but no binary of it.
  const std::string other = folder_.file("other.db");
  with_store([&](cache::Store& store) {
    const auto copy = cache::Store::open({.path = other, .pack = ""});
    seed_defaults(*copy, fake_gpu(0));
    cache::TuningResult result;
    result.decision = store.list_decisions().front().decision;
    cache::PlanRecord plan = *store.find_plan(result.decision.plan);
    plan.kernels.clear();
    result.plans = {plan};
    ASSERT_TRUE(copy->put(result));
  });
  store_path_ = other;
  kiln_session* session = open();
  ASSERT_OK(kiln_prepare(session, "{\"ops\": [{\"op\": \"staged_rows\"}]}", nullptr, nullptr));
  EXPECT_TRUE(log_.has("its kernel cannot be made"));
  kiln_plan* rows = plan(session, "staged_rows", kStagedShape);
  EXPECT_OK(call_staged_rows(rows, staged_rows_args(256)));
}

TEST_F(SessionTest, DigestsFollowConfigAndReduction) {
  kiln_session* plain = open();
  const kiln_digests empty = digests(plain);
  ASSERT_OK(kiln_prepare(plain, nullptr, nullptr, nullptr));
  const kiln_digests before = digests(plain);
  EXPECT_FALSE(same(empty.exact, before.exact));

  kiln_session* again = open();
  ASSERT_OK(kiln_prepare(again, "{\"ops\": [{\"op\": \"staged_rows\"}]}", nullptr, nullptr));
  ASSERT_OK(kiln_prepare(again, nullptr, nullptr, nullptr));
  EXPECT_TRUE(same(digests(again).exact, before.exact));

  kiln_session* ampere = open("cuda:1");
  ASSERT_OK(kiln_prepare(ampere, nullptr, nullptr, nullptr));
  EXPECT_FALSE(same(digests(ampere).exact, before.exact));
  EXPECT_TRUE(same(digests(ampere).numerics, before.numerics));

  decide(256, 4);
  kiln_session* tuned = open();
  ASSERT_OK(kiln_prepare(tuned, nullptr, nullptr, nullptr));
  EXPECT_FALSE(same(digests(tuned).exact, before.exact));
  EXPECT_FALSE(same(digests(tuned).numerics, before.numerics));
}

TEST_F(SessionTest, FirstCallOfAnUnpreparedPlanPreparesIt) {
  kiln_session* session = open();
  kiln_plan* combine = plan(session, "combine_topk_swa", kCombineShape);
  EXPECT_EQ(stats(session).kernels_loaded, 0u);
  const kiln_combine_topk_swa_args args = combine_args(8);
  ASSERT_OK(kiln_combine_topk_swa(combine, &args, nullptr));
  EXPECT_EQ(stats(session).kernels_loaded, 1u);
  EXPECT_TRUE(log_.has("first call of a plan that was not prepared"));
  ASSERT_OK(kiln_combine_topk_swa(combine, &args, nullptr));
  EXPECT_EQ(log_.count("first call"), 1);
}

TEST_F(SessionTest, C130FirstCallUnderCaptureIsRefusedAndLeavesTheCaptureValid) {
  kiln_session* session = open();
  kiln_plan* combine = plan(session, "combine_topk_swa", kCombineShape);
  const CurrentContext context;
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);

  const kiln_combine_topk_swa_args args = combine_args(8);
  EXPECT_REFUSED(kiln_combine_topk_swa(combine, &args, stream), KILN_NOT_PREPARED,
                 "before the capture");
  EXPECT_EQ(stats(session).kernels_loaded, 0u);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  ASSERT_EQ(cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);

  // Preparing while the capture runs breaks nothing either; then the call is captured.
  ASSERT_OK(kiln_prepare(session, nullptr, nullptr, nullptr));
  ASSERT_OK(kiln_combine_topk_swa(combine, &args, stream));
  EXPECT_EQ(fake_cuda_launches(), 0u);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
  EXPECT_EQ(fake_cuda_launches(), 1u);
  cuGraphExecDestroy(exec);
  cuGraphDestroy(graph);
  cuStreamDestroy(stream);
}

// kiln.h: whatever is no op call is legal beside any capture and leaves it valid.
TEST_F(SessionTest, C131LifeCycleLeavesCapturesValid) {
  const CurrentContext context;
  for (const unsigned flags : {CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING}) {
    CUstream stream = nullptr;
    ASSERT_EQ(cuStreamCreate(&stream, flags), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    const auto live_a_life = [&] {
      kiln_session* session = open();
      EXPECT_OK(kiln_op_supported(session, "combine_topk_swa", kCombineShape, nullptr, 0, nullptr));
      EXPECT_OK(kiln_prepare(session, nullptr, nullptr, nullptr));
      EXPECT_OK(kiln_seal(session));
      kiln_plan* combine = plan(session, "combine_topk_swa", kCombineShape);
      explain(session, "combine_topk_swa", kCombineShape, nullptr);
      EXPECT_GT(stats(session).kernels_loaded, 0u);
      digests(session);
      EXPECT_OK(kiln_plan_destroy(combine));
      EXPECT_OK(kiln_close(session));
    };
    live_a_life();
    std::thread(live_a_life).join();
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    ASSERT_EQ(cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    cuGraphDestroy(graph);
    cuStreamDestroy(stream);
  }
}

TEST_F(SessionTest, C06C08SupportIsAnsweredWithAReason) {
  kiln_session* session = open();
  char text[512];
  EXPECT_OK(
      kiln_op_supported(session, "combine_topk_swa", kCombineShape, text, sizeof text, nullptr));
  expect_contains(text, "is supported");
  EXPECT_OK(kiln_op_supported(session, "gather_dequant_kv", nullptr, nullptr, 0, nullptr));
  EXPECT_EQ(kiln_op_supported(session, "attention", nullptr, text, sizeof text, nullptr),
            KILN_NOT_FOUND);
  expect_contains(text, "gather_dequant_kv");
  EXPECT_EQ(kiln_op_supported(session, "gather_dequant_kv", "{\"format\": \"f9\"}", text,
                              sizeof text, nullptr),
            KILN_INVALID_ARGUMENT);
  expect_contains(text, "\"f1\"");
  // No binary in the store and no compiler.
  EXPECT_EQ(kiln_op_supported(session, "combine_topk_swa", "{\"ratio\": 2, \"top_k\": 96}", text,
                              sizeof text, nullptr),
            KILN_UNSUPPORTED);
  expect_contains(text, "NVRTC");
}

TEST_F(SessionTest, BytesOfATensorNeedNoSession) {
  const char* const shape =
      R"({"out_features": 288, "in_features": 288, "groups": 1, "x_format": "bf16_q8a",
          "y_format": "f32", "w_layout": "packed"})";
  const auto bytes = [](const char* op, const char* of_shape, const char* sizes, const char* arg) {
    uint64_t result = 7;
    EXPECT_OK(kiln_tensor_bytes(op, of_shape, sizes, arg, &result));
    return result;
  };
  EXPECT_EQ(bytes("pack_weights", R"({"format": "e4m3"})", R"({"num_rows":288,"in_features":288})",
                  "packed"),
            288u * 320);
  EXPECT_EQ(bytes("linear_fp8", shape, R"({"num_rows": 3})", "w"), 288u * 320);
  EXPECT_EQ(bytes("linear_fp8", shape, R"({"num_rows": 3})", "y_f32"), 3u * 288 * 4);
  EXPECT_EQ(bytes("linear_fp8", shape, R"({"num_rows": 3})", "x_codes"), 0u);  // absent here

  uint64_t none = 7;
  EXPECT_REFUSED(kiln_tensor_bytes("linear_fp8", shape, nullptr, "w", &none), KILN_INVALID_ARGUMENT,
                 "the sizes lack \"num_rows\"");
  EXPECT_EQ(none, 0u);
  EXPECT_REFUSED(kiln_tensor_bytes("pack_weights", R"({"format": "e4m3"})",
                                   R"({"num_rows":31,"in_features":64})", "packed", &none),
                 KILN_INVALID_ARGUMENT, "num_rows is a multiple of 32; here num_rows = 31");
  EXPECT_REFUSED(kiln_tensor_bytes("linear_fp8", shape, R"({"num_rows": 3})", "weight", &none),
                 KILN_NOT_FOUND, "there is no argument \"weight\"; the arguments are x, x_codes");
  EXPECT_REFUSED(kiln_tensor_bytes("linear", shape, nullptr, "w", &none), KILN_NOT_FOUND,
                 "there is no op");
  EXPECT_REFUSED(kiln_tensor_bytes("linear_fp8", "{", nullptr, "w", &none), KILN_INVALID_ARGUMENT,
                 "shape");
  EXPECT_REFUSED(kiln_tensor_bytes("linear_fp8", shape, nullptr, "w", nullptr),
                 KILN_INVALID_ARGUMENT, "bytes is NULL");
  EXPECT_REFUSED(kiln_tensor_bytes(nullptr, shape, nullptr, "w", &none), KILN_INVALID_ARGUMENT,
                 "op is NULL");
  EXPECT_REFUSED(kiln_tensor_bytes("linear_fp8", shape, nullptr, nullptr, &none),
                 KILN_INVALID_ARGUMENT, "arg is NULL");
}

TEST_F(SessionTest, TextIsCutToTheBufferAndTerminated) {
  kiln_session* session = open();
  size_t needed = 0;
  char text[8] = "xxxxxxx";
  EXPECT_OK(
      kiln_op_supported(session, "combine_topk_swa", kCombineShape, text, sizeof text, &needed));
  EXPECT_STREQ(text, "combine");
  EXPECT_GT(needed, sizeof text);
}

TEST_F(SessionTest, ErrnoLocaleAndContextStayAsTheyWere) {
  kiln_session* session = nullptr;
  const std::string locale = setlocale(LC_ALL, nullptr);
  const auto check = [&](const char* what) {
    EXPECT_EQ(errno, 1234) << what;
    EXPECT_EQ(fake_cuda_context_depth(), 0) << what;
    EXPECT_EQ(fake_cuda_current_device(), -1) << what;
    EXPECT_EQ(locale, setlocale(LC_ALL, nullptr)) << what;
    errno = 1234;
  };
  errno = 1234;
  session = open();
  check("open");
  kiln_prepare(session, nullptr, nullptr, nullptr);
  check("prepare");
  kiln_plan* combine = plan(session, "combine_topk_swa", kCombineShape);
  check("plan_create");
  const kiln_combine_topk_swa_args args = combine_args(8);
  kiln_combine_topk_swa(combine, &args, nullptr);
  check("call");
  const kiln_combine_topk_swa_args bad = combine_args(-1);
  kiln_combine_topk_swa(combine, &bad, nullptr);
  check("refused call");
  kiln_prepare(session, "{", nullptr, nullptr);
  check("refused prepare");
  kiln_close(session);
  check("close");
}

TEST_F(SessionTest, AForkedChildIsRefusedAndTheParentGoesOn) {
  kiln_session* session = open();
  kiln_plan* combine = plan(session, "combine_topk_swa", kCombineShape);
  const kiln_combine_topk_swa_args args = combine_args(8);
  ASSERT_OK(kiln_combine_topk_swa(combine, &args, nullptr));
  const pid_t child = fork();
  if (child == 0) {
    kiln_stats stats{};
    stats.size = sizeof stats;
    const bool good = kiln_combine_topk_swa(combine, &args, nullptr) == KILN_FORKED &&
                      std::strstr(kiln_last_error(), "forked") != nullptr &&
                      kiln_prepare(session, nullptr, nullptr, nullptr) == KILN_FORKED &&
                      kiln_get_stats(session, &stats) == KILN_FORKED &&
                      kiln_plan_destroy(combine) == KILN_FORKED &&
                      kiln_close(session) == KILN_FORKED;
    _exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_OK(kiln_combine_topk_swa(combine, &args, nullptr));
}

TEST_F(SessionTest, C05TwoDevicesAtOnceEachRunTheirOwnBinaries) {
  kiln_session* ampere80 = open("cuda:0");
  kiln_session* ampere86 = open("cuda:1");
  ASSERT_OK(kiln_prepare(ampere80, nullptr, nullptr, nullptr));
  ASSERT_OK(kiln_prepare(ampere86, nullptr, nullptr, nullptr));
  const kiln_combine_topk_swa_args args = combine_args(8);
  kiln_plan* plans[] = {plan(ampere80, "combine_topk_swa", kCombineShape),
                        plan(ampere86, "combine_topk_swa", kCombineShape)};
  for (int round = 0; round < 3; ++round) {
    for (int device = 0; device < 2; ++device) {
      ASSERT_OK(kiln_combine_topk_swa(plans[device], &args, nullptr));
      fake_cuda_launch launch{};
      ASSERT_EQ(fake_cuda_last_launch(&launch), 1);
      EXPECT_EQ(launch.device, device);
    }
  }
  ASSERT_OK(kiln_close(ampere80));
  EXPECT_OK(kiln_combine_topk_swa(plans[1], &args, nullptr));
}

TEST_F(SessionTest, C46ThreadsPrepareAndCallTogether) {
  decide(256, 4);
  kiln_session* session = open();
  constexpr int kThreads = 8;
  constexpr int kCalls = 200;
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  kiln_plan* shared = plan(session, "staged_rows", kStagedShape);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      kiln_plan* own = nullptr;
      if (kiln_plan_create(session, "combine_topk_swa", kCombineShape, &own) != KILN_OK) ++failures;
      if (t % 2 == 0 && kiln_prepare(session, nullptr, nullptr, nullptr) != KILN_OK) ++failures;
      for (int i = 0; i < kCalls; ++i) {
        const kiln_combine_topk_swa_args args = combine_args(i * t + 1);
        if (kiln_combine_topk_swa(own, &args, nullptr) != KILN_OK) ++failures;
        if (call_staged_rows(shared, staged_rows_args(i + 1)) != KILN_OK) ++failures;
        const StagedRowsArgs bad = staged_rows_args(-1 - t);
        if (call_staged_rows(shared, bad) != KILN_INVALID_ARGUMENT ||
            std::strstr(kiln_last_error(), std::to_string(-1 - t).c_str()) == nullptr) {
          ++failures;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(stats(session).calls, 2u * kThreads * kCalls);
  // Each kernel was loaded once, whoever came first.
  EXPECT_EQ(stats(session).kernels_loaded, fake_cuda_calls("cuLibraryLoadData"));
}

}  // namespace
}  // namespace kiln::runtime
