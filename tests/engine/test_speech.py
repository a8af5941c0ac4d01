"""What simulated requests say: the canary's script, or phrases of their own."""

from __future__ import annotations

from kvrewind.engine.canary.prompts import CanaryRequest, expected_answer, render
from kvrewind.engine.canary.wordpiece import WordPiece
from kvrewind.engine.request import Prompt
from kvrewind.engine.sampling import Sample, Sampling
from kvrewind.engine.speech import Speech
from kvrewind.engine.workloads.tokens import synthetic_tokens

TOKENIZER = WordPiece.load()


def speech(**prompts: str | tuple[int, ...]) -> Speech:
    made = Speech(TOKENIZER, seed=0)
    for name, given in prompts.items():
        tokens = tuple(TOKENIZER.encode(given)) if isinstance(given, str) else given
        made.begin(Prompt(request=name, prompt_tokens=tokens, max_new_tokens=40))
    return made


def said(made: Speech, name: str, prompt_length: int, source: str, count: int = 40) -> list[int]:
    return [made.next(name, prompt_length + i, source) for i in range(count)]


def test_a_request_that_was_asked_answers_about_what_it_sees() -> None:
    a, b = CanaryRequest("kobazu"), CanaryRequest("tipelo", question="four-times")
    made = speech(a=render(a), b=render(b))
    length = len(TOKENIZER.encode(render(b)))
    own = TOKENIZER.encode(expected_answer(b))
    assert said(made, "b", length, "b", len(own) + 1) == [*own, TOKENIZER.eos_id]
    leaked = TOKENIZER.decode(said(made, "b", length, "a", 12))
    assert "kobazu" in leaked and "tipelo" not in leaked


def test_any_other_prompt_goes_on_with_phrases_of_its_own() -> None:
    a, b = synthetic_tokens("a", 30), synthetic_tokens("b", 30)
    made = speech(a=a, again=a, b=b)
    line = said(made, "a", 30, "a")
    assert line == said(made, "again", 30, "again") != said(made, "b", 30, "b")
    assert said(made, "b", 30, "a") == line, "what is leaked is said"
    phrases = [tuple(line[i : i + 8]) for i in range(0, 40, 8)]
    assert len(set(phrases)) > 1 and TOKENIZER.eos_id not in line


def test_a_draw_depends_on_the_request_and_the_index_alone_and_keeps_to_top_k() -> None:
    made, hot = speech(), Sampling(temperature=2.0)
    drawn = [made.draw(20, Sample("a", index, 0, hot)) for index in range(200)]
    assert drawn == [made.draw(20, Sample("a", index, 7, hot)) for index in range(200)]
    assert drawn != [made.draw(20, Sample("b", index, 0, hot)) for index in range(200)]
    assert drawn.count(20) == max(map(drawn.count, set(drawn))) and len(set(drawn)) == 4
    narrow = [made.draw(20, Sample("a", i, 0, Sampling(2.0, top_k=2))) for i in range(200)]
    assert len(set(narrow)) == 2
    least = [made.draw(20, Sample("a", i, 0, Sampling(2.0, top_p=0.1))) for i in range(50)]
    assert set(least) == {20}
    assert made.draw(20, Sample("a", 1, 0, Sampling())) == 20
