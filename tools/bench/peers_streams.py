"""hc_post, hc_fold_norm, hc_post_fold_norm, hc_stats and the fused one: inputs, outputs, peers."""

from types import SimpleNamespace

import torch

import peers_other_reference as reference
import peers_other_torch as torch_peer
import peers_small_reference
from peers_numbers import Quantised
from peers_small import SmallOp, as_double, compiled, peers_of, poisoned, random_bf16
from peers_small_torch import to_e4m3

GATES = {  # name -> shape of a row, and how large they are
    "pre": ((4,), 1),
    "post": ((4,), 2),
    "comb": ((4, 4), 0.5),
}
SQRSUM_TOLERANCE = 1e-4
FP32_TOLERANCE = 2e-5  # of gates
ROUNDED_TOLERANCE = 2e-3  # behind streams a few of which were rounded to another bf16
TF32_TOLERANCES = {"tf32x3": 1e-4, "tf32": 4e-3}  # on top, of Triton
FUSED_ONLY_ROWS = 6, 12  # compiled in the fused op only: each takes seconds


def triton_peer():
    import peers_streams_triton  # late: see peers_inputs

    return peers_streams_triton


def stream_inputs(*names):
    def inputs(shape, sizes, device):
        rows, columns = sizes["num_rows"], shape["columns"]
        make = {
            "y": lambda: random_bf16((rows, columns), device),
            "h": lambda: random_bf16((rows, 4, columns), device),
            "weight": lambda: torch.randn(columns, device=device).to(torch.bfloat16),
            "fn": lambda: torch.randn((24, 4 * columns), device=device) * (4 * columns) ** -0.5,
            "scale": lambda: torch.rand(3, device=device) + 0.5,
            "base": lambda: torch.randn(24, device=device),
        }
        for name, (row, size) in GATES.items():
            make[name] = lambda row=row, size=size: size * torch.rand((rows, *row), device=device)
        return SimpleNamespace(
            **{name: make[name]() for name in names},
            with_sqrsum=shape.get("sqrsum") == "stored",
            to_codes=shape.get("x_format") == "codes_q8a",
        )

    return inputs


def tensors(c):
    return [value for value in vars(c).values() if torch.is_tensor(value)]


def bytes_moved(c, out):
    """The streams are read and written where both are theirs."""
    return sum(each.nbytes for each in (*tensors(c), *out))


