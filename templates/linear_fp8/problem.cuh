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
// bf16 rows that a tile kernel multiplies: the caller's, or those that prepare_x wrote.
enum XSource : int { x_of_caller = 0, x_of_workspace = 1 };
enum Output : int { output_bf16 = 0, output_f32 = 1, output_partial = 2 };

template <int output>
struct ElementOf {
  using Type = float;
};
template <>
struct ElementOf<output_bf16> {
  using Type = u16;
};
template <int output>
using TypeOfOutput = typename ElementOf<output>::Type;

struct XRows {
  const u16* first;
  i64 stride;  // elements
};

__device__ __forceinline__ i64 prepared_x_bytes(const Args& args) {
  return x_source == x_of_workspace ? args.num_rows * groups * depth * 2 : 0;
}

template <int source>
__device__ __forceinline__ XRows x_rows(const Args& args, int group) {
  if constexpr (source == x_of_workspace)
    return {static_cast<const u16*>(args.workspace) + static_cast<i64>(group) * depth,
            static_cast<i64>(groups) * depth};
  return {args.x + group * args.x_stride1, args.x_stride0};
}

// Workspace: prepared x, then partial sums [splits][rows][groups][columns].
__device__ __forceinline__ float* partial(const Args& args, int split, i64 row, int group) {
  float* first =
      reinterpret_cast<float*>(static_cast<u8*>(args.workspace) + prepared_x_bytes(args));
  return first + ((split * args.num_rows + row) * groups + group) * columns;
}

__device__ __forceinline__ u16* y_bf16(const Args& args, i64 row, int group) {
  return args.y + row * args.y_stride0 + group * args.y_stride1;
}
__device__ __forceinline__ float* y_f32(const Args& args, i64 row, int group) {
  return args.y_f32 + row * args.y_f32_stride0 + group * args.y_f32_stride1;
}
