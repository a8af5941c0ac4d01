"""Generated traffic is what its description says, and the same for the same seed."""

from __future__ import annotations

import math
from random import Random
from statistics import mean, median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvrewind.engine.workloads.lengths import LONGEST, lengths_of
from kvrewind.engine.workloads.poisson import PoissonTraffic
from kvrewind.engine.workloads.spec import PromptSpec
from kvrewind.recorder.errors import BadInput

COUNT = 2000


def drawn(text: str, seed: int = 1) -> tuple[PromptSpec, ...]:
    return PoissonTraffic.parse(text).specs(seed)


def tokens(spec: PromptSpec) -> tuple[int, ...]:
    return spec.prompt_tokens or ()


def test_the_same_seed_gives_the_same_requests() -> None:
    text = "rate=3,count=20,prompt=exp:40,shared=0.5,tenants=3,urgent=0.2"
    assert drawn(text) == drawn(text)
    assert [tokens(s) for s in drawn(text)] != [tokens(s) for s in drawn(text, seed=2)]


def test_arrivals_are_a_poisson_process() -> None:
    """Gaps have the mean 1/rate and, as exponential ones do, a deviation equal to it; four standard
    errors are allowed, at a fixed seed."""
    arrivals = [s.arrival_s or 0.0 for s in drawn(f"rate=5,count={COUNT},prompt=1,output=1")]
    gaps = [b - a for a, b in zip([0.0, *arrivals], arrivals, strict=False)]
    assert mean(gaps) == pytest.approx(0.2, abs=4 * 0.2 / math.sqrt(COUNT))
    spread = math.sqrt(mean((gap - 0.2) ** 2 for gap in gaps))
    assert spread == pytest.approx(0.2, abs=8 * 0.2 / math.sqrt(COUNT))
    below = sum(gap < 0.2 for gap in gaps) / COUNT
    assert below == pytest.approx(1 - 1 / math.e, abs=4 * 0.5 / math.sqrt(COUNT))


def test_the_stated_shares_begin_alike_and_are_urgent() -> None:
    specs = drawn(f"count={COUNT},prefix=32,prefixes=3,shared=0.25,prompt=8,output=1,urgent=0.1")
    lengths = [len(tokens(spec)) for spec in specs]
    assert set(lengths) == {8, 40}
    sharing = [tokens(spec)[:32] for spec in specs if len(tokens(spec)) == 40]
    assert len(set(sharing)) == 3
    assert len(sharing) / COUNT == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / COUNT))
    urgent = sum(spec.priority == -1 for spec in specs)
    assert urgent / COUNT == pytest.approx(0.1, abs=4 * math.sqrt(0.1 * 0.9 / COUNT))


def test_own_tokens_are_nobody_elses() -> None:
    specs = drawn("count=50,prompt=16,shared=0")
    assert len({tokens(spec) for spec in specs}) == 50


def test_tenants_have_names_where_there_are_several() -> None:
    assert {spec.tenant for spec in drawn("count=60,tenants=3")} == {"t0", "t1", "t2"}
    assert {spec.tenant for spec in drawn("count=5")} == {None}


def test_the_prompts_run_to_their_drawn_length() -> None:
    specs = drawn("count=200,output=3..5")
    assert {spec.max_new_tokens for spec in specs} == {3, 4, 5}
    assert all(spec.ignore_eos for spec in specs)


@pytest.mark.parametrize(
    ("text", "middle"),
    [("256", 256), ("100..300", 200), ("exp:256", 256 * math.log(2)), ("lognormal:256:0.8", 256)],
)
def test_a_distribution_has_the_middle_that_it_names(text: str, middle: float) -> None:
    rng, lengths = Random(3), lengths_of("prompt", text)
    draws = [lengths.draw(rng) for _ in range(4000)]
    assert min(draws) >= 1
    assert median(draws) == pytest.approx(middle, rel=0.05)


@given(st.sampled_from(["exp:900000", "lognormal:900000:40", "exp:0.001"]), st.integers())
def test_no_draw_is_out_of_range(text: str, seed: int) -> None:
    assert 1 <= lengths_of("prompt", text).draw(Random(seed)) <= LONGEST


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rat=4", "did you mean 'rate'"),
        ("rate", "needs a value for rate"),
        ("rate=", "rate of --poisson must be a number"),
        ("rate=fast", "rate of --poisson must be a number, not 'fast'"),
        ("rate=0", "must be above 0"),
        ("rate=inf", "must be above 0"),
        ("rate=nan", "must be above 0"),
        ("count=0", "count of --poisson must be a whole number from 1"),
        ("count=99999999999", "count of --poisson must be"),
        ("shared=1.5", "shared of --poisson must be from 0 to 1"),
        ("prompt=0", "prompt of --poisson can't be '0'"),
        ("prompt=5..4", "can't be '5..4'"),
        ("prompt=normal:5", "as N, A..B, exp:MEAN or lognormal:MEDIAN:SIGMA"),
        ("prompt=exp:-1", "can't be 'exp:-1'"),
        ("prompt=lognormal:5", "can't be 'lognormal:5'"),
        ("rate=1,rate=2", "names rate twice"),
        ("gizmo", "known are rate, count"),
    ],
)
def test_what_it_can_not_be_is_said(text: str, told: str) -> None:
    with pytest.raises(BadInput) as refused:
        PoissonTraffic.parse(text)
    assert told in str(refused.value)


@settings(max_examples=200)
@given(st.text(alphabet="ratecounpmhdx=,.:0159- ", max_size=24))
def test_any_text_is_taken_or_refused(text: str) -> None:
    try:
        assert PoissonTraffic.parse(text).count >= 1
    except BadInput as refused:
        assert "--poisson" in str(refused)
