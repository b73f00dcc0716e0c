#include "runtime/abi/boundary.h"

namespace kiln::runtime {
namespace {

thread_local std::string sentence_text;
thread_local const char* current_sentence = "";

}  // namespace

kiln_status report(Status status, const char* sentence) noexcept {
  try {
    sentence_text.assign(sentence);
    current_sentence = sentence_text.c_str();
  } catch (...) {
    current_sentence = "host memory ran out while this error was being described";
  }
  return static_cast<kiln_status>(status);
}

const char* last_error() noexcept { return current_sentence; }

kiln_status report_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return report(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return report(Status::out_of_memory, "host memory ran out");
  } catch (const std::exception& error) {
    return report(Status::internal, error.what());
  } catch (...) {
    return report(Status::internal, "an exception of unknown type reached the C interface");
  }
}

}  // namespace kiln::runtime
