"""What is handed over redacted tells nothing in clear, and can be worked with as before."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from kvrewind.engine.llm import SymbolicModel
from kvrewind.recorder.events import PiecesDefined, RequestAdded
from kvrewind.recorder.keyed_hash import RedactionKey
from kvrewind.recorder.reader import TraceReader
from kvrewind.recorder.redaction import is_redacted
from kvrewind.recorder.writer import TraceWriter
from kvrewind.tui.cli import run

SECRET = "the passphrase is zilgobexu . please remember tavimorqu ."
OTHER = "the passphrase is pondarifel . please remember tavimorqu ."


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "zilgobexu-prompts.jsonl"
    lines = [{"prompt": SECRET, "tenant": "acme", "passphrase": "zilgobexu"}, {"prompt": OTHER}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def record(prompts: Path, out: str, *options: str) -> Path:
    asked = ["record", "--model", "symbolic", "--prompts", str(prompts), "--out", out]
    assert run([*asked, "--block-size", "4", "--max-new-tokens", "8", *options]) == 0
    return Path(out)


def tells_tokens(content: bytes) -> bool:
    """Whether six of the prompt's tokens stand one after the other, in any width or as text."""
    tokens = SymbolicModel().encode(SECRET)
    runs = [tokens[i : i + 6] for i in range(len(tokens) - 5)]
    spelled = [comma.join(map(str, run)).encode() for run in runs for comma in (",", ", ")]
    packed = [
        b"".join(token.to_bytes(width, "little") for token in run)
        for run in runs
        for width in (1, 2, 4, 8)
        if max(run) < 1 << 8 * width
    ]
    return any(found in content for found in (*packed, *spelled))


def told_words(content: bytes) -> set[str]:
    """Pieces included: `zil` and `##go` tell as much as the word."""
    words = set(re.findall(r"\w{3,}", f"{SECRET} {OTHER}")) - {"the", "passphrase", "please"}
    return {word for word in words if word.encode() in content}


def all_bytes(paths: Iterable[Path]) -> bytes:
    return b"".join(path.read_bytes() for path in paths)


def test_a_trace_in_clear_tells(prompts: Path) -> None:
    """Else the tests below would prove nothing."""
    clear = record(prompts, "clear.kvtrace").read_bytes()
    assert tells_tokens(clear)
    assert told_words(clear)


def test_a_trace_redacted_afterwards_tells_nothing_in_clear(prompts: Path) -> None:
    clear = record(prompts, "clear.kvtrace")
    assert run(["redact", str(clear), "--out", "redacted.kvtrace"]) == 0
    content = all_bytes(Path.cwd().glob("redacted.kvtrace*"))
    assert not tells_tokens(content)
    assert not told_words(content)
    with TraceReader("redacted.kvtrace") as reader, TraceReader(clear) as before:
        assert is_redacted(reader.run)
        assert reader.complete
        assert [e.position for e in reader.envelopes()] == [e.position for e in before.envelopes()]
        added = next(e.event for e in reader.find(kinds=["RequestAdded"]))
        assert isinstance(added, RequestAdded)
        assert added.passphrase is None
        assert added.tenant == "acme"
        for envelope in reader.find(kinds=["PiecesDefined"]):
            assert envelope.event == PiecesDefined(tokens=(), pieces=())


