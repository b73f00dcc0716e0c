// e^x by ex2.approx of x * log2(e): off by about 2^-22 and |x| * 2^-24, relatively.
#pragma once

__device__ __forceinline__ float exp_of(float x) {
  float result;
  asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(__fmul_rn(x, 1.44269504f)));
  return result;
}
