// Counts forks of this process, seen from the child: a session remembers the count at which it was
// opened, so that a call in a child, where the driver's state is not usable, is refused without a
// system call.
#pragma once

#include <atomic>
#include <cstdint>

namespace kiln::runtime {

extern std::atomic<uint32_t> fork_count;

inline uint32_t fork_generation() { return fork_count.load(std::memory_order_relaxed); }

}  // namespace kiln::runtime
