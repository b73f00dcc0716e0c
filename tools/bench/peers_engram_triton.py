"""embed_expand, engram_hash, engram_fetch and engram_inject in Triton."""

import triton
import triton.language as tl

from peers_small_triton import inverse_rms
from peers_triton import launch

EMBED_CONFIGS = ((1024, 4), (2048, 4), (8192, 8))  # columns of a program, warps
HASH_CONFIGS = ((64, 2), (256, 4))  # columns of tokens of a program, warps
FETCH_CONFIGS = ((1, 1), (4, 4), (16, 4))  # pairs of row and head of a program, warps
INJECT_WARPS = (4, 8, 16)


@triton.jit
def embed_kernel(
    h_ptr,  # bf16 [rows, STREAMS, COLUMNS]
    ids_ptr,
    table_ptr,
    first_id,
    num_embeddings,
    STREAMS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < COLUMNS
    place = tl.load(ids_ptr + row) - first_id
    is_own = (place >= 0) & (place < num_embeddings)
    x = tl.load(table_ptr + place.to(tl.int64) * COLUMNS + column, mask=mask & is_own, other=0.0)
    h = h_ptr + row * STREAMS * COLUMNS + column
    for stream in tl.static_range(STREAMS):
        tl.store(h + stream * COLUMNS, x, mask=mask)


def embed_expand(h, c, config):
    block, warps = config
    columns = c.table.shape[1]
    launch(
        embed_kernel,
        (len(c.ids), triton.cdiv(columns, block)),
        *(h, c.ids, c.table, c.first_id, len(c.table)),
        STREAMS=c.num_streams,
        COLUMNS=columns,
        BLOCK=block,
        num_warps=warps,
    )


@triton.jit(do_not_specialize=["count"])
def hash_kernel(
    rows_ptr,  # int32 [tokens, 3 * HEADS]
    ids_ptr,
    requests_ptr,
    starts_ptr,
    history_ptr,
    multipliers_ptr,
    primes_ptr,
    offsets_ptr,
    count,  # of rows_ptr
    PAD_ID: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    t = at // (3 * HEADS)
    column = at % (3 * HEADS)
    request = tl.load(requests_ptr + t, mask=mask, other=0)
    place = t - tl.load(starts_ptr + request, mask=mask, other=0)
    is_alive = mask
    r = tl.zeros([BLOCK], tl.int64)
    for back in tl.static_range(4):
        is_own = place >= back
        token = tl.load(ids_ptr + t - back, mask=mask & is_own, other=-1)
        before = history_ptr + request * 3 + 3 + place - back
        before = tl.load(before, mask=mask & ~is_own, other=-1)
        token = tl.where(is_own, token, before)
        is_alive = is_alive & (token >= 0)
        token = tl.where(is_alive, token, PAD_ID).to(tl.int64)
        term = token * tl.load(multipliers_ptr + back)
        r = tl.where(back <= column // HEADS + 1, r ^ term, r)
    prime = tl.load(primes_ptr + column, mask=mask, other=1).to(tl.int64)
    offset = tl.load(offsets_ptr + column, mask=mask, other=0)
    tl.store(rows_ptr + at, (r % prime).to(tl.int32) + offset, mask=mask)


def engram_hash(rows, c, config):
    block, warps = config
    launch(
        hash_kernel,
        (triton.cdiv(rows.numel(), block),),
        *(rows, c.ids, c.requests, c.query_start_loc, c.history),
        *(c.multipliers, c.primes, c.offsets, rows.numel()),
        PAD_ID=c.pad_id,
        HEADS=len(c.primes) // 3,
        BLOCK=block,
        num_warps=warps,
    )


@triton.jit
def fetch_kernel(
    x_ptr,  # bf16, or codes
    x_scales_ptr,
    rows_ptr,
    table_ptr,
    scales_ptr,
    count,  # of rows_ptr
    COLUMNS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_BF16: tl.constexpr,
):
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    group = tl.arange(0, PADDED // 32)
    column = tl.arange(0, PADDED)
    is_pair = pair < count
    row = tl.load(rows_ptr + pair, mask=is_pair, other=0).to(tl.int64)[:, None]
    mask = is_pair[:, None] & (column < COLUMNS)[None, :]
    mask_of_groups = is_pair[:, None] & (group < COLUMNS // 32)[None, :]
    codes = tl.load(table_ptr + row * COLUMNS + column[None, :], mask=mask, other=0)
    scale = tl.load(
        scales_ptr + row * (COLUMNS // 32) + group[None, :], mask=mask_of_groups, other=0
    )
    to = pair.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    if IS_BF16:
        # By integers: there is no FP8 type below sm_89.
        bits = codes.to(tl.int32)
        bits = ((bits & 128) << 24) | ((bits & 127) << 20)
        value = bits.to(tl.float32, bitcast=True) * 2.0**120
        factor = (scale.to(tl.int32) << 23).to(tl.float32, bitcast=True)
        value = tl.reshape(value, [BLOCK, PADDED // 32, 32]) * factor[:, :, None]
        tl.store(x_ptr + to, tl.reshape(value, [BLOCK, PADDED]).to(tl.bfloat16), mask=mask)
    else:
        tl.store(x_ptr + to, codes, mask=mask)
        to_scales = pair.to(tl.int64)[:, None] * (COLUMNS // 32) + group[None, :]
        tl.store(x_scales_ptr + to_scales, scale, mask=mask_of_groups)


def engram_fetch(out, c, config):
    block, warps = config
    columns = c.table.shape[1]
    launch(
        fetch_kernel,
        (triton.cdiv(c.rows.numel(), block),),
        *(out[0], out[-1], c.rows, c.table, c.scales, c.rows.numel()),
        COLUMNS=columns,
        PADDED=triton.next_power_of_2(columns),
        BLOCK=block,
        IS_BF16=c.is_bf16,
        num_warps=warps,
    )


@triton.jit
def inject_kernel(
    h_ptr,  # bf16 [rows, STREAMS, COLUMNS]
    keys_ptr,  # bf16 [rows, STREAMS + 1, COLUMNS], the last is the value
    q_weight_ptr,
    k_weight_ptr,
    ids_ptr,
    STREAMS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDED: tl.constexpr,
    ROOT: tl.constexpr,  # of COLUMNS
):
    row = tl.program_id(0).to(tl.int64)
    stream = tl.program_id(1)
    column = tl.arange(0, PADDED)
    mask = (column < COLUMNS) & (tl.load(ids_ptr + row) >= 0)
    h = h_ptr + (row * STREAMS + stream) * COLUMNS + column
    keys = keys_ptr + row * (STREAMS + 1) * COLUMNS + column
    weight = stream * COLUMNS + column
    x = tl.load(h, mask=mask, other=0.0).to(tl.float32)
    key = tl.load(keys + stream * COLUMNS, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(keys + STREAMS * COLUMNS, mask=mask, other=0.0).to(tl.float32)
    q = tl.load(q_weight_ptr + weight, mask=mask, other=0.0).to(tl.float32)
    k = tl.load(k_weight_ptr + weight, mask=mask, other=0.0).to(tl.float32)
    dot = tl.sum(x * (q * k) * key, axis=0)
    dot *= inverse_rms(tl.sum(x * x, axis=0), COLUMNS)
    dot *= inverse_rms(tl.sum(key * key, axis=0), COLUMNS)
    dot /= ROOT
    size = tl.sqrt(tl.maximum(tl.abs(dot), 1e-6))
    gate = 1 / (1 + tl.exp(tl.where(dot < 0, size, -size)))
    tl.store(h, (x + gate * value).to(tl.bfloat16), mask=mask)


def engram_inject(h, c, warps):
    rows, streams, columns = h.shape
    launch(
        inject_kernel,
        (rows, streams),
        *(h, c.keys_and_value, c.q_weight, c.k_weight, c.ids),
        STREAMS=streams,
        COLUMNS=columns,
        PADDED=triton.next_power_of_2(columns),
        ROOT=columns**0.5,
        num_warps=warps,
    )
