// The JSON that callers give: a workload, and a shape with sizes. It is refused with a sentence, or
// means something that says the same when it is written out again.
//   input: text, or "op \n shape \n sizes \n arg" for kiln_tensor_bytes
#include <string>
#include <vector>

#include "jit/base/error.h"
#include "runtime/abi/kiln.h"
#include "runtime/workload.h"
#include "tests/fuzz/fuzz.h"

namespace kiln::fuzz {
namespace {

bool is_refusal(Status status) {
  return status == Status::invalid_argument || status == Status::not_found ||
         status == Status::unsupported;
}

void read_workload(const std::string& text) {
  std::vector<runtime::WorkloadItem> items;
  try {
    items = runtime::parse_workload(text);
  } catch (const Error& error) {
    require(is_refusal(error.status()) && *error.what() != '\0', error.what());
    return;
  }
  const std::string once = runtime::workload_json(items).dump();
  const std::string again = runtime::workload_json(runtime::parse_workload(once)).dump();
  require(once == again, "a workload that is written out means something else");
}

void ask_for_bytes(const std::vector<std::string>& lines) {
  uint64_t bytes = 1;
  const kiln_status status = kiln_tensor_bytes(lines[0].c_str(), lines[1].c_str(), lines[2].c_str(),
                                               lines[3].c_str(), &bytes);
  require(status == KILN_OK || is_refusal(static_cast<Status>(status)), kiln_last_error());
  require(bytes <= uint64_t{INT64_MAX}, "a tensor that no memory holds");
}

}  // namespace
}  // namespace kiln::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string text(reinterpret_cast<const char*>(data), bytes);
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  if (lines.size() == 4) {
    kiln::fuzz::ask_for_bytes(lines);
  } else {
    kiln::fuzz::read_workload(text);
  }
  return 0;
}
