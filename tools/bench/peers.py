#!/usr/bin/env python3
"""Times the PyTorch and the Triton peer of two ops, to be read beside Kiln's own times.

    peers.py [--json FILE]     checks both peers on the GPU, times them, prints a table
    peers.py --self-check      checks the mathematics on the CPU; needs neither a GPU nor torch

Method, inputs and columns: README.md beside this file.
"""

import argparse
import functools
import json
import os
import statistics
import sys
import warnings
from dataclasses import dataclass
from typing import Callable

import peers_reference as reference
from peers_reference import LAYOUTS

try:
    import torch
except ImportError:
    torch = None  # --self-check does without
else:
    import peers_check
    import peers_inputs

RATIO = 2
TOP_K = 512
PREFIX_LEN = 4096
PAGE_SIZE = 64
COMBINE_TOKENS = (1, 6, 64, 1536, 8192)
COMBINE_REQUESTS = (1, 4)
GATHER_ENTRIES = (16384, 49152, 131072)

MAX_CALLS_PER_GRAPH = 40
MIN_CALLS_PER_GRAPH = 8
GRAPH_BUDGET_US = 20_000  # a slow peer gets fewer calls per graph, so that the run stays short
SAMPLES = 30
EAGER_CALLS = 10  # per sample
HOST_LEAD_CYCLES = 2_000_000  # keeps the GPU busy while the host submits what is timed
COPY_BYTES = 2 * 10**9


def self_check():
    """On the CPU: the reference always, PyTorch where it is, Triton in its interpreter."""
    reference.check_reference()
    print("plain Python reference: agrees with the worked examples")
    if torch is None:
        print("PyTorch and Triton peers: skipped, torch cannot be imported here")
        return
    torch.manual_seed(1)
    peers_check.check_combine("cpu", "torch")
    peers_check.check_gather("cpu", "torch")
    print("PyTorch peers: agree with the reference")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        import triton  # noqa: F401
    except ImportError:
        print("Triton peers: skipped, triton cannot be imported here")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # overflow to infinity is part of the check
        peers_check.check_combine("cpu", "triton")
        peers_check.check_gather("cpu", "triton")
    print("Triton peers, interpreted: agree with the reference")


