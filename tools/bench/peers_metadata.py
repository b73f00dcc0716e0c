"""topk_to_slots, window_slots, ragged_indptr and ragged_keys: inputs, outputs, peers."""

from types import SimpleNamespace

import torch

import peers_small_reference as reference
import peers_small_torch as torch_peer
from peers_reference import WINDOW
from peers_small import SmallOp, peers_of, poisoned, random_ints

PREFIX = 4096
VISIBLE = 32768  # entries that a row of top-k chooses from


def triton_peer():
    import peers_metadata_triton  # late: see peers_inputs

    return peers_metadata_triton


def requests_of(rows, device):
    """A decode row each up to 256 rows, a chunk of four requests above."""
    requests = rows if rows <= 256 else 4
    return (torch.arange(rows, device=device) * requests // rows).int()


def block_table(requests, entries, page_size, device):
    return random_ints(0, 20000, (requests, -(-entries // page_size)), device)


def validity(rows, is_check, device):
    valid = torch.ones(rows, dtype=torch.uint8, device=device)
    valid[rows - 2 * is_check :] = 0
    return valid


def int32(device, *shapes):
    return tuple(poisoned(shape, torch.int32, device) for shape in shapes)


def check_sizes(sizes):
    return {"num_rows": 9, "is_check": True}


def topk_inputs(shape, sizes, device):
    rows, top_k = sizes["num_rows"], shape["top_k"]
    requests = requests_of(rows, device)
    topk = random_ints(0, VISIBLE, (rows, top_k), device).sort(1).values
    if "is_check" in sizes:
        for row in range(rows):
            topk[row, row * 40 :] = -1
    return SimpleNamespace(
        topk=topk,
        requests=requests,
        is_valid=validity(rows, "is_check" in sizes, device),
        table=block_table(int(requests[-1]) + 1, VISIBLE, 64, device),
        page_size=64,
    )


TOPK_TO_SLOTS = SmallOp(
    name="topk_to_slots",
    inputs=topk_inputs,
    outputs=lambda c: int32(c.topk.device, c.topk.shape, c.topk.shape[:1]),
    torch_form=lambda c, out: torch_peer.topk_to_slots(**vars(c)),
    triton_form=lambda c, out, config: triton_peer().topk_to_slots(out, c, config),
    reference=lambda c, before: reference.topk_to_slots(**vars(c)),
    configs=lambda c: triton_peer().WARPS,
    read=lambda c: (c.topk, c.requests, c.is_valid),
    check_sizes=check_sizes,
)


def window_inputs(shape, sizes, device):
    rows = sizes["num_rows"]
    requests = requests_of(rows, device)
    row = torch.arange(rows, device=device)
    positions = row * 31 if "is_check" in sizes else PREFIX + row % (rows // (requests[-1] + 1))
    return SimpleNamespace(
        positions=positions.int(),
        requests=requests,
        is_valid=validity(rows, "is_check" in sizes, device),
        table=block_table(int(requests[-1]) + 1, PREFIX + rows, 32, device),
        page_size=32,
    )


WINDOW_SLOTS = SmallOp(
    name="window_slots",
    inputs=window_inputs,
    outputs=lambda c: int32(c.positions.device, (len(c.positions), WINDOW), c.positions.shape),
    torch_form=lambda c, out: torch_peer.window_slots(**vars(c)),
    triton_form=lambda c, out, config: triton_peer().window_slots(out, c, config),
    reference=lambda c, before: reference.window_slots(**vars(c)),
    configs=lambda c: triton_peer().WARPS,
    read=lambda c: (c.positions, c.requests, c.is_valid),
    check_sizes=check_sizes,
)


def indptr_inputs(shape, sizes, device):
    rows = sizes["num_rows"]
    lens = torch.full((rows,), 512, dtype=torch.int32, device=device)
    if "is_check" in sizes:
        lens = random_ints(0, 513, (rows,), device)
        lens[2], lens[5] = 0, 512
    return SimpleNamespace(
        slots=random_ints(-1, 2**31 - 1, (rows, 512), device),
        lens=lens,
        total=int(lens.sum()),
    )


INDPTR = SmallOp(
    name="ragged_indptr",
    inputs=indptr_inputs,
    outputs=lambda c: int32(c.slots.device, (len(c.lens) + 1,), (c.slots.numel(),)),
    torch_form=lambda c, out: torch_peer.ragged_indptr(c.slots, c.lens),
    triton_form=lambda c, out, config: triton_peer().ragged_indptr(out, c, config),
    reference=lambda c, before: reference.ragged_indptr(c.slots, c.lens),
    configs=lambda c: triton_peer().WARPS,
    read=lambda c: (c.slots, c.lens),
    check_sizes=check_sizes,
    meant=lambda c, results: (results[0], results[1][: c.total]),
)


def keys_inputs(shape, sizes, device):
    """Decode rows where requests are many, a chunk of 1024 rows each where they are few."""
    requests, ratio = sizes["num_requests"], shape["ratio"]
    tokens = sizes["max_keys"] * ratio
    query = 1 if requests > 4 else min(tokens, 1024)
    seq_lens = torch.full((requests,), tokens, dtype=torch.int32, device=device)
    if "is_check" in sizes:
        seq_lens -= 3 * torch.arange(requests, device=device, dtype=torch.int32)
    return SimpleNamespace(
        query_start_loc=torch.arange(requests + 1, device=device).mul(query).int(),
        seq_lens=seq_lens,
        table=block_table(requests, sizes["max_keys"], 64, device),
        ratio=ratio,
        page_size=64,
        num_rows=requests * query,
        num_keys=int((seq_lens // ratio).sum()),
        max_keys=sizes["max_keys"],
    )


def keys_outputs(c):
    requests, rows = len(c.seq_lens), c.num_rows
    shapes = requests, requests, requests + 1, c.num_keys, rows, rows, rows, rows
    return int32(c.seq_lens.device, *((n,) for n in shapes))


def keys_torch(c, out):
    sizes = c.ratio, c.page_size, c.num_rows, c.num_keys
    return torch_peer.ragged_keys(c.query_start_loc, c.seq_lens, c.table, *sizes)


RAGGED_KEYS = SmallOp(
    name="ragged_keys",
    inputs=keys_inputs,
    outputs=keys_outputs,
    torch_form=keys_torch,
    triton_form=lambda c, out, config: triton_peer().ragged_keys(out, c, config),
    reference=lambda c, before: reference.ragged_keys(
        c.query_start_loc, c.seq_lens, c.table, c.ratio, c.page_size
    ),
    configs=lambda c: triton_peer().KEY_CONFIGS,
    read=lambda c: (c.query_start_loc, c.seq_lens, c.table),
    check_sizes=lambda sizes: {"num_requests": 3, "max_keys": 700, "is_check": True},
)

PEERS = peers_of((TOPK_TO_SLOTS, WINDOW_SLOTS, INDPTR, RAGGED_KEYS))
