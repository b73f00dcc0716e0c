// The four functions of NVML that Kiln reads, for the cards of the fake driver.
#include <atomic>
#include <cstring>

#include "tests/fake_cuda/fake_cuda.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 2;
constexpr int kNotFound = 6;
constexpr int kClockSm = 1;

std::atomic<unsigned> sm_mhz{1410};
std::atomic<unsigned long long> throttle_reasons{0};
char cards[2];

}  // namespace

extern "C" {

void fake_cuda_set_clocks(unsigned mhz, unsigned long long reasons) {
  sm_mhz = mhz;
  throttle_reasons = reasons;
}

int nvmlInit_v2() { return kSuccess; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* pci_bus_id, void** card) {
  for (int i = 0; i < 2; ++i) {
    const char expected[] = {'0', '0', '0', '0', ':', 'f', static_cast<char>('0' + i), '\0'};
    if (std::strncmp(pci_bus_id, expected, 7) != 0) continue;
    *card = &cards[i];
    return kSuccess;
  }
  return kNotFound;
}

int nvmlDeviceGetClockInfo(void* card, int clock, unsigned* mhz) {
  if (card == nullptr || clock != kClockSm) return kInvalidArgument;
  *mhz = sm_mhz;
  return kSuccess;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void* card, unsigned long long* reasons) {
  if (card == nullptr) return kInvalidArgument;
  *reasons = throttle_reasons;
  return kSuccess;
}

}  // extern "C"
