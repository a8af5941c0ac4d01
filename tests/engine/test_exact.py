"""Exact mode: a request's logits are bit for bit the same alone and in any mix.

Random mixes of all mechanisms over all ten architectures, through transformers' own code.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from functools import cache
from random import Random

import pytest

torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')

from any_mix import Mix  # noqa: E402
from kvrewind.engine.adopted_model import AdoptedModel  # noqa: E402
from kvrewind.engine.config import BadSwitch, EngineConfig  # noqa: E402
from kvrewind.engine.engine import Engine  # noqa: E402
from kvrewind.engine.faults.registry import policy_of  # noqa: E402
from kvrewind.engine.models import CANARY, SMOLLM2, load_model, whats_missing  # noqa: E402
from kvrewind.engine.row_tiles import NotExact  # noqa: E402
from kvrewind.recorder.events import RequestFinished, RunStarted, TokensSampled  # noqa: E402
from kvrewind.recorder.memory import MemorySink  # noqa: E402
from kvrewind.replay.recording import Recording  # noqa: E402
from kvrewind.replay.reexecute import Reexecutor, first_divergence  # noqa: E402
from test_architectures import (  # noqa: E402
    ARCHITECTURES,
    TOLERANCE,
    Observed,
    Run,
    prompt,
    some_tokens,
    tiny,
)

torch.set_num_threads(1)

SEEDS = {name: (2 * number, 2 * number + 1) for number, name in enumerate(ARCHITECTURES)}


@cache
def mix_of(seed):
    """A mix whose prompts the tiny models know, over a cache of any precision."""
    mix = Mix.of(seed)
    kv_dtype = Random(seed).choice(["auto", "auto", "float16", "int8", "int4"])
    prompts = tuple(prompt for prompt in mix.prompts if prompt.request != "asks")
    return replace(mix.config, kv_dtype=kv_dtype), prompts


class Outcome:
    """What a run said and from which logits: (request, index) -> [vocab]."""

    def __init__(self, adopted, config, prompts):
        sink = MemorySink()
        runner = Observed(adopted, config)
        engine = Engine(config, runner, sink)
        engine.add(prompts)
        engine.run(max_steps=1000)
        self.events = [envelope.event for envelope in sink.envelopes]
        self.tokens = {name: request.tokens for name, request in engine.requests.items()}
        self.logits = {
            (name, index): runner.chosen_from[name, index]
            for name, request in engine.requests.items()
            for index in range(len(request.prompt.prompt_tokens), len(request.tokens))
        }

    def others(self, alone):
        """Where the logits are not, bit for bit, those that the request alone has."""
        return [at for at, line in self.logits.items() if not torch.equal(line, alone.logits[at])]


@cache
def together(name, seed, exact):
    config, prompts = mix_of(seed)
    return Outcome(tiny(name)[1], replace(config, exact=exact), prompts)


def alone(name, seed, exact):
    """One request at a time, in one piece, upon nobody's blocks."""
    config, prompts = mix_of(seed)
    plain = EngineConfig(
        block_size=16, num_blocks=64, max_num_seqs=1, prefix_cache=False, seed=config.seed,
        kv_dtype=config.kv_dtype, exact=exact,
    )  # fmt: skip
    prompts = [replace(prompt, abort_step=None, arrival_step=1) for prompt in prompts]
    return Outcome(tiny(name)[1], plain, prompts)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_any_mix_leaves_every_bit_of_the_logits(name):
    compared = 0
    for seed in SEEDS[name]:
        mixed, single = together(name, seed, exact=True), alone(name, seed, exact=True)
        compared += len(mixed.logits)
        assert mixed.others(single) == [], f"seed {seed}, {mix_of(seed)[0]}"
        for request, tokens in mixed.tokens.items():
            assert tokens == single.tokens[request][: len(tokens)]
    assert compared > 10


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_without_it_the_same_mixes_do_not(name):
    """Else the test above could not fail."""
    differing = [
        at
        for seed in SEEDS[name]
        for at in together(name, seed, exact=False).others(alone(name, seed, exact=False))
    ]
    assert len(differing) > 5


