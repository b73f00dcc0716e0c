"""Inputs of index rows and gather as device tensors, and how each peer is called on them."""

from dataclasses import dataclass

import torch

import peers_torch
from peers_reference import (
    HEAD_DIM,
    INDEX_WIDTH_MULTIPLE,
    WINDOW,
    Layout,
    chunk_sizes,
    round_up,
)


def triton_peer():
    """Imported late: Triton may be missing, and reads TRITON_INTERPRET when imported."""
    import peers_triton

    return peers_triton


@dataclass
class CombineInputs:
    topk: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    gather_lens: torch.Tensor
    scalars: dict  # ratio, top_k, n, m

    def lists(self):
        tensors = (self.topk, self.query_start_loc, self.seq_lens, self.gather_lens)
        return [tensor.tolist() for tensor in tensors]

    def run_torch(self):
        return peers_torch.combine_topk_swa(
            self.topk, self.query_start_loc, self.seq_lens, self.gather_lens, **self.scalars
        )

    def outputs(self):
        """Poisoned outputs for a peer that writes into the caller's memory."""
        width = round_up(self.scalars["top_k"] + WINDOW, INDEX_WIDTH_MULTIPLE)
        shape = (self.topk.shape[0], width)
        like = {"dtype": torch.int32, "device": self.topk.device}
        return torch.full(shape, -7, **like), torch.full(shape[:1], -7, **like)

    def run_triton(self, outputs):
        triton_peer().combine_topk_swa(
            *outputs,
            self.topk,
            self.query_start_loc,
            self.seq_lens,
            self.gather_lens,
            **self.scalars,
        )

    def bytes(self):
        """The fewest read and written: the used top-k columns, the index rows, the lengths."""
        num_tokens = self.topk.shape[0]
        index, length = self.outputs()
        return 4 * (num_tokens * self.scalars["top_k"] + index.numel() + length.numel())


def combine_inputs(
    query_lens, prefix_lens, ratio, top_k, device, topk=None, padding=0, first_start=0
):
    """Without `topk`: one entry from each of top_k equal parts of what a token sees, ascending."""
    seq_lens, gather_lens, n, m = chunk_sizes(query_lens, prefix_lens, ratio)
    starts = [first_start]
    for query_len in query_lens:
        starts.append(starts[-1] + query_len)
    if topk is None:
        position = torch.cat([torch.arange(p, s) for p, s in zip(prefix_lens, seq_lens)])
        visible = ((position + 1) // ratio).to(device)[:, None]
        column = torch.arange(top_k, device=device)
        first, end = column * visible // top_k, (column + 1) * visible // top_k
        drawn = torch.randint(2**31, first.shape, device=device) % (end - first).clamp(min=1)
        topk = (first + drawn).to(torch.int32)
    if padding:
        topk = torch.nn.functional.pad(topk, (0, 0, 0, padding), value=3)
    int32 = {"dtype": torch.int32, "device": device}
    return CombineInputs(
        topk=topk,
        query_start_loc=torch.tensor(starts, **int32),
        seq_lens=torch.tensor(seq_lens, **int32),
        gather_lens=torch.tensor(gather_lens, **int32),
        scalars={"ratio": ratio, "top_k": top_k, "n": n, "m": m},
    )


@dataclass
class GatherInputs:
    layout: Layout
    cache: torch.Tensor  # u8 [pages, page stride]
    page_size: int
    lens: list
    gather_lens: list | None
    block_table: torch.Tensor
    offset: int
    out: torch.Tensor

    def __post_init__(self):
        int32 = {"dtype": torch.int32, "device": self.cache.device}
        self.device_lens = torch.tensor(self.lens, **int32)
        self.device_gather_lens = self.gather_lens and torch.tensor(self.gather_lens, **int32)

    def run_torch(self):
        peers_torch.gather_dequant_kv(
            self.out,
            self.cache,
            self.layout,
            self.page_size,
            self.lens,
            self.gather_lens,
            self.block_table,
            self.offset,
        )

    def run_triton(self):
        triton_peer().gather_dequant_kv(
            self.out,
            self.cache,
            self.layout,
            self.page_size,
            self.device_lens,
            self.device_gather_lens,
            self.block_table,
            self.offset,
            max_rows=max(self.gather_lens or self.lens),
        )

    def bytes(self):
        """Cache bytes read, rows written, block table."""
        rows = sum(self.gather_lens or self.lens)
        return rows * (self.layout.entry_bytes + 2 * HEAD_DIM) + 4 * self.block_table.numel()


def gather_inputs(layout, entries, page_size, device):
    """One request over shuffled pages, filled as a writer leaves them: no NaN, scales near one."""
    num_pages = -(-entries // page_size)
    shape = (num_pages, layout.page_bytes(page_size))
    cache = torch.randint(256, shape, dtype=torch.uint8, device=device)
    codes, scales = peers_torch.page_regions(cache, layout, page_size)
    e4m3_columns = {"F1": 512, "F2": 0, "F3": 448, "F4": 0}[layout.name]
    fp8_codes, rest = codes[..., :e4m3_columns], codes[..., e4m3_columns:]
    fp8_codes.masked_fill_((fp8_codes & 0x7F) == 0x7F, 0)
    if layout.name in ("F3", "F4"):
        shape = (*rest.shape[:2], rest.shape[2] // 2)
        rest.copy_(torch.randn(shape, dtype=torch.bfloat16, device=device).view(torch.uint8))
    if layout.name in ("F1", "F3"):
        scales.copy_(torch.randint(105, 140, scales.shape, dtype=torch.uint8, device=device))
    elif layout.name == "F2":
        scales.copy_(torch.randint(1, 127, scales.shape, dtype=torch.uint8, device=device))
    return GatherInputs(
        layout=layout,
        cache=cache,
        page_size=page_size,
        lens=[entries],
        gather_lens=None,
        block_table=torch.randperm(num_pages, device=device).to(torch.int32)[None, :],
        offset=0,
        out=torch.full((1, entries, HEAD_DIM), float("nan"), dtype=torch.bfloat16, device=device),
    )
