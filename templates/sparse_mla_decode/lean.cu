// Attention over the slots of one split, as in kernel.cu, for parts of few tiles: at one row a CTA
// has one, each instruction runs once, and what counts is how few stand between the launch and the
// first request, and between the last key and the end.
// grid  (num_rows * head_blocks, splits)   block (32 * warps)
// shared  of each warp: places of a tile | factors, sinks, inverses | raw codes of tiles | scores |
//         probabilities
//
// Split s takes the tiles s, s + splits, ...: equal shares in a row would cost divisions before the
// first load. Each warp looks up its places by itself, so that no barrier stands before the keys.
#include "kiln_args.h"
#include "kiln_constants.h"
#include "templates/sparse_mla_decode/tile.cuh"

static_assert(groups == 1 && stages == 1 && query_tiles_in_registers == k_tiles && !late_loads,
              "no room for anything else");

// Shared memory.
constexpr int place_bytes = tile_slots * 16;  // of a warp
constexpr int factors_at = warps * place_bytes;
constexpr int sinks_at = factors_at + heads_per_cta * 4;
constexpr int inverses_at = sinks_at + heads_per_cta * 4;
constexpr int stages_at = inverses_at + heads_per_cta * 4;
constexpr int scores_at = stages_at + stages * stage_bytes;
constexpr int probabilities_at = scores_at + score_bytes;
// The launch gives probabilities_at + probability_bytes.

// What is read of a list for a tile, by lane.
struct Columns {
  i32 column;
  i32 slot;
  i32 len;
};

__device__ __forceinline__ Columns load_columns(const i32* slots, const i32* lens, i64 row,
                                                i64 stride, i64 width, u32 tile, int lane) {
  const i32 column = static_cast<i32>(tile) * tile_slots + lane % tile_slots;
  return {column, column < static_cast<i32>(width) ? slots[row * stride + column] : -1, lens[row]};
}

// Returns which slots of the tile exist.
template <int format>
__device__ __forceinline__ u32 request_columns(const List& list, const Columns& columns,
                                               const void* readable, u32 places, const Strip& strip,
                                               int warp, int lane) {
  const i32 slot = columns.column < columns.len ? columns.slot : -1;
  const Place place = place_of(list, row_bytes<format>, scale_bytes<format>, slot, readable);
  if (tile_slots == warp_lanes || lane < tile_slots) store_place(places + lane * 16, place);
  const u32 existing = __ballot_sync(all_lanes, place.exists) & all_slots;
  __syncwarp();
  request_tile<format, Order::places_first>(places, strip, warp, lane);
  return existing;
}

