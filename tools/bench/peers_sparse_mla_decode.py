"""sparse_mla_decode: inputs, the PyTorch peer, the check and the rows of the table."""

import functools
import math
from dataclasses import dataclass

import torch

import peers_reference as reference
from peers_check import require_close
from peers_reference import HEAD_DIM, LAYOUTS, WINDOW, Layout
from peers_timing import Row, num_sets
from peers_torch import dequantize, page_regions

COMPRESSED = 512
PAGE_SIZE = 64
FORMATS = (("F1", "F2"), ("F3", "F3"))
ROWS_AND_HEADS = ((1, 8), (1, 16), (1, 32), (16, 32), (64, 32), (256, 64))
WINDOW_ONLY = (64, 32)
CHUNK_ROWS = 64  # whose keys PyTorch gathers at a time
RMS_TOLERANCE = 2**-8


@dataclass
class SlotList:
    """The slots that each row attends to, and the paged cache that they number."""

    layout: Layout
    cache: torch.Tensor  # u8 [pages, page stride]
    page_size: int
    slots: torch.Tensor  # int32 [T, width]
    lens: torch.Tensor  # int32 [T]

    def num_slots(self):
        return self.cache.shape[0] * self.page_size

    def kernel_arguments(self):
        return self.cache, self.cache.stride(0), self.num_slots(), self.slots, self.lens

    def to(self, device):
        tensors = (tensor.to(device) for tensor in (self.cache, self.slots, self.lens))
        cache, slots, lens = tensors
        return SlotList(self.layout, cache, self.page_size, slots, lens)

    def bytes(self):
        """Entries and slots, read once."""
        return self.slots.numel() * (self.layout.entry_bytes + 4)


# --- PyTorch


def keys_torch(slot_list, rows):
    """bf16 [rows, width, 512], zeros where a slot does not count, and which ones count."""
    slots, lens = slot_list.slots[rows], slot_list.lens[rows]
    column = torch.arange(slots.shape[1], device=slots.device)
    valid = (column < lens[:, None]) & (slots >= 0) & (slots < slot_list.num_slots())
    slot = torch.where(valid, slots, 0).flatten().long()
    page, entry = slot // slot_list.page_size, slot % slot_list.page_size
    codes, scales = page_regions(slot_list.cache, slot_list.layout, slot_list.page_size)
    keys = torch.empty((slot.numel(), HEAD_DIM), dtype=torch.bfloat16, device=slots.device)
    dequantize(keys, codes[page, entry], scales[page, entry], slot_list.layout)
    keys.masked_fill_(~valid.flatten()[:, None], 0)
    return keys.view(*slots.shape, HEAD_DIM), valid


def product(a, b):
    """fp32 of bf16."""
    if a.is_cuda:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


def sparse_mla_decode_torch(out, query, window, compressed, sink):
    for first in range(0, query.shape[0], CHUNK_ROWS):
        rows = slice(first, first + CHUNK_ROWS)
        keys, valid = keys_torch(window, rows)
        if compressed:
            more_keys, more_valid = keys_torch(compressed, rows)
            keys, valid = torch.cat((keys, more_keys), 1), torch.cat((valid, more_valid), 1)
        score = product(query[rows], keys.transpose(1, 2)) * HEAD_DIM**-0.5
        score.masked_fill_(~valid[:, None, :], -math.inf)
        top = score.amax(-1, keepdim=True).clamp(min=-1e30)
        weight = (score - top).exp()
        total = weight.sum(-1, keepdim=True) + (sink[None, :, None] - top).exp()
        total.clamp_(min=1)  # less only in a row without slots
        out[rows] = product(weight.to(torch.bfloat16), keys) / total


# --- inputs


def draw_cache(layout, num_pages, page_size, device):
    """Entries of about unit size, so that a row's weights spread over many slots."""
    shape = (num_pages, layout.page_bytes(page_size))
    cache = torch.randint(256, shape, dtype=torch.uint8, device=device)
    codes, scales = page_regions(cache, layout, page_size)
    if layout.name == "F2":
        scales.copy_(torch.randint(0x20, 0x30, scales.shape, dtype=torch.uint8, device=device))
        return cache
    e4m3_columns = 448 if layout.name == "F3" else 512
    drawn = torch.randint(0x48, (*codes.shape[:2], e4m3_columns), device=device)
    sign = torch.randint(2, drawn.shape, device=device) << 7
    codes[..., :e4m3_columns] = (drawn | sign).to(torch.uint8)
    scales.copy_(torch.randint(125, 128, scales.shape, dtype=torch.uint8, device=device))
    if layout.name == "F3":
        tail = torch.randn((*codes.shape[:2], 64), dtype=torch.bfloat16, device=device)
        codes[..., 448:] = tail.view(torch.uint8)
    return cache


