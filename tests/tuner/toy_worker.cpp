// A child of the tuner whose device is this host: the real protocol, proof and measuring, with
// candidates that misbehave on demand.
//   KILN_TOY_MEMORY_BYTES  how much memory the device has
//   KILN_TOY_L2_BYTES      its L2; small by default
//   KILN_TOY_BEHAVIOUR     what every binary does that is not the default's or the oracle's
//   KILN_TOY_CLOCKS_MS     how long its clocks take to be read the first time
//   KILN_TOY_DIE=open      dies while the device is opened
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "tests/tuner/host_device.h"
#include "tests/tuner/toy_op.h"
#include "tuner/worker.h"

namespace kiln::testing {
namespace {

int64_t number(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

class ToyDevice : public HostDevice {
 public:
  ToyDevice()
      : HostDevice(number("KILN_TOY_MEMORY_BYTES", int64_t{1} << 30),
                   number("KILN_TOY_L2_BYTES", 64 << 10)) {}

  runtime::LoadedKernel load(const jit::Binary& binary, int threads,
                             int64_t dynamic_smem_bytes) override {
    jit::Binary loaded = binary;
    Json image = Json::parse(binary.image, nullptr, false);
    if (behaviour_ >= 0 && image.is_object() && image.value("behaviour", 0) != kToyDefault) {
      image["behaviour"] = behaviour_;
      loaded.image = image.dump();
    }
    return HostDevice::load(loaded, threads, dynamic_smem_bytes);
  }

  runtime::DeviceCondition condition() override {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::exchange(clocks_ms_, 0)));
    return HostDevice::condition();
  }

 private:
  int64_t clocks_ms_ = number("KILN_TOY_CLOCKS_MS", 0);
  const int64_t behaviour_ = number("KILN_TOY_BEHAVIOUR", -1);
};

}  // namespace
}  // namespace kiln::testing

int main() {
  kiln::testing::register_toy();
  return kiln::tuner::worker_main(kiln::tuner::kWorkerFd, kiln::tuner::kWorkerFd,
                                  [](std::string_view) {
                                    const char* die = std::getenv("KILN_TOY_DIE");
                                    if (die != nullptr && std::string(die) == "open") std::abort();
                                    return std::make_unique<kiln::testing::ToyDevice>();
                                  });
}
