"""A prompts file is read as written, or refused with the line that is wrong."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvrewind.engine.prompts_file import BadPrompts, read_prompts


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prompts"
    path.write_text(text, encoding="utf-8")
    return path


def test_plain_text_is_one_prompt_a_line(tmp_path: Path) -> None:
    specs = read_prompts(write(tmp_path, "first one\n\n  second {one}\n"))
    assert [(s.request, s.prompt) for s in specs] == [("r0", "first one"), ("r1", "second {one}")]


def test_json_lines_carry_every_field(tmp_path: Path) -> None:
    said = {
        "request": "a", "prompt_tokens": [5, 6], "max_new_tokens": 7, "tenant": "t", "session": 3,
        "external_id": "x", "passphrase": "zorvak", "adapter": "fr", "priority": -2, "n": 3,
        "extra_keys": ["salt", [4, 17]], "temperature": 0.5, "top_k": 40, "top_p": 0.9,
        "pin": True, "retention": 2, "arrival_s": 1.5, "abort_step": 9, "ignore_eos": True,
    }  # fmt: skip
    (spec,) = read_prompts(write(tmp_path, json.dumps(said)))
    prompt = spec.tokenized(lambda text: [], 32)
    expected = said | {
        "prompt_tokens": (5, 6),
        "extra_keys": ((0, "salt"), (4, 17)),
        "arrival_step": 1,
    }
    assert asdict(prompt) == expected


def test_what_a_line_leaves_out_asks_for_nothing(tmp_path: Path) -> None:
    (spec,) = read_prompts(write(tmp_path, '{"prompt": "a"}'))
    prompt = spec.tokenized(lambda text: [3], 32)
    assert (prompt.max_new_tokens, prompt.n, prompt.priority, prompt.extra_keys) == (32, 1, 0, ())
    assert (prompt.temperature, prompt.top_k, prompt.top_p) == (0, 0, 1)
    assert (prompt.arrival_step, prompt.arrival_s, prompt.pin) == (1, None, False)


def test_names_default_by_order_beside_given_ones(tmp_path: Path) -> None:
    specs = read_prompts(write(tmp_path, '{"prompt": "a", "request": "x"}\n{"prompt": "b"}\n'))
    assert [s.request for s in specs] == ["x", "r1"]


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    (spec,) = read_prompts(write(tmp_path, '\ufeff{"prompt": "a", "request": "x"}'))
    assert (spec.request, spec.prompt) == ("x", "a")
    (spec,) = read_prompts(write(tmp_path, "\ufeffplain"))
    assert spec.prompt == "plain"


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    """JSON strings may hold the other separators of Unicode as they are."""
    line = json.dumps({"prompt": "one\u2028line\x85"}, ensure_ascii=False)
    specs = read_prompts(write(tmp_path, f"{line}\r\n{line}\r\n"))
    assert [s.prompt for s in specs] == ["one\u2028line\x85"] * 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no prompts"),
        ('{"prompt": "a"}\n{"prompt": ', "line 2 isn't JSON"),
        ('{"prompt": "a"}\n\n[1]', "line 3 must be a JSON object"),
        ('{"promt": "a"}', "did you mean 'prompt'"),
        ('{"prompt": "a", "prioriy": 1}', "did you mean 'priority'"),
        ('{"request": "a"}', "either `prompt` or `prompt_tokens`"),
        ('{"prompt": "a", "prompt_tokens": [1]}', "either `prompt` or `prompt_tokens`"),
        ('{"prompt_tokens": [1, "x"]}', "prompt_tokens can't be"),
        ('{"prompt": "a", "max_new_tokens": 0}', "max_new_tokens can't be 0"),
        ('{"prompt": "a", "max_new_tokens": true}', "max_new_tokens can't be true"),
        ('{"prompt": "a", "arrival_step": null}', "arrival_step can't be null"),
        ('{"prompt": "a", "arrival_step": 9223372036854775807}', "from 1 to 1000000000000"),
        ('{"prompt": "a", "arrival_s": -0.1}', "arrival_s can't be -0.1"),
        ('{"prompt": "a", "arrival_s": NaN}', "arrival_s can't be NaN"),
        ('{"prompt": "a", "arrival_s": 1, "arrival_step": 2}', "not both"),
        ('[{"prompt": "a"}, {"prompt": "b"}]', "one JSON array"),
        ('{"prompt": "a", "request": " "}', "request can't be"),
        ('{"prompt": "a", "request": "\\u001b[2Jx"}', "request can't be"),
        ('{"prompt": "a", "tenant": "\\ud800"}', "tenant can't be"),
        ('{"prompt": "a", "n": 0}', "n can't be 0"),
        ('{"prompt": "a", "n": 1000000000}', "n can't be"),
        ('{"prompt": "a", "priority": 0.5}', "priority can't be 0.5"),
        ('{"prompt": "a", "priority": 99999999999999999999}', "priority can't be"),
        ('{"prompt": "a", "adapter": ["fr"]}', "adapter can't be"),
        ('{"prompt": "a", "extra_keys": "salt"}', "extra_keys can't be"),
        ('{"prompt": "a", "extra_keys": [[-1, "salt"]]}', "extra_keys can't be"),
        ('{"prompt": "a", "extra_keys": [["salt"]]}', "extra_keys can't be"),
        ('{"prompt": "a", "temperature": -1}', "temperature can't be -1"),
        ('{"prompt": "a", "temperature": Infinity}', "temperature can't be Infinity"),
        ('{"prompt": "a", "top_p": 0}', "top_p can't be 0"),
        ('{"prompt": "a", "top_p": 1.01}', "top_p can't be 1.01"),
        ('{"prompt": "a", "top_k": -1}', "top_k can't be -1"),
        ('{"prompt": "a", "pin": 1}', "pin can't be 1"),
        ('{"prompt": "a", "request": "x"}\n{"prompt": "b", "request": "x"}', "was on line 1"),
        ('{"prompt": "a"}\n' + "[" * 100_000, "line 2 isn't usable JSON"),
        ('{"prompt": "a"}\n' + "9" * 10_000, "line 2 isn't usable JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(BadPrompts) as refused:
        read_prompts(write(tmp_path, text))
    assert told in str(refused.value)


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadPrompts, match="can't be read"):
        read_prompts(tmp_path / "nowhere")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadPrompts, match="isn't text"):
        read_prompts(tmp_path / "binary")


NAMES = st.text(min_size=1, max_size=6) | st.integers(-(2**63) + 1, 2**63 - 1)
OPTIONAL = {
    "tenant": st.none() | NAMES,
    "adapter": st.none() | NAMES,
    "extra_keys": st.lists(st.tuples(st.integers(0, 99), NAMES).map(list), max_size=3),
    "priority": st.integers(-5, 5),
    "n": st.integers(1, 4),
    "temperature": st.floats(0, 4),
    "top_k": st.integers(0, 9),
    "top_p": st.floats(0.01, 1),
    "pin": st.booleans(),
    "retention": st.integers(-3, 3),
    "arrival_s": st.none() | st.floats(0, 1e6),
    "max_new_tokens": st.none() | st.integers(1, 99),
}
LINES = st.fixed_dictionaries(
    {"prompt_tokens": st.lists(st.integers(0, 99), min_size=1, max_size=4)}, optional=OPTIONAL
)


@settings(max_examples=80, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=4), st.booleans())
def test_whatever_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, said: list[dict[str, Any]], escaped: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.jsonl"
    text = "\n".join(json.dumps(line, ensure_ascii=escaped) for line in said)
    path.write_text(text, encoding="utf-8")
    for spec, line in zip(read_prompts(path), said, strict=True):
        held = asdict(spec)
        expected = dict(line)
        for name in ("prompt_tokens", "extra_keys"):
            if name in line:
                expected[name] = tuple(tuple(v) if isinstance(v, list) else v for v in line[name])
        assert {name: held[name] for name in line} == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([*OPTIONAL, "request", "prompt", "prompt_tokens", "passphrase"]), JSON)
def test_any_value_anywhere_is_taken_or_refused_with_its_line(
    tmp_path_factory: pytest.TempPathFactory, field: str, value: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    base = {} if field.startswith("prompt") else {"prompt": "b"}
    lines = [{"prompt": "a", "request": "first"}, base | {field: value}]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    try:
        specs = read_prompts(path)
    except BadPrompts as refused:
        assert "line 2" in str(refused) and field in str(refused)
    else:
        assert len(specs) == 2


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40))
def test_no_bytes_end_in_anything_but_prompts_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, rest: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n' + rest)
    try:
        assert read_prompts(path)[0].prompt == "a"
    except BadPrompts as refused:
        assert "bytes.jsonl" in str(refused)
