// Attention of each row over two lists of cache slots (ops.md B14, B14.1): one 512-wide key per
// slot, which is also its value.
//   s[h, n] = 512^-0.5 * dot(q[t, h], k_n)         m = max s     p = exp(s - m), 0 if invalid
//   out[t, h] = (sum p * k_n) / (sum p + exp(sink[h] - m))
// grid  (num_rows * splits * head_blocks)   block (32 * warps)
// shared  queries | stages of raw codes | scores | probabilities, twice | factors
//
// A CTA takes one row, heads_per_cta heads and one split of the columns of both lists, in tiles of
// tile_slots. A warp owns dims_per_warp of the 512 dims, as dims of the score and as columns of the
// output, and so decodes its part of each key into registers once and for itself. Step i:
//   the codes of tile i are decoded, those of a later tile requested
//   scores of tile i: a sum over the warp's dims for all heads and slots, to shared memory
//   barrier; each warp takes heads_per_warp heads: scores summed over the warps, softmax,
//   probabilities of tile i; meanwhile its tensor cores add the values of tile i - 1
//   barrier; where a maximum rose by much, the output is rescaled
#include "kiln_args.h"
#include "kiln_constants.h"
#include "templates/common/mma.cuh"
#include "templates/common/shared.cuh"
#include "templates/common/types.cuh"
#include "templates/sparse_mla_decode/cache.cuh"
#include "templates/sparse_mla_decode/layout.cuh"

constexpr int heads_in_block = heads < heads_per_cta ? heads : heads_per_cta;
constexpr int head_groups = (heads_in_block + 7) / 8;  // of 8 heads that exist

// Who takes the softmax of which scores: `parts` times four lanes share a head, each four take
// part_tiles n-tiles of it.
constexpr int heads_per_warp = heads_per_cta / warps;
constexpr int lanes_per_head = warp_lanes / heads_per_warp;
constexpr int parts = lanes_per_head / 4;
constexpr int part_tiles = n_tiles / parts;
constexpr int swizzle = parts > 1 ? 4 : 0;  // lanes that a row of n-tile i is rotated by, times i
static_assert(parts >= 1 && part_tiles >= 1, "more lanes than scores, or more heads than lanes");

constexpr int query_tiles_in_shared = k_tiles - query_tiles_in_registers;
constexpr int probability_terms = split_probability ? 2 : 1;
// Score accumulators of so many m-tiles are alive at once.
constexpr int m_tiles_at_once = score_m_tiles;

// Shared memory.
constexpr int query_bytes = warps * m_tiles * query_tiles_in_shared * warp_lanes * 16;
constexpr int score_row_bytes = warp_lanes * 8;  // of an n-tile and 8 heads: a float2 a lane
constexpr int score_source_bytes = n_tiles * score_row_bytes;
constexpr int score_bytes = head_groups * warps * score_source_bytes;
constexpr int value_tiles = n_tiles / 2;  // k-tiles of 16 slots
constexpr int probability_term_bytes = m_tiles * value_tiles * warp_lanes * 16;  // A fragments
constexpr int probability_bytes = probability_terms * probability_term_bytes;
constexpr int probability_buffers = overlap_values ? 2 : 1;
constexpr int stages_at = query_bytes;
constexpr int scores_at = stages_at + stages * stage_bytes;
constexpr int probabilities_at = scores_at + score_bytes;
constexpr int factors_at = probabilities_at + probability_buffers * probability_bytes;
// The launch gives factors_at + 4 * heads_per_cta bytes.

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
          const uint4* from =
              reinterpret_cast<const uint4*>(args.q + row * args.q_stride0 + head * args.q_stride1 +
                                             warp * dims_per_warp + chunk_dims * c + lane_dims * t);
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
          store_shared_16(
              queries.in_shared +
                  (m * query_tiles_in_shared + tile - query_tiles_in_registers) * warp_lanes * 16,
              fragment);
        }
      }
    }
  }
}

__device__ __forceinline__ uint4 query_fragment(const Queries& queries, int m, int tile) {
  if (tile < query_tiles_in_registers) return queries.in_registers[m][tile];
  return load_shared_16(queries.in_shared +
                        (m * query_tiles_in_shared + tile - query_tiles_in_registers) * warp_lanes *
                            16);
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
  const u32 column = static_cast<u32>(tile) * tile_slots + lane % tile_slots;
  return column < static_cast<u32>(list.len) ? list.slots[column] : -1;
}

