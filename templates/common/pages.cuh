// Paged caches (ops.md B8): a slot is page * page_size + entry of the page. Readers find the slot
// of a request's entry through a block table; writers find page and entry of a slot.
#pragma once

#include "templates/common/types.cuh"

// Page sizes are powers of two nearly always; the division of any other costs twenty instructions.
class PageSize {
 public:
  __device__ __forceinline__ explicit PageSize(i64 entries)
      : entries_(static_cast<u32>(entries)),
        shift_((entries & (entries - 1)) == 0 ? 31 - __clz(static_cast<int>(entries)) : -1) {}

  __device__ __forceinline__ u32 entries() const { return entries_; }
  __device__ __forceinline__ u32 page_of(u32 entry) const {
    return shift_ >= 0 ? entry >> shift_ : entry / entries_;
  }

 private:
  u32 entries_;
  int shift_;
};

// -1 for a page that the cache does not have. Slots of existing pages fit an i32.
__device__ __forceinline__ i32 slot_in(i32 page, u32 entry_of_page, u32 num_pages,
                                       PageSize page_size) {
  return static_cast<u32>(page) < num_pages
             ? static_cast<i32>(static_cast<u32>(page) * page_size.entries() + entry_of_page)
             : -1;
}

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
