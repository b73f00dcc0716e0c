"""Sparse MLA decode in Triton: flash-decoding over the two slot lists, then a combine.

A program takes some heads of one row and some tiles of its slots. Keys are gathered by slot and
turned into bf16 on the way; the values are the keys.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from peers_reference import HEAD_DIM
from peers_triton import e2m1_to_f32, e4m3_to_f32, launch, ue8m0_to_f32

LOG2_E = 1.4426950408889634
MOST_SPLITS = 64


@dataclass(frozen=True)
class Config:
    heads: int  # of a program
    slots: int  # of a tile
    warps: int
    stages: int
    programs: int  # wanted: slots are split while there are fewer

    def __str__(self):
        tile = f"{self.heads}x{self.slots}"
        return f"{tile} warps {self.warps} stages {self.stages} programs {self.programs}"


# A tile of 16 slots (4 warps, 3 stages) computes something wrong from F2 with Triton 3.6.
CONFIGS = (
    Config(heads=16, slots=32, warps=4, stages=2, programs=264),
    Config(heads=16, slots=32, warps=8, stages=2, programs=264),
    Config(heads=16, slots=32, warps=8, stages=2, programs=528),
    Config(heads=32, slots=32, warps=8, stages=2, programs=264),
    Config(heads=32, slots=64, warps=16, stages=2, programs=132),
    Config(heads=64, slots=32, warps=8, stages=2, programs=132),
)


def configs(num_heads):
    return tuple(c for c in CONFIGS if c.heads <= max(num_heads, 16))


@triton.jit
def load_bytes(base, valid, COUNT: tl.constexpr, STEP: tl.constexpr):
    """`COUNT` elements of every entry; 0 at or beyond `STEP`, and for slots that do not count."""
    column = tl.arange(0, COUNT)[None, :]
    return tl.load(base[:, None] + column, mask=valid[:, None] & (column < STEP), other=0)


@triton.jit
def load_keys(codes, scales, valid, FORMAT: tl.constexpr, SLOTS: tl.constexpr):
    """bf16 [SLOTS, 512]; of F3 the first 448, then zeros."""
    if FORMAT == "F1":
        value = tl.reshape(e4m3_to_f32(load_bytes(codes, valid, 512, 512)), (SLOTS, 16, 32))
        scale = ue8m0_to_f32(load_bytes(scales, valid, 16, 16))
    elif FORMAT == "F2":
        packed = load_bytes(codes, valid, 256, 256)
        value = tl.interleave(e2m1_to_f32(packed & 15), e2m1_to_f32(packed >> 4))
        value = tl.reshape(value, (SLOTS, 32, 16))
        scale = e4m3_to_f32(load_bytes(scales, valid, 32, 32))
    else:
        value = tl.reshape(e4m3_to_f32(load_bytes(codes, valid, 512, 448)), (SLOTS, 8, 64))
        scale = ue8m0_to_f32(load_bytes(scales, valid, 8, 7))
    return tl.reshape(value * scale[:, :, None], (SLOTS, 512)).to(tl.bfloat16)


@triton.jit
def attend(
    top,  # fp32 [HEADS], of the scores so far, in powers of two
    total,  # fp32 [HEADS]
    out,  # fp32 [HEADS, 512]
    out_tail,  # fp32 [HEADS, 64], the last 64 elements where F3 keeps them as bf16
    query,
    query_tail,
    cache_ptr,
    page_stride,
    num_slots,
    slots_ptr,  # of the row
    length,
    first_tile,
    end_tile,
    FORMAT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    CODE_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    SCORE_SCALE: tl.constexpr,
    SLOTS: tl.constexpr,
):
    for tile in range(first_tile, end_tile):
        column = tile * SLOTS + tl.arange(0, SLOTS)
        slot = tl.load(slots_ptr + column, mask=column < length, other=-1)
        valid = (slot >= 0) & (slot < num_slots)
        slot = tl.where(valid, slot, 0)
        page = cache_ptr + (slot // PAGE_SIZE).to(tl.int64) * page_stride
        entry = slot % PAGE_SIZE
        codes = page + entry * CODE_BYTES
        scales = page + PAGE_SIZE * CODE_BYTES + entry * SCALE_BYTES
        keys = load_keys(codes, scales, valid, FORMAT, SLOTS)
        score = tl.dot(query, tl.trans(keys))
        if FORMAT == "F3":
            tail = load_bytes((codes + 448).to(tl.pointer_type(tl.bfloat16)), valid, 64, 64)
            score = tl.dot(query_tail, tl.trans(tail), score)

        score = tl.where(valid[None, :], score * SCORE_SCALE, -float("inf"))
        new_top = tl.maximum(top, tl.max(score, axis=1))
        shrink = tl.exp2(top - new_top)
        weight = tl.exp2(score - new_top[:, None])
        total = total * shrink + tl.sum(weight, axis=1)
        weight = weight.to(tl.bfloat16)
        out = tl.dot(weight, keys, out * shrink[:, None])
        if FORMAT == "F3":
            out_tail = tl.dot(weight, tail, out_tail * shrink[:, None])
        top = new_top
    return top, total, out, out_tail


@triton.jit(do_not_specialize=["heads", "window_slots", "compressed_slots", "tiles_per_split"])
def decode_kernel(
    out_ptr,  # bf16 [rows, heads, 512], or with PARTIAL fp32 [rows, splits, heads, 512]
    top_ptr,  # with PARTIAL fp32 [rows, splits, heads]
    total_ptr,  # the same
    query_ptr,  # bf16 [rows, heads, 512]
    sink_ptr,  # fp32 [heads]
    window_cache_ptr,  # u8
    window_page_stride,
    window_slots,  # of the cache
    window_slots_ptr,  # int32 [rows, WINDOW_WIDTH]
    window_lens_ptr,  # int32 [rows]
    compressed_cache_ptr,
    compressed_page_stride,
    compressed_slots,
    compressed_slots_ptr,
    compressed_lens_ptr,
    heads,
    tiles_per_split,
    WINDOW_FORMAT: tl.constexpr,
    WINDOW_PAGE_SIZE: tl.constexpr,
    WINDOW_CODE_BYTES: tl.constexpr,
    WINDOW_SCALE_BYTES: tl.constexpr,
    WINDOW_WIDTH: tl.constexpr,
    COMPRESSED_FORMAT: tl.constexpr,
    COMPRESSED_PAGE_SIZE: tl.constexpr,
    COMPRESSED_CODE_BYTES: tl.constexpr,
    COMPRESSED_SCALE_BYTES: tl.constexpr,
    COMPRESSED_WIDTH: tl.constexpr,  # 0 without a second list
    PARTIAL: tl.constexpr,
    SCORE_SCALE: tl.constexpr,
    LOG2_E: tl.constexpr,
    HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    row, split = tl.program_id(0), tl.program_id(2)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    in_range = head < heads
    column = tl.arange(0, 512)
    query_row = query_ptr + (row.to(tl.int64) * heads + head)[:, None] * 512
    query = tl.load(query_row + column[None, :], mask=in_range[:, None], other=0.0)
    query_tail = tl.load(
        query_row + 448 + tl.arange(0, 64)[None, :], mask=in_range[:, None], other=0.0
    )

    top = tl.full((HEADS,), -1e30, dtype=tl.float32)
    total = tl.zeros((HEADS,), dtype=tl.float32)
    out = tl.zeros((HEADS, 512), dtype=tl.float32)
    out_tail = tl.zeros((HEADS, 64), dtype=tl.float32)
    window_tiles: tl.constexpr = (WINDOW_WIDTH + SLOTS - 1) // SLOTS
    compressed_tiles: tl.constexpr = (COMPRESSED_WIDTH + SLOTS - 1) // SLOTS
    first = split * tiles_per_split
    end = tl.minimum(first + tiles_per_split, window_tiles + compressed_tiles)
    top, total, out, out_tail = attend(
        top,
        total,
        out,
        out_tail,
        query,
        query_tail,
        window_cache_ptr,
        window_page_stride,
        window_slots,
        window_slots_ptr + row.to(tl.int64) * WINDOW_WIDTH,
        tl.minimum(tl.load(window_lens_ptr + row), WINDOW_WIDTH),
        first,
        tl.minimum(end, window_tiles),
        WINDOW_FORMAT,
        WINDOW_PAGE_SIZE,
        WINDOW_CODE_BYTES,
        WINDOW_SCALE_BYTES,
        SCORE_SCALE,
        SLOTS,
    )
    if COMPRESSED_WIDTH > 0:
        top, total, out, out_tail = attend(
            top,
            total,
            out,
            out_tail,
            query,
            query_tail,
            compressed_cache_ptr,
            compressed_page_stride,
            compressed_slots,
            compressed_slots_ptr + row.to(tl.int64) * COMPRESSED_WIDTH,
            tl.minimum(tl.load(compressed_lens_ptr + row), COMPRESSED_WIDTH),
            tl.maximum(first, window_tiles) - window_tiles,
            end - window_tiles,
            COMPRESSED_FORMAT,
            COMPRESSED_PAGE_SIZE,
            COMPRESSED_CODE_BYTES,
            COMPRESSED_SCALE_BYTES,
            SCORE_SCALE,
            SLOTS,
        )

    if PARTIAL:
        at = (row.to(tl.int64) * tl.num_programs(2) + split) * heads + head
        tl.store(top_ptr + at, top, mask=in_range)
        tl.store(total_ptr + at, total, mask=in_range)
    else:
        at = row.to(tl.int64) * heads + head
        sink = tl.load(sink_ptr + head, mask=in_range, other=0.0)
        total += tl.exp2(sink * LOG2_E - top)
        inverse = 1 / tl.maximum(total, 1.0)  # below 1 only in a row without slots
        out *= inverse[:, None]
        out_tail *= inverse[:, None]
    out_row = out_ptr + at[:, None] * 512
    value = out.to(out_ptr.dtype.element_ty)
    if WINDOW_FORMAT == "F3":
        tl.store(out_row + column[None, :], value, mask=in_range[:, None] & (column < 448)[None, :])
        tail = out_tail.to(out_ptr.dtype.element_ty)
        tl.store(out_row + 448 + tl.arange(0, 64)[None, :], tail, mask=in_range[:, None])
    else:
        tl.store(out_row + column[None, :], value, mask=in_range[:, None])


@triton.jit(do_not_specialize=["heads", "splits"])
def combine_kernel(
    out_ptr,  # bf16 [rows, heads, 512]
    partial_ptr,  # fp32 [rows, splits, heads, 512]
    top_ptr,  # fp32 [rows, splits, heads]
    total_ptr,  # the same
    sink_ptr,  # fp32 [heads]
    heads,
    splits,
    LOG2_E: tl.constexpr,
    SPLITS: tl.constexpr,  # splits or more
):
    row, head = tl.program_id(0), tl.program_id(1)
    first = row.to(tl.int64) * splits * heads + head
    slot = tl.arange(0, SPLITS)
    tops = tl.load(top_ptr + first + slot * heads, mask=slot < splits, other=-1e30)
    totals = tl.load(total_ptr + first + slot * heads, mask=slot < splits, other=0.0)
    top = tl.max(tops, axis=0)
    total = tl.sum(totals * tl.exp2(tops - top), axis=0)
    total += tl.exp2(tl.load(sink_ptr + head) * LOG2_E - top)

    column = tl.arange(0, 512)
    out = tl.zeros((512,), dtype=tl.float32)
    for split in range(splits):
        weight = tl.exp2(tl.load(top_ptr + first + split * heads) - top)
        out += weight * tl.load(partial_ptr + (first + split * heads) * 512 + column)
    out = out / tl.maximum(total, 1.0)
    tl.store(out_ptr + (row.to(tl.int64) * heads + head) * 512 + column, out.to(tl.bfloat16))


def list_constants(name, slots):
    return {
        f"{name}_FORMAT": slots.layout.name,
        f"{name}_PAGE_SIZE": slots.page_size,
        f"{name}_CODE_BYTES": slots.layout.code_bytes,
        f"{name}_SCALE_BYTES": slots.layout.scale_bytes,
    }


def sparse_mla_decode(out, query, window, compressed, sink, config, splits=None):
    """Both lists are `SlotList`s; `compressed` may be None."""
    rows, heads, _ = query.shape
    second = compressed or window
    compressed_width = compressed.slots.shape[1] if compressed else 0
    tiles = triton.cdiv(window.slots.shape[1], config.slots)
    tiles += triton.cdiv(compressed_width, config.slots)
    head_blocks = triton.cdiv(heads, config.heads)
    splits = splits or min(max(config.programs // (rows * head_blocks), 1), tiles, MOST_SPLITS)
    tiles_per_split = triton.cdiv(tiles, splits)
    splits = triton.cdiv(tiles, tiles_per_split)
    partial = top = total = out
    if splits > 1:
        float32 = {"dtype": torch.float32, "device": out.device}
        partial = torch.empty((rows, splits, heads, HEAD_DIM), **float32)
        top, total = (torch.empty((rows, splits, heads), **float32) for _ in range(2))
    launch(
        decode_kernel,
        (rows, head_blocks, splits),
        partial,
        top,
        total,
        query,
        sink,
        *window.kernel_arguments(),
        *second.kernel_arguments(),
        heads,
        tiles_per_split,
        **list_constants("WINDOW", window),
        WINDOW_WIDTH=window.slots.shape[1],
        **list_constants("COMPRESSED", second),
        COMPRESSED_WIDTH=compressed_width,
        PARTIAL=splits > 1,
        SCORE_SCALE=HEAD_DIM**-0.5 * LOG2_E,
        LOG2_E=LOG2_E,
        HEADS=config.heads,
        SLOTS=config.slots,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    if splits > 1:
        launch(
            combine_kernel,
            (rows, heads),
            out,
            partial,
            top,
            total,
            sink,
            heads,
            splits,
            LOG2_E=LOG2_E,
            SPLITS=MOST_SPLITS,
        )
