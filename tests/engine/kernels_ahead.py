"""Compile the kernels to cubins without a GPU, and print what ptxas says of each of them.

    python kernels_ahead.py [--all] 80 90 100        one JSON object a line

A process of its own, since kernels are either interpreted or compiled.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from kvrewind.engine.attention.kernels import decode, digest, prefill, probe, scrub, slot_write
from kvrewind.engine.attention.kernels.tiles import compute_type, keys_in_a_tile, launch, padded
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HEADS, KV_HEADS = 32, 8
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
ALIGNED = [["tt.divisibility", 16]]


class Build(NamedTuple):
    """A kernel with the types and constants of one use."""

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 3


def stored(kv_dtype: str, dtype: torch.dtype) -> tuple[str, str | None, int | None]:
    """Types of codes and of scales, and the bits."""
    if kv_dtype == "auto":
        return POINTERS[dtype], None, None
    return "*i8", "*fp32", {"int8": 8, "int4": 4}[kv_dtype]


def attention(
    dim: int, block_size: int, dtype: torch.dtype, kv_dtype: str, window: int | None, **scoring: Any
) -> Iterator[Build]:
    codes, scales, bits = stored(kv_dtype, dtype)
    ints = dict.fromkeys(
        ("block_tables", "tokens", "tables", "seq_lens", "counts", "positions", "owners"), "*i32"
    )
    types = ints | {
        "query": POINTERS[dtype], "out": POINTERS[dtype],
        "key_codes": codes, "key_scales": scales, "value_codes": codes, "value_scales": scales,
        "found": "*fp32", "maxima": "*fp32", "sums": "*fp32", "mass": "*fp32",
        "sinks": POINTERS[dtype] if scoring.get("sinks") else None,
        "query_stride_token": "i32", "query_stride_head": "i32", "out_stride_token": "i32",
        "out_stride_head": "i32", "table_width": "i32", "num_splits": "i32", "num_owners": "i32",
        "scaling": "fp32",
    }  # fmt: skip
    constants = {
        "WINDOW": window, "SOFTCAP": scoring.get("softcap"), "DTYPE": compute_type(dtype),
        "NAN_SCRUBBED": scoring.get("nan_scrubbed", False), "HEADS": HEADS,
        "KV_HEADS": KV_HEADS, "GROUP": HEADS // KV_HEADS, "PADDED_GROUP": padded(HEADS // KV_HEADS),
        "DIM": dim, "PADDED_DIM": padded(dim), "VALUE_DIM": dim, "PADDED_VALUE_DIM": padded(dim),
        "PADDED_OWNERS": 32, "KEY_BITS": bits, "VALUE_BITS": bits, "BLOCK_SIZE": block_size,
        "SPLIT_SIZE": decode.SPLIT,
        "QUERIES": prefill.queries_in_a_tile(dtype, quantized=bits is not None),
    }  # fmt: skip
    keys = partial(keys_in_a_tile, dtype=dtype, bits=bits)
    warps = launch(dtype)["num_warps"]
    of_decode = constants | {"TILE_SIZE": keys(decode.TILE)}
    of_probe = constants | {"TILE_SIZE": keys(probe.TILE)}
    of_prefill = constants | {"TILE_SIZE": keys(prefill.TILE)}
    label = (
        f"dim {dim}, blocks of {block_size}, {str(dtype)[6:]}, kv {kv_dtype}, {window}, {scoring}"
    )
    yield Build(f"decode: {label}", decode._attend_splits, types, of_decode, warps)
    yield Build(f"prefill: {label}", prefill._attend_tiles, types, of_prefill, warps, num_stages=2)
    yield Build(f"join: {label}", decode._join_splits, types, of_decode, num_warps=1)
    yield Build(f"probe: {label}", probe._sum_by_owner, types, of_probe, warps, num_stages=2)


def memory(dim: int, dtype: torch.dtype, kv_dtype: str) -> Iterator[Build]:
    codes, scales, bits = stored(kv_dtype, dtype)
    width = dim // 2 if bits == 4 else dim
    types = {
        "vectors": POINTERS[dtype], "slots": "*i64", "codes": codes, "scales": scales,
        "stride_token": "i32", "stride_head": "i32", "stride_entry": "i32",
        "part": codes, "blocks": "*i64", "elements": "i32", "value": "fp32",
        "flat": "*u8", "sums": "*i64", "num_bytes": "i32", "place": "i32", "num_chunks": "i32",
    }  # fmt: skip
    constants = {
        "HEADS": KV_HEADS, "DIM": dim, "WIDTH": width, "PADDED": padded(width), "BITS": bits,
        "LEVELS": 7 if bits == 4 else 127,
    }  # fmt: skip
    label = f"dim {dim}, {str(dtype)[6:]}, kv {kv_dtype}"
    yield Build(f"write: {label}", slot_write._write_slots, types, constants, num_warps=1)
    yield Build(f"scrub: {label}", scrub._fill_blocks, types, {"CHUNK_SIZE": scrub.CHUNK})
    yield Build(f"digest: {label}", digest._add_words, types, {"CHUNK_SIZE": digest.CHUNK})


def builds() -> Iterator[Build]:
    """Head dims and block sizes that models have, and each switch of the kernels at least once."""
    bfloat16, float16, float32 = torch.bfloat16, torch.float16, torch.float32
    uses = (
        attention(64, 16, float32, "auto", 128, softcap=50.0, sinks=True),
        attention(64, 32, float16, "int8", None, softcap=50.0),
        attention(128, 16, bfloat16, "auto", None),
        attention(128, 32, float16, "auto", 4096, sinks=True, nan_scrubbed=True),
    )
    for number, use in enumerate(uses):
        decode_build, prefill_build, *others = use
        yield from (decode_build, prefill_build)
        yield from others if number == 2 else ()
    yield next(attention(128, 16, bfloat16, "int4", 128))
    yield next(attention(128, 32, float32, "int8", None, softcap=50.0))
    yield next(memory(128, bfloat16, "auto"))
    yield next(memory(128, bfloat16, "int4"))
    yield from memory(128, bfloat16, "int8")


def all_builds() -> Iterator[Build]:
    """Every head dim with every block size, type and precision: minutes."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for kv_dtype in ("auto", "int8", "int4"):
            for dim in (64, 128):
                yield from memory(dim, dtype, kv_dtype)
                for block_size in (16, 32):
                    yield from attention(dim, block_size, dtype, kv_dtype, None)
                    yield from attention(
                        dim, block_size, dtype, kv_dtype, 128,
                        softcap=50.0, sinks=True, nan_scrubbed=True,
                    )  # fmt: skip


