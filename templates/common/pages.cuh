// Block tables: from the number of a request's entry to its slot, page * page_size + entry of page.
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
