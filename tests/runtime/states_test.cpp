// Every function of kiln.h in every state of a session: one table says what it answers. A function
// that libkiln.so exports and the table lacks fails the test.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/library_functions.h"
#include "tests/runtime/runtime_testing.h"

namespace kiln::runtime {
namespace {

constexpr const char* kCombineWorkload =
    R"({"ops": [{"op": "combine_topk_swa", "shape": {"ratio": 2, "top_k": 512}}]})";
constexpr const char* kStagedWorkload =
    R"({"ops": [{"op": "staged_rows", "shape": {"format": "plain", "width": 64}}]})";

// What a row acts on. Both are NULL before a session was opened.
struct Subject {
  kiln_session* session = nullptr;
  kiln_plan* plan = nullptr;  // of combine_topk_swa, prepared
};

enum State { never_opened, opened, preparing, background, sealed, closed, forked, kStates };
constexpr const char* kStateNames[kStates] = {
    "never opened", "open",   "inside a callback", "preparing in the background",
    "sealed",       "closed", "in a forked child"};

struct Answer {
  kiln_status status = KILN_OK;
  const char* sentence = "";  // a part of kiln_last_error()
};

struct Row {
  std::string function;
  std::function<kiln_status(const Subject&)> call;
  Answer answers[kStates];
};

constexpr Answer kOk{};
constexpr Answer kNoSession{KILN_INVALID_ARGUMENT, "session is NULL; pass what kiln_open gave"};
constexpr Answer kNoPlan{KILN_INVALID_ARGUMENT, "plan is NULL; pass what kiln_plan_create gave"};
constexpr Answer kInside{KILN_BAD_STATE, "this thread is inside a prepare of the same session"};
constexpr Answer kSealed{KILN_BAD_STATE, "the session has been sealed by kiln_seal"};
constexpr Answer kClosed{KILN_CLOSED, "the session has been closed by kiln_close"};
constexpr Answer kPlanClosed{KILN_CLOSED, "the plan has been closed by kiln_plan_destroy"};
constexpr Answer kForked{KILN_FORKED, "session belongs to the process that forked this one"};
constexpr Answer kPlanForked{KILN_FORKED, "plan belongs to the process that forked this one"};
constexpr Answer kOtherPlan{KILN_INVALID_ARGUMENT, "was called with a plan of combine_topk_swa"};

kiln_status ok(bool holds) { return holds ? KILN_OK : KILN_INTERNAL; }

void add_other_op(std::vector<Row>& rows, const templates::Op& op) {
  const auto add = [&](const char* suffix, std::function<kiln_status(const Subject&)> call) {
    rows.push_back(
        {"kiln_" + op.name + suffix,
         std::move(call),
         {kNoPlan, kOtherPlan, kOtherPlan, kOtherPlan, kOtherPlan, kPlanClosed, kPlanForked}});
  };
  add("", [&op](const Subject& on) { return call_exported(op, on.plan); });
  add("_workspace", [&op](const Subject& on) { return call_exported_workspace(op, on.plan); });
}

// States: never opened, open, inside a callback, background, sealed, closed, forked.
const Row kFixedRows[] = {
    {"kiln_status_name",
     [](const Subject&) { return ok(std::string(kiln_status_name(KILN_OK)) == "KILN_OK"); },
     {kOk, kOk, kOk, kOk, kOk, kOk, kOk}},
    {"kiln_last_error",
     [](const Subject&) { return ok(kiln_last_error() != nullptr); },
     {kOk, kOk, kOk, kOk, kOk, kOk, kOk}},
    {"kiln_version",
     [](const Subject&) { return ok(*kiln_version() != '\0'); },
     {kOk, kOk, kOk, kOk, kOk, kOk, kOk}},
    {"kiln_abi_hash",
     [](const Subject&) {
       uint8_t hash[16];
       return kiln_abi_hash(hash);
     },
     {kOk, kOk, kOk, kOk, kOk, kOk, kOk}},
    {"kiln_tensor_bytes",
     [](const Subject&) {
       uint64_t bytes = 0;
       return kiln_tensor_bytes("pack_weights", R"({"format": "e4m3"})",
                                R"({"num_rows": 288, "in_features": 288})", "packed", &bytes);
     },
     {kOk, kOk, kOk, kOk, kOk, kOk, kOk}},
    // Another session; the driver's rules for a child are not the fake's, so that a child is not
    // looked at.
    {"kiln_open",
     [](const Subject&) {
       kiln_options options{};
       options.size = sizeof options;
       options.store = ":memory:";
       kiln_session* session = nullptr;
       const kiln_status status = kiln_open(&options, &session);
       kiln_close(session);
       return status;
     },
     {kOk, kOk, kOk, kOk, kOk, kOk, {KILN_INTERNAL, nullptr}}},
    {"kiln_prepare",
     [](const Subject& on) { return kiln_prepare(on.session, kCombineWorkload, nullptr, nullptr); },
     {kNoSession, kOk, kInside, kOk, kSealed, kClosed, kForked}},
    {"kiln_prepare_start",
     [](const Subject& on) {
       return kiln_prepare_start(on.session, kCombineWorkload, nullptr, nullptr);
     },
     {kNoSession,
      kOk,
      kInside,
      {KILN_BAD_STATE, "kernels are being prepared in the background already"},
      kSealed,
      kClosed,
      kForked}},
    {"kiln_prepare_wait",
     [](const Subject& on) { return kiln_prepare_wait(on.session, 0); },
     {kNoSession,
      {KILN_BAD_STATE, "no background preparation was started"},
      kInside,
      {KILN_NOT_PREPARED, "kernels are ready; calls take the default configs"},
      {KILN_BAD_STATE, "no background preparation was started"},
      kClosed,
      kForked}},
    {"kiln_seal",
     [](const Subject& on) { return kiln_seal(on.session); },
     {kNoSession,
      kOk,
      {KILN_BAD_STATE, "kernels of this session are being prepared; call it when that"},
      {KILN_BAD_STATE, "being prepared in the background; call it when kiln_prepare_wait"},
      kOk,
      kClosed,
      kForked}},
    {"kiln_plan_create",
     [](const Subject& on) {
       kiln_plan* plan = nullptr;
       return kiln_plan_create(on.session, "combine_topk_swa", kCombineShape, &plan);
     },
     {kNoSession, kOk, kOk, kOk, kOk, kClosed, kForked}},
    {"kiln_plan_destroy",
     [](const Subject& on) { return kiln_plan_destroy(on.plan); },
     {kOk, kOk, kOk, kOk, kOk, kPlanClosed, kPlanForked}},
    {"kiln_op_supported",
     [](const Subject& on) {
       return kiln_op_supported(on.session, "combine_topk_swa", kCombineShape, nullptr, 0, nullptr);
     },
     {kNoSession, kOk, kOk, kOk, kOk, kClosed, kForked}},
    {"kiln_explain",
     [](const Subject& on) {
       return kiln_explain(on.session, "combine_topk_swa", kCombineShape, nullptr, nullptr, 0,
                           nullptr);
     },
     {kNoSession, kOk, kOk, kOk, kOk, kClosed, kForked}},
    {"kiln_get_stats",
     [](const Subject& on) {
       kiln_stats stats{};
       stats.size = sizeof stats;
       return kiln_get_stats(on.session, &stats);
     },
     {kNoSession, kOk, kOk, kOk, kOk, kClosed, kForked}},
    {"kiln_get_digests",
     [](const Subject& on) {
       kiln_digests digests{};
       digests.size = sizeof digests;
       return kiln_get_digests(on.session, &digests);
     },
     {kNoSession, kOk, kOk, kOk, kOk, kClosed, kForked}},
    {"kiln_get_workload",
     [](const Subject& on) { return kiln_get_workload(on.session, nullptr, 0, nullptr); },
     {kNoSession, kOk, kOk, kOk, kOk, kClosed, kForked}},
    {"kiln_memory_allocate",
     [](const Subject& on) {
       void* memory = nullptr;
       return kiln_memory_allocate(on.session, 256, &memory);
     },
     {kNoSession, kOk, kOk, kOk, kOk, kClosed, kForked}},
    {"kiln_memory_free",
     [](const Subject& on) { return kiln_memory_free(on.session, nullptr); },
     {kNoSession, kOk, kOk, kOk, kOk, kClosed, kForked}},
    {"kiln_memory_write",
     [](const Subject& on) { return kiln_memory_write(on.session, nullptr, nullptr, 0); },
     {kNoSession, kOk, kOk, kOk, kOk, kClosed, kForked}},
    {"kiln_memory_read",
     [](const Subject& on) { return kiln_memory_read(on.session, nullptr, nullptr, 0); },
     {kNoSession, kOk, kOk, kOk, kOk, kClosed, kForked}},
    {"kiln_synchronize",
     [](const Subject& on) { return kiln_synchronize(on.session, nullptr); },
     {kNoSession, kOk, kOk, kOk, kOk, kClosed, kForked}},
    {"kiln_combine_topk_swa",
     [](const Subject& on) {
       const kiln_combine_topk_swa_args args = combine_args(8);
       return kiln_combine_topk_swa(on.plan, &args, nullptr);
     },
     {kNoPlan, kOk, kOk, kOk, kOk, kPlanClosed, kPlanForked}},
    {"kiln_combine_topk_swa_workspace",
     [](const Subject& on) {
       const kiln_combine_topk_swa_args args = combine_args(8);
       uint64_t bytes = 0;
       return kiln_combine_topk_swa_workspace(on.plan, &args, &bytes);
     },
     {kNoPlan, kOk, kOk, kOk, kOk, kPlanClosed, kPlanForked}},
};

const std::vector<Row>& all_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all(std::begin(kFixedRows), std::end(kFixedRows));
    for (const templates::Op* op : other_ops()) add_other_op(all, *op);
    // Last, because it ends the subject's life.
    all.push_back({"kiln_close",
                   [](const Subject& on) { return kiln_close(on.session); },
                   {kOk, kOk, kInside, kOk, kOk, kClosed, kForked}});
    return all;
  }();
  return rows;
}

