"""What the small ops around attention mean, in plain Python; nothing is shared with a peer.

Rows are lists of numbers that bf16 holds. RoPE is computed in fp32, operation by operation, because
what follows it is compared to the bit.
"""

import math
import struct

from peers_reference import WINDOW, e2m1, e4m3, e4m3_code, round_to_bf16

EPSILON = 1e-20
ROPE_DIMS = 64


def f32(value):
    """Nearest fp32. From double: products, sums and quotients of two fp32 come out correctly."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def bf16_bytes(value):
    return list(struct.pack("<f", value)[2:])


def rms_norm(row, weight):
    r = 1 / math.sqrt(sum(x * x for x in row) / len(row) + EPSILON)
    return [round_to_bf16(x * r * w) for x, w in zip(row, weight)]


def rope(row, angles, inverse=False):
    """Rotates the last 64 elements; angles: 32 cosines, then 32 sines."""
    out = list(row)
    for i in range(ROPE_DIMS // 2):
        at = len(row) - ROPE_DIMS + 2 * i
        a, b, cos, sin = row[at], row[at + 1], angles[i], angles[32 + i]
        sin = -sin if inverse else sin
        out[at] = round_to_bf16(f32(f32(a * cos) - f32(b * sin)))
        out[at + 1] = round_to_bf16(f32(f32(a * sin) + f32(b * cos)))
    return out


def power_of_two_above(value):
    """Exponent of the least power of two that is no smaller."""
    fraction, exponent = math.frexp(value)
    return exponent - (fraction == 0.5)


def e2m1_code(value):
    a = abs(value)
    code = (a > 0.25) + (a >= 0.75) + (a > 1.25) + (a >= 1.75) + (a > 2.5) + (a >= 3.5) + (a > 5)
    return code + (8 if math.copysign(1.0, value) < 0 else 0)


def to_e4m3(group):
    """q8a, q8d and q8k by the size of the group: exponent of the scale, codes, values."""
    exponent = power_of_two_above(max(max(map(abs, group)), 1e-4) / 448)
    codes = [e4m3_code(min(max(math.ldexp(x, -exponent), -448.0), 448.0)) for x in group]
    return exponent, codes, [math.ldexp(e4m3(code), exponent) for code in codes]


def q4m(group):
    exponent = power_of_two_above(max(max(map(abs, group)), 6 * 2.0**-126) / 6)
    codes = [e2m1_code(math.ldexp(x, -exponent)) for x in group]
    return exponent, codes, [math.ldexp(e2m1(code), exponent) for code in codes]


def q4n(group):
    """The scale is an E4M3 number; its code stands where others have an exponent."""
    scale_code = e4m3_code(min(max(max(map(abs, group)), 6 * 2.0**-9) / 6, 448.0))
    scale = e4m3(scale_code)
    codes = [e2m1_code(f32(x / scale)) for x in group]
    return scale_code, codes, [e2m1(code) * scale for code in codes]


QUANTISERS = {  # name -> function, elements that share a scale
    "q8a": (to_e4m3, 32),
    "q8d": (to_e4m3, 64),
    "q8k": (to_e4m3, 128),
    "q4m": (q4m, 32),
    "q4n": (q4n, 16),
}


def quantise(row, name):
    """Scales, codes and values of a row."""
    quantiser, size = QUANTISERS[name]
    groups = [quantiser(row[at : at + size]) for at in range(0, len(row), size)]
    flat = [[x for group in groups for x in group[part]] for part in (1, 2)]
    return [scale for scale, _, _ in groups], *flat


def packed(nibbles):
    return [low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2])]


def entry(row, layout, quantiser):
    """Bytes of codes and of scales of a cache entry."""
    if layout == "F3":
        exponents, codes, _ = quantise(row[:448], "q8d")
        tail = [byte for value in row[448:] for byte in bf16_bytes(value)]
        return codes + tail, [exponent + 127 for exponent in exponents] + [0]
    scales, codes, values = quantise(row, quantiser)
    if layout == "F1":
        return codes, [scale + 127 for scale in scales]
    if layout == "F2":
        return packed(codes), scales
    if layout == "F4":
        return [byte for value in values for byte in bf16_bytes(value)], []
    if layout == "F5":
        return packed(codes), [scale + 127 for scale in scales]
    return codes, list(struct.pack("<f", 2.0 ** scales[0]))  # F6


def insert(cache, rows, slots, layout, page_size, quantiser):
    """Writes rows, which are rotated, into a copy of `cache` (pages as lists of bytes)."""
    cache = [list(page) for page in cache]
    for row, slot in zip(rows, slots):
        if slot < 0:
            continue
        page, r = divmod(slot, page_size)
        codes, scales = entry(row, layout.name, quantiser)
        at = r * layout.code_bytes
        cache[page][at : at + len(codes)] = codes
        at = page_size * layout.code_bytes + r * layout.scale_bytes
        cache[page][at : at + len(scales)] = scales
    return cache


def compressor_update(projections, positions, starts, blocks, weight, ring, ratio):
    """Latents (None where a row completes no group) and the ring after the step."""
    width = 512
    latents, before = [], [[list(row) for row in block] for block in ring]
    ring = [[list(row) for row in block] for block in ring]
    for b, block in enumerate(blocks):
        first, end = starts[b], starts[b + 1]
        for t in range(first, end):
            row, p = projections[t], positions[t]
            if (p + 1) % ratio:
                latents.append(None)
                continue
            pooled = row[:width]
            if ratio == 2:
                partner = projections[t - 1] if t > first else before[block][(p - 1) % len(ring[0])]
                pooled = [pool_pair(partner, row, i) for i in range(width)]
            latents.append(rms_norm([round_to_bf16(x) for x in pooled], weight))
        if ratio == 2:
            for t in range(max(first, end - len(ring[0])), end):
                ring[block][positions[t] % len(ring[0])] = list(projections[t])
    return latents, ring


def pool_pair(a, b, i):
    m = max(a[512 + i], b[512 + i])
    ea, eb = math.exp(a[512 + i] - m), math.exp(b[512 + i] - m)
    return (a[i] * ea + b[i] * eb) / (ea + eb)


def slot(table, request, entry_number, page_size):
    return table[request][entry_number // page_size] * page_size + entry_number % page_size


def topk_to_slots(topk, requests, is_valid, table, page_size):
    slots = [
        [slot(table, b, v, page_size) if valid and v >= 0 else -1 for v in row]
        for row, b, valid in zip(topk, requests, is_valid)
    ]
    lens = [sum(v >= 0 for v in row) if valid else 0 for row, valid in zip(topk, is_valid)]
    return slots, lens


def window_slots(positions, requests, is_valid, table, page_size):
    slots, lens = [], []
    for p, b, valid in zip(positions, requests, is_valid):
        seen = range(max(p - WINDOW + 1, 0), p + 1) if valid else ()
        row = [slot(table, b, x, page_size) for x in seen]
        slots.append(row + [-1] * (WINDOW - len(row)))
        lens.append(len(row))
    return slots, lens


def prefix_sums(lens):
    sums = [0]
    for length in lens:
        sums.append(sums[-1] + length)
    return sums


def ragged_indptr(slots, lens):
    return prefix_sums(lens), [v for row, n in zip(slots, lens) for v in row[:n]]


def ragged_keys(query_start_loc, seq_lens, table, ratio, page_size):
    lens = [length // ratio for length in seq_lens]
    indptr = prefix_sums(lens)
    indices = [slot(table, b, j, page_size) for b, n in enumerate(lens) for j in range(n)]
    gather_lens, requests, positions, begins, ends = [], [], [], [], []
    for b, seq_len in enumerate(seq_lens):
        query = query_start_loc[b + 1] - query_start_loc[b]
        gather_lens.append(query + min(seq_len - query, WINDOW - 1))
        for p in range(seq_len - query, seq_len):
            requests.append(b)
            positions.append(p)
            begins.append(indptr[b])
            ends.append(indptr[b] + (p + 1) // ratio)
    return lens, gather_lens, indptr, indices, requests, positions, begins, ends


def check_examples():
    """The worked examples of the specification, as far as these ops have one."""

    def holds(what, condition):
        if not condition:
            raise AssertionError(what)

    _, codes, _ = q4m([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -6.0] + [0.0] * 24)
    holds("ties of E2M1 go to the even code", codes[:8] == [0, 2, 2, 4, 4, 6, 6, 15])
    holds("the floor of q4m", q4m([0.0] * 32)[0] == -126)
    holds("the floor of q4n", q4n([0.0] * 16)[0] == 1)
    slots, lens = topk_to_slots([[0, 63, 64, 130, -1]], [0], [1], [[7, 3, 12]], 64)
    holds("topk_to_slots", (slots, lens) == ([[448, 511, 192, 770, -1]], [4]))
    slots, lens = window_slots([2, 130], [0, 0], [1, 1], [[5, 9, 2, 8, 11]], 32)
    holds("window_slots", slots[0][:4] == [160, 161, 162, -1] and lens == [3, 128])
    holds(
        "window_slots, later",
        [slots[1][i] for i in (0, 28, 29, 125, 127)] == [163, 191, 288, 352, 354],
    )
    keys = ragged_keys((0, 3, 8), (203, 5), [[0, 1], [2]], 2, 64)
    holds("ragged_keys", keys[0] == [101, 2] and keys[1] == [130, 5] and keys[2] == [0, 101, 103])
    holds(
        "ragged_keys, bounds",
        keys[6][3] == 101 and keys[7] == [100, 101, 101, 101, 102, 102, 103, 103],
    )
