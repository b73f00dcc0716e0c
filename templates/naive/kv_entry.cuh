// Entries of paged caches by the writer's formulas of ops.md B8, for oracles.
#pragma once

#include "templates/naive/quantise.cuh"

namespace naive {

// Where page_size entries lie whose page begins at `page`.
struct Place {
  unsigned char* page;
  long long page_size;
  long long r;
};

// Bytes of an entry: its codes (or bf16) and its scales.
__device__ constexpr int code_bytes(int layout) {
  return layout == 1   ? 512
         : layout == 2 ? 256
         : layout == 3 ? 576
         : layout == 4 ? 1024
         : layout == 5 ? 64
                       : 128;
}
__device__ constexpr int scale_bytes(int layout) {
  return layout == 1 ? 16 : layout == 2 ? 32 : layout == 3 ? 8 : layout == 4 ? 0 : 4;
}

__device__ inline void put_bf16(unsigned char* at, unsigned short bits) {
  at[0] = static_cast<unsigned char>(bits);
  at[1] = static_cast<unsigned char>(bits >> 8);
}

// The group of the row (bf16 after RoPE) whose first element is e; groups are those of the
// quantiser.
__device__ inline void put_group(const Place& place, int layout, int quantiser,
                                 const unsigned short* row, int e) {
  unsigned char* codes = place.page + place.r * code_bytes(layout);
  unsigned char* scales =
      place.page + place.page_size * code_bytes(layout) + place.r * scale_bytes(layout);
  const int size = group_of(quantiser);
  if (layout == 3 && e >= 448) {
    for (int i = e; i < e + size; ++i) put_bf16(codes + 448 + 2 * (i - 448), row[i]);
    scales[7] = 0;
    return;
  }
  const Scale scale = scale_of(quantiser, row + e);
  if (layout == 6) {
    // UE8M0 as fp32: 2^(byte - 127); NaN as 0x7fc00000.
    const unsigned int bits = scale.byte == 255 ? 0x7fc00000u : scale.byte * 0x800000u;
    for (int i = 0; i < 4; ++i) scales[i] = static_cast<unsigned char>(bits >> (8 * i));
  } else if (layout != 4) {
    scales[e / size] = static_cast<unsigned char>(scale.byte);
  }
  for (int i = e; i < e + size; ++i) {
    const Element element = quantised(quantiser, scale, row[i]);
    if (layout == 4) {
      put_bf16(codes + 2 * i, element.value);
    } else if (layout == 2 || layout == 5) {
      unsigned char* byte = codes + i / 2;
      *byte = static_cast<unsigned char>(i % 2 == 0 ? element.code : *byte | element.code << 4);
    } else {
      codes[i] = static_cast<unsigned char>(element.code);
    }
  }
}

}  // namespace naive
