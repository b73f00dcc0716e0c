"""The residual streams in Triton: post, fold and norm, and the gates.

The four streams of a row are four tensors. Post works in place: a program reads its columns of all
streams before it writes one.
"""

import torch
import triton
import triton.language as tl

from peers_small_triton import e4m3_code, e4m3_exponent, inverse_rms
from peers_triton import launch

POST_CONFIGS = ((512, 2), (1024, 4), (2048, 8))  # columns of a program, warps
ROW_WARPS = (4, 8, 16)
GATES = 24
FOLD_WARPS = 8  # in front of the gates
# Rows of a program, parts of the sum, warps, precision of products. Stacks take TF32; three
# products of TF32 come near to fp32.
FEW_ROWS = ((16, 64, 4, "tf32"), (16, 160, 4, "tf32"), (16, 64, 4, "tf32x3"))
MANY_ROWS = ((64, 4, 4, "tf32"), (64, 8, 4, "tf32"), (128, 8, 8, "tf32"), (64, 8, 4, "tf32x3"))


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


@triton.jit
def fold_and_norm(
    x_ptr,  # bf16 [rows, COLUMNS], or u8 codes
    scales_ptr,  # unused with bf16
    h0,
    h1,
    h2,
    h3,
    pre_ptr,
    weight_ptr,
    row,
    column,
    mask,
    COLUMNS: tl.constexpr,
    PADDED: tl.constexpr,
    TO_CODES: tl.constexpr,
):
    pre = pre_ptr + row * 4
    x = tl.load(pre) * h0 + tl.load(pre + 1) * h1 + tl.load(pre + 2) * h2 + tl.load(pre + 3) * h3
    x = x.to(tl.bfloat16).to(tl.float32)
    r = inverse_rms(tl.sum(x * x, axis=0), COLUMNS)
    x = (x * r * load_f32(weight_ptr + column, mask)).to(tl.bfloat16)
    if TO_CODES:
        groups = tl.reshape(x.to(tl.float32), (1, PADDED // 32, 32))
        exponent = e4m3_exponent(groups, groups)
        codes = tl.reshape(e4m3_code(groups, exponent), (PADDED,)).to(tl.uint8, bitcast=True)
        tl.store(x_ptr + row * COLUMNS + column, codes, mask=mask)
        group = tl.arange(0, PADDED // 32)
        scales = tl.reshape(exponent, (PADDED // 32,)).to(tl.uint8)
        at = scales_ptr + row * (COLUMNS // 32) + group
        tl.store(at, scales, mask=group < COLUMNS // 32)
    else:
        tl.store(x_ptr + row * COLUMNS + column, x, mask=mask)


@triton.jit
def hc_fold_norm_kernel(
    x_ptr,
    scales_ptr,
    h_ptr,
    pre_ptr,
    weight_ptr,
    COLUMNS: tl.constexpr,
    PADDED: tl.constexpr,
    TO_CODES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    mask = column < COLUMNS
    h = h_ptr + row * 4 * COLUMNS + column
    h0, h1 = load_f32(h, mask), load_f32(h + COLUMNS, mask)
    h2, h3 = load_f32(h + 2 * COLUMNS, mask), load_f32(h + 3 * COLUMNS, mask)
    fold_and_norm(
        *(x_ptr, scales_ptr, h0, h1, h2, h3, pre_ptr, weight_ptr, row, column, mask),
        *(COLUMNS, PADDED, TO_CODES),
    )


def hc_fold_norm(out, c, warps):
    rows, _, columns = c.h.shape
    launch(
        hc_fold_norm_kernel,
        (rows,),
        *(out[0], out[-1], c.h, c.pre, c.weight),
        COLUMNS=columns,
        PADDED=triton.next_power_of_2(columns),
        TO_CODES=c.to_codes,
        num_warps=warps,
    )


@triton.jit
def hc_post_fold_norm_kernel(
    h_ptr,
    x_ptr,
    scales_ptr,
    sqrsum_ptr,
    y_ptr,
    post_ptr,
    comb_ptr,
    pre_ptr,
    weight_ptr,
    COLUMNS: tl.constexpr,
    PADDED: tl.constexpr,
    TO_CODES: tl.constexpr,
    WITH_SQRSUM: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    mask = column < COLUMNS
    h = h_ptr + row * 4 * COLUMNS + column
    h0, h1, h2, h3 = post_streams(h, y_ptr, post_ptr, comb_ptr, row, column, mask, COLUMNS)
    if WITH_SQRSUM:
        tl.store(sqrsum_ptr + row, tl.sum(h0 * h0 + h1 * h1 + h2 * h2 + h3 * h3, axis=0))
    fold_and_norm(
        *(x_ptr, scales_ptr, h0, h1, h2, h3, pre_ptr, weight_ptr, row, column, mask),
        *(COLUMNS, PADDED, TO_CODES),
    )


def hc_post_fold_norm(out, c, warps):
    rows, _, columns = c.h.shape
    launch(
        hc_post_fold_norm_kernel,
        (rows,),
        *(out[0], out[1], out[2] if c.to_codes else out[1], out[-1]),
        *(c.y, c.post, c.comb, c.pre, c.weight),
        COLUMNS=columns,
        PADDED=triton.next_power_of_2(columns),
        TO_CODES=c.to_codes,
        WITH_SQRSUM=c.with_sqrsum,
        num_warps=warps,
    )


def stats_configs(rows):
    return FEW_ROWS if rows <= 64 else MANY_ROWS


@triton.jit(do_not_specialize=["num_rows"])
def products_kernel(
    m_ptr,  # fp32 [SPLITS, num_rows, GATES], parts of the sums
    squares_ptr,  # fp32 [SPLITS, num_rows]
    h_ptr,
    fn_ptr,  # fp32 [GATES, WIDTH]
    num_rows,
    WIDTH: tl.constexpr,
    GATES: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,  # columns of one step
    PRECISION: tl.constexpr,
):
    part = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    gate = tl.arange(0, 32)
    column = part * (WIDTH // SPLITS) + tl.arange(0, BLOCK)
    has_row, has_gate = row < num_rows, gate < GATES
    h = h_ptr + row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    fn = fn_ptr + gate[None, :] * WIDTH + column[:, None]
    m = tl.zeros([ROWS, 32], tl.float32)
    squares = tl.zeros([ROWS], tl.float32)
    for step in range(0, WIDTH // SPLITS, BLOCK):
        v = tl.load(h + step, mask=has_row[:, None], other=0.0).to(tl.float32)
        weights = tl.load(fn + step, mask=has_gate[None, :], other=0.0)
        m = tl.dot(v, weights, m, input_precision=PRECISION)
        squares += tl.sum(v * v, axis=1)
    at = part * num_rows + row
    mask = has_row[:, None] & has_gate[None, :]
    tl.store(m_ptr + at[:, None] * GATES + gate[None, :], m, mask=mask)
    tl.store(squares_ptr + at, squares, mask=has_row)


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit(do_not_specialize=["num_rows"])
def gates_kernel(
    pre_ptr,
    post_ptr,
    comb_ptr,
    m_ptr,
    squares_ptr,
    scale_ptr,
    base_ptr,
    num_rows,
    WIDTH: tl.constexpr,
    GATES: tl.constexpr,
    SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
):
    """A row of a program: adds the parts, then the gates, and the mixes in registers."""
    row = tl.program_id(0)
    part = tl.arange(0, PADDED_SPLITS)
    mask = part < SPLITS
    at = part * num_rows + row
    r = inverse_rms(tl.sum(tl.load(squares_ptr + at, mask=mask, other=0.0), axis=0), WIDTH)
    j = tl.arange(0, 4)
    m = m_ptr + at[:, None] * GATES + j[None, :]
    pre = tl.sum(tl.load(m, mask=mask[:, None], other=0.0), axis=0) * r
    post = tl.sum(tl.load(m + 4, mask=mask[:, None], other=0.0), axis=0) * r
    pre = sigmoid(pre * tl.load(scale_ptr) + tl.load(base_ptr + j)) + 1e-6
    post = 2 * sigmoid(post * tl.load(scale_ptr + 1) + tl.load(base_ptr + 4 + j))
    tl.store(pre_ptr + row * 4 + j, pre)
    tl.store(post_ptr + row * 4 + j, post)

    element = 4 * j[:, None] + j[None, :]
    m = m_ptr + at[:, None, None] * GATES + 8 + element[None, :, :]
    a = tl.sum(tl.load(m, mask=mask[:, None, None], other=0.0), axis=0) * r
    a = a * tl.load(scale_ptr + 2) + tl.load(base_ptr + 8 + element)
    a = tl.exp(a - tl.max(a, axis=1)[:, None])
    a = a / tl.sum(a, axis=1)[:, None] + 1e-6
    a = a / (tl.sum(a, axis=0)[None, :] + 1e-6)
    for _ in range(19):
        a = a / (tl.sum(a, axis=1)[:, None] + 1e-6)
        a = a / (tl.sum(a, axis=0)[None, :] + 1e-6)
    tl.store(comb_ptr + row * 16 + element, a)


def hc_stats(out, h, c, config):
    rows_of_program, splits, warps, precision = config
    rows, width = len(h), h[0].numel()
    m = torch.empty((splits, rows, GATES), dtype=torch.float32, device=h.device)
    squares = torch.empty((splits, rows), dtype=torch.float32, device=h.device)
    launch(
        products_kernel,
        (triton.cdiv(rows, rows_of_program), splits),
        *(m, squares, h, c.fn, rows),
        WIDTH=width,
        GATES=GATES,
        SPLITS=splits,
        ROWS=rows_of_program,
        BLOCK=64,
        PRECISION=precision,
        num_warps=warps,
    )
    launch(
        gates_kernel,
        (rows,),
        *(*out, m, squares, c.scale, c.base, rows),
        WIDTH=width,
        GATES=GATES,
        SPLITS=splits,
        PADDED_SPLITS=triton.next_power_of_2(splits),
        num_warps=1,
    )


def hc_boundary(out, c, config):
    hc_post_fold_norm(out[:2], c, FOLD_WARPS)
    hc_stats(out[2:], out[0], c, config)
