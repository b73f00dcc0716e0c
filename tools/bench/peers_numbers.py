"""Quantised outputs compared as the numbers that they stand for, and proof that mistakes are found.

What was rounded otherwise in front of a quantiser may end in a neighbouring code, or in another
scale; zeros have any sign. Bytes that are no part of a code or scale are compared to the bit.
"""

import functools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import torch

import peers_reference as reference
from peers_reference import require

RMS_TOLERANCE = 2**-7  # of the whole output, relative
GROUP_RMS_TOLERANCE = 2**-1  # of the elements that share a scale: one row in thousands counts too
FEW = 100  # one code in so many may be more than a step away, one scale in so many another


class Numbers(NamedTuple):
    values: torch.Tensor  # float64 [.., groups, elements that share a scale]
    steps: torch.Tensor  # to the next number of the format away from zero
    scales: torch.Tensor | None = None


@dataclass
class Quantised:
    """Bytes in an output, as views of it that `at` indexes: [.., bytes] each."""

    codes: torch.Tensor
    scales: torch.Tensor | None
    code_format: str  # "e4m3", "e2m1", "bf16"; elements from 448 on are bf16 whatever it says: F3
    scale_format: str | None  # "ue8m0", "e4m3", "fp32"
    at: object = ...
    group: int = 0  # elements, where there are no scales

    def numbers(self):
        codes = self.codes[self.at].contiguous()
        if self.scales is None:
            return bf16_numbers(codes, self.group)
        scales = scale_values(self.scales[self.at].contiguous(), self.scale_format)
        if self.code_format == "e4m3" and codes.shape[-1] == 576:
            e4m3 = numbers_of(codes[..., :448], "e4m3", scales)
            bf16 = bf16_numbers(codes[..., 448:], 64)
            both = (torch.cat(parts, -2) for parts in zip(e4m3[:2], bf16[:2]))
            return Numbers(*both, scales)
        return numbers_of(codes, self.code_format, scales)

    def clear(self):
        self.codes[self.at] = 0
        if self.scales is not None:
            self.scales[self.at] = 0