def test_a_run_recorded_under_redaction_tells_nothing_in_clear(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(prompts, "clear.kvtrace")
    capsys.readouterr()
    record(prompts, "redacted.kvtrace", "--redact")
    content = all_bytes(Path.cwd().glob("redacted.kvtrace*")) + capsys.readouterr().out.encode()
    assert not tells_tokens(content)
    assert not told_words(content)
    assert b"acme" in content
    with TraceReader("redacted.kvtrace") as reader, TraceReader("clear.kvtrace") as before:
        assert is_redacted(reader.run)
        assert [e.position for e in reader.envelopes()] == [e.position for e in before.envelopes()]
    assert run(["replay", "redacted.kvtrace", "--verify"]) == 0
    assert run(["check", "redacted.kvtrace"]) == 0


def test_the_key_is_not_in_the_file(prompts: Path) -> None:
    Path("key").write_bytes(bytes(range(100, 132)))
    recorded = record(prompts, "redacted.kvtrace", "--redact-key", "key").read_bytes()
    for secret in (Path("key").read_bytes(), RedactionKey.read(Path("key")).secret):
        assert secret not in recorded
        assert secret.hex().encode() not in recorded
    assert b"key_id" in recorded


def test_a_key_that_can_be_guessed_is_refused(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("key").write_text("secret")
    asked = ["record", "--model", "symbolic", "--prompts", str(prompts), "--out", "a.kvtrace"]
    assert run([*asked, "--redact", "--redact-key", "key"]) == 2
    assert "at least 16 random bytes" in capsys.readouterr().err
    assert not Path("a.kvtrace").exists()


def test_names_are_hashed_when_asked(prompts: Path) -> None:
    clear = record(prompts, "clear.kvtrace")
    assert b"acme" in clear.read_bytes()
    assert run(["redact", str(clear), "--what", "all", "--out", "nameless.kvtrace"]) == 0
    assert b"acme" not in Path("nameless.kvtrace").read_bytes()
    assert run(["replay", "nameless.kvtrace", "--verify"]) == 0
    record(prompts, "live.kvtrace", "--redact=all")
    assert b"acme" not in Path("live.kvtrace").read_bytes()


def test_two_traces_redacted_with_one_key_have_the_same_hashes(prompts: Path) -> None:
    clear = record(prompts, "clear.kvtrace")
    Path("key").write_bytes(bytes(range(32)))
    for name in ("a", "b"):
        options = ["--redact-key", "key", "--out", f"{name}.kvtrace"]
        assert run(["redact", str(clear), *options]) == 0
    assert run(["redact", str(clear), "--out", "c.kvtrace"]) == 0
    a, b, c = (prompt_tokens(f"{name}.kvtrace") for name in "abc")
    assert a == b != c


def prompt_tokens(trace: str) -> list[tuple[int, ...]]:
    with TraceReader(trace) as reader:
        events = [envelope.event for envelope in reader.find(kinds=["RequestAdded"])]
    return [event.prompt_tokens for event in events if isinstance(event, RequestAdded)]


def test_nothing_is_redacted_twice_or_written_over(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clear = record(prompts, "clear.kvtrace")
    assert run(["redact", str(clear), "--out", "redacted.kvtrace"]) == 0
    before = Path("redacted.kvtrace").read_bytes()
    capsys.readouterr()
    assert run(["redact", str(clear), "--out", "redacted.kvtrace"]) == 2
    assert run(["redact", "redacted.kvtrace", "--out", "again.kvtrace"]) == 2
    assert "redacted already" in capsys.readouterr().err
    assert not Path("again.kvtrace").exists()
    assert Path("redacted.kvtrace").read_bytes() == before


def test_a_trace_with_one_rank_in_clear_is_neither_taken_for_redacted_nor_half_written(
    prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clear = record(prompts, "clear.kvtrace")
    redacted = record(prompts, "redacted.kvtrace", "--redact")
    with TraceReader(redacted) as first, TraceReader(clear) as second:
        count = first.count
        envelopes = [*first.envelopes(), *(e._replace(seq=e.seq + count, rank=1)
                                           for e in second.envelopes())]  # fmt: skip
    with TraceWriter("both.kvtrace") as writer:
        writer.write_envelopes(envelopes)
    capsys.readouterr()
    assert run(["export", "both.kvtrace", "--out", "both.jsonl"]) == 0
    assert "in clear" in capsys.readouterr().err
    assert run(["export", str(redacted), "--out", "redacted.jsonl"]) == 0
    assert "in clear" not in capsys.readouterr().err
    assert not tells_tokens(Path("redacted.jsonl").read_bytes())
    for command in ("redact", "bundle"):
        assert run([command, "both.kvtrace", "--out", "out"]) == 2
        assert "a rank of it" in capsys.readouterr().err
        assert not Path("out").exists()


def test_a_redacted_leak_is_checked_replayed_and_bisected_as_the_clear_one(
    trace_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    clear = str(trace_of("key-no-parent"))
    assert run(["redact", clear, "--out", "redacted.kvtrace"]) == 0
    assert run(["replay", "redacted.kvtrace", "--verify"]) == 0
    assert run(["check", "redacted.kvtrace"]) == 1
    capsys.readouterr()
    assert run(["check", clear, "--format", "json"]) == 1
    blamed = json.loads(capsys.readouterr().out)["findings"][0]["decision"]
    assert run(["bisect", "redacted.kvtrace", "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [decision["id"] for decision in found["decisions"]] == [blamed]
    assert found["agrees_with_provenance"]


def test_what_needs_the_tokens_says_so(
    trace_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["redact", str(trace_of("clean")), "--out", "redacted.kvtrace"]) == 0
    for command in (
        ["replay", "redacted.kvtrace", "--model", "canary"],
        ["bisect", "redacted.kvtrace", "--model", "canary"],
        ["replay", "redacted.kvtrace", "--verify=bits"],
    ):
        capsys.readouterr()
        assert run(command) == 2
        said = capsys.readouterr().err
        assert "redacted" in said
        assert said.count("\n") == 1


def test_answers_are_not_shown_in_hashes(
    trace_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["redact", str(trace_of("clean")), "--out", "redacted.kvtrace"]) == 0
    capsys.readouterr()
    assert run(["replay", "redacted.kvtrace", "--only", "r1"]) == 0
    assert "redacted tokens)" in capsys.readouterr().out
