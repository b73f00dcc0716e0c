// Attention of each row over two lists of cache slots (ops.md B14, B14.1): one 512-wide key per
// slot, which is also its value.
//   s[h, n] = 512^-0.5 * dot(q[t, h], k_n)         m = max s     p = exp(s - m), 0 if invalid
//   out[t, h] = (sum p * k_n) / (sum p + exp(sink[h] - m))
// grid  (num_rows * head_blocks, splits)   block (32 * warps * groups)
// shared  sinks, states | queries | of each group: places, masks, stages of raw codes, scores,
//         probabilities, factors; at the end all but the first are room to join the groups in
//
// A CTA takes one row, heads_per_cta heads and one split of the columns of both lists. Each of its
// groups of warps takes a part of the split, in tiles of tile_slots, and goes its own pace. A warp
// owns dims_per_warp of the 512 dims, as dims of the score and as columns of the output, and so
// decodes its part of each key into registers once and for itself. Step i of a group:
//   the codes of tile i go to registers, those of a later tile are requested
//   they are decoded for the scores of tile i: a sum over the warp's dims for all heads and slots,
//   to shared memory
//   barrier; each warp takes heads_per_warp heads: scores summed over the warps, softmax,
//   probabilities to shared memory
//   barrier; where a maximum rose by much, the output is rescaled; the values are added
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
constexpr int place_tiles = 2 * warps;  // a block of tiles has one for each warp

constexpr int sinks_at = 0;
constexpr int states_at = sinks_at + heads_per_cta * 4;
constexpr int queries_at = states_at + groups * heads_per_cta * 8;
constexpr int groups_at = queries_at + query_bytes;
// Of a group.
constexpr int places_at = 0;
constexpr int masks_at = places_at + place_tiles * tile_slots * 16;
constexpr int factors_at = masks_at + place_tiles * 4;
constexpr int stages_at = factors_at + heads_per_cta * 4;
constexpr int scores_at = stages_at + stages * stage_bytes;
constexpr int probabilities_at = scores_at + score_bytes;
constexpr int group_bytes = probabilities_at + probability_bytes;
// The launch gives the larger of groups_at + groups * group_bytes and queries_at +
// (groups - 1) * heads_per_cta * 2048 bytes.

// k-tiles of the warp's output that its group writes once the groups are joined.
constexpr int joined_k_tiles = k_tiles / groups;
static_assert(joined_k_tiles >= 1, "more groups than k-tiles");

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

// A fragments in the order of layout.cuh; missing heads are zero.
struct Queries {
  uint4 in_registers[m_tiles][query_tiles_in_registers > 0 ? query_tiles_in_registers : 1];
  u32 in_shared;  // of this lane
};

// What a lane reads of q: [m-tile][chunk][upper or lower head][half of its 16 dims].
using RawQueries = uint4[m_tiles][chunks][2][2];

