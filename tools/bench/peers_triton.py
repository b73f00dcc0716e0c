"""Index rows and gather in Triton, as a user would write them, and what all ops need of Triton.

Rows per program, autotuned over few configs. Needs a GPU that converts E4M3 (cc 8.9 and up), or
TRITON_INTERPRET=1 set before this is imported.
"""

import concurrent.futures
import contextlib
import functools
import os

import triton
import triton.language as tl

from peers_reference import INDEX_WIDTH_MULTIPLE, WINDOW, round_up

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class CompileOnly:
    """Inside, `launch` compiles without running, several kernels at a time; errors come later."""

    active = False

    def __enter__(self):
        self.executor = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
        self.mode = triton.AsyncCompileMode(self.executor, ignore_errors=True)
        self.mode.__enter__()
        CompileOnly.active = True

    def __exit__(self, *error):
        CompileOnly.active = False
        self.mode.__exit__(*error)
        self.executor.shutdown()


def launch(kernel, grid, *arguments, **constants):
    if CompileOnly.active:
        kernel.warmup(*arguments, grid=grid, **constants)
    else:
        kernel[grid](*arguments, **constants)


def configs(*rows_and_warps):
    return [triton.Config({"ROWS": rows}, num_warps=warps) for rows, warps in rows_and_warps]


quick_bench = functools.partial(triton.testing.do_bench, warmup=5, rep=20)


