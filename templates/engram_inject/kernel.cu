// Adds the gated value of the Engram to the residual streams, in place (ops.md B19.5).
//   h[t, c] += sigmoid(signed root of how alike h[t, c] and its key are) * value[t]
// grid  (ceil(4 * num_rows / rows_per_cta) for four streams)
// block (threads_per_row * rows_per_cta)   shared: 3 floats a thread, where several warps share a
// row
//
// A row here is a stream of a token. Its threads hold it in registers from the sums to the result.
// Whether it is dead is known when it has been read: its id is on the way with the rest.
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, num_streams, threads_per_row, rows_per_cta, early_value
#include "templates/common/memory.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/types.cuh"

using Part = RowPart<columns, threads_per_row>;

constexpr int block_threads = threads_per_row * rows_per_cta;
constexpr bool has_exchange = threads_per_row > warp_lanes;
enum Sum : int { of_dot = 0, of_h = 1, of_key = 2, sums = 3 };

// Sum of h * (q * k) * key over a piece, the even elements and the odd ones apart.
__device__ __forceinline__ float alike(const uint4& h, const uint4& key, const uint4& q,
                                       const uint4& k) {
  const u32 of_h[4] = {h.x, h.y, h.z, h.w}, of_key[4] = {key.x, key.y, key.z, key.w};
  const u32 of_q[4] = {q.x, q.y, q.z, q.w}, of_k[4] = {k.x, k.y, k.z, k.w};
  float even = 0.0f, odd = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float low = __fmul_rn(low_bf16(of_h[i]), __fmul_rn(low_bf16(of_q[i]), low_bf16(of_k[i])));
    const float high =
        __fmul_rn(high_bf16(of_h[i]), __fmul_rn(high_bf16(of_q[i]), high_bf16(of_k[i])));
    even = __fmaf_rn(low, low_bf16(of_key[i]), even);
    odd = __fmaf_rn(high, high_bf16(of_key[i]), odd);
  }
  return __fadd_rn(even, odd);
}

__device__ __forceinline__ float gate_of(float dot) {
  const float root = copysignf(__fsqrt_rn(fmaxf(fabsf(dot), 1e-6f)), dot);
  return __frcp_rn(__fadd_rn(1.0f, expf(-root)));
}

__device__ __forceinline__ u32 injected(u32 h, u32 value, float gate) {
  return to_bf16x2(__fmaf_rn(gate, low_bf16(value), low_bf16(h)),
                   __fmaf_rn(gate, high_bf16(value), high_bf16(h)));
}

extern "C" __global__ void __launch_bounds__(block_threads)
    engram_inject(const __grid_constant__ Args args) {
  const int row_in_cta = static_cast<int>(threadIdx.x / threads_per_row);
  const int thread = static_cast<int>(threadIdx.x % threads_per_row);
  const i64 index = static_cast<i64>(blockIdx.x) * rows_per_cta + row_in_cta;
  const i64 t = index / num_streams;
  const int stream = static_cast<int>(index - t * num_streams);
  if (t >= args.num_rows) return;  // whole warps
  const i32 id = args.ids == nullptr ? 0 : args.ids[t];
  u16* h = args.h + t * args.h_stride0 + stream * args.h_stride1;
  const u16* keys = args.keys_and_value + t * args.keys_and_value_stride;
  const u16* key = keys + stream * columns;
  const u16* value = keys + num_streams * columns;
  const u16* q = args.q_weight + stream * args.q_weight_stride;
  const u16* k = args.k_weight + stream * args.k_weight_stride;

  Part x, value_part;
  if constexpr (early_value) value_part.load(value, thread);
  float of_pieces[sums][Part::count];
#pragma unroll
  for (int i = 0; i < Part::count; ++i) {
    x.data[i] = Part::piece(h, thread, i);
    const uint4 y = Part::piece(key, thread, i);
    of_pieces[of_dot][i] =
        alike(x.data[i], y, Part::piece(q, thread, i), Part::piece(k, thread, i));
    of_pieces[of_h][i] = sum_of_squares(x.data[i]);
    of_pieces[of_key][i] = sum_of_squares(y);
  }
  if (id < 0) return;  // the whole row
  __shared__ float shared[has_exchange ? sums * block_threads : 1];
  float* const exchange = shared + (has_exchange ? sums * row_in_cta * threads_per_row : 0);
  float of_row[sums];
  sums_of_row<threads_per_row>(of_pieces, of_row, exchange, thread, row_in_cta);
  const float normed = __fmul_rn(__fmul_rn(of_row[of_dot], norm_factor<columns>(of_row[of_h])),
                                 norm_factor<columns>(of_row[of_key]));
  const float width = __frcp_rn(__fsqrt_rn(static_cast<float>(columns)));
  const float gate = gate_of(__fmul_rn(normed, width));
#pragma unroll
  for (int i = 0; i < Part::count; ++i) {
    if (!Part::holds(thread, i)) continue;
    const uint4 v = early_value ? value_part.data[i] : Part::piece(value, thread, i);
    store_16(Part::place(h, thread, i),
             {injected(x.data[i].x, v.x, gate), injected(x.data[i].y, v.y, gate),
              injected(x.data[i].z, v.z, gate), injected(x.data[i].w, v.w, gate)});
  }
}
