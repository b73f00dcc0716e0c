// The options of kiln_open that are given by name: store_mode and compiles.
#include <filesystem>

#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

class Options : public RuntimeTest {
 protected:
  kiln_options options() {
    kiln_options options{};
    options.size = sizeof options;
    options.store = store_path_.c_str();
    options.log = LogLines::receive;
    options.log_user = &log_;
    options.log_level = KILN_LOG_WARNING;
    return options;
  }
  kiln_session* open_with(const kiln_options& options) {
    kiln_session* session = nullptr;
    EXPECT_OK(kiln_open(&options, &session));
    return session;
  }
  void decide(cache::Store& store) {
    seed_decision(store, fake_gpu(0),
                  {.op = &staged_rows(),
                   .fixed = {{"format", 0}, {"C", 64}},
                   .bucket = {{"T", 256}},
                   .config = {{"rows_per_cta", 2}, {"splits", 4}}});
  }
};

constexpr const char* kStagedWorkload =
    R"({"ops": [{"op": "staged_rows", "shape": {"format": "plain", "width": 64}}]})";
constexpr const char* kOtherWorkload =
    R"({"ops": [{"op": "staged_rows", "shape": {"format": "plain", "width": 32}}]})";

TEST_F(Options, OtherNamesAreRefused) {
  kiln_session* session = nullptr;
  kiln_options wrong = options();
  wrong.store_mode = "ro";
  EXPECT_REFUSED(kiln_open(&wrong, &session), KILN_INVALID_ARGUMENT,
                 "kiln_open: options->store_mode is \"ro\"; it must be \"read-write\" or "
                 "\"read-only\", or NULL for \"read-write\"");
  wrong = options();
  wrong.compiles = "";
  EXPECT_REFUSED(kiln_open(&wrong, &session), KILN_INVALID_ARGUMENT,
                 "options->compiles is \"\"; it must be \"allowed\" or \"refused\"");
  EXPECT_EQ(session, nullptr);
}

TEST_F(Options, AnOlderHeaderHasNeither) {
  kiln_options older = options();
  older.size = offsetof(kiln_options, store_mode);
  older.store_mode = reinterpret_cast<const char*>(1);  // beyond it, not looked at
  older.compiles = reinterpret_cast<const char*>(1);
  EXPECT_OK(kiln_close(open_with(older)));
}

TEST_F(Options, ReadOnlyStoreIsReadAndNotMade) {
  kiln_options read_only = options();
  read_only.store_mode = "read-only";
  kiln_session* session = open_with(read_only);
  EXPECT_OK(kiln_prepare(session, kStagedWorkload, nullptr, nullptr));
  EXPECT_EQ(stats(session).binary_hits, 2u);
  EXPECT_OK(kiln_close(session));

  const std::string nowhere = folder_.file("none.db");
  read_only.store = nowhere.c_str();
  EXPECT_OK(kiln_close(open_with(read_only)));
  EXPECT_FALSE(std::filesystem::exists(nowhere));
}

class Strict : public Options {
 protected:
  kiln_session* open_strict() {
    kiln_options strict = options();
    strict.compiles = "refused";
    return open_with(strict);
  }
};

TEST_F(Strict, WarmStoreServes) {
  with_store([&](cache::Store& store) { decide(store); });
  kiln_session* session = open_strict();
  EXPECT_OK(kiln_prepare(session, nullptr, nullptr, nullptr));
  EXPECT_OK(kiln_prepare(session, kStagedWorkload, nullptr, nullptr));
  EXPECT_EQ(stats(session).compiles, 0u);
  EXPECT_EQ(stats(session).decision_hits, 1u);
  EXPECT_OK(kiln_close(session));
}

TEST_F(Strict, C83C103CompileIsAnError) {
  kiln_session* session = open_strict();
  EXPECT_REFUSED(kiln_prepare(session, kOtherWorkload, nullptr, nullptr), KILN_NOT_PREPARED,
                 "was opened with options.compiles \"refused\"; fill the store with `kiln build`");
  EXPECT_REFUSED(kiln_prepare_start(session, kOtherWorkload, nullptr, nullptr), KILN_NOT_PREPARED,
                 "refused");
  // The first call of a plan that was not prepared.
  kiln_plan* rows = plan(session, "staged_rows", R"({"format": "plain", "width": 32})");
  EXPECT_REFUSED(call_staged_rows(rows, staged_rows_args(8)), KILN_NOT_PREPARED, "refused");
  EXPECT_EQ(stats(session).compiles, 0u);
  EXPECT_OK(kiln_close(session));
}

// Where another session falls back to the default with a warning.
TEST_F(Strict, C83DecisionWhoseKernelIsMissingIsAnError) {
  const std::string other = folder_.file("other.db");
  with_store([&](cache::Store& store) {
    decide(store);
    const auto copy = cache::Store::open({.path = other, .pack = ""});
    seed_defaults(*copy, fake_gpu(0));
    cache::TuningResult result;
    result.decision = store.list_decisions().front().decision;
    result.decision.kind = cache::DecisionKind::predicted;
    cache::PlanRecord without = *store.find_plan(result.decision.plan);
    without.kernels.clear();
    result.plans = {without};
    ASSERT_TRUE(copy->put(result));
  });
  store_path_ = other;
  kiln_session* session = open_strict();
  EXPECT_REFUSED(kiln_prepare(session, kStagedWorkload, nullptr, nullptr), KILN_NOT_PREPARED,
                 "does not hold its kernel");
  EXPECT_OK(kiln_close(session));
}

}  // namespace
}  // namespace kiln::runtime
