"""A simulated run is measured as a hand can work it out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvrewind.engine.admission import PromptRefused
from kvrewind.engine.clock import SimulatedClock, StepCost
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.meter import Measured, Meter
from kvrewind.engine.prompts_file import read_prompts
from kvrewind.engine.request import Prompt
from kvrewind.engine.simulation import simulate
from kvrewind.engine.workloads.poisson import PoissonTraffic
from kvrewind.engine.workloads.tokens import synthetic_tokens
from kvrewind.recorder.events import Event, StepScheduled
from kvrewind.recorder.memory import MemorySink
from kvrewind.recorder.sink import Sink

MODEL = SymbolicModel()
COST = StepCost(weights_s=0.010, token_s=0.001, context_token_s=0.00001, host_s=0.002)


def prompt(name: str, tokens: int, new: int, **fields: Any) -> Prompt:
    return Prompt(
        request=name,
        prompt_tokens=synthetic_tokens(name, tokens),
        max_new_tokens=new,
        ignore_eos=True,
        **{"arrival_s": 0.0, **fields},
    )


def measured(*prompts: Prompt, **switches: Any) -> Measured:
    result = simulate(MODEL, EngineConfig(**switches), prompts, COST)
    assert result.stuck is None
    return result.measured


def mooncake(folder: Path, *lines: tuple[int, int, int, list[int]]) -> list[Prompt]:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path = folder / "requests.jsonl"
    path.write_text(
        "".join(json.dumps(dict(zip(names, line, strict=True))) + "\n" for line in lines)
    )
    return [spec.tokenized(MODEL.encode, 1) for spec in read_prompts(path)]


def test_the_time_of_one_request_is_the_sum_of_its_steps() -> None:
    """A prefill of 20 tokens, then two decodes with 21 and 22 tokens to attend to."""
    one = measured(prompt("a", 20, 3))
    prefill = 0.020 + 20 * 0.00001 + 0.002
    decodes = [0.010 + context * 0.00001 + 0.002 for context in (21, 22)]
    assert one.first_token.mean_s == pytest.approx(prefill)
    assert one.next_token.mean_s == pytest.approx(sum(decodes) / 2)
    assert one.time_s == pytest.approx(prefill + sum(decodes))
    assert (one.steps, one.sampled_tokens, one.prompt_tokens) == (3, 3, 20)
    assert one.tokens_per_s == pytest.approx(3 / one.time_s)
    assert one.pool_peak == 2 / 256


def test_equal_hash_ids_are_prefix_hits_and_others_are_none(tmp_path: Path) -> None:
    """Of 700 tokens, the 512 of id 0; of 1100, those of ids 0 and 1 (its last block is cut);
    of 512 that are all there, all but the block that the last one stands in."""
    prompts = mooncake(
        tmp_path,
        (0, 1100, 2, [0, 1, 2]),
        (5000, 700, 2, [0, 3]),
        (10000, 1100, 2, [0, 1, 4]),
        (15000, 512, 2, [0]),
        (20000, 600, 2, [7, 1]),
    )
    result = measured(*prompts)
    hits = 0 + 512 + 1024 + (512 - 16) + 0
    assert (result.prompt_tokens, result.cached_tokens) == (4012, hits)
    assert result.hit_rate == pytest.approx(hits / 4012)
    assert measured(*prompts, prefix_cache=False).hit_rate == 0


def test_a_small_pool_forgets_what_it_held(tmp_path: Path) -> None:
    """64 blocks are just two prompts: the third pushes the first one out."""
    lines = [(1000 * i, 512, 1, [hash_id]) for i, hash_id in enumerate((0, 1, 2, 0))]
    prompts = mooncake(tmp_path, *lines)
    small, large = measured(*prompts, num_blocks=64), measured(*prompts, num_blocks=128)
    assert (small.cached_tokens, small.evictions) == (0, 64)
    assert (large.cached_tokens, large.evictions) == (496, 0)


def test_a_full_pool_preempts_and_computes_again() -> None:
    two = [prompt("a", 30, 20), prompt("b", 30, 20)]
    tight = measured(*two, block_size=4, num_blocks=18)
    assert tight.preemptions > 0
    assert tight.recomputed_tokens > 0
    assert tight.pool_peak == 1.0
    roomy = measured(*two, block_size=4, num_blocks=64)
    assert (roomy.preemptions, roomy.recomputed_tokens) == (0, 0)
    assert tight.sampled_tokens == roomy.sampled_tokens == 40
    reserved = measured(*two, block_size=4, num_blocks=18, preemption=False)
    assert reserved.preemptions == 0


def test_urgent_requests_wait_less_where_priorities_count() -> None:
    crowd = [prompt(f"r{i}", 16, 8, priority=-(i >= 6)) for i in range(8)]
    result = measured(*crowd, max_num_seqs=2)
    urgent, others = (result.first_token_by_priority[p].mean_s or 0.0 for p in (-1, 0))
    assert 0 < urgent < others


def test_two_steps_in_flight_hide_the_host() -> None:
    one = measured(prompt("a", 20, 10))
    two = measured(prompt("a", 20, 10), steps_in_flight=2)
    assert two.sampled_tokens == one.sampled_tokens == 10
    assert two.time_s < one.time_s


def test_pieces_of_long_prompts_keep_the_others_talking() -> None:
    """While 200 tokens are computed at once, the one who talks gets no token for as long."""
    mixed = [prompt("talks", 8, 30), prompt("long", 200, 2, arrival_s=0.05)]
    whole = measured(*mixed, max_num_batched_tokens=256)
    pieces = measured(*mixed, max_num_batched_tokens=32)
    assert (whole.next_token.p99_s or 0) > 0.1 > (pieces.next_token.p99_s or 1)
    assert pieces.sampled_tokens == whole.sampled_tokens == 32


def traffic(seed: int, text: str) -> list[Prompt]:
    specs = PoissonTraffic.parse(text).specs(seed)
    return [spec.tokenized(MODEL.encode, 1) for spec in specs]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 99),
    st.fixed_dictionaries(
        {},
        optional={
            "num_blocks": st.sampled_from([20, 28, 64]),
            "max_num_batched_tokens": st.sampled_from([8, 32, 256]),
            "max_num_seqs": st.integers(1, 6),
            "chunked_prefill": st.booleans(),
            "preemption": st.booleans(),
            "continuous_batching": st.booleans(),
            "steps_in_flight": st.sampled_from([1, 2]),
            "sharing": st.sampled_from(["off", "tenant", "global"]),
            "granularity": st.sampled_from(["block", "prompt", "sequence"]),
            "reuse": st.sampled_from(["first-freed", "last-freed", "quarantine=3"]),
            "host_blocks": st.sampled_from([0, 16, 64]),
            "transfer_steps": st.integers(1, 3),
            "layout": st.sampled_from(["packed", "padded-left", "dense"]),
        },
    ),
)
def test_every_token_is_computed_found_or_computed_again(
    seed: int, switches: dict[str, Any]
) -> None:
    """Under any switches: what is scheduled is all that is needed, less what was found, and what
    was lost once more; and a cache changes nobody's number of tokens."""
    prompts = traffic(
        seed, "rate=60,count=8,prompt=4..40,output=2..12,prefix=12,prefixes=2,tenants=2,urgent=0.2"
    )
    config = EngineConfig(block_size=4, **switches)
    clock = SimulatedClock(COST, config.steps_in_flight)
    meter, events = Meter(clock, prompts), MemorySink()
    engine = make_engine(MODEL, config, prompts, Both(meter, events), clock=clock)
    engine.run()
    result = meter.measured()
    computed = sum(
        sum(e.event.scheduled) for e in events.envelopes if isinstance(e.event, StepScheduled)
    )
    needed = sum(len(p.prompt_tokens) + p.max_new_tokens - 1 for p in prompts)
    assert computed == needed - result.cached_tokens + result.recomputed_tokens
    assert result.sampled_tokens == sum(p.max_new_tokens for p in prompts)
    assert result.unfinished == 0
    assert 0 < result.pool_mean <= result.pool_peak <= 1


class Both:
    """A sink that passes everything on to two."""

    def __init__(self, *sinks: Sink) -> None:
        self.sinks = sinks

    def emit(self, event: Event, step: int) -> None:
        for sink in self.sinks:
            sink.emit(event, step)


def test_host_memory_brings_back_what_the_pool_forgot(tmp_path: Path) -> None:
    lines = [(1000 * i, 512, 1, [hash_id]) for i, hash_id in enumerate((0, 1, 2, 0))]
    prompts = mooncake(tmp_path, *lines)
    result = measured(*prompts, num_blocks=64, host_blocks=128)
    assert result.cached_tokens == 496
    assert result.host_loads == 31
    assert result.host_stores >= 96


def test_the_same_run_measures_the_same() -> None:
    prompts = traffic(3, "rate=20,count=12,prompt=20..60,output=4..8,prefix=32")
    assert measured(*prompts, num_blocks=24) == measured(*prompts, num_blocks=24)


def test_what_could_never_be_served_is_refused() -> None:
    with pytest.raises(PromptRefused, match="needs 7 blocks"):
        simulate(MODEL, EngineConfig(num_blocks=4), [prompt("a", 100, 1)], COST)
