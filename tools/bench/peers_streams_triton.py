"""The residual streams in Triton: post, fold and norm, and the gates.

The four streams of a row are four tensors. Post works in place: a program reads its columns of all
streams before it writes one.
"""

import triton
import triton.language as tl

from peers_small_triton import inverse_rms
from peers_triton import launch

POST_CONFIGS = ((512, 2), (1024, 4), (2048, 8))  # columns of a program, warps
ROW_WARPS = (4, 8, 16)


def post_configs(with_sqrsum):
    return tuple((0, warps) for warps in ROW_WARPS) if with_sqrsum else POST_CONFIGS


@triton.jit
def stream(h0, h1, h2, h3, y, post_ptr, comb_ptr, row, j: tl.constexpr):
    """Stream j behind the sub-layer, as bf16."""
    comb = comb_ptr + row * 16 + j
    acc = tl.load(post_ptr + row * 4 + j) * y
    acc += tl.load(comb) * h0
    acc += tl.load(comb + 4) * h1
    acc += tl.load(comb + 8) * h2
    acc += tl.load(comb + 12) * h3
    return acc.to(tl.bfloat16)


@triton.jit
def load_f32(ptr, mask):
    return tl.load(ptr, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def post_streams(h, y_ptr, post_ptr, comb_ptr, row, column, mask, COLUMNS: tl.constexpr):
    """Reads the columns of all streams at h and writes them."""
    y = load_f32(y_ptr + row * COLUMNS + column, mask)
    h0, h1 = load_f32(h, mask), load_f32(h + COLUMNS, mask)
    h2, h3 = load_f32(h + 2 * COLUMNS, mask), load_f32(h + 3 * COLUMNS, mask)
    new0 = stream(h0, h1, h2, h3, y, post_ptr, comb_ptr, row, 0)
    new1 = stream(h0, h1, h2, h3, y, post_ptr, comb_ptr, row, 1)
    new2 = stream(h0, h1, h2, h3, y, post_ptr, comb_ptr, row, 2)
    new3 = stream(h0, h1, h2, h3, y, post_ptr, comb_ptr, row, 3)
    tl.store(h, new0, mask=mask)
    tl.store(h + COLUMNS, new1, mask=mask)
    tl.store(h + 2 * COLUMNS, new2, mask=mask)
    tl.store(h + 3 * COLUMNS, new3, mask=mask)
    return new0.to(tl.float32), new1.to(tl.float32), new2.to(tl.float32), new3.to(tl.float32)


@triton.jit
def hc_post_kernel(
    h_ptr,  # bf16 [rows, 4, COLUMNS]
    sqrsum_ptr,  # fp32 [rows]
    y_ptr,
    post_ptr,
    comb_ptr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,  # columns of a program
    WITH_SQRSUM: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < COLUMNS
    h = h_ptr + row * 4 * COLUMNS + column
    h0, h1, h2, h3 = post_streams(h, y_ptr, post_ptr, comb_ptr, row, column, mask, COLUMNS)
    if WITH_SQRSUM:
        tl.store(sqrsum_ptr + row, tl.sum(h0 * h0 + h1 * h1 + h2 * h2 + h3 * h3, axis=0))


def hc_post(out, c, config):
    block, warps = config
    rows, _, columns = c.h.shape
    block = block or triton.next_power_of_2(columns)
    launch(
        hc_post_kernel,
        (rows, triton.cdiv(columns, block)),
        *(out[0], out[-1], c.y, c.post, c.comb),
        COLUMNS=columns,
        BLOCK=block,
        WITH_SQRSUM=c.with_sqrsum,
        num_warps=warps,
    )
