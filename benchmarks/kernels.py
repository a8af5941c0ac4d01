"""The attention kernels on a GPU, beside a copy of as many bytes and beside torch's own attention.

Decode reads every key and value once and computes next to nothing on it, so its limit is the
memory: what a copy on the same device reaches in the same run is the mark. Needs CUDA; --dry-run
computes everything once in small, interpreted on the CPU.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

Work = Callable[[], object]
GOAL = 0.85
"""Of the copy's bandwidth, for decode."""


class Shape(NamedTuple):
    """One step: `rows` texts of `context` tokens, of which the last `queries` are computed."""

    rows: int
    context: int
    queries: int = 1
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    block_size: int = 16
    kv_dtype: str = "auto"

    def __str__(self) -> str:
        kind = "decode" if self.queries == 1 else f"prefill of {self.queries}"
        cache = "" if self.kv_dtype == "auto" else f", {self.kv_dtype}"
        return f"{kind}, batch {self.rows}, context {self.context}{cache}"

    @property
    def pairs(self) -> int:
        """Query and key, that see each other."""
        before = self.context - self.queries
        return self.rows * (self.queries * before + self.queries * (self.queries + 1) // 2)

    @property
    def operations(self) -> int:
        """Multiplications and additions of both products."""
        return 4 * self.pairs * self.heads * self.dim


MARK = Shape(64, 4096)
SHAPES = (
    MARK,
    Shape(64, 4096, kv_dtype="int8"),
    Shape(16, 4096),
    Shape(1, 32768),
    Shape(1, 4096, queries=4096),
    Shape(8, 4096, queries=512),
)
SMALL = (
    Shape(2, 40, heads=4, kv_heads=2, dim=16),
    Shape(2, 40, heads=4, kv_heads=2, dim=16, kv_dtype="int8"),
    Shape(1, 40, queries=20, heads=4, kv_heads=2, dim=16),
)


class Measured(NamedTuple):
    shape: Shape
    name: str
    seconds: float
    num_bytes: int | None  # of keys and values, each read once; None = several times


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dry-run", action="store_true", help="in small, without a GPU")
    options = parser.parse_args(arguments if arguments is None else list(arguments))
    os.environ["TRITON_INTERPRET"] = "1" if options.dry_run else "0"  # before triton is imported
    report("cpu" if options.dry_run else "cuda", SMALL if options.dry_run else SHAPES)


def report(device: str, shapes: Iterable[Shape]) -> None:
    import torch
    from rich.console import Console
    from rich.table import Table

    copy = copy_bandwidth(device)
    shown = Table(box=None)
    for column in ("", "", "ms", "GB/s", "of a copy", "TFLOP/s"):
        shown.add_column(column, justify="right" if shown.columns[1:] else "left", no_wrap=True)
    reached = None
    for shape in shapes:
        for measured in contenders(shape, device):
            rate = None if measured.num_bytes is None else measured.num_bytes / measured.seconds
            if shape == MARK and measured.name == "kvrewind":
                reached = rate
            shown.add_row(
                str(shape),
                measured.name,
                f"{measured.seconds * 1e3:.3f}",
                "" if rate is None else f"{rate / 1e9:.0f}",
                "" if rate is None else f"{rate / copy:.0%}",
                f"{shape.operations / measured.seconds / 1e12:.1f}",
            )
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU, interpreted: no measurement"
    console = Console(width=110)
    console.print(
        f"{name}; torch {torch.__version__}, triton {importlib.import_module('triton').__version__}"
        f"; bfloat16; a copy reads and writes {copy / 1e9:.0f} GB/s"
    )
    console.print(shown)
    if reached is not None:
        word = "reached" if reached >= GOAL * copy else "missed"
        console.print(f"{MARK}: {reached / copy:.0%} of a copy; goal {GOAL:.0%}, {word}")


def seconds_of(work: Work, device: str) -> float:
    """The median of replays of a CUDA graph: what the host does beside it doesn't count."""
    if device == "cpu":
        started = time.perf_counter()
        work()
        return time.perf_counter() - started
    from triton.testing import do_bench_cudagraph

    milliseconds: Any = do_bench_cudagraph(work, return_mode="median")
    return milliseconds / 1e3


def copy_bandwidth(device: str) -> float:
    """Bytes a second, read and written ones together."""
    import torch

    source = torch.ones(2**30 if device == "cuda" else 2**16, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds_of(lambda: target.copy_(source), device)


def contenders(shape: Shape, device: str) -> Iterator[Measured]:
    """Ours over shuffled blocks; torch's over the same numbers in one piece per row."""
    import torch

    torch.manual_seed(0)
    pool, inputs, query = step_of(shape, device)
    keys, values = pool.stored(0)
    num_bytes = sum(part.nbytes for part in (*keys, *values)) if shape.queries == 1 else None
    ours = by_kernels(pool, inputs, query, shape)
    expected = in_one_piece(pool, inputs, query, shape)
    difference = (ours().float() - expected().float()).abs().max().item()
    assert difference < 0.05, f"{shape}: off by {difference}"
    yield Measured(shape, "kvrewind", seconds_of(ours, device), num_bytes)
    if shape.kv_dtype != "auto":
        return
    yield Measured(shape, "torch, contiguous", seconds_of(expected, device), num_bytes)
    if device == "cuda" and find_spec("flash_attn") and shape.queries == 1:
        flash = by_flash_attention(pool, inputs, query, shape)
        yield Measured(shape, "FlashAttention, paged", seconds_of(flash, device), num_bytes)


def step_of(shape: Shape, device: str) -> tuple[Any, Any, Any]:
    """A pool that holds the rows' blocks in any order, and one step over it."""
    import torch
    from kvrewind.engine.attention.pool import LayerShape
    from kvrewind.engine.attention.triton_pool import TritonPool
    from kvrewind.engine.inputs import GroupInputs, StepInputs

    width = math.ceil(shape.context / shape.block_size)
    pool = TritonPool(
        [LayerShape(shape.kv_heads, shape.dim, shape.dim)],
        num_blocks=shape.rows * width,
        block_size=shape.block_size,
        dtype=torch.bfloat16,
        device=torch.device(device),
        kv_dtypes=[shape.kv_dtype],
    )
    for slots in torch.arange(pool.num_slots, device=device).split(2**16):
        drawn = torch.randn(
            2, len(slots), shape.kv_heads, shape.dim, device=device, dtype=torch.bfloat16
        )
        pool.write(0, slots, drawn[0], drawn[1])
    tokens = shape.rows * shape.queries
    tables = np.random.default_rng(0).permutation(shape.rows * width).reshape(shape.rows, width)
    inputs = StepInputs(
        step=1,
        requests=tuple(f"r{row}" for row in range(shape.rows)),
        phases=("decode",) * shape.rows,
        query_lens=np.full(shape.rows, shape.queries),
        seq_lens=np.full(shape.rows, shape.context),
        tokens=np.zeros(tokens, dtype=np.int64),
        positions=np.zeros(tokens, dtype=np.int64),
        groups=(GroupInputs(block_tables=tables, slot_mapping=np.full(tokens, -1)),),
        logit_tokens=np.arange(tokens),
        samples=(),
        drafts=np.zeros(shape.rows, dtype=np.int64),
    )
    query = torch.randn(tokens, shape.heads, shape.dim, device=device, dtype=torch.bfloat16)
    return pool, inputs, query


def by_kernels(pool: Any, inputs: Any, query: Any, shape: Shape) -> Callable[[], Any]:
    """[T, heads, dim]"""
    from kvrewind.engine.attention.scores import Scoring
    from kvrewind.engine.attention.triton_path import TritonAttention

    planned = TritonAttention(inputs, inputs.groups[0], pool)
    scoring = Scoring(shape.dim**-0.5)
    return lambda: planned.attend(0, query, scoring)


def in_one_piece(pool: Any, inputs: Any, query: Any, shape: Shape) -> Callable[[], Any]:
    """[T, heads, dim] by torch, which packs the heads of a KV head for single queries as we do."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    blocks = torch.from_numpy(inputs.groups[0].block_tables.ravel()).to(query.device)
    keys, values = (
        states.view(shape.rows, -1, shape.kv_heads, shape.dim)[:, : shape.context]
        .transpose(1, 2)
        .contiguous()
        for states in pool.gather(0, blocks)
    )  # [rows, kv_heads, context, dim]
    if shape.queries == 1:
        packed = query.view(shape.rows, shape.kv_heads, -1, shape.dim)
        return lambda: scaled_dot_product_attention(packed, keys, values).view(
            -1, shape.heads, shape.dim
        )
    lines = query.view(shape.rows, shape.queries, shape.heads, shape.dim).transpose(1, 2)
    whole = shape.queries == shape.context
    first = shape.context - shape.queries
    place = torch.arange(shape.context, device=query.device)
    mask = None if whole else place <= first + place[: shape.queries, None]

    def attend() -> Any:
        out = scaled_dot_product_attention(
            lines, keys, values, attn_mask=mask, is_causal=whole, enable_gqa=True
        )
        return out.transpose(1, 2).flatten(0, 1)

    return attend


def by_flash_attention(pool: Any, inputs: Any, query: Any, shape: Shape) -> Callable[[], Any]:
    """The same bytes as blocks of 256 slots, the smallest that it takes."""
    import torch

    flash = importlib.import_module("flash_attn")
    slots = [part[0].unflatten(0, (-1, 256)) for part in pool.stored(0)]
    width = shape.context // 256
    tables = torch.arange(shape.rows * width, dtype=torch.int32, device=query.device)
    lengths = torch.full((shape.rows,), shape.context, dtype=torch.int32, device=query.device)
    lines = query.view(shape.rows, 1, shape.heads, shape.dim)
    return lambda: flash.flash_attn_with_kvcache(
        lines, *slots, cache_seqlens=lengths, block_table=tables.view(shape.rows, width)
    )


if __name__ == "__main__":
    main()
