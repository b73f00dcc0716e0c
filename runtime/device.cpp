#include "runtime/device.h"

#include <charconv>

#include "jit/base/json.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/sim_library.h"

namespace kiln::runtime {
namespace {

constexpr std::string_view kCuda = "cuda";
constexpr std::string_view kCudaPrefix = "cuda:";

[[noreturn]] void fail_unknown(std::string_view id) {
  fail(Status::not_found,
       "There is no device called {}. Expected \"cuda\" (the same as \"cuda:0\"), "
       "\"cuda:N\", N counting from 0, or \"sim:SLUG\" with a GPU of the table, simulated.",
       in_quotes(id));
}

int cuda_ordinal(std::string_view id) {
  if (id == kCuda) return 0;
  if (!id.starts_with(kCudaPrefix)) fail_unknown(id);
  const std::string_view digits = id.substr(kCudaPrefix.size());
  int ordinal = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
  if (error != std::errc() || end != digits.data() + digits.size() || ordinal < 0) fail_unknown(id);
  return ordinal;
}

}  // namespace

std::string driver_text(const DeviceInfo& info) {
  return info.driver.empty() ? "no driver" : "driver " + info.driver;
}

std::unique_ptr<Device> Device::open(std::string_view id) {
  if (id.starts_with(kSimulatedPrefix)) return open_simulator(id.substr(kSimulatedPrefix.size()));
  return cuda::open_device(cuda_ordinal(id));
}

DeviceList list_devices() { return cuda::list_devices(); }

}  // namespace kiln::runtime