def draw_slots(sets, num_rows, width, page_size, in_runs):
    """int32 [sets, T, width]: each entry of the cache once; runs of pages, or drawn and sorted."""
    count = sets * num_rows * width
    if in_runs:
        page = torch.randperm(count // page_size, device="cuda")[:, None]
        slots = page * page_size + torch.arange(page_size, device="cuda")
    else:
        slots = torch.randperm(count, device="cuda")
    slots = slots.view(sets, num_rows, width)
    return (slots if in_runs else slots.sort(-1).values).to(torch.int32)


def draw_lists(format_name, sets, num_rows, width, in_runs):
    """One list for each set, all over one cache."""
    layout = LAYOUTS[format_name]
    slots = draw_slots(sets, num_rows, width, PAGE_SIZE, in_runs)
    cache = draw_cache(layout, slots.numel() // PAGE_SIZE, PAGE_SIZE, "cuda")
    lens = torch.full((num_rows,), width, dtype=torch.int32, device="cuda")
    return [SlotList(layout, cache, PAGE_SIZE, each, lens) for each in slots]


# --- check


def hostile_list(layout, page_size, width, lens):
    """Holes, slots out of range, and NaN in every byte of what no valid slot names, slot 0 too."""
    num_slots = 2 * width * len(lens) // page_size * page_size
    slots = (torch.randperm(num_slots - 1)[: width * len(lens)] + 1).view(len(lens), width)
    slots[:, 3::7] = -1
    slots[:, 5::11] = num_slots
    cache = draw_cache(layout, num_slots // page_size, page_size, "cpu")
    used = torch.zeros(num_slots, dtype=torch.bool)
    for row, length in zip(slots, lens):
        counted = row[:length]
        used[counted[(counted >= 0) & (counted < num_slots)]] = True
    codes, scales = page_regions(cache, layout, page_size)
    codes[~used.view(codes.shape[:2])] = 0xFF
    scales[~used.view(codes.shape[:2])] = 0xFF
    lens = torch.tensor(lens, dtype=torch.int32)
    return SlotList(layout, cache, page_size, slots.to(torch.int32), lens)


def reference_keys(slot_list, row):
    data, layout = bytes(slot_list.cache.flatten().tolist()), slot_list.layout
    place = data, layout, slot_list.cache.shape[1], slot_list.page_size
    slots = slot_list.slots[row, : int(slot_list.lens[row])].tolist()
    return [
        [
            reference.cache_element(*place, *divmod(slot, slot_list.page_size), element)
            for element in range(HEAD_DIM)
        ]
        for slot in slots
        if 0 <= slot < slot_list.num_slots()
    ]


@dataclass
class CheckCase:
    query: torch.Tensor
    window: SlotList
    compressed: SlotList | None
    sink: torch.Tensor

    def __str__(self):
        return f"{self.window.layout.name}+{self.compressed and self.compressed.layout.name}"

    @functools.cached_property
    def expected(self):
        """float64 [T, H, 512]"""
        rows = []
        for row, query in enumerate(self.query.tolist()):
            keys = reference_keys(self.window, row)
            keys += reference_keys(self.compressed, row) if self.compressed else []
            heads = zip(query, self.sink.tolist())
            rows.append([reference.sparse_mla_decode(head, keys, sink) for head, sink in heads])
        return torch.tensor(rows, dtype=torch.float64)

    def on(self, device):
        compressed = self.compressed and self.compressed.to(device)
        return self.query.to(device), self.window.to(device), compressed, self.sink.to(device)


@functools.cache
def check_cases():
    """Rows without a slot, with slots in one list only, and full ones."""
    torch.manual_seed(4)
    cases = []
    for num_heads, window_format, compressed_format in (
        (20, "F1", "F2"),
        (20, "F3", "F3"),
        (5, "F1", None),
        (5, "F3", None),
    ):
        query = torch.randn((4, num_heads, HEAD_DIM)).to(torch.bfloat16)
        # The widths and pages of the rows that are timed, so that these kernels are the same.
        window = hostile_list(LAYOUTS[window_format], PAGE_SIZE, WINDOW, (0, 17, 0, WINDOW))
        compressed = None
        if compressed_format:
            lens = (0, 0, 70, COMPRESSED)
            layout = LAYOUTS[compressed_format]
            compressed = hostile_list(layout, PAGE_SIZE, COMPRESSED, lens)
        sink = torch.randn(num_heads)
        sink[1], sink[2] = -math.inf, 40.0
        cases.append(CheckCase(query, window, compressed, sink))
    return cases


def check_torch(device):
    for case in check_cases():
        query, window, compressed, sink = case.on(device)
        found = torch.full_like(query, math.nan)
        sparse_mla_decode_torch(found, query, window, compressed, sink)
        compare(f"torch, {case}", found, case.expected)


def triton_trials(device):
    """(run, compare) such that each kernel that rows need is there."""
    import peers_sparse_mla_decode_triton as triton_peer

    for case in check_cases():
        arguments = case.on(device)
        for config in triton_peer.CONFIGS:
            for splits in (1, 3) if case.compressed else (2,):
                found = torch.full_like(arguments[0], math.nan)
                what = f"triton, {case}, {config}, {splits} splits"
                yield (
                    functools.partial(
                        triton_peer.sparse_mla_decode, found, *arguments, config, splits
                    ),
                    functools.partial(compare, what, found, case.expected),
                )


def compare(what, found, expected):
    """Head by head too, so that a large one hides nothing."""
    expected = expected.to(found.device)
    is_zero = expected.abs().amax(-1) == 0
    if bool((found[is_zero] != 0).any()):
        raise AssertionError(f"sparse_mla_decode, {what}: a row without slots is not zero")
    for head in range(expected.shape[1]):
        where = f"sparse_mla_decode, {what}, head {head}"
        require_close(where, found[:, head], expected[:, head], RMS_TOLERANCE)


# --- rows of the table


def make_row(window_format, compressed_format, num_rows, num_heads):
    """Entries, slots and outputs are cold; queries are warm."""
    import peers_sparse_mla_decode_triton as triton_peer

    query = torch.randn((num_rows, num_heads, HEAD_DIM), dtype=torch.bfloat16, device="cuda")
    sink = torch.randn(num_heads, device="cuda")
    entries = WINDOW * LAYOUTS[window_format].entry_bytes
    if compressed_format:
        entries += COMPRESSED * LAYOUTS[compressed_format].entry_bytes
    sets = num_sets(num_rows * entries + 2 * query.numel())
    windows = draw_lists(window_format, sets, num_rows, WINDOW, in_runs=True)
    compresseds = [None] * sets
    if compressed_format:
        compresseds = draw_lists(compressed_format, sets, num_rows, COMPRESSED, in_runs=False)
    outs = torch.full((sets, *query.shape), math.nan, dtype=torch.bfloat16, device="cuda")

    def arguments(i):
        i %= sets
        return outs[i], query, windows[i], compresseds[i], sink

    expected = torch.empty_like(query)
    sparse_mla_decode_torch(expected, *arguments(0)[1:])

    def check_config(config):
        outs[0].fill_(math.nan)
        triton_peer.sparse_mla_decode(*arguments(0), config)
        require_close("Triton against PyTorch", outs[0], expected, RMS_TOLERANCE)

    shape = {
        "window_format": window_format,
        "compressed_format": compressed_format,
        "rows": num_rows,
        "heads": num_heads,
    }
    slots = WINDOW + (COMPRESSED if compressed_format else 0)
    lists = [each for each in (windows[0], compresseds[0]) if each]
    return Row(
        op="sparse_mla_decode",
        shape=shape,
        memory="cold",
        num_sets=sets,
        bytes=sum(each.bytes() for each in lists) + 4 * query.numel(),
        call_torch=lambda i: sparse_mla_decode_torch(*arguments(i)),
        call_triton=lambda i, config: triton_peer.sparse_mla_decode(*arguments(i), config),
        check=check_config,
        configs=triton_peer.configs(num_heads),
        flops=2 * 2 * num_rows * num_heads * slots * HEAD_DIM,
    )


def planned_rows():
    for window_format, compressed_format in FORMATS:
        for num_rows, num_heads in ROWS_AND_HEADS:
            name = f"decode {window_format}+{compressed_format}, {num_rows} x {num_heads} heads"
            arguments = window_format, compressed_format, num_rows, num_heads
            yield name, functools.partial(make_row, *arguments)
        name = f"decode {window_format} window, {WINDOW_ONLY[0]} x {WINDOW_ONLY[1]} heads"
        yield name, functools.partial(make_row, window_format, None, *WINDOW_ONLY)
