#!/usr/bin/env python3
"""Times the PyTorch and the Triton peers of Kiln's ops, to be read beside Kiln's own times.

    peers.py [--small | --other-small | --op NAME] [--row TEXT] [--json FILE]
                               checks both peers on the GPU, times them, prints a table
    peers.py --self-check      checks the mathematics on the CPU; needs neither a GPU nor torch

Method, inputs and columns: README.md beside this file.
"""

import argparse
import functools
import json
import os
import sys
import warnings
from dataclasses import dataclass
from typing import Callable

import peers_reference as reference
import peers_small_reference as small_reference
from peers_reference import LAYOUTS

try:
    import torch
except ImportError:
    torch = None  # --self-check does without
else:
    import peers_act_quant
    import peers_cache
    import peers_check
    import peers_engram
    import peers_inputs
    import peers_linear_fp8
    import peers_metadata
    import peers_moe
    import peers_numbers
    import peers_other_reference
    import peers_rows
    import peers_sparse_mla_decode
    import peers_streams
    import peers_timing
    from peers_timing import Row

    SMALL_MODULES = (
        peers_rows,
        peers_cache,
        peers_metadata,
        peers_streams,
        peers_engram,
        peers_moe,
    )

LARGE_OPS = (
    "combine_topk_swa",
    "gather_dequant_kv",
    "act_quant",
    "linear_fp8",
    "sparse_mla_decode",
)
SMALL_OPS = (
    "rms_norm",
    "rope",
    "qkv_norm",
    "index_query",
    "compressor_update",
    "window_kv_insert",
    "compressed_kv_insert",
    "index_key_insert",
    "topk_to_slots",
    "window_slots",
    "ragged_indptr",
    "ragged_keys",
)
OTHER_SMALL_OPS = (
    "hc_post",
    "hc_fold_norm",
    "hc_post_fold_norm",
    "hc_stats",
    "hc_fused_post_pre_delayed",
    "embed_expand",
    "engram_hash",
    "engram_fetch",
    "engram_inject",
    "moe_route",
    "moe_align",
    "moe_combine",
)
OPS = LARGE_OPS + SMALL_OPS + OTHER_SMALL_OPS

RATIO = 2
TOP_K = 512
PREFIX_LEN = 4096
PAGE_SIZE = 64
COMBINE_TOKENS = (1, 6, 64, 1536, 8192)
COMBINE_REQUESTS = (1, 4)
GATHER_ENTRIES = (16384, 49152, 131072)


@dataclass
class Op:
    check_torch: Callable  # (device)
    check_triton: Callable  # (device)
    planned_rows: Callable  # () -> (name, function that makes the row): one row's buffers at a time
    triton_trials: Callable | None = None  # (device) -> (run, compare); interpreted by none
    check_comparison: Callable | None = None  # () -> numbers of mistakes found, of others accepted


def op_of_trials(module):
    def check_triton(device):
        for run, compare in module.triton_trials(device):
            run()
            compare()

    return Op(
        module.check_torch,
        check_triton,
        module.planned_rows,
        module.triton_trials,
        getattr(module, "check_comparison", None),
    )


def check_references():
    reference.check_reference()
    small_reference.check_examples()
    if torch is not None:
        peers_other_reference.check_examples()


def self_check(ops):
    """On the CPU: the reference always, PyTorch where it is, Triton in its interpreter."""
    check_references()
    print("plain Python reference: agrees with the worked examples")
    if torch is None:
        print("PyTorch and Triton peers: skipped, torch cannot be imported here")
        return
    os.environ["TRITON_INTERPRET"] = "1"  # before tracing imports Triton
    torch.manual_seed(1)
    for op in ops.values():
        op.check_torch("cpu")
    print("PyTorch peers: agree with the reference")
    peers_numbers.check_limits()
    counts = [op.check_comparison() for op in ops.values() if op.check_comparison]
    found, accepted = (sum(each) for each in zip(*counts)) if counts else (0, 0)
    print(f"comparison of numbers: finds {found} mistakes, accepts {accepted} other differences")
    try:
        import triton  # noqa: F401
    except ImportError:
        print("Triton peers: skipped, triton cannot be imported here")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # overflow to infinity is part of the check
        for name, op in ops.items():
            if op.triton_trials:
                print(f"Triton peer of {name}: left to the GPU")
            else:
                op.check_triton("cpu")
                print(f"Triton peer of {name}, interpreted: agrees with the reference")


def combine_row(num_tokens, num_requests):
    """All warm: one set of buffers, called again and again."""
    import peers_triton

    query_lens = [
        num_tokens // num_requests + (i < num_tokens % num_requests) for i in range(num_requests)
    ]
    prefix_lens = [PREFIX_LEN] * num_requests
    inputs = peers_inputs.combine_inputs(query_lens, prefix_lens, RATIO, TOP_K, "cuda")
    outputs = inputs.outputs()

    def check(config):
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
        call_triton=lambda i, config: inputs.run_triton(outputs),
        check=check,
        self_tuned_kernel=peers_triton.combine_topk_swa_kernel,
    )


