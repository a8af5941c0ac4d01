"""The canary's two tokenizers agree, and text survives them."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvrewind.engine.canary.bundle import CANARY_DIR
from kvrewind.engine.canary.vocabulary import SPECIALS, WORDS, pieces
from kvrewind.engine.canary.wordpiece import WordPiece

ALPHANUMERIC = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=12)
WORD_LIKE = st.one_of(ALPHANUMERIC, st.sampled_from(WORDS), st.sampled_from(SPECIALS), st.text())


@pytest.fixture(scope="module")
def wordpiece() -> WordPiece:
    return WordPiece.load()


@pytest.fixture(scope="module")
def reference():
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(CANARY_DIR, local_files_only=True)


def test_the_committed_vocabulary_is_the_one_in_the_source(wordpiece: WordPiece) -> None:
    assert tuple(map(wordpiece.piece, range(wordpiece.vocab_size))) == pieces()
    assert len(set(pieces())) == wordpiece.vocab_size


@given(words=st.lists(ALPHANUMERIC | st.sampled_from(WORDS), min_size=1))
def test_lower_case_alphanumeric_text_round_trips(words: list[str]) -> None:
    wordpiece = WordPiece(pieces())
    ids = wordpiece.encode("\n ".join(words))
    assert wordpiece.decode(ids) == " ".join(words)
    assert wordpiece.unk_id not in ids


def test_a_pseudo_word_is_one_start_and_its_continuations(wordpiece: WordPiece) -> None:
    ids = wordpiece.encode("Zorvak 42")
    assert [wordpiece.piece(token) for token in ids] == [
        *("z", "##o", "##r", "##v", "##a", "##k"),
        *("4", "##2"),
    ]
    assert wordpiece.decode(ids) == "zorvak 42"


@given(words=st.lists(WORD_LIKE))
def test_the_plain_tokenizer_encodes_as_transformers_does(reference, words: list[str]) -> None:
    text = " ".join(words)
    assert WordPiece(pieces()).encode(text) == reference.encode(text)


@given(ids=st.lists(st.integers(0, len(pieces()) - 1), min_size=1))
def test_the_plain_tokenizer_decodes_as_transformers_does(reference, ids: list[int]) -> None:
    assert WordPiece(pieces()).decode(ids) == reference.decode(ids)


def test_the_end_token_is_the_same_for_both(wordpiece: WordPiece, reference) -> None:
    assert wordpiece.encode("no <eos>")[-1] == wordpiece.eos_id == reference.eos_token_id
    assert wordpiece.pad_id == reference.pad_token_id


@pytest.mark.parametrize("token", [-1, len(pieces())])
def test_an_id_outside_the_vocabulary_is_refused(wordpiece: WordPiece, token: int) -> None:
    with pytest.raises(IndexError, match=f"token id {token}"):
        wordpiece.decode([token])
