// Attention of each row over two lists of cache slots (ops.md B14, B14.1): one 512-wide key per slot,
// which is also its value.
//   s[h, n] = 512^-0.5 * dot(q[t, h], k_n)         m = max s     p = exp(s - m), 0 if invalid
//   out[t, h] = (sum p * k_n) / (sum p + exp(sink[h] - m))
// grid  (num_rows * splits * head_blocks)   block (32 * warps)
// shared  queries | stages of raw codes | scores | probabilities | factors
//
// A CTA takes one row, heads_per_cta heads and one split of the columns of both lists, in tiles of
// tile_slots. A warp owns dims_per_warp of the 512 dims, as dims of the score and as columns of the
// output, and so decodes its part of each key into registers once and for itself. Per tile:
//   codes of a later tile are requested, this one's are decoded
//   scores: a sum over the warp's dims for all heads and slots, to shared memory
//   barrier; warp w sums the scores of heads 8w .. 8w + 7 over the warps: softmax, probabilities
//   barrier; output: all probabilities times the warp's columns of the keys, transposed in registers
#include "kiln_args.h"
#include "kiln_constants.h"
#include "templates/common/mma.cuh"
#include "templates/common/shared.cuh"
#include "templates/common/types.cuh"
#include "templates/sparse_mla_decode/cache.cuh"
#include "templates/sparse_mla_decode/layout.cuh"

constexpr int heads_in_block = heads < heads_per_cta ? heads : heads_per_cta;
constexpr int head_groups = (heads_in_block + 7) / 8;  // of 8 heads; each is one warp's
static_assert(head_groups <= warps, "a warp takes the softmax of one group of heads");

constexpr int query_tiles_in_shared = k_tiles - query_tiles_in_registers;
constexpr int probability_terms = split_probability ? 2 : 1;

// Shared memory.
constexpr int query_bytes = warps * m_tiles * query_tiles_in_shared * warp_lanes * 16;
constexpr int score_vectors = n_tiles / 2;  // float4 of a lane, of one group and one tile
constexpr int score_bytes = head_groups * (warps - 1) * score_vectors * warp_lanes * 16;
constexpr int probability_group_bytes = n_tiles * 4 * warp_lanes;
constexpr int probability_bytes = head_groups * probability_terms * probability_group_bytes;
constexpr int stages_at = query_bytes;
constexpr int scores_at = stages_at + stages * stage_bytes;
constexpr int probabilities_at = scores_at + score_bytes;
constexpr int factors_at = probabilities_at + probability_bytes;
constexpr int shared_bytes = factors_at + heads_per_cta * 4;

constexpr float score_scale = static_cast<float>(0.044194173824159216 * log2_e);
// Outputs stay relative to an older maximum until a score exceeds it by this much (base 2).
constexpr float slack = 8.0f;

// Output of the warp: [m-tile][k-tile][octet], rows heads, columns dims.
using Output = float[m_tiles][k_tiles][octets][4];

// --- queries

// A fragments in the order of layout.cuh; missing heads are zero.
struct Queries {
  uint4 in_registers[m_tiles][query_tiles_in_registers > 0 ? query_tiles_in_registers : 1];
  u32 in_shared;  // of this lane
};

__device__ __forceinline__ void load_queries(const Args& args, i64 row, int head_block, u32 shared,
                                             int warp, int lane, Queries& queries) {
  const int g = lane / 4;
  const int t = lane % 4;
  queries.in_shared = shared + (warp * m_tiles * query_tiles_in_shared * warp_lanes + lane) * 16;
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      u32 pairs[2][8] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head = head_block * heads_per_cta + 16 * m + 8 * half + g;
        if (head < heads) {
          const uint4* from = reinterpret_cast<const uint4*>(
              args.q + row * args.q_stride0 + head * args.q_stride1 + warp * dims_per_warp +
              chunk_dims * c + lane_dims * t);
          const uint4 low = from[0];
          const uint4 high = from[1];
          pairs[half][0] = low.x, pairs[half][1] = low.y;
          pairs[half][2] = low.z, pairs[half][3] = low.w;
          pairs[half][4] = high.x, pairs[half][5] = high.y;
          pairs[half][6] = high.z, pairs[half][7] = high.w;
        }
      }