def test_the_mixes_exercise_every_mechanism():
    seen, switches = Counter(), Counter()
    for name, seeds in SEEDS.items():
        for seed in seeds:
            events = together(name, seed, exact=True).events
            seen.update(type(event).__name__ for event in events)
            seen.update(event.reason for event in events if isinstance(event, RequestFinished))
            config, _ = mix_of(seed)
            switches.update([config.layout, config.attention, config.kv_dtype, config.scrub])
            switches["two in flight"] += config.steps_in_flight == 2
    kinds = (
        "BlockCopied", "BlockScrubbed", "BlockShared", "DraftVerified", "GraphReplayed",
        "RequestForked", "RequestPreempted", "TransferFinished", "aborted",
    )  # fmt: skip
    assert min(seen[kind] for kind in kinds) > 2, seen
    assert seen["error"] == 0
    several = (
        "packed", "padded-left", "padded-right", "dense", "reference", "nan", "int8",
        "two in flight",
    )  # fmt: skip
    assert min(switches[kind] for kind in several) > 1, switches


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_exact_logits_are_those_of_eager_attention(name):
    """Equal to itself is not enough: over several tiles and pieces of a prompt, and windows."""
    model, adopted = tiny(name)
    prompts = [prompt(f"r{n}", some_tokens(n, n)) for n in (1, 63, 64, 65, 300)]
    run = Run(adopted, prompts, exact=True, num_blocks=64, max_num_batched_tokens=150)
    run.assert_equal_to(model, tolerance=2 * TOLERANCE)


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gemma2"])
def test_an_explicit_mask_gives_the_same_bits_as_lengths(name):
    """By lengths, key tiles outside a window are left out; under a mask they are walked."""
    _, adopted = tiny(name)
    prompts = [prompt(f"r{n}", some_tokens(n, n), 3) for n in (9, 300)]
    by_length = Outcome(adopted, EngineConfig(exact=True), prompts)
    by_mask = Outcome(adopted, EngineConfig(exact=True, attention="reference"), prompts)
    assert by_mask.others(by_length) == []


@pytest.mark.parametrize("fault", ["mask-broadcast-wrong-axis", "mask-batch-index"])
def test_a_mask_that_shows_others_is_followed(fault):
    """Exact arithmetic must not hide a fault."""
    _, adopted = tiny("llama")
    prompts = [prompt(f"r{n}", some_tokens(n, n)) for n in (20, 30)]
    config = EngineConfig(exact=True, attention="reference", faults=(fault,))
    sink, runner = MemorySink(), Observed(adopted, config)
    engine = Engine(config, runner, sink, policy=policy_of(config))
    engine.add(prompts)
    engine.run()
    right = Outcome(adopted, replace(config, faults=()), prompts)
    differing = [at for at, line in right.logits.items() if not line.equal(runner.chosen_from[at])]
    assert len(differing) > 5


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gemma2"])
def test_the_number_of_threads_changes_no_bit(name):
    _, adopted = tiny(name)
    prompts = [prompt(f"r{n}", some_tokens(n, n)) for n in (5, 17, 150)]

    def on(threads):
        torch.set_num_threads(threads)
        try:
            return Outcome(adopted, EngineConfig(exact=True), prompts)
        finally:
            torch.set_num_threads(1)

    assert on(2).others(on(1)) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_exact_too(dtype):
    adopted = AdoptedModel(deepcopy(tiny("llama")[0]), name="half", dtype=dtype)
    prompts = [prompt(f"r{n}", some_tokens(n, n)) for n in (3, 20, 70)]
    mixed = Outcome(adopted, EngineConfig(exact=True, dtype=dtype), prompts)
    for one in prompts:
        single = Outcome(adopted, EngineConfig(exact=True, dtype=dtype, block_size=4), [one])
        assert single.others(mixed) == []


