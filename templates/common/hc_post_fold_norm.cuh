// Mixes a sub-layer's output into the residual streams, folds them into one row and normalises it
// (ops.md B1.3, B1.4), in one pass over the streams or in two kernels. Args has y, h, post, comb,
// pre, weight, mean, x, x_codes, x_scales and num_rows, with with_sqrsum also sqrsum.
#pragma once

#include "templates/common/hc.cuh"
#include "templates/common/hc_sums.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/norm_quantised.cuh"

// What becomes of the columns of a row. A thread reads the streams of a piece before it writes
// them: nobody else has these columns.
template <bool with_sqrsum, int pieces>
struct MixedRow {
  const u16* y;
  u16* h;
  u16* mean;  // or NULL
  i64 stream_stride;
  float* sqrsum;
  PostGates gates;
  float4 pre;

  template <typename Args>
  __device__ __forceinline__ MixedRow(const Args& args, i64 row) {
    y = args.y + row * args.y_stride;
    h = args.h + row * args.h_stride0;
    mean = args.mean == nullptr ? nullptr : args.mean + row * args.mean_stride;
    stream_stride = args.h_stride1;
    if constexpr (with_sqrsum) sqrsum = args.sqrsum + row * args.sqrsum_stride;
    gates.load(args.post + row * args.post_stride, args.comb + row * args.comb_stride0,
               args.comb_stride1);
    pre = load_four(args.pre + row * args.pre_stride);
  }

  // The fold, 0 beyond the row. For whole warps.
  __device__ __forceinline__ uint4 put(int piece) const {
    uint4 folded = {0, 0, 0, 0};
    float squares = 0.0f;
    const int first = piece * piece_elements;
    if (piece < pieces) {
      Streams all;
      all.load(h + first, stream_stride);
      mix(load_16(reinterpret_cast<const u8*>(y + first)), all, gates);
      all.store(h + first, stream_stride);
      folded = fold(all, pre);
      if (mean != nullptr) store_16(mean + first, fold(all, quarters()));
      squares = sum_of_squares(all);
    }
    if constexpr (with_sqrsum) store_sqrsum<pieces>(sqrsum, piece, squares);
    return folded;
  }
};

template <typename Args>
__device__ __forceinline__ NormedRow normed_row(const Args& args, i64 row) {
  return {args.x + row * args.x_stride, args.x_codes + row * args.x_codes_stride,
          args.x_scales + row * args.x_scales_stride};
}

// In one kernel. A CTA has threads_per_row * rows_per_cta threads; grid (ceil(num_rows /
// rows_per_cta)).
template <int columns, int x_format, bool with_sqrsum, int threads_per_row, int rows_per_cta,
          typename Args>
__device__ __forceinline__ void post_fold_norm(const Args& args) {
  using Part = RowPart<columns, threads_per_row>;
  constexpr bool has_exchange = threads_per_row > warp_lanes;
  const int row_in_cta = static_cast<int>(threadIdx.x / threads_per_row);
  const int thread = static_cast<int>(threadIdx.x % threads_per_row);
  const i64 row = static_cast<i64>(blockIdx.x) * rows_per_cta + row_in_cta;
  if (row >= args.num_rows) return;  // whole warps
  const MixedRow<with_sqrsum, Part::pieces> streams(args, row);
  Part x;
#pragma unroll
  for (int i = 0; i < Part::count; ++i) x.data[i] = streams.put(thread + i * threads_per_row);

  __shared__ float shared[has_exchange ? threads_per_row * rows_per_cta : 1];
  float* const exchange = shared + (has_exchange ? row_in_cta * threads_per_row : 0);
  const float sum = sum_of_squares(x, exchange, thread, row_in_cta);
  x.keep_packed();
  const float factor = norm_factor<columns>(sum);
  store_normed<x_format, columns, threads_per_row>(normed_row(args, row), thread, [&](int i) {
    return normalised(x.data[i], Part::piece(args.weight, thread, i), factor);
  });
}

// The last of two kernels: the norm of a folded row, by threads that are whole warps. `exchange`
// has a float for each of them.
template <int columns, int x_format, int threads, typename Args>
__device__ __forceinline__ void norm_of_folded(const Args& args, const u16* folded, i64 row,
                                               float* exchange, int thread, int barrier_id) {
  using Part = RowPart<columns, threads>;
  Part x, weight;
  x.load(folded, thread);
  weight.load(args.weight, thread);
  const float factor = norm_factor<columns>(sum_of_squares(x, exchange, thread, barrier_id));
  store_normed<x_format, columns, threads>(normed_row(args, row), thread, [&](int i) {
    return normalised(x.data[i], weight.data[i], factor);
  });
}
