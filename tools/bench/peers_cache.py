"""window_kv_insert, compressed_kv_insert and index_key_insert: inputs, outputs, peers."""

from types import SimpleNamespace

import torch

import peers_small_reference as reference
import peers_small_torch as torch_peer
from peers_reference import LAYOUTS, Layout
from peers_small import (
    TABLE_ROWS,
    SmallOp,
    peers_of,
    poisoned,
    random_bf16,
    random_ints,
    rope_table,
)

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
        check_sizes=lambda sizes: {"num_rows": 7, "has_padding": True},
        near=lambda c: () if c.weight is None else (0,),
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