def gather_row(layout, entries):
    """Cold: between two uses of a buffer the other sets move more than twice the L2."""
    import peers_triton

    def make_set():
        return peers_inputs.gather_inputs(layout, entries, PAGE_SIZE, "cuda")

    first = make_set()
    sets = [first] + [make_set() for _ in range(peers_timing.num_sets(first.bytes()) - 1)]

    def check(config):
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
        num_sets=len(sets),
        bytes=first.bytes(),
        call_torch=lambda i: sets[i % len(sets)].run_torch(),
        call_triton=lambda i, config: sets[i % len(sets)].run_triton(),
        check=check,
        self_tuned_kernel=peers_triton.gather_dequant_kv_kernel,
    )


def combine_rows():
    for num_requests in COMBINE_REQUESTS:
        for num_tokens in COMBINE_TOKENS:
            name = f"combine T={num_tokens} R={num_requests}"
            yield name, functools.partial(combine_row, num_tokens, num_requests)


def gather_rows():
    for layout in LAYOUTS.values():
        for entries in GATHER_ENTRIES:
            yield f"gather {layout.name} {entries}", functools.partial(gather_row, layout, entries)


def all_ops():
    if torch is None:
        return {}

    def op_of_peers(check, planned_rows):
        checks = (functools.partial(check, peer=peer) for peer in ("torch", "triton"))
        return Op(*checks, planned_rows=planned_rows)

    return {
        "combine_topk_swa": op_of_peers(peers_check.check_combine, combine_rows),
        "gather_dequant_kv": op_of_peers(peers_check.check_gather, gather_rows),
        "act_quant": op_of_trials(peers_act_quant),
        "linear_fp8": op_of_trials(peers_linear_fp8),
        "sparse_mla_decode": op_of_trials(peers_sparse_mla_decode),
    } | {
        name: op_of_trials(peers)
        for module in SMALL_MODULES
        for name, peers in module.PEERS.items()
    }


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


def compile_ahead(ops):
    """All kernels of the checks at a time; what fails here fails again where it is run."""
    import peers_triton

    with peers_triton.CompileOnly():
        for op in ops.values():
            for run, _ in op.triton_trials("cuda") if op.triton_trials else ():
                run()


def run_benchmark(ops, parts_of_names, json_path):
    """Returns the exit code: 0, or 1 when a peer failed or computed something wrong."""
    import triton

    torch.manual_seed(1)
    properties = torch.cuda.get_device_properties(0)
    attempts = Attempts()
    attempts.run("reference", check_references)
    compile_ahead(ops)
    for name, op in ops.items():
        attempts.run(f"check of {name}, torch", op.check_torch, "cuda")
        attempts.run(f"check of {name}, triton", op.check_triton, "cuda")

    copy_gb_per_s = peers_timing.measure_copy_gb_per_s()
    launch = peers_timing.measure_launch_us()
    print(f"{properties.name}, torch {torch.__version__}, triton {triton.__version__}")
    gigabytes = peers_timing.COPY_BYTES / 1e9
    print(f"copy of {gigabytes:.0f} GB: {copy_gb_per_s:.0f} GB/s read plus written")
    print(f"nearly empty kernel in a graph: {launch['us']:.2f} us")
    print(peers_timing.HEADER, flush=True)
    results = []
    for name, make in (row for op in ops.values() for row in op.planned_rows()):
        if parts_of_names and not any(part in name for part in parts_of_names):
            continue
        row = attempts.run(name, make)
        if row:
            results.append(peers_timing.time_row(name, row, attempts))
            print(peers_timing.table_line(name, results[-1], copy_gb_per_s), flush=True)
    if json_path:
        report = {
            "device": properties.name,
            "l2_bytes": properties.L2_cache_size,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "samples": peers_timing.SAMPLES,
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
    parser.add_argument(
        "--op", metavar="NAME", action="append", choices=OPS, help=f"only this: {', '.join(OPS)}"
    )
    parser.add_argument(
        "--small", action="store_true", help="only the small ops around attention"
    )
    parser.add_argument(
        "--other-small",
        action="store_true",
        help="only the small ops of streams, Engram, embedding and router",
    )
    parser.add_argument(
        "--row", metavar="TEXT", action="append", help="only rows with this in their names"
    )
    parser.add_argument("--json", metavar="FILE", help="write every number there too")
    options = parser.parse_args()
    groups = SMALL_OPS * options.small + OTHER_SMALL_OPS * options.other_small
    wanted = set(options.op or groups or OPS)
    ops = {name: op for name, op in all_ops().items() if name in wanted}
    if options.self_check:
        self_check(ops)
        return 0
    if torch is None or not torch.cuda.is_available():
        sys.exit("peers.py: timing needs torch, triton and a CUDA device; --self-check does not")
    return run_benchmark(ops, options.row, options.json)


if __name__ == "__main__":
    sys.exit(main())
