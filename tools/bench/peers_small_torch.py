"""The small ops in PyTorch, as a plain serving stack writes them: tensor operations only.

Rows without a slot go to page 0, which belongs to nobody, as is usual.
"""

import functools

import torch

from peers_reference import WINDOW
from peers_torch import page_regions

EPSILON = 1e-20
ROPE_DIMS = 64


def rms_norm(x, weight):
    x = x.float()
    r = torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)
    return (x * r * weight).to(torch.bfloat16)


def rotated(x, positions, table, inverse=False):
    """x bf16 [T, 64] or [T, H, 64]."""
    cos, sin = table[positions].chunk(2, -1)
    if x.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    if inverse:
        pairs = a * cos + b * sin, b * cos - a * sin
    else:
        pairs = a * cos - b * sin, a * sin + b * cos
    return torch.stack(pairs, -1).flatten(-2).to(torch.bfloat16)


def with_rope(x, positions, table):
    tail = rotated(x[..., -ROPE_DIMS:], positions, table)
    return torch.cat((x[..., :-ROPE_DIMS], tail), -1)


def power_of_two(amax, largest):
    """Biased exponent of the least power of two that is no smaller than amax / largest."""
    return ((amax * (1 / largest)).view(torch.int32) + 0x7FFFFF) >> 23


def inverse_of(exponent):
    return ((254 - exponent) << 23).view(torch.float32)


def to_e4m3(x, size):
    """Codes and biased exponents, of groups of `size`."""
    groups = x.float().unflatten(-1, (-1, size))
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    exponent = power_of_two(amax, 448)
    codes = (groups * inverse_of(exponent)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.flatten(-2), exponent.squeeze(-1)


@functools.cache
def e2m1_bounds(device):
    """A number is code i where so many bounds are below it; ties go to the even code."""
    bounds = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device=device)
    bounds[1:6:2] = torch.nextafter(bounds[1:6:2], torch.zeros(3, device=device))
    return bounds


def e2m1_codes(x):
    code = torch.bucketize(x.abs(), e2m1_bounds(x.device), out_int32=True)
    return (code | (torch.signbit(x).int() << 3)).to(torch.uint8)


def packed(codes):
    return codes[..., ::2] | (codes[..., 1::2] << 4)


def q4m(x):
    groups = x.float().unflatten(-1, (-1, 32))
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-126)
    exponent = power_of_two(amax, 6)
    codes = e2m1_codes(groups * inverse_of(exponent)).flatten(-2)
    return packed(codes), exponent.squeeze(-1).to(torch.uint8)


def q4n(x):
    """Codes, not packed, and scales E4M3."""
    groups = x.float().unflatten(-1, (-1, 16))
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-9)
    scale = (amax * (1 / 6)).clamp(max=448).to(torch.float8_e4m3fn)
    return e2m1_codes(groups / scale.float()).flatten(-2), scale.squeeze(-1)


@functools.cache
def e2m1_values(device):
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    return torch.tensor(values + [-value for value in values], device=device)


def fake_quantised(x, quantiser):
    if quantiser == "q8a":
        codes, exponent = to_e4m3(x, 32)
        values, scale, size = codes.float(), (exponent << 23).view(torch.float32), 32
    else:
        codes, scale = q4n(x)
        values, scale, size = e2m1_values(x.device)[codes.int()], scale.float(), 16
    values = values.unflatten(-1, (-1, size)) * scale.unsqueeze(-1)
    return values.flatten(-2).to(torch.bfloat16)


def entries(x, layout, quantiser):
    """Bytes of codes and of scales (None: none) of rows."""
    if layout == "F1":
        codes, exponent = to_e4m3(x, 32)
        return codes.view(torch.uint8), exponent.to(torch.uint8)
    if layout == "F2":
        codes, scale = q4n(x)
        return packed(codes), scale.view(torch.uint8)
    if layout == "F3":
        codes, exponent = to_e4m3(x[:, :448], 64)
        codes = torch.cat((codes.view(torch.uint8), x[:, 448:].contiguous().view(torch.uint8)), 1)
        return codes, torch.nn.functional.pad(exponent.to(torch.uint8), (0, 1))
    if layout == "F4":
        return fake_quantised(x, quantiser).view(torch.uint8), None
    if layout == "F5":
        return q4m(x)
    codes, exponent = to_e4m3(x, 128)  # F6
    return codes.view(torch.uint8), (exponent << 23).view(torch.uint8)


