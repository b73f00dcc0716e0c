// Where the entry of a slot lies in a paged cache: slot = page * page_size + entry (ops.md B8).
#pragma once

#include "templates/common/types.cuh"

struct EntryPlace {
  u32 page;
  u32 entry;  // of the page
};

// False when the cache has no such slot; a negative one never is. Caches have less than 2^31 slots.
__device__ __forceinline__ bool find_slot(i64 slot, i64 page_size, i64 num_pages,
                                          EntryPlace& place) {
  const u32 low = static_cast<u32>(slot);
  place.page = low / static_cast<u32>(page_size);
  place.entry = low - place.page * static_cast<u32>(page_size);
  return slot >= 0 && slot < num_pages * page_size;
}
