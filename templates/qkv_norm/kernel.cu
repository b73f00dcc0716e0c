// The two norms of a projected row [q | kv] (ops.md B7: q_norm, kv_norm), and Q8a of the first.
// grid  (ceil(num_rows / (rows_per_cta * rows_in_turn)))
// block ((q_threads + kv_threads) * rows_per_cta)
// shared: two floats a thread, for parts that several warps share
//
// First stand the threads of the q parts of all rows, then those of the kv parts, so that a warp
// has one kind of part; without kv_threads those of the q part take both, kv first, which leaves
// its registers to the quantiser. The steps are those of rms_norm and act_quant, from the same
// headers, so that the bits are theirs too.
#include "kiln_args.h"
#include "kiln_constants.h"  // q_columns, kv_columns, qr_format, q_threads, kv_threads, rows_per_cta,
                             // rows_in_turn, early_weights
#include "templates/common/memory.cuh"
#include "templates/common/norm.cuh"
#include "templates/common/norm_quantised.cuh"
#include "templates/common/types.cuh"

constexpr int block_threads = (q_threads + kv_threads) * rows_per_cta;
constexpr int first_kv_thread = q_threads * rows_per_cta;
constexpr bool needs_shared = q_threads > warp_lanes || kv_threads > warp_lanes;

// One part of the rows that a thread takes in turn.
template <int columns, int threads>
struct Norm {
  using Part = RowPart<columns, threads>;
  Part x[rows_in_turn];
  Part w;
  float factor;

  __device__ __forceinline__ void reduce(int turn, float* shared, int thread, int barrier_id) {
    const float sum = sum_of_squares(x[turn], shared, thread, barrier_id);
    x[turn].keep_packed();
    factor = norm_factor<columns>(sum);
  }
  __device__ __forceinline__ uint4 piece(int turn, const u16* weight, int thread, int i) const {
    const uint4 weights = early_weights ? w.data[i] : Part::piece(weight, thread, i);
    return normalised(x[turn].data[i], weights, factor);
  }
};
using QNorm = Norm<q_columns, q_threads>;
using KvNorm = Norm<kv_columns, kv_threads == 0 ? q_threads : kv_threads>;

__device__ __forceinline__ void store_q(const Args& args, const QNorm& norm, int turn, i64 row,
                                        int thread) {
  const NormedRow to{args.qr + row * args.qr_stride, args.qr_codes + row * args.qr_codes_stride,
                     args.qr_scales + row * args.qr_scales_stride};
  store_normed<qr_format, q_columns, q_threads>(
      to, thread, [&](int i) { return norm.piece(turn, args.q_weight, thread, i); });
}

__device__ __forceinline__ void store_kv(const Args& args, const KvNorm& norm, int turn, i64 row,
                                         bool is_row, int thread) {
  using Part = KvNorm::Part;
  u16* kv = args.kv + row * args.kv_stride;
#pragma unroll
  for (int i = 0; i < Part::count; ++i) {
    if (is_row && Part::holds(thread, i))
      store_16(Part::place(kv, thread, i), norm.piece(turn, args.kv_weight, thread, i));
  }
}

// `thread` of those that share a row's part or, without kv_threads, the row.
template <bool takes_q, bool takes_kv>
__device__ __forceinline__ void take_rows(const Args& args, float* shared, int row_in_cta,
                                          int thread, int barrier_id) {
  QNorm q;
  KvNorm kv;
  const i64 first = static_cast<i64>(blockIdx.x) * (rows_per_cta * rows_in_turn) + row_in_cta;
  const auto load = [&](int turn) {
    // Beyond the last row a thread works in vain: lanes of one warp shuffle together.
    const i64 row = min(first + turn * rows_per_cta, args.num_rows - 1);
    const u16* qkv = args.qkv + row * args.qkv_stride;
    if constexpr (takes_q) q.x[turn].load(qkv, thread);
    if constexpr (takes_kv) kv.x[turn].load(qkv + q_columns, thread);
  };
  load(0);
  if constexpr (early_weights && takes_q) q.w.load(args.q_weight, thread);
  if constexpr (early_weights && takes_kv) kv.w.load(args.kv_weight, thread);
#pragma unroll
  for (int turn = 0; turn < rows_in_turn; ++turn) {
    if (turn + 1 < rows_in_turn) load(turn + 1);
    // A row's sums stand where those of the row before do not: its threads may still read them.
    float* const exchange = shared + (needs_shared ? turn % 2 * block_threads : 0);
    if constexpr (takes_kv) kv.reduce(turn, exchange, thread, barrier_id);
    const i64 row = first + turn * rows_per_cta;
    const bool is_row = row < args.num_rows;
    // Whole warps leave, and neither have they rows in later turns.
    if (takes_q && !is_row) return;
    if constexpr (takes_kv) store_kv(args, kv, turn, row, is_row, thread);
    if constexpr (takes_q) {
      q.reduce(turn, exchange, thread, barrier_id);
      store_q(args, q, turn, row, thread);
    }
  }
}

extern "C" __global__ void __launch_bounds__(block_threads)
    qkv_norm(const __grid_constant__ Args args) {
  __shared__ float shared[needs_shared ? 2 * block_threads : 1];
  const int in_block = static_cast<int>(threadIdx.x);
  if (kv_threads == 0 || in_block < first_kv_thread) {
    const int row_in_cta = static_cast<int>(threadIdx.x / q_threads);
    const int thread = static_cast<int>(threadIdx.x % q_threads);
    take_rows<true, kv_threads == 0>(args, shared + (needs_shared ? row_in_cta * q_threads : 0),
                                     row_in_cta, thread, row_in_cta);
  } else if constexpr (kv_threads != 0) {
    const u32 in_kv = threadIdx.x - first_kv_thread;
    const int row_in_cta = static_cast<int>(in_kv / kv_threads);
    const int thread = static_cast<int>(in_kv % kv_threads);
    take_rows<false, true>(args,
                           shared + (needs_shared ? first_kv_thread + row_in_cta * kv_threads : 0),
                           row_in_cta, thread, rows_per_cta + row_in_cta);
  }
}
