// What the decode kernels do with a tile of slots: the queries, the scores and their softmax, the
// products with the values. A warp owns dims_per_warp of the 512 dims, as dims of the score and as
// columns of the output, and so decodes its part of each key into registers once and for itself.
#pragma once

#include "templates/common/memory.cuh"
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

// Bytes of shared memory.
constexpr int query_bytes = warps * m_tiles * query_tiles_in_shared * warp_lanes * 16;
constexpr int score_row_bytes = warp_lanes * 8;  // of an n-tile and 8 heads: a float2 a lane
constexpr int score_source_bytes = n_tiles * score_row_bytes;
constexpr int score_bytes = head_groups * warps * score_source_bytes;
constexpr int value_tiles = n_tiles / 2;  // k-tiles of 16 slots
constexpr int probability_term_bytes = m_tiles * value_tiles * warp_lanes * 16;  // A fragments
constexpr int probability_bytes = probability_terms * probability_term_bytes;

constexpr float score_scale = static_cast<float>(0.044194173824159216 * log2_e);
// Outputs stay relative to an older maximum until a score exceeds it by this much (base 2).
// A rise of any head costs a CTA many multiplies, and bf16 and fp32 have the range.
constexpr float slack = 24.0f;

constexpr int warps_per_sm = ctas_per_sm * groups * warps;
// Whether addresses are rather formed anew in each step than kept in registers.
constexpr bool short_of_registers = m_tiles > 1 || warps_per_sm > 8;
// Whether codes are read chunk by chunk, and the next tile is requested once they all are.
constexpr bool late_loads = m_tiles * n_tiles > 4;

// Output of the warp: [m-tile][k-tile][octet], rows heads, columns dims.
using Output = float[m_tiles][k_tiles][octets][4];

// --- queries

// A fragments in the order of cache.cuh; missing heads are zero.
struct Queries {
  uint4 in_registers[m_tiles][query_tiles_in_registers > 0 ? query_tiles_in_registers : 1];
  u32 in_shared;  // of this lane
};

// What a lane reads of q: [m-tile][chunk][upper or lower head][half of its 16 dims].
using RawQueries = uint4[m_tiles][chunks][2][2];

// Where any query stays in registers each group loads all, else they share the work.
__device__ __forceinline__ bool loads_queries(int group, int m, int c) {
  return query_tiles_in_registers > 0 || (m * chunks + c) % groups == group;
}

__device__ __forceinline__ void request_queries(const Args& args, i64 row, int head_block,
                                                int group, int warp, int lane, RawQueries& raw) {
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head = head_block * heads_per_cta + 16 * m + 8 * half + lane / 4;
        raw[m][c][half][0] = raw[m][c][half][1] = {0, 0, 0, 0};
        if ((heads % heads_per_cta == 0 || head < heads) && loads_queries(group, m, c)) {
          const u16* from = args.q + row * args.q_stride0 + head * args.q_stride1 +
                            warp * dims_per_warp + chunk_dims * c + lane_dims * (lane % 4);
          raw[m][c][half][0] = reinterpret_cast<const uint4*>(from)[0];
          raw[m][c][half][1] = reinterpret_cast<const uint4*>(from)[1];
        }
      }
    }
  }
}

__device__ __forceinline__ u32 query_place(u32 shared, int warp, int lane) {
  return shared + (warp * m_tiles * query_tiles_in_shared * warp_lanes + lane) * 16;
}

