"""window_kv_insert, compressed_kv_insert and index_key_insert: inputs, outputs, peers."""

from types import SimpleNamespace

import torch

import peers_small_reference as reference
import peers_small_torch as torch_peer
from peers_numbers import Quantised
from peers_reference import LAYOUTS, Layout
from peers_small import (
    TABLE_ROWS,
    SmallOp,
    mistakes_of_rotation,
    peers_of,
    poisoned,
    random_bf16,
    random_ints,
    rope_table,
)
from peers_torch import page_regions

INDEX_LAYOUTS = {
    "F5": Layout("F5", code_bytes=64, scale_bytes=4, page_multiple=512),  # E2M1, UE8M0 per 32
    "F6": Layout("F6", code_bytes=128, scale_bytes=4, page_multiple=512),  # E4M3, one fp32
}
WINDOW_PAGE, PAGE = 32, 64  # entries
MOST_DECODE_ROWS = 256


def triton_peer():
    import peers_cache_triton  # late: see peers_inputs

    return peers_cache_triton


def make_inputs(width, page_size, fake, has_norm):
    """Each row of a decode step has a page of its own; the rows of a chunk lie side by side."""

    def inputs(shape, sizes, device):
        rows = sizes["num_rows"]
        name = shape["format"].upper()
        is_chunk = rows > MOST_DECODE_ROWS
        row = torch.arange(rows, device=device)
        entry = row if is_chunk else row * page_size + 5 * row % page_size
        pages = 1 + torch.randperm(-(-(int(entry[-1]) + 1) // page_size), device=device)
        slots = pages[entry // page_size] * page_size + entry % page_size
        if "has_padding" in sizes:
            slots[1::3] = -1
        weight = torch.randn(width, device=device).to(torch.bfloat16)
        return SimpleNamespace(
            x=random_bf16((rows, width), device),
            weight=weight if has_norm(shape) else None,
            positions=random_ints(0, TABLE_ROWS, (rows,), device),
            slots=slots,
            table=rope_table(device),
            layout=(LAYOUTS | INDEX_LAYOUTS)[name],
            num_pages=1 + len(pages),
            page_size=page_size,
            quantiser={"F1": "q8a", "F2": "q4n", "F4": fake, "F5": "q4m", "F6": "q8k"}.get(name),
            ratio=shape.get("ratio", 1),
        )

    return inputs


def make_cache(c):
    """Page 0 is nobody's."""
    shape = c.num_pages, c.layout.page_bytes(c.page_size)
    return (poisoned(shape, torch.uint8, c.x.device),)


def run_torch(c, out):
    torch_peer.insert(
        *(out[0], c.x, c.weight, c.positions, c.slots, c.table),
        *(c.layout, c.page_size, c.quantiser, c.ratio),
    )
    return out


def expected(c, before):
    rows = c.x if c.weight is None else [reference.rms_norm(row, c.weight) for row in c.x]
    rows = [reference.rope(row, c.table[p - p % c.ratio]) for row, p in zip(rows, c.positions)]
    return (reference.insert(before[0], rows, c.slots, c.layout, c.page_size, c.quantiser),)


FORMATS = {  # of codes and scales, bytes of scales that are in use
    "F1": ("e4m3", "ue8m0", 16),
    "F2": ("e2m1", "e4m3", 32),
    "F3": ("e4m3", "ue8m0", 7),
    "F4": ("bf16", None, 0),
    "F5": ("e2m1", "ue8m0", 4),
    "F6": ("e4m3", "fp32", 4),
}


def quantised(c, results):
    """Entries of rows with a slot."""
    codes, scales = page_regions(results[0], c.layout, c.page_size)
    code_format, scale_format, scale_bytes = FORMATS[c.layout.name]
    slots = c.slots[c.slots >= 0]
    return Quantised(
        codes,
        scales if scales is None else scales[..., :scale_bytes],
        code_format,
        scale_format,
        at=(slots // c.page_size, slots % c.page_size),
        group={"q8a": 32, "q4n": 16}.get(c.quantiser, 0),
    )


def mistakes(c):
    """Each but the first is a way to write in a wrong place."""
    page, entry = c.slots // c.page_size, c.slots % c.page_size
    others = {
        "the slot beside": c.slots ^ 1,
        "slots of each other": torch.where(c.slots >= 0, c.slots.roll(3), -1),
        "another page": (c.num_pages - page) * c.page_size + entry,
        "no slot": torch.where(torch.arange(len(c.slots)) == 0, -1, c.slots),
    }
    found = {
        name: {"slots": torch.where(c.slots >= 0, slots, -1)} for name, slots in others.items()
    }
    if c.weight is not None:
        found["another weight"] = {"weight": c.weight.roll(1)}
    return mistakes_of_rotation(c, c.x) | found


def insert_op(name, width, page_size, fake=None, has_norm=lambda shape: False):
    return SmallOp(
        name=name,
        inputs=make_inputs(width, page_size, fake, has_norm),
        outputs=make_cache,
        torch_form=run_torch,
        triton_form=lambda c, out, config: triton_peer().insert(out[0], c, config),
        reference=expected,
        configs=lambda c: triton_peer().CONFIGS,
        read=lambda c: (),
        bytes=lambda c, out: c.x.nbytes + len(c.x) * (4 + 8 + 256 + c.layout.entry_bytes),
        check_sizes=lambda sizes: {"num_rows": 3584 // width, "has_padding": True},
        quantised=quantised,
        mistakes=mistakes,
        meant=lambda c, results: (results[0][1:],),
    )


PEERS = peers_of(
    (
        insert_op(
            "window_kv_insert", 512, WINDOW_PAGE, "q8a", lambda shape: shape["norm"] == "rms"
        ),
        insert_op("compressed_kv_insert", 512, PAGE, "q4n"),
        insert_op("index_key_insert", 128, PAGE, None, lambda shape: True),
    )
)
