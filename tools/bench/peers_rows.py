"""rms_norm, rope, qkv_norm, index_query and compressor_update: inputs, outputs, peers."""

from types import SimpleNamespace

import torch

import peers_small_reference as reference
import peers_small_torch as torch_peer
from peers_numbers import Quantised
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

HEAD_DIM = 512
RING_ROWS = 8


def triton_peer():
    import peers_rows_triton  # late: see peers_inputs

    return peers_rows_triton


def positions_of(rows, device):
    return random_ints(0, TABLE_ROWS, (rows,), device)


# --- rms_norm


def norm_inputs(shape, sizes, device):
    rows, columns = sizes["num_rows"], shape["columns"]
    return SimpleNamespace(
        x=random_bf16((rows, columns), device),
        weight=torch.randn(columns, device=device).to(torch.bfloat16),
    )


RMS_NORM = SmallOp(
    name="rms_norm",
    inputs=norm_inputs,
    outputs=lambda c: (poisoned(c.x.shape, torch.bfloat16, c.x.device),),
    torch_form=lambda c, out: (torch_peer.rms_norm(c.x, c.weight),),
    triton_form=lambda c, out, config: triton_peer().rms_norm(out[0], c.x, c.weight, config),
    reference=lambda c, before: ([reference.rms_norm(row, c.weight) for row in c.x],),
    configs=lambda c: triton_peer().norm_configs(c.x.shape[1]),
    read=lambda c: (c.x, c.weight),
    near=lambda c: (0,),
)


# --- rope, in place, of the last 64 elements of each head


def rope_inputs(shape, sizes, device):
    rows = sizes["num_rows"]
    return SimpleNamespace(
        q=random_bf16((rows, shape["num_heads"], HEAD_DIM), device),
        positions=positions_of(rows, device),
        table=rope_table(device),
        inverse=shape["direction"] == "inverse",
    )


def rope_torch(c, out):
    tail = out[0][..., -torch_peer.ROPE_DIMS :]
    tail.copy_(torch_peer.rotated(tail, c.positions, c.table, c.inverse))
    return out


def rope_reference(c, before):
    return (
        [
            [reference.rope(head, c.table[p], c.inverse) for head in row]
            for row, p in zip(c.q, c.positions)
        ],
    )


ROPE = SmallOp(
    name="rope",
    inputs=rope_inputs,
    outputs=lambda c: (c.q.clone(),),
    torch_form=rope_torch,
    triton_form=lambda c, out, config: triton_peer().rope(
        out[0], c.positions, c.table, c.inverse, config
    ),
    reference=rope_reference,
    configs=lambda c: triton_peer().HEAD_CONFIGS,
    read=lambda c: (),
    bytes=lambda c, out: c.positions.numel() * (4 + 256 + c.q.shape[1] * 4 * 64),
)


# --- qkv_norm


def qkv_inputs(shape, sizes, device):
    columns = shape["q_columns"], shape["kv_columns"]
    weights = (torch.randn(n, device=device).to(torch.bfloat16) for n in columns)
    q_weight, kv_weight = weights
    return SimpleNamespace(
        qkv=random_bf16((sizes["num_rows"], sum(columns)), device),
        q_weight=q_weight,
        kv_weight=kv_weight,
        to_codes=shape["qr_format"] == "codes_q8a",
    )