__device__ __forceinline__ void keep_queries(u32 shared, int group, int warp, int lane,
                                             const RawQueries& raw, Queries& queries) {
  const u32 to = query_place(shared, warp, lane);
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      if (!loads_queries(group, m, c)) continue;
      u32 pairs[2][8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 low = raw[m][c][half][0];
        const uint4 high = raw[m][c][half][1];
        pairs[half][0] = low.x, pairs[half][1] = low.y;
        pairs[half][2] = low.z, pairs[half][3] = low.w;
        pairs[half][4] = high.x, pairs[half][5] = high.y;
        pairs[half][6] = high.z, pairs[half][7] = high.w;
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
              to + (m * query_tiles_in_shared + tile - query_tiles_in_registers) * warp_lanes * 16,
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

// --- slots

// By value: a choice between references would put both lists in local memory.
__device__ __forceinline__ List choose(bool in_window, const List& window, const List& compressed) {
  if (compressed_format == none) return window;
  return {in_window ? window.cache : compressed.cache,
          in_window ? window.page_stride : compressed.page_stride,
          in_window ? window.page_size : compressed.page_size,
          in_window ? window.num_slots : compressed.num_slots,
          in_window ? window.slots : compressed.slots,
          in_window ? window.len : compressed.len};
}

__device__ __forceinline__ i32 slot_of_tile(const List& list, int tile, int lane) {
  const u32 column = static_cast<u32>(tile) * tile_slots + lane % tile_slots;
  return column < static_cast<u32>(list.len) ? list.slots[column] : -1;
}

// --- scores

// Fragments of q in the order of their use, some ahead of it.
constexpr int query_steps = m_tiles * k_tiles;
constexpr int queries_ahead = 2;

__device__ __forceinline__ uint4 query_of_step(const Queries& queries, int step) {
  const int first = step / (k_tiles * m_tiles_at_once) * m_tiles_at_once;
  const int in_round = step % (k_tiles * m_tiles_at_once);
  return query_fragment(queries, first + in_round % m_tiles_at_once, in_round / m_tiles_at_once);
}

__device__ __forceinline__ void start_queries(const Queries& queries,
                                              uint4 (&ahead)[queries_ahead]) {
#pragma unroll
  for (int step = 0; step < queries_ahead; ++step) ahead[step] = query_of_step(queries, step);
}

// Fragments of the value product in place of those of the score product. This stands among the
// steps of the softmax, each of which waits for the one before it.
__device__ __forceinline__ void transpose_keys(KeyFragments& keys, int begin, int end) {
#pragma unroll
  for (int j = begin; j < end; ++j) {
#pragma unroll
    for (int i = 0; i < n_tiles; ++i) {
#pragma unroll
      for (int o = 0; o < octets; ++o) keys[i][j][o] = transpose_8x8(keys[i][j][o]);
    }
  }
}

// What is read of a tile before the next one is requested.
template <int format>
__device__ __forceinline__ void load_early(RawTile& raw, const Strip& strip, u32 existing, int warp,
                                           int lane) {
  load_scales<format>(raw, strip, existing, lane);
  if constexpr (late_loads) return;
#pragma unroll
  for (int c = 0; c < chunks; ++c)
    load_codes<format>(raw, strip, existing, c, is_rope_chunk<format>(warp, c), lane);
}

// Sums over the warp's dims of all heads and slots, to the warp's place in every group of 8 heads.
// Lane (g, t) holds slots 2t and 2t + 1 of head g; rows of n-tiles are swizzled for the readers.
// Keys are decoded on the way: each k-tile just before its first use, so that one's latency covers
// the other's, or the whole tile first.
template <int format, bool rope, bool huge_scales, typename Request>
__device__ __forceinline__ void score_tile(const Queries& queries, RawTile& raw, const Strip& strip,
                                           u32 existing, KeyFragments& keys,
                                           uint4 (&ahead)[queries_ahead], u32 scores, int warp,
                                           int lane, const Request& request_next) {
  ChunkScales scales;
  const auto decode = [&](int j) {
    const int c = j / k_tiles_per_chunk;
    const bool is_rope = rope && c == chunks - 1;
    if (j % k_tiles_per_chunk == 0) {
      if (late_loads) load_codes<format>(raw, strip, existing, c, is_rope, lane);
      if (late_loads && c == chunks - 1) request_next();
      chunk_scales<format>(scales, raw, c, warp, lane % 4);
    }
    decode_k_tile<format, huge_scales>(keys, raw, scales, c, j % k_tiles_per_chunk, is_rope, warp,
                                       lane % 4);
  };
  if constexpr (!decode_among_products) {
#pragma unroll
    for (int j = 0; j < k_tiles; ++j) decode(j);
  }
#pragma unroll
  for (int first = 0; first < m_tiles; first += m_tiles_at_once) {
    // Two chains where there are few accumulators: each mma waits for the one before it.
    constexpr int chains = n_tiles < 4 ? 2 : 1;
    float chain_sums[chains][m_tiles_at_once][n_tiles][4] = {};
#pragma unroll
    for (int j = 0; j < k_tiles; ++j) {
      if (decode_among_products && first == 0) decode(j);
#pragma unroll
      for (int m = 0; m < m_tiles_at_once; ++m) {
        const int step = first * k_tiles + j * m_tiles_at_once + m;
        const uint4 query = ahead[step % queries_ahead];
#pragma unroll
        for (int i = 0; i < n_tiles; ++i)
          mma_bf16(chain_sums[j % chains][m][i], query, keys[i][j][0], keys[i][j][1]);
        if (step + queries_ahead < query_steps)
          ahead[step % queries_ahead] = query_of_step(queries, step + queries_ahead);
      }
    }
    float(&sums)[m_tiles_at_once][n_tiles][4] = chain_sums[0];
    if constexpr (chains == 2) {
#pragma unroll
      for (int m = 0; m < m_tiles_at_once; ++m) {
#pragma unroll
        for (int i = 0; i < n_tiles; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e)
            sums[m][i][e] = __fadd_rn(sums[m][i][e], chain_sums[1][m][i][e]);
        }
      }
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

template <int format, typename Request>
__device__ __forceinline__ void score_tile(const Queries& queries, RawTile& raw, const Strip& strip,
                                           u32 existing, KeyFragments& keys,
                                           uint4 (&ahead)[queries_ahead], u32 scores, int warp,
                                           int lane, const Request& request_next) {
  const bool huge_scales = has_huge_scales<format>(raw);
  const bool rope = is_rope_chunk<format>(warp, chunks - 1);
  if (huge_scales && rope) {
    score_tile<format, true, true>(queries, raw, strip, existing, keys, ahead, scores, warp, lane,
                                   request_next);
  } else if (huge_scales) {
    score_tile<format, false, true>(queries, raw, strip, existing, keys, ahead, scores, warp, lane,
                                    request_next);
  } else if (rope) {
    score_tile<format, true, false>(queries, raw, strip, existing, keys, ahead, scores, warp, lane,
                                    request_next);
  } else {
    score_tile<format, false, false>(queries, raw, strip, existing, keys, ahead, scores, warp, lane,
                                     request_next);
  }
}

// The head of a lane and where its scores and probabilities stand.
struct Share {
  int head;                // of the CTA
  int part;                // of the head's n-tiles
  u32 scores[part_tiles];  // shared addresses
  u32 probabilities;
};

__device__ __forceinline__ int head_of_lane(int warp, int lane) {
  return warp * heads_per_warp + lane / lanes_per_head;
}

__device__ __forceinline__ Share share_of(u32 scores, u32 probabilities, int warp, int lane) {
  Share share;
  share.head = head_of_lane(warp, lane);
  share.part = lane % lanes_per_head / 4;
  const int group = share.head / 8;
  const int fragment_lane = share.head % 8 * 4 + lane % 4;
#pragma unroll
  for (int v = 0; v < part_tiles; ++v) {
    const int i = share.part * part_tiles + v;
    share.scores[v] = scores + group * warps * score_source_bytes + i * score_row_bytes +
                      (fragment_lane ^ swizzle * i) * 8;
  }
  share.probabilities =
      probabilities + (group / 2 * value_tiles * warp_lanes + fragment_lane) * 16 + group % 2 * 4;
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

__device__ __forceinline__ float largest_of_head(float value, int lane) {
  if constexpr (heads_per_warp == 2) {
    // Two steps of the whole warp instead of four one after the other.
    const bool is_upper = lane >= lanes_per_head;
    const float lower_head = largest_of_warp(is_upper ? minus_infinity() : value);
    const float upper_head = largest_of_warp(is_upper ? value : minus_infinity());
    return is_upper ? upper_head : lower_head;
  }
#pragma unroll
  for (int step = 1; step < lanes_per_head; step *= 2)
    value = fmaxf(value, __shfl_xor_sync(all_lanes, value, step));
  return value;
}

// Reference and probabilities of the lane's share. Returns the factor for what was summed so far.
__device__ __forceinline__ float softmax_tile(const Share& share, Scores& s, u32 existing,
                                              int exponent, int lane, SoftmaxState& state,
                                              KeyFragments& keys) {
  const u32 mine = existing >> (2 * (lane % 4) + 8 * part_tiles * share.part);
  float largest = minus_infinity();
#pragma unroll
  for (int v = 0; v < part_tiles; ++v) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      s[v][e] = (mine >> (8 * v + e) & 1) != 0 ? s[v][e] : minus_infinity();
      largest = fmaxf(largest, s[v][e]);
    }
  }
  constexpr float fp4_unit = static_cast<float>(1 << unit_exponent<F2>);
  const float scale = exponent == 0 ? score_scale : score_scale * fp4_unit;
  largest = __fmul_rn(largest, scale);

  // Most tiles raise no reference by as much, and then the lanes need not agree on a maximum.
  float reference = state.reference;
  float factor = 1.0f;
  if (__any_sync(all_lanes, largest > __fadd_rn(reference, slack))) {
    largest = largest_of_head(largest, lane);
    if (largest > __fadd_rn(reference, slack)) {
      factor = exp2_approx(__fsub_rn(reference, largest));
      reference = largest;
    }
    state.reference = reference;
  }
  transpose_keys(keys, k_tiles / 2, k_tiles);
  const float shift =
      static_cast<float>(exponent) - (reference == minus_infinity() ? 0.0f : reference);
  float sum = 0.0f;
  u32 high[part_tiles];
  u32 low[part_tiles];
#pragma unroll
  for (int v = 0; v < part_tiles; ++v) {
    const float p0 = exp2_approx(__fmaf_rn(s[v][0], scale, shift));
    const float p1 = exp2_approx(__fmaf_rn(s[v][1], scale, shift));
    sum = __fadd_rn(sum, __fadd_rn(p0, p1));
    high[v] = to_bf16x2(p0, p1);
    low[v] = to_bf16x2(__fsub_rn(p0, low_bf16(high[v])), __fsub_rn(p1, high_bf16(high[v])));
  }
  state.sum = __fmaf_rn(sum, exponent == 0 ? 1.0f : 1.0f / fp4_unit, __fmul_rn(state.sum, factor));
  store_probabilities(share, share.probabilities, high);
  if constexpr (probability_terms == 2)
    store_probabilities(share, share.probabilities + probability_term_bytes, low);
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

__device__ __forceinline__ void add_values(Output& output, const KeyFragments& values,
                                           const Probabilities& p) {
#pragma unroll
  for (int k = 0; k < value_tiles; ++k) {
#pragma unroll
    for (int j = 0; j < k_tiles; ++j) {
#pragma unroll
      for (int o = 0; o < octets; ++o) {
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
          for (int term = 0; term < probability_terms; ++term)
            mma_bf16(output[m][j][o], p[term][m][k], values[2 * k][j][o], values[2 * k + 1][j][o]);
        }
      }
    }
  }
}

// Columns of a split, as layout.cuh has them, of `count` k-tiles of the warp from first_k_tile on.
template <int count>
__device__ __forceinline__ void store_columns(PartialColumns to,
                                              const float (&output)[m_tiles][count][octets][4],
                                              int first_k_tile, int warp, int lane) {
  static_assert(count % 2 == 0, "a piece is of two k-tiles");
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (2 * m + half >= head_groups) continue;
#pragma unroll
      for (int j = 0; j < count; j += 2) {
        u32 halves[4];  // of columns 2i and 2i + 1
        u32 bytes[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const u32 odd = __float_as_uint(output[m][j + i / 2][0][2 * half + i % 2]);
          const u32 even = __float_as_uint(output[m][j + i / 2][1][2 * half + i % 2]);
          halves[i] = __byte_perm(even, odd, 0x7632);
          bytes[i] = __byte_perm(even, odd, 0x0051);
        }
        const int piece = (warp * k_tiles + first_k_tile + j) / 2;
        const PartialColumns part = to + ((m * pieces + piece) * 64 + half * warp_lanes + lane);
        store_16(part.upper, {halves[0], halves[1], halves[2], halves[3]});
        *part.lower = {__byte_perm(bytes[0], bytes[1], 0x5410),
                       __byte_perm(bytes[2], bytes[3], 0x5410)};
      }
    }
  }
}

// Final rows of `count` k-tiles of the warp from first_k_tile on. A lane has four neighbouring
// columns of a head in each k-tile.
template <int count>
__device__ __forceinline__ void store_output(const Args& args,
                                             const float (&output)[m_tiles][count][octets][4],
                                             i64 row, int head_block,
                                             const float (&inverse)[m_tiles][2], int first_k_tile,
                                             int warp, int lane) {
  constexpr int run = count < k_tiles_per_chunk ? count : k_tiles_per_chunk;
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = head_block * heads_per_cta + 16 * m + 8 * half + g;
      if (2 * m + half >= head_groups || head >= heads) continue;
#pragma unroll
      for (int first = 0; first < count; first += run) {
        u32 pairs[2 * run];
#pragma unroll
        for (int j = 0; j < run; ++j) {
          const float(&odd)[4] = output[m][first + j][0];
          const float(&even)[4] = output[m][first + j][1];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            pairs[2 * j + e] = to_bf16x2(__fmul_rn(even[2 * half + e], inverse[m][half]),
                                         __fmul_rn(odd[2 * half + e], inverse[m][half]));
          }
        }
        const int k_tile = first_k_tile + first;
        const int chunk = k_tile / k_tiles_per_chunk;
        const int in_chunk = lane_dims * t + k_tile % k_tiles_per_chunk * 4;
        if (inverse_rope && warp == warps - 1 && chunk == chunks - 1) {
          const float* table = rope_of_row(args, row);
          if (table != nullptr) {
#pragma unroll
            for (int i = 0; i < 2 * run; ++i) {
              pairs[i] = rotate_back(pairs[i], table[in_chunk / 2 + i],
                                     table[rope_dims / 2 + in_chunk / 2 + i]);
            }
          }
        }
        u16* to = args.out + row * args.out_stride0 + head * args.out_stride1 +
                  warp * dims_per_warp + chunk * chunk_dims + in_chunk;
        if constexpr (run == 1) {
          *reinterpret_cast<uint2*>(to) = {pairs[0], pairs[1]};
        } else {
#pragma unroll
          for (int i = 0; i < 2 * run; i += 4)
            reinterpret_cast<uint4*>(to)[i / 4] = {pairs[i], pairs[i + 1], pairs[i + 2],
                                                   pairs[i + 3]};
        }
      }
    }
  }
}
