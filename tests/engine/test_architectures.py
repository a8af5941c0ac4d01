"""Ten architectures through transformers' own code: our logits are those of eager attention.

The whole engine runs, step by step; every token's logits are compared with one pass of the same
model over the request's final tokens.
"""

from __future__ import annotations

import copy
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')

from kvrewind.engine.adopted_model import AdoptedModel  # noqa: E402
from kvrewind.engine.config import EngineConfig  # noqa: E402
from kvrewind.engine.engine import Engine  # noqa: E402
from kvrewind.engine.models import SMOLLM2, load_model, whats_missing  # noqa: E402
from kvrewind.engine.request import Prompt  # noqa: E402
from kvrewind.engine.transformers_runner import TransformersRunner  # noqa: E402
from kvrewind.recorder.events import (  # noqa: E402
    BlockCopied,
    BlockScrubbed,
    BlockShared,
    DraftVerified,
    GraphReplayed,
    InputsBuilt,
    RequestForked,
    RequestPreempted,
    StepScheduled,
)
from kvrewind.recorder.memory import MemorySink  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

torch.set_num_threads(1)

VOCABULARY = 97
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 2048, "initializer_range": 0.15,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
ARCHITECTURES = {
    "gpt2": ("gpt2", {}),
    "llama": ("llama", {}),
    "llama, one KV head": ("llama", {"num_key_value_heads": 1}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "mistral": ("mistral", {"sliding_window": 8}),
    "gemma2": ("gemma2", {"sliding_window": 8, "attn_logit_softcapping": 1.0}),
    "gemma3": (
        "gemma3_text",
        {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt_oss": (
        "gpt_oss",
        {
            "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                "original_max_position_embeddings": 512,
            },
        },
    ),
    "phi3": ("phi3", {"sliding_window": 16}),
    "gpt_neox": ("gpt_neox", {"rotary_pct": 0.5}),
}  # fmt: skip
WITH_WINDOW = ("qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt_oss", "phi3")
TWO_GROUPS = ("qwen2", "qwen3", "gemma2", "gemma3", "gpt_oss")

TOLERANCE = 1e-5
"""On logits, of which the largest are 3 to 4."""


@cache
def tiny(name):
    """(the model with eager attention, the same model with ours)"""
    torch.manual_seed(1)
    kind, changes = ARCHITECTURES[name]
    config = AutoConfig.for_model(kind, **(SMALL | changes))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if parameter.endswith(".sinks"):
                weight.uniform_(1.0, 3.0)
    return model, AdoptedModel(copy.deepcopy(model), name=name)


@torch.inference_mode()
def logits_alone(model, tokens, last=0):
    """[last, vocab] of one pass over one sequence; 0 = behind every token."""
    ids = torch.tensor([tokens])
    return model(input_ids=ids, use_cache=False, logits_to_keep=last).logits[0].float()


class Observed(TransformersRunner):
    """Keeps the logits that each token was chosen from."""

    def __init__(self, adopted, config):
        super().__init__(adopted, config)
        self.chosen_from = {}

    def logits(self, inputs):
        logits = super().logits(inputs)
        for sample, line in zip(inputs.samples, logits, strict=True):
            self.chosen_from[sample.request, sample.index] = line
        return logits


class Run:
    """One run of the engine, to its end."""

    def __init__(self, adopted, prompts, **switches):
        config = EngineConfig(**switches)
        sink = MemorySink()
        self.runner = Observed(adopted, config)
        engine = Engine(config, self.runner, sink)
        engine.add(prompts)
        engine.run(max_steps=500)
        self.requests = engine.requests
        self.events = [envelope.event for envelope in sink.envelopes]

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def holes(self):
        """Whether each table that the device was given has one."""
        return [-1 in table for built in self.of(InputsBuilt) for table in built.block_tables]

    def assert_equal_to(self, model, tolerance=TOLERANCE):
        for name, request in self.requests.items():
            first = len(request.prompt.prompt_tokens)
            indices = range(first, len(request.tokens))
            theirs = logits_alone(model, request.tokens[:-1], last=len(indices))
            ours = torch.stack([self.runner.chosen_from[name, index] for index in indices])
            difference = (ours - theirs).abs().max().item()
            assert difference <= tolerance, f"{name}: {difference} > {tolerance}"
            if request.sampling.temperature == 0:
                best = theirs.topk(2).values
                clear = best[:, 0] - best[:, 1] > 2 * tolerance
                said = torch.tensor(request.tokens[first:])
                assert clear.any()
                assert torch.equal(said[clear], theirs.argmax(-1)[clear]), name


def prompt(name, tokens, new_tokens=6, **fields):
    return Prompt(request=name, prompt_tokens=tuple(tokens), max_new_tokens=new_tokens, **fields)


def some_tokens(count, seed=0):
    return np.random.default_rng(seed).integers(1, VOCABULARY, count).tolist()


CROWD = [prompt(f"r{n}", some_tokens(n, n), 16) for n in (7, 8, 6, 5)]
"""More than nine blocks of four hold at once, whatever the window."""


@pytest.fixture(params=ARCHITECTURES)
def architecture(request):
    return request.param


@pytest.fixture(params=["fast", "reference"])
def attention(request):
    return request.param


def test_short_and_long_prompts_mix_at_block_borders(architecture, attention):
    model, adopted = tiny(architecture)
    lengths = (1, 3, 4, 5, 10, 1000, 15, 16, 17)
    prompts = [
        prompt(f"r{length}", some_tokens(length, length), arrival_step=1 + number // 3)
        for number, length in enumerate(lengths)
    ]
    run = Run(
        adopted, prompts, attention=attention, block_size=4, num_blocks=300,
        max_num_batched_tokens=600,
    )  # fmt: skip
    run.assert_equal_to(model)
    phases = [set(event.phases) for event in run.of(StepScheduled)]
    assert {"prefill", "decode"} in phases
    assert any(run.holes()) == (architecture in WITH_WINDOW)


def test_a_preempted_request_goes_on_as_if_nothing_had_happened(architecture, attention):
    model, adopted = tiny(architecture)
    run = Run(adopted, CROWD, attention=attention, block_size=4, num_blocks=9)
    run.assert_equal_to(model)
    assert run.of(RequestPreempted)


def test_scrubbed_blocks_poison_nobody(architecture, attention):
    model, adopted = tiny(architecture)
    run = Run(adopted, CROWD, attention=attention, block_size=4, num_blocks=9, scrub="nan")
    run.assert_equal_to(model)
    assert run.of(BlockScrubbed)


def test_a_prefix_hit_continues_from_what_others_computed(architecture, attention):
    model, adopted = tiny(architecture)
    shared = some_tokens(40)
    prompts = [
        prompt("owner", [*shared, *some_tokens(3, 1)]),
        prompt("same", [*shared, *some_tokens(3, 1)], arrival_step=3),
        prompt("branch", [*shared[:33], *some_tokens(9, 2)], arrival_step=4),
        prompt("late", [*shared, 5], arrival_step=12),
    ]
    run = Run(adopted, prompts, attention=attention, block_size=16, num_blocks=32)
    run.assert_equal_to(model)
    shares = {(event.request, event.group or 0) for event in run.of(BlockShared)}
    groups = range(len(adopted.card.groups))
    assert shares == {(name, group) for name in ("same", "branch", "late") for group in groups}


def test_forks_share_the_prompt_and_go_their_own_ways(architecture, attention):
    model, adopted = tiny(architecture)
    prompts = [
        prompt("r0", some_tokens(22), 10, n=3, temperature=2.0),
        prompt("r1", some_tokens(9, 1), 10),
    ]
    run = Run(adopted, prompts, attention=attention, block_size=4, num_blocks=64)
    run.assert_equal_to(model)
    answers = {name: tuple(r.tokens[22:]) for name, r in run.requests.items() if name != "r1"}
    assert len(set(answers.values())) == len(answers) == 3
    assert len(run.of(RequestForked)) == 2
    assert run.of(BlockCopied)


@pytest.mark.parametrize("layout", ["padded-left", "padded-right", "dense"])
def test_no_layout_changes_a_token(architecture, attention, layout):
    model, adopted = tiny(architecture)
    prompts = [prompt(f"r{n}", some_tokens(n, n), 5, arrival_step=1 + n % 3) for n in (30, 1, 9, 5)]
    run = Run(adopted, prompts, attention=attention, block_size=4, layout=layout, scrub="nan")
    run.assert_equal_to(model)
    pads = any(None in built.requests for built in run.of(InputsBuilt))
    assert pads == (layout != "dense")


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gpt_oss"])
@pytest.mark.parametrize(
    ("switches", "happens"),
    [
        ({"persistent_buffers": True}, GraphReplayed),
        ({"speculation": 3}, DraftVerified),
        ({"speculation": 3, "layout": "padded-right"}, DraftVerified),
        ({"persistent_buffers": True, "steps_in_flight": 2}, GraphReplayed),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_no_way_of_decoding_changes_a_token(name, attention, switches, happens):
    model, adopted = tiny(name)
    repeated = some_tokens(5) * 5
    prompts = [prompt("r0", repeated, 20), *CROWD]
    run = Run(adopted, prompts, attention=attention, block_size=4, num_blocks=40, **switches)
    run.assert_equal_to(model)
    assert run.of(happens)


def largest_difference(model, changed, length=60):
    tokens = some_tokens(length, 7)
    theirs = logits_alone(model, tokens)
    return (logits_alone(changed, tokens) - theirs).abs().max() / theirs.abs().max()


def without(model, what):
    changed = copy.deepcopy(model)
    if what == "window":
        changed.config.sliding_window = 10**6
    for layer in changed.model.layers:
        if what == "softcap":
            layer.self_attn.attn_logit_softcapping = None
        if what == "sinks":
            layer.self_attn.sinks.data.fill_(-1e9)
    return changed


@pytest.mark.parametrize(
    ("name", "what"),
    [*[(name, "window") for name in WITH_WINDOW], ("gemma2", "softcap"), ("gpt_oss", "sinks")],
)
def test_these_models_would_say_otherwise_without_their_trait(name, what):
    """Else the tests above could not fail where a path forgets it."""
    model, _ = tiny(name)
    assert largest_difference(model, without(model, what)) > 1000 * TOLERANCE


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layers_with_and_without_a_window_are_groups_of_their_own(name):
    groups = tiny(name)[1].card.groups
    windows = [False] * (name not in WITH_WINDOW or name in TWO_GROUPS)
    windows += [True] * (name in WITH_WINDOW)
    assert ["window" in group for group in groups] == windows
    assert sorted(layer for group in groups for layer in group["layers"]) == [0, 1]


@pytest.mark.parametrize(
    ("name", "kv_heads"), [("gpt2", 4), ("llama", 2), ("llama, one KV head", 1), ("gpt_neox", 4)]
)
def test_kv_heads_are_counted_as_they_are_stored(name, kv_heads):
    (group,) = tiny(name)[1].card.groups
    assert (group["kv_heads"], group["head_dim"]) == (kv_heads, 8)


@pytest.fixture(scope="module")
def smollm2():
    """(the model with eager attention, the same weights with ours)"""
    if missing := whats_missing(SMOLLM2):
        pytest.skip(missing)
    loaded = load_model(SMOLLM2, EngineConfig())
    eager = copy.deepcopy(loaded._adopted.model)
    eager.set_attn_implementation("eager")
    return eager, loaded._adopted


def test_a_real_model_agrees_with_itself(smollm2, attention):
    eager, adopted = smollm2
    lengths = (10, 1000) if attention == "fast" else (10, 100)
    prompts = [prompt(f"r{n}", some_tokens(n, n), 3) for n in lengths]
    run = Run(adopted, prompts, attention=attention, num_blocks=72, max_num_batched_tokens=512)
    run.assert_equal_to(eager, tolerance=2e-4)
