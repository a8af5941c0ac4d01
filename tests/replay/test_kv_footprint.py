"""What a KV cache costs, against figures worked out by hand and against the pool itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import Trace
from kvrewind.recorder.events import RunStarted
from kvrewind.replay.kv_footprint import Footprint


def footprint(
    layers: int = 1,
    kv_heads: int = 1,
    head_dim: int = 1,
    dtype: str = "float16",
    block_size: int = 16,
    kv_dtype: str | None = None,
    **more: Any,
) -> Footprint:
    group = {"layers": list(range(layers)), "kv_heads": kv_heads, "head_dim": head_dim} | more
    return Footprint.of(header([group], dtype=dtype, block_size=block_size, kv_dtype=kv_dtype))


def header(groups: list[Any], kv_dtype: str | None = None, **more: Any) -> RunStarted:
    event = Trace().events[0][1]
    assert isinstance(event, RunStarted)
    config = {} if kv_dtype is None else {"kv_dtype": kv_dtype}
    return replace(event, **({"groups": groups, "config": config, "block_size": 16} | more))


def test_the_articles_llama_takes_1_gib_for_2048_tokens() -> None:
    llama = footprint(layers=32, kv_heads=32, head_dim=128)
    assert llama.bytes_per_token == 524_288
    assert llama.bytes_of(2048) == 1_073_741_824
    assert 16 * 1_073_741_824 == 17_179_869_184


def test_eight_kv_heads_take_a_quarter_of_thirty_two() -> None:
    assert footprint(layers=32, kv_heads=8, head_dim=128).bytes_of(2048) == 268_435_456


def test_one_kv_head_takes_a_thirty_second() -> None:
    assert footprint(layers=32, kv_heads=1, head_dim=128).bytes_of(2048) == 33_554_432


def test_gpt2_small_takes_37_7_mb_for_its_context() -> None:
    gpt2 = footprint(layers=12, kv_heads=12, head_dim=64)
    assert gpt2.bytes_of(1024) == 37_748_736
    assert 100 * 37_748_736 == 3_774_873_600


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "size"),
    [
        ("float32", None, 2 * 3 * (5 * 4) * 2),
        ("float32", "auto", 2 * 3 * (5 * 4) * 2),
        ("float32", "bfloat16", 2 * 3 * (5 * 2) * 2),
        ("torch.float16", "auto", 2 * 3 * (5 * 2) * 2),
        ("float16", "fp8_e4m3", 2 * 3 * 5 * 2),
        ("float16", "int8", 2 * 3 * (5 + 4) * 2),
        ("float16", "int4", 2 * 3 * (3 + 4) * 2),
        ("float16", "int8,int4", 3 * (5 + 4) * 2 + 3 * (3 + 4) * 2),
        ("float16", "auto, int4", 3 * (5 * 2) * 2 + 3 * (3 + 4) * 2),
    ],
)
def test_the_type_of_the_cache_counts_and_not_that_of_the_weights(
    dtype: str, kv_dtype: str | None, size: int
) -> None:
    of = footprint(layers=2, kv_heads=3, head_dim=5, dtype=dtype, kv_dtype=kv_dtype)
    assert of.bytes_per_token == size
    assert of.bytes_per_block == 16 * size


@pytest.mark.parametrize("kv_dtype", ["auto", "float16", "bfloat16", "int8", "int4"])
def test_the_tensors_of_the_pool_are_as_large_as_counted(kv_dtype: str) -> None:
    torch = pytest.importorskip("torch")
    from kvrewind.engine.attention.kv_store import make_store

    slots, heads, dims = 6, 3, (5, 8)
    stores = [
        make_store(kv_dtype, (slots, heads, dim), dtype=torch.float32, device=torch.device("cpu"))
        for dim in dims
    ]
    stored = sum(part.nbytes for store in stores for part in store.parts)
    counted = footprint(
        kv_heads=heads, head_dim=5, value_dim=8, dtype="float32", kv_dtype=kv_dtype
    ).bytes_per_token
    assert counted is not None and stored == slots * counted


def test_a_list_of_types_is_one_for_each_layer_whatever_its_group() -> None:
    groups = [
        {"layers": [1, 3], "kv_heads": 1, "head_dim": 8},
        {"layers": [0, 2], "kv_heads": 1, "head_dim": 8},
    ]
    of = Footprint.of(header(groups, kv_dtype="float32,int8,float32,float16"))
    assert [g.bytes_per_token for g in of.groups] == [2 * 12 + 2 * 16, 2 * 32 + 2 * 32]
    assert of.groups[0].dtypes == ("int8", "float16")
    assert of.bytes_per_token == 56 + 128


def test_values_narrower_than_keys_are_counted_as_such() -> None:
    assert footprint(kv_heads=2, head_dim=24, value_dim=16).bytes_per_token == 2 * (24 + 16) * 2


@pytest.mark.parametrize(
    ("window", "length", "tokens", "blocks"),
    [
        (None, 33, 33, 9),
        (8, 7, 7, 2),
        (8, 8, 8, 2),
        (8, 33, 8, 3),  # 1 + 4 + 3 where it begins in the middle of a block
        (9, 33, 9, 3),
        (10, 33, 10, 4),
        (1, 33, 1, 1),
    ],
)
def test_a_window_keeps_its_tokens_and_a_block_more(
    window: int | None, length: int, tokens: int, blocks: int
) -> None:
    of = footprint(head_dim=2, block_size=4, window=window)
    assert of.bytes_of(length) == tokens * 8
    assert of.blocks_of(length) == blocks
    assert of.block_bytes_of(length) == blocks * 32
    assert of.requests_in(17, length) == 17 // blocks


def test_the_group_with_the_longest_tables_says_how_many_requests_fit() -> None:
    groups = [
        {"layers": [0], "kv_heads": 1, "head_dim": 4},
        {"layers": [1, 2], "kv_heads": 1, "head_dim": 4, "window": 4},
    ]
    of = Footprint.of(header(groups, dtype="float32", block_size=4))
    assert of.bytes_per_token == 32 + 64
    assert of.bytes_of(10) == 10 * 32 + 4 * 64
    assert of.blocks_of(10) == 3 + 2
    assert of.block_bytes_of(10) == 3 * 128 + 2 * 256
    assert of.requests_in(8, 10) == 2


@pytest.mark.parametrize(
    ("groups", "more", "said"),
    [
        ([], {}, "lists no KV groups"),
        ([[3]], {}, "KV group 0 of the header is no map"),
        ([{"layers": [0], "kv_heads": 0, "head_dim": 4}], {}, "no usable kv_heads"),
        ([{"layers": 4, "kv_heads": 2, "head_dim": True}], {}, "no usable layers and head_dim"),
        ([{"layers": [0], "kv_heads": 2, "head_dim": 4, "value_dim": "4"}], {}, "usable value_dim"),
        ([{"layers": [0], "kv_heads": 2, "head_dim": 4}], {"dtype": "mxfp4"}, "'mxfp4'"),
        (
            [{"layers": [0], "kv_heads": 2, "head_dim": 4}],
            {"kv_dtype": "int8,int8"},
            "2 data types, and the header 1 layers",
        ),
        ([{"layers": [[0]], "kv_heads": 2, "head_dim": 4}], {}, "no usable layers"),
    ],
)
def test_a_header_that_says_too_little_leaves_bytes_unknown(
    groups: list[Any], more: dict[str, Any], said: str
) -> None:
    of = Footprint.of(header(groups, **more))
    assert (of.bytes_per_token, of.bytes_of(8), of.block_bytes_of(8)) == (None, None, None)
    assert said in " ".join(of.unknown)
    assert of.blocks_of(33) == 3


@pytest.mark.parametrize("block_size", [0, -4, 1 << 40])
def test_a_block_of_nonsense_size_is_not_counted(block_size: int) -> None:
    of = footprint(block_size=block_size)
    assert of.bytes_per_token == 4
    assert (of.bytes_per_block, of.blocks_of(8), of.requests_in(8, 8)) == (None, None, None)
    assert str(block_size) in of.unknown[0]
