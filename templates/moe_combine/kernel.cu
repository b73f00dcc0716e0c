// Adds what the experts of each row have made of it, and the shared expert (ops.md B18.3).
//   y[t] = bf16(sum_i pairs[t, i] + shared[t])         in fp32, experts ascending
// grid  (num_rows * parts)   block (threads)   shared: none
//
// A CTA takes a part of a row. Each warp puts the columns in order for itself; then every thread
// loads its pieces of up to eight of them, and of the shared expert, before it adds the first.
#include "kiln_args.h"
#include "kiln_constants.h"  // hidden, top_k, result_is_f32, threads, pieces_per_thread, parts
#include "templates/common/decode.cuh"
#include "templates/common/memory.cuh"
#include "templates/common/types.cuh"

constexpr int piece_elements = 8;
constexpr int pieces = hidden / piece_elements;
constexpr int batch = top_k < 8 ? top_k : 8;  // columns under way

// The columns of a row that add something, ascending by expert.
struct Order {
  int count;
  u32 rank;  // of the lane's column

  __device__ __forceinline__ Order(const Args& args, i64 t, int lane) {
    const i32 expert = lane < top_k ? args.experts[t * args.experts_stride + lane] : -1;
    bool adds = expert >= 0;
    if (args.expert_map != nullptr) {
      adds = adds && expert < args.num_experts;
      adds = adds && args.expert_map[adds ? expert : 0] >= 0;
    }
    count = __popc(__ballot_sync(all_lanes, adds));
    // Others are behind all that add, in any order.
    const u32 key = adds ? static_cast<u32>(expert) : 0xffffffffu;
    rank = 0;
#pragma unroll
    for (int other = 0; other < top_k; ++other) {
      const u32 its_key = __shfl_sync(all_lanes, key, other);
      rank += its_key < key || (its_key == key && other < lane);
    }
    if (!adds) rank = 0xffffffffu;
  }

  // For i below count.
  __device__ __forceinline__ int column(int i) const {
    return __ffs(static_cast<int>(__ballot_sync(all_lanes, rank == static_cast<u32>(i)))) - 1;
  }
};

__device__ __forceinline__ void add(float (&sums)[piece_elements], const uint4& piece) {
  const u32 pairs[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sums[2 * i] = __fadd_rn(sums[2 * i], low_bf16(pairs[i]));
    sums[2 * i + 1] = __fadd_rn(sums[2 * i + 1], high_bf16(pairs[i]));
  }
}

__device__ __forceinline__ void store(const Args& args, i64 t, int column,
                                      const float (&sums)[piece_elements]) {
  if constexpr (result_is_f32) {
    float* y = args.y_f32 + t * args.y_f32_stride + column;
#pragma unroll
    for (int i = 0; i < piece_elements; i += 4)
      store_16(y + i, {__float_as_uint(sums[i]), __float_as_uint(sums[i + 1]),
                       __float_as_uint(sums[i + 2]), __float_as_uint(sums[i + 3])});
  } else {
    store_16(args.y + t * args.y_stride + column,
             {to_bf16x2(sums[0], sums[1]), to_bf16x2(sums[2], sums[3]), to_bf16x2(sums[4], sums[5]),
              to_bf16x2(sums[6], sums[7])});
  }
}

extern "C" __global__ void __launch_bounds__(threads)
    moe_combine(const __grid_constant__ Args args) {
  const i64 t = blockIdx.x / static_cast<u32>(parts);
  const int part = static_cast<int>(blockIdx.x % static_cast<u32>(parts));
  const int first = part * (threads * pieces_per_thread) + static_cast<int>(threadIdx.x);
  const auto load = [&](const u16* row, int i) {
    const int piece = first + i * threads;
    return piece < pieces ? load_16(reinterpret_cast<const u8*>(row + piece * piece_elements))
                          : uint4{0, 0, 0, 0};
  };

  bool has_shared = false;
  uint4 of_shared[pieces_per_thread];
  if constexpr (!result_is_f32) {
    has_shared = args.shared != nullptr;
#pragma unroll
    for (int i = 0; i < pieces_per_thread; ++i)
      if (has_shared) of_shared[i] = load(args.shared + t * args.shared_stride, i);
  }
  const Order order(args, t, lane_id());
  const u16* pairs = args.pairs + t * args.pairs_stride0;
  float sums[pieces_per_thread][piece_elements] = {};
#pragma unroll 1
  for (int start = 0; start < order.count; start += batch) {
    uint4 data[batch][pieces_per_thread];
#pragma unroll
    for (int n = 0; n < batch; ++n) {
      const int column = order.column(start + n);
#pragma unroll
      for (int i = 0; i < pieces_per_thread; ++i)
        if (start + n < order.count) data[n][i] = load(pairs + column * args.pairs_stride1, i);
    }
#pragma unroll
    for (int n = 0; n < batch; ++n) {
#pragma unroll
      for (int i = 0; i < pieces_per_thread; ++i)
        if (start + n < order.count) add(sums[i], data[n][i]);
    }
  }
#pragma unroll
  for (int i = 0; i < pieces_per_thread; ++i) {
    if (has_shared) add(sums[i], of_shared[i]);
    const int piece = first + i * threads;
    if (piece < pieces) store(args, t, piece * piece_elements, sums[i]);
  }
}
