"""What the ops mean, in plain Python: formats, cache layouts, index rows, linear and attention.

Nothing here is fast, and beyond the table of layouts nothing here is shared with a peer, so that a
peer cannot be wrong in the same way.
"""

import math
import operator
import struct
from dataclasses import dataclass

HEAD_DIM = 512
WINDOW = 128
SCALE_BLOCK = 32  # elements of x, rows and columns of a weight that share a scale
INDEX_WIDTH_MULTIPLE = 128


def round_up(value, multiple):
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class Layout:
    """A page holds the codes of all its entries, then all their scales, then padding."""

    name: str
    code_bytes: int  # of one entry
    scale_bytes: int  # of one entry
    page_multiple: int  # a page is rounded up to this many bytes

    @property
    def entry_bytes(self):
        return self.code_bytes + self.scale_bytes

    def page_bytes(self, page_size):
        return round_up(page_size * self.entry_bytes, self.page_multiple)


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("F1", code_bytes=512, scale_bytes=16, page_multiple=512),  # E4M3, UE8M0 per 32
        Layout("F2", code_bytes=256, scale_bytes=32, page_multiple=512),  # E2M1, E4M3 per 16
        Layout(
            "F3", code_bytes=576, scale_bytes=8, page_multiple=576
        ),  # 448 E4M3, 64 bf16, UE8M0 per 64
        Layout("F4", code_bytes=1024, scale_bytes=0, page_multiple=1),  # bf16
    )
}


def e4m3(code):
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * math.ldexp(mantissa, -9)
    return sign * math.ldexp(8 + mantissa, exponent - 10)


def ue8m0(code):
    return math.nan if code == 255 else math.ldexp(1.0, code - 127)


def e2m1(nibble):
    magnitude = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)[nibble & 7]
    return -magnitude if nibble & 8 else magnitude


def bf16(low_byte, high_byte):
    return struct.unpack("<f", bytes((0, 0, low_byte, high_byte)))[0]


def round_to_bf16(value):
    """Nearest even, subnormals kept, overflow to infinity; `value` is exact."""
    if value == 0.0 or math.isnan(value) or math.isinf(value):
        return value
    exponent = max(math.frexp(value)[1] - 1, -126)
    unit = math.ldexp(1.0, exponent - 7)
    rounded = round(value / unit) * unit  # round() ties to even; both scalings are exact
    if abs(rounded) >= math.ldexp(1.0, 128):
        rounded = math.inf
    return math.copysign(rounded, value)


def e4m3_code(value):
    """The nearest code, ties to the even one; `value` is exact and at most 448 in magnitude."""
    sign = 0x80 if math.copysign(1.0, value) < 0 else 0
    magnitude = abs(value)
    exponent = max(math.frexp(magnitude)[1] - 1, -6) if magnitude else -6
    steps = round(math.ldexp(magnitude, 3 - exponent))  # round() ties to even; 16 carries over
    return sign | ((exponent + 6) * 8 + steps)


def q8a(group):
    """Scale byte and codes of the elements that share the scale."""
    amax = max(max(abs(value) for value in group), 1e-4)
    fraction, exponent = math.frexp(amax / 448)
    exponent -= fraction == 0.5  # the smallest power of two that is no smaller than the quotient
    clamped = (min(max(math.ldexp(value, -exponent), -448.0), 448.0) for value in group)
    return exponent + 127, [e4m3_code(value) for value in clamped]


def act_quant(x):
    """Codes and scale bytes of each row."""
    codes, scales = [], []
    for row in x:
        groups = [q8a(row[at : at + SCALE_BLOCK]) for at in range(0, len(row), SCALE_BLOCK)]
        codes.append([code for _, group in groups for code in group])
        scales.append([scale for scale, _ in groups])
    return codes, scales


