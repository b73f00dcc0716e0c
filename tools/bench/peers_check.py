"""Comparisons, and the checks of index rows and gather against the plain Python reference.

On the GPU, or (Triton interpreted) the CPU. The caches hold every code with every scale, NaN
included. Cache bytes that no entry covers and outputs are poisoned.
"""

import dataclasses

import torch

import peers_reference as reference
from peers_inputs import GatherInputs, combine_inputs, triton_peer
from peers_reference import HEAD_DIM, LAYOUTS, require

TOP_K = reference.EXAMPLE_TOP_K
POISON = -7.0


def require_same(what, found, expected, where=None):
    """Equal to the bit where the mask `where` says so; any NaN equals any NaN."""
    require(
        found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
    )
    if found.dtype == torch.bfloat16:
        same = found.view(torch.int16) == expected.view(torch.int16)
        same |= found.isnan() & expected.isnan()
    else:
        same = found == expected
    if where is not None:
        same |= ~where
    if not same.all():
        at = tuple((~same).nonzero()[0].tolist())
        count = int((~same).sum())
        require(
            False, f"{what}: {count} wrong, first at {at}: {found[at]}, expected {expected[at]}"
        )


def require_close(what, found, expected, rms_tolerance):
    """The rms of the difference against that of what is expected; NaN and infinity never pass."""
    require(
        found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
    )
    difference = found.float() - expected.float()
    rms = (difference.square().mean() / expected.float().square().mean()).sqrt().item()
    require(rms <= rms_tolerance, f"{what}: relative rms error {rms:.2e}")


def combine_check_inputs(device):
    for ratio in reference.EXAMPLE_ROWS:
        topk = torch.tensor(reference.example_topk(ratio), dtype=torch.int32, device=device)
        top_k = topk.shape[1]
        lens = reference.EXAMPLE_QUERY_LENS, reference.EXAMPLE_PREFIX_LENS
        yield f"example, ratio {ratio}", combine_inputs(*lens, ratio, top_k, device, topk)
        yield (
            f"example, ratio {ratio}, padding, a slice",
            combine_inputs(*lens, ratio, top_k, device, topk, padding=5, first_start=11),
        )
    # Requests without a row, top-k values out of range, and windows cut short by a bounded gather.
    values = torch.randint(-3, 600, (9, TOP_K), dtype=torch.int32, device=device)
    lens = (0, 4, 0, 5, 0), (7, 900, 130, 600, 3)
    inputs = combine_inputs(*lens, 2, TOP_K, device, values, padding=2)
    yield "holes, empty requests", inputs
    gather_lens = inputs.gather_lens.clamp(max=100)
    yield "bounded gather", dataclasses.replace(inputs, gather_lens=gather_lens)
    yield "drawn top-k", combine_inputs((3, 0, 14), (1400, 9, 2000), 2, TOP_K, device)


def check_combine(device, peer):
    for name, inputs in combine_check_inputs(device):
        index, length = reference.combine_topk_swa(*inputs.lists(), **inputs.scalars)
        int32 = {"dtype": torch.int32, "device": device}
        expected = torch.tensor(index, **int32), torch.tensor(length, **int32)
        if peer == "torch":
            found = inputs.run_torch()
        else:
            found = inputs.outputs()
            with triton_peer().untuned():
                inputs.run_triton(found)
        for part, got, want in zip(("idx", "len"), found, expected):
            require_same(f"combine_topk_swa, {peer}, {name}, {part}", got, want)


def every_code_with_every_scale(layout, page_size, page_stride):
    """A cache in which each code byte (or nibble) meets each scale byte, entries in page order."""
    group, codes, groups_per_entry = {
        "F1": (32, 256, 16),
        "F2": (16, 16, 32),
        "F3": (64, 256, 7),
        "F4": (512, 65536, 1),
    }[layout.name]
    runs = codes // group  # groups needed to show every code once
    num_groups = runs * (256 if layout.scale_bytes else 1)
    num_entries = -(-num_groups // groups_per_entry)
    num_pages = -(-num_entries // page_size)
    cache = bytearray(b"\xee" * (num_pages * page_stride))
    for entry in range(num_entries):
        page, row = divmod(entry, page_size)
        at = page * page_stride + row * layout.code_bytes
        scales_at = page * page_stride + page_size * layout.code_bytes + row * layout.scale_bytes
        for g in range(groups_per_entry):
            q = entry * groups_per_entry + g
            values = [q % runs * group + j for j in range(group)]
            if layout.name == "F4":
                data = b"".join(v.to_bytes(2, "little") for v in values)
            elif layout.name == "F2":
                data = bytes(low | high << 4 for low, high in zip(values[::2], values[1::2]))
            else:
                data = bytes(values)
            cache[at + g * len(data) : at + (g + 1) * len(data)] = data
            if layout.scale_bytes:
                cache[scales_at + g] = q // runs % 256
        if layout.name == "F3":
            cache[at + 448 : at + 576] = bytes((entry + 3 * j) % 256 for j in range(128))
    return cache, num_entries


def gather_check_inputs(layout, device):
    """Two requests share the pages, in opposite order, through padded strides on both sides."""
    for page_size, gather_lens, offset in ((64, None, 0), (4, (37, 5), 3), (1, (6, 0), 1)):
        page_stride = layout.page_bytes(page_size) + 256
        data, num_entries = every_code_with_every_scale(layout, page_size, page_stride)
        cache = torch.frombuffer(data, dtype=torch.uint8).reshape(-1, page_stride).to(device)
        pages = torch.arange(cache.shape[0], dtype=torch.int32, device=device)
        lens = [num_entries, num_entries - 3]
        gather_lens = gather_lens and [min(g, s) for g, s in zip(gather_lens, lens)]
        rows = offset + max(gather_lens or lens) + 2
        storage = torch.full((2, rows, HEAD_DIM + 64), POISON, dtype=torch.bfloat16, device=device)
        yield (
            data,
            GatherInputs(
                layout=layout,
                cache=cache,
                page_size=page_size,
                lens=lens,
                gather_lens=gather_lens,
                block_table=torch.stack((pages, pages.flip(0))),
                offset=offset,
                out=storage[..., :HEAD_DIM],
            ),
        )


def expected_gather(data, inputs):
    """The whole output as the reference has it, poison where nothing is written."""
    place = data, inputs.layout, inputs.cache.shape[1], inputs.page_size
    rows = reference.gather_rows(
        inputs.lens,
        inputs.gather_lens,
        inputs.block_table.tolist(),
        inputs.offset,
        inputs.page_size,
    )
    entries = {
        at: torch.tensor([reference.cache_element(*place, *at, e) for e in range(HEAD_DIM)])
        for at in set(rows.values())
    }
    expected = torch.full(inputs.out.shape, POISON)
    for (request, row), at in rows.items():
        expected[request, row] = entries[at]
    return expected.to(torch.bfloat16).to(inputs.out.device)


def check_gather(device, peer):
    for layout in LAYOUTS.values():
        for data, inputs in gather_check_inputs(layout, device):
            expected = expected_gather(data, inputs)
            where = None
            if peer == "torch":
                inputs.run_torch()
            else:
                with triton_peer().untuned():
                    inputs.run_triton()
                if triton_peer().IS_INTERPRETED:
                    # The interpreter converts subnormals, infinities and NaN wrongly.
                    smallest = torch.finfo(torch.bfloat16).smallest_normal
                    where = expected.isfinite() & (expected.abs() >= smallest)
            what = f"gather_dequant_kv, {peer}, {layout.name}, page size {inputs.page_size}"
            require_same(what, inputs.out, expected, where)
