// Attention of each row over two lists of cache slots (ops.md B14, B14.1): one 512-wide key per
// slot, which is also its value.
//   s[h, n] = 512^-0.5 * dot(q[t, h], k_n)         m = max s     p = exp(s - m), 0 if invalid
//   out[t, h] = (sum p * k_n) / (sum p + exp(sink[h] - m))
// grid  (num_rows * head_blocks, splits)   block (32 * warps * groups)
// shared  sinks, states | queries | of each group: places, masks, factors, stages of raw codes,
//         scores, probabilities; at the end all but the first are room to join the groups in
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
#include "templates/sparse_mla_decode/tile.cuh"

// Shared memory.
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

// --- tiles

// The tiles of a split: columns of the window list, then of the compressed list.
struct Tiles {
  int first_window;
  int num_window;
  int first_compressed;
  int count;
};

// --- joining the groups

// Each group gets the k-tiles that it writes, and adds those of all groups in order. Weights of the
// lane's heads: upper and lower of each m-tile.
using JoinWeights = float[groups][m_tiles][2];

__device__ __forceinline__ SoftmaxState join_states(u32 states, int head,
                                                    float (&weights)[groups]) {
  SoftmaxState of_group[groups];
  float reference = minus_infinity();
#pragma unroll
  for (int group = 0; group < groups; ++group) {
    const uint2 words = load_shared_8(states + (group * heads_per_cta + head) * 8);
    of_group[group] = {__uint_as_float(words.x), __uint_as_float(words.y)};
    reference = fmaxf(reference, of_group[group].reference);
  }
  const float base = reference == minus_infinity() ? 0.0f : reference;
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
  float sink = minus_infinity();
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
      const u32 exist = __ballot_sync(all_lanes, place.exists) & all_slots;
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
  SoftmaxState state = {minus_infinity(), 0.0f};
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
    const Share share = share_of(mine + scores_at, mine + probabilities_at, warp, lane);
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
    if constexpr (is_split && groups == 1) {
      states_of_head(args, row, splits, head_block * heads_per_cta + own_head)[split] = state;
    }
  }
  if constexpr (is_split && groups == 1) {
    store_columns(partial_columns(args, row, splits, split, head_block), output, 0, warp, lane);
    return;
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
    if (group == 0 && warp == 0 && lane % 4 == 0) {
#pragma unroll
      for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int head = 16 * m + 8 * half + lane / 4;
          states_of_head(args, row, splits, head_block * heads_per_cta + head)[split] =
              joined_states[m][half];
        }
      }
    }
    store_columns(partial_columns(args, row, splits, split, head_block), joined,
                  group * joined_k_tiles, warp, lane);
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
    store_output(args, joined, row, head_block, inverse, group * joined_k_tiles, warp, lane);
  }
}
