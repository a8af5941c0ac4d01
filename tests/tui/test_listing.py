"""`kvrewind record --show` lists the events of some kinds, each with the decision behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvrewind.recorder.errors import BadInput
from kvrewind.recorder.events import (
    BlockAllocated,
    Envelope,
    PrefixLookedUp,
    RequestFinished,
    TransferStarted,
)
from kvrewind.replay.source import EnvelopeList
from kvrewind.tui.cli import run
from kvrewind.tui.presenters.listing import kinds_of, listed


def test_kinds_come_in_any_number_of_lists() -> None:
    assert kinds_of(["BlockCopied, BlockFreed", "RunEnded"]) == (
        "BlockCopied",
        "BlockFreed",
        "RunEnded",
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [("BlockCoppied", "did you mean BlockCopied"), ("xyz", "known are"), ("RunEnded,", "no event")],
)
def test_an_event_that_there_is_none_of_is_refused(text: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        kinds_of([text])


def test_a_row_says_where_what_and_which_decision() -> None:
    events = [
        BlockAllocated(block=3, request="r1", index=0, group=1, decision="reuse@1:r1:0:0"),
        PrefixLookedUp(
            request="r1", keys=("k", "l"), blocks=(7,), hit_tokens=16, missed_because="evicted"
        ),
        TransferStarted(
            transfer="load-2",
            direction="load",
            blocks=(4, 5),
            keys=("k", "l"),
            host_blocks=(0, 1),
            request="r1",
        ),
        TransferStarted(transfer="store-1", direction="store", blocks=(4,), keys=("k",)),
        RequestFinished(request="r1", reason="error", message="step 2 raised Broken"),
    ]
    source = EnvelopeList([Envelope(i, 2, 0, 0, event) for i, event in enumerate(events)])
    rows = list(listed(source, ["BlockAllocated", "PrefixLookedUp", "TransferStarted"]))
    assert rows[0] == ("2:0", "BlockAllocated", "b3@1 to r1 [0]", "reuse@1:r1:0:0")
    assert [row.what for row in rows[1:]] == [
        "r1 finds b7 (16 tokens hit; then evicted)",
        "load-2: h0 h1 into b4 b5 for r1",
        "store-1: b4",
    ]
    (finished,) = listed(source, ["RequestFinished"])
    assert finished.what == "r1 finishes (error: step 2 raised Broken)"


def test_record_lists_them_below_the_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["record", "--model", "symbolic", "--out", str(tmp_path / "run.kvtrace")]
    assert run([*command, "--show", "RequestPreempted", "--show", "RunEnded"]) == 0
    told = capsys.readouterr().out
    answers, events = told.split("position")
    assert "the passphrase is" in answers
    assert "is preempted: the pool is full" in events
    assert "RunEnded" in events
    assert "BlockAllocated" not in told


def test_a_slip_in_a_kind_is_told_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.kvtrace"
    assert run(["record", "--model", "symbolic", "--show", "RunEnd", "--out", str(path)]) == 2
    assert "did you mean RunEnded?" in capsys.readouterr().err
    assert not path.exists()
