// The one exception type of the library: a status of the ABI and a full sentence.
// Sentences name the op, the argument, what was expected, what came, and what to do. The ABI
// boundary turns an Error into a code and a thread-local text; the CLI turns it into an exit code
// and a line.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace kiln {

// The same numbers as `kiln_status` in runtime/abi/kiln.h, where each is documented. Never
// renumber.
enum class Status : int32_t {
  ok = 0,
  invalid_argument = 1,  // the caller's input is wrong; the text says which and what was expected
  not_found = 2,         // no such op, GPU, device or file
  unsupported = 3,       // legal input that this GPU, driver or build cannot serve
  not_prepared = 4,      // the call would have to compile or load, and may not (sealed, capturing)
  bad_state = 5,         // a call out of order, for example prepare after seal
  closed = 6,            // the session or plan was closed
  forked = 7,            // the session was opened before a fork
  no_driver = 8,         // libcuda.so.1 is missing or will not start
  no_compiler = 9,       // NVRTC is missing or unusable, and the store does not hold the binary
  compile_error = 10,    // NVRTC refused a source; the text has its log
  driver_error = 11,     // the CUDA driver returned an error
  out_of_memory = 12,    // host or device memory
  store_error = 13,      // an explicit operation on the store failed (never in open or prepare)
  interrupted = 14,      // a progress callback or Ctrl-C asked to stop
  internal = 15,         // a defect in Kiln
};

const char* status_name(Status status);  // "invalid_argument"

class Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& sentence)
      : std::runtime_error(sentence), status_(status) {}
  Status status() const { return status_; }

 private:
  Status status_;
};

template <typename... Args>
[[noreturn]] void fail(Status status, fmt::format_string<Args...> sentence, Args&&... args) {
  throw Error(status, fmt::format(sentence, std::forward<Args>(args)...));
}

}  // namespace kiln
