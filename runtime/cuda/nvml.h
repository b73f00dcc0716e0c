// What the card does right now, read through NVML; nothing is ever set. The library (KILN_LIBNVML,
// else libnvidia-ml.so.1) is optional: without it every reading is unavailable. NVML's header is
// not part of the toolkit everywhere, so its few types are written out here.
#pragma once

#include <string>

#include "runtime/device.h"

namespace kiln::runtime::cuda {

// One card. Loading NVML takes tens of milliseconds, so nothing happens before the first reading.
// Not thread-safe.
class NvmlCard {
 public:
  explicit NvmlCard(std::string pci_bus_id) : pci_bus_id_(std::move(pci_bus_id)) {}
  DeviceCondition read();

 private:
  void load();

  using Handle = void*;
  std::string pci_bus_id_;
  bool tried_ = false;
  Handle handle_ = nullptr;  // nullptr: no readings
  int (*get_clock_)(Handle card, int clock, unsigned* mhz) = nullptr;
  int (*get_reasons_)(Handle card, unsigned long long* reasons) = nullptr;
};

}  // namespace kiln::runtime::cuda