// --- scores

// Sums over the warp's dims of all heads and slots, to the warp's place in every group of 8 heads.
// Lane (g, t) holds slots 2t and 2t + 1 of head g; rows of n-tiles are swizzled for the readers.
__device__ __forceinline__ void score_tile(const Queries& queries, const KeyFragments& keys,
                                           u32 scores, int warp, int lane) {
#pragma unroll
  for (int first = 0; first < m_tiles; first += m_tiles_at_once) {
    float sums[m_tiles_at_once][n_tiles][4] = {};
    uint4 query = query_fragment(queries, first, 0);
#pragma unroll
    for (int step = 0; step < k_tiles * m_tiles_at_once; ++step) {
      const int m = step % m_tiles_at_once;
      const int j = step / m_tiles_at_once;
      const int next = step + 1;
      uint4 next_query = query;
      if (next < k_tiles * m_tiles_at_once)
        next_query =
            query_fragment(queries, first + next % m_tiles_at_once, next / m_tiles_at_once);
#pragma unroll
      for (int i = 0; i < n_tiles; ++i) mma_bf16(sums[m][i], query, keys[i][j][0], keys[i][j][1]);
      query = next_query;
    }
    const u32 to = scores + warp * score_source_bytes;
#pragma unroll
    for (int m = 0; m < m_tiles_at_once; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int group = 2 * (first + m) + half;
        if (group >= head_groups) continue;
#pragma unroll
        for (int i = 0; i < n_tiles; ++i) {
          store_shared_8(
              to + group * warps * score_source_bytes + i * score_row_bytes +
                  (lane ^ swizzle * i) * 8,
              {__float_as_uint(sums[m][i][2 * half]), __float_as_uint(sums[m][i][2 * half + 1])});
        }
      }
    }
  }
}

// The head of a lane and where its scores and probabilities stand.
struct Share {
  int head;                // of the CTA
  int part;                // of the head's n-tiles
  u32 scores[part_tiles];  // shared addresses
  u32 probabilities;
};

__device__ __forceinline__ Share share_of(u32 shared, int warp, int lane) {
  Share share;
  share.head = warp * heads_per_warp + lane / lanes_per_head;
  share.part = lane % lanes_per_head / 4;
  const int group = share.head / 8;
  const int fragment_lane = share.head % 8 * 4 + lane % 4;
#pragma unroll
  for (int v = 0; v < part_tiles; ++v) {
    const int i = share.part * part_tiles + v;
    share.scores[v] = shared + scores_at + group * warps * score_source_bytes +
                      i * score_row_bytes + (fragment_lane ^ swizzle * i) * 8;
  }
  share.probabilities = shared + probabilities_at +
                        (group / 2 * value_tiles * warp_lanes + fragment_lane) * 16 + group % 2 * 4;
  return share;
}

// Slots 2t and 2t + 1 of n-tile i are register a0 or a1 of k-tile i / 2, or a2 or a3.
__device__ __forceinline__ void store_probabilities(const Share& share, u32 to,
                                                    const u32 (&p)[part_tiles]) {
#pragma unroll
  for (int v = 0; v < part_tiles; ++v) {
    const int i = share.part * part_tiles + v;
    store_shared_4(to + i / 2 * warp_lanes * 16 + i % 2 * 8, p[v]);
  }
}

using Scores = float[part_tiles][2];

__device__ __forceinline__ void sum_scores(const Share& share, Scores& s) {
#pragma unroll
  for (int source = 0; source < warps; ++source) {
#pragma unroll
    for (int v = 0; v < part_tiles; ++v) {
      const uint2 pair = load_shared_8(share.scores[v] + source * score_source_bytes);
      s[v][0] = source == 0 ? __uint_as_float(pair.x) : __fadd_rn(s[v][0], __uint_as_float(pair.x));
      s[v][1] = source == 0 ? __uint_as_float(pair.y) : __fadd_rn(s[v][1], __uint_as_float(pair.y));
    }
  }
}

