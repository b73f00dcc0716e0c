// What the opaque handles of the C interface point to. Both are small shells that live as long as
// the process, so that a closed handle is answered with KILN_CLOSED; what they refer to is freed by
// kiln_close. A session's open plans are chained, so that neither destroying one nor closing the
// session looks at the shells of others.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/abi/kiln.h"

namespace kiln::runtime {
class Session;
struct ServedShape;
}  // namespace kiln::runtime

struct kiln_session {
  std::atomic<bool> open{true};
  uint32_t fork_generation = 0;
  std::unique_ptr<kiln::runtime::Session> session;
};

struct kiln_plan {
  std::atomic<bool> open{true};
  uint32_t fork_generation = 0;
  int op_index = -1;  // position in templates::ops()
  const char* op_name = "";
  kiln::runtime::ServedShape* shape = nullptr;
  kiln::runtime::Session* session = nullptr;
  kiln_plan* previous = nullptr;  // in the chain of its session's open plans; under the registry's
  kiln_plan* next = nullptr;      // mutex
};

namespace kiln::runtime {

// The one registry of the process. The handles are never freed.
kiln_session* register_session(std::unique_ptr<Session> session);
kiln_plan* register_plan(std::unique_ptr<kiln_plan> plan);
void retire_plan(kiln_plan* plan);  // fails with closed when it has been closed before
void mark_plans_closed(const Session* session);

// The session behind a handle that is open and of this process; fails with invalid_argument, forked
// or closed.
Session& require_session(kiln_session* session);
void require_plan(kiln_plan* plan);

}  // namespace kiln::runtime
