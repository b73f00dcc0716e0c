// Mixes a sub-layer's output into the residual streams, folds them into one row and normalises it,
// in one pass over the streams (ops.md B1.3, B1.4). A CTA has threads_per_row * rows_per_cta
// threads; grid (ceil(num_rows / rows_per_cta)). Args has y, h, post, comb, pre, weight, mean, x,
// x_codes, x_scales and num_rows, with with_sqrsum also sqrsum.
//
// A thread reads the streams of a piece before it writes them: nobody else has these columns.
#pragma once

#include "templates/common/hc.cuh"
#include "templates/common/hc_sums.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/norm_quantised.cuh"

template <int columns, int x_format, bool with_sqrsum, int threads_per_row, int rows_per_cta,
          typename Args>
__device__ __forceinline__ void post_fold_norm(const Args& args) {
  using Part = RowPart<columns, threads_per_row>;
  constexpr int block_threads = threads_per_row * rows_per_cta;
  constexpr bool has_exchange = threads_per_row > warp_lanes;
  constexpr int exchanges = 1 + streams;  // of the norm and of sqrsum
  const int row_in_cta = static_cast<int>(threadIdx.x / threads_per_row);
  const int thread = static_cast<int>(threadIdx.x % threads_per_row);
  const i64 row = static_cast<i64>(blockIdx.x) * rows_per_cta + row_in_cta;
  if (row >= args.num_rows) return;  // whole warps
  const u16* y = args.y + row * args.y_stride;
  u16* h = args.h + row * args.h_stride0;
  PostGates gates;
  gates.load(args.post + row * args.post_stride, args.comb + row * args.comb_stride0,
             args.comb_stride1);
  const float4 pre = load_four(args.pre + row * args.pre_stride);
  const float4 quarters = {0.25f, 0.25f, 0.25f, 0.25f};
  StreamSums<threads_per_row, Part::count> sums;
  Part x;
#pragma unroll
  for (int i = 0; i < Part::count; ++i) {
    x.data[i] = {0, 0, 0, 0};
    sums.clear(i);
    if (!Part::holds(thread, i)) continue;
    Streams all;
    all.load(Part::place(h, thread, i), args.h_stride1);
    mix(load_16(reinterpret_cast<const u8*>(Part::place(y, thread, i))), all, gates);
    all.store(Part::place(h, thread, i), args.h_stride1);
    x.data[i] = fold(all, pre);
    if (args.mean != nullptr)
      store_16(Part::place(args.mean + row * args.mean_stride, thread, i), fold(all, quarters));
    if constexpr (with_sqrsum) sums.add(i, all);
  }

  __shared__ float shared[has_exchange ? exchanges * block_threads : 1];
  float* const exchange = shared + (has_exchange ? exchanges * row_in_cta * threads_per_row : 0);
  const float sum = sum_of_squares(x, exchange, thread, row_in_cta);
  x.keep_packed();
  const float factor = norm_factor<columns>(sum);
  if constexpr (with_sqrsum) {
    float* const of_streams = exchange + (has_exchange ? threads_per_row : 0);
    const float of_all = sums.of_row(of_streams, thread, row_in_cta);
    if (thread == 0) args.sqrsum[row] = of_all;
  }
  const NormedRow to{args.x + row * args.x_stride, args.x_codes + row * args.x_codes_stride,
                     args.x_scales + row * args.x_scales_stride};
  store_normed<x_format, columns, threads_per_row>(to, thread, [&](int i) {
    return normalised(x.data[i], Part::piece(args.weight, thread, i), factor);
  });
}