// Reference and probabilities of the lane's share. Returns the factor for what was summed so far.
__device__ __forceinline__ float softmax_tile(const Share& share, Scores& s, u32 buffer,
                                              u32 existing, int exponent, int lane,
                                              SoftmaxState& state) {
  const u32 mine = existing >> (2 * (lane % 4) + 8 * part_tiles * share.part);
  float largest = minus_infinity;
#pragma unroll
  for (int v = 0; v < part_tiles; ++v) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      s[v][e] = (mine >> (8 * v + e) & 1) != 0 ? s[v][e] : minus_infinity;
      largest = fmaxf(largest, s[v][e]);
    }
  }
#pragma unroll
  for (int step = 1; step < lanes_per_head; step *= 2)
    largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, step));
  constexpr float fp4_unit = static_cast<float>(1 << unit_exponent<F2>);
  const float scale = exponent == 0 ? score_scale : score_scale * fp4_unit;
  largest = __fmul_rn(largest, scale);

  const bool rises = largest > __fadd_rn(state.reference, slack);
  const float reference = rises ? largest : state.reference;
  const float factor = rises ? exp2_approx(__fsub_rn(state.reference, largest)) : 1.0f;
  state.reference = reference;
  const float shift =
      static_cast<float>(exponent) - (reference == minus_infinity ? 0.0f : reference);
  float sum = 0.0f;
  u32 high[part_tiles];
  u32 low[part_tiles];
#pragma unroll
  for (int v = 0; v < part_tiles; ++v) {
    const float p0 = exp2_approx(__fmaf_rn(s[v][0], scale, shift));
    const float p1 = exp2_approx(__fmaf_rn(s[v][1], scale, shift));
    sum = __fadd_rn(sum, __fadd_rn(p0, p1));
    high[v] = pack_bf16x2(p0, p1);
    low[v] = pack_bf16x2(__fsub_rn(p0, low_bf16(high[v])), __fsub_rn(p1, high_bf16(high[v])));
  }
  state.sum = __fmaf_rn(sum, exponent == 0 ? 1.0f : 1.0f / fp4_unit, __fmul_rn(state.sum, factor));
  store_probabilities(share, share.probabilities + buffer, high);
  if constexpr (probability_terms == 2)
    store_probabilities(share, share.probabilities + buffer + probability_term_bytes, low);
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

// A fragments of all heads.
using Probabilities = uint4[probability_terms][m_tiles][value_tiles];

__device__ __forceinline__ void load_probabilities(Probabilities& p, u32 from, int lane) {
#pragma unroll
  for (int term = 0; term < probability_terms; ++term) {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int k = 0; k < value_tiles; ++k) {
        p[term][m][k] = load_shared_16(from + term * probability_term_bytes +
                                       ((m * value_tiles + k) * warp_lanes + lane) * 16);
      }
    }
  }
}

__device__ __forceinline__ void add_values(Output& output, const KeyFragments& keys,
                                           const Probabilities& p, int k) {
#pragma unroll
  for (int j = 0; j < k_tiles; ++j) {
#pragma unroll
    for (int o = 0; o < octets; ++o) {
      const u32 b0 = transpose_8x8(keys[2 * k][j][o]);
      const u32 b1 = transpose_8x8(keys[2 * k + 1][j][o]);
#pragma unroll
      for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
        for (int term = 0; term < probability_terms; ++term)
          mma_bf16(output[m][j][o], p[term][m][k], b0, b1);
      }
    }
  }
}