// With every query in registers each group loads them, else they share the work.
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
        if (head < heads && loads_queries(group, m, c)) {
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

// --- tiles

// The tiles of a split: columns of the window list, then of the compressed list.
struct Tiles {
  int first_window;
  int num_window;
  int first_compressed;
  int count;
};

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

__device__ __forceinline__ Share share_of(u32 shared, int warp, int lane) {
  Share share;
  share.head = head_of_lane(warp, lane);
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
__device__ __forceinline__ float softmax_tile(const Share& share, Scores& s, u32 existing,
                                              int exponent, int lane, SoftmaxState& state,
                                              KeyFragments& keys) {
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
  constexpr float fp4_unit = static_cast<float>(1 << unit_exponent<F2>);
  const float scale = exponent == 0 ? score_scale : score_scale * fp4_unit;
  largest = __fmul_rn(largest, scale);

  // Most tiles raise no reference by as much, and then the lanes need not agree on a maximum.
  float reference = state.reference;
  float factor = 1.0f;
  if (__any_sync(all_lanes, largest > __fadd_rn(reference, slack))) {
#pragma unroll
    for (int step = 1; step < lanes_per_head; step *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, step));
    if (largest > __fadd_rn(reference, slack)) {
      factor = exp2_approx(__fsub_rn(reference, largest));
      reference = largest;
    }
    state.reference = reference;
  }
  transpose_keys(keys, k_tiles / 2, k_tiles);
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

// --- joining the groups

// Each group gets the k-tiles that it writes, and adds those of all groups in order. Weights of the
// lane's heads: upper and lower of each m-tile.
using JoinWeights = float[groups][m_tiles][2];

__device__ __forceinline__ SoftmaxState join_states(u32 states, int head,
                                                    float (&weights)[groups]) {
  SoftmaxState of_group[groups];
  float reference = minus_infinity;
#pragma unroll
  for (int group = 0; group < groups; ++group) {
    const uint2 words = load_shared_8(states + (group * heads_per_cta + head) * 8);
    of_group[group] = {__uint_as_float(words.x), __uint_as_float(words.y)};
    reference = fmaxf(reference, of_group[group].reference);
  }
  const float base = reference == minus_infinity ? 0.0f : reference;
  float sum = 0.0f;
#pragma unroll
  for (int group = 0; group < groups; ++group) {
    weights[group] = groups == 1 ? 1.0f : exp2_approx(__fsub_rn(of_group[group].reference, base));
    sum = __fmaf_rn(weights[group], of_group[group].sum, sum);
  }
  return {reference, sum};
}

__device__ __forceinline__ u32 exchange_place(u32 shared, int owner, int source, int warp,
                                              int lane) {
  const int other = source < owner ? source : source - 1;
  return shared +
         ((((owner * (groups - 1) + other) * warps + warp) * m_tiles * joined_k_tiles * octets) *
              warp_lanes +
          lane) *
             16;
}

using JoinedOutput = float[m_tiles][joined_k_tiles][octets][4];

__device__ __forceinline__ void send_output(const Output& output, u32 shared, int group, int warp,
                                            int lane) {
#pragma unroll
  for (int owner = 0; owner < groups; ++owner) {
    if (owner == group) continue;
    const u32 to = exchange_place(shared, owner, group, warp, lane);
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int j = 0; j < joined_k_tiles; ++j) {
#pragma unroll
        for (int o = 0; o < octets; ++o) {
          const float(&c)[4] = output[m][owner * joined_k_tiles + j][o];
          store_shared_16(to + ((m * joined_k_tiles + j) * octets + o) * warp_lanes * 16,
                          {__float_as_uint(c[0]), __float_as_uint(c[1]), __float_as_uint(c[2]),
                           __float_as_uint(c[3])});
        }
      }
    }
  }
}

__device__ __forceinline__ void join_output(const Output& output, const JoinWeights& weights,
                                            u32 shared, int group, int warp, int lane,
                                            JoinedOutput& joined) {
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int j = 0; j < joined_k_tiles; ++j) {
#pragma unroll
      for (int o = 0; o < octets; ++o) {
        float mine[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          mine[e] = output[m][j][o][e];
#pragma unroll
          for (int owner = 1; owner < groups; ++owner)
            mine[e] = group == owner ? output[m][owner * joined_k_tiles + j][o][e] : mine[e];
          joined[m][j][o][e] = 0.0f;
        }
#pragma unroll
        for (int source = 0; source < groups; ++source) {
          float part[4] = {mine[0], mine[1], mine[2], mine[3]};
          if (source != group) {
            const uint4 sent =
                load_shared_16(exchange_place(shared, group, source, warp, lane) +
                               ((m * joined_k_tiles + j) * octets + o) * warp_lanes * 16);
            part[0] = __uint_as_float(sent.x), part[1] = __uint_as_float(sent.y);
            part[2] = __uint_as_float(sent.z), part[3] = __uint_as_float(sent.w);
          }
#pragma unroll
          for (int e = 0; e < 4; ++e)
            joined[m][j][o][e] = __fmaf_rn(weights[source][m][e / 2], part[e], joined[m][j][o][e]);
        }
      }
    }
  }
}

