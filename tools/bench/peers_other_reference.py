"""What residual streams, Engram, embedding and router mean; nothing is shared with a peer.

Plain float64 tensors on the CPU, rounded to bf16 where the op rounds; the hash and moe_align take
lists.
"""

import itertools

import torch

MULTIPLIERS = [76632096046245, 4839876093313, 35959672319349, 73987337458391]  # of layer 1
PRIMES = [
    16000000 + prime
    for prime in (
        *(57, 79, 81, 97, 121, 129, 133, 183, 189, 207, 211, 253),
        *(277, 289, 307, 321, 339, 381, 393, 399, 403, 409, 447, 463),
    )
]
OFFSETS = [0, *itertools.accumulate(PRIMES[:-1])]


def rounded(x):
    return x.to(torch.bfloat16).double()


def hc_post(y, h, post, comb):
    return rounded(torch.einsum("tj,td->tjd", post, y) + torch.einsum("tij,tid->tjd", comb, h))


def hc_fold_norm(h, pre, weight):
    folded = rounded(torch.einsum("ti,tid->td", pre, h))
    rms = (folded.pow(2).sum(1, keepdim=True) / folded.shape[1] + 1e-20).sqrt()
    return rounded(folded / rms * weight)


def hc_stats(h, fn, scale, base):
    v = h.reshape(len(h), -1)
    rms = (v.pow(2).sum(1) / v.shape[1] + 1e-20).sqrt()
    m = torch.einsum("tc,kc->tk", v, fn) / rms[:, None]
    kind = torch.tensor([0] * 4 + [1] * 4 + [2] * 16)
    logits = m * scale[kind] + base
    gates = 1 / (1 + (-logits[:, :8]).exp())
    comb = torch.stack([sinkhorn(row.reshape(4, 4)) for row in logits[:, 8:]])
    return gates[:, :4] + 1e-6, 2 * gates[:, 4:], comb


def sinkhorn(logits):
    """4 x 4; ends on a step over columns."""
    a = logits.exp()
    a = a / a.sum(1)[:, None] + 1e-6
    for step in range(39):
        axis = step % 2
        a = a / (a.sum(axis).unsqueeze(axis) + 1e-6)
    return a


def embed_expand(ids, table, first_id, num_streams):
    rows = []
    for place in (ids - first_id).tolist():
        row = table[place] if 0 <= place < len(table) else torch.zeros_like(table[0])
        rows.append(torch.stack([row] * num_streams))
    return torch.stack(rows)


