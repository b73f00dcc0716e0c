"""The small ops around attention: how their peers are checked and timed, whatever the op.

Shapes and rows are those of floors_small_ops.json. Like `kiln bench`: inputs warm, what is written
rotates, but for what a PyTorch form allocates and what is small (README.md). An op says what its inputs and outputs are and how each peer is called (SmallOp); the ops
themselves are in peers_rows.py, peers_cache.py and peers_metadata.py.
"""

import functools
import json
import pathlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Callable

import torch

from peers_check import require_same
from peers_numbers import check_comparison, require_same_numbers
from peers_reference import require
from peers_timing import MAX_CALLS_PER_GRAPH, Row, num_sets

SHAPES_FILE = pathlib.Path(__file__).with_name("floors_small_ops.json")
TABLE_ROWS = 8192
CHECK_ROWS = 7
POISON = 0xEE


@dataclass
class SmallOp:
    name: str
    inputs: Callable  # (shape, sizes, device) -> namespace of tensors
    outputs: Callable  # (inputs) -> tensors that a call writes, poisoned or as they were before
    torch_form: Callable  # (inputs, outputs) -> results; those written in place are outputs
    triton_form: Callable  # (inputs, outputs, config): writes outputs
    reference: Callable  # (inputs as lists, outputs before) -> results
    configs: Callable  # (inputs) -> of Triton
    read: Callable  # (inputs) -> tensors that a call reads; all of each unless `bytes` says else
    bytes: Callable | None = None  # (inputs, outputs) -> the fewest that a call moves
    check_sizes: Callable = lambda sizes: {"num_rows": CHECK_ROWS}
    # Results bf16 that come behind a sum: numbers of outputs.
    near: Callable = lambda inputs: ()
    # (inputs, results) -> Quantised in them, or None; all else of them is compared as `near` says
    quantised: Callable = lambda inputs, results: None
    mistakes: Callable = lambda inputs: {}  # name -> inputs of a PyTorch form that has it
    meant: Callable = lambda inputs, results: results  # what of them is anyone's


def random_bf16(shape, device):
    """Of several magnitudes; some zeros."""
    x = torch.randn(shape, device=device)
    x *= torch.pow(
        2.0, torch.randint(-6, 3, (*shape[:-1], shape[-1] // 16), device=device)
    ).repeat_interleave(16, -1)
    x[..., :128].mul_(torch.randint(0, 2, (*shape[:-1], 1), device=device))
    return x.to(torch.bfloat16)


def random_ints(low, high, shape, device, dtype=torch.int32):
    return torch.randint(low, high, shape, device=device).to(dtype)


def rope_table(device):
    """As rope_table has it for the layers without YaRN: any table would do."""
    frequencies = torch.pow(10000.0, torch.arange(32, device=device) * (-2 / 64))
    angles = torch.arange(TABLE_ROWS, device=device)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), 1)


def mistakes_of_rotation(c, x):
    """None, the wrong way, and in one row only the wrong angle."""
    table = torch.cat((torch.ones_like(c.table[:, :32]), torch.zeros_like(c.table[:, 32:])), 1)
    way_back = torch.cat((c.table[:, :32], -c.table[:, 32:]), 1)
    slots = getattr(c, "slots", c.positions)
    row = next(i for i in range(len(x)) if slots[i] >= 0 and x[i].any())
    positions = c.positions.clone()
    positions[row] = (positions[row] + 1000) % TABLE_ROWS
    return {
        "no rotation": {"table": table},
        "inverse rotation": {"table": way_back},
        "a wrong angle": {"positions": positions},
    }


def poisoned(shape, dtype, device):
    size = torch.empty((), dtype=dtype).element_size()
    return torch.full(
        (*shape[:-1], shape[-1] * size), POISON, dtype=torch.uint8, device=device
    ).view(dtype)


def as_lists(inputs):
    """Tensors as lists, the rest as it is: what a reference takes."""
    return SimpleNamespace(
        **{
            name: (
                value.double().tolist()
                if torch.is_tensor(value) and value.is_floating_point()
                else value.tolist() if torch.is_tensor(value) else value
            )
            for name, value in vars(inputs).items()
        }
    )


def require_near(what, found, expected):
    """bf16, one step apart."""
    require(
        found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
    )
    if not expected.numel():
        return
    found, expected = found.double(), expected.double()
    cancelled = 1e-6 * expected.abs().max()  # where values of a pair almost cancel
    count = int((~((found - expected).abs() <= expected.abs() * 2**-7 + cancelled)).sum())
    require(count == 0, f"{what}: {count} wrong")


def tensor_like(values, like):
    dtype = torch.float64 if like.is_floating_point() else torch.int64
    return torch.tensor(values, dtype=dtype).to(like.dtype).to(like.device)