def dequantized(codes, scales):
    """One row of E4M3 codes with a UE8M0 scale for each 32 of them."""
    return [e4m3(code) * ue8m0(scales[k // SCALE_BLOCK]) for k, code in enumerate(codes)]


def dot(a, b):
    return sum(map(operator.mul, a, b))


def linear_fp8(x, weight, scales, quantizes_x):
    """y[m][n] before its rounding, of one group: x [M][K], codes [N][K], scale bytes by blocks."""
    if quantizes_x:
        x = [dequantized(codes, bytes_of_row) for codes, bytes_of_row in zip(*act_quant(x))]
    rows = [dequantized(row, scales[n // SCALE_BLOCK]) for n, row in enumerate(weight)]
    return [[dot(x_row, w_row) for w_row in rows] for x_row in x]


def sparse_mla_decode(query, keys, sink):
    """Attention of one head over the keys of its valid slots, before the rounding."""
    if not keys:
        return [0.0] * len(query)
    scores = [dot(query, key) * HEAD_DIM**-0.5 for key in keys]
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    total = sum(weights) + math.exp(sink - top)
    return [dot(weights, column) / total for column in zip(*keys)]


def cache_element(cache, layout, page_stride, page_size, page, row, element):
    """The value of one element, addressed by the formulas of its layout."""
    base = page * page_stride
    scales = base + page_size * layout.code_bytes + row * layout.scale_bytes
    if layout.name == "F1":
        code = cache[base + row * 512 + element]
        return round_to_bf16(e4m3(code) * ue8m0(cache[scales + element // 32]))
    if layout.name == "F2":
        packed = cache[base + row * 256 + element // 2]
        nibble = packed >> 4 if element % 2 else packed & 15
        return round_to_bf16(e2m1(nibble) * e4m3(cache[scales + element // 16]))
    if layout.name == "F3" and element < 448:
        code = cache[base + row * 576 + element]
        return round_to_bf16(e4m3(code) * ue8m0(cache[scales + element // 64]))
    if layout.name == "F3":
        at = base + row * 576 + 448 + 2 * (element - 448)
    else:
        at = base + row * 1024 + 2 * element
    return bf16(cache[at], cache[at + 1])


def gather_rows(lens, gather_lens, block_table, offset, page_size):
    """(request, workspace row) -> (page, row in page), for every row that the gather writes."""
    rows = {}
    for request, length in enumerate(lens):
        gathered = length if gather_lens is None else gather_lens[request]
        for i in range(gathered):
            entry = length - gathered + i
            page = block_table[request][entry // page_size]
            rows[request, offset + i] = (page, entry % page_size)
    return rows


def combine_topk_swa(topk, query_start_loc, seq_lens, gather_lens, ratio, top_k, n, m):
    """The index rows and their lengths."""
    width = round_up(top_k + WINDOW, INDEX_WIDTH_MULTIPLE)
    index = [[-1] * width for _ in topk]
    lengths = [0] * len(topk)
    for b, seq_len in enumerate(seq_lens):
        first = query_start_loc[b] - query_start_loc[0]
        query_len = query_start_loc[b + 1] - query_start_loc[b]
        for t in range(first, first + query_len):
            p = seq_len - query_len + (t - first)
            g0 = seq_len - gather_lens[b]
            lc = min((p + 1) // ratio, top_k) if ratio else 0
            ws = max(p - (WINDOW - 1), 0, g0)
            lw = p - ws + 1
            for c in range(lc):
                v = topk[t][c]
                index[t][c] = b * m + v if 0 <= v < n else -1
            for c in range(lw):
                index[t][lc + c] = b * m + n + (ws - g0) + c
            lengths[t] = lc + lw
    return index, lengths


def chunk_sizes(query_lens, prefix_lens, ratio):
    """seq_lens, gather_lens, N and M of a chunk of requests."""
    seq_lens = [q + p for q, p in zip(query_lens, prefix_lens)]
    gather_lens = [q + min(p, WINDOW - 1) for q, p in zip(query_lens, prefix_lens)]
    n = max(s // ratio for s in seq_lens) if ratio else 0
    return seq_lens, gather_lens, n, n + max(gather_lens)


# The worked example: request A has prefix 200 and 3 tokens, request B prefix 0 and 5 tokens.
EXAMPLE_QUERY_LENS = (3, 5)
EXAMPLE_PREFIX_LENS = (200, 0)
EXAMPLE_TOP_K = 512
EXAMPLE_N_M = {2: (101, 231), 1: (203, 333), 0: (0, 130)}


def spans(*pairs):
    return [value for first, last in pairs for value in range(first, last + 1)]


# ratio -> token -> the row before its -1 tail, literally as the specification prints it.
EXAMPLE_ROWS = {
    2: {
        0: spans((0, 99), (101, 228)),
        1: spans((0, 100), (102, 229)),
        2: spans((0, 100), (103, 230)),
        3: [332],
        4: [231, 332, 333],
        5: [231, 332, 333, 334],
        6: [231, 232, 332, 333, 334, 335],
        7: [231, 232, 332, 333, 334, 335, 336],
    },
    1: {0: spans((0, 200), (203, 330)), 7: spans((333, 337), (536, 540))},
    0: {0: spans((0, 127)), 1: spans((1, 128)), 7: spans((130, 134))},
}

# (layout, page size, page stride, page, row, element) and the bytes of its code and its scale.
ADDRESS_EXAMPLE = (("F2", 64, 18432, 12, 2, 449), (221920, 237660))


# Largest magnitude of a group -> binary exponent of its Q8a scale, as the specification
# prints it.
Q8A_EXAMPLE = {448: 0, 449: 1, 447: 0, 224: -1, 3.5: -7, 1.0: -8, 0.05: -13, 0: -22}
# Value -> code: ties to even, into the next binade, below the normal numbers.
E4M3_EXAMPLE = {17.0: 0x58, 19.0: 0x5A, 15.5: 0x58, 448.0: 0x7E, -1.0: 0xB8, 2**-10: 0, 2**-9: 1}


def example_topk(ratio):
    """Every visible entry of every token of the worked example, then -1."""
    columns = EXAMPLE_TOP_K if ratio else 0
    rows = []
    for query_len, prefix_len in zip(EXAMPLE_QUERY_LENS, EXAMPLE_PREFIX_LENS):
        for position in range(prefix_len, prefix_len + query_len):
            visible = (position + 1) // ratio if ratio else 0
            rows.append([c if c < visible else -1 for c in range(columns)])
    return rows


def require(condition, sentence):
    if not condition:
        raise AssertionError(sentence)


def check_reference():
    """The plain Python reference against the literal examples of the specification."""
    check_index_examples()
    check_cache_examples()
    check_tensor_core_examples()


def check_index_examples():
    for ratio, rows in EXAMPLE_ROWS.items():
        query_lens, prefix_lens = EXAMPLE_QUERY_LENS, EXAMPLE_PREFIX_LENS
        seq_lens, gather_lens, n, m = chunk_sizes(query_lens, prefix_lens, ratio)
        require((n, m) == EXAMPLE_N_M[ratio], f"ratio {ratio}: N, M are {n}, {m}")
        topk = example_topk(ratio)
        index, lengths = combine_topk_swa(
            topk, (0, 3, 8), seq_lens, gather_lens, ratio, len(topk[0]), n, m
        )
        for token, row in rows.items():
            expected = row + [-1] * (len(index[token]) - len(row))
            require(index[token] == expected, f"ratio {ratio}: index row {token} differs")
            require(lengths[token] == len(row), f"ratio {ratio}: length {token} differs")
    rows = gather_rows((101, 2), None, ((5, 9), (7,)), 0, 64)
    require(rows[0, 100] == (9, 36), "gather: row 100 of A is entry 36 of its second page")
    require(rows[1, 1] == (7, 1), "gather: row 1 of B is entry 1 of its first page")
    rows = gather_rows((203, 5), (130, 5), ((0, 1, 2, 3), (4,)), 101, 64)
    require(rows[0, 101] == (1, 9) and rows[0, 230] == (3, 10), "gather: the window of A")
    require(sorted(rows)[-5:] == [(1, 101 + i) for i in range(5)], "gather: the window of B")


def check_cache_examples():
    require(e4m3(0x7E) == 448 and e4m3(0x01) == 2**-9, "E4M3")
    (name, page_size, stride, page, row, element), (code, scale) = ADDRESS_EXAMPLE
    cache = bytearray(page * stride + stride)
    cache[code], cache[scale] = 0x70, 0x38  # high nibble 7 is 6, E4M3 0x38 is 1
    value = cache_element(cache, LAYOUTS[name], stride, page_size, page, row, element)
    require(value == 6.0, "the address example of the layouts")


def check_tensor_core_examples():
    for amax, exponent in Q8A_EXAMPLE.items():
        scale, codes = q8a([0.0] * 31 + [-amax])
        require(scale == exponent + 127, f"Q8a: the scale of {amax} is byte {scale}")
        require(codes[:31] == [0] * 31, "Q8a: zeros stay zeros")
    for value, code in E4M3_EXAMPLE.items():
        require(e4m3_code(value) == code, f"E4M3: the code of {value} is {e4m3_code(value)}")
    require(
        all(e4m3_code(e4m3(code)) == code for code in range(256) if code & 0x7F != 0x7F),
        "E4M3: every number is its own nearest",
    )

    # 33 is 32 in E4M3 at a scale of 1, and 33 where it is not quantised; both scales count.
    x, weight, scales = [[448.0, 33.0] + [0.0] * 62], [[0x38, 0x38] + [0] * 62], [[128, 127]]
    require(linear_fp8(x, weight, scales, True) == [[2 * 480.0]], "linear: quantised x")
    require(linear_fp8(x, weight, scales, False) == [[2 * 481.0]], "linear: x as it is")

    # Two like keys and a sink of the same score share the weight by thirds.
    key = [1.0] * HEAD_DIM
    score = HEAD_DIM**0.5
    out = sparse_mla_decode(key, [key, key], score)
    require(all(abs(value - 2 / 3) < 1e-12 for value in out), "attention: the sink's share")
    require(sparse_mla_decode(key, [], score) == [0.0] * HEAD_DIM, "attention: no slots")