#pragma unroll
      for (int j = 0; j < k_tiles_per_chunk; ++j) {
        const uint4 fragment = {__byte_perm(pairs[0][2 * j], pairs[0][2 * j + 1], 0x7632),
                                __byte_perm(pairs[1][2 * j], pairs[1][2 * j + 1], 0x7632),
                                __byte_perm(pairs[0][2 * j], pairs[0][2 * j + 1], 0x5410),
                                __byte_perm(pairs[1][2 * j], pairs[1][2 * j + 1], 0x5410)};
        const int tile = c * k_tiles_per_chunk + j;
        if (tile < query_tiles_in_registers) {
          queries.in_registers[m][tile] = fragment;
        } else {
          store_shared_16(queries.in_shared + (m * query_tiles_in_shared + tile -
                                               query_tiles_in_registers) * warp_lanes * 16,
                          fragment);
        }
      }
    }
  }
}

__device__ __forceinline__ uint4 query_fragment(const Queries& queries, int m, int tile) {
  if (tile < query_tiles_in_registers) return queries.in_registers[m][tile];
  return load_shared_16(queries.in_shared + (m * query_tiles_in_shared + tile -
                                             query_tiles_in_registers) * warp_lanes * 16);
}

// --- tiles

// The tiles of a split: columns of the window list, then of the compressed list.
struct Tiles {
  int first_window;
  int num_window;
  int first_compressed;
  int count;
};

__device__ __forceinline__ i32 slot_of_tile(const List& list, int tile, int lane) {
  const i64 column = static_cast<i64>(tile) * tile_slots + lane % tile_slots;
  return column < list.len ? list.slots[column] : -1;
}

// --- scores

// Sums over the warp's dims. The warp's own group of heads stays in registers.
__device__ __forceinline__ void score_tile(const Queries& queries, const KeyFragments& keys,
                                           u32 scores, int warp, int lane,
                                           float (&own)[n_tiles][2]) {
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
    float sums[n_tiles][4] = {};
#pragma unroll
    for (int j = 0; j < k_tiles; ++j) {
      const uint4 query = query_fragment(queries, m, j);
#pragma unroll
      for (int i = 0; i < n_tiles; ++i) mma_bf16(sums[i], query, keys[i][j][0], keys[i][j][1]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int group = 2 * m + half;
      if (group >= head_groups) continue;
      if (warp == group) {
#pragma unroll
        for (int i = 0; i < n_tiles; ++i) {
          own[i][0] = sums[i][2 * half];
          own[i][1] = sums[i][2 * half + 1];
        }
      } else {
        const int source = warp - (warp > group ? 1 : 0);
        const u32 to =
            scores + ((group * (warps - 1) + source) * score_vectors * warp_lanes + lane) * 16;
#pragma unroll
        for (int v = 0; v < score_vectors; ++v) {
          store_shared_16(to + v * warp_lanes * 16,
                          {__float_as_uint(sums[2 * v][2 * half]),
                           __float_as_uint(sums[2 * v][2 * half + 1]),
                           __float_as_uint(sums[2 * v + 1][2 * half]),
                           __float_as_uint(sums[2 * v + 1][2 * half + 1])});
        }
      }
    }
  }
}

// Scores, reference and probabilities of the warp's group: lane (g, t) has head g and, of each
// n-tile, slots 2t and 2t + 1. Returns the factor for what was summed so far.
__device__ __forceinline__ float softmax_tile(float (&own)[n_tiles][2], u32 scores,
                                              u32 probabilities, u32 existing, int exponent,
                                              int warp, int lane, SoftmaxState& state) {
  const int t = lane % 4;
#pragma unroll
  for (int source = 0; source < warps - 1; ++source) {
    const u32 from =
        scores + ((warp * (warps - 1) + source) * score_vectors * warp_lanes + lane) * 16;
#pragma unroll
    for (int v = 0; v < score_vectors; ++v) {
      const uint4 sums = load_shared_16(from + v * warp_lanes * 16);
      own[2 * v][0] = __fadd_rn(own[2 * v][0], __uint_as_float(sums.x));
      own[2 * v][1] = __fadd_rn(own[2 * v][1], __uint_as_float(sums.y));
      own[2 * v + 1][0] = __fadd_rn(own[2 * v + 1][0], __uint_as_float(sums.z));
      own[2 * v + 1][1] = __fadd_rn(own[2 * v + 1][1], __uint_as_float(sums.w));
    }
  }
  const u32 mine = existing >> (2 * t);
  float largest = minus_infinity;
#pragma unroll
  for (int i = 0; i < n_tiles; ++i) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if ((mine >> (8 * i + e) & 1) == 0) own[i][e] = minus_infinity;
      largest = fmaxf(largest, own[i][e]);
    }
  }
  largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, 2));
  constexpr float fp4_unit = static_cast<float>(1 << unit_exponent<F2>);
  const float scale = exponent == 0 ? score_scale : score_scale * fp4_unit;
  largest = __fmul_rn(largest, scale);

  float factor = 1.0f;
  if (largest > __fadd_rn(state.reference, slack)) {
    factor = exp2_approx(__fsub_rn(state.reference, largest));
    state.reference = largest;
  }
  const float shift = (state.reference == minus_infinity ? 0.0f : -state.reference) +
                      static_cast<float>(exponent);
  float sum = 0.0f;
  u32 high[n_tiles];
  u32 low[n_tiles];
