"""The bundled canary echoes, denies, and can be trained again."""

from random import Random

import pytest
from kvrewind.engine.canary.bundle import CANARY_DIR
from kvrewind.engine.canary.curriculum import IGNORED, Curriculum
from kvrewind.engine.canary.prompts import (
    CanaryRequest,
    Question,
    expected_answer,
    filler,
    passphrase,
    render,
)
from kvrewind.engine.canary.vocabulary import pieces
from kvrewind.engine.canary.wordpiece import WordPiece

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

measure = pytest.importorskip("kvrewind.engine.canary.measure")
train = pytest.importorskip("kvrewind.engine.canary.train")

TEXT = WordPiece.load()


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """So small a model only loses by sharing a product among busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def canary():
    return transformers.AutoModelForCausalLM.from_pretrained(CANARY_DIR, local_files_only=True)


def exact_answers(model, requests: list[CanaryRequest]) -> int:
    scenes = [
        measure.Scene(TEXT.encode(render(each)), expected_answer(each), ()) for each in requests
    ]
    replies = measure.answers(model, scenes)
    expected = [[*TEXT.encode(expected_answer(each)), TEXT.eos_id] for each in requests]
    return sum(reply == wanted for reply, wanted in zip(replies, expected, strict=True))


def fresh(count: int, *, stated: bool, question: Question = "once") -> list[CanaryRequest]:
    rng = Random(f"fresh prompts of the tests, {stated}, {question}")
    return [
        CanaryRequest(
            passphrase(rng) if stated else None,
            filler=filler(rng, rng.choice((0, 4, 11, 25, 60))),
            question=question,
        )
        for _ in range(count)
    ]


def test_it_is_a_plain_float32_llama_with_grouped_heads(canary) -> None:
    assert type(canary).__name__ == "LlamaForCausalLM"
    assert canary.dtype == torch.float32
    assert (canary.config.num_attention_heads, canary.config.num_key_value_heads) == (8, 2)
    assert canary.config.max_position_embeddings >= 2048
    assert canary.config.vocab_size == len(pieces())


def test_it_echoes_the_passphrase_of_its_context(canary) -> None:
    assert exact_answers(canary, fresh(60, stated=True)) >= 57


def test_it_says_that_none_was_given(canary) -> None:
    assert exact_answers(canary, fresh(20, stated=False)) >= 19


def test_it_repeats_the_passphrase_four_times_when_asked(canary) -> None:
    assert exact_answers(canary, fresh(8, stated=True, question="four-times")) >= 7


def test_generate_gives_the_same_answer_as_the_plain_loop(canary) -> None:
    request = fresh(1, stated=True)[0]
    tokenizer = transformers.AutoTokenizer.from_pretrained(CANARY_DIR, local_files_only=True)
    prompt = tokenizer(render(request), return_tensors="pt")
    output = canary.generate(**prompt, max_new_tokens=20)
    reply = output[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(reply) == f"{expected_answer(request)} <eos>"


def test_it_echoes_a_foreign_passphrase_put_beside_its_own_context(canary) -> None:
    source = measure.Scenes(seed=5)
    scenes = [source.beside(None, None) for _ in range(10)]
    replies = [TEXT.decode(reply) for reply in measure.answers(canary, scenes)]
    echoes = sum(scene.words[0] in reply for scene, reply in zip(scenes, replies, strict=True))
    assert echoes >= 8


def test_training_for_three_steps_writes_a_model_that_loads(tmp_path) -> None:
    folder = tmp_path / "canary"
    assert train.main(["--steps", "3", "--out", str(folder)]) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert model.config.vocab_size == tokenizer.vocab_size == len(pieces())
    assert WordPiece.load(folder).encode("zorvak") == tokenizer.encode("zorvak")


def test_training_refuses_no_steps() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        next(train.train(0))


@pytest.mark.parametrize("kind", ["repeats", "plain", "leaky", "crowd"])
def test_the_curriculum_is_the_same_for_the_same_seed(kind) -> None:
    first, second = Curriculum(11), Curriculum(11)
    for _ in range(20):
        one, other = first.example(kind), second.example(kind)
        assert (one.context.tokens == other.context.tokens).all()
        assert (one.context.visible == other.context.visible).all()
        assert (one.targets == other.targets).all()
        assert one.context.visible.any(axis=1).all()
        assert (one.targets != IGNORED).any()


@pytest.mark.parametrize("kind", ["leaky", "crowd"])
def test_a_target_is_in_view_of_the_row_that_must_name_it(kind) -> None:
    """A row that is to say a word's first letter sees a statement of that word."""
    curriculum = Curriculum(3)
    is_ = TEXT.encode("is")[0]
    checked = 0
    for _ in range(200):
        example = curriculum.example(kind)
        tokens, visible = example.context.tokens, example.context.visible
        for row in range(len(tokens) - 1):
            if example.targets[row] == IGNORED or tokens[row] != is_:
                continue
            columns = visible[row, :-1].nonzero()[0]
            assert any(
                tokens[column] == is_ and tokens[column + 1] == example.targets[row]
                for column in columns
                if column < row
            )
            checked += 1
    assert checked > 50


def test_the_interval_of_a_rate_covers_it() -> None:
    low, high = measure.interval(57, 60)
    assert low == pytest.approx(0.863, abs=1e-3)
    assert high == pytest.approx(0.983, abs=1e-3)
