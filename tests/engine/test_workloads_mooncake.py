"""A Mooncake trace gives requests whose tokens share what their hash ids share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.llm import SymbolicModel
from kvrewind.engine.prompts_file import BadPrompts, read_prompts
from kvrewind.engine.workloads.mooncake import HASHED_TOKENS, prompt_tokens
from kvrewind.engine.workloads.spec import PromptSpec
from kvrewind.engine.workloads.tokens import numbered_tokens, synthetic_tokens

FIRST_LINES_OF_THE_PUBLIC_TRACE = """\
{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]}
{"timestamp": 0, "input_length": 7319, "output_length": 490, "hash_ids": [0, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27]}
{"timestamp": 3052, "input_length": 7234, "output_length": 794, "hash_ids": [0, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41]}
{"timestamp": 3052, "input_length": 2287, "output_length": 316, "hash_ids": [0, 42, 43, 44, 45]}
"""  # noqa: E501


def line(**changed: Any) -> dict[str, Any]:
    whole = {"timestamp": 5, "input_length": 600, "output_length": 7, "hash_ids": [1, 2]}
    return whole | changed


def read(folder: Path, *lines: dict[str, Any]) -> tuple[PromptSpec, ...]:
    path = folder / "requests.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return read_prompts(path)


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def test_lines_of_the_public_trace_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(FIRST_LINES_OF_THE_PUBLIC_TRACE)
    specs = read_prompts(path)
    tokens = [spec.prompt_tokens or () for spec in specs]
    assert [len(t) for t in tokens] == [6755, 7319, 7234, 2287]
    assert [spec.max_new_tokens for spec in specs] == [500, 490, 794, 316]
    assert [spec.arrival_s for spec in specs] == [0, 0, 3.052, 3.052]
    assert all(spec.ignore_eos for spec in specs)
    assert common(tokens[0], tokens[1]) == HASHED_TOKENS


def test_arrivals_count_from_the_first_request_in_the_order_of_time(tmp_path: Path) -> None:
    """A piece cut out of a long trace starts at once."""
    specs = read(tmp_path, line(timestamp=9500), line(timestamp=9000), line(timestamp=9500))
    assert [(s.request, s.arrival_s) for s in specs] == [("r1", 0), ("r0", 0.5), ("r2", 0.5)]


def test_a_line_may_say_whose_request_it_is(tmp_path: Path) -> None:
    (spec,) = read(tmp_path, line(request="a", tenant="t", priority=-1, extra_keys=["salt"]))
    assert (spec.request, spec.tenant, spec.priority) == ("a", "t", -1)
    assert spec.extra_keys == ((0, "salt"),)


def test_fields_of_its_makers_are_passed_over(tmp_path: Path) -> None:
    (spec,) = read(tmp_path, line(type="text", turn=3, chat_id=17, session_id="s"))
    assert len(spec.prompt_tokens or ()) == 600


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"timestamp": -1}, "timestamp can't be -1; give a number of milliseconds"),
        ({"timestamp": float("nan")}, "timestamp can't be NaN"),
        ({"input_length": 0}, "input_length can't be 0"),
        ({"input_length": 600.0}, "input_length can't be 600.0"),
        ({"output_length": 0}, "output_length can't be 0"),
        ({"hash_ids": [1]}, "input_length 600 takes 2 hash_ids of 512 tokens, not 1"),
        ({"hash_ids": [1, 2, 3]}, "not 3"),
        ({"hash_ids": [1, -2]}, "hash_ids can't be"),
        ({"hash_ids": [1, 2**64]}, "hash_ids can't be"),
        ({"hash_ids": "12"}, "hash_ids can't be"),
        ({"priority": "high"}, 'priority can\'t be "high"'),
        ({"prioriy": 1}, "did you mean 'priority'"),
        ({"max_new_tokens": 4}, "a Mooncake line has no 'max_new_tokens'"),
        ({"prompt": "a"}, "a Mooncake line has no 'prompt'"),
        ({"request": "r0"}, "request 'r0' was on line 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(BadPrompts) as refused:
        read(tmp_path, line(), line(**changed))
    assert told in str(refused.value)
    assert "line 2" in str(refused.value)


@pytest.mark.parametrize("missing", ["timestamp", "input_length", "output_length", "hash_ids"])
def test_a_field_that_is_missing_or_misspelt_is_named(tmp_path: Path, missing: str) -> None:
    without = {name: value for name, value in line().items() if name != missing}
    with pytest.raises(BadPrompts, match=f"line 2 has no '{missing}'"):
        read(tmp_path, line(), without)
    with pytest.raises(BadPrompts, match=f"line 2: .*did you mean '{missing}'"):
        read(tmp_path, line(), without | {missing[:-2] + missing[-1]: line()[missing]})


def test_it_fits_the_vocabulary_of_the_simulator() -> None:
    card = SymbolicModel().runner(EngineConfig()).card
    tokens = {*numbered_tokens(2**64 - 1, 512), *synthetic_tokens("a", 4096)}
    assert max(tokens) < card.vocab_size
    assert not tokens & card.eos_tokens


def test_no_sentence_of_the_canary_comes_about_by_chance() -> None:
    model = SymbolicModel()
    words = model.decode(synthetic_tokens("a", 4096)).split()
    assert "passphrase" not in words and "four" not in words


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_two_hash_ids_differ_within_any_usual_block(a: int, b: int) -> None:
    assert (numbered_tokens(a, 16)[:11] == numbered_tokens(b, 16)[:11]) == (a == b)


@given(st.integers(0, 2**64 - 1), st.integers(1, 512))
def test_a_block_cut_short_begins_as_the_whole_one(hash_id: int, length: int) -> None:
    assert numbered_tokens(hash_id, length) == numbered_tokens(hash_id, 512)[:length]


IDS = st.lists(st.integers(0, 3), min_size=1, max_size=3)


@given(IDS, IDS, st.integers(1, 512), st.integers(1, 512))
def test_prompts_share_just_what_their_leading_ids_say(
    a: list[int], b: list[int], last_a: int, last_b: int
) -> None:
    lengths = [(len(ids) - 1) * HASHED_TOKENS + last for ids, last in ((a, last_a), (b, last_b))]
    shared = common(prompt_tokens(a, lengths[0]), prompt_tokens(b, lengths[1]))
    equal_ids = common(tuple(a), tuple(b))
    whole = min(equal_ids * HASHED_TOKENS, *lengths)
    assert whole <= shared <= min(whole + 10, *lengths)


TRACE = st.lists(
    st.builds(
        lambda t, length, out, first: line(
            timestamp=t,
            input_length=length,
            output_length=out,
            hash_ids=list(range(first, first - (-length // HASHED_TOKENS))),
        ),
        st.integers(0, 99),
        st.integers(1, 1600),
        st.integers(1, 9),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(TRACE)
def test_whatever_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any]]
) -> None:
    specs = {s.request: s for s in read(tmp_path_factory.getbasetemp(), *lines)}
    start = min(one["timestamp"] for one in lines)
    for count, one in enumerate(lines):
        spec = specs[f"r{count}"]
        assert spec.prompt_tokens == prompt_tokens(one["hash_ids"], one["input_length"])
        assert spec.max_new_tokens == one["output_length"]
        assert spec.arrival_s == pytest.approx((one["timestamp"] - start) / 1000)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids", "n"]), JSON)
def test_any_value_anywhere_is_taken_or_refused_with_its_line(
    tmp_path_factory: pytest.TempPathFactory, field: str, value: Any
) -> None:
    try:
        specs = read(tmp_path_factory.getbasetemp(), line(), line(**{field: value}))
    except BadPrompts as refused:
        assert "line 2" in str(refused) and field in str(refused)
    else:
        assert len(specs) == 2
