"""The inserts in Triton: norm, RoPE, quantisation and store of some rows a program."""

import triton
import triton.language as tl

from peers_small_triton import (
    e2m1_code,
    e4m3_code,
    e4m3_exponent,
    fake_e2m1,
    grouped,
    inverse_rms,
    power,
    q4m_byte,
    q4m_exponent,
    q4n_scale,
    rotate,
    split_pairs,
)
from peers_triton import launch

CONFIGS = ((1, 1), (1, 2), (2, 4))  # rows of a program, warps


@triton.jit
def bytes_of(a, b, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """E4M3 codes of pairs, side by side."""
    a, b = a.to(tl.uint8, bitcast=True), b.to(tl.uint8, bitcast=True)
    return tl.interleave(tl.reshape(a, (ROWS, WIDTH // 2)), tl.reshape(b, (ROWS, WIDTH // 2)))


@triton.jit(do_not_specialize=["num_rows"])
def insert_kernel(
    cache_ptr,
    x_ptr,  # bf16 [num_rows, WIDTH]
    weight_ptr,  # unused without norm
    positions_ptr,
    slots_ptr,  # int64
    table_ptr,
    num_rows,
    page_stride,
    WIDTH: tl.constexpr,
    FORMAT: tl.constexpr,
    QUANTISER: tl.constexpr,
    HAS_NORM: tl.constexpr,
    RATIO: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    CODE_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
):
    GROUPS: tl.constexpr = WIDTH // GROUP
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots_ptr + row, mask=row < num_rows, other=-1)
    is_row = slot >= 0
    column = tl.arange(0, WIDTH)[None, :]
    at = row.to(tl.int64)[:, None] * WIDTH + column
    x = tl.load(x_ptr + at, mask=is_row[:, None], other=0.0).to(tl.float32)
    if HAS_NORM:
        weight = tl.load(weight_ptr + column).to(tl.float32)
        x = x * inverse_rms(tl.sum(x * x, axis=1), WIDTH)[:, None] * weight
        x = x.to(tl.bfloat16).to(tl.float32)
    position = tl.load(positions_ptr + row, mask=is_row, other=0)
    a, b = split_pairs(x, ROWS, WIDTH // 2)
    a, b = rotate(a, b, table_ptr, position - position % RATIO, is_row, False, WIDTH // 2)

    page = cache_ptr + slot // PAGE_SIZE * page_stride
    r = slot % PAGE_SIZE
    code = (page + r * CODE_BYTES)[:, None]
    scale_at = (page + PAGE_SIZE * CODE_BYTES + r * SCALE_BYTES)[:, None]
    group = tl.arange(0, GROUPS)[None, :]
    mask = is_row[:, None]
    g_a, g_b = grouped(a, ROWS, GROUPS), grouped(b, ROWS, GROUPS)
    if FORMAT == "F2":
        scale = q4n_scale(g_a, g_b)
        divisor = scale.to(tl.float32)[:, :, None]
        low, high = e2m1_code(tl.div_rn(g_a, divisor)), e2m1_code(tl.div_rn(g_b, divisor))
        packed = tl.reshape((low | (high << 4)).to(tl.uint8), (ROWS, WIDTH // 2))
        tl.store(code + tl.arange(0, WIDTH // 2)[None, :], packed, mask=mask)
        tl.store(scale_at + group, scale.to(tl.uint8, bitcast=True), mask=mask)
    elif FORMAT == "F5":
        exponent = q4m_exponent(g_a, g_b)
        packed = tl.reshape(q4m_byte(g_a, g_b, exponent), (ROWS, WIDTH // 2))
        tl.store(code + tl.arange(0, WIDTH // 2)[None, :], packed, mask=mask)
        tl.store(scale_at + group, exponent.to(tl.uint8), mask=mask)
    elif QUANTISER == "q4n":  # F4, of what F2 stands for
        scale = q4n_scale(g_a, g_b).to(tl.float32)[:, :, None]
        a = tl.reshape(fake_e2m1(g_a, scale), (ROWS, WIDTH // 2))
        b = tl.reshape(fake_e2m1(g_b, scale), (ROWS, WIDTH // 2))
        bf16 = code.to(tl.pointer_type(tl.bfloat16))
        tl.store(bf16 + column, tl.interleave(a, b).to(tl.bfloat16), mask=mask)
    else:
        exponent = e4m3_exponent(g_a, g_b)
        c_a, c_b = e4m3_code(g_a, exponent), e4m3_code(g_b, exponent)
        if FORMAT == "F4":
            scale = power(exponent)[:, :, None]
            a = tl.reshape(c_a.to(tl.float32) * scale, (ROWS, WIDTH // 2))
            b = tl.reshape(c_b.to(tl.float32) * scale, (ROWS, WIDTH // 2))
            bf16 = code.to(tl.pointer_type(tl.bfloat16))
            tl.store(bf16 + column, tl.interleave(a, b).to(tl.bfloat16), mask=mask)
        elif FORMAT == "F3":
            codes = bytes_of(c_a, c_b, ROWS, WIDTH)
            tl.store(code + column, codes, mask=mask & (column < 448))
            tail = (code + 448).to(tl.pointer_type(tl.bfloat16)) + (column - 448)
            values = tl.interleave(a, b).to(tl.bfloat16)
            tl.store(tail, values, mask=mask & (column >= 448))
            scales = tl.where(group < 7, exponent, 0).to(tl.uint8)
            tl.store(scale_at + group, scales, mask=mask)
        elif FORMAT == "F6":
            tl.store(code + column, bytes_of(c_a, c_b, ROWS, WIDTH), mask=mask)
            fp32 = scale_at.to(tl.pointer_type(tl.float32))
            tl.store(fp32 + group, power(exponent), mask=mask)
        else:  # F1
            tl.store(code + column, bytes_of(c_a, c_b, ROWS, WIDTH), mask=mask)
            tl.store(scale_at + group, exponent.to(tl.uint8), mask=mask)


GROUPS = {"q8a": 32, "q4n": 16, "q4m": 32, "q8k": 128, None: 64}


def insert(cache, c, config):
    rows, warps = config
    launch(
        insert_kernel,
        (triton.cdiv(len(c.x), rows),),
        *(cache, c.x, c.x if c.weight is None else c.weight, c.positions, c.slots, c.table),
        *(len(c.x), cache.stride(0)),
        WIDTH=c.x.shape[1],
        FORMAT=c.layout.name,
        QUANTISER=c.quantiser or "q8d",
        HAS_NORM=c.weight is not None,
        RATIO=c.ratio,
        PAGE_SIZE=c.page_size,
        CODE_BYTES=c.layout.code_bytes,
        SCALE_BYTES=c.layout.scale_bytes,
        GROUP=GROUPS[c.quantiser],
        ROWS=rows,
        num_warps=warps,
        enable_fp_fusion=False,
    )
