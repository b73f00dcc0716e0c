"""rms_norm, rope, qkv_norm, index_query and compressor_update in Triton."""

import triton
import triton.language as tl

from peers_small_triton import (
    e4m3_code,
    e4m3_exponent,
    grouped,
    inverse_rms,
    power,
    q4m_byte,
    q4m_exponent,
    rotate,
    split_pairs,
)
from peers_triton import launch

WARPS = (1, 2, 4)
HEAD_CONFIGS = ((4, 1), (8, 2), (16, 4))  # heads of a program, warps


def norm_configs(columns):
    """Rows of a program, warps."""
    return ((1, 2), (1, 4), (1, 8)) if columns > 1024 else ((1, 1), (4, 1), (8, 4))


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    y_ptr,
    x_ptr,
    weight_ptr,
    num_rows,
    COLUMNS: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, PADDED)
    mask = (row < num_rows)[:, None] & (column < COLUMNS)[None, :]
    at = row[:, None] * COLUMNS + column[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < COLUMNS, other=0.0).to(tl.float32)
    r = inverse_rms(tl.sum(x * x, axis=1), COLUMNS)
    tl.store(y_ptr + at, (x * r[:, None] * weight[None, :]).to(tl.bfloat16), mask=mask)


def rms_norm(y, x, weight, config):
    rows, warps = config
    num_rows, columns = x.shape
    launch(
        rms_norm_kernel,
        (triton.cdiv(num_rows, rows),),
        *(y, x, weight, num_rows),
        COLUMNS=columns,
        PADDED=triton.next_power_of_2(columns),
        ROWS=rows,
        num_warps=warps,
    )