def test_a_model_that_does_something_unknown_is_refused():
    class OverTheBatch(torch.nn.Module):
        def forward(self, x):
            return torch.special.i0(x)

    model = deepcopy(tiny("llama")[0])
    model.model.layers[1].mlp.act_fn = OverTheBatch()
    adopted = AdoptedModel(model, name="odd")
    with pytest.raises(NotExact, match="odd uses special_i0"):
        Outcome(adopted, EngineConfig(exact=True), [prompt("r0", some_tokens(5))])
    assert Outcome(adopted, EngineConfig(), [prompt("r0", some_tokens(5))]).tokens


def test_a_model_whose_tokens_depend_on_each_other_is_refused():
    class CentredOverTheStep(torch.nn.Module):
        """Of known operations, and yet one token's result depends on the others."""

        def forward(self, x):
            return x - 1e-6 * x.mean(dim=1, keepdim=True)

    model = deepcopy(tiny("llama")[0])
    model.model.layers[1].mlp.act_fn = CentredOverTheStep()
    adopted = AdoptedModel(model, name="odd")
    with pytest.raises(NotExact, match="odd computes a request otherwise beside another one"):
        Outcome(adopted, EngineConfig(exact=True), [prompt("r0", some_tokens(5))])


def test_exact_on_cuda_is_refused():
    with pytest.raises(BadSwitch, match="exact must be off with device cuda"):
        EngineConfig(exact=True, device="cuda")


def run_of(name):
    """(the model, the recording of an exact run of four prompts with equal beginnings)"""
    if missing := whats_missing(name):
        pytest.skip(missing)
    config = EngineConfig(exact=True, block_size=4, max_num_batched_tokens=16)
    model = load_model(name, config)
    torch.set_num_threads(1)
    tokens = model.encode("the passphrase is rolune . what is the passphrase ?", chat=False)
    prompts = [
        prompt(f"r{n}", [*tokens[: 4 + 2 * n], *tokens[n:5]], 3, arrival_step=1 + n)
        for n in range(4)
    ]
    sink = MemorySink()
    engine = Engine(config, model.runner(config), sink)
    engine.add(prompts)
    engine.run()
    return model, sink.envelopes


@pytest.fixture(scope="module")
def recorded():
    return run_of(CANARY)


def said(envelopes):
    """request -> of each of its tokens: which, its log probability, its margin."""
    found = {}
    for event in (e.event for e in envelopes):
        if isinstance(event, TokensSampled):
            rows = zip(event.requests, event.tokens, event.logprobs, event.margins, strict=True)
            for request, *values in rows:
                found.setdefault(request, []).append(values)
    return found


def test_a_replay_of_an_exact_run_is_equal_in_every_bit(recorded):
    model, envelopes = recorded
    again = Reexecutor(Recording.of(envelopes), model).run()
    assert first_divergence(envelopes, again.envelopes, bits=True) is None


@pytest.mark.parametrize("name", [CANARY, SMOLLM2])
def test_one_request_of_an_exact_run_alone_has_the_same_probabilities(name):
    model, envelopes = run_of(name)
    together = said(envelopes)
    for request in ("r0", "r3"):
        rerun = Reexecutor(Recording.of(envelopes), model).run(only=request)
        assert said(rerun.envelopes) == {request: together[request]}


def test_other_switches_leave_the_probabilities_of_an_exact_run(recorded):
    model, envelopes = recorded
    for switches in (
        {"continuous_batching": False, "max_num_seqs": 2},
        {"layout": "dense", "chunked_prefill": False, "prefix_cache": False, "block_size": 16},
    ):
        rerun = Reexecutor(Recording.of(envelopes), model).run(switches)
        assert said(rerun.envelopes) == said(envelopes)


def test_a_trace_says_that_its_run_was_exact(recorded):
    _, envelopes = recorded
    header = envelopes[0].event
    assert isinstance(header, RunStarted)
    assert header.config["exact"] is True
    assert Recording.of(envelopes).config.exact
    assert EngineConfig().as_recorded()["exact"] is False
