"""act_quant Q8a: inputs, the PyTorch peer, the check and the rows of the table."""

import functools

import torch

import peers_reference as reference
from peers_check import require_same
from peers_reference import SCALE_BLOCK
from peers_timing import Row, num_sets

COLUMNS = 5120
ROWS = (1, 16, 256, 4096)


def act_quant_torch(x):
    """Codes E4M3 [.., K] and scale bytes u8 [.., K / 32]."""
    groups = x.float().unflatten(-1, (-1, SCALE_BLOCK))
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    scale = ((amax * (1 / 448)).view(torch.int32) + 0x7FFFFF) >> 23  # of the next power of two
    inverse = ((254 - scale) << 23).view(torch.float32)
    codes = (groups * inverse).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.flatten(-2), scale.squeeze(-1).to(torch.uint8)


def dequantize_x(codes, scales):
    """bf16, exact."""
    scales = scales.view(torch.float8_e8m0fnu).to(torch.bfloat16)
    values = codes.to(torch.bfloat16).unflatten(-1, (-1, SCALE_BLOCK))
    return (values * scales.unsqueeze(-1)).flatten(-2)


def fake_quantize_torch(x):
    return dequantize_x(*act_quant_torch(x))


def outputs(x):
    """Poisoned: codes and scales as bytes."""
    shape = (*x.shape[:-1], x.shape[-1] // SCALE_BLOCK)
    like = {"dtype": torch.uint8, "device": x.device}
    return torch.full(x.shape, 0xFF, **like), torch.full(shape, 0xFF, **like)


def check_rows():
    """bf16 numbers: every size that a scale can bring out, exact ties, zeros, the largest."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn((13, 256), generator=generator)
    exponent = torch.randint(-30, 30, (13, 8), generator=generator)
    rows *= torch.pow(2.0, exponent).repeat_interleave(SCALE_BLOCK, 1)
    rows[3] = 0.0
    rows[4] = torch.arange(256) * 0.25 - 32  # ties of E4M3
    rows[5, 7::32] = 448.0
    rows[6, ::32] = torch.finfo(torch.bfloat16).max
    rows[7] *= 1e-38  # subnormal, below the least scale
    return rows.to(torch.bfloat16)


@functools.cache
def expected_of_check():
    return [
        torch.tensor(part, dtype=torch.uint8)
        for part in reference.act_quant(check_rows().double().tolist())
    ]


def check_torch(device):
    codes, scales = act_quant_torch(check_rows().to(device))
    expected = [part.to(device) for part in expected_of_check()]
    compare("act_quant, torch", (codes.view(torch.uint8), scales), expected)


def triton_trials(device):
    """(run, compare) with each kernel that rows need, and those of the linear."""
    import peers_act_quant_triton as triton_peer

    x = check_rows().to(device)
    expected = [part.to(device) for part in expected_of_check()]
    for config in triton_peer.CONFIGS:
        found = outputs(x)
        yield (
            functools.partial(triton_peer.act_quant, *found, x, config),
            functools.partial(compare, f"act_quant, triton, {config}", found, expected),
        )
    values = dequantize_x(expected[0].view(torch.float8_e4m3fn), expected[1])
    found = torch.full_like(values, float("nan"))
    yield (
        functools.partial(triton_peer.fake_quantize, found, x),
        functools.partial(require_same, "act_quant, triton, as bf16", found, values),
    )


def compare(what, found, expected):
    for part, got, want in zip(("codes", "scales"), found, expected):
        require_same(f"{what}, {part}", got, want)


def make_row(num_rows):
    """4096 rows are cold, x too; the fewer rows that a decode step has are warm."""
    import peers_act_quant_triton as triton_peer

    def make_set():
        x = torch.randn((num_rows, COLUMNS), dtype=torch.bfloat16, device="cuda")
        return x, outputs(x)

    x, (codes, scales) = first = make_set()
    row_bytes = 2 * x.numel() + codes.numel() + scales.numel()
    is_cold = num_rows == max(ROWS)
    sets = [first] + [make_set() for _ in range(num_sets(row_bytes) - 1 if is_cold else 0)]

    def run_triton(i, config):
        x, out = sets[i % len(sets)]
        triton_peer.act_quant(*out, x, config)

    def check_config(config):
        run_triton(0, config)
        expected_codes, expected_scales = act_quant_torch(x)
        expected = expected_codes.view(torch.uint8), expected_scales
        compare("Triton against PyTorch", (codes, scales), expected)
        codes.fill_(0xFF)
        scales.fill_(0xFF)

    return Row(
        op="act_quant",
        shape={"format": "q8a", "rows": num_rows, "columns": COLUMNS},
        memory="cold" if is_cold else "warm",
        num_sets=len(sets),
        bytes=row_bytes,
        call_torch=lambda i: act_quant_torch(sets[i % len(sets)][0]),
        call_triton=run_triton,
        check=check_config,
        configs=triton_peer.CONFIGS,
    )


def planned_rows():
    for num_rows in ROWS:
        yield f"act_quant {num_rows} x {COLUMNS}", functools.partial(make_row, num_rows)