def x_outputs(c, rows, columns):
    parts = [((rows, columns), torch.bfloat16)]
    if c.to_codes:
        parts = [((rows, columns), torch.uint8), ((rows, columns // 32), torch.uint8)]
    return tuple(poisoned(*part, c.h.device) for part in parts)


def sqrsum_output(c):
    return (poisoned((len(c.h),), torch.float32, c.h.device),) if c.with_sqrsum else ()


def gate_outputs(c):
    return tuple(
        poisoned((len(c.h), *row), torch.float32, c.h.device) for row, _ in GATES.values()
    )


def x_torch(c, x):
    if not c.to_codes:
        return (x,)
    codes, exponent = to_e4m3(x, 32)
    return codes.view(torch.uint8), exponent.to(torch.uint8)


def sqrsum_torch(c, h):
    return (torch_peer.sum_of_squares(h),) if c.with_sqrsum else ()


def x_reference(c, x):
    if not c.to_codes:
        return (x,)
    parts = [peers_small_reference.quantise(row, "q8a") for row in x.tolist()]
    codes, scales = [part[1] for part in parts], [part[0] for part in parts]
    return torch.tensor(codes), torch.tensor(scales) + 127


def sqrsum_reference(c, h):
    return (h.pow(2).sum((1, 2)),) if c.with_sqrsum else ()


def quantised_at(first):
    def quantised(c, results):
        if c.to_codes:
            return Quantised(results[first], results[first + 1], "e4m3", "ue8m0")
        return None

    return quantised


def another_weight(c):
    return {"another weight": {"weight": c.weight.roll(1)}}


# --- hc_post, in place


def post_compiled(c):
    if c.with_sqrsum:
        return None
    call = compiled(torch_peer.hc_post_sums, c.h.device.type)
    return lambda out: (call(c.y, out[0], c.post, c.comb),)


def post_torch(c, out):
    h = torch_peer.hc_post(c.y, out[0], c.post, c.comb)
    return h, *sqrsum_torch(c, h)


def post_reference(c, before):
    h = reference.hc_post(c.y, c.h, c.post, c.comb)
    return h, *sqrsum_reference(c, h)


HC_POST = SmallOp(
    name="hc_post",
    inputs=stream_inputs("y", "h", "post", "comb"),
    outputs=lambda c: (c.h.clone(), *sqrsum_output(c)),
    torch_form=post_torch,
    triton_form=lambda c, out, config: triton_peer().hc_post(out, c, config),
    reference=post_reference,
    configs=lambda c: triton_peer().post_configs(c.with_sqrsum),
    read=tensors,
    bytes=bytes_moved,
    near=lambda c: (0,),
    close=lambda c, config: {1: SQRSUM_TOLERANCE} if c.with_sqrsum else {},
    values=as_double,
    compiled_form=post_compiled,
)


# --- hc_fold_norm


def fold_compiled(c):
    if c.to_codes:
        return None
    call = compiled(torch_peer.hc_fold_norm, c.h.device.type)
    return lambda out: (call(c.h, c.pre, c.weight),)


HC_FOLD_NORM = SmallOp(
    name="hc_fold_norm",
    inputs=stream_inputs("h", "pre", "weight"),
    outputs=lambda c: x_outputs(c, len(c.h), len(c.weight)),
    torch_form=lambda c, out: x_torch(c, torch_peer.hc_fold_norm(c.h, c.pre, c.weight)),
    triton_form=lambda c, out, config: triton_peer().hc_fold_norm(out, c, config),
    reference=lambda c, before: x_reference(c, reference.hc_fold_norm(c.h, c.pre, c.weight)),
    configs=lambda c: triton_peer().ROW_WARPS,
    read=tensors,
    mostly_near=lambda c: () if c.to_codes else (0,),
    quantised=quantised_at(0),
    mistakes=another_weight,
    values=as_double,
    compiled_form=fold_compiled,
)


# --- hc_post_fold_norm, in place


def post_fold_torch(c, out):
    h, x = torch_peer.hc_post_fold_norm(c.y, out[0], c.post, c.comb, c.pre, c.weight)
    return h, *x_torch(c, x), *sqrsum_torch(c, h)


def post_fold_reference(c, before):
    h = reference.hc_post(c.y, c.h, c.post, c.comb)
    x = reference.hc_fold_norm(h, c.pre, c.weight)
    return h, *x_reference(c, x), *sqrsum_reference(c, h)


def post_fold_compiled(c):
    if c.to_codes or c.with_sqrsum:
        return None
    call = compiled(torch_peer.hc_post_fold_norm_sums, c.h.device.type)
    return lambda out: call(c.y, out[0], c.post, c.comb, c.pre, c.weight)


HC_POST_FOLD_NORM = SmallOp(
    name="hc_post_fold_norm",
    inputs=stream_inputs("y", "h", "post", "comb", "pre", "weight"),
    outputs=lambda c: (c.h.clone(), *x_outputs(c, *c.y.shape), *sqrsum_output(c)),
    torch_form=post_fold_torch,
    triton_form=lambda c, out, config: triton_peer().hc_post_fold_norm(out, c, config),
    reference=post_fold_reference,
    configs=lambda c: triton_peer().ROW_WARPS,
    read=tensors,
    bytes=bytes_moved,
    near=lambda c: (0,),
    mostly_near=lambda c: () if c.to_codes else (1,),
    close=lambda c, config: {2 + c.to_codes: SQRSUM_TOLERANCE} if c.with_sqrsum else {},
    quantised=quantised_at(1),
    mistakes=another_weight,
    values=as_double,
    compiled_form=post_fold_compiled,
)


# --- hc_stats, and all of it between two sub-layers


def gate_tolerances(first, tolerance):
    """Of pre, post and comb, outputs from `first` on."""

    def close(c, config):
        of_triton = TF32_TOLERANCES[config[-1]] if config else 0
        return dict.fromkeys(range(first, first + 3), tolerance + of_triton)

    return close


def stats_compiled(c):
    if len(c.h) in FUSED_ONLY_ROWS:
        return None
    call = compiled(torch_peer.hc_stats, c.h.device.type)
    return lambda out: call(c.h, c.fn, c.scale, c.base)


HC_STATS = SmallOp(
    name="hc_stats",
    inputs=stream_inputs("h", "fn", "scale", "base"),
    outputs=gate_outputs,
    torch_form=lambda c, out: torch_peer.hc_stats(c.h, c.fn, c.scale, c.base),
    triton_form=lambda c, out, config: triton_peer().hc_stats(out, c.h, c, config),
    reference=lambda c, before: reference.hc_stats(c.h, c.fn, c.scale, c.base),
    configs=lambda c: triton_peer().stats_configs(len(c.h)),
    read=tensors,
    close=gate_tolerances(0, FP32_TOLERANCE),
    values=as_double,
    compiled_form=stats_compiled,
    cold=("fn",),
)


def boundary_arguments(c, out):
    return c.y, out[0], c.post, c.comb, c.pre, c.weight, c.fn, c.scale, c.base


def boundary_compiled(c):
    call = compiled(torch_peer.hc_boundary_sums, c.h.device.type)
    return lambda out: call(*boundary_arguments(c, out))


def boundary_reference(c, before):
    h = reference.hc_post(c.y, c.h, c.post, c.comb)
    x = reference.hc_fold_norm(h, c.pre, c.weight)
    return h, x, *reference.hc_stats(h, c.fn, c.scale, c.base)


HC_BOUNDARY = SmallOp(
    name="hc_fused_post_pre_delayed",
    inputs=stream_inputs("y", "h", "post", "comb", "pre", "weight", "fn", "scale", "base"),
    outputs=lambda c: (c.h.clone(), *x_outputs(c, *c.y.shape), *gate_outputs(c)),
    torch_form=lambda c, out: torch_peer.hc_boundary(*boundary_arguments(c, out)),
    triton_form=lambda c, out, config: triton_peer().hc_boundary(out, c, config),
    reference=boundary_reference,
    configs=lambda c: triton_peer().stats_configs(len(c.h)),
    read=tensors,
    bytes=bytes_moved,
    near=lambda c: (0,),
    mostly_near=lambda c: (1,),
    close=gate_tolerances(2, ROUNDED_TOLERANCE),
    values=as_double,
    compiled_form=boundary_compiled,
    cold=("fn",),
)

PEERS = peers_of((HC_POST, HC_FOLD_NORM, HC_POST_FOLD_NORM, HC_STATS, HC_BOUNDARY))