def compiled(build: Build, capability: int) -> dict[str, Any]:
    names = build.kernel.arg_names
    constants = {name: build.constants[name] for name in names if name in build.constants}
    signature: dict[str, str] = {}
    for name in names:
        kind = None if name in constants else build.types[name]
        signature[name] = kind or "constexpr"
        if kind is None:
            constants.setdefault(name, None)
    attrs = {
        (place,): ALIGNED
        for place, name in enumerate(names)
        if signature[name].startswith("*") or "stride" in name
    }
    source = ASTSource(build.kernel, signature, constants, attrs)
    options = {
        "num_warps": build.num_warps, "num_stages": build.num_stages, "enable_fp_fusion": True
    }  # fmt: skip
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return {
        "name": build.name,
        "capability": capability,
        "cubin_bytes": len(kernel.asm["cubin"]),
        "shared_bytes": kernel.metadata.shared,
        **resources(said.getvalue()),
    }


def resources(said: str) -> dict[str, int]:
    """Of `ptxas -v`: registers of a thread, bytes that it stores because they don't suffice."""
    (registers,) = re.findall(r"Used (\d+) registers", said)
    (spilled,) = re.findall(r"(\d+) bytes spill stores", said)
    return {"registers": int(registers), "spilled": int(spilled)}


def main() -> None:
    knobs.nvidia.dump_ptxas_log = True
    knobs.compilation.always_compile = True  # what is cached was compiled in silence
    chosen = all_builds if "--all" in sys.argv else builds
    for capability in [int(argument) for argument in sys.argv[1:] if argument.isdigit()]:
        for build in chosen():
            print(json.dumps(compiled(build, capability)), flush=True)


if __name__ == "__main__":
    main()
