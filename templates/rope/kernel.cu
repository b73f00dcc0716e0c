// Rotates pairs of neighbouring elements of bf16, in place, by the angles of each row's position
// (ops.md B5, B7; back: B16).
// grid  (at least ceil(8 * num_rows * head_groups / threads))   block (threads)   shared: none
//
// Eight threads share the 64 elements of a head, 16 bytes each. A thread has heads that lie
// head_groups apart, so that their angles are read once; it loads all of them before it knows the
// position.
#include "kiln_args.h"
#include "kiln_constants.h"  // heads, inverse, threads, heads_per_thread
#include "templates/common/memory.cuh"
#include "templates/common/rope.cuh"
#include "templates/common/types.cuh"

constexpr int pieces = 8;  // of a head
constexpr int head_groups = (heads + heads_per_thread - 1) / heads_per_thread;

__device__ __forceinline__ bool has_head(int head) {
  return heads % heads_per_thread == 0 || head < heads;
}

extern "C" __global__ void __launch_bounds__(threads) rope(const __grid_constant__ Args args) {
  const i64 number = static_cast<i64>(blockIdx.x) * (threads / pieces) + threadIdx.x / pieces;
  const int piece = static_cast<int>(threadIdx.x) % pieces;
  const i64 row = number / head_groups;
  if (row >= args.num_rows) return;
  const int first_head = static_cast<int>(number - row * head_groups);
  i32 position = args.positions[row];
  u16* const of_row = args.x + row * args.x_stride0 + piece * 8;
  uint4 x[heads_per_thread];
#pragma unroll
  for (int i = 0; i < heads_per_thread; ++i) {
    const int head = first_head + i * head_groups;
    if (has_head(head)) x[i] = load_16(reinterpret_cast<const u8*>(of_row + head * args.x_stride1));
  }
#pragma unroll
  for (int i = 0; i < heads_per_thread; ++i) {
    if (has_head(first_head + i * head_groups)) position = tied_to(position, x[i].x, args.num_rows);
  }
  if (position < 0 || position >= args.num_positions) return;
  const RopeAngles angles =
      load_rope_angles(args.rope_table + position * args.rope_table_stride, piece);
#pragma unroll
  for (int i = 0; i < heads_per_thread; ++i) {
    const int head = first_head + i * head_groups;
    if (has_head(head)) store_16(of_row + head * args.x_stride1, rotated<inverse>(x[i], angles));
  }
}