// "" when the row answers as the table says.
std::string mistake(const Row& row, State state, const Subject& on) {
  const Answer& expected = row.answers[state];
  if (expected.sentence == nullptr) return "";
  const kiln_status status = row.call(on);
  const std::string sentence = status == KILN_OK ? "" : kiln_last_error();
  if (status == expected.status && sentence.find(expected.sentence) != std::string::npos) return "";
  return fmt::format("{} when {}: {} \"{}\"; expected {} \"{}\"\n", row.function,
                     kStateNames[state], kiln_status_name(status), sentence,
                     kiln_status_name(expected.status), expected.sentence);
}

// A callback that runs a row, once.
struct Inside {
  const Row* row = nullptr;
  Subject on;
  int visits = 0;
  std::string mistakes;

  static int run(void* user, int, int, const char*) {
    auto* inside = static_cast<Inside*>(user);
    if (inside->visits++ == 0) inside->mistakes = mistake(*inside->row, preparing, inside->on);
    return 0;
  }
};

// A callback that holds the background up, but not for ever: kiln_close waits for it.
struct HeldUp {
  std::atomic<bool> released{false};
  static int run(void* user, int, int, const char*) {
    const auto* held_up = static_cast<const HeldUp*>(user);
    for (int i = 0; i < 500 && !held_up->released; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return 0;
  }
};

class States : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    with_store([](cache::Store& store) {
      seed_decision(store, fake_gpu(0),
                    {.op = &staged_rows(),
                     .fixed = {{"format", 0}, {"C", 64}},
                     .bucket = {{"T", 16}},
                     .config = {{"rows_per_cta", 2}, {"splits", 4}}});
    });
  }
  Subject subject() {
    Subject on;
    on.session = open();
    EXPECT_OK(kiln_prepare(on.session, kCombineWorkload, nullptr, nullptr));
    on.plan = plan(on.session, "combine_topk_swa", kCombineShape);
    return on;
  }
  std::string mistake_in(State state, const Row& row) {
    switch (state) {
      case never_opened:
        return mistake(row, state, {});
      case opened:
        return mistake(row, state, subject());
      case preparing: {
        Inside inside{.row = &row, .on = subject(), .visits = 0, .mistakes = ""};
        EXPECT_OK(kiln_prepare(inside.on.session, kStagedWorkload, Inside::run, &inside));
        EXPECT_GT(inside.visits, 0);
        return inside.mistakes;
      }
      case background: {
        HeldUp held_up;
        const Subject on = subject();
        EXPECT_OK(kiln_prepare_start(on.session, kStagedWorkload, HeldUp::run, &held_up));
        const std::string mistakes = mistake(row, state, on);
        held_up.released = true;
        kiln_close(on.session);
        return mistakes;
      }
      case sealed: {
        const Subject on = subject();
        EXPECT_OK(kiln_seal(on.session));
        return mistake(row, state, on);
      }
      case closed: {
        const Subject on = subject();
        EXPECT_OK(kiln_close(on.session));
        return mistake(row, state, on);
      }
      case forked:
      case kStates:
        break;
    }
    return "";
  }
};

