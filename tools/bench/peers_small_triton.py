"""What the Triton peers of the small ops share: norm, RoPE and quantisation of rows in registers.

A row of pairs is two tensors, of the even elements and of the odd ones: a pair rotates together,
and two E2M1 codes share a byte. Kernels that rotate are launched without fused multiply-add, so
that their bits can be compared.
"""

import triton
import triton.language as tl


@triton.jit
def split_pairs(x, ROWS: tl.constexpr, HALF: tl.constexpr):
    return tl.split(tl.reshape(x, (ROWS, HALF, 2)))


@triton.jit
def inverse_rms(sum_of_squares, COLUMNS: tl.constexpr):
    return tl.rsqrt(sum_of_squares / COLUMNS + 1e-20)


@triton.jit
def rotate(a, b, table_ptr, position, mask, INVERSE: tl.constexpr, HALF: tl.constexpr):
    """Turns the last 32 pairs; a, b fp32 [ROWS, HALF]; the results are numbers that bf16 holds."""
    pair = tl.arange(0, HALF) - (HALF - 32)
    turns = mask[:, None] & (pair >= 0)[None, :]
    at = position.to(tl.int64)[:, None] * 64 + pair[None, :]
    cos = tl.load(table_ptr + at, mask=turns, other=1.0)
    sin = tl.load(table_ptr + at + 32, mask=turns, other=0.0)
    if INVERSE:
        sin = -sin
    turned_a = tl.where(turns, a * cos - b * sin, a)  # -0 * 1 - (-0 * 0) would be 0
    turned_b = tl.where(turns, a * sin + b * cos, b)
    return turned_a.to(tl.bfloat16).to(tl.float32), turned_b.to(tl.bfloat16).to(tl.float32)


@triton.jit
def grouped(x, ROWS: tl.constexpr, GROUPS: tl.constexpr):
    return tl.reshape(x, (ROWS, GROUPS, x.shape[1] // GROUPS))


@triton.jit
def largest(a, b):
    """Of groups of pairs."""
    return tl.maximum(tl.max(tl.abs(a), axis=2), tl.max(tl.abs(b), axis=2))


@triton.jit
def exponent_above(value):
    """Biased exponent of the least power of two that is no smaller."""
    return (value.to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23


@triton.jit
def power(exponent):
    return (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def e4m3_exponent(a, b):
    return exponent_above(tl.maximum(largest(a, b), 1e-4) * 0.002232142857142857)  # / 448


@triton.jit
def e4m3_code(x, exponent):
    return tl.clamp(x * power(254 - exponent)[:, :, None], -448.0, 448.0).to(tl.float8e4nv)


@triton.jit
def e2m1_code(x):
    a = tl.abs(x)
    code = (a > 0.25).to(tl.int32) + (a >= 0.75).to(tl.int32) + (a > 1.25).to(tl.int32)
    code += (a >= 1.75).to(tl.int32) + (a > 2.5).to(tl.int32) + (a >= 3.5).to(tl.int32)
    code += (a > 5.0).to(tl.int32)
    return code | ((x.to(tl.int32, bitcast=True) >> 28) & 8)


@triton.jit
def q4m_exponent(a, b):
    floor = 7.052966104933725e-38  # 6 * 2^-126
    return exponent_above(tl.maximum(largest(a, b), floor) * 0.16666666666666666)


@triton.jit
def q4m_byte(a, b, exponent):
    inverse = power(254 - exponent)[:, :, None]
    return (e2m1_code(a * inverse) | (e2m1_code(b * inverse) << 4)).to(tl.uint8)


@triton.jit
def q4n_scale(a, b):
    amax = tl.maximum(largest(a, b), 0.01171875)  # 6 * 2^-9
    return tl.minimum(amax * 0.16666666666666666, 448.0).to(tl.float8e4nv)


@triton.jit
def e2m1_value(code):
    """Of a code without its sign."""
    steps = tl.where(code < 4, code, tl.where(code < 6, 2 * code - 4, 4 * code - 16))
    return steps.to(tl.float32) * 0.5


@triton.jit
def fake_e2m1(x, scale):
    code = e2m1_code(tl.div_rn(x, scale)) & 7
    value = e2m1_value(code) * scale
    # Not -value: Triton 3.6 subtracts from 0, and of 0 that is 0.
    return tl.where(x.to(tl.int32, bitcast=True) < 0, value * -1.0, value)
