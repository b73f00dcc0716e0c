"""The FP8 linear in Triton, as a serving stack would write it: quantise x, then one GEMM.

The GEMM turns E4M3 weights into bf16 by their 32 x 32 scales and multiplies in bf16. The weights
are the left operand, whose many rows fill the tensor cores also when x has only one. K may be
split; then a third kernel adds the partial sums.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from peers_act_quant_triton import fake_quantize
from peers_triton import e4m3_to_f32, launch, ue8m0_to_f32

GROUP_TILES = 8  # tiles of weights that share their tiles of x in L2
SUM_BLOCK = 1024


@dataclass(frozen=True)
class Config:
    n: int  # rows of weights of a tile
    m: int  # rows of x
    k: int
    warps: int
    stages: int
    programs: int  # wanted: K is split while there are fewer

    def __str__(self):
        tile = f"{self.n}x{self.m}x{self.k}"
        return f"{tile} warps {self.warps} stages {self.stages} programs {self.programs}"


FEW_ROWS = (
    Config(n=128, m=16, k=128, warps=4, stages=4, programs=132),
    Config(n=128, m=16, k=128, warps=4, stages=4, programs=264),
    Config(n=128, m=16, k=128, warps=8, stages=4, programs=132),
    Config(n=128, m=16, k=256, warps=8, stages=3, programs=264),
    Config(n=64, m=16, k=256, warps=4, stages=4, programs=132),
    Config(n=64, m=16, k=256, warps=4, stages=3, programs=264),
)
HUNDREDS_OF_ROWS = (
    Config(n=64, m=64, k=128, warps=4, stages=3, programs=264),
    Config(n=128, m=64, k=64, warps=4, stages=4, programs=264),
    Config(n=128, m=64, k=128, warps=8, stages=3, programs=132),
    Config(n=128, m=128, k=64, warps=8, stages=4, programs=132),
    Config(n=128, m=128, k=64, warps=8, stages=3, programs=264),
    Config(n=128, m=256, k=64, warps=8, stages=3, programs=132),
)
MANY_ROWS = (
    Config(n=128, m=64, k=64, warps=4, stages=4, programs=0),
    Config(n=128, m=128, k=64, warps=4, stages=3, programs=0),
    Config(n=128, m=128, k=64, warps=8, stages=4, programs=0),
    Config(n=128, m=128, k=128, warps=8, stages=3, programs=0),
    Config(n=128, m=256, k=64, warps=8, stages=3, programs=0),
    Config(n=256, m=128, k=64, warps=8, stages=3, programs=0),
)


def configs(num_rows):
    if num_rows <= 16:
        return FEW_ROWS
    return HUNDREDS_OF_ROWS if num_rows <= 512 else MANY_ROWS


@triton.jit
def load_scales(scales, chunk, K: tl.constexpr):
    """The scales of a chunk of K for each row of the tile."""
    column = chunk * (K // 32) + tl.arange(0, K // 32)
    return tl.load(scales[:, None] + column[None, :])


@triton.jit(do_not_specialize=["m", "groups", "chunks_per_split"])
def linear_fp8_kernel(
    y_ptr,  # bf16 [m, groups, n], or with PARTIAL fp32 [splits, m, groups, n]
    x_ptr,  # bf16 [m, groups, k]
    weight_ptr,  # u8 [groups, n, k]
    scales_ptr,  # u8 [groups, n / 32, k / 32]
    m,
    n,
    k,
    groups,
    chunks_per_split,
    PARTIAL: tl.constexpr,
    GROUP_TILES: tl.constexpr,
    N: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
):
    split, group = tl.program_id(1), tl.program_id(2)
    tiles_m, tiles_n = tl.cdiv(m, M), tl.cdiv(n, N)
    band = tl.program_id(0) // (GROUP_TILES * tiles_m)
    band_tiles = tl.minimum(tiles_n - band * GROUP_TILES, GROUP_TILES)
    in_band = tl.program_id(0) % (GROUP_TILES * tiles_m)
    row_n = (band * GROUP_TILES + in_band % band_tiles) * N + tl.arange(0, N)
    row_m = in_band // band_tiles * M + tl.arange(0, M)

    # Rows past the end repeat the last one; the store leaves them out.
    from_n = tl.minimum(row_n, n - 1)
    from_m = tl.minimum(row_m, m - 1)
    weight = weight_ptr + (group * n + from_n).to(tl.int64) * k
    scales = scales_ptr + (group * n + from_n) // 32 * (k // 32)
    x = x_ptr + (from_m * groups + group).to(tl.int64) * k
    column = tl.arange(0, K)

    first = split * chunks_per_split
    end = tl.minimum(first + chunks_per_split, k // K)
    sums = tl.zeros((N, M), dtype=tl.float32)
    next_scale = load_scales(scales, first, K)
    for chunk in range(first, end):
        scale = ue8m0_to_f32(next_scale)
        next_scale = load_scales(scales, tl.minimum(chunk + 1, end - 1), K)
        code = tl.load(weight[:, None] + (chunk * K + column)[None, :])
        x_tile = tl.load(x[None, :] + (chunk * K + column)[:, None])
        value = tl.reshape(e4m3_to_f32(code), (N, K // 32, 32)) * scale[:, :, None]
        sums = tl.dot(tl.reshape(value, (N, K)).to(tl.bfloat16), x_tile, sums)

    out = y_ptr + (from_m * groups + group).to(tl.int64)[None, :] * n + row_n[:, None]
    mask = (row_n < n)[:, None] & (row_m < m)[None, :]
    if PARTIAL:
        tl.store(out + split.to(tl.int64) * m * groups * n, sums, mask=mask)
    else:
        tl.store(out, sums.to(tl.bfloat16), mask=mask)


@triton.jit(do_not_specialize=["splits"])
def sum_splits_kernel(
    y_ptr,  # bf16 [count]
    partial_ptr,  # fp32 [splits, count]
    count,
    splits,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in range(splits):
        total += tl.load(partial_ptr + split.to(tl.int64) * count + at, mask=mask, other=0.0)
    tl.store(y_ptr + at, total.to(tl.bfloat16), mask=mask)


def split_count(config, tiles, chunks):
    """As many equal parts of K as bring the wanted programs, and no part without work."""
    splits = min(max(config.programs // tiles, 1), chunks)
    return triton.cdiv(chunks, triton.cdiv(chunks, splits))


def linear_fp8(y, x, weight, scales, quantizes_x, config, splits=None):
    """x bf16 [M, G, K], weight u8 [G, N, K], y bf16 [M, G, N]; all contiguous."""
    m, groups, k = x.shape
    n = weight.shape[1]
    assert k % config.k == 0
    if quantizes_x:
        quantized = torch.empty_like(x)
        fake_quantize(quantized, x)
        x = quantized
    tiles, chunks = triton.cdiv(m, config.m) * triton.cdiv(n, config.n), k // config.k
    splits = splits or split_count(config, tiles * groups, chunks)
    result = y
    if splits > 1:
        result = torch.empty((splits, *y.shape), dtype=torch.float32, device=y.device)
    launch(
        linear_fp8_kernel,
        (tiles, splits, groups),
        result,
        x,
        weight,
        scales,
        m,
        n,
        k,
        groups,
        triton.cdiv(chunks, splits),
        PARTIAL=splits > 1,
        GROUP_TILES=GROUP_TILES,
        N=config.n,
        M=config.m,
        K=config.k,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    if splits > 1:
        launch(
            sum_splits_kernel,
            (triton.cdiv(y.numel(), SUM_BLOCK),),
            y,
            result,
            y.numel(),
            splits,
            BLOCK=SUM_BLOCK,
        )