def elapsed_us(enqueue, samples, host_lead_cycles=0):
    """Device time of `enqueue()`, once per sample; with a lead the GPU never waits for the host."""
    times = []
    for _ in range(samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        if host_lead_cycles:
            torch.cuda._sleep(host_lead_cycles)
        start.record()
        enqueue()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return times


def per_call(times_us, calls):
    """Median and the middle eight tenths, in us per call."""
    tenths = statistics.quantiles(times_us, n=10)
    found = {"us": statistics.median(times_us), "p10_us": tenths[0], "p90_us": tenths[-1]}
    return {name: value / calls for name, value in found.items()}


def time_eager(call):
    def calls():
        for i in range(EAGER_CALLS):
            call(i)

    calls()
    return per_call(elapsed_us(calls, SAMPLES), EAGER_CALLS)


def time_graph(call, num_sets, estimate_us):
    """One graph of many calls: a multiple of the sets, so that replays rotate like the calls."""
    calls = max(MIN_CALLS_PER_GRAPH, min(MAX_CALLS_PER_GRAPH, int(GRAPH_BUDGET_US / estimate_us)))
    calls = reference.round_up(calls, num_sets)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    elapsed_us(graph.replay, 3)
    times = elapsed_us(graph.replay, SAMPLES, HOST_LEAD_CYCLES)
    del graph
    torch.cuda.empty_cache()
    return per_call(times, calls) | {"calls_per_graph": calls}


def measure_copy_gb_per_s():
    source = torch.randint(256, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    elapsed_us(lambda: target.copy_(source), 3)
    times = elapsed_us(lambda: target.copy_(source), SAMPLES)
    return 2 * COPY_BYTES / statistics.median(times) / 1e3


def measure_launch_us():
    import peers_triton

    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    peers_triton.nearly_empty(out)
    return time_graph(lambda i: peers_triton.nearly_empty(out), 1, 1.0)


@dataclass
class Row:
    """One line of the table: an op at one shape, inputs made, peers ready to be called."""

    op: str
    shape: dict
    memory: str  # "warm" or "cold"
    num_sets: int  # of buffers; call i uses set i % num_sets
    bytes: int  # the fewest that one call reads and writes
    call_torch: Callable
    call_triton: Callable
    check: Callable  # Triton against PyTorch at this shape, after its tuning; fails with a sentence
    triton_kernel: object


def combine_row(num_tokens, num_requests):
    """All warm: one set of buffers, called again and again."""
    import peers_triton

    query_lens = [
        num_tokens // num_requests + (i < num_tokens % num_requests) for i in range(num_requests)
    ]
    prefix_lens = [PREFIX_LEN] * num_requests
    inputs = peers_inputs.combine_inputs(query_lens, prefix_lens, RATIO, TOP_K, "cuda")
    outputs = inputs.outputs()

    def check():
        inputs.run_triton(outputs)
        for part, got, want in zip(("idx", "len"), outputs, inputs.run_torch()):
            peers_check.require_same(f"{part}, Triton against PyTorch", got, want)

    return Row(
        op="combine_topk_swa",
        shape={"T": num_tokens, "R": num_requests, "ratio": RATIO, "top_k": TOP_K},
        memory="warm",
        num_sets=1,
        bytes=inputs.bytes(),
        call_torch=lambda i: inputs.run_torch(),
        call_triton=lambda i: inputs.run_triton(outputs),
        check=check,
        triton_kernel=peers_triton.combine_topk_swa_kernel,
    )


def gather_row(layout, entries):
    """Cold: between two uses of a buffer the other sets move more than twice the L2."""
    import peers_triton

    def make_set():
        return peers_inputs.gather_inputs(layout, entries, PAGE_SIZE, "cuda")

    first = make_set()
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    num_sets = 1 + -(-2 * l2_bytes // first.bytes())
    sets = [first] + [make_set() for _ in range(num_sets - 1)]

    def check():
        first.run_torch()
        expected = first.out.clone()
        first.run_triton()  # tunes
        first.out.fill_(float("nan"))
        first.run_triton()
        peers_check.require_same("Triton against PyTorch", first.out, expected)

    return Row(
        op="gather_dequant_kv",
        shape={"format": layout.name, "entries": entries, "R": 1, "page_size": PAGE_SIZE},
        memory="cold",
        num_sets=num_sets,
        bytes=first.bytes(),
        call_torch=lambda i: sets[i % num_sets].run_torch(),
        call_triton=lambda i: sets[i % num_sets].run_triton(),
        check=check,
        triton_kernel=peers_triton.gather_dequant_kv_kernel,
    )


def planned_rows():
    """(name, function that makes the row): one row's buffers live at a time."""
    for num_requests in COMBINE_REQUESTS:
        for num_tokens in COMBINE_TOKENS:
            name = f"combine T={num_tokens} R={num_requests}"
            yield name, functools.partial(combine_row, num_tokens, num_requests)
    for layout in LAYOUTS.values():
        for entries in GATHER_ENTRIES:
            yield f"gather {layout.name} {entries}", functools.partial(gather_row, layout, entries)


class Attempts:
    """One failing peer must not hide the times of the others: failures are printed and kept."""

    def __init__(self):
        self.failures = []

    def run(self, what, work, *arguments):
        try:
            return work(*arguments)
        except Exception as error:
            self.failures.append(f"{what}: {type(error).__name__}: {error}")
            print(f"FAILED {self.failures[-1]}", flush=True)
            return None


def time_row(name, row, attempts):
    """Checks and times both peers; a time is None where its peer failed."""
    attempts.run(name, row.check)
    times = {}
    for peer, call in (("torch", row.call_torch), ("triton", row.call_triton)):
        eager = attempts.run(f"{name}, {peer}, eager", time_eager, call)
        estimate_us = eager["us"] if eager else GRAPH_BUDGET_US
        graph = attempts.run(f"{name}, {peer}, graph", time_graph, call, row.num_sets, estimate_us)
        times[peer] = {"eager": eager, "graph": graph}
    return {
        "op": row.op,
        "shape": row.shape,
        "memory": row.memory,
        "buffer_sets": row.num_sets,
        "bytes": row.bytes,
        "triton_config": str(getattr(row.triton_kernel, "best_config", None)),
    } | times


HEADER = (
    f"{'us per call, median':<24} {'MB':>7} | {'torch eager':>11} {'in graph':>9} |"
    f" {'triton eager':>12} {'in graph':>9} {'GB/s':>6} {'of copy':>7}"
)


def table_line(name, result, copy_gb_per_s):
    def microseconds(peer, how):
        time = result[peer][how]
        return f"{time['us']:.2f}" if time else "failed"

    rate = share = "-"
    if result["memory"] == "cold" and result["triton"]["graph"]:
        gb_per_s = result["bytes"] / result["triton"]["graph"]["us"] / 1e3
        rate, share = f"{gb_per_s:.0f}", f"{gb_per_s / copy_gb_per_s:.0%}"
    return (
        f"{name:<24} {result['bytes'] / 1e6:7.2f} |"
        f" {microseconds('torch', 'eager'):>11} {microseconds('torch', 'graph'):>9} |"
        f" {microseconds('triton', 'eager'):>12} {microseconds('triton', 'graph'):>9}"
        f" {rate:>6} {share:>7}"
    )


def run_benchmark(json_path):
    """Returns the exit code: 0, or 1 when a peer failed or computed something wrong."""
    import triton

    torch.manual_seed(1)
    properties = torch.cuda.get_device_properties(0)
    attempts = Attempts()
    attempts.run("reference", reference.check_reference)
    for peer in ("torch", "triton"):
        attempts.run("check", peers_check.check_combine, "cuda", peer)
        attempts.run("check", peers_check.check_gather, "cuda", peer)

    copy_gb_per_s = measure_copy_gb_per_s()
    launch = measure_launch_us()
    print(f"{properties.name}, torch {torch.__version__}, triton {triton.__version__}")
    print(f"copy of {COPY_BYTES / 1e9:.0f} GB: {copy_gb_per_s:.0f} GB/s read plus written")
    print(f"nearly empty kernel in a graph: {launch['us']:.2f} us\n{HEADER}", flush=True)
    results = []
    for name, make in planned_rows():
        row = attempts.run(name, make)
        if row:
            results.append(time_row(name, row, attempts))
            print(table_line(name, results[-1], copy_gb_per_s), flush=True)
    if json_path:
        report = {
            "device": properties.name,
            "l2_bytes": properties.L2_cache_size,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "samples": SAMPLES,
            "copy_gb_per_s": copy_gb_per_s,
            "launch": launch,
            "results": results,
            "failures": attempts.failures,
        }
        with open(json_path, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
    return 1 if attempts.failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--self-check", action="store_true", help="check the mathematics on the CPU"
    )
    parser.add_argument("--json", metavar="FILE", help="write every number there too")
    options = parser.parse_args()
    if options.self_check:
        self_check()
        return 0
    if torch is None or not torch.cuda.is_available():
        sys.exit("peers.py: timing needs torch, triton and a CUDA device; --self-check does not")
    return run_benchmark(options.json)


if __name__ == "__main__":
    sys.exit(main())