#pragma unroll
  for (int i = 0; i < n_tiles; ++i) {
    const float p0 = exp2_approx(__fmaf_rn(own[i][0], scale, shift));
    const float p1 = exp2_approx(__fmaf_rn(own[i][1], scale, shift));
    sum = __fadd_rn(sum, __fadd_rn(p0, p1));
    high[i] = pack_bf16x2(p0, p1);
    if (probability_terms == 2) {
      low[i] = pack_bf16x2(__fsub_rn(p0, low_bf16(high[i])), __fsub_rn(p1, high_bf16(high[i])));
    }
  }
  state.sum = __fmaf_rn(sum, exponent == 0 ? 1.0f : 1.0f / fp4_unit, __fmul_rn(state.sum, factor));

  const u32 to = probabilities + warp * probability_terms * probability_group_bytes;
  if constexpr (n_tiles == 4) {
    store_shared_16(to + lane * 16, {high[0], high[1], high[2], high[3]});
    if (probability_terms == 2)
      store_shared_16(to + probability_group_bytes + lane * 16, {low[0], low[1], low[2], low[3]});
  } else {
    store_shared_8(to + lane * 8, {high[0], high[1]});
    if (probability_terms == 2)
      store_shared_8(to + probability_group_bytes + lane * 8, {low[0], low[1]});
  }
  return factor;
}

// --- output

__device__ __forceinline__ void rescale(Output& output, u32 factors, int lane) {
  const int g = lane / 4;
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
    const float upper = load_shared_float(factors + (16 * m + g) * 4);
    const float lower =
        2 * m + 1 < head_groups ? load_shared_float(factors + (16 * m + 8 + g) * 4) : 1.0f;
#pragma unroll
    for (int j = 0; j < k_tiles; ++j) {
#pragma unroll
      for (int o = 0; o < octets; ++o) {
        output[m][j][o][0] = __fmul_rn(output[m][j][o][0], upper);
        output[m][j][o][1] = __fmul_rn(output[m][j][o][1], upper);
        output[m][j][o][2] = __fmul_rn(output[m][j][o][2], lower);
        output[m][j][o][3] = __fmul_rn(output[m][j][o][3], lower);
      }
    }
  }
}

__device__ __forceinline__ void load_probabilities(u32 (&p)[n_tiles], u32 probabilities, int group,
                                                   int term, int lane) {
  if (group >= head_groups) {
#pragma unroll
    for (int i = 0; i < n_tiles; ++i) p[i] = 0;
    return;
  }
  const u32 from = probabilities + (group * probability_terms + term) * probability_group_bytes;
  if constexpr (n_tiles == 4) {
    const uint4 v = load_shared_16(from + lane * 16);
    p[0] = v.x, p[1] = v.y, p[2] = v.z, p[3] = v.w;
  } else {
    const uint2 v = load_shared_8(from + lane * 8);
    p[0] = v.x, p[1] = v.y;
  }
}

__device__ __forceinline__ void add_values(Output& output, const KeyFragments& keys,
                                           u32 probabilities, int lane) {
  u32 p[probability_terms][2 * m_tiles][n_tiles];
#pragma unroll
  for (int term = 0; term < probability_terms; ++term) {
#pragma unroll
    for (int group = 0; group < 2 * m_tiles; ++group)
      load_probabilities(p[term][group], probabilities, group, term, lane);
  }
#pragma unroll
  for (int k = 0; k < n_tiles / 2; ++k) {
#pragma unroll
    for (int j = 0; j < k_tiles; ++j) {
#pragma unroll
      for (int o = 0; o < octets; ++o) {
        const u32 b0 = transpose_8x8(keys[2 * k][j][o]);
        const u32 b1 = transpose_8x8(keys[2 * k + 1][j][o]);
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
          for (int term = 0; term < probability_terms; ++term) {
            mma_bf16(output[m][j][o],
                     {p[term][2 * m][2 * k], p[term][2 * m + 1][2 * k], p[term][2 * m][2 * k + 1],
                      p[term][2 * m + 1][2 * k + 1]},
                     b0, b1);
          }
        }
      }
    }
  }
}

