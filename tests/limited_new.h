// What `new` gives in a test program that has limited_new.cpp among its sources: a test says which
// allocation fails.
#pragma once

#include <atomic>
#include <cstddef>

namespace kiln {

extern thread_local int allocations_left;            // of this thread; below 0: no limit
extern std::atomic<std::size_t> most_bytes_at_once;  // that one allocation may ask for

}  // namespace kiln
