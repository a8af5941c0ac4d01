"""The whole engine over the kernels: models attend by them, and every answer stays what it was."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')
pytest.importorskip("triton", reason='needs the extra: pip install "kvrewind[engine]"')

from kernel_device import DEVICE, INTERPRETED  # noqa: E402
from kvrewind.engine import decode_graphs  # noqa: E402
from kvrewind.engine.adopted_model import AdoptedModel  # noqa: E402
from kvrewind.engine.attention import paths  # noqa: E402
from kvrewind.engine.attention.triton_path import TritonAttention  # noqa: E402
from kvrewind.engine.attention.triton_pool import TritonPool  # noqa: E402
from kvrewind.engine.config import EngineConfig  # noqa: E402
from kvrewind.engine.engine import Engine  # noqa: E402
from kvrewind.engine.request import Prompt  # noqa: E402
from kvrewind.engine.transformers_runner import TransformersRunner  # noqa: E402
from kvrewind.recorder.events import BlockScrubbed, BlockShared, GraphReplayed  # noqa: E402
from kvrewind.recorder.memory import MemorySink  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # numpy's, of infinities

SMALL = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 512, "initializer_range": 0.3, "tie_word_embeddings": False,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
OTHERS = {
    "gemma2": {"sliding_window": 8, "attn_logit_softcapping": 1.0},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "gpt_oss": {"sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
}


class EagerCapture:
    """In the place of a CUDA graph: computes again, on what the arrays then hold."""

    def __call__(self, compute):
        return compute


class FixedCapture:
    """A graph that was captured and never replayed."""

    def __call__(self, compute):
        result = compute()
        return lambda: result


@pytest.fixture
def kernels(monkeypatch):
    """Triton does the work wherever the model is."""
    monkeypatch.setattr(paths, "uses_kernels", lambda device: True)
    if INTERPRETED:
        monkeypatch.setattr(decode_graphs, "CudaCapture", EagerCapture)


def tiny(kind):
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **(SMALL | OTHERS.get(kind, {})))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if parameter.endswith(".sinks"):
                weight.uniform_(1.0, 3.0)
    return model


def answers(adopted, **switches):
    """Of three requests, the last of which begins like the first, and what happened."""
    config = EngineConfig(
        block_size=4, num_blocks=24, max_num_batched_tokens=16, device=str(adopted.device),
        **switches,
    )  # fmt: skip
    sink = MemorySink()
    engine = Engine(config, TransformersRunner(adopted, config), sink)
    numbers = np.random.default_rng(3).integers(0, 97, 40).tolist()
    texts = numbers[:18], numbers[20:23], numbers[:13]
    engine.add(
        [
            Prompt(
                request=f"r{i}",
                prompt_tokens=tuple(text),
                max_new_tokens=4,
                arrival_step=1 + 4 * (i == 2),
            )
            for i, text in enumerate(texts)
        ]
    )
    engine.run()
    tokens = [engine.requests[f"r{i}"].tokens[len(text) :] for i, text in enumerate(texts)]
    assert all(len(set(answer)) > 1 for answer in tokens)
    return tokens, {type(envelope.event) for envelope in sink.envelopes}


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss"])
def test_windows_soft_caps_and_sinks_of_models_pass_the_trial_at_load(kind, kernels):
    """Which compares the logits with those that the model computes by itself."""
    adopted = AdoptedModel(tiny(kind), name=kind, device=str(DEVICE))
    config = EngineConfig(device=str(DEVICE))
    runner = TransformersRunner(adopted, config)
    assert isinstance(runner.pool, TritonPool)
    assert runner._path.func is TritonAttention


def test_every_answer_is_that_of_the_fast_path(monkeypatch):
    """Of a model with two KV groups, one of them behind a window."""
    model = tiny("qwen2")
    expected, happened = answers(AdoptedModel(model, name="qwen2"))
    assert BlockShared in happened
    monkeypatch.setattr(paths, "uses_kernels", lambda device: True)
    adopted = AdoptedModel(tiny("qwen2"), name="qwen2", device=str(DEVICE))
    ours, happened = answers(adopted, scrub="nan")
    assert ours == expected
    assert {BlockShared, BlockScrubbed} <= happened


def test_steps_that_are_captured_give_the_same_answers(kernels):
    adopted = AdoptedModel(tiny("llama"), name="llama", device=str(DEVICE))
    expected, _ = answers(adopted)
    ours, happened = answers(adopted, persistent_buffers=True, steps_in_flight=2)
    assert ours == expected
    assert GraphReplayed in happened


def test_a_graph_that_is_not_replayed_gives_other_answers(kernels, monkeypatch):
    """So the answers above do come from what is replayed."""
    adopted = AdoptedModel(tiny("llama"), name="llama", device=str(DEVICE))
    expected, _ = answers(adopted)
    monkeypatch.setattr(decode_graphs, "CudaCapture", FixedCapture)
    ours, _ = answers(adopted, persistent_buffers=True)
    assert ours != expected
