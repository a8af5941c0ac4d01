"""The canary's prompts fall on cache blocks as the default workload needs."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvrewind.engine.canary import prompts
from kvrewind.engine.canary.vocabulary import WORDS
from kvrewind.engine.canary.wordpiece import WordPiece

SEEDS = st.integers(0, 2**32)


@pytest.fixture(scope="module")
def wordpiece() -> WordPiece:
    return WordPiece.load()


def test_the_system_prompt_is_two_blocks_split_between_words(wordpiece: WordPiece) -> None:
    ids = wordpiece.encode(prompts.SYSTEM)
    assert len(ids) == 2 * prompts.BLOCK_SIZE
    assert ids[prompts.BLOCK_SIZE :] == wordpiece.encode(prompts.SYSTEM_SECOND_BLOCK)


@given(seed=SEEDS)
def test_a_passphrase_is_six_distinct_letters_and_six_tokens(seed: int) -> None:
    word = prompts.passphrase(Random(seed))
    assert len(set(word)) == prompts.PASSPHRASE_LENGTH == len(word)
    assert len(WordPiece.load().encode(word)) == prompts.PASSPHRASE_LENGTH
    assert not any(word in known for known in WORDS)


def test_passphrases_rarely_repeat() -> None:
    rng = Random(7)
    assert len({prompts.passphrase(rng) for _ in range(1000)}) > 990


@given(seed=SEEDS, tokens=st.sampled_from([0, *range(4, 90)]))
def test_the_statement_fills_the_third_block(seed: int, tokens: int) -> None:
    wordpiece = WordPiece.load()
    rng = Random(seed)
    word = prompts.passphrase(rng)
    request = prompts.CanaryRequest(word, filler=prompts.filler(rng, tokens))
    ids = wordpiece.encode(prompts.render(request))
    assert wordpiece.decode(ids[32:48]) == prompts.statement(word)
    assert len(ids) == 48 + tokens + len(wordpiece.encode(prompts.QUESTIONS["once"]))
    assert word not in wordpiece.decode(ids[48:])


def test_a_prompt_without_a_passphrase_has_the_same_blocks(wordpiece: WordPiece) -> None:
    plain = wordpiece.encode(prompts.render(prompts.CanaryRequest(None)))
    told = wordpiece.encode(prompts.render(prompts.CanaryRequest("zorvak")))
    assert len(plain) == len(told)
    assert plain[:34] == told[:34]


@pytest.mark.parametrize("tokens", [-1, 1, 2, 3])
def test_a_filler_length_that_no_sentence_fits_is_refused(tokens: int) -> None:
    with pytest.raises(ValueError, match=f"not {tokens}"):
        prompts.filler(Random(0), tokens)


def test_every_text_of_the_grammar_is_in_the_vocabulary(wordpiece: WordPiece) -> None:
    rng = Random(3)
    texts = [
        prompts.SYSTEM,
        *prompts.OTHER_SYSTEMS,
        *prompts.QUESTIONS.values(),
        prompts.statement(None),
        prompts.statement("zorvak"),
        prompts.NO_PASSPHRASE_ANSWER,
        prompts.answer("zorvak", "four-times"),
        prompts.filler(rng, 200),
    ]
    for text in texts:
        assert wordpiece.decode(wordpiece.encode(text)) == text
        assert wordpiece.unk_id not in wordpiece.encode(text)


def test_the_expected_answer_names_the_passphrase_once_or_four_times() -> None:
    once = prompts.CanaryRequest("zorvak")
    often = prompts.CanaryRequest("zorvak", question="four-times")
    assert prompts.expected_answer(once) == "the passphrase is zorvak ."
    assert prompts.expected_answer(often).count("zorvak") == 4
    assert prompts.expected_answer(prompts.CanaryRequest(None)) == "no passphrase was given ."
