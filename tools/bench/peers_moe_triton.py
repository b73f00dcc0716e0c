"""moe_route, moe_align and moe_combine in Triton.

moe_align has the stages of the moe_align_block_size that stacks had in Triton: pairs are counted in
ranges, counts become places, and each range puts its pairs there. It is stable.
"""

import torch
import triton
import triton.language as tl

from peers_triton import launch

ROUTE_WARPS = (1, 2, 4)
ALIGN_WARPS = (1, 4)
COMBINE_CONFIGS = ((1024, 4), (2048, 4), (8192, 8))  # columns of a program, warps


@triton.jit
def route_kernel(
    ids_ptr,
    weights_ptr,
    logits_ptr,
    bias_ptr,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    TOP_K: tl.constexpr,
    PADDED_TOP_K: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, PADDED)
    mask = expert < EXPERTS
    logit = tl.load(logits_ptr + row * EXPERTS + expert, mask=mask, other=0.0)
    score = tl.sqrt(tl.where(logit > 20, logit, tl.log(1 + tl.exp(logit))))
    bias = tl.load(bias_ptr + expert, mask=mask, other=0.0)
    key = tl.where(mask, score + bias, -float("inf"))
    place = tl.arange(0, PADDED_TOP_K)
    ids = tl.zeros([PADDED_TOP_K], tl.int32)
    weights = tl.zeros([PADDED_TOP_K], tl.float32)
    for i in tl.static_range(TOP_K):
        chosen = tl.argmax(key, axis=0)
        is_chosen = expert == chosen
        weight = tl.sum(tl.where(is_chosen, score, 0.0), axis=0)
        ids = tl.where(place == i, chosen, ids)
        weights = tl.where(place == i, weight, weights)
        key = tl.where(is_chosen, -float("inf"), key)
    weights = weights / (tl.sum(weights, axis=0) + 1e-20) * 1.5
    at = row * TOP_K + place
    tl.store(ids_ptr + at, ids, mask=place < TOP_K)
    tl.store(weights_ptr + at, weights, mask=place < TOP_K)


def moe_route(out, c, warps):
    rows, experts = c.logits.shape
    launch(
        route_kernel,
        (rows,),
        *(*out, c.logits, c.bias),
        EXPERTS=experts,
        PADDED=triton.next_power_of_2(experts),
        TOP_K=c.top_k,
        PADDED_TOP_K=triton.next_power_of_2(c.top_k),
        num_warps=warps,
    )


@triton.jit(do_not_specialize=["num_pairs", "range_size"])
def count_kernel(counts_ptr, ids_ptr, num_pairs, range_size, EXPERTS: tl.constexpr):
    """counts [1 + ranges, EXPERTS], zeros before: how many of a range an expert has."""
    first = tl.program_id(0) * range_size
    counts = counts_ptr + (tl.program_id(0) + 1) * EXPERTS
    for pair in range(first, tl.minimum(first + range_size, num_pairs)):
        at = counts + tl.load(ids_ptr + pair)
        tl.store(at, tl.load(at) + 1)


@triton.jit
def add_ranges_kernel(counts_ptr, EXPERTS: tl.constexpr, PADDED: tl.constexpr):
    """Counts of the ranges before, for an expert; as many ranges as experts."""
    step = tl.arange(0, PADDED)
    at = counts_ptr + (step + 1) * EXPERTS + tl.program_id(0)
    mask = step < EXPERTS
    tl.store(at, tl.cumsum(tl.load(at, mask=mask, other=0), axis=0), mask=mask)


@triton.jit
def add_experts_kernel(
    starts_ptr,  # int32 [EXPERTS + 1], the first is 0 before
    total_ptr,
    counts_ptr,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    expert = tl.arange(0, PADDED)
    mask = expert < EXPERTS
    count = tl.load(counts_ptr + EXPERTS * EXPERTS + expert, mask=mask, other=0)
    padded = tl.cdiv(count, BLOCK_SIZE) * BLOCK_SIZE
    tl.store(starts_ptr + 1 + expert, tl.cumsum(padded, axis=0), mask=mask)
    tl.store(total_ptr, tl.sum(padded, axis=0))


@triton.jit(do_not_specialize=["num_pairs", "range_size"])
def place_kernel(
    pairs_ptr,
    experts_ptr,
    starts_ptr,
    counts_ptr,
    ids_ptr,
    num_pairs,
    range_size,
    EXPERTS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """A program writes the blocks of an expert, and the places of a range of pairs."""
    program = tl.program_id(0)
    end = tl.load(starts_ptr + program + 1)
    for at in range(tl.load(starts_ptr + program), end, BLOCK_SIZE):
        tl.store(experts_ptr + at // BLOCK_SIZE, program)
    first = program * range_size
    counts = counts_ptr + program * EXPERTS
    for pair in range(first, tl.minimum(first + range_size, num_pairs)):
        expert = tl.load(ids_ptr + pair)
        rank = tl.load(counts + expert)
        tl.store(pairs_ptr + tl.load(starts_ptr + expert) + rank, pair)
        tl.store(counts + expert, rank + 1)


def moe_align(out, c, warps):
    pairs, experts, total = out
    num_pairs, num_experts = c.ids.numel(), c.num_experts
    range_size = triton.cdiv(num_pairs, num_experts)
    int32 = {"dtype": torch.int32, "device": c.ids.device}
    counts = torch.zeros((num_experts + 1, num_experts), **int32)
    starts = torch.zeros(num_experts + 1, **int32)
    pairs.fill_(num_pairs)
    experts.fill_(-1)
    sizes = {"EXPERTS": num_experts, "num_warps": warps}
    padded = {"PADDED": triton.next_power_of_2(num_experts)}
    grid = (num_experts,)
    launch(count_kernel, grid, counts, c.ids, num_pairs, range_size, **sizes)
    launch(add_ranges_kernel, grid, counts, **sizes, **padded)
    launch(
        add_experts_kernel,
        (1,),
        *(starts, total, counts),
        **sizes,
        **padded,
        BLOCK_SIZE=c.block_size,
    )
    launch(
        place_kernel,
        grid,
        *(pairs, experts, starts, counts, c.ids, num_pairs, range_size),
        **sizes,
        BLOCK_SIZE=c.block_size,
    )


@triton.jit
def combine_kernel(
    y_ptr,
    pairs_ptr,  # bf16 [rows, TOP_K, COLUMNS]
    shared_ptr,
    TOP_K: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < COLUMNS
    pairs = pairs_ptr + row * TOP_K * COLUMNS + column
    acc = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(TOP_K):
        acc += tl.load(pairs + i * COLUMNS, mask=mask, other=0.0).to(tl.float32)
    at = row * COLUMNS + column
    acc += tl.load(shared_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, acc.to(tl.bfloat16), mask=mask)


def moe_combine(y, c, config):
    block, warps = config
    rows, top_k, columns = c.pairs.shape
    launch(
        combine_kernel,
        (rows, triton.cdiv(columns, block)),
        *(y, c.pairs, c.shared),
        TOP_K=top_k,
        COLUMNS=columns,
        BLOCK=block,
        num_warps=warps,
    )
