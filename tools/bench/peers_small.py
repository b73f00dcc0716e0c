"""The small ops: how their peers are checked and timed, whatever the op.

Shapes and rows are those of floors_small_ops.json and floors_other_small_ops.json. Like `kiln
bench`: inputs warm, what is written rotates, but for what a PyTorch form allocates and what is
small (README.md). An op says what its inputs and outputs are and how each peer is called (SmallOp);
the ops themselves are in the files that README.md names.
"""

import functools
import json
import pathlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Callable

import torch

from peers_check import require_close, require_same
from peers_numbers import check_comparison, require_same_numbers
from peers_reference import require
from peers_timing import MAX_CALLS_PER_GRAPH, Row, num_sets

SHAPES_FILES = [
    pathlib.Path(__file__).with_name(name)
    for name in ("floors_small_ops.json", "floors_other_small_ops.json")
]
MAX_COLD_SETS = 64
FEW = 200  # one number in so many may be more than a step away behind another rounding
RMS_TOLERANCE = 2**-8  # and then of the whole output, relative
TABLE_ROWS = 8192
CHECK_ROWS = 7
POISON = 0xEE


def as_list(tensor):
    return tensor.double().tolist() if tensor.is_floating_point() else tensor.tolist()


def as_double(tensor):
    """On the CPU, or int64."""
    return tensor.cpu().to(torch.float64 if tensor.is_floating_point() else torch.int64)


@functools.cache
def compiled(function, device_type):
    """For each shape anew, rounded to bf16 where it says so. Without a GPU only traced."""
    how = {"backend": "eager"}
    if device_type == "cuda":
        how = {"options": {"emulate_precision_casts": True}}
    return torch.compile(function, fullgraph=True, dynamic=False, **how)


@dataclass
class SmallOp:
    name: str
    inputs: Callable  # (shape, sizes, device) -> namespace of tensors
    outputs: Callable  # (inputs) -> tensors that a call writes, poisoned or as they were before
    torch_form: Callable  # (inputs, outputs) -> results; those written in place are outputs
    triton_form: Callable  # (inputs, outputs, config): writes outputs
    reference: Callable  # (inputs as `values` says, outputs before) -> results
    configs: Callable  # (inputs) -> of Triton
    read: Callable  # (inputs) -> tensors that a call reads; all of each unless `bytes` says else
    bytes: Callable | None = None  # (inputs, outputs) -> the fewest that a call moves
    check_sizes: Callable = lambda sizes: {"num_rows": CHECK_ROWS}
    # Results bf16 that come behind a sum: numbers of outputs.
    near: Callable = lambda inputs: ()
    # And behind a sum of what a sum was rounded to; not many may be more than one step apart.
    mostly_near: Callable = lambda inputs: ()
    # fp32: number of output -> tolerance, of a number below 1 absolute; config None: not Triton
    close: Callable = lambda inputs, config: {}
    values: Callable = as_list  # what the reference takes in place of a tensor
    compiled_form: Callable = lambda inputs: None  # (outputs) -> results, or None
    cold: tuple = ()  # names of inputs that rotate
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


def plain(inputs, values):
    """What a reference takes."""
    return SimpleNamespace(
        **{
            name: values(value) if torch.is_tensor(value) else value
            for name, value in vars(inputs).items()
        }
    )


def far_apart(what, found, expected):
    """How many, of bf16, are more than a step apart."""
    require(
        found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
    )
    if not expected.numel():
        return 0
    found, expected = found.double(), expected.double()
    cancelled = 1e-6 * expected.abs().max()  # where values of a pair almost cancel
    near = (found - expected).abs() <= expected.abs() * 2**-7 + cancelled
    return int((~near).sum())


def require_near(what, found, expected):
    count = far_apart(what, found, expected)
    require(count == 0, f"{what}: {count} wrong")


