// A child of the tuner whose device is this host: the real protocol, proof and measuring, with
// candidates that misbehave on demand. KILN_TOY_MEMORY_BYTES: how much memory the device has.
// KILN_TOY_DIE=open: dies while the device is opened.
#include <cstdlib>
#include <string>

#include "tests/tuner/host_device.h"
#include "tests/tuner/toy_op.h"
#include "tuner/worker.h"

int main() {
  kiln::testing::register_toy();
  return kiln::tuner::worker_main(
      kiln::tuner::kWorkerFd, kiln::tuner::kWorkerFd, [](std::string_view) {
        const char* die = std::getenv("KILN_TOY_DIE");
        if (die != nullptr && std::string(die) == "open") std::abort();
        const char* bytes = std::getenv("KILN_TOY_MEMORY_BYTES");
        return std::make_unique<kiln::testing::HostDevice>(bytes != nullptr ? std::atoll(bytes)
                                                                            : int64_t{1} << 30);
      });
}