class Peers:
    """What peers.py asks of an op."""

    def __init__(self, op, cases):
        self.op, self.cases = op, cases

    @functools.cached_property
    def shapes(self):
        """Each shape once, with the sizes of its check."""
        found = {}
        for case in self.cases:
            found.setdefault(json.dumps(case["shape"]), case["shape"])
        sizes = {name: at_most for name, (at_most, _) in self.cases[0]["sizes"].items()}
        return [(shape, self.op.check_sizes(sizes)) for shape in found.values()]

    @functools.cache
    def checked(self, at, device):
        """Inputs and what the reference makes of them."""
        torch.manual_seed(7)
        inputs = self.op.inputs(*self.shapes[at], device)
        outputs = self.op.outputs(inputs)
        expected = self.op.reference(as_lists(inputs), [each.tolist() for each in outputs])
        return inputs, [tensor_like(e, o) for e, o in zip(expected, outputs, strict=True)]

    def without_quantised(self, inputs, results):
        results = [each.clone() for each in results]
        self.op.quantised(inputs, results).clear()
        return results

    def compare(self, what, inputs, found, expected):
        places = [self.op.quantised(inputs, results) for results in (found, expected)]
        if all(places):
            numbers = (place.numbers() for place in places)
            require_same_numbers(f"{self.op.name}, {what}", *numbers)
            found = self.without_quantised(inputs, found)
            expected = self.without_quantised(inputs, expected)
        found, expected = self.op.meant(inputs, found), self.op.meant(inputs, expected)
        near = self.op.near(inputs)
        for i, (got, want) in enumerate(zip(found, expected, strict=True)):
            compare = require_near if i in near else require_same
            compare(f"{self.op.name}, {what}, output {i}", got, want)

    def check_torch(self, device):
        for at, (shape, _) in enumerate(self.shapes):
            inputs, expected = self.checked(at, device)
            found = self.op.torch_form(inputs, self.op.outputs(inputs))
            self.compare(f"torch, {shape}", inputs, found, expected)

    def check_comparison(self):
        """Numbers of mistakes found and of differences accepted, on the CPU."""
        counts = [0, 0]
        for at, (shape, _) in enumerate(self.shapes):
            inputs, expected = self.checked(at, "cpu")
            if self.op.quantised(inputs, expected):
                what = f"{self.op.name}, {shape}"
                found = check_comparison(self.op, what, inputs, expected, self.compare)
                counts = [sum(both) for both in zip(counts, found)]
        return counts

    def triton_trials(self, device):
        """(run, compare) with each kernel that rows need."""
        for at, (shape, _) in enumerate(self.shapes):
            inputs, expected = self.checked(at, device)
            for config in self.op.configs(inputs):
                outputs = self.op.outputs(inputs)
                what = f"triton, {shape}, {config}"
                yield (
                    functools.partial(self.op.triton_form, inputs, outputs, config),
                    functools.partial(self.compare, what, inputs, outputs, expected),
                )

    def planned_rows(self):
        for case in self.cases:
            sizes = {name: at_most for name, (_, at_most) in case["sizes"].items()}
            words = [*map(str, case["shape"].values()), "x".join(map(str, sizes.values()))]
            name = " ".join([self.op.name, *words])
            yield name, functools.partial(self.make_row, case["shape"], sizes)

    def make_row(self, shape, sizes):
        op = self.op
        inputs = op.inputs(shape, sizes, "cuda")
        first = op.outputs(inputs)
        moved = (op.bytes or all_bytes(op))(inputs, first)
        # Of a buffer that is worked on in place a call may touch a part, twice.
        written = min(sum(each.nbytes for each in first), -(-moved // 2))
        copies = min(num_sets(written), MAX_CALLS_PER_GRAPH)
        sets = [first] + [op.outputs(inputs) for _ in range(copies - 1)]

        def check(config):
            expected = op.torch_form(inputs, op.outputs(inputs))
            found = op.outputs(inputs)
            op.triton_form(inputs, found, config)
            self.compare("Triton against PyTorch", inputs, found, expected)

        return Row(
            op=op.name,
            shape=shape | sizes,
            memory="inputs warm",
            num_sets=copies,
            bytes=moved,
            call_torch=lambda i: op.torch_form(inputs, sets[i % copies]),
            call_triton=lambda i, config: op.triton_form(inputs, sets[i % copies], config),
            check=check,
            configs=op.configs(inputs),
        )


def all_bytes(op):
    return lambda inputs, outputs: sum(each.nbytes for each in (*op.read(inputs), *outputs))


def peers_of(ops):
    """Name -> Peers, of the ops that the file of shapes has."""
    cases = json.loads(SHAPES_FILE.read_text(encoding="utf-8"))["ops"]
    return {op.name: Peers(op, [case for case in cases if case["op"] == op.name]) for op in ops}