def require_mostly_near(what, found, expected):
    count = far_apart(what, found, expected)
    require(count <= expected.numel() // FEW, f"{what}: {count} far off")
    require_close(what, found, expected, RMS_TOLERANCE)


def require_within(what, found, expected, tolerance):
    require(
        found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
    )
    error = ((found - expected).abs() / expected.abs().clamp(min=1)).max().item()
    require(error <= tolerance, f"{what}: error {error:.2e}")


def tensor_like(values, like):
    dtype = torch.float64 if like.is_floating_point() else torch.int64
    return torch.as_tensor(values, dtype=dtype).to(like.dtype).to(like.device)


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
        values = self.op.values
        expected = self.op.reference(plain(inputs, values), [values(each) for each in outputs])
        return inputs, [tensor_like(e, o) for e, o in zip(expected, outputs, strict=True)]

    def without_quantised(self, inputs, results):
        results = [each.clone() for each in results]
        self.op.quantised(inputs, results).clear()
        return results

    def compare(self, what, inputs, found, expected, config=None):
        places = [self.op.quantised(inputs, results) for results in (found, expected)]
        if all(places):
            numbers = (place.numbers() for place in places)
            require_same_numbers(f"{self.op.name}, {what}", *numbers)
            found = self.without_quantised(inputs, found)
            expected = self.without_quantised(inputs, expected)
        found, expected = self.op.meant(inputs, found), self.op.meant(inputs, expected)
        compares = dict.fromkeys(self.op.near(inputs), require_near)
        compares |= dict.fromkeys(self.op.mostly_near(inputs), require_mostly_near)
        for i, tolerance in self.op.close(inputs, config).items():
            compares[i] = functools.partial(require_within, tolerance=tolerance)
        for i, (got, want) in enumerate(zip(found, expected, strict=True)):
            compares.get(i, require_same)(f"{self.op.name}, {what}, output {i}", got, want)

    def check_torch(self, device):
        for at, (shape, _) in enumerate(self.shapes):
            inputs, expected = self.checked(at, device)
            found = self.op.torch_form(inputs, self.op.outputs(inputs))
            self.compare(f"torch, {shape}", inputs, found, expected)
            compiled_form = self.op.compiled_form(inputs)
            if compiled_form and device == "cpu":
                found = compiled_form(self.op.outputs(inputs))
                self.compare(f"traced, {shape}", inputs, found, expected)

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
                    functools.partial(self.compare, what, inputs, outputs, expected, config),
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
        if op.cold:
            copies = max(copies, min(num_sets(moved), MAX_COLD_SETS))
        sets = [(inputs, first)]
        for _ in range(copies - 1):
            fields = {name: getattr(inputs, name).clone() for name in op.cold}
            sets.append((SimpleNamespace(**vars(inputs) | fields), op.outputs(inputs)))

        def check(config):
            expected = op.torch_form(inputs, op.outputs(inputs))
            found = op.outputs(inputs)
            op.triton_form(inputs, found, config)
            self.compare("Triton against PyTorch", inputs, found, expected, config)

        def check_compiled(name):
            expected = op.torch_form(inputs, op.outputs(inputs))
            found = op.compiled_form(inputs)(op.outputs(inputs))
            self.compare(f"{name} against PyTorch", inputs, found, expected)

        other_calls = {}
        if op.compiled_form(inputs):
            forms = [(op.compiled_form(of_set), outputs) for of_set, outputs in sets]

            def call_compiled(i):
                form, outputs = forms[i % copies]
                form(outputs)

            other_calls["torch.compile"] = call_compiled

        return Row(
            op=op.name,
            shape=shape | sizes,
            memory=f"inputs warm, {op.cold[0]} cold" if op.cold else "inputs warm",
            num_sets=copies,
            bytes=moved,
            call_torch=lambda i: op.torch_form(*sets[i % copies]),
            call_triton=lambda i, config: op.triton_form(*sets[i % copies], config),
            check=check,
            configs=op.configs(inputs),
            other_calls=other_calls,
            check_other=check_compiled,
        )


def all_bytes(op):
    return lambda inputs, outputs: sum(each.nbytes for each in (*op.read(inputs), *outputs))


def peers_of(ops, is_taken=lambda case: True):
    """Name -> Peers, of the ops that the files of shapes have."""
    cases = []
    for file in SHAPES_FILES:
        cases += filter(is_taken, json.loads(file.read_text(encoding="utf-8"))["ops"])
    return {op.name: Peers(op, [case for case in cases if case["op"] == op.name]) for op in ops}
