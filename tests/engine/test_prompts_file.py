"""A prompts file is read as written, or refused with the line that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvrewind.engine.prompts_file import BadPrompts, read_prompts


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prompts"
    path.write_text(text, encoding="utf-8")
    return path


def test_plain_text_is_one_prompt_a_line(tmp_path: Path) -> None:
    specs = read_prompts(write(tmp_path, "first one\n\n  second {one}\n"))
    assert [(s.request, s.prompt) for s in specs] == [("r0", "first one"), ("r1", "second {one}")]


def test_json_lines_carry_every_field(tmp_path: Path) -> None:
    line = (
        '{"prompt_tokens": [5, 6], "request": "a", "tenant": "t", "session": 3, '
        '"max_new_tokens": 7, "arrival_step": 4, "passphrase": "zorvak", "priority": 0, "n": 1}'
    )
    (spec,) = read_prompts(write(tmp_path, line))
    assert (spec.prompt_tokens, spec.request, spec.tenant, spec.session) == ((5, 6), "a", "t", 3)
    assert (spec.max_new_tokens, spec.arrival_step, spec.passphrase) == (7, 4, "zorvak")


def test_names_default_by_order_beside_given_ones(tmp_path: Path) -> None:
    specs = read_prompts(write(tmp_path, '{"prompt": "a", "request": "x"}\n{"prompt": "b"}\n'))
    assert [s.request for s in specs] == ["x", "r1"]


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    (spec,) = read_prompts(write(tmp_path, '\ufeff{"prompt": "a", "request": "x"}'))
    assert (spec.request, spec.prompt) == ("x", "a")
    (spec,) = read_prompts(write(tmp_path, "\ufeffplain"))
    assert spec.prompt == "plain"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no prompts"),
        ('{"prompt": "a"}\n{"prompt": ', "line 2 isn't JSON"),
        ('{"prompt": "a"}\n\n[1]', "line 3 must be a JSON object"),
        ('{"promt": "a"}', "did you mean 'prompt'"),
        ('{"request": "a"}', "either `prompt` or `prompt_tokens`"),
        ('{"prompt": "a", "prompt_tokens": [1]}', "either `prompt` or `prompt_tokens`"),
        ('{"prompt_tokens": [1, "x"]}', "prompt_tokens can't be"),
        ('{"prompt": "a", "max_new_tokens": 0}', "max_new_tokens can't be 0"),
        ('{"prompt": "a", "max_new_tokens": true}', "max_new_tokens can't be true"),
        ('{"prompt": "a", "arrival_step": null}', "arrival_step can't be null"),
        ('[{"prompt": "a"}, {"prompt": "b"}]', "one JSON array"),
        ('{"prompt": "a", "request": " "}', "request can't be"),
        ('{"prompt": "a", "request": "\\u001b[2Jx"}', "request can't be"),
        ('{"prompt": "a", "n": 2}', "can't honour 'n' yet"),
        ('{"prompt": "a", "adapter": "fr"}', "can't honour 'adapter' yet"),
        ('{"prompt": "a", "request": "x"}\n{"prompt": "b", "request": "x"}', "was on line 1"),
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
