// Names of the statuses, as the ABI and the command line print them.
#include "jit/base/error.h"

namespace kiln {

const char* status_name(Status status) {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::invalid_argument:
      return "invalid_argument";
    case Status::not_found:
      return "not_found";
    case Status::unsupported:
      return "unsupported";
    case Status::not_prepared:
      return "not_prepared";
    case Status::bad_state:
      return "bad_state";
    case Status::closed:
      return "closed";
    case Status::forked:
      return "forked";
    case Status::no_driver:
      return "no_driver";
    case Status::no_compiler:
      return "no_compiler";
    case Status::compile_error:
      return "compile_error";
    case Status::driver_error:
      return "driver_error";
    case Status::out_of_memory:
      return "out_of_memory";
    case Status::store_error:
      return "store_error";
    case Status::interrupted:
      return "interrupted";
    case Status::internal:
      return "internal";
  }
  return "unknown";
}

}  // namespace kiln
