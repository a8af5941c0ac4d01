"""Ten architectures through the engine, tiny and random: the tokens are those of transformers.

    python examples/architectures.py

Prompts of different lengths share a batch, a prefix and a pool that is too small for them; each
answer is compared with what transformers' own generate says to that prompt alone.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from kvrewind.engine.adopted_model import AdoptedModel
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.request import Prompt
from kvrewind.engine.transformers_runner import TransformersRunner
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.check import check
from transformers import AutoConfig, AutoModelForCausalLM

WINDOW = {"sliding_window": 8}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"num_key_value_heads": 1},
    "qwen2": WINDOW | {"use_sliding_window": True, "max_window_layers": 1},
    "qwen3": WINDOW | {"use_sliding_window": True, "max_window_layers": 1},
    "mistral": WINDOW,
    "gemma2": WINDOW,
    "gemma3_text": WINDOW | {"layer_types": ["sliding_attention", "full_attention"]},
    "gpt_oss": WINDOW | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "phi3": WINDOW,
    "gpt_neox": {},
}
SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
NEW_TOKENS = 8


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    prompts = [torch.randint(1, 97, (length,)).tolist() for length in (21, 5)]
    prompts.append(prompts[0][:18] + prompts[1])  # shares a prefix with the first
    for name, changes in ARCHITECTURES.items():
        config = AutoConfig.for_model(name, **(SMALL | changes))
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        alone = [alone_in_transformers(model, tokens) for tokens in prompts]
        groups, together, verdict = together_in_the_engine(model, name, prompts)
        same = "the same tokens" if together == alone else f"{together} and not {alone}"
        print(f"{name:12} {groups}, {same}, {verdict}")


@torch.inference_mode()
def alone_in_transformers(model: Any, tokens: list[int]) -> list[int]:
    said = model.generate(torch.tensor([tokens]), do_sample=False, max_new_tokens=NEW_TOKENS)
    return said[0, len(tokens) :].tolist()


def together_in_the_engine(
    model: Any, name: str, prompts: list[list[int]]
) -> tuple[str, list[list[int]], str]:
    config = EngineConfig(block_size=4, num_blocks=12, max_num_batched_tokens=16)
    adopted = AdoptedModel(copy.deepcopy(model), name=name)
    sink = MemorySink()
    engine = Engine(config, TransformersRunner(adopted, config), sink)
    engine.add(
        [
            Prompt(request=f"r{i}", prompt_tokens=tuple(tokens), max_new_tokens=NEW_TOKENS)
            for i, tokens in enumerate(prompts)
        ]
    )
    engine.run()
    windows = [str(group.get("window", "all")) for group in adopted.card.groups]
    said = [request.tokens[-NEW_TOKENS:] for request in engine.requests.values()]
    return f"layers see {' and '.join(windows)}", said, check(sink.envelopes).verdict


if __name__ == "__main__":
    main()