// Final rows. A lane has four neighbouring columns of a head in each k-tile.
__device__ __forceinline__ void store_output(const Args& args, const JoinedOutput& output, i64 row,
                                             int head_block, const float (&inverse)[m_tiles][2],
                                             int group, int warp, int lane) {
  constexpr int run = joined_k_tiles < k_tiles_per_chunk ? joined_k_tiles : k_tiles_per_chunk;
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = head_block * heads_per_cta + 16 * m + 8 * half + g;
      if (2 * m + half >= head_groups || head >= heads) continue;
#pragma unroll
      for (int first = 0; first < joined_k_tiles; first += run) {
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
        const int k_tile = group * joined_k_tiles + first;
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

extern "C" __global__ void __launch_bounds__(32 * warps * groups, ctas_per_sm)
    sparse_mla_decode(const __grid_constant__ Args args) {
  extern __shared__ uint4 shared_memory[];
  const u32 shared = shared_address(shared_memory);
  const int warp_of_cta = __shfl_sync(all_lanes, warp_id(), 0);
  const int group = groups == 1 ? 0 : warp_of_cta / warps;
  int warp = groups == 1 ? warp_of_cta : warp_of_cta % warps;
  int lane = lane_id();
  const int head_block = static_cast<int>(blockIdx.x % head_blocks);
  const int splits = is_split ? static_cast<int>(gridDim.y) : 1;
  const int split = is_split ? static_cast<int>(blockIdx.y) : 0;
  const i64 row = blockIdx.x / head_blocks;
  u32 mine = shared + groups_at + group * group_bytes;  // the group's

  // Columns of a part are fixed by the widths, so that slots can be read before lengths are known.
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
  const int parts_of_row = splits * groups;
  const int part = split * groups + group;
  const int window_tiles = (window.len + tile_slots - 1) / tile_slots;
  const int all_tiles = window_tiles + (compressed.len + tile_slots - 1) / tile_slots;
  // all_tiles * parts_before / parts_of_row, in 32 bits.
  const auto tiles_before = [&](int parts_before) {
    const u32 whole = static_cast<u32>(all_tiles) / parts_of_row;
    const u32 rest = static_cast<u32>(all_tiles) % parts_of_row;
    return static_cast<int>(whole * parts_before + rest * parts_before / parts_of_row);
  };
  const int begin = tiles_before(part);
  const int end = tiles_before(part + 1);

  // The warp's tile of the first block, as long as the lists are full.
  const auto guessed_slot = [&](int tile) {
    const bool in_window = !has_compressed || tile < window_tiles;
    return slot_of_tile(choose(in_window, window, compressed),
                        in_window ? tile : tile - window_tiles, lane);
  };
  i32 first_slot = guessed_slot(begin);
  i32 slot = guessed_slot(begin + warp);
  const i32 lens[2] = {args.window_lens[row], has_compressed ? args.compressed_lens[row] : 0};
  // Before the cache rows: loads return in order, and these come from L2.
  RawQueries raw;
  request_queries(args, row, head_block, group, warp, lane, raw);
  float sink = minus_infinity;
  if (!is_split && static_cast<int>(threadIdx.x) < heads_per_cta)
    sink = load_sink(args, head_block * heads_per_cta + static_cast<int>(threadIdx.x));

  Tiles tiles;
  tiles.first_window = min(begin, window_tiles);
  tiles.first_compressed = max(begin, window_tiles) - window_tiles;
  window.len = min(max(lens[0], 0), window.len);
  if constexpr (has_compressed) compressed.len = min(max(lens[1], 0), compressed.len);
  const int window_used = (window.len + tile_slots - 1) / tile_slots;
  const int compressed_used = (compressed.len + tile_slots - 1) / tile_slots;
  tiles.num_window = max(min(min(end, window_tiles), window_used) - tiles.first_window, 0);
  tiles.count =
      tiles.num_window + max(min(end - window_tiles, compressed_used) - tiles.first_compressed, 0);

  const auto is_window = [&](int i) { return !has_compressed || i < tiles.num_window; };
  const auto has_window_format = [&](int i) {
    return window_format == compressed_format || is_window(i);
  };
  const auto tile_in_list = [&](int i) {
    return is_window(i) ? tiles.first_window + i : tiles.first_compressed + i - tiles.num_window;
  };
  const auto load_slot = [&](int i) -> i32 {
    return i < tiles.count
               ? slot_of_tile(choose(is_window(i), window, compressed), tile_in_list(i), lane)
               : -1;
  };
  // Slots of tile i, guessed as those of that tile of the split when lengths were not known.
  const auto checked_slot = [&](i32 guess, int i, int guessed_tile) {
    const bool in_window = is_window(i);
    const int tile = tile_in_list(i);
    if (in_window != (!has_compressed || guessed_tile < window_tiles) ||
        tile != (in_window ? guessed_tile : guessed_tile - window_tiles))
      return load_slot(i);
    const bool counts = static_cast<i64>(tile) * tile_slots + lane % tile_slots <
                        (in_window ? window.len : compressed.len);
    return counts ? guess : -1;
  };
  // Places of the warp's tile of a block; slots of the next block.
  const void* readable = args.q + row * args.q_stride0;  // at least a head
  const auto place_tile = [&](int i) {
    if (i < tiles.count) {
      const bool in_window = is_window(i);
      List list = choose(in_window, window, compressed);
      if constexpr (short_of_registers)
        asm volatile("" : "+r"(list.page_size), "+r"(list.num_slots));
      const u32 at = static_cast<u32>(i) % place_tiles;
      const Place place = place_of(
          list, in_window ? row_bytes<window_format> : row_bytes<compressed_format>,
          in_window ? scale_bytes<window_format> : scale_bytes<compressed_format>, slot, readable);
      const u32 exist = __ballot_sync(all_lanes, place.exists);
      if (tile_slots == warp_lanes || lane < tile_slots)
        store_place(mine + places_at + (at * tile_slots + lane) * 16, place);
      if (lane == 0) store_shared_4(mine + masks_at + at * 4, exist);
    }
    slot = load_slot(i + warps);
  };
  const auto request_from = [&](u32 places, int i, u32 stage) {
    if (i < tiles.count) {
      const Strip strip = strip_of(stage, warp);
      if (has_window_format(i)) {
        request_tile<window_format>(places, strip, warp, lane);
      } else if constexpr (has_compressed) {
        request_tile<compressed_format>(places, strip, warp, lane);
      }
    }
    copy_async_commit();
  };

  const auto request = [&](int i, u32 stage) {
    request_from(mine + places_at + static_cast<u32>(i) % place_tiles * tile_slots * 16, i, stage);
  };

  // The first tile's places are looked up by each warp for itself, in room of its scores.
  if (tiles.count > 0) {
    first_slot = checked_slot(first_slot, 0, begin);
    const bool in_window = is_window(0);
    const Place place =
        place_of(choose(in_window, window, compressed),
                 in_window ? row_bytes<window_format> : row_bytes<compressed_format>,
                 in_window ? scale_bytes<window_format> : scale_bytes<compressed_format>,
                 first_slot, readable);
    const u32 places = mine + scores_at + warp * score_source_bytes;
    if (tile_slots == warp_lanes || lane < tile_slots) store_place(places + lane * 16, place);
    __syncwarp();
    request_from(places, 0, mine + stages_at);
    __syncwarp();
  } else {
    copy_async_commit();
  }
  if (warp < tiles.count) slot = checked_slot(slot, warp, begin + warp);
  place_tile(warp);
  if constexpr (stages > 1) barrier(1 + group, 32 * warps);

  Queries queries;
  Output output = {};
  SoftmaxState state = {minus_infinity, 0.0f};
  u32 stage = mine + stages_at;

#pragma unroll 1
  for (int i = 1; i < stages; ++i) request(i, mine + stages_at + i * stage_bytes);
  keep_queries(shared + queries_at, group, warp, lane, raw, queries);
  if (!is_split && static_cast<int>(threadIdx.x) < heads_per_cta)
    store_shared_float(shared + sinks_at + static_cast<int>(threadIdx.x) * 4, sink);
  if constexpr (head_groups * 8 < heads_per_cta) {
    // Rows of heads that do not exist.
    for (int at = (warp * warp_lanes + lane) * 16; at < probability_bytes; at += 512 * warps)
      store_shared_16(mine + probabilities_at + at, {0, 0, 0, 0});
  }
  __syncthreads();

  for (int i = 0; i < tiles.count; ++i) {
    // Hides that these are the same in each step.
    if constexpr (short_of_registers) asm volatile("" : "+r"(lane), "+r"(mine), "+r"(warp));
    if (static_cast<u32>(i) % warps == 0) place_tile(i + warps + warp);
    const Strip strip = strip_of(stage, warp);
    copy_async_wait<stages - 1>();
    __syncwarp();
    const u32 existing = load_shared_4(mine + masks_at + static_cast<u32>(i) % place_tiles * 4);
    RawTile raw;
    if (has_window_format(i)) {
      load_early<window_format>(raw, strip, existing, warp, lane);
    } else if constexpr (has_compressed) {
      load_early<compressed_format>(raw, strip, existing, warp, lane);
    }
    queries.in_shared = query_place(shared + queries_at, warp, lane);
    uint4 queries_at_hand[queries_ahead];
    start_queries(queries, queries_at_hand);
    const u32 this_stage = stage;
    stage = stage + stage_bytes == mine + scores_at ? mine + stages_at : stage + stage_bytes;
    const auto request_next = [&] {
      __syncwarp();  // codes have been read
      request(i + stages, this_stage);
    };
    if constexpr (!late_loads) request_next();

    KeyFragments keys;
    if (has_window_format(i)) {
      score_tile<window_format>(queries, raw, strip, existing, keys, queries_at_hand,
                                mine + scores_at, warp, lane, request_next);
    } else if constexpr (has_compressed) {
      score_tile<compressed_format>(queries, raw, strip, existing, keys, queries_at_hand,
                                    mine + scores_at, warp, lane, request_next);
    }
    barrier(1 + group, 32 * warps);

    float factor = 1.0f;
    const Share share = share_of(mine, warp, lane);
    transpose_keys(keys, 0, k_tiles / 2);
    if (head_groups * 8 == heads_per_cta || share.head < head_groups * 8) {
      const int exponent =
          is_window(i) ? unit_exponent<window_format> : unit_exponent<compressed_format>;
      Scores s;
      sum_scores(share, s);
      factor = softmax_tile(share, s, existing, exponent, lane, state, keys);
      if (lane % lanes_per_head == 0)
        store_shared_float(mine + factors_at + share.head * 4, factor);
    } else {
      transpose_keys(keys, k_tiles / 2, k_tiles);
    }
    if (barrier_or(1 + group, 32 * warps, factor != 1.0f) && i > 0)
      rescale(output, mine + factors_at, lane);
    Probabilities p;
    load_probabilities(p, mine + probabilities_at, lane);
    add_values(output, keys, p);
  }

#pragma unroll
  for (int step_lanes = 1; step_lanes < lanes_per_head; step_lanes *= 2)
    state.sum = __fadd_rn(state.sum, __shfl_xor_sync(all_lanes, state.sum, step_lanes));
  const bool speaks = lane % lanes_per_head == 0;
  const int own_head = head_of_lane(warp, lane);

  JoinedOutput joined;
  JoinWeights weights;
  SoftmaxState joined_states[m_tiles][2];
  if (speaks) {
    store_shared_8(shared + states_at + (group * heads_per_cta + own_head) * 8,
                   {__float_as_uint(state.reference), __float_as_uint(state.sum)});
    if (is_split && groups == 1)
      partial_state(args, row, splits, split, head_block)[own_head] = state;
  }
  __syncthreads();
  if constexpr (groups > 1) send_output(output, shared + queries_at, group, warp, lane);
#pragma unroll
  for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float of_head[groups];
      joined_states[m][half] =
          join_states(shared + states_at, 16 * m + 8 * half + lane / 4, of_head);
#pragma unroll
      for (int source = 0; source < groups; ++source) weights[source][m][half] = of_head[source];
    }
  }
  if constexpr (groups > 1) {
    __syncthreads();
    join_output(output, weights, shared + queries_at, group, warp, lane, joined);
  }
  if constexpr (groups == 1) {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int j = 0; j < k_tiles; ++j) {
#pragma unroll
        for (int o = 0; o < octets; ++o) {
#pragma unroll
          for (int e = 0; e < 4; ++e) joined[m][j][o][e] = output[m][j][o][e];
        }
      }
    }
  }

  if constexpr (is_split) {
    if (groups > 1 && group == 0 && warp == 0 && lane % 4 == 0) {
#pragma unroll
      for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          partial_state(args, row, splits, split, head_block)[16 * m + 8 * half + lane / 4] =
              joined_states[m][half];
      }
    }
    uint4* to = partial_fragments(args, row, splits, split, head_block, warp) +
                group * joined_k_tiles * warp_lanes + lane;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
      const float upper = inverse_sum(joined_states[m][0]);
      const float lower = inverse_sum(joined_states[m][1]);
#pragma unroll
      for (int j = 0; j < joined_k_tiles; ++j) {
        const float(&odd)[4] = joined[m][j][0];
        const float(&even)[4] = joined[m][j][1];
        to[(m * k_tiles + j) * warp_lanes] = {
            to_bf16x2(__fmul_rn(odd[0], upper), __fmul_rn(odd[1], upper)),
            to_bf16x2(__fmul_rn(odd[2], lower), __fmul_rn(odd[3], lower)),
            to_bf16x2(__fmul_rn(even[0], upper), __fmul_rn(even[1], upper)),
            to_bf16x2(__fmul_rn(even[2], lower), __fmul_rn(even[3], lower))};
      }
    }
  } else {
    float inverse[m_tiles][2];
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head_in_block = 16 * m + 8 * half + lane / 4;
        inverse[m][half] = inverse_denominator(
            load_shared_float(shared + sinks_at + head_in_block * 4), joined_states[m][half]);
        if (group == 0 && warp == 0 && lane % 4 == 0)
          store_lse(args, row, head_block * heads_per_cta + head_in_block, joined_states[m][half]);
      }
    }
    store_output(args, joined, row, head_block, inverse, group, warp, lane);
  }
}