TEST_F(States, EveryFunctionAnswersAsTheTableSays) {
  for (const State state : {never_opened, opened, preparing, background, sealed, closed}) {
    for (const Row& row : all_rows()) EXPECT_EQ(mistake_in(state, row), "");
  }
}

TEST_F(States, EveryFunctionAnswersInAForkedChild) {
  const Subject on = subject();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    std::string mistakes;
    for (const Row& row : all_rows()) mistakes += mistake(row, forked, on);
    const bool written =
        write(ends[1], mistakes.data(), mistakes.size()) == static_cast<ssize_t>(mistakes.size());
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  std::string mistakes;
  char buffer[4096];
  for (ssize_t count = 0; (count = read(ends[0], buffer, sizeof buffer)) > 0;) {
    mistakes.append(buffer, static_cast<size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(mistakes, "");
  EXPECT_EQ(mistake(all_rows().back(), opened, on), "");  // the parent goes on
}

// A child that is forked while a thread prepares has no such thread: it may not touch the session,
// and the parent's preparation goes on.
TEST_F(States, ForkWhilePreparingInTheBackground) {
  HeldUp held_up;
  const Subject on = subject();
  ASSERT_OK(kiln_prepare_start(on.session, kStagedWorkload, HeldUp::run, &held_up));
  const pid_t child = fork();
  if (child == 0) {
    const bool refused =
        kiln_prepare_wait(on.session, -1) == KILN_FORKED && kiln_close(on.session) == KILN_FORKED;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  held_up.released = true;
  EXPECT_OK(kiln_prepare_wait(on.session, -1));
}

TEST_F(States, TheTableHasEveryFunctionOfTheLibrary) {
  std::set<std::string> rows;
  for (const Row& row : all_rows()) rows.insert(row.function);
  EXPECT_EQ(rows, library_functions());
}

}  // namespace
}  // namespace kiln::runtime
