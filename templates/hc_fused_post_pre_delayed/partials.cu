// Second kernel of hc_fused_post_pre_delayed (ops.md B1.1), of the new streams: see
// common/hc_stats_partials.cuh.
// grid  (ceil(num_rows / (16 * m_tiles)), splits)   block (32 * warps)
// shared: 25 floats for each row and warp
#include "kiln_args.h"
#include "kiln_constants.h"  // columns, num_streams, terms, warps, m_tiles
#include "templates/common/hc_stats_partials.cuh"

extern "C" __global__ void __launch_bounds__(32 * warps)
    hc_fused_partials(const __grid_constant__ Args args) {
  put_partials<columns, num_streams, terms, warps, m_tiles>(args);
}