def qkv_outputs(c):
    rows, q, kv = len(c.qkv), len(c.q_weight), len(c.kv_weight)
    if c.to_codes:
        of_q = [((rows, q), torch.uint8), ((rows, q // 32), torch.uint8)]
    else:
        of_q = [((rows, q), torch.bfloat16)]
    parts = [*of_q, ((rows, kv), torch.bfloat16)]
    return tuple(poisoned(*part, c.qkv.device) for part in parts)


def qkv_torch(c, out):
    q, kv = c.qkv.split((len(c.q_weight), len(c.kv_weight)), -1)
    q, kv = torch_peer.rms_norm(q, c.q_weight), torch_peer.rms_norm(kv, c.kv_weight)
    if not c.to_codes:
        return q, kv
    codes, exponent = torch_peer.to_e4m3(q, 32)
    return codes.view(torch.uint8), exponent.to(torch.uint8), kv


def qkv_reference(c, before):
    n = len(c.q_weight)
    q = [reference.rms_norm(row[:n], c.q_weight) for row in c.qkv]
    kv = [reference.rms_norm(row[n:], c.kv_weight) for row in c.qkv]
    if not c.to_codes:
        return q, kv
    parts = [reference.quantise(row, "q8a") for row in q]
    scales = [[exponent + 127 for exponent in part[0]] for part in parts]
    return [part[1] for part in parts], scales, kv


def qkv_quantised(c, results):
    return Quantised(results[0], results[1], "e4m3", "ue8m0") if c.to_codes else None


QKV_NORM = SmallOp(
    name="qkv_norm",
    inputs=qkv_inputs,
    outputs=qkv_outputs,
    torch_form=qkv_torch,
    triton_form=lambda c, out, config: triton_peer().qkv_norm(
        out, c.qkv, c.q_weight, c.kv_weight, config
    ),
    reference=qkv_reference,
    configs=lambda c: triton_peer().WARPS,
    read=lambda c: (c.qkv, c.q_weight, c.kv_weight),
    near=lambda c: (2,) if c.to_codes else (0, 1),
    quantised=qkv_quantised,
    mistakes=lambda c: {"another weight": {"q_weight": c.q_weight.roll(1)}},
)


# --- index_query


def query_inputs(shape, sizes, device):
    rows, heads = sizes["num_rows"], shape["num_heads"]
    return SimpleNamespace(
        q=random_bf16((rows, heads, 128), device),
        head_weights=torch.randn((rows, heads), device=device).to(torch.bfloat16),
        positions=positions_of(rows, device),
        table=rope_table(device),
        output=shape["output"],
    )


def query_outputs(c):
    rows, heads, _ = c.q.shape
    is_q4m = c.output == "q4m"
    parts = [((rows, heads, 64 if is_q4m else 128), torch.uint8)]
    parts += [((rows, heads, 4), torch.uint8)] if is_q4m else []
    parts += [((rows, heads), torch.float32)]
    return tuple(poisoned(*part, c.q.device) for part in parts)


def query_reference(c, before):
    rotated = [
        [reference.rope(head, c.table[p]) for head in row] for row, p in zip(c.q, c.positions)
    ]
    parts = [[reference.quantise(head, c.output) for head in row] for row in rotated]
    codes = [[part[1] for part in row] for row in parts]
    weights = [[w / 64 for w in row] for row in c.head_weights]
    if c.output == "q4m":
        codes = [[reference.packed(head) for head in row] for row in codes]
        scales = [[[exponent + 127 for exponent in part[0]] for part in row] for row in parts]
        return codes, scales, weights
    folded = [[w * 2.0 ** part[0][0] for w, part in zip(*both)] for both in zip(weights, parts)]
    return codes, folded


def query_quantised(c, results):
    """In q8k the scale is a factor of the weight."""
    if c.output == "q4m":
        return Quantised(results[0], results[1], "e2m1", "ue8m0")
    folded = results[1].unsqueeze(-1).view(torch.uint8)
    return Quantised(results[0], folded, "e4m3", "fp32")


INDEX_QUERY = SmallOp(
    name="index_query",
    inputs=query_inputs,
    outputs=query_outputs,
    torch_form=lambda c, out: torch_peer.index_query(
        c.q, c.head_weights, c.positions, c.table, c.output
    ),
    triton_form=lambda c, out, config: triton_peer().index_query(
        out, c.q, c.head_weights, c.positions, c.table, config
    ),
    reference=query_reference,
    configs=lambda c: triton_peer().HEAD_CONFIGS,
    read=lambda c: (c.q, c.head_weights, c.positions, c.table[: len(c.q)]),
    quantised=query_quantised,
    mistakes=lambda c: mistakes_of_rotation(c, c.q),
)


# --- compressor_update


def compressor_inputs(shape, sizes, device):
    """One row for each request up to 256, else four requests; positions of both parities."""
    rows, ratio = sizes["num_rows"], shape["ratio"]
    requests = sizes.get("num_requests", rows if rows <= 256 else 4)
    starts = torch.arange(requests + 1, device=device) * rows // requests
    row = torch.arange(rows, device=device)
    request = torch.searchsorted(starts, row, right=True) - 1
    prefix = 4096 + torch.arange(requests, device=device) % 2
    int32 = {"dtype": torch.int32}
    return SimpleNamespace(
        projections=4 * torch.randn((rows, 512 * ratio), device=device),
        positions=(prefix[request] + row - starts[request]).to(**int32),
        requests=request.to(**int32),
        starts=starts.to(**int32),
        blocks=(2 * torch.arange(requests, device=device) + 1).to(**int32),
        weight=torch.randn(512, device=device).to(torch.bfloat16),
        ring=(
            torch.randn((2 * requests + 1, RING_ROWS, 1024), device=device) if ratio == 2 else None
        ),
        ratio=ratio,
    )


def compressor_outputs(c):
    latent = poisoned((len(c.positions), 512), torch.bfloat16, c.weight.device)
    return (latent,) if c.ring is None else (latent, c.ring.clone())


def compressor_torch(c, out):
    ring = out[1] if c.ratio == 2 else None
    latent = torch_peer.compressor_update(
        c.projections, c.positions, c.requests, c.starts, c.blocks, c.weight, ring
    )
    return (latent, *out[1:])


def compressor_reference(c, before):
    ring = before[1] if c.ratio == 2 else []
    latents, ring = reference.compressor_update(
        c.projections, c.positions, c.starts, c.blocks, c.weight, ring, c.ratio
    )
    latents = [latent or [0.0] * 512 for latent in latents]
    return (latents, ring) if c.ratio == 2 else (latents,)


def compressor_meant(c, results):
    """Rows that complete a group; block 0 is nobody's."""
    latent, *ring = results
    return latent[(c.positions + 1) % c.ratio == 0], *(each[1:] for each in ring)


def compressor_bytes(c, out):
    """Each token's row once; of the ring what is stored, and a partner for each second request."""
    rows, requests = len(c.positions), len(c.blocks)
    moved = c.projections.nbytes + 8 * rows + rows // c.ratio * 1024
    if c.ratio == 2:
        moved += 4096 * (min(rows, requests * RING_ROWS) + requests // 2)
    return moved


COMPRESSOR_UPDATE = SmallOp(
    name="compressor_update",
    inputs=compressor_inputs,
    outputs=compressor_outputs,
    torch_form=compressor_torch,
    triton_form=lambda c, out, config: triton_peer().compressor_update(out, c, config),
    reference=compressor_reference,
    configs=lambda c: triton_peer().WARPS,
    read=lambda c: (),
    bytes=compressor_bytes,
    check_sizes=lambda sizes: {"num_rows": 23, "num_requests": 3},
    near=lambda c: (0,),
    meant=compressor_meant,
)

PEERS = peers_of((RMS_NORM, ROPE, QKV_NORM, INDEX_QUERY, COMPRESSOR_UPDATE))
