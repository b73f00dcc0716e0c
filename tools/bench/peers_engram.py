"""embed_expand, engram_hash, engram_fetch and engram_inject: inputs, outputs, peers."""

from types import SimpleNamespace

import torch

import peers_other_reference as reference
import peers_other_torch as torch_peer
from peers_small import SmallOp, as_double, peers_of, poisoned, random_bf16, random_ints

MAP_SIZE = 99092  # compressed ids
PAD_ID = 2
CHECK_FIRST_ID = 1000


def triton_peer():
    import peers_engram_triton  # late: see peers_inputs

    return peers_engram_triton


def check_sizes(sizes):
    return {"num_rows": 9, "is_check": True}


# --- embed_expand


def embed_inputs(shape, sizes, device):
    """A table of four times as many rows as there are tokens, as Kiln has it where it is timed."""
    rows = sizes["num_rows"]
    is_check = "is_check" in sizes
    ids = random_ints(0, 4 * rows, (rows,), device)
    if is_check:
        ids += CHECK_FIRST_ID
        ids[2], ids[3], ids[4] = -1, CHECK_FIRST_ID - 1, CHECK_FIRST_ID + 4 * rows
    return SimpleNamespace(
        ids=ids,
        table=random_bf16((4 * rows, shape["columns"]), device),
        first_id=CHECK_FIRST_ID * is_check,
        num_streams=shape["num_streams"],
    )


def embed_outputs(c):
    shape = len(c.ids), c.num_streams, c.table.shape[1]
    return (poisoned(shape, torch.bfloat16, c.ids.device),)


EMBED_EXPAND = SmallOp(
    name="embed_expand",
    inputs=embed_inputs,
    outputs=embed_outputs,
    torch_form=lambda c, out: (torch_peer.embed_expand(**vars(c)),),
    triton_form=lambda c, out, config: triton_peer().embed_expand(out[0], c, config),
    reference=lambda c, before: (reference.embed_expand(**vars(c)),),
    configs=lambda c: triton_peer().EMBED_CONFIGS,
    read=lambda c: (),
    bytes=lambda c, out: c.ids.nbytes + out[0].nbytes // c.num_streams + out[0].nbytes,
    check_sizes=check_sizes,
    values=as_double,
    cold=("table",),
)


# --- engram_hash


def hash_inputs(shape, sizes, device):
    """One row for each request up to 256, else four requests."""
    rows = sizes["num_rows"]
    requests = 3 if "is_check" in sizes else rows if rows <= 256 else 4
    starts = torch.arange(requests + 1, device=device) * rows // requests
    row = torch.arange(rows, device=device)
    ids = random_ints(0, MAP_SIZE, (rows,), device)
    history = random_ints(0, MAP_SIZE, (requests, 3), device)
    if "is_check" in sizes:
        ids[1], ids[7], history[1, :2], history[2] = -1, -5, -1, -1
    constants = reference.PRIMES, reference.OFFSETS
    primes, offsets = (torch.tensor(each, dtype=torch.int32, device=device) for each in constants)
    return SimpleNamespace(
        ids=ids,
        requests=(torch.searchsorted(starts, row, right=True) - 1).int(),
        query_start_loc=starts.int(),
        history=history,
        multipliers=torch.tensor(reference.MULTIPLIERS, device=device),
        primes=primes,
        offsets=offsets,
        pad_id=PAD_ID,
    )


ENGRAM_HASH = SmallOp(
    name="engram_hash",
    inputs=hash_inputs,
    outputs=lambda c: (poisoned((len(c.ids), len(c.primes)), torch.int32, c.ids.device),),
    torch_form=lambda c, out: (torch_peer.engram_hash(**vars(c)),),
    triton_form=lambda c, out, config: triton_peer().engram_hash(out[0], c, config),
    reference=lambda c, before: (reference.engram_hash(**vars(c)),),
    configs=lambda c: triton_peer().HASH_CONFIGS,
    read=lambda c: [value for value in vars(c).values() if torch.is_tensor(value)],
    check_sizes=check_sizes,
)


