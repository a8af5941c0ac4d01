"""A trace that is not whole is refused, or read as far as it can be trusted, in words that say
which; whatever was done to the file, nobody sees a stack trace."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from kvrewind.recorder.errors import KvrewindError
from kvrewind.recorder.jsonl import read_jsonl
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.writer import TraceWriter
from kvrewind.tui.app import KvrewindApp
from kvrewind.tui.cli import run
from kvrewind.tui.commands.check import check
from kvrewind.tui.commands.info import info
from live import LEAK

COMMANDS = ("info", "check", "replay", "export", "tail", "bisect")

FIRST_OF_12 = "seq = (select min(seq) from events where step = 12)"
SAMPLED_IN_12 = "kind = 'TokensSampled' and step = 12"

Damage = tuple[str, ...]

NO_END: Damage = (
    "delete from header where key = 'complete'",
    "delete from steps where step >= 12",
    "delete from events where step >= 12",
)
CHANGED: Damage = (
    "update events set block = 21 where seq = "
    "(select min(seq) from events where step = 12 and block is not null)",
)
LOST: Damage = (f"delete from events where {FIRST_OF_12}",)
MOVED: Damage = (f"update events set seq = seq + 100000 where {FIRST_OF_12}",)
LATE: Damage = (f"update events set step = 3 where {FIRST_OF_12}",)
DIGEST: Damage = ("update steps set digest = x'00' where step = 12",)
NOT_MSGPACK: Damage = (f"update events set payload = x'c1' where {SAMPLED_IN_12}",)
NO_KIND: Damage = (f"update events set kind = 'Nonsense' where {SAMPLED_IN_12}",)
NO_NAME: Damage = ("delete from names where id = (select max(id) from names)",)
NO_BASE: Damage = (
    "delete from events where kind = 'InputsBuilt' and step = "
    "(select min(step) from events where kind = 'InputsBuilt')",
)

BROKEN = "the chain of digests is broken at step"

CUT = [  # what was done, until which step it is read, and what is said
    (NO_END, 11, "no end record: the run was not recorded to its end"),
    (NOT_MSGPACK, 11, "12:285 is no event (TokensSampled: the stored payload is not msgpack)"),
    (NO_KIND, 11, "12:285 is no event (Nonsense: no such kind of event"),
    (NO_NAME, 19, "20:478 is no event (StepScheduled: the stored payload is damaged"),
    (NO_BASE, 0, "2:58 is no event (InputsBuilt: the stored payload is damaged"),
]
CUT_IDS = ["no end", "not msgpack", "no such kind", "a name is lost", "a table's base is lost"]

DOUBTED = [  # what was done, and what is said of a trace that is read to its end
    (CHANGED, f"{BROKEN} 12"),
    (LATE, f"{BROKEN} 12"),
    (DIGEST, f"{BROKEN} 12"),
    (MOVED, f"{BROKEN} 12"),
    (LOST, "the end record counts 655 events and the file holds 654"),
]
DOUBTED_IDS = ["an event was changed", "its step", "a digest", "its seq", "an event is lost"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run.kvtrace"
    run(["record", "--model", "symbolic", "--out", str(path)])
    return path


@pytest.fixture
def damaged(whole: Path, tmp_path: Path) -> Callable[[Damage], Path]:
    def make(statements: Damage) -> Path:
        path = tmp_path / "run.kvtrace"
        shutil.copyfile(whole, path)
        connection = sqlite3.connect(path)
        changed = sum(connection.execute(statement).rowcount for statement in statements)
        connection.commit()
        connection.close()
        assert changed  # or it is no damage
        return path

    return make


def told(capsys, *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return status, captured.out, captured.err


def flat(text: str) -> str:
    """Without the line breaks of a table."""
    return " ".join(text.split())


@pytest.mark.parametrize("command", [*COMMANDS, "open"])
def test_a_newer_format_is_refused(command: str, whole: Path, tmp_path: Path, capsys) -> None:
    path = tmp_path / "run.kvtrace"
    shutil.copyfile(whole, path)
    connection = sqlite3.connect(path)
    connection.execute("pragma user_version = 9")
    connection.close()
    status, out, err = told(capsys, command, path)
    assert (status, out) == (2, "")
    assert "has trace format 9 and this kvrewind reads up to" in err
    assert "upgrade kvrewind" in err


@pytest.mark.parametrize(("statements", "step", "said"), CUT, ids=CUT_IDS)
def test_a_trace_is_read_up_to_what_cannot_be_trusted(
    statements: Damage, step: int, said: str, damaged, capsys
) -> None:
    path = damaged(statements)
    shown = {command: told(capsys, command, path) for command in COMMANDS}
    statuses = {command: status for command, (status, _, _) in shown.items()}
    assert statuses == {
        "info": 0, "check": 4, "replay": 0, "export": 0, "tail": 4,
        "bisect": 4 if step else statuses["bisect"],
    }  # fmt: skip
    assert statuses["bisect"] in (0, 2, 4)
    assert said in flat(shown["info"][1])
    assert "whole no" in flat(shown["info"][1])
    assert "incomplete" in shown["check"][1]
    assert "as far as it was recorded" in shown["replay"][1]
    lines = shown["export"][1].splitlines()
    assert f'"step":{step},' in lines[-1]
    assert shown["tail"][1].splitlines()[-1].split()[1] == str(step)
    for command in ("check", "replay", "export", "bisect"):
        assert said in shown[command][2]


@pytest.mark.parametrize(("statements", "said"), DOUBTED, ids=DOUBTED_IDS)
def test_a_trace_that_was_tampered_with_is_never_clean(
    statements: Damage, said: str, damaged, capsys
) -> None:
    path = damaged(statements)
    assert said in flat(told(capsys, "info", path)[1])
    for command in ("check", "replay", "export", "tail"):
        status, out, err = told(capsys, command, path)
        assert said in err
        assert "clean" not in out
        assert status in {"check": (1, 4), "replay": (0, 3), "export": (0,), "tail": (4,)}[command]


@pytest.mark.parametrize(
    ("statements", "said"),
    [(each[0], each[-1]) for each in (*CUT, *DOUBTED)],
    ids=[*CUT_IDS, *DOUBTED_IDS],
)
async def test_the_app_shows_what_there_is(statements: Damage, said: str, damaged) -> None:
    with TraceReader(damaged(statements)) as reader:
        app = KvrewindApp(reader)
        async with app.run_test(size=(250, 40)) as pilot:
            for _ in range(400):
                if app.session.problems:
                    break
                await pilot.pause(0.05)
            assert any(said in problem for problem in app.session.problems)
            await pilot.press("end", "p", "P", "home", "n", "N", "f", "c")
            assert app.session.state is not None


def test_events_out_of_order_in_json_lines_are_named(tmp_path: Path, capsys) -> None:
    lines = LEAK.read_text().splitlines()
    swapped = tmp_path / "swapped.jsonl"
    swapped.write_text("\n".join([*lines[:20], lines[21], lines[20], *lines[22:]]))
    status, _, err = told(capsys, "import", swapped, "--out", tmp_path / "out.kvtrace")
    assert status == 2
    assert "swapped.jsonl, line 22: seq 20 is not above 21" in err
    assert "sort the lines by seq" in err
    assert not (tmp_path / "out.kvtrace").exists()


def test_steps_out_of_order_are_judged_and_not_called_clean(tmp_path: Path, capsys) -> None:
    """An engine that overlaps steps may log an event of a lower step; it can't go back in time."""
    events = list(read_jsonl(LEAK))
    late = [e._replace(step=40) if 100 <= e.seq < 110 else e for e in events]
    path = tmp_path / "late.kvtrace"
    with TraceWriter(path) as writer:
        writer.write_envelopes(late)
    status, out, _ = told(capsys, "check", path)
    assert status in (1, 4)
    assert "clean" not in out
    for command in ("info", "export", "tail"):
        assert told(capsys, command, path)[0] == 0