__device__ __forceinline__ void add_values(Output& output, const KeyFragments& keys,
                                           const Probabilities& p) {
#pragma unroll
  for (int k = 0; k < value_tiles; ++k) add_values(output, keys, p, k);
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
          const float* table = rope_of_row(args, row);
          if (table != nullptr) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
              pairs[i] = rotate_back(pairs[i], table[8 * t + i], table[rope_dims / 2 + 8 * t + i]);
            }
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
  const int begin =
      splits == 1 ? 0 : static_cast<int>(static_cast<u64>(all_tiles) * split / splits);
  const int end = splits == 1
                      ? all_tiles
                      : static_cast<int>(static_cast<u64>(all_tiles) * (split + 1) / splits);

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
  tiles.count =
      tiles.num_window + max(min(end - window_tiles, compressed_used) - tiles.first_compressed, 0);

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
  const Share share = share_of(shared, warp, lane);
  const bool has_head = head_groups * 8 == heads_per_cta || share.head < head_groups * 8;
  u32 stage = shared + stages_at;

  const auto step = [&](int i, KeyFragments& keys, const KeyFragments& keys_before) {
    const Strip strip = strip_of(stage, warp);
    copy_async_wait<stages - 1>();
    __syncwarp();
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

    score_tile(queries, keys, shared + scores_at, warp, lane);
    // Of the tile before, whose probabilities have been there since the last barrier.
    Probabilities p;
    const u32 buffer = overlap_values ? (i & 1) * probability_bytes : 0;
    if constexpr (overlap_values)
      load_probabilities(p, shared + probabilities_at + probability_bytes - buffer, lane);
    __syncthreads();

    float factor = 1.0f;
    const int exponent =
        is_window(i) ? unit_exponent<window_format> : unit_exponent<compressed_format>;
    Scores s;
    if (has_head) sum_scores(share, s);
    if constexpr (overlap_values) add_values(output, keys_before, p, 0);
    if (has_head) {
      factor = softmax_tile(share, s, buffer, existing_now, exponent, lane, state);
      if (lane % lanes_per_head == 0)
        store_shared_float(shared + factors_at + share.head * 4, factor);
    }
    if constexpr (overlap_values) {
#pragma unroll
      for (int k = 1; k < value_tiles; ++k) add_values(output, keys_before, p, k);
    }
    if (__syncthreads_or(factor != 1.0f)) rescale(output, shared + factors_at, lane);
    if constexpr (!overlap_values) {
      load_probabilities(p, shared + probabilities_at, lane);
      add_values(output, keys, p);
    }
  };

  if constexpr (head_groups * 8 < heads_per_cta) {
    // Rows of heads that do not exist.
    for (int at = static_cast<int>(threadIdx.x) * 16; at < probability_buffers * probability_bytes;
         at += 512 * warps)
      store_shared_16(shared + probabilities_at + at, {0, 0, 0, 0});
    __syncthreads();
  }

  if constexpr (overlap_values) {
    // Before the first tile stands one of zeros.
    KeyFragments keys[2];
#pragma unroll
    for (int i = 0; i < n_tiles; ++i) {
#pragma unroll
      for (int j = 0; j < k_tiles; ++j) keys[1][i][j][0] = keys[1][i][j][1] = 0;
    }
    for (int at = static_cast<int>(threadIdx.x) * 16; at < probability_bytes; at += 512 * warps)
      store_shared_16(shared + probabilities_at + probability_bytes + at, {0, 0, 0, 0});
    __syncthreads();
    for (int i = 0; i < tiles.count;) {
      step(i, keys[0], keys[1]);
      if (++i == tiles.count) break;
      step(i, keys[1], keys[0]);
      ++i;
    }
    if (tiles.count > 0) {
      Probabilities p;
      load_probabilities(p, shared + probabilities_at + (tiles.count - 1 & 1) * probability_bytes,
                         lane);
      if ((tiles.count & 1) != 0) {
        add_values(output, keys[0], p);
      } else {
        add_values(output, keys[1], p);
      }
    }
  } else {
    KeyFragments keys;
    for (int i = 0; i < tiles.count; ++i) step(i, keys, keys);
  }

#pragma unroll
  for (int step_lanes = 1; step_lanes < lanes_per_head; step_lanes *= 2)
    state.sum = __fadd_rn(state.sum, __shfl_xor_sync(all_lanes, state.sum, step_lanes));
  const bool speaks = lane % lanes_per_head == 0;
  const int head_in_block = share.head;
  if constexpr (splits > 1) {
    if (speaks) partial_state(args, row, split, head_block)[head_in_block] = state;
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
    if (speaks) {
      store_shared_float(shared + factors_at + head_in_block * 4,
                         inverse_denominator(load_sink(args, head), state));
      store_lse(args, row, head, state);
    }
    __syncthreads();
    store_output(args, output, row, head_block, shared + factors_at, warp, lane);
  }
}
