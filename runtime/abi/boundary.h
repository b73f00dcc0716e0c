// The edge of the C interface: exceptions become a status and a thread-local sentence, and errno
// stays as the caller had it.
#pragma once

#include <cerrno>
#include <exception>
#include <new>
#include <string>

#include "jit/base/error.h"
#include "runtime/abi/kiln.h"

namespace kiln::runtime {

class ErrnoKeeper {
 public:
  ErrnoKeeper() : saved_(errno) {}
  ~ErrnoKeeper() { errno = saved_; }
  ErrnoKeeper(const ErrnoKeeper&) = delete;
  ErrnoKeeper& operator=(const ErrnoKeeper&) = delete;

 private:
  int saved_;
};

// Keeps the sentence for kiln_last_error() of this thread and returns the status. A sentence that
// cannot be copied for lack of memory is replaced by a fixed one.
kiln_status report(Status status, const char* sentence) noexcept;
const char* last_error() noexcept;

// Turns the exception in flight into a status; only inside a catch block.
kiln_status report_exception() noexcept;

template <typename Body>
kiln_status guarded(Body&& body) noexcept {
  const ErrnoKeeper keep_errno;
  try {
    body();
    return KILN_OK;
  } catch (...) {
    return report_exception();
  }
}

}  // namespace kiln::runtime
