"""The whole engine over a real model: sharing, preemption and admission change no answer."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')

from kvrewind.engine.adopted_model import AdoptedModel  # noqa: E402
from kvrewind.engine.config import EngineConfig  # noqa: E402
from kvrewind.engine.engine import Engine  # noqa: E402
from kvrewind.engine.request import Prompt  # noqa: E402
from kvrewind.engine.transformers_runner import TransformersRunner  # noqa: E402
from kvrewind.recorder.memory import MemorySink  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

NEW_TOKENS = 24
LENGTHS = (  # (tokens that it begins with like others, tokens of its own)
    (48, 5), (48, 17), (0, 33), (32, 40), (48, 1), (16, 16), (48, 30), (0, 1),
)  # fmt: skip


@pytest.fixture(scope="module")
def workload():
    """A model, prompts of which some begin alike, and what `generate` answers."""
    torch.manual_seed(8)
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=256,
        initializer_range=0.3, eos_token_id=None, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    numbers = np.random.default_rng(9)
    shared = numbers.integers(0, 97, 48).tolist()
    prompts = [
        shared[:prefix] + numbers.integers(0, 97, own).tolist()
        for prefix, own in LENGTHS
    ]  # fmt: skip
    answers = [_generate(model, prompt) for prompt in prompts]
    assert all(len(set(answer)) > 3 for answer in answers), "a constant answer proves nothing"
    return AdoptedModel(model, name="tiny"), prompts, answers


def _generate(model, prompt):
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


def run(adopted, prompts, config):
    sink = MemorySink()
    engine = Engine(config, TransformersRunner(adopted, config), sink)
    engine.add(
        [
            Prompt(
                request=f"r{i}",
                prompt_tokens=tuple(prompt),
                max_new_tokens=NEW_TOKENS,
                arrival_step=1 + 2 * (i // 3),
            )
            for i, prompt in enumerate(prompts)
        ]
    )
    engine.run()
    answers = [engine.requests[f"r{i}"].tokens[len(prompt) :] for i, prompt in enumerate(prompts)]
    return answers, Counter(envelope.kind for envelope in sink.envelopes)


@pytest.mark.parametrize("attention", ["fast", "reference"])
@pytest.mark.parametrize(
    ("switches", "happens"),
    [
        ({"num_blocks": 64}, "BlockShared"),
        ({"num_blocks": 64, "prefix_cache": False}, None),
        ({"num_blocks": 64, "continuous_batching": False}, "BlockShared"),
        ({"num_blocks": 14}, "RequestPreempted"),
        ({"num_blocks": 40, "block_size": 4, "max_num_seqs": 3}, "BlockUnregistered"),
    ],
    ids=["shared", "cache-off", "static", "preempted", "evicted"],
)
def test_the_answers_are_those_of_generate(workload, attention, switches, happens):
    adopted, prompts, expected = workload
    answers, events = run(adopted, prompts, EngineConfig(attention=attention, **switches))
    assert answers == expected
    if happens is not None:
        assert events[happens] > 0, f"the run exercised no {happens}"


def test_a_model_serves_one_run_after_another_from_empty_pools(workload):
    adopted, prompts, expected = workload
    config = EngineConfig(num_blocks=32)
    assert run(adopted, prompts, config) == run(adopted, prompts, config)
    assert run(adopted, prompts, config)[0] == expected
