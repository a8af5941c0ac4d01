"""Tokens are drawn as the distribution says, and the same for a request in whatever company."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from kvrewind.engine.config import EngineConfig  # noqa: E402
from kvrewind.engine.llm import Model, make_engine, open_model  # noqa: E402
from kvrewind.engine.request import Prompt  # noqa: E402
from kvrewind.engine.runner import StepOutput  # noqa: E402
from kvrewind.engine.sampler import best_two, choose, probabilities  # noqa: E402
from kvrewind.engine.sampling import Sample, Sampling, uniform  # noqa: E402
from kvrewind.recorder.events import DraftVerified, RequestPreempted  # noqa: E402
from kvrewind.recorder.memory import MemorySink  # noqa: E402
from torch import Tensor  # noqa: E402

Answers = dict[str, list[int]]

torch.set_num_threads(1)

HAND = torch.tensor([0.1, 0.4, 0.2, 0.25, 0.05]).log()
"""Tokens 1, 3, 2, 0, 4 from the most to the least likely."""


def sample(request: str = "r", index: int = 0, **how: float) -> Sample:
    return Sample(request, index, 0, Sampling(**({"temperature": 1.0} | how)))  # type: ignore[arg-type]


def random_logits(rows: int, vocab: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def test_the_random_number_depends_on_seed_request_and_index_and_nothing_else() -> None:
    drawn = {
        uniform(seed, request, index)
        for seed in (0, 1, -1)
        for request in ("r0", "r0/1", "r1", "1")
        for index in (0, 1, 11)
    }
    assert len(drawn) == 36
    assert uniform(0, "r0", 7) == uniform(0, "r0", 7)
    assert uniform(0, "r0", 7).hex() == "0x1.ee047c0e886bep-1"  # for ever: traces replay by it


def test_random_numbers_are_even() -> None:
    """Kolmogorov-Smirnov: the largest distance from the even distribution, at 99.9 %."""
    drawn = sorted(uniform(3, "r", i) for i in range(5000))
    distance = max(abs(u - (i + 0.5) / 5000) for i, u in enumerate(drawn))
    assert distance < 1.95 / math.sqrt(5000)
    assert 0 <= drawn[0] < drawn[-1] < 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_those_of_softmax(temperature: float) -> None:
    """Chi-square over 20 tokens at 99.9 %: below 43.8 with 19 degrees of freedom."""
    logits = random_logits(1, 20).double()[0] / 2
    draws = 4000
    samples = [sample(index=i, temperature=temperature) for i in range(draws)]
    tokens = choose(logits.float().expand(draws, -1), samples, seed=1).tokens
    expected = draws * (logits / temperature).softmax(dim=-1)
    counted = torch.bincount(torch.tensor(tokens), minlength=20)
    assert ((counted - expected) ** 2 / expected).sum() < 43.8
    assert (counted > 0).sum() >= 15


@pytest.mark.parametrize(
    ("how", "left"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 1}, {1}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.8}, {1, 3, 2}),
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.0}, {1}),
        ({"top_p": 0.41}, {1, 3}),
        ({"top_k": 3, "top_p": 0.5}, {1, 3}),  # 0.4 of the 0.85 that top-k leaves isn't half
        ({"top_k": 3, "top_p": 0.46}, {1}),
        ({"temperature": 0.01, "top_p": 0.9}, {1}),
    ],
)
def test_top_k_and_top_p_leave_the_best(how: dict[str, float], left: set[int]) -> None:
    """Top-k first, then top-p of what it leaves; what is left keeps its proportions."""
    chances = probabilities(HAND, sample(**how))
    assert set(chances.nonzero()[:, 0].tolist()) == left
    temperature = how.get("temperature", 1.0)
    whole = (HAND.double() / temperature).exp()
    kept = torch.tensor(sorted(left))
    torch.testing.assert_close(chances[kept] / chances[1], whole[kept] / whole[1])


def test_of_equal_logits_the_lower_token_counts_as_the_better() -> None:
    level = torch.zeros(4)
    assert probabilities(level, sample(top_k=2)).tolist() == [1, 1, 0, 0]
    assert probabilities(level, sample(top_p=0.75)).tolist() == [1, 1, 1, 0]
    assert choose(level[None], [sample(temperature=0.0)], seed=0).tokens == (0,)


def test_what_is_left_out_is_never_drawn() -> None:
    samples = [sample(index=i, top_k=2) for i in range(200)]
    assert set(choose(HAND.expand(200, -1), samples, seed=0).tokens) == {1, 3}
    barred = HAND.clone()
    barred[1] = -torch.inf
    plain = [sample(index=i) for i in range(200)]
    assert set(choose(barred.expand(200, -1), plain, seed=0).tokens) == {0, 2, 3, 4}


@given(st.permutations(range(6)), st.integers(1, 6))
def test_a_request_draws_the_same_in_any_batch(order: list[int], size: int) -> None:
    logits = random_logits(6, 30)
    ways = ({}, {"temperature": 0.0}, {"top_k": 5}, {"top_p": 0.7}, {"temperature": 2.0}, {})
    samples = [sample(f"r{i}", 3 + i, **how) for i, how in enumerate(ways)]
    alone = [choose(logits[i : i + 1], samples[i : i + 1], seed=5) for i in range(6)]
    batch = order[:size]
    mixed = choose(logits[batch], [samples[i] for i in batch], seed=5)
    assert mixed.tokens == tuple(alone[i].tokens[0] for i in batch)
    assert mixed.margins == tuple(alone[i].margins[0] for i in batch)  # type: ignore[index]


def test_seeds_requests_and_indices_draw_differently() -> None:
    logits = torch.zeros(1, 1000).expand(40, -1)
    one = choose(logits, [sample("r", i) for i in range(40)], seed=0).tokens
    fork = choose(logits, [sample("r/1", i) for i in range(40)], seed=0).tokens
    seeded = choose(logits, [sample("r", i) for i in range(40)], seed=1).tokens
    assert len(set(one)) > 30
    for other in (fork, seeded):
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 5


def test_a_hair_of_difference_in_the_logits_moves_no_more_than_a_hair() -> None:
    """Two tokens that swap their ranks keep their places among the borders."""
    logits = torch.tensor([[0.0, 1.0, 1.0 + 1e-6, 0.5]]).expand(500, -1)
    swapped = torch.tensor([[0.0, 1.0 + 1e-6, 1.0, 0.5]]).expand(500, -1)
    samples = [sample(index=i) for i in range(500)]
    tokens = choose(logits, samples, seed=0).tokens
    assert tokens == choose(swapped, samples, seed=0).tokens
    assert set(tokens) == {0, 1, 2, 3}


def test_temperature_zero_takes_the_best_and_tells_its_lead() -> None:
    logits = random_logits(5, 30)
    chosen = choose(logits, [sample(temperature=0.0, top_k=3, top_p=0.5)] * 5, seed=0)
    assert chosen.tokens == tuple(logits.argmax(dim=-1).tolist())
    ranked = logits.sort(dim=-1, descending=True).values
    assert chosen.margins == pytest.approx((ranked[:, 0] - ranked[:, 1]).tolist())
    best = logits.log_softmax(dim=-1).max(dim=-1).values
    assert chosen.logprobs == pytest.approx(best.tolist(), rel=1e-5)


def test_log_probabilities_are_the_models_whatever_was_left_out() -> None:
    logits = random_logits(4, 30)
    chosen = choose(logits, [sample(f"r{i}", temperature=3.0, top_k=9) for i in range(4)], seed=2)
    told = logits.log_softmax(dim=-1)[range(4), list(chosen.tokens)]
    assert chosen.logprobs == pytest.approx(told.tolist(), rel=1e-5)
    assert chosen.tokens != tuple(logits.argmax(dim=-1).tolist())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_saw_nothing_has_an_answer_and_disturbs_no_other(temperature: float) -> None:
    logits = random_logits(3, 30)
    logits[1] = torch.nan
    samples = [sample(f"r{i}", temperature=temperature) for i in range(3)]
    chosen = choose(logits, samples, seed=0)
    sound = choose(logits[[0, 2]], [samples[0], samples[2]], seed=0)
    assert (chosen.tokens[0], chosen.tokens[2]) == sound.tokens
    assert 0 <= chosen.tokens[1] < 30
    assert chosen.margins is not None
    assert chosen.margins[1] == 0
    if temperature == 0:
        assert chosen.tokens[1] == 0
    other = samples[1]._replace(request="another")
    drawn = {choose(logits[1:2], [other._replace(index=i)], seed=0).tokens[0] for i in range(20)}
    assert len(drawn) == 1 if temperature == 0 else len(drawn) > 5


def test_a_step_that_chooses_nothing_gives_nothing() -> None:
    """A piece of a prompt that doesn't end it."""
    assert choose(torch.zeros(0, 30), [], seed=0) == StepOutput(tokens=(), logprobs=(), margins=())