@functools.cache
def table(code_format, device):
    """Values and steps by code."""
    decode, count = {
        "e4m3": (reference.e4m3, 256),
        "e2m1": (reference.e2m1, 16),
        "ue8m0": (reference.ue8m0, 256),
    }[code_format]
    values = torch.tensor([decode(code) for code in range(count)], dtype=torch.float64)
    steps = values[: count // 2].diff(append=values[:1])
    last = int(steps.isfinite().nonzero()[-1])  # the largest number has the step below it
    steps[last] = steps[last - 1]
    if code_format == "e4m3":
        steps[126] = steps[125]
    return values.to(device), steps.repeat(2).to(device)


def scale_values(scales, scale_format):
    if scale_format == "fp32":
        return scales.view(torch.float32).double()
    return table(scale_format, scales.device)[0][scales.int()]


def numbers_of(codes, code_format, scales):
    if code_format == "e2m1":
        codes = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
    codes = codes.int().unflatten(-1, (scales.shape[-1], -1))
    values, steps = table(code_format, codes.device)
    factors = scales.unsqueeze(-1)
    return Numbers(values[codes] * factors, steps[codes] * factors.abs(), scales)


def bf16_numbers(codes, group):
    values = codes.contiguous().view(torch.bfloat16).double().unflatten(-1, (-1, group))
    exponent = torch.frexp(values).exponent.clamp(min=-125)
    exponent = torch.where(values == 0, -125, exponent)
    return Numbers(values, torch.pow(values.new_full((), 2.0), exponent - 8))


def require_same_numbers(what, found, expected):
    """NaN never passes."""
    require(
        found.values.shape == expected.values.shape,
        f"{what}: shape {found.values.shape}, expected {expected.values.shape}",
    )
    difference = (found.values - expected.values).abs()
    is_smaller = found.values.abs() < expected.values.abs()
    near = difference <= torch.where(is_smaller, found.steps, expected.steps) * (1 + 1e-6)
    count, total = int((~near).sum()), near.numel()
    require(count <= total // FEW, f"{what}: {count} of {total} codes are far off")
    if expected.scales is not None:
        count, total = int((found.scales != expected.scales).sum()), expected.scales.numel()
        require(count <= total // FEW, f"{what}: {count} of {total} scales are others")

    squares, whole = difference.square().sum(-1), expected.values.square().sum(-1)
    is_right = squares <= GROUP_RMS_TOLERANCE**2 * whole
    if not is_right.all():
        at = tuple((~is_right).nonzero()[0].tolist())
        count, total = int((~is_right).sum()), is_right.numel()
        require(False, f"{what}: {count} of {total} groups of a scale are wrong, first {at}")
    squares, whole = squares.sum(), whole.sum()
    require(
        bool(squares <= RMS_TOLERANCE**2 * whole),
        f"{what}: relative rms error {(squares / whole).sqrt().item():.2e}",
    )


def passes(compare, *arguments):
    try:
        compare(*arguments)
    except AssertionError:
        return False
    return True


def check_limits():
    """Each rule, just kept and just broken."""
    values = torch.full((4, 50, 16), 16.0, dtype=torch.float64)
    values[0] = 0.0
    values[0, :, 0] = 8.0
    expected = Numbers(values, torch.full_like(values, 0.01))

    def is_accepted(change, *at):
        found = values.clone().flatten(0, 1)
        found[at] += change
        found = found.unflatten(0, (4, 50))
        return passes(require_same_numbers, "numbers", Numbers(found, expected.steps), expected)

    every = slice(None)
    ten, most, more = (torch.arange(60, end) for end in (70, 92, 93))
    for what, accepted in {
        "equal": is_accepted(0.0, every),
        "a step": is_accepted(0.01, every),
        "1 % far off": is_accepted(0.011, most, 1),
        "a group, barely": is_accepted(3.9, 0, 0),
        "the rms, barely": is_accepted(1.9, ten, 1),
    }.items():
        require(accepted, f"comparison of numbers: refuses {what}")
    for what, accepted in {
        "more than 1 % far off": is_accepted(0.011, more, 1),
        "a wrong group": is_accepted(4.1, 0, 0),
        "rms": is_accepted(2.0, ten, 1),
        "NaN": is_accepted(torch.nan, 60, 1),
        "infinity": is_accepted(torch.inf, 60, 1),
    }.items():
        require(not accepted, f"comparison of numbers: accepts {what}")


def with_other_zeros(quantised):
    """Zeros of the other sign, in place."""
    codes = quantised.codes[quantised.at]
    if quantised.code_format == "e2m1":
        codes ^= 0x08 * (codes & 0x07 == 0) + 0x80 * (codes & 0x70 == 0)
    elif quantised.code_format == "bf16":
        words = codes.view(torch.int16)
        words ^= torch.where(words & 0x7FFF == 0, -0x8000, 0).to(torch.int16)
    else:
        e4m3 = codes[..., :448] if codes.shape[-1] == 576 else codes
        e4m3 ^= 0x80 * (e4m3 & 0x7F == 0)
    quantised.codes[quantised.at] = codes


def with_neighbours(quantised):
    """One number a step nearer to zero, the least of its group, in the smallest of the groups."""
    values = quantised.numbers().values
    energy = values.square().sum(-1).flatten()
    energy[energy == 0] = torch.inf
    codes = quantised.codes[quantised.at].clone()
    count = max(1, int(energy.isfinite().sum()) // 16)
    for group in energy.argsort()[:count].tolist():
        entry, g = divmod(group, values.shape[-2])
        sizes = values.flatten(0, -3)[entry, g].abs()
        sizes[sizes == 0] = torch.inf
        element = int(sizes.argmin()) + g * values.shape[-1]
        row = codes.flatten(0, -2)[entry]  # a view
        if quantised.code_format == "e2m1":
            row[element // 2] -= 16 if element % 2 else 1
        elif quantised.code_format == "bf16" or element >= 448 and len(row) == 576:
            first = 448 if len(row) == 576 else 0
            row[first:].view(torch.int16)[element - first] -= 1
        else:
            row[element] -= 1
    quantised.codes[quantised.at] = codes


def with_wrong_scales(quantised):
    """Of the neighbouring group, or entry where it has one group only."""
    scales = quantised.scales[quantised.at]
    width = 4 if quantised.scale_format == "fp32" else 1
    axis = -1 if scales.shape[-1] > width else -2
    quantised.scales[quantised.at] = scales.roll(width if axis == -1 else 1, axis)


def with_one_wrong_scale(quantised):
    """The scale of the group of the least rms is twice as large, or for E4M3 a half more or so."""
    values = quantised.numbers().values
    energy = values.square().sum(-1).flatten()
    energy[energy == 0] = torch.inf
    entry, g = divmod(int(energy.argmin()), values.shape[-2])
    scales = quantised.scales[quantised.at].clone()
    row = scales.flatten(0, -2)[entry]
    if quantised.scale_format == "fp32":
        row.view(torch.float32).mul_(2)
    elif g < len(row):  # not of the bf16 elements of F3
        row[g] += 1 if quantised.scale_format == "ue8m0" else 5
    else:
        row += 1
    quantised.scales[quantised.at] = scales


def with_another_rule(quantised):
    """Scales twice as large and codes for them: the same numbers, but for the least ones."""
    scales = quantised.scales[quantised.at]
    codes = quantised.codes[quantised.at]
    if quantised.scale_format == "fp32":
        scales.view(torch.float32).mul_(2)
    else:
        scales += 1
    e4m3 = codes[..., :448] if codes.shape[-1] == 576 else codes
    e4m3 -= 8 * (e4m3 & 0x7F >= 16)
    quantised.scales[quantised.at], quantised.codes[quantised.at] = scales, codes


def with_a_code(code):
    def change(quantised):
        codes = quantised.codes[quantised.at]
        codes[(0,) * codes.dim()] = code
        quantised.codes[quantised.at] = codes

    return change


def with_swapped_rows(quantised):
    quantised.codes[quantised.at] = quantised.codes[quantised.at].roll(1, -2)


def check_comparison(op, what, inputs, expected, compare):
    """Changes of what the reference says, and peers with mistakes; returns their numbers."""
    changes = {
        "zeros of the other sign": (with_other_zeros, True),
        "neighbouring codes": (with_neighbours, True),
        "codes of another row": (with_swapped_rows, False),
    }
    place = op.quantised(inputs, expected)
    if place.scales is not None:
        changes["scales of others"] = with_wrong_scales, False
        changes["one wrong scale"] = with_one_wrong_scale, False
    if place.code_format == "e4m3":
        changes["NaN"] = with_a_code(0x7F), False
        changes["another rule for the scales"] = with_another_rule, False
    counts = [0, 0]

    def judge(name, found, is_right):
        differs = any((f != e).any() for f, e in zip(found, expected, strict=True))
        require(differs, f"comparison of {what}: {name} changes nothing")
        accepted = passes(compare, what, inputs, found, expected)
        verb = "accepts" if accepted else "refuses"
        require(accepted == is_right, f"comparison of {what}: {verb} {name}")
        counts[is_right] += 1

    for name, (change, is_right) in changes.items():
        found = [each.clone() for each in expected]
        change(op.quantised(inputs, found))
        judge(name, found, is_right)
    for name, fields in op.mistakes(inputs).items():
        wrong = SimpleNamespace(**vars(inputs) | fields)
        judge(name, op.torch_form(wrong, op.outputs(inputs)), False)
    return counts
