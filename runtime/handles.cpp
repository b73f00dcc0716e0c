#include "runtime/handles.h"

#include <pthread.h>

#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "jit/base/error.h"
#include "runtime/fork.h"
#include "runtime/session.h"

namespace kiln::runtime {

std::atomic<uint32_t> fork_count{0};

namespace {

// Never destroyed: handles stay valid to ask about while the process exits.
struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<kiln_session>> sessions;
  std::vector<std::unique_ptr<kiln_plan>> plans;
  std::unordered_map<const Session*, kiln_plan*> open_plans;  // first of each open session
};

Registry& registry() {
  static Registry* instance = [] {
    auto* created = new Registry;
    // The registry is locked across a fork, so that the child never inherits it half changed or
    // held.
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   [] {
                     fork_count.fetch_add(1, std::memory_order_relaxed);
                     registry().mutex.unlock();
                   });
    return created;
  }();
  return *instance;
}

constexpr const char* kForkedText =
    "the {} belongs to the process that forked this one, and CUDA works in a forked child only if "
    "the parent never initialised it: start workers by spawn or exec, or fork before kiln_open";

[[noreturn]] void fail_closed(const kiln_plan& plan) {
  fail(Status::closed,
       "{}: the plan has been closed by kiln_plan_destroy, or its session by kiln_close",
       plan.op_name);
}

}  // namespace

kiln_session* register_session(std::unique_ptr<Session> session) {
  auto handle = std::make_unique<kiln_session>();
  handle->fork_generation = fork_generation();
  handle->session = std::move(session);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.sessions.push_back(std::move(handle));
  return all.sessions.back().get();
}

kiln_plan* register_plan(std::unique_ptr<kiln_plan> plan) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  kiln_plan*& first = all.open_plans[plan->session];
  all.plans.push_back(std::move(plan));
  kiln_plan* added = all.plans.back().get();
  added->next = first;
  if (first != nullptr) first->previous = added;
  first = added;
  return added;
}

void retire_plan(kiln_plan* plan) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (!plan->open.exchange(false, std::memory_order_acq_rel)) fail_closed(*plan);
  kiln_plan*& first = all.open_plans.at(plan->session);
  (plan->previous != nullptr ? plan->previous->next : first) = plan->next;
  if (plan->next != nullptr) plan->next->previous = plan->previous;
  plan->previous = nullptr;
  plan->next = nullptr;
}

void mark_plans_closed(const Session* session) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.open_plans.find(session);
  if (found == all.open_plans.end()) return;
  for (kiln_plan* plan = found->second; plan != nullptr; plan = plan->next) {
    plan->open.store(false, std::memory_order_release);
  }
  all.open_plans.erase(found);
}

Session& require_session(kiln_session* session) {
  if (session == nullptr) {
    fail(Status::invalid_argument, "session is NULL; pass what kiln_open gave");
  }
  if (session->fork_generation != fork_generation()) {
    fail(Status::forked, fmt::runtime(kForkedText), "session");
  }
  if (!session->open.load(std::memory_order_acquire)) {
    fail(Status::closed, "the session has been closed by kiln_close");
  }
  return *session->session;
}

void require_plan(kiln_plan* plan) {
  if (plan == nullptr) {
    fail(Status::invalid_argument, "plan is NULL; pass what kiln_plan_create gave");
  }
  if (plan->fork_generation != fork_generation()) {
    fail(Status::forked, fmt::runtime(kForkedText), "plan");
  }
  if (!plan->open.load(std::memory_order_acquire)) fail_closed(*plan);
}

}  // namespace kiln::runtime
