"""The memory account in words: figures for people, and nothing where nothing is known."""

from __future__ import annotations

from typing import Any

import pytest
from kvrewind.recorder.events import (
    BlockAllocated,
    Envelope,
    Event,
    RequestAdded,
    RunStarted,
    SlotsWritten,
    StepCompleted,
)
from kvrewind.replay.memory_account import MemoryAccount
from kvrewind.replay.memory_report import Ask, Memory
from kvrewind.tui.presenters.memory import contiguous, costs, fragmentation, percent, size, use

GPT2 = {"layers": list(range(12)), "kv_heads": 12, "head_dim": 64}
WINDOWED = {"layers": [12], "kv_heads": 1, "head_dim": 64, "window": 128}


def memory(*events: Event, groups: tuple[Any, ...] = (GPT2,), ask: Ask = Ask(), **config: Any):  # noqa: B008
    header = RunStarted(
        engine="by-hand",
        engine_version="1",
        model="gpt2",
        dtype="float16",
        device="cpu",
        num_blocks=64,
        block_size=16,
        groups=list(groups),
        sentinel_blocks=(),
        wall_clock="2026-01-01T00:00:00",
        config=config,
        versions={},
    )
    account = MemoryAccount()
    for seq, event in enumerate((header, *events)):
        account.see(Envelope(seq, min(seq, 1), seq, 0, event))
    return account.report(ask)


def one_step(**more: Any) -> Memory:
    """A request of 10 tokens in one block, six slots of which are free; it may come to 40."""
    return memory(
        RequestAdded(request="r", prompt_tokens=tuple(range(10)), max_new_tokens=30),
        BlockAllocated(block=3, request="r", index=0),
        SlotsWritten(
            write="prefill",
            requests=("r",) * 10,
            positions=tuple(range(10)),
            tokens=tuple(range(10)),
            slots=tuple(range(48, 58)),
        ),
        StepCompleted(),
        **more,
    )


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (36_864, "36.0 KiB"),
        (37_748_736, "36.0 MiB"),
        (1_073_741_824, "1.00 GiB"),
        (17_179_869_184, "16.0 GiB"),
        (2**70, "1,048,576.0 PiB"),
        (None, "unknown"),
    ],
)
def test_bytes_are_told_in_units_of_1024(count: int | None, told: str) -> None:
    assert size(count) == told


def test_shares_are_told_in_percent() -> None:
    assert (percent(0.12345), percent(None)) == ("12.3 %", "unknown")


def test_what_a_token_takes_shows_its_formula() -> None:
    told = dict(costs(memory(ask=Ask(requests=100, length=1024))))
    assert told["a token"] == "36.0 KiB: 12 layers x 12 KV heads x (64 + 64) numbers, float16"
    assert told["a block"] == "576.0 KiB: 16 tokens"
    assert told["the pool"] == "36.0 MiB: 64 blocks, 1,024 tokens"
    assert told["a request"] == "of 1,024 tokens takes 36.0 MiB (64 blocks)"
    assert told["100 requests"] == (
        "of 1,024 tokens need 3.52 GiB (3.52 GiB in 6,400 blocks); room for 1"
    )


def test_scales_and_windows_are_named() -> None:
    told = dict(costs(memory(groups=(GPT2, WINDOWED), kv_dtype="int8")))
    assert told["a token, group 0"].endswith("numbers, int8 and 4-byte scales")
    assert told["a token, group 1"].endswith("scales, the last 128 of a request")
    assert told["a token"] == "19.3 KiB in all KV groups"
    assert told["a block"].endswith("16 tokens, one of each of 2 KV groups")
    assert told["the pool"].endswith("64 blocks a KV group, 1,024 tokens")


def test_a_run_is_told_by_what_it_held_and_what_contiguous_memory_would_have_held() -> None:
    run = one_step(ask=Ask(context=1024))
    used, compared = use(run), contiguous(run)
    assert used is not None and compared is not None
    assert used.title == "the pool over 1 step"
    assert used.rows[0] == (
        "held by requests", "1.0", "576.0 KiB", "1.6 %", "1", "576.0 KiB", "1.6 %", "1",
    )  # fmt: skip
    assert used.rows[2] == (
        "free", "63.0", "35.4 MiB", "98.4 %", "63", "at least", "", "1",
    )  # fmt: skip
    assert fragmentation(run) == (
        "internal fragmentation: 37.5 % of what is held is not written (216.0 KiB, mean)"
    )
    assert compared.rows == (
        ("in blocks, as it was", "576.0 KiB", "576.0 KiB", "37.5 %", "1.0"),
        ("prompt + max_new_tokens", "1.41 MiB", "1.41 MiB", "75.0 %", "2.5"),
        ("the context, 1,024 tokens", "36.0 MiB", "36.0 MiB", "99.0 %", "64.0"),
    )


def test_without_bytes_blocks_and_tokens_are_told() -> None:
    run = one_step(groups=(GPT2 | {"kv_heads": 0},))
    used, compared = use(run), contiguous(run)
    told = dict(costs(run))
    assert told["a token"] == "unknown"
    assert told["the pool"] == "64 blocks, 1,024 tokens; 63 of 64 never used"
    assert told["a request"] == "of 10 tokens takes 1 block"
    assert told["1 request"] == "of 10 tokens need 1 block; room for 64"
    assert used is not None and compared is not None
    assert used.rows[0][:4] == ("held by requests", "1.0", "", "1.6 %")
    assert (fragmentation(run) or "").endswith(
        "37.5 % of what is held is not written (6 slots, mean)"
    )
    assert [row[1:3] for row in compared.rows] == [("1 block", "1 block"), ("40 tokens",) * 2]


def test_of_a_run_without_steps_no_use_is_told() -> None:
    run = memory()
    assert (use(run), fragmentation(run), contiguous(run)) == (None, None, None)
