"""linear_fp8: inputs, the PyTorch peers, the check and the rows of the table."""

import functools
from dataclasses import dataclass

import torch

import peers_reference as reference
from peers_act_quant import fake_quantize_torch
from peers_check import require_close
from peers_reference import SCALE_BLOCK
from peers_timing import Row, num_sets

# groups, N, K -> numbers of rows
SHAPES = {
    (1, 16384, 1280): (1, 16, 256, 4096),
    (1, 5120, 4096): (1, 16, 256, 4096),
    (1, 1792, 5120): (1, 16, 256, 4096),
    (1, 25600, 6144): (1, 16, 256, 4096),
    (1, 1152, 5120): (256, 4096),
    (1, 4096, 1280): (256, 4096),
    (1, 5120, 1152): (256, 4096),
    (1, 5120, 15360): (256, 4096),
    (4, 1024, 4096): (256, 4096),  # behind attention: x is not quantised
}
RMS_TOLERANCE = 4e-3  # bf16 rounding is 1.7e-3, and both sides may be rounded


def dequantize_weight(codes, scales):
    """bf16 [G, N, K] of E4M3 codes and a scale for each 32 x 32; exact."""
    groups, n, k = codes.shape
    blocks = codes.view(torch.float8_e4m3fn).to(torch.bfloat16)
    blocks = blocks.view(groups, n // SCALE_BLOCK, SCALE_BLOCK, k // SCALE_BLOCK, SCALE_BLOCK)
    scales = scales.view(torch.float8_e8m0fnu).to(torch.bfloat16)
    return (blocks * scales[:, :, None, :, None]).view(groups, n, k)


def matmul_torch(x, weight):
    """bf16 x [M, G, K] by bf16 weight [G, N, K]: [M, G, N]."""
    if weight.shape[0] == 1:
        return torch.nn.functional.linear(x[:, 0], weight[0])[:, None]
    return torch.bmm(x.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)


def linear_fp8_torch(x, codes, scales, quantizes_x):
    x = fake_quantize_torch(x) if quantizes_x else x
    return matmul_torch(x, dequantize_weight(codes, scales))


@dataclass
class Weight:
    codes: torch.Tensor  # u8 [G, N, K]
    scales: torch.Tensor  # u8 [G, N / 32, K / 32]
    y: torch.Tensor  # bf16 [M, G, N]

    def bytes(self):
        return self.codes.numel() + self.scales.numel() + 2 * self.y.numel()


def draw_weight(num_rows, groups, n, k, device):
    like = {"dtype": torch.uint8, "device": device}
    codes = torch.randint(256, (groups, n, k), **like)
    codes.masked_fill_((codes & 0x7F) == 0x7F, 0)  # NaN, which no checkpoint holds
    shape = (groups, n // SCALE_BLOCK, k // SCALE_BLOCK)
    scales = torch.randint(112, 119, shape, **like)
    y = torch.full((num_rows, groups, n), float("nan"), dtype=torch.bfloat16, device=device)
    return Weight(codes, scales, y)


def draw_x(num_rows, groups, k, device):
    return torch.randn((num_rows, groups, k), dtype=torch.bfloat16, device=device)


@dataclass
class CheckCase:
    x: torch.Tensor
    weight: Weight
    quantizes_x: bool

    def __str__(self):
        return f"x {tuple(self.x.shape)}"

    @functools.cached_property
    def expected(self):
        """float64 [M, G, N]"""
        groups = [
            reference.linear_fp8(*(tensor.tolist() for tensor in parts), self.quantizes_x)
            for parts in zip(self.x.unbind(1), self.weight.codes, self.weight.scales)
        ]
        return torch.tensor(groups, dtype=torch.float64).transpose(0, 1)

    def on(self, device):
        tensors = self.x, self.weight.codes, self.weight.scales, self.expected
        return [tensor.to(device) for tensor in tensors]


@functools.cache
def check_cases():
    """Tiles that end early, one group and two."""
    torch.manual_seed(3)
    sizes = ((18, 1, 288, 512, True), (5, 2, 64, 768, False))
    return [
        CheckCase(draw_x(m, g, k, "cpu"), draw_weight(m, g, n, k, "cpu"), quantizes_x)
        for m, g, n, k, quantizes_x in sizes
    ]


def check_torch(device):
    for case in check_cases():
        x, codes, scales, expected = case.on(device)
        found = linear_fp8_torch(x, codes, scales, case.quantizes_x)
        require_close(f"linear_fp8, torch, {case}", found, expected, RMS_TOLERANCE)


def triton_trials(device):
    """(run, compare) such that each kernel that rows need is there."""
    import peers_linear_fp8_triton as triton_peer

    split = (*triton_peer.FEW_ROWS, *triton_peer.HUNDREDS_OF_ROWS)
    whole = (*split, *triton_peer.MANY_ROWS)
    for case in check_cases():
        x, codes, scales, expected = case.on(device)
        for config, splits in [(c, 2) for c in split] + [(c, 1) for c in whole]:
            y = torch.full(expected.shape, float("nan"), dtype=torch.bfloat16, device=device)
            arguments = y, x, codes, scales, case.quantizes_x, config, splits
            what = f"linear_fp8, triton, {case}, {config}, {splits} splits"
            yield (
                functools.partial(triton_peer.linear_fp8, *arguments),
                functools.partial(require_close, what, y, expected, RMS_TOLERANCE),
            )


def make_row(groups, n, k, num_rows):
    """x is warm; weights and outputs are cold."""
    import peers_linear_fp8_triton as triton_peer

    quantizes_x = groups == 1
    x = draw_x(num_rows, groups, k, "cuda")
    first = draw_weight(num_rows, groups, n, k, "cuda")
    sets = [first]
    sets += [
        draw_weight(num_rows, groups, n, k, "cuda") for _ in range(num_sets(first.bytes()) - 1)
    ]
    bf16_weights = [dequantize_weight(each.codes, each.scales) for each in sets]

    def call_triton(i, config):
        each = sets[i % len(sets)]
        triton_peer.linear_fp8(each.y, x, each.codes, each.scales, quantizes_x, config)

    def call_dequantizing(i):
        each = sets[i % len(sets)]
        return linear_fp8_torch(x, each.codes, each.scales, quantizes_x)

    expected = call_dequantizing(0)

    def check_config(config):
        first.y.fill_(float("nan"))
        call_triton(0, config)
        require_close("Triton against PyTorch", first.y, expected, RMS_TOLERANCE)

    return Row(
        op="linear_fp8",
        shape={"M": num_rows, "G": groups, "N": n, "K": k, "quantizes_x": quantizes_x},
        memory="cold",
        num_sets=len(sets),
        bytes=first.bytes() + 2 * x.numel(),
        call_torch=lambda i: matmul_torch(x, bf16_weights[i % len(sets)]),
        call_triton=call_triton,
        check=check_config,
        configs=triton_peer.configs(num_rows),
        other_calls={"dequantising": call_dequantizing},
        flops=2 * num_rows * groups * n * k,
    )


def planned_rows():
    for (groups, n, k), numbers_of_rows in SHAPES.items():
        shape = f"{n} x {k}" if groups == 1 else f"{groups} x {n} x {k}"
        for num_rows in numbers_of_rows:
            make = functools.partial(make_row, groups, n, k, num_rows)
            yield f"linear {shape}, {num_rows} rows", make
