// Tensor-core steps of Ampere: m16n8k16 with bf16 inputs and fp32 accumulators, and the
// transposition of an 8x8 matrix across a warp. Lane = 4 * g + t; a register of two bf16 holds
// neighbours along k.
//
//   A 16x16  a0 (g, 2t)  a1 (g + 8, 2t)  a2 (g, 2t + 8)  a3 (g + 8, 2t + 8)
//   B 16x8   b0 (2t, g)  b1 (2t + 8, g)
//   C 16x8   c0 c1 (g, 2t)  c2 c3 (g + 8, 2t)
#pragma once

#include "templates/common/types.cuh"

__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint4& a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// Lane (g, t) gives elements (g, 2t) and (g, 2t + 1) and gets (2t, g) and (2t + 1, g).
__device__ __forceinline__ u32 transpose_8x8(u32 rows) {
  u32 columns;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
  return columns;
}