# --- engram_fetch, from a table on the device


def fetch_inputs(shape, sizes, device):
    """Distinct rows of a table of four times as many, as Kiln has it where it is timed."""
    rows, heads, columns = sizes["num_rows"], shape["num_heads"], shape["columns"]
    size = 4 * rows * heads
    names = torch.randperm(size, device=device)[: rows * heads].view(rows, heads)
    codes = torch.randint(0, 127, (size, columns), device=device)  # 127 is a NaN
    codes += 128 * torch.randint(0, 2, (size, columns), device=device)
    return SimpleNamespace(
        rows=names.int(),
        table=codes.to(torch.uint8),
        scales=random_ints(100, 140, (size, columns // 32), device, torch.uint8),
        is_bf16=shape["x_format"] == "bf16",
    )


def fetch_outputs(c):
    rows, (heads, columns) = len(c.rows), (c.rows.shape[1], c.table.shape[1])
    if c.is_bf16:
        return (poisoned((rows, heads * columns), torch.bfloat16, c.rows.device),)
    widths = heads * columns, heads * columns // 32
    return tuple(poisoned((rows, width), torch.uint8, c.rows.device) for width in widths)


ENGRAM_FETCH = SmallOp(
    name="engram_fetch",
    inputs=fetch_inputs,
    outputs=fetch_outputs,
    torch_form=lambda c, out: torch_peer.engram_fetch(**vars(c)),
    triton_form=lambda c, out, config: triton_peer().engram_fetch(out, c, config),
    reference=lambda c, before: reference.engram_fetch(**vars(c)),
    configs=lambda c: triton_peer().FETCH_CONFIGS,
    read=lambda c: (),
    bytes=lambda c, out: c.rows.nbytes
    + c.rows.numel() * (c.table.shape[1] + c.scales.shape[1])
    + sum(each.nbytes for each in out),
    check_sizes=lambda sizes: {"num_rows": 5},
    values=as_double,
    cold=("table", "scales"),
)


# --- engram_inject, in place


def inject_inputs(shape, sizes, device):
    rows, columns, streams = sizes["num_rows"], shape["columns"], shape["num_streams"]
    weights = (torch.randn((streams, columns), device=device) for _ in range(2))
    q_weight, k_weight = (weight.to(torch.bfloat16) for weight in weights)
    ids = random_ints(0, MAP_SIZE, (rows,), device)
    if "is_check" in sizes:
        ids[::4] = -1
    return SimpleNamespace(
        h=random_bf16((rows, streams, columns), device),
        keys_and_value=random_bf16((rows, (streams + 1) * columns), device),
        q_weight=q_weight,
        k_weight=k_weight,
        ids=ids,
    )


def with_streams(c, h):
    return SimpleNamespace(**vars(c) | {"h": h})


ENGRAM_INJECT = SmallOp(
    name="engram_inject",
    inputs=inject_inputs,
    outputs=lambda c: (c.h.clone(),),
    torch_form=lambda c, out: (torch_peer.engram_inject(**vars(with_streams(c, out[0]))),),
    triton_form=lambda c, out, config: triton_peer().engram_inject(out[0], c, config),
    reference=lambda c, before: (reference.engram_inject(**vars(c)),),
    configs=lambda c: triton_peer().INJECT_WARPS,
    read=lambda c: [*vars(c).values()],
    check_sizes=check_sizes,
    mostly_near=lambda c: (0,),
    values=as_double,
)

PEERS = peers_of(
    (EMBED_EXPAND, ENGRAM_HASH, ENGRAM_FETCH, ENGRAM_INJECT),
    # Over the bus no stack has a kernel: rows are gathered by the host and copied.
    is_taken=lambda case: case["shape"].get("source") != "host",
)
