"""Residual streams, Engram, embedding and router in PyTorch, as a plain serving stack writes them.

Nothing is in place: a call returns new streams.
"""

import torch

from peers_small_torch import EPSILON, rms_norm

HC_EPSILON = 1e-6
SINKHORN_STEPS = 20


def hc_post(y, h, post, comb):
    mixed = torch.bmm(comb.mT, h.float())
    return (post.unsqueeze(-1) * y.float().unsqueeze(1) + mixed).to(torch.bfloat16)


def hc_post_sums(y, h, post, comb):
    """The same without a matrix product, which a compiler could not fuse."""
    mixed = (comb.unsqueeze(-1) * h.float().unsqueeze(2)).sum(1)
    return (post.unsqueeze(-1) * y.float().unsqueeze(1) + mixed).to(torch.bfloat16)


def sum_of_squares(h):
    return h.float().square().sum((1, 2))


def hc_fold_norm(h, pre, weight):
    folded = (pre.unsqueeze(-1) * h.float()).sum(1).to(torch.bfloat16)
    return rms_norm(folded, weight)


def hc_stats(h, fn, scale, base):
    v = h.flatten(1).float()
    m = torch.nn.functional.linear(v, fn)
    m = m * torch.rsqrt(v.square().mean(-1, keepdim=True) + EPSILON)
    pre = torch.sigmoid(m[:, :4] * scale[0] + base[:4]) + HC_EPSILON
    post = 2 * torch.sigmoid(m[:, 4:8] * scale[1] + base[4:8])
    return pre, post, sinkhorn((m[:, 8:] * scale[2] + base[8:]).unflatten(-1, (4, 4)))


def sinkhorn(logits):
    a = logits.softmax(-1) + HC_EPSILON
    a = a / (a.sum(-2, keepdim=True) + HC_EPSILON)
    for _ in range(SINKHORN_STEPS - 1):
        a = a / (a.sum(-1, keepdim=True) + HC_EPSILON)
        a = a / (a.sum(-2, keepdim=True) + HC_EPSILON)
    return a


def hc_post_fold_norm(y, h, post, comb, pre, weight):
    h = hc_post(y, h, post, comb)
    return h, hc_fold_norm(h, pre, weight)


def hc_post_fold_norm_sums(y, h, post, comb, pre, weight):
    h = hc_post_sums(y, h, post, comb)
    return h, hc_fold_norm(h, pre, weight)


def hc_boundary(y, h, post, comb, pre, weight, fn, scale, base):
    """From the output of a sub-layer to the input and the gates of the next one."""
    h, x = hc_post_fold_norm(y, h, post, comb, pre, weight)
    return h, x, *hc_stats(h, fn, scale, base)


def hc_boundary_sums(y, h, post, comb, pre, weight, fn, scale, base):
    h, x = hc_post_fold_norm_sums(y, h, post, comb, pre, weight)
    return h, x, *hc_stats(h, fn, scale, base)


def embed_expand(ids, table, first_id, num_streams):
    ids = ids - first_id
    is_other = (ids < 0) | (ids >= len(table))
    x = torch.nn.functional.embedding(ids.masked_fill(is_other, 0), table)
    x.masked_fill_(is_other.unsqueeze(1), 0)
    return x.unsqueeze(1).repeat(1, num_streams, 1)


def engram_hash(ids, requests, query_start_loc, history, multipliers, primes, offsets, pad_id):
    row = torch.arange(len(ids), device=ids.device).unsqueeze(1)
    back = torch.arange(4, device=ids.device)
    place = row - query_start_loc[requests].unsqueeze(1) - back
    before = history[requests.unsqueeze(1), (3 + place).clamp(0, 2)]
    token = torch.where(place >= 0, ids[(row - back).clamp(min=0)], before)
    is_dead = (token < 0).cumsum(1) > 0
    term = token.masked_fill(is_dead, pad_id) * multipliers
    pairs = term[:, 0] ^ term[:, 1]
    triples = pairs ^ term[:, 2]
    hashes = torch.stack((pairs, triples, triples ^ term[:, 3]), 1).unsqueeze(2)
    return (hashes % primes.view(3, -1) + offsets.view(3, -1)).flatten(1).int()


def engram_fetch(rows, table, scales, is_bf16):
    codes, bytes_of_scales = table[rows.long()], scales[rows.long()]
    if not is_bf16:
        return codes.flatten(1), bytes_of_scales.flatten(1)
    scale = (bytes_of_scales.int() << 23).view(torch.float32)
    x = codes.view(torch.float8_e4m3fn).float().unflatten(-1, (-1, 32)) * scale.unsqueeze(-1)
    return (x.to(torch.bfloat16).flatten(1),)


def engram_inject(h, keys_and_value, q_weight, k_weight, ids):
    _, streams, columns = h.shape
    x = h.float()
    *keys, value = keys_and_value.float().split(columns, 1)
    keys = torch.stack(keys, 1)
    dot = (x * (q_weight.float() * k_weight.float()) * keys).sum(-1)
    for rows in (x, keys):
        dot = dot * torch.rsqrt(rows.square().mean(-1) + EPSILON)
    dot = dot * columns**-0.5
    gate = torch.sigmoid(torch.copysign(dot.abs().clamp(min=1e-6).sqrt(), dot))
    gate = gate.masked_fill((ids < 0).unsqueeze(1), 0)
    return (x + gate.unsqueeze(-1) * value.unsqueeze(1)).to(torch.bfloat16)


def moe_route(logits, bias, top_k):
    score = torch.nn.functional.softplus(logits).sqrt()
    ids = (score + bias).topk(top_k, -1).indices
    weights = score.gather(1, ids)
    return ids.int(), weights / (weights.sum(-1, keepdim=True) + EPSILON) * 1.5


def moe_align(ids, num_experts, block_size, capacity):
    """Sorted pairs, experts of blocks, and how many entries count."""
    ids = ids.flatten()
    expert, pair = ids.sort(stable=True)
    expert = expert.long()
    counts = torch.zeros(num_experts, dtype=torch.int64, device=ids.device)
    counts.scatter_add_(0, expert, torch.ones_like(expert))
    padded = (counts + block_size - 1) // block_size * block_size
    end = padded.cumsum(0)
    rank = torch.arange(len(ids), device=ids.device) - (counts.cumsum(0) - counts)[expert]
    pairs = torch.full((capacity,), len(ids), dtype=torch.int32, device=ids.device)
    pairs[(end - padded)[expert] + rank] = pair.int()
    first = torch.arange(0, capacity, block_size, device=ids.device)
    experts = torch.searchsorted(end, first, right=True, out_int32=True)
    return pairs, torch.where(first < end[-1], experts, -1), end[-1:].int()


def moe_combine(pairs, shared):
    return (pairs.sum(1, dtype=torch.float32) + shared).to(torch.bfloat16)
