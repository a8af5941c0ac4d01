"""A redacted event holds no token and no text, and is equal to another where the clear ones are."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvrewind.recorder import events as e
from kvrewind.recorder.fields import FieldSpec, fields_of
from kvrewind.recorder.keyed_hash import BadKeyFile, KeyedHashes, RedactionKey
from kvrewind.recorder.memory import MemorySink
from kvrewind.recorder.redacted_values import rough
from kvrewind.recorder.redaction import (
    LABEL,
    AlreadyRedacted,
    RedactingSink,
    Redactor,
    is_redacted,
    key_id,
)

KEY = RedactionKey(bytes(range(32)))
TOKEN = 7_234_561
WORD = "hunter2"
TEXT = f"the passphrase is {WORD}"

MAY_STAY = {
    # names by which a finding can be told to whom it concerns
    "request", "requests", "parent", "tenant", "session", "adapter", "external_id", "decision",
    # what the engine says of itself
    "engine", "engine_version", "model_digest", "tokenizer_digest", "dtype", "device",
    "wall_clock", "about", "why", "epoch", "buffer", "stamp", "transfer", "read", "reason",
    "missed_because", "versions", "config", "model",
}  # fmt: skip
NUMBERS_THAT_STAY = {
    "num_blocks", "block_size", "seed", "max_new_tokens", "priority", "tokens_kept", "hit_tokens",
    "block", "index", "ref_count", "group", "source", "destination", "slots", "stride", "window",
    "first", "accepted", "layer", "first_seq", "count", "sentinel_blocks", "blocks", "computed",
    "scheduled", "query_lens", "seq_lens", "positions", "slot_mapping", "layers", "rows",
    "top_slots", "host_blocks", "groups", "fill", "block_tables", "read", "config",
    "versions",
}  # fmt: skip

_VALUES: dict[str, Any] = {
    "int": TOKEN, "float": float(TOKEN), "bool": True, "str": WORD, "bytes": b"\x01",
    "scalar": WORD, "list": [TOKEN, WORD], "map": {"stop": WORD, "bias": {"a": [TOKEN, WORD]}},
    "any": {"key": WORD, "tokens": TEXT}, "ints": (TOKEN, TOKEN), "floats": (float(TOKEN),),
    "names": (WORD,), "rows": (WORD, None), "scalars": (WORD, TOKEN), "table": ((TOKEN,),),
}  # fmt: skip


def telling(cls: type[e.Event]) -> e.Event:
    """An event that tells a token or a word in every field."""
    return cls(**{spec.name: _value(spec) for spec in fields_of(cls)})


def _value(spec: FieldSpec) -> Any:
    if spec.words is None:
        return _VALUES[spec.shape]
    return spec.words[:1] if spec.shape == "words" else spec.words[0]


def told(value: Any) -> str:
    return repr(value)


@pytest.mark.parametrize("cls", e.EVENTS, ids=lambda cls: cls.__name__)
def test_no_field_of_any_event_tells_a_token_or_a_word(cls: type[e.Event]) -> None:
    clear = telling(cls)
    redacted = Redactor.keyed(KEY).redact(clear)
    for spec in fields_of(cls):
        before, after = (told(getattr(event, spec.name)) for event in (clear, redacted))
        is_count = spec.shape == "int" and spec.name == "tokens"  # of a fork
        if str(TOKEN) in before and spec.name not in NUMBERS_THAT_STAY and not is_count:
            assert str(TOKEN) not in after, spec.name
        if WORD in before and spec.name not in MAY_STAY:
            assert WORD not in after, spec.name
    sink = MemorySink()
    sink.emit(redacted, 0)
    assert sink.step_digests()  # it can be stored


@pytest.mark.parametrize("cls", e.EVENTS, ids=lambda cls: cls.__name__)
def test_keyed_names_tell_nobody(cls: type[e.Event]) -> None:
    redacted = Redactor.keyed(KEY, names="keyed").redact(telling(cls))
    for name in ("request", "requests", "parent", "tenant", "session", "adapter", "external_id"):
        assert WORD not in told(getattr(redacted, name, None)), name


def test_a_field_that_nobody_thought_of_cannot_be_redacted() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class PromptSeen(e.Event):
        prompt: str

    with pytest.raises(TypeError, match=r"PromptSeen\.prompt"):
        Redactor.keyed(KEY).redact(PromptSeen(prompt=TEXT))


def test_fields_that_we_do_not_know_are_left_out() -> None:
    redacted = Redactor.keyed(KEY).redact(e.StepDispatched(unknown={"prompt": TEXT}))
    assert redacted == e.StepDispatched()


@given(st.lists(st.integers(0, 200_000), min_size=2, max_size=50))
def test_tokens_are_equal_where_they_were(tokens: list[int]) -> None:
    added = e.RequestAdded(request="r", prompt_tokens=tuple(tokens), max_new_tokens=1)
    hashed = Redactor.keyed(KEY).redact(added).prompt_tokens
    assert [a == b for a in tokens for b in tokens] == [a == b for a in hashed for b in hashed]
    assert all(0 < token < 1 << 63 for token in hashed)
    assert not set(tokens) & set(hashed)


def test_no_token_stays_no_token() -> None:
    written = e.SlotsWritten(write="decode", requests=("r",), positions=(0,), tokens=(-1,),
                             slots=(3,))  # fmt: skip
    assert Redactor.keyed(KEY).redact(written).tokens == (-1,)


def test_the_same_key_is_needed_for_the_same_hashes() -> None:
    one, same, other = (KeyedHashes(key) for key in (KEY, KEY, RedactionKey.random()))
    assert one.tokens((1, 2)) == same.tokens((1, 2)) != other.tokens((1, 2))
    assert one.id == same.id != other.id
    assert one.scalar("key", "a") != one.scalar("digest", "a")
    assert one.scalar("key", "5") != one.scalar("key", 5)


def test_a_key_has_one_hash_wherever_it_stands() -> None:
    redact = Redactor.keyed(KEY).redact
    block = redact(e.BlockRegistered(block=1, key="k", parent_key="p", tokens=(5, 6)))
    child = redact(e.BlockRegistered(block=2, key="l", parent_key="k", tokens=(7, 8)))
    shared = redact(e.BlockShared(block=1, request="r", index=0, ref_count=2, key="k"))
    asked = redact(e.PrefixLookedUp(request="r", keys=("k", "z"), blocks=(1,), hit_tokens=2))
    moved = redact(e.TransferStarted(transfer="t", direction="store", blocks=(1,), keys=("k",)))
    decided = redact(
        e.DecisionMade(decision="share:r:0:0", about="share", choice={"block": 1, "key": "k"})
    )
    assert block.key not in ("k", block.parent_key)
    assert {child.parent_key, shared.key, asked.keys[0], moved.keys[0], decided.choice["key"]} == {
        block.key
    }


def test_what_was_decided_stays() -> None:
    redact = Redactor.keyed(KEY).redact
    for about, choice in (("scrub", "nan"), ("copy", 3), ("admit", True),
                          ("trim", {"index": 1, "kept": 7}),
                          ("replay", {"buffer": "b0", "stamp": 4, "stride": 8})):  # fmt: skip
        decided = e.DecisionMade(decision=f"{about}:r:0:0", about=about, choice=choice)
        assert redact(decided) == decided


def test_the_header_says_that_it_is_redacted_and_not_where_anything_lies() -> None:
    header = _header(
        model="/home/alice/models/tiny",
        config={"reuse": "first-freed", "exact": True, "command": "serve --prompt 'hello there'",
                "prompts": "alice.txt", "api_key": "sk-12345", "log": {"dir": "logs"},
                "prompt_token_ids": [5], "max_num_batched_tokens": 64},
    )  # fmt: skip
    redacted = Redactor.keyed(KEY).redact(header)
    label = redacted.config.pop(LABEL)
    assert redacted.model == "tiny"
    assert redacted.config == {
        "reuse": "first-freed", "exact": True, "command": "redacted", "prompts": "redacted",
        "api_key": "redacted", "log": {"dir": "redacted"}, "prompt_token_ids": "redacted",
        "max_num_batched_tokens": 64,
    }  # fmt: skip
    assert label == {
        "tokens": "blake2b keyed, 63 bits", "names": "clear", "key_id": KeyedHashes(KEY).id,
    }  # fmt: skip
    assert not is_redacted(header)
    assert not is_redacted(None)


def test_a_redacted_header_is_known_as_such_and_not_redacted_again() -> None:
    redactor = Redactor.keyed(KEY)
    redacted = redactor.redact(_header())
    assert is_redacted(redacted)
    assert key_id(redacted) == KeyedHashes(KEY).id
    with pytest.raises(AlreadyRedacted, match="already"):
        redactor.redact(redacted)


def test_an_image_or_a_salt_is_as_personal_as_a_token() -> None:
    redact = Redactor.keyed(KEY).redact
    added = redact(e.RequestAdded(request="r", prompt_tokens=(1,), max_new_tokens=1,
                                  extra_keys=[[16, "image"], "salt"]))  # fmt: skip
    block = redact(e.BlockRegistered(block=1, key="k", tokens=(1,), extra_keys=[[16, "image"]]))
    assert added.extra_keys is not None
    assert added.extra_keys[1:] == block.extra_keys
    assert "salt" not in told(added) and "image" not in told(added)


def test_settings_of_a_request_stay_apart_and_stop_words_are_hashed() -> None:
    def sampling(**settings: Any) -> dict[str, Any] | None:
        added = e.RequestAdded(request="r", prompt_tokens=(1,), max_new_tokens=1, sampling=settings)
        return Redactor.keyed(KEY).redact(added).sampling

    assert sampling(temperature=0.5, ignore_eos=True) == {"temperature": 0.5, "ignore_eos": True}
    assert WORD not in told(sampling(stop=[WORD], bad_token_id=TOKEN))
    assert str(TOKEN) not in told(sampling(stop=[WORD], bad_token_id=TOKEN))
    assert sampling(stop=["a"]) == sampling(stop=["a"]) != sampling(stop=["b"])


def test_names_of_further_samples_go_with_their_parents() -> None:
    redact = Redactor.keyed(KEY, names="keyed").redact
    added = [
        redact(e.RequestAdded(request=name, prompt_tokens=(1,), max_new_tokens=1, parent=parent))
        for name, parent in (("alice", None), ("alice/1", "alice"))
    ]
    assert added[1].request == f"{added[0].request}/1"
    assert added[1].parent == added[0].request
    freed = redact(e.BlockFreed(block=1, cached=False, decision="free:alice/1:0:2"))
    assert freed.decision == f"free:{added[1].request}:0:2"


@given(st.floats(0.001, 1e4), st.sampled_from([0.01, 0.05, 0.1, 0.2, 1.0, 3.0]))
def test_a_rough_margin_is_on_the_same_side_of_a_threshold(margin: float, limit: float) -> None:
    assert (rough(Redactor.keyed(KEY), margin) < limit) == (margin < limit)


def test_a_margin_tells_one_digit() -> None:
    sampled = e.TokensSampled(requests=("r",), tokens=(5,), positions=(1,), rows=(0,),
                              logprobs=(-0.123456,), margins=(0.0987654,))  # fmt: skip
    redacted = Redactor.keyed(KEY).redact(sampled)
    assert redacted.margins == (0.09,)
    assert redacted.logprobs is None


def test_the_sink_behind_hears_nothing_in_clear() -> None:
    behind = MemorySink()
    sink = RedactingSink(behind, Redactor.keyed(KEY))
    sink.emit(e.PiecesDefined(tokens=(1, 2), pieces=("hunter", "##2")), 1)
    sink.emit(e.DraftVerified(request="r", proposed=(1, 2), first=3, accepted=1), 1)
    pieces, verified = (envelope.event for envelope in behind.envelopes)
    assert pieces == e.PiecesDefined(tokens=(), pieces=())
    assert isinstance(verified, e.DraftVerified)
    assert verified.proposed == KeyedHashes(KEY).tokens((1, 2))


def test_a_key_file_must_not_be_guessable(tmp_path: Path) -> None:
    good, short, zeros = (tmp_path / name for name in ("good", "short", "zeros"))
    good.write_bytes(bytes(range(40)))
    short.write_bytes(b"secret")
    zeros.write_bytes(bytes(64))
    assert RedactionKey.read(good) == RedactionKey.read(good)
    assert "secret" not in repr(RedactionKey.read(good))
    for bad in (short, zeros, tmp_path / "absent", tmp_path):
        with pytest.raises(BadKeyFile, match="head -c 32") as raised:
            RedactionKey.read(bad)
        assert str(bad) in str(raised.value)


def _header(**changes: Any) -> e.RunStarted:
    given: dict[str, Any] = {
        "engine": "kvrewind", "engine_version": "2", "model": "symbolic", "dtype": "float32",
        "device": "cpu", "num_blocks": 4, "block_size": 2, "groups": [], "sentinel_blocks": (),
        "wall_clock": "2026-01-01T00:00:00", "config": {}, "versions": {"numpy": "2.0"},
    }  # fmt: skip
    return e.RunStarted(**given | changes)


def test_every_event_kind_was_walked() -> None:
    assert {f.name for cls in e.EVENTS for f in fields(cls)} >= MAY_STAY | NUMBERS_THAT_STAY
