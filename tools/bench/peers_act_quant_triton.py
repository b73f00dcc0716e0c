"""Q8a in Triton: a few hundred groups of 32 a program, whatever rows they lie in."""

import triton
import triton.language as tl

from peers_reference import SCALE_BLOCK
from peers_triton import launch

# Groups of a program, warps.
CONFIGS = ((16, 1), (32, 2), (64, 4), (128, 4), (256, 8))


@triton.jit(do_not_specialize=["num_groups"])
def act_quant_kernel(
    out_ptr,  # u8 codes, or bf16 what they stand for, [num_groups, 32]
    scales_ptr,  # u8 [num_groups]; unused with bf16
    x_ptr,  # bf16 [num_groups, 32]
    num_groups,
    TO_CODES: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
):
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    in_range = group < num_groups
    at = group.to(tl.int64)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(x_ptr + at, mask=in_range[:, None], other=0.0).to(tl.float32)

    amax = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-4)
    bits = (amax * 0.002232142857142857).to(tl.int32, bitcast=True)  # amax / 448
    scale = (bits + 0x7FFFFF) >> 23  # biased exponent of the next power of two
    inverse = ((254 - scale) << 23).to(tl.float32, bitcast=True)
    code = tl.clamp(x * inverse[:, None], -448.0, 448.0).to(tl.float8e4nv)
    if TO_CODES:
        tl.store(out_ptr + at, code.to(tl.uint8, bitcast=True), mask=in_range[:, None])
        tl.store(scales_ptr + group, scale.to(tl.uint8), mask=in_range)
    else:
        value = code.to(tl.float32) * (scale << 23).to(tl.float32, bitcast=True)[:, None]
        tl.store(out_ptr + at, value.to(tl.bfloat16), mask=in_range[:, None])


def quantize(out, scales, x, config, to_codes):
    groups, warps = config
    num_groups = x.numel() // SCALE_BLOCK
    launch(
        act_quant_kernel,
        (triton.cdiv(num_groups, groups),),
        out,
        scales,
        x,
        num_groups,
        TO_CODES=to_codes,
        GROUP=SCALE_BLOCK,
        GROUPS=groups,
        num_warps=warps,
    )


def act_quant(codes, scales, x, config):
    """Of contiguous tensors."""
    quantize(codes, scales, x, config, to_codes=True)


def fake_quantize(out, x):
    """bf16 to bf16, in front of a matrix product that has no other use for the codes."""
    quantize(out, out, x, CONFIGS[1] if x.numel() < 2**20 else CONFIGS[2], to_codes=False)