@triton.autotune(configs((1, 1), (1, 4), (4, 4), (8, 8)), key=["num_tokens"], do_bench=quick_bench)
@triton.jit(do_not_specialize=["num_tokens", "num_requests", "n", "m"])
def combine_topk_swa_kernel(
    index_ptr,  # int32 [num_tokens, WIDTH]
    length_ptr,  # int32 [num_tokens]
    topk_ptr,  # int32 [num_tokens, TOP_K]
    query_start_loc_ptr,  # int32 [num_requests + 1]
    seq_lens_ptr,  # int32 [num_requests]
    gather_lens_ptr,  # int32 [num_requests]
    topk_stride,
    num_tokens,
    num_requests,
    n,
    m,
    RATIO: tl.constexpr,
    TOP_K: tl.constexpr,
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,  # of one step, divides WIDTH
    REQUESTS: tl.constexpr,  # num_requests + 1 or more, a power of two
    ROWS: tl.constexpr,
):
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_range = token < num_tokens

    # The request of a token is the last one that starts at or before it.
    slot = tl.arange(0, REQUESTS)
    first_start = tl.load(query_start_loc_ptr)
    starts = tl.load(query_start_loc_ptr + slot, mask=slot <= num_requests, other=2**31 - 1)
    begun = (starts - first_start)[None, :] <= token[:, None]
    begun = begun & (slot <= num_requests)[None, :]
    request = tl.sum(begun.to(tl.int32), axis=1) - 1
    has_request = in_range & (request < num_requests)
    request = tl.minimum(request, num_requests - 1)

    seq_len = tl.load(seq_lens_ptr + request)
    next_start = tl.load(query_start_loc_ptr + request + 1) - first_start
    position = seq_len - next_start + token
    gather_start = seq_len - tl.load(gather_lens_ptr + request)
    if RATIO == 0:
        compressed_len = tl.zeros_like(position)
    else:
        compressed_len = tl.minimum((position + 1) // RATIO, TOP_K)
    window_start = tl.maximum(tl.maximum(position - (WINDOW - 1), gather_start), 0)
    length = compressed_len + position - window_start + 1
    compressed_len = tl.where(has_request, compressed_len, 0)
    length = tl.where(has_request, length, 0)
    tl.store(length_ptr + token, length, mask=in_range)

    base = request * m
    first_window_value = base + n + window_start - gather_start - compressed_len
    row = token.to(tl.int64)[:, None]
    for first_column in tl.static_range(0, WIDTH, COLUMNS):
        column = first_column + tl.arange(0, COLUMNS)[None, :]
        is_compressed = column < compressed_len[:, None]
        readable = in_range[:, None] & (column < TOP_K)
        entry = tl.load(topk_ptr + row * topk_stride + column, mask=readable, other=-1)
        compressed = tl.where((entry >= 0) & (entry < n), base[:, None] + entry, -1)
        window = tl.where(column < length[:, None], first_window_value[:, None] + column, -1)
        value = tl.where(is_compressed, compressed, window)
        tl.store(index_ptr + row * WIDTH + column, value, mask=in_range[:, None])


def combine_topk_swa(
    index, length, topk, query_start_loc, seq_lens, gather_lens, *, ratio, top_k, n, m
):
    num_tokens, num_requests = topk.shape[0], seq_lens.shape[0]
    combine_topk_swa_kernel[lambda meta: (triton.cdiv(num_tokens, meta["ROWS"]),)](
        index,
        length,
        topk,
        query_start_loc,
        seq_lens,
        gather_lens,
        topk.stride(0),
        num_tokens,
        num_requests,
        n,
        m,
        RATIO=ratio,
        TOP_K=top_k,
        WINDOW=WINDOW,
        WIDTH=round_up(top_k + WINDOW, INDEX_WIDTH_MULTIPLE),
        COLUMNS=INDEX_WIDTH_MULTIPLE,
        REQUESTS=triton.next_power_of_2(num_requests + 1),
    )


@triton.jit
def e4m3_to_f32(code):
    return code.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def ue8m0_to_f32(code):
    bits = code.to(tl.int32) << 23
    bits = tl.where(code == 0, 0x00400000, bits)  # 2^-127 is subnormal
    bits = tl.where(code == 255, 0x7FC00000, bits)  # NaN
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def e2m1_to_f32(nibble):
    """Exponent and mantissa moved to their place in fp32, then one exact multiply for the bias."""
    code = nibble.to(tl.int32)
    bits = ((code & 8) << 28) | ((code & 7) << 22)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126


@triton.jit
def load_rows(first_byte, valid, COUNT: tl.constexpr, STEP: tl.constexpr):
    """`COUNT` elements of every row; the last of them are 0 where they lie at or beyond `STEP`."""
    column = tl.arange(0, COUNT)[None, :]
    return tl.load(first_byte[:, None] + column, mask=valid[:, None] & (column < STEP), other=0)


@triton.autotune(
    configs((1, 1), (1, 4), (4, 4), (8, 8)), key=["FORMAT", "max_rows"], do_bench=quick_bench
)
@triton.jit(do_not_specialize=["max_rows", "offset"])
def gather_dequant_kv_kernel(
    out_ptr,  # bf16 [num_requests, M, 512]
    cache_ptr,  # u8 [pages, page_stride]
    lens_ptr,  # int32 [num_requests]
    gather_lens_ptr,  # int32 [num_requests], or lens_ptr when all entries are gathered
    block_table_ptr,  # int32 [num_requests, pages of a request]
    out_request_stride,
    out_row_stride,
    page_stride,
    block_table_stride,
    offset,
    max_rows,  # only tells the autotuner the size
    PAGE_SIZE: tl.constexpr,
    CODE_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    FORMAT: tl.constexpr,
    ROWS: tl.constexpr,
):
    request = tl.program_id(1)
    length = tl.load(lens_ptr + request)
    gathered = tl.load(gather_lens_ptr + request)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    valid = i < gathered
    entry = length - gathered + i
    table = block_table_ptr + request.to(tl.int64) * block_table_stride
    page = tl.load(table + entry // PAGE_SIZE, mask=valid, other=0)
    row = entry % PAGE_SIZE
    codes = cache_ptr + page.to(tl.int64) * page_stride + row * CODE_BYTES
    scales = (
        cache_ptr + page.to(tl.int64) * page_stride + PAGE_SIZE * CODE_BYTES + row * SCALE_BYTES
    )
    out = out_ptr + request.to(tl.int64) * out_request_stride
    out = out + (offset + i).to(tl.int64)[:, None] * out_row_stride

    if FORMAT == "F1":
        value = tl.reshape(e4m3_to_f32(load_rows(codes, valid, 512, 512)), (ROWS, 16, 32))
        scale = ue8m0_to_f32(load_rows(scales, valid, 16, 16))
        value = tl.reshape(value * scale[:, :, None], (ROWS, 512)).to(tl.bfloat16)
        tl.store(out + tl.arange(0, 512)[None, :], value, mask=valid[:, None])
    elif FORMAT == "F2":
        packed = load_rows(codes, valid, 256, 256)
        value = tl.interleave(e2m1_to_f32(packed & 15), e2m1_to_f32(packed >> 4))
        scale = e4m3_to_f32(load_rows(scales, valid, 32, 32))
        value = tl.reshape(value, (ROWS, 32, 16)) * scale[:, :, None]
        value = tl.reshape(value, (ROWS, 512)).to(tl.bfloat16)
        tl.store(out + tl.arange(0, 512)[None, :], value, mask=valid[:, None])
    elif FORMAT == "F3":
        value = tl.reshape(e4m3_to_f32(load_rows(codes, valid, 512, 448)), (ROWS, 8, 64))
        scale = ue8m0_to_f32(load_rows(scales, valid, 8, 8))
        value = tl.reshape(value * scale[:, :, None], (ROWS, 512)).to(tl.bfloat16)
        column = tl.arange(0, 512)[None, :]
        tl.store(out + column, value, mask=valid[:, None] & (column < 448))
        tail = (codes + 448).to(tl.pointer_type(tl.bfloat16))
        tail = load_rows(tail, valid, 64, 64)
        tl.store(out + 448 + tl.arange(0, 64)[None, :], tail, mask=valid[:, None])
    else:
        value = load_rows(codes.to(tl.pointer_type(tl.bfloat16)), valid, 512, 512)
        tl.store(out + tl.arange(0, 512)[None, :], value, mask=valid[:, None])


def gather_dequant_kv(
    out, cache, layout, page_size, lens, gather_lens, block_table, offset, *, max_rows
):
    """Lengths and tables are device tensors; the host knows the largest gather length."""
    num_requests = lens.shape[0]
    gather_dequant_kv_kernel[lambda meta: (triton.cdiv(max_rows, meta["ROWS"]), num_requests)](
        out,
        cache,
        lens,
        lens if gather_lens is None else gather_lens,
        block_table,
        out.stride(0),
        out.stride(1),
        cache.stride(0),
        block_table.stride(0),
        offset,
        max_rows,
        PAGE_SIZE=page_size,
        CODE_BYTES=layout.code_bytes,
        SCALE_BYTES=layout.scale_bytes,
        FORMAT=layout.name,
    )


@triton.jit
def nearly_empty_kernel(out_ptr):
    tl.store(out_ptr, 1)


def nearly_empty(out):
    nearly_empty_kernel[(1,)](out)


@contextlib.contextmanager
def untuned():
    """Inside, calls run the last config, the one with most rows: checks need no speed."""
    kernels = combine_topk_swa_kernel, gather_dequant_kv_kernel
    all_configs = [kernel.configs for kernel in kernels]
    for kernel in kernels:
        kernel.configs = kernel.configs[-1:]
    try:
        yield
    finally:
        for kernel, found in zip(kernels, all_configs):
            kernel.configs = found