@triton.jit
def rope_kernel(
    q_ptr,  # bf16 [num_rows, NUM_HEADS, 512]
    positions_ptr,
    table_ptr,
    NUM_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    INVERSE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    at = (row * NUM_HEADS + head)[:, None] * 512 + 448 + tl.arange(0, 64)[None, :]
    mask = head < NUM_HEADS
    x = tl.load(q_ptr + at, mask=mask[:, None], other=0.0).to(tl.float32)
    a, b = split_pairs(x, HEADS, 32)
    position = tl.load(positions_ptr + row) + tl.zeros([HEADS], tl.int32)
    a, b = rotate(a, b, table_ptr, position, mask, INVERSE, 32)
    tl.store(q_ptr + at, tl.interleave(a, b).to(tl.bfloat16), mask=mask[:, None])


def rope(q, positions, table, inverse, config):
    heads, warps = config
    launch(
        rope_kernel,
        (q.shape[0], triton.cdiv(q.shape[1], heads)),
        *(q, positions, table),
        NUM_HEADS=q.shape[1],
        HEADS=heads,
        INVERSE=inverse,
        num_warps=warps,
        enable_fp_fusion=False,
    )


@triton.jit
def qkv_norm_kernel(
    qr_ptr,  # bf16, or u8 codes
    scales_ptr,  # unused with bf16
    kv_ptr,
    qkv_ptr,
    q_weight_ptr,
    kv_weight_ptr,
    Q: tl.constexpr,
    V: tl.constexpr,
    TO_CODES: tl.constexpr,
    PADDED: tl.constexpr,  # Q or more, V or more
):
    row = tl.program_id(0).to(tl.int64)
    is_q = tl.program_id(1) == 0
    column = tl.arange(0, PADDED)
    columns = tl.where(is_q, Q, V)
    mask = column < columns
    x = tl.load(qkv_ptr + row * (Q + V) + tl.where(is_q, 0, Q) + column, mask=mask, other=0.0)
    x = x.to(tl.float32)
    weight = tl.load(tl.where(is_q, q_weight_ptr, kv_weight_ptr) + column, mask=mask, other=0.0)
    y = x * tl.rsqrt(tl.sum(x * x, axis=0) / columns + 1e-20) * weight.to(tl.float32)
    y = y.to(tl.bfloat16)
    if not is_q:
        tl.store(kv_ptr + row * V + column, y, mask=mask)
    elif TO_CODES:
        groups = tl.reshape(y.to(tl.float32), (1, PADDED // 32, 32))
        exponent = e4m3_exponent(groups, groups)
        codes = tl.reshape(e4m3_code(groups, exponent), (PADDED,))
        tl.store(qr_ptr + row * Q + column, codes.to(tl.uint8, bitcast=True), mask=mask)
        group = tl.arange(0, PADDED // 32)
        scales = tl.reshape(exponent, (PADDED // 32,)).to(tl.uint8)
        tl.store(scales_ptr + row * (Q // 32) + group, scales, mask=group < Q // 32)
    else:
        tl.store(qr_ptr + row * Q + column, y, mask=mask)


def qkv_norm(out, qkv, q_weight, kv_weight, warps):
    launch(
        qkv_norm_kernel,
        (qkv.shape[0], 2),
        *(out[0], out[-2], out[-1], qkv, q_weight, kv_weight),
        Q=len(q_weight),
        V=len(kv_weight),
        TO_CODES=len(out) == 3,
        PADDED=triton.next_power_of_2(len(q_weight)),
        num_warps=warps,
    )


@triton.jit
def index_query_kernel(
    codes_ptr,
    scales_ptr,  # unused in q8k
    weights_ptr,
    q_ptr,
    head_weights_ptr,
    positions_ptr,
    table_ptr,
    NUM_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    IS_Q4M: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    mask = head < NUM_HEADS
    vector = row * NUM_HEADS + head
    at = vector[:, None] * 128 + tl.arange(0, 128)[None, :]
    x = tl.load(q_ptr + at, mask=mask[:, None], other=0.0).to(tl.float32)
    a, b = split_pairs(x, HEADS, 64)
    position = tl.load(positions_ptr + row) + tl.zeros([HEADS], tl.int32)
    a, b = rotate(a, b, table_ptr, position, mask, False, 64)
    weight = tl.load(head_weights_ptr + vector, mask=mask, other=0.0).to(tl.float32) * 0.015625
    if IS_Q4M:
        a, b = grouped(a, HEADS, 4), grouped(b, HEADS, 4)
        exponent = q4m_exponent(a, b)
        codes = tl.reshape(q4m_byte(a, b, exponent), (HEADS, 64))
        at = vector[:, None] * 64 + tl.arange(0, 64)[None, :]
        tl.store(codes_ptr + at, codes, mask=mask[:, None])
        at = vector[:, None] * 4 + tl.arange(0, 4)[None, :]
        tl.store(scales_ptr + at, exponent.to(tl.uint8), mask=mask[:, None])
    else:
        a, b = grouped(a, HEADS, 1), grouped(b, HEADS, 1)
        exponent = e4m3_exponent(a, b)
        a, b = e4m3_code(a, exponent), e4m3_code(b, exponent)
        a, b = a.to(tl.uint8, bitcast=True), b.to(tl.uint8, bitcast=True)
        codes = tl.interleave(tl.reshape(a, (HEADS, 64)), tl.reshape(b, (HEADS, 64)))
        tl.store(codes_ptr + at, codes, mask=mask[:, None])
        weight = weight * tl.reshape(power(exponent), (HEADS,))
    tl.store(weights_ptr + vector, weight, mask=mask)


def index_query(out, q, head_weights, positions, table, config):
    heads, warps = config
    launch(
        index_query_kernel,
        (q.shape[0], triton.cdiv(q.shape[1], heads)),
        *(out[0], out[-2], out[-1], q, head_weights, positions, table),
        NUM_HEADS=q.shape[1],
        HEADS=heads,
        IS_Q4M=len(out) == 3,
        num_warps=warps,
        enable_fp_fusion=False,
    )


@triton.jit
def compress_kernel(
    latent_ptr,
    projections_ptr,  # fp32 [num_rows, 512 * RATIO]
    positions_ptr,
    requests_ptr,
    starts_ptr,
    blocks_ptr,
    ring_ptr,
    weight_ptr,
    RATIO: tl.constexpr,
    RING_ROWS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions_ptr + row)
    if (position + 1) % RATIO == 0:
        channel = tl.arange(0, 512)
        own = projections_ptr + row * 512 * RATIO + channel
        pooled = tl.load(own)
        if RATIO == 2:
            request = tl.load(requests_ptr + row)
            partner = own - 1024
            if row == tl.load(starts_ptr + request):
                block = tl.load(blocks_ptr + request).to(tl.int64)
                partner = (
                    ring_ptr + (block * RING_ROWS + (position - 1) % RING_ROWS) * 1024 + channel
                )
            score, other = tl.load(own + 512), tl.load(partner + 512)
            top = tl.maximum(score, other)
            score, other = tl.exp(score - top), tl.exp(other - top)
            pooled = (pooled * score + tl.load(partner) * other) / (score + other)
        x = pooled.to(tl.bfloat16).to(tl.float32)
        r = inverse_rms(tl.sum(x * x, axis=0), 512)
        y = x * r * tl.load(weight_ptr + channel).to(tl.float32)
        tl.store(latent_ptr + row * 512 + channel, y.to(tl.bfloat16))


@triton.jit
def save_states_kernel(
    ring_ptr, projections_ptr, positions_ptr, starts_ptr, blocks_ptr, RING_ROWS: tl.constexpr
):
    """Behind the reads of compress_kernel."""
    request = tl.program_id(0)
    row = tl.load(starts_ptr + request + 1) - 1 - tl.program_id(1)
    if row >= tl.load(starts_ptr + request):
        element = tl.arange(0, 1024)
        block = tl.load(blocks_ptr + request).to(tl.int64)
        at = block * RING_ROWS + tl.load(positions_ptr + row) % RING_ROWS
        values = tl.load(projections_ptr + row.to(tl.int64) * 1024 + element)
        tl.store(ring_ptr + at * 1024 + element, values)


def compressor_update(out, c, warps):
    ring = out[-1]
    ring_rows = ring.shape[1] if c.ratio == 2 else 1
    launch(
        compress_kernel,
        (len(c.positions),),
        *(out[0], c.projections, c.positions, c.requests, c.starts, c.blocks, ring, c.weight),
        RATIO=c.ratio,
        RING_ROWS=ring_rows,
        num_warps=warps,
    )
    if c.ratio == 2:
        launch(
            save_states_kernel,
            (len(c.blocks), ring_rows),
            *(ring, c.projections, c.positions, c.starts, c.blocks),
            RING_ROWS=ring_rows,
            num_warps=warps,
        )
