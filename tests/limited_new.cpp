#include "tests/limited_new.h"

#include <cstdint>
#include <cstdlib>
#include <new>

namespace kiln {

thread_local int allocations_left = -1;
std::atomic<std::size_t> most_bytes_at_once{SIZE_MAX};

}  // namespace kiln

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  using namespace kiln;
  if (allocations_left == 0 || bytes > most_bytes_at_once) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  if (void* const memory = std::malloc(bytes != 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes != 0 ? bytes : 1);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