def insert(cache, x, weight, positions, slots, table, layout, page_size, quantiser, ratio):
    if weight is not None:
        x = rms_norm(x, weight)
    x = with_rope(x, positions - positions % ratio, table)
    slots = slots.clamp(min=0)
    page, row = slots // page_size, slots % page_size
    codes, scales = page_regions(cache, layout, page_size)
    new_codes, new_scales = entries(x, layout.name, quantiser)
    codes[page, row] = new_codes
    if new_scales is not None:
        scales[page, row] = new_scales


def index_query(q, head_weights, positions, table, output):
    """Codes, scales (q4m) and weights."""
    x = with_rope(q, positions, table)
    weights = head_weights.float() * 2.0**-6
    if output == "q4m":
        return *q4m(x), weights
    codes, exponent = to_e4m3(x, 128)
    return codes.view(torch.uint8), weights * (exponent << 23).view(torch.float32).squeeze(-1)


def compressor_update(projections, positions, requests, query_start_loc, blocks, weight, ring):
    """A latent for each row, of use where its token completes a group. Without ring: ratio 1."""
    if ring is None:
        return rms_norm(projections.to(torch.bfloat16), weight)
    rows, tokens = ring.shape[1], projections.shape[0]
    first = query_start_loc[requests]
    row = torch.arange(tokens, device=projections.device)
    partner = torch.where(
        (row == first)[:, None],
        ring[blocks[requests], (positions - 1) % rows],
        projections.roll(1, 0),
    )
    score = torch.stack((partner[:, 512:], projections[:, 512:])).softmax(0)
    pooled = (torch.stack((partner[:, :512], projections[:, :512])) * score).sum(0)
    latent = rms_norm(pooled.to(torch.bfloat16), weight)

    end = query_start_loc[1:, None]
    last = end - rows + torch.arange(rows, device=row.device)
    kept = last >= query_start_loc[:-1, None]
    last = last.clamp(min=0)
    block = torch.where(kept, blocks[:, None], 0)  # block 0 belongs to nobody
    ring[block, positions[last] % rows] = projections[last]
    return latent


def slots_of(entry, requests, table, page_size):
    """entry [T, K], at least 0."""
    page = table[requests].gather(1, entry // page_size)
    return page * page_size + entry % page_size


def topk_to_slots(topk, requests, is_valid, table, page_size):
    counts = (topk >= 0) & is_valid.bool()[:, None]
    slots = slots_of(topk.clamp(min=0).long(), requests, table, page_size)
    return torch.where(counts, slots, -1), counts.sum(1, dtype=torch.int32)


def window_slots(positions, requests, is_valid, table, page_size):
    start = (positions - (WINDOW - 1)).clamp(min=0)
    length = torch.where(is_valid.bool(), positions - start + 1, 0)
    column = torch.arange(WINDOW, device=positions.device)
    counts = column < length[:, None]
    position = torch.minimum(start[:, None] + column, positions[:, None]).long()
    slots = slots_of(position, requests, table, page_size)
    return torch.where(counts, slots, -1), length.int()


def ragged_indptr(slots, lens):
    """Boundaries, and indices with room for all: an element of nobody takes what does not count."""
    indptr = torch.nn.functional.pad(lens.cumsum(0, dtype=torch.int32), (1, 0))
    column = torch.arange(slots.shape[1], device=slots.device)
    counts = column < lens[:, None]
    at = torch.where(counts, indptr[:-1, None] + column, slots.numel())
    indices = torch.empty(slots.numel() + 1, dtype=torch.int32, device=slots.device)
    indices[at] = slots
    return indptr, indices[:-1]


def ragged_keys(query_start_loc, seq_lens, table, ratio, page_size, num_rows, num_keys):
    query = query_start_loc.diff()
    lens = seq_lens // ratio
    gather_lens = query + (seq_lens - query).clamp(max=WINDOW - 1)
    indptr = torch.nn.functional.pad(lens.cumsum(0, dtype=torch.int32), (1, 0))
    key = torch.arange(num_keys, dtype=torch.int32, device=lens.device)
    request = torch.searchsorted(indptr, key, right=True) - 1
    entry = key - indptr[request]
    indices = table[request, entry // page_size] * page_size + entry % page_size
    row = torch.arange(num_rows, dtype=torch.int32, device=lens.device)
    requests = torch.searchsorted(query_start_loc, row, right=True, out_int32=True) - 1
    positions = (seq_lens - query_start_loc[1:])[requests] + row
    key_begin = indptr[requests]
    key_end = key_begin + (positions + 1) // ratio
    return lens, gather_lens, indptr, indices, requests, positions, key_begin, key_end
