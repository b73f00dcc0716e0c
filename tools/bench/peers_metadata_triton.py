"""topk_to_slots, window_slots, ragged_indptr and ragged_keys in Triton."""

import torch
import triton
import triton.language as tl

from peers_reference import WINDOW
from peers_triton import launch

WARPS = (1, 2, 4)
KEY_CONFIGS = ((256, 2), (512, 4), (1024, 4))  # keys of a program, warps


@triton.jit
def slot_of(table_ptr, entry, mask, PAGE_SIZE: tl.constexpr):
    page = tl.load(table_ptr + entry // PAGE_SIZE, mask=mask, other=0)
    return tl.where(mask, page * PAGE_SIZE + entry % PAGE_SIZE, -1)


@triton.jit
def topk_to_slots_kernel(
    slots_ptr,
    lens_ptr,
    topk_ptr,
    requests_ptr,
    is_valid_ptr,
    table_ptr,
    table_stride,
    TOP_K: tl.constexpr,
    PADDED: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    is_valid = tl.load(is_valid_ptr + row) != 0
    entry = tl.load(topk_ptr + row * TOP_K + column, mask=column < TOP_K, other=-1)
    counts = (entry >= 0) & is_valid
    table = table_ptr + tl.load(requests_ptr + row).to(tl.int64) * table_stride
    slot = slot_of(table, entry, counts, PAGE_SIZE)
    tl.store(slots_ptr + row * TOP_K + column, slot, mask=column < TOP_K)
    tl.store(lens_ptr + row, tl.sum(counts.to(tl.int32), axis=0))


def topk_to_slots(out, c, warps):
    top_k = c.topk.shape[1]
    launch(
        topk_to_slots_kernel,
        (len(c.topk),),
        *(*out, c.topk, c.requests, c.is_valid, c.table, c.table.stride(0)),
        TOP_K=top_k,
        PADDED=triton.next_power_of_2(top_k),
        PAGE_SIZE=c.page_size,
        num_warps=warps,
    )


@triton.jit
def window_slots_kernel(
    slots_ptr,
    lens_ptr,
    positions_ptr,
    requests_ptr,
    is_valid_ptr,
    table_ptr,
    table_stride,
    WINDOW: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WINDOW)
    position = tl.load(positions_ptr + row)
    start = tl.maximum(position - (WINDOW - 1), 0)
    length = tl.where(tl.load(is_valid_ptr + row) != 0, position - start + 1, 0)
    table = table_ptr + tl.load(requests_ptr + row).to(tl.int64) * table_stride
    slot = slot_of(table, start + column, column < length, PAGE_SIZE)
    tl.store(slots_ptr + row * WINDOW + column, slot)
    tl.store(lens_ptr + row, length)


def window_slots(out, c, warps):
    launch(
        window_slots_kernel,
        (len(c.positions),),
        *(*out, c.positions, c.requests, c.is_valid, c.table, c.table.stride(0)),
        WINDOW=WINDOW,
        PAGE_SIZE=c.page_size,
        num_warps=warps,
    )


@triton.jit
def pack_kernel(indices_ptr, slots_ptr, indptr_ptr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    begin = tl.load(indptr_ptr + row)
    length = tl.load(indptr_ptr + row + 1) - begin
    column = tl.arange(0, COLUMNS)
    slot = tl.load(slots_ptr + row * COLUMNS + column, mask=column < length, other=0)
    tl.store(indices_ptr + begin + column, slot, mask=column < length)


def ragged_indptr(out, c, warps):
    """As stacks do it: the sums by torch, one kernel that packs."""
    indptr, indices = out
    indptr[:1].zero_()
    torch.cumsum(c.lens, 0, dtype=torch.int32, out=indptr[1:])
    launch(
        pack_kernel,
        (len(c.lens),),
        *(indices, c.slots, indptr),
        COLUMNS=c.slots.shape[1],
        num_warps=warps,
    )


@triton.jit(do_not_specialize=["num_requests"])
def request_lens_kernel(
    lens_ptr,
    gather_lens_ptr,
    indptr_ptr,
    starts_ptr,
    seq_lens_ptr,
    num_requests,
    RATIO: tl.constexpr,
    WINDOW: tl.constexpr,
    REQUESTS: tl.constexpr,
):
    b = tl.arange(0, REQUESTS)
    mask = b < num_requests
    seq_len = tl.load(seq_lens_ptr + b, mask=mask, other=0)
    query = tl.load(starts_ptr + b + 1, mask=mask, other=0) - tl.load(
        starts_ptr + b, mask=mask, other=0
    )
    length = seq_len // RATIO
    tl.store(lens_ptr + b, length, mask=mask)
    tl.store(gather_lens_ptr + b, query + tl.minimum(seq_len - query, WINDOW - 1), mask=mask)
    tl.store(indptr_ptr + 1 + b, tl.cumsum(length, axis=0), mask=mask)
    tl.store(indptr_ptr, 0)


@triton.jit
def keys_kernel(
    indices_ptr, indptr_ptr, table_ptr, table_stride, PAGE_SIZE: tl.constexpr, KEYS: tl.constexpr
):
    b = tl.program_id(1)
    key = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    begin = tl.load(indptr_ptr + b)
    mask = key < tl.load(indptr_ptr + b + 1) - begin
    slot = slot_of(table_ptr + b.to(tl.int64) * table_stride, key, mask, PAGE_SIZE)
    tl.store(indices_ptr + begin + key, slot, mask=mask)


@triton.jit
def rows_kernel(
    requests_ptr,
    positions_ptr,
    key_begin_ptr,
    key_end_ptr,
    starts_ptr,
    seq_lens_ptr,
    indptr_ptr,
    RATIO: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A program writes the rows of one request, as far as they lie in its part."""
    b = tl.program_id(1)
    end = tl.load(starts_ptr + b + 1)
    row = tl.load(starts_ptr + b) + tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = row < end
    position = tl.load(seq_lens_ptr + b) - end + row
    begin = tl.load(indptr_ptr + b)
    nothing = tl.zeros([ROWS], tl.int32)
    tl.store(requests_ptr + row, nothing + b, mask=mask)
    tl.store(positions_ptr + row, position, mask=mask)
    tl.store(key_begin_ptr + row, nothing + begin, mask=mask)
    tl.store(key_end_ptr + row, begin + (position + 1) // RATIO, mask=mask)


def ragged_keys(out, c, config):
    keys, warps = config
    lens, gather_lens, indptr, indices, *of_rows = out
    requests = len(c.seq_lens)
    launch(
        request_lens_kernel,
        (1,),
        *(lens, gather_lens, indptr, c.query_start_loc, c.seq_lens, requests),
        RATIO=c.ratio,
        WINDOW=WINDOW,
        REQUESTS=triton.next_power_of_2(requests),
        num_warps=1,
    )
    launch(
        keys_kernel,
        (triton.cdiv(c.max_keys, keys), requests),
        *(indices, indptr, c.table, c.table.stride(0)),
        PAGE_SIZE=c.page_size,
        KEYS=keys,
        num_warps=warps,
    )
    launch(
        rows_kernel,
        (triton.cdiv(triton.cdiv(c.num_rows, requests), keys), requests),
        *(*of_rows, c.query_start_loc, c.seq_lens, indptr),
        RATIO=c.ratio,
        ROWS=keys,
        num_warps=warps,
    )