extern "C" __global__ void __launch_bounds__(32 * warps, ctas_per_sm)
    sparse_mla_decode_lean(const __grid_constant__ Args args) {
  extern __shared__ uint4 shared_memory[];
  const u32 shared = shared_address(shared_memory);
  const int warp = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x / warp_lanes), 0);
  const int lane = static_cast<int>(threadIdx.x % warp_lanes);
  const int head_block = static_cast<int>(blockIdx.x % head_blocks);
  const i64 row = blockIdx.x / head_blocks;
  const u32 splits = gridDim.y;
  const u32 split = blockIdx.y;

  constexpr bool has_compressed = compressed_format != none;
  const u32 window_tiles = (static_cast<u32>(args.window_width) + tile_slots - 1) / tile_slots;
  const u32 compressed_tiles =
      has_compressed ? (static_cast<u32>(args.compressed_width) + tile_slots - 1) / tile_slots : 0;
  const u32 all_tiles = window_tiles + compressed_tiles;
  const auto is_window = [&](u32 tile) { return !has_compressed || tile < window_tiles; };
  const auto has_window_format = [&](u32 tile) {
    return window_format == compressed_format || is_window(tile);
  };
  const auto load_tile = [&](u32 tile) {
    return is_window(tile) ? load_columns(args.window_slots, args.window_lens, row,
                                          args.window_slots_stride, args.window_width, tile, lane)
                           : load_columns(args.compressed_slots, args.compressed_lens, row,
                                          args.compressed_slots_stride, args.compressed_width,
                                          tile - window_tiles, lane);
  };
  const auto request = [&](const Columns& columns, u32 tile, const Strip& strip) {
    const void* readable = args.q + row * args.q_stride0;  // at least a head
    const u32 places = shared + warp * place_bytes;
    u32 existing = 0;
    if (is_window(tile)) {
      const List list{args.window_cache,
                      args.window_cache_stride,
                      static_cast<u32>(args.window_page_size),
                      static_cast<u32>(args.num_window_pages * args.window_page_size),
                      nullptr,
                      0};
      existing = request_columns<window_format>(list, columns, readable, places, strip, warp, lane);
    } else if constexpr (has_compressed) {
      const List list{args.compressed_cache,
                      args.compressed_cache_stride,
                      static_cast<u32>(args.compressed_page_size),
                      static_cast<u32>(args.num_compressed_pages * args.compressed_page_size),
                      nullptr,
                      0};
      existing =
          request_columns<compressed_format>(list, columns, readable, places, strip, warp, lane);
    }
    return existing;
  };

  u32 tile = split;
  Columns columns{};  // of the tile that is requested next
  if (tile < all_tiles) columns = load_tile(tile);
  // Before the cache rows: loads return in order, and these come from L2.
  RawQueries raw_queries;
  request_queries(args, row, head_block, 0, warp, lane, raw_queries);
  const int own_head = head_of_lane(warp, lane);
  const bool speaks = lane % lanes_per_head == 0;
  float sink = minus_infinity();
  if (!is_split && speaks) sink = load_sink(args, head_block * heads_per_cta + own_head);
  const Strip strip = strip_of(shared + stages_at, warp);
  u32 requested = 0;  // slots of the tile under way
  if (tile < all_tiles) requested = request(columns, tile, strip);
  copy_async_commit();
  if (tile + splits < all_tiles) columns = load_tile(tile + splits);

  if constexpr (head_groups * 8 < heads_per_cta) {
    // Rows of heads that do not exist.
    for (int at = (warp * warp_lanes + lane) * 16; at < probability_bytes; at += 512 * warps)
      store_shared_16(shared + probabilities_at + at, {0, 0, 0, 0});
  }
  Queries queries;
  queries.in_shared = 0;
  keep_queries(shared, 0, warp, lane, raw_queries, queries);

  if (!is_split && speaks) store_shared_float(shared + sinks_at + own_head * 4, sink);

  // Formed now, while there is nothing else to do.
  PartialColumns columns_to = {};
  SoftmaxState* state_to = nullptr;
  if constexpr (is_split) {
    columns_to = partial_columns(args, row, splits, split, head_block);
    state_to = states_of_head(args, row, splits, head_block * heads_per_cta + own_head) + split;
    asm volatile("" : "+l"(columns_to.upper), "+l"(columns_to.lower), "+l"(state_to));
  }

  Output output = {};
  SoftmaxState state = {minus_infinity(), 0.0f};
  float sum_of_lanes = 0.0f;
  while (tile < all_tiles) {
    const u32 existing = requested;
    copy_async_wait<0>();
    __syncwarp();
    RawTile raw;
    if (has_window_format(tile)) {
      load_early<window_format>(raw, strip, existing, warp, lane);
    } else if constexpr (has_compressed) {
      load_early<compressed_format>(raw, strip, existing, warp, lane);
    }
    uint4 queries_at_hand[queries_ahead];
    start_queries(queries, queries_at_hand);
    if (tile + splits < all_tiles) {
      __syncwarp();  // codes have been read
      requested = request(columns, tile + splits, strip);
      if (tile + 2 * splits < all_tiles) columns = load_tile(tile + 2 * splits);
    }
    copy_async_commit();
    const auto request_later = [] {};

    KeyFragments keys;
    if (has_window_format(tile)) {
      score_tile<window_format>(queries, raw, strip, existing, keys, queries_at_hand,
                                shared + scores_at, warp, lane, request_later);
    } else if constexpr (has_compressed) {
      score_tile<compressed_format>(queries, raw, strip, existing, keys, queries_at_hand,
                                    shared + scores_at, warp, lane, request_later);
    }
    barrier(1, 32 * warps);

    float factor = 1.0f;
    const Share share = share_of(shared + scores_at, shared + probabilities_at, warp, lane);
    transpose_keys(keys, 0, k_tiles / 2);
    if (head_groups * 8 == heads_per_cta || share.head < head_groups * 8) {
      const int exponent =
          is_window(tile) ? unit_exponent<window_format> : unit_exponent<compressed_format>;
      Scores s;
      sum_scores(share, s);
      factor = softmax_tile(share, s, existing, exponent, lane, state, keys);
      if (lane % lanes_per_head == 0)
        store_shared_float(shared + factors_at + share.head * 4, factor);
    } else {
      transpose_keys(keys, k_tiles / 2, k_tiles);
    }
    if (barrier_or(1, 32 * warps, factor != 1.0f) && tile != split)
      rescale(output, shared + factors_at, lane);
    Probabilities p;
    load_probabilities(p, shared + probabilities_at, lane);
    sum_of_lanes = state.sum;
#pragma unroll
    for (int step_lanes = 1; step_lanes < lanes_per_head; step_lanes *= 2) {
      sum_of_lanes = __fadd_rn(sum_of_lanes, __shfl_xor_sync(all_lanes, sum_of_lanes, step_lanes));
    }
    add_values(output, keys, p);
    tile += splits;
  }

  if constexpr (is_split) {
    if (speaks) *state_to = {state.reference, sum_of_lanes};
    store_columns(columns_to, output, 0, warp, lane);
  } else {
    if (speaks) {
      const SoftmaxState own = {state.reference, sum_of_lanes};
      const float sink_of_head = load_shared_float(shared + sinks_at + own_head * 4);
      store_shared_float(shared + inverses_at + own_head * 4,
                         inverse_denominator(sink_of_head, own));
      store_lse(args, row, head_block * heads_per_cta + own_head, own);
    }
    __syncthreads();
    float inverse[m_tiles][2];
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        inverse[m][half] =
            load_shared_float(shared + inverses_at + (16 * m + 8 * half + lane / 4) * 4);
    }
    store_output(args, output, row, head_block, inverse, 0, warp, lane);
  }
}