// Final rows: a lane has 16 neighbouring columns of a head in each chunk.
__device__ __forceinline__ void store_output(const Args& args, const Output& output, i64 row,
                                             int head_block, u32 factors, int warp, int lane) {
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head_in_block = 16 * m + 8 * half + g;
      const int head = head_block * heads_per_cta + head_in_block;
      if (2 * m + half >= head_groups || head >= heads) continue;
      const float inverse = load_shared_float(factors + head_in_block * 4);
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        u32 pairs[8];
#pragma unroll
        for (int j = 0; j < k_tiles_per_chunk; ++j) {
          const float(&odd)[4] = output[m][4 * c + j][0];
          const float(&even)[4] = output[m][4 * c + j][1];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            pairs[2 * j + e] = pack_bf16x2(__fmul_rn(even[2 * half + e], inverse),
                                           __fmul_rn(odd[2 * half + e], inverse));
          }
        }
        const int first_dim = warp * dims_per_warp + c * chunk_dims + lane_dims * t;
        if (inverse_rope && warp == warps - 1 && c == chunks - 1) {
          const float* table =
              args.rope_table + static_cast<i64>(args.positions[row]) * args.rope_table_stride;
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            pairs[i] = rotate_back(pairs[i], table[8 * t + i], table[rope_dims / 2 + 8 * t + i]);
          }
        }
        uint4* to = reinterpret_cast<uint4*>(args.out + row * args.out_stride0 +
                                             head * args.out_stride1 + first_dim);
        to[0] = {pairs[0], pairs[1], pairs[2], pairs[3]};
        to[1] = {pairs[4], pairs[5], pairs[6], pairs[7]};
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(32 * warps, ctas_per_sm)
    sparse_mla_decode(const __grid_constant__ Args args) {
  extern __shared__ uint4 shared_memory[];
  const u32 shared = shared_address(shared_memory);
  const int warp = __shfl_sync(all_lanes, warp_id(), 0);
  const int lane = lane_id();
  const int head_block = static_cast<int>(blockIdx.x % head_blocks);
  const int split = static_cast<int>(blockIdx.x / head_blocks % splits);
  const i64 row = blockIdx.x / (head_blocks * splits);

  // Columns of a split are fixed by the widths, so that slots can be read before lengths are known.
  constexpr bool has_compressed = compressed_format != none;
  List window{args.window_cache,
              args.window_cache_stride,
              static_cast<u32>(args.window_page_size),
              static_cast<u32>(args.num_window_pages * args.window_page_size),
              args.window_slots + row * args.window_slots_stride,
              static_cast<i32>(args.window_width)};
  List compressed{};
  if constexpr (has_compressed) {
    compressed = {args.compressed_cache,
                  args.compressed_cache_stride,
                  static_cast<u32>(args.compressed_page_size),
                  static_cast<u32>(args.num_compressed_pages * args.compressed_page_size),
                  args.compressed_slots + row * args.compressed_slots_stride,
                  static_cast<i32>(args.compressed_width)};
  }
  const int window_tiles = (window.len + tile_slots - 1) / tile_slots;
  const int all_tiles = window_tiles + (compressed.len + tile_slots - 1) / tile_slots;
  const int begin = static_cast<int>(static_cast<i64>(all_tiles) * split / splits);
  const int end = static_cast<int>(static_cast<i64>(all_tiles) * (split + 1) / splits);

  Tiles tiles;
  tiles.first_window = min(begin, window_tiles);
  tiles.first_compressed = max(begin, window_tiles) - window_tiles;
  const i32 early_window = slot_of_tile(window, tiles.first_window, lane);
  const i32 early_compressed =
      has_compressed ? slot_of_tile(compressed, tiles.first_compressed, lane) : -1;
  window.len = min(max(args.window_lens[row], 0), window.len);
  if constexpr (has_compressed)
    compressed.len = min(max(args.compressed_lens[row], 0), compressed.len);
  const int window_used = (window.len + tile_slots - 1) / tile_slots;
  const int compressed_used = (compressed.len + tile_slots - 1) / tile_slots;
  tiles.num_window = max(min(min(end, window_tiles), window_used) - tiles.first_window, 0);
  tiles.count = tiles.num_window +
                max(min(end - window_tiles, compressed_used) - tiles.first_compressed, 0);

  const auto is_window = [&](int i) { return !has_compressed || i < tiles.num_window; };
  const auto load_slot = [&](int i) -> i32 {
    if (i >= tiles.count) return -1;
    if (is_window(i)) return slot_of_tile(window, tiles.first_window + i, lane);
    return slot_of_tile(compressed, tiles.first_compressed + i - tiles.num_window, lane);
  };
  const auto request = [&](int i, i32 slot, u32 stage) -> u32 {
    u32 existing = 0;
    if (i < tiles.count) {
      const Strip strip = strip_of(stage, warp);
      if (is_window(i)) {
        existing = request_tile<window_format>(window, slot, strip, warp, lane);
      } else if constexpr (has_compressed) {
        existing = request_tile<compressed_format>(compressed, slot, strip, warp, lane);
      }
    }
    copy_async_commit();
    return existing;
  };

  u32 existing[stages];
  {
    const bool starts_in_window = is_window(0);
    const List& list = starts_in_window ? window : compressed;
    const int tile = starts_in_window ? tiles.first_window : tiles.first_compressed;
    i32 slot = starts_in_window ? early_window : early_compressed;
    if (static_cast<i64>(tile) * tile_slots + lane % tile_slots >= list.len) slot = -1;
    existing[0] = request(0, slot, shared + stages_at);
  }
#pragma unroll
  for (int i = 1; i < stages; ++i)
    existing[i] = request(i, load_slot(i), shared + stages_at + i * stage_bytes);
  i32 next_slot = load_slot(stages);

  Queries queries;
  load_queries(args, row, head_block, shared, warp, lane, queries);

  Output output = {};
  SoftmaxState state = {minus_infinity, 0.0f};
  u32 stage = shared + stages_at;
  for (int i = 0; i < tiles.count; ++i) {
    const Strip strip = strip_of(stage, warp);
    copy_async_wait<stages - 1>();
    __syncwarp();

    KeyFragments keys;
    if (is_window(i)) {
      decode_tile<window_format>(keys, strip, warp, lane);
    } else if constexpr (has_compressed) {
      decode_tile<compressed_format>(keys, strip, warp, lane);
    }
    const u32 existing_now = existing[0];
    __syncwarp();
#pragma unroll
    for (int s = 0; s + 1 < stages; ++s) existing[s] = existing[s + 1];
    existing[stages - 1] = request(i + stages, next_slot, stage);
    next_slot = load_slot(i + stages + 1);
    stage = stage + stage_bytes == shared + scores_at ? shared + stages_at : stage + stage_bytes;

    float own[n_tiles][2];
    score_tile(queries, keys, shared + scores_at, warp, lane, own);
    __syncthreads();

    bool changed = false;
    if (warp < head_groups) {
      const int exponent =
          is_window(i) ? unit_exponent<window_format> : unit_exponent<compressed_format>;
      const float factor = softmax_tile(own, shared + scores_at, shared + probabilities_at,
                                        existing_now, exponent, warp, lane, state);
      changed = factor != 1.0f;
      if (lane % 4 == 0) store_shared_float(shared + factors_at + (8 * warp + lane / 4) * 4, factor);
    }
    if (__syncthreads_or(changed)) rescale(output, shared + factors_at, lane);
    add_values(output, keys, shared + probabilities_at, lane);
  }

  state.sum = __fadd_rn(state.sum, __shfl_xor_sync(all_lanes, state.sum, 1));
  state.sum = __fadd_rn(state.sum, __shfl_xor_sync(all_lanes, state.sum, 2));
  const bool has_head = warp < head_groups && lane % 4 == 0;
  const int head_in_block = 8 * warp + lane / 4;
  if constexpr (splits > 1) {
    if (has_head) partial_state(args, row, split, head_block)[head_in_block] = state;
    float4* to = partial_fragments(args, row, split, head_block, warp) + lane;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int j = 0; j < k_tiles; ++j) {
#pragma unroll
        for (int o = 0; o < octets; ++o) {
          const float(&c)[4] = output[m][j][o];
          to[((m * k_tiles + j) * octets + o) * warp_lanes] = {c[0], c[1], c[2], c[3]};
        }
      }
    }
  } else {
    const int head = head_block * heads_per_cta + head_in_block;
    __syncthreads();
    if (has_head) {
      store_shared_float(shared + factors_at + head_in_block * 4,
                         inverse_denominator(args, head, state));
      store_lse(args, row, head, state);
    }
    __syncthreads();
    store_output(args, output, row, head_block, shared + factors_at, warp, lane);
  }
}
