// Folds the four residual streams into one row and normalises it (ops.md B1.3, B3).
//   x = rms_norm(bf16(((pre[0] * h0 + pre[1] * h1) + pre[2] * h2) + pre[3] * h3), weight)
// grid  (ceil(num_rows / rows_per_cta))   block (threads_per_row * rows_per_cta)
// shared: a float a thread, where several warps share a row
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, x_format, threads_per_row, rows_per_cta, early_weights
#include "templates/common/hc.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/norm_quantised.cuh"

using Part = RowPart<columns, threads_per_row>;

constexpr int block_threads = threads_per_row * rows_per_cta;
constexpr bool has_exchange = threads_per_row > warp_lanes;

extern "C" __global__ void __launch_bounds__(block_threads)
    hc_fold_norm(const __grid_constant__ Args args) {
  const int row_in_cta = static_cast<int>(threadIdx.x / threads_per_row);
  const int thread = static_cast<int>(threadIdx.x % threads_per_row);
  const i64 row = static_cast<i64>(blockIdx.x) * rows_per_cta + row_in_cta;
  if (row >= args.num_rows) return;  // whole warps
  const u16* h = args.h + row * args.h_stride0;
  const float4 pre = load_four(args.pre + row * args.pre_stride);
  Part x, weight;
  if constexpr (early_weights) weight.load(args.weight, thread);
#pragma unroll
  for (int i = 0; i < Part::count; ++i) {
    x.data[i] = {0, 0, 0, 0};
    if (!Part::holds(thread, i)) continue;
    Streams all;
    all.load(Part::place(h, thread, i), args.h_stride1);
    x.data[i] = fold(all, pre);
  }

  __shared__ float shared[has_exchange ? block_threads : 1];
  float* const exchange = shared + (has_exchange ? row_in_cta * threads_per_row : 0);
  const float sum = sum_of_squares(x, exchange, thread, row_in_cta);
  x.keep_packed();
  const float factor = norm_factor<columns>(sum);
  if (args.folded != nullptr) {
    u16* to = args.folded + row * args.folded_stride;
#pragma unroll
    for (int i = 0; i < Part::count; ++i)
      if (Part::holds(thread, i)) store_16(Part::place(to, thread, i), x.data[i]);
  }
  const NormedRow to{args.x + row * args.x_stride, args.x_codes + row * args.x_codes_stride,
                     args.x_scales + row * args.x_scales_stride};
  store_normed<x_format, columns, threads_per_row>(to, thread, [&](int i) {
    const uint4 w = early_weights ? weight.data[i] : Part::piece(args.weight, thread, i);
    return normalised(x.data[i], w, factor);
  });
}
