"""moe_route, moe_align and moe_combine: inputs, outputs, peers."""

from types import SimpleNamespace

import torch

import peers_other_reference as reference
import peers_other_torch as torch_peer
from peers_reference import round_up
from peers_small import SmallOp, as_double, peers_of, poisoned, random_bf16

WEIGHT_TOLERANCE = 2e-6
LEAST_GAP = 1e-5  # of keys whose order counts: fp32 must not decide it


def triton_peer():
    import peers_moe_triton  # late: see peers_inputs

    return peers_moe_triton


# --- moe_route


def route_inputs(shape, sizes, device):
    rows, experts, top_k = sizes["num_rows"], shape["num_experts"], shape["top_k"]
    logits = 2 * torch.randn((rows, experts), device=device)
    bias = 0.1 * torch.randn(experts, device=device)
    keys = torch.nn.functional.softplus(logits.double()).sqrt() + bias
    gaps = -keys.topk(top_k + 1).values.diff()
    is_close = (gaps < LEAST_GAP).any(1)
    logits[is_close] = logits[~is_close][:1]
    return SimpleNamespace(logits=logits, bias=bias, top_k=top_k)


def route_outputs(c):
    shape = len(c.logits), c.top_k
    return tuple(poisoned(shape, dtype, c.bias.device) for dtype in (torch.int32, torch.float32))


MOE_ROUTE = SmallOp(
    name="moe_route",
    inputs=route_inputs,
    outputs=route_outputs,
    torch_form=lambda c, out: torch_peer.moe_route(**vars(c)),
    triton_form=lambda c, out, config: triton_peer().moe_route(out, c, config),
    reference=lambda c, before: reference.moe_route(**vars(c)),
    configs=lambda c: triton_peer().ROUTE_WARPS,
    read=lambda c: (c.logits, c.bias),
    close=lambda c, config: {1: WEIGHT_TOLERANCE},
    values=as_double,
)


# --- moe_align


def align_inputs(shape, sizes, device):
    """Experts of a token are distinct, and all are of this rank."""
    rows, experts, block = sizes["num_rows"], shape["num_experts"], shape["block_size"]
    ids = torch.rand((rows, experts), device=device).topk(shape["top_k"]).indices.int()
    return SimpleNamespace(
        ids=ids,
        num_experts=experts,
        block_size=block,
        capacity=round_up(ids.numel() + experts * (block - 1), block),
    )


def align_outputs(c):
    shapes = (c.capacity,), (c.capacity // c.block_size,), (1,)
    return tuple(poisoned(shape, torch.int32, c.ids.device) for shape in shapes)


MOE_ALIGN = SmallOp(
    name="moe_align",
    inputs=align_inputs,
    outputs=align_outputs,
    torch_form=lambda c, out: torch_peer.moe_align(**vars(c)),
    triton_form=lambda c, out, config: triton_peer().moe_align(out, c, config),
    reference=lambda c, before: reference.moe_align(**vars(c)),
    configs=lambda c: triton_peer().ALIGN_WARPS,
    read=lambda c: (c.ids,),
    check_sizes=lambda sizes: {"num_rows": 200},
)


# --- moe_combine


def combine_inputs(shape, sizes, device):
    rows, columns = sizes["num_rows"], shape["hidden_size"]
    return SimpleNamespace(
        pairs=random_bf16((rows, shape["top_k"], columns), device),
        shared=random_bf16((rows, columns), device),
    )


MOE_COMBINE = SmallOp(
    name="moe_combine",
    inputs=combine_inputs,
    outputs=lambda c: (poisoned(c.shared.shape, torch.bfloat16, c.shared.device),),
    torch_form=lambda c, out: (torch_peer.moe_combine(c.pairs, c.shared),),
    triton_form=lambda c, out, config: triton_peer().moe_combine(out[0], c, config),
    reference=lambda c, before: (reference.moe_combine(c.pairs, c.shared),),
    configs=lambda c: triton_peer().COMBINE_CONFIGS,
    read=lambda c: (c.pairs, c.shared),
    near=lambda c: (0,),
    values=as_double,
)

PEERS = peers_of((MOE_ROUTE, MOE_ALIGN, MOE_COMBINE))