# --- anything at all ------------------------------------------------------------------------------

TRIALS = 40
"""Two thousand were tried by hand; here a few of them guard what they taught."""


def spoilt(data: bytes, chance: random.Random) -> bytes:
    spoilt = bytearray(data)
    at = chance.randrange(len(spoilt))
    match chance.choice(("flip", "cut", "block", "header", "swap", "insert")):
        case "flip":
            for _ in range(chance.choice((1, 20))):
                spoilt[chance.randrange(len(spoilt))] ^= 1 << chance.randrange(8)
        case "cut":
            del spoilt[at:]
        case "block":
            size = len(spoilt[at : at + 4096])
            spoilt[at : at + size] = chance.randbytes(size)
        case "header":
            spoilt[chance.randrange(100)] = chance.randrange(256)
        case "swap":
            page, other = (chance.randrange(len(spoilt) // 4096) * 4096 for _ in range(2))
            spoilt[page : page + 4096], spoilt[other : other + 4096] = (
                spoilt[other : other + 4096],
                spoilt[page : page + 4096],
            )
        case _:
            spoilt[at:at] = chance.randbytes(chance.choice((1, 4096)))
    return bytes(spoilt)


def test_no_damage_gives_anything_but_our_errors(tmp_path: Path, capsys) -> None:
    path = tmp_path / "run.kvtrace"
    with TraceWriter(path) as writer:
        writer.write_envelopes(e for e in read_jsonl(LEAK) if e.step <= 6)
    data, chance, outcomes = path.read_bytes(), random.Random(7), set()
    for _ in range(TRIALS):
        path.write_bytes(spoilt(data, chance))
        for command in (info, check):
            try:
                outcomes.add(command(path))
            except KvrewindError as error:
                assert str(path) in str(error)
                outcomes.add("refused")
    assert outcomes >= {0, 1, "refused"}
