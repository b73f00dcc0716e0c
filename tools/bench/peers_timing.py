"""How calls are timed, and what a row of the table consists of."""

import functools
import statistics
from dataclasses import dataclass, field
from typing import Callable

import torch

import peers_reference as reference

MAX_CALLS_PER_GRAPH = 40
MIN_CALLS_PER_GRAPH = 8
GRAPH_BUDGET_US = 20_000  # a slow peer gets fewer calls per graph, so that the run stays short
SAMPLES = 30
MIN_SAMPLES = 8
SAMPLES_BUDGET_US = 300_000  # and fewer samples
CONFIG_SAMPLES = 4  # to choose a config
EAGER_CALLS = 10  # per sample
HOST_LEAD_CYCLES = 2_000_000  # keeps the GPU busy while the host submits what is timed
COPY_BYTES = 2 * 10**9


@dataclass
class Row:
    """One line of the table: an op at one shape, inputs made, peers ready to be called."""

    op: str
    shape: dict
    memory: str  # "warm" or "cold"
    num_sets: int  # of buffers; call i uses set i % num_sets
    bytes: int  # the fewest that one call reads and writes
    call_torch: Callable  # (i)
    call_triton: Callable  # (i, config)
    check: Callable  # (config) Triton against PyTorch at this shape; fails with a sentence
    configs: tuple = (None,)  # of Triton, the fastest is timed; None where the kernel tunes itself
    self_tuned_kernel: object = None
    other_calls: dict = field(default_factory=dict)  # name -> (i), timed in a graph only
    check_other: Callable = lambda name: None  # such a call, as `check` does; before it is timed
    flops: int = 0  # of the matrix products

    def triton_config(self, config):
        return str(config or self.self_tuned_kernel.best_config)


def num_sets(bytes_of_set):
    """So many that between two uses of a set the others move more than twice the L2."""
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    return 1 + -(-2 * l2_bytes // bytes_of_set)


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


def affordable_samples(sample_us):
    return max(MIN_SAMPLES, min(SAMPLES, int(SAMPLES_BUDGET_US / sample_us)))


def time_eager(call):
    def calls():
        for i in range(EAGER_CALLS):
            call(i)

    calls()
    (sample_us,) = elapsed_us(calls, 1)
    return per_call(elapsed_us(calls, affordable_samples(sample_us)), EAGER_CALLS)


def time_graph(call, num_sets, samples=None):
    """One graph of many calls: a multiple of the sets, so that replays rotate like the calls."""
    call(0)
    (estimate_us,) = elapsed_us(lambda: call(0), 1)
    calls = max(MIN_CALLS_PER_GRAPH, min(MAX_CALLS_PER_GRAPH, int(GRAPH_BUDGET_US / estimate_us)))
    calls = reference.round_up(calls, num_sets)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    sample_us = elapsed_us(graph.replay, 2)[-1]
    samples = samples or affordable_samples(sample_us)
    times = elapsed_us(graph.replay, samples, HOST_LEAD_CYCLES)
    del graph
    torch.cuda.empty_cache()
    return per_call(times, calls) | {"calls_per_graph": calls}


def time_configs(row, attempts, name):
    """Config to us: every one is checked, and timed briefly in such graphs as the final timing."""
    times = {}
    for config in row.configs:

        def trial(config=config):
            row.check(config)
            if len(row.configs) == 1:
                return 0.0
            call = functools.partial(row.call_triton, config=config)
            return time_graph(call, row.num_sets, CONFIG_SAMPLES)["us"]

        what = name if config is None else f"{name}, {config}"
        us = attempts.run(what, trial)
        if us is not None:
            times[config] = us
    return times


def time_row(name, row, attempts):
    """Checks and times all peers; a time is None where its peer failed."""
    config_times = time_configs(row, attempts, name)
    config = min(config_times, key=config_times.get, default=row.configs[0])
    times = {}
    calls = {"torch": row.call_torch, "triton": functools.partial(row.call_triton, config=config)}
    for peer, call in calls.items():
        eager = attempts.run(f"{name}, {peer}, eager", time_eager, call)
        graph = attempts.run(f"{name}, {peer}, graph", time_graph, call, row.num_sets)
        times[peer] = {"eager": eager, "graph": graph}
    for other, call in row.other_calls.items():

        def checked_time(other=other, call=call):
            row.check_other(other)
            return time_graph(call, row.num_sets)

        graph = attempts.run(f"{name}, {other}, graph", checked_time)
        times[other] = {"graph": graph}
    return {
        "op": row.op,
        "shape": row.shape,
        "memory": row.memory,
        "buffer_sets": row.num_sets,
        "bytes": row.bytes,
        "flops": row.flops,
        "triton_config": row.triton_config(config),
        "triton_configs_us": {str(config): us for config, us in config_times.items() if us},
        "other_peers": list(row.other_calls),
    } | times


def measure_copy_gb_per_s():
    source = torch.randint(256, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    elapsed_us(lambda: target.copy_(source), 3)
    times = elapsed_us(lambda: target.copy_(source), SAMPLES)
    return 2 * COPY_BYTES / statistics.median(times) / 1e3


def measure_launch_us():
    import peers_triton

    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    return time_graph(lambda i: peers_triton.nearly_empty(out), 1)


HEADER = (
    f"{'us per call, median':<32} {'MB':>7} | {'torch eager':>11} {'in graph':>9} |"
    f" {'triton eager':>12} {'in graph':>9} {'GB/s':>6} {'of copy':>7} {'TFLOP/s':>7}"
)


def table_line(name, result, copy_gb_per_s):
    def microseconds(peer, how):
        time = result[peer][how]
        return f"{time['us']:.2f}" if time else "failed"

    rate = share = tflops = "-"
    if result["triton"]["graph"]:
        us = result["triton"]["graph"]["us"]
        if result["memory"] == "cold":
            gb_per_s = result["bytes"] / us / 1e3
            rate, share = f"{gb_per_s:.0f}", f"{gb_per_s / copy_gb_per_s:.0%}"
        if result["flops"]:
            tflops = f"{result['flops'] / us / 1e6:.0f}"
    line = (
        f"{name:<32} {result['bytes'] / 1e6:7.2f} |"
        f" {microseconds('torch', 'eager'):>11} {microseconds('torch', 'graph'):>9} |"
        f" {microseconds('triton', 'eager'):>12} {microseconds('triton', 'graph'):>9}"
        f" {rate:>6} {share:>7} {tflops:>7}"
    )
    for other in result["other_peers"]:
        line += f" | {other} {microseconds(other, 'graph')}"
    return line