def e4m3(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = 2.0 ** (exponent - 10) * (8 + mantissa) if exponent else 2.0**-9 * mantissa
    return -value if byte & 128 else value


E4M3 = torch.tensor([e4m3(byte) for byte in range(256)], dtype=torch.float64)


def engram_fetch(rows, table, scales, is_bf16):
    codes, bytes_of_scales = [], []
    for row in rows:
        codes.append(torch.cat([table[place] for place in row.tolist()]))
        bytes_of_scales.append(torch.cat([scales[place] for place in row.tolist()]))
    codes, bytes_of_scales = torch.stack(codes), torch.stack(bytes_of_scales)
    if not is_bf16:
        return codes, bytes_of_scales
    scale = torch.exp2(bytes_of_scales.double() - 127).repeat_interleave(32, -1)
    return (E4M3[codes] * scale,)


def hash_columns(tokens, multipliers, primes, offsets):
    """Rows of the table for a token and the three before it."""
    rows, heads = [], len(primes) // 3
    r = tokens[0] * multipliers[0]
    for n in (1, 2, 3):
        r ^= tokens[n] * multipliers[n]
        for column in range((n - 1) * heads, n * heads):
            rows.append(r % primes[column] + offsets[column])
    return rows


def engram_hash(ids, requests, query_start_loc, history, multipliers, primes, offsets, pad_id):
    """Of lists."""
    rows = []
    for t, request in enumerate(requests):
        first = query_start_loc[request]
        seen = history[request] + ids[first : t + 1]
        tokens = seen[-1:-5:-1]
        dead = next((n for n, token in enumerate(tokens) if token < 0), 4)
        tokens[dead:] = [pad_id] * (4 - dead)
        rows.append(hash_columns(tokens, multipliers, primes, offsets))
    return rows


def engram_inject(h, keys_and_value, q_weight, k_weight, ids):
    out = h.clone()
    columns = h.shape[2]
    for t, token in enumerate(ids.tolist()):
        if token < 0:
            continue
        value = keys_and_value[t, -columns:]
        for c, x in enumerate(h[t]):
            key = keys_and_value[t, c * columns : (c + 1) * columns]
            dot = (x * q_weight[c] * k_weight[c] * key).sum()
            for row in (x, key):
                dot = dot / (row.pow(2).mean() + 1e-20).sqrt()
            dot = dot / columns**0.5
            out[t, c] = rounded(x + gate(dot) * value)
    return out


def gate(dot):
    return 1 / (1 + (-dot.sign() * dot.abs().clamp(min=1e-6).sqrt()).exp())


def score(logits):
    return torch.where(logits > 20, logits, logits.exp().log1p()).sqrt()


def moe_route(logits, bias, top_k):
    scores = score(logits)
    ids = [
        sorted(range(len(row)), key=lambda e, row=row: (-row[e], e))[:top_k]
        for row in (scores + bias).tolist()
    ]
    weights = [[scores[t, e].item() for e in row] for t, row in enumerate(ids)]
    return ids, [[w / sum(row) * 1.5 for w in row] for row in weights]


def moe_align(ids, num_experts, block_size, capacity):
    """Of lists."""
    of_experts = [[] for _ in range(num_experts)]
    num_pairs = 0
    for row in ids:
        for expert in row:
            of_experts[expert].append(num_pairs)
            num_pairs += 1
    pairs, experts = [], []
    for expert, of_expert in enumerate(of_experts):
        while len(of_expert) % block_size:
            of_expert.append(num_pairs)
        pairs += of_expert
        experts += [expert] * (len(of_expert) // block_size)
    count = len(pairs)
    pairs += [num_pairs] * (capacity - count)
    return pairs, experts + [-1] * (capacity // block_size - len(experts)), [count]


def moe_combine(pairs, shared):
    return rounded(sum(pairs.unbind(1)) + shared)


def check_examples():
    """The worked examples of the specification."""

    def near(what, found, expected, tolerance):
        error = (found - torch.tensor(expected, dtype=torch.float64)).abs().max()
        if not error <= tolerance:
            raise AssertionError(f"{what}: {found}")

    rows = [[0.5, -1, 2, 0], [1.5, 0.25, -0.75, 3], [-2, 1, 0, 0.5], [0, 0, 4, -1]]
    mixes = [
        [0.5211828, 0.1010692, 0.2359436, 0.1418030],
        [0.3058067, 0.0761459, 0.0032560, 0.6147911],
        [0.0405411, 0.7076579, 0.0302585, 0.2215422],
        [0.1324684, 0.1151260, 0.7305408, 0.0218626],
    ]
    near("Sinkhorn", sinkhorn(torch.tensor(rows, dtype=torch.float64)), mixes, 1e-7)

    found = hash_columns((5, 4, 3, 2), MULTIPLIERS, PRIMES, OFFSETS)
    expected = 22259, 117124931, 142558994, 249163395, 261693639, 380883595
    if tuple(found[column] for column in (0, 7, 8, 15, 16, 23)) != expected:
        raise AssertionError(f"rows of the Engram: {found}")
    if sum(found) != 4588694744:
        raise AssertionError(f"rows of the Engram: {found}")

    dots = torch.tensor([0.25, -4.0], dtype=torch.float64)
    near("gate of the Engram", gate(dots), [0.6224593312, 0.1192029220], 1e-9)
    logits = torch.tensor([-5.0, 0, 1, 10, 25], dtype=torch.float64)
    scores = [0.0819472299, 0.832554611, 1.1459763, 3.16228484, 5]
    near("scores of the router", score(logits), scores, 1e-7)
