// The two norms of a projected row [q | kv] (ops.md B7: q_norm, kv_norm), and Q8a of the first.
// grid  (ceil(num_rows / rows_per_cta))   block ((q_threads + kv_threads) * rows_per_cta)
// shared: a float a thread, for parts that several warps share
//
// First stand the threads of the q parts of all rows, then those of the kv parts, so that a warp
// has one kind of part. The steps are those of rms_norm and act_quant, from the same headers, so
// that the bits are theirs too.
#include "kiln_args.h"
#include "kiln_constants.h"  // q_columns, kv_columns, qr_format, q_threads, kv_threads, rows_per_cta,
                             // early_weights
#include "templates/common/memory.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/quantise_group.cuh"
#include "templates/common/types.cuh"

enum QrFormat : int { qr_bf16 = 0, qr_codes = 1, qr_both = 2 };

constexpr int block_threads = (q_threads + kv_threads) * rows_per_cta;
constexpr int first_kv_thread = q_threads * rows_per_cta;
constexpr bool needs_shared = q_threads > warp_lanes || kv_threads > warp_lanes;

// Calls store(column, piece, holds) for each piece of the thread, also for those beyond the row:
// all lanes of a warp come to it together.
template <int columns, int threads, typename Store>
__device__ __forceinline__ void norm_row(const u16* x_row, const u16* weight, float* shared,
                                         int thread, int barrier_id, const Store& store) {
  using Part = RowPart<columns, threads>;
  Part x;
  x.load_once(x_row, thread);
  Part w;
  if constexpr (early_weights) w.load_shared_by_all(weight, thread);
  const float sum = sum_of_squares(x, shared, thread, barrier_id);
  if constexpr (!early_weights) w.load_shared_by_all(weight, thread);
  const float factor = norm_factor<columns>(sum);
#pragma unroll
  for (int i = 0; i < Part::count; ++i) {
    store(Part::column(thread, i), normalised(x.data[i], w.data[i], factor),
          Part::holds(thread, i));
  }
}

extern "C" __global__ void __launch_bounds__(block_threads)
    qkv_norm(const __grid_constant__ Args args) {
  __shared__ float shared[needs_shared ? block_threads : 1];
  const int in_block = static_cast<int>(threadIdx.x);
  const i64 first_row = static_cast<i64>(blockIdx.x) * rows_per_cta;
  if (in_block < first_kv_thread) {
    const int row_in_cta = in_block / q_threads;
    // Beyond the last row a thread works in vain: lanes of one warp shuffle together.
    const i64 row = min(first_row + row_in_cta, args.num_rows - 1);
    const bool is_row = first_row + row_in_cta == row;
    norm_row<q_columns, q_threads>(
        args.qkv + row * args.qkv_stride, args.q_weight,
        shared + (needs_shared ? row_in_cta * q_threads : 0), in_block % q_threads, row_in_cta,
        [&](int column, const uint4& y, bool holds) {
          const bool writes = is_row && holds;
          if constexpr (qr_format != qr_codes) {
            if (writes) store_16(args.qr + row * args.qr_stride + column, y);
          }
          if constexpr (qr_format != qr_bf16) {
            const Quantised q = quantise<q8a>(Piece{{y.x, y.y, y.z, y.w}});
            if (!writes) return;
            *reinterpret_cast<uint2*>(args.qr_codes + row * args.qr_codes_stride + column) =
                q.codes;
            if (column % group_of(q8a) == 0)
              args.qr_scales[row * args.qr_scales_stride + column / group_of(q8a)] =
                  static_cast<u8>(q.scale);
          }
        });
  } else {
    const int in_kv = in_block - first_kv_thread;
    const int row_in_cta = in_kv / kv_threads;
    const i64 row = min(first_row + row_in_cta, args.num_rows - 1);
    const bool is_row = first_row + row_in_cta == row;
    norm_row<kv_columns, kv_threads>(
        args.qkv + row * args.qkv_stride + q_columns, args.kv_weight,
        shared + (needs_shared ? first_kv_thread + row_in_cta * kv_threads : 0), in_kv % kv_threads,
        rows_per_cta + row_in_cta, [&](int column, const uint4& y, bool holds) {
          if (is_row && holds) store_16(args.kv + row * args.kv_stride + column, y);
        });
  }
}