@pytest.fixture(scope="module")
def canary() -> Model:
    return open_model("canary", EngineConfig())


def drawn(canary: Model, names: str, sink: MemorySink | None = None, **switches: Any) -> Answers:
    """Three requests that ask for several answers, at a temperature that gives many."""
    texts = {"a": "all is calm .", "b": "the sea is warm and the", "c": "user : the passphrase is"}
    prompts = [
        Prompt(
            request=name,
            prompt_tokens=tuple(canary.encode(texts[name])),
            max_new_tokens=14,
            temperature=2.5,
            top_k=20,
            n=2 if name == "b" else 1,
            ignore_eos=True,
        )
        for name in names
    ]
    config = EngineConfig(**({"block_size": 4, "seed": 7} | switches))
    engine = make_engine(canary, config, prompts, sink or MemorySink())
    engine.run(max_steps=200)
    return {name: request.tokens for name, request in engine.requests.items()}


def test_an_answer_is_drawn_the_same_alone_mixed_preempted_and_speculated(canary: Model) -> None:
    alone = {name: tokens for each in "abc" for name, tokens in drawn(canary, each).items()}
    assert len({tuple(tokens[-14:]) for tokens in alone.values()}) == 4
    assert drawn(canary, "abc") == alone
    assert drawn(canary, "cba", steps_in_flight=2) == alone
    assert drawn(canary, "bca", max_num_batched_tokens=3) == alone
    sink = MemorySink()
    assert drawn(canary, "abc", sink, num_blocks=11, speculation=3) == alone
    kinds = {type(envelope.event) for envelope in sink.envelopes}
    assert {RequestPreempted, DraftVerified} <= kinds
    assert drawn(canary, "abc", seed=8) != alone


@pytest.mark.parametrize("vocab", [1, 2, 64, 1021, 1024, 1088, 4096, 49152])
def test_the_two_best_are_those_of_the_whole_vocabulary_and_ties_go_to_the_first(
    vocab: int,
) -> None:
    generator = torch.Generator().manual_seed(vocab)
    for spread in (3, 1000):  # of so few levels many are equal
        logits = torch.randint(-spread, spread, (9, vocab), generator=generator).float()
        top, tokens = best_two(logits)
        assert torch.equal(top, logits.sort(dim=-1, descending=True).values[:, :2])
        assert torch.equal(tokens, logits.argmax(dim=-1))
