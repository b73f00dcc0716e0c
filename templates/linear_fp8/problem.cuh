// What the kernels of this op share of the problem: sizes, where x, partial sums and y lie.
#pragma once

#include "kiln_args.h"
#include "kiln_constants.h"
#include "templates/common/memory.cuh"
#include "templates/common/types.cuh"
#include "templates/linear_fp8/fragments.cuh"

constexpr int chunks = (depth + chunk_elements - 1) / chunk_elements;
constexpr int depth_groups = depth / 32;
constexpr i64 weight_group_bytes = weight_layout == packed
                                       ? static_cast<i64>(columns) * chunks * chunk_elements
                                       : static_cast<i64>(columns) * depth;
static_assert(columns % 32 == 0 && depth % 32 == 0);

enum XFormat : int { x_bf16_q8a = 0, x_codes_q8a = 1, x_bf16 = 2 };
enum Output : int { output_bf16 = 0, output_f32 = 1, output_partial = 2 };

// Workspace of stream.cu: partial sums [splits][rows][groups][columns].
__device__ __forceinline__ float* partial(const Args& args, int split, i64 row, int group) {
  return static_cast<float*>(args.workspace) +
         ((split * args.num_rows + row) * groups + group) * columns;
}

__device__ __forceinline__ u16* y_bf16(const Args& args, i64 row, int group) {
  return args.y + row * args.y_stride0 + group * args.y_stride1;
}
__device__ __forceinline__ float* y_f32(const Args& args, i64 row, int group) {
  return args.y_f32 + row * args.y_f32_stride0 + group * args.y_f32_stride1;
}

__device__ __forceinline__ float4 add(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// Four neighbouring columns of a sum to where `output` says. split: of partial sums.
__device__ __forceinline__ void store_four(const Args& args, int split, i64 row, int group,
                                           int column, const float4& sum) {
  if constexpr (output == output_bf16)
    *reinterpret_cast<uint2*>(y_bf16(args, row, group) + column) = {to_bf16x2(sum.x, sum.y),
                                                                    to_bf16x2(sum.z, sum.w)};
  else if constexpr (output == output_f32)
    *reinterpret_cast<float4*>(y_f32(args, row, group) + column) = sum;
  else
    *reinterpret_cast<float4*>(partial(args, split, row, group) + column) = sum;
}
