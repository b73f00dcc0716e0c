"""Index rows and gather in PyTorch, as a user would write them: tensor operations only.

Gather lengths are Python integers, as in a serving loop that knows them on the host; that saves
PyTorch a synchronisation per call. Arithmetic is on bf16 tensors: exact here, and the fewest bytes.
"""

import functools

import torch

from peers_reference import HEAD_DIM, INDEX_WIDTH_MULTIPLE, WINDOW, round_up

E2M1_VALUES = (
    0.0,
    0.5,
    1.0,
    1.5,
    2.0,
    3.0,
    4.0,
    6.0,
    -0.0,
    -0.5,
    -1.0,
    -1.5,
    -2.0,
    -3.0,
    -4.0,
    -6.0,
)


def combine_topk_swa(topk, query_start_loc, seq_lens, gather_lens, *, ratio, top_k, n, m):
    """Returns the index rows int32[T, W] and their lengths int32[T]."""
    num_tokens, num_requests = topk.shape[0], seq_lens.shape[0]
    width = round_up(top_k + WINDOW, INDEX_WIDTH_MULTIPLE)
    starts = query_start_loc - query_start_loc[0]
    token = torch.arange(num_tokens, dtype=torch.int32, device=topk.device)
    request = torch.searchsorted(starts, token, right=True) - 1
    is_padding = request >= num_requests
    request = request.clamp(max=num_requests - 1)

    position = (seq_lens - starts[1:])[request] + token
    gather_start = (seq_lens - gather_lens)[request]
    if ratio == 0:
        compressed_len = torch.zeros_like(position)
    else:
        compressed_len = ((position + 1) // ratio).clamp(max=top_k)
    window_start = torch.maximum(position - (WINDOW - 1), gather_start).clamp(min=0)
    length = compressed_len + position - window_start + 1
    compressed_len = compressed_len.masked_fill(is_padding, 0)
    length = length.masked_fill(is_padding, 0)

    column = torch.arange(width, dtype=torch.int32, device=topk.device)
    base = (request * m).to(torch.int32)[:, None]
    entry = torch.nn.functional.pad(topk[:, :top_k], (0, width - top_k), value=-1)
    compressed = torch.where((entry >= 0) & (entry < n), base + entry, -1)
    window = base + n + (window_start - gather_start - compressed_len)[:, None] + column
    index = torch.where(column < length[:, None], window, -1)
    index = torch.where(column < compressed_len[:, None], compressed, index)
    return index.to(torch.int32), length.to(torch.int32)


@functools.cache
def e2m1_table(device):
    return torch.tensor(E2M1_VALUES, dtype=torch.bfloat16, device=device)


def page_regions(cache, layout, page_size):
    """Views of a cache u8[pages, page stride]: codes and scales, [pages, page_size, bytes] each."""
    split = page_size * layout.code_bytes
    end = split + page_size * layout.scale_bytes
    codes = cache[:, :split].unflatten(1, (page_size, layout.code_bytes))
    scales = (
        cache[:, split:end].unflatten(1, (page_size, layout.scale_bytes)) if end > split else None
    )
    return codes, scales


def scale_groups(out, values, scales, group):
    """out = values * scales, one scale for each `group` values; all bf16."""
    torch.mul(
        values.unflatten(-1, (-1, group)), scales.unsqueeze(-1), out=out.unflatten(-1, (-1, group))
    )


def dequantize(out, codes, scales, layout):
    """Codes and scales of `rows` entries to bf16 out[rows, 512]."""
    if layout.name == "F1":
        values = codes.view(torch.float8_e4m3fn).to(torch.bfloat16)
        scale_groups(out, values, scales.view(torch.float8_e8m0fnu).to(torch.bfloat16), 32)
    elif layout.name == "F2":
        nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
        values = e2m1_table(codes.device)[nibbles.int()]
        scale_groups(out, values, scales.view(torch.float8_e4m3fn).to(torch.bfloat16), 16)
    elif layout.name == "F3":
        values = codes[:, :448].view(torch.float8_e4m3fn).to(torch.bfloat16)
        scales = scales[:, :7].view(torch.float8_e8m0fnu).to(torch.bfloat16)
        scale_groups(out[:, :448], values, scales, 64)
        out[:, 448:] = codes[:, 448:].view(torch.bfloat16)
    else:
        out.copy_(codes.view(torch.bfloat16))


def gather_dequant_kv(out, cache, layout, page_size, lens, gather_lens, block_table, offset):
    """Writes bf16 out[request, offset + i, :] for the last gather_lens entries of every request."""
    assert out.shape[-1] == HEAD_DIM
    codes, scales = page_regions(cache, layout, page_size)
    for request, length in enumerate(lens):
        gathered = length if gather_lens is None else gather_lens[request]
        entry = torch.arange(length - gathered, length, device=cache.device)
        page = block_table[request][entry // page_size].long()
        row = entry % page_size
        dequantize(
            out[request, offset : offset + gathered],
            codes[page, row],
            None if scales is None else scales[page, row],
            layout,
        )
