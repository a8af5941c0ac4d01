"""A model that our cache can't serve rightly is refused when loaded, with the reason."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')

from kvrewind.engine.adopted_model import AdoptedModel, BrokenWeights  # noqa: E402
from kvrewind.engine.attention.fitness import UnfitModel  # noqa: E402
from kvrewind.engine.config import EngineConfig  # noqa: E402
from kvrewind.engine.transformers_runner import TransformersRunner  # noqa: E402
from kvrewind.recorder.errors import BadInput  # noqa: E402
from transformers import (  # noqa: E402
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def tiny(kind, **changes):
    torch.manual_seed(5)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL, **changes))


def test_a_plain_llama_is_taken_and_described():
    card = AdoptedModel(tiny("llama"), name="tiny").card
    assert card.groups == [{"layers": [0, 1], "kv_heads": 2, "head_dim": 8}]
    assert (card.vocab_size, card.max_positions, card.dtype) == (61, 64, "float32")
    assert card.versions["torch"] == torch.__version__
    assert card.eos_tokens == frozenset()


def test_window_layers_are_a_group_of_their_own_behind_the_full_ones():
    card = AdoptedModel(tiny("gemma2", head_dim=8, sliding_window=8), name="tiny").card
    assert card.groups == [
        {"layers": [1], "kv_heads": 2, "head_dim": 8},
        {"layers": [0], "kv_heads": 2, "head_dim": 8, "window": 8},
    ]


def test_traits_are_those_that_the_layers_hand_over():
    layers = AdoptedModel(
        tiny("gemma2", head_dim=8, query_pre_attn_scalar=25, attn_logit_softcapping=3.0), name="t"
    ).layers
    assert [(layer.window, layer.softcap, layer.sinks, layer.scaling) for layer in layers] == [
        (4096, 3.0, False, 0.2),
        (None, 3.0, False, 0.2),
    ]


ROPE = {"rope_theta": 1e4}

REFUSED = {
    "attention of its own": ("falcon", {}, "attention code of its own"),
    "attention of its own, alibi": ("bloom", {}, "attention code of its own"),
    "nothing handed on": ("stablelm", {}, "doesn't pass keyword arguments on"),
    "other kinds of layers": (
        "qwen3_5_text",
        {"layer_types": ["linear_attention", "full_attention"]},
        "layers of type linear_attention",
    ),
    "chunks": (
        "llama4_text",
        {"layer_types": ["chunked_attention"] * 2, "num_local_experts": 2, "head_dim": 8},
        "layers of type chunked_attention",
    ),
    "both directions": (
        "gemma3_text",
        {"use_bidirectional_attention": True, "head_dim": 8},
        "not causal",
    ),
    "a window that no layer hands over": (
        "phimoe",
        {"sliding_window": 8, "num_local_experts": 2},
        "layer 0 hands over a window of all tokens, and its configuration says 8 tokens",
    ),
    "dynamic rotary scaling": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, **ROPE}},
        "its dynamic rotary scaling depends on the whole batch",
    ),
    "long rotary scaling": (
        "phi3",
        {
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "short_factor": [1.0] * 4,
                "long_factor": [2.0] * 4,
                "original_max_position_embeddings": 32,
                **ROPE,
            },
        },
        "its longrope rotary scaling depends on the whole batch",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_our_cache_would_run_wrongly_is_refused(case):
    kind, changes, reason = REFUSED[case]
    with pytest.raises(UnfitModel, match=reason) as refusal:
        AdoptedModel(tiny(kind, **changes), name=kind)
    assert str(refusal.value).startswith(f"{kind} can't be run")
    assert refusal.value.exit_status == 2


@pytest.mark.parametrize(
    ("argument", "why"),
    [
        ("position_bias", "its attention needs position_bias"),
        ("head_mask", "its attention needs head_mask"),
        ("attention_mask", "its attention needs attention_mask"),
        ("block_indices", "its attention needs block_indices"),
    ],
)
def test_an_argument_that_would_change_the_scores_is_refused(argument, why):
    model = tiny("llama")
    inner = model.model.layers[1].self_attn.forward

    def forward(*args, **kwargs):
        return inner(*args, **kwargs | {argument: torch.zeros(1, 1, 1, 1)})

    model.model.layers[1].self_attn.forward = forward
    with pytest.raises(UnfitModel, match=why):
        AdoptedModel(model, name="tiny")


def test_a_model_that_fails_by_itself_is_refused_with_its_reason():
    model = tiny("llama")
    model.lm_head.weight = torch.nn.Parameter(torch.zeros(61, 7))
    with pytest.raises(UnfitModel, match=r"can't compute a prompt by itself .*shapes"):
        AdoptedModel(model, name="tiny")


def test_a_model_with_one_layer_that_keeps_to_itself_is_refused():
    model = tiny("llama")
    layer = model.model.layers[1].self_attn
    layer.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(UnfitModel, match="1 of its 2 layers"):
        AdoptedModel(model, name="tiny")


def test_a_model_that_computes_something_else_through_us_is_refused():
    class PositionsIgnored(LlamaForCausalLM):
        def forward(self, *args, position_ids=None, logits_to_keep=0, **kwargs):
            return super().forward(*args, logits_to_keep=logits_to_keep, **kwargs)

    torch.manual_seed(5)
    with pytest.raises(UnfitModel, match="its logits differ by"):
        AdoptedModel(PositionsIgnored(LlamaConfig(**SMALL)), name="tiny")


def test_weights_that_are_not_numbers_are_refused_by_name():
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = torch.nan
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(
        BrokenWeights, match=r"layers\.1\.mlp\.up_proj\.weight holds NaN"
    ) as refusal:
        AdoptedModel(model, name="tiny")
    assert refusal.value.exit_status == 2
    assert "\n" not in str(refusal.value)


def test_an_infinite_weight_is_refused_by_name():
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight[1, 2] = -torch.inf
    with pytest.raises(BrokenWeights, match=r"layers\.0\.self_attn\.v_proj\.weight holds infinity"):
        AdoptedModel(model, name="tiny")


def test_the_digest_tells_models_apart_and_knows_the_same_again():
    one, same, other = tiny("llama"), tiny("llama"), tiny("llama")
    with torch.no_grad():
        other.model.layers[1].mlp.up_proj.weight[3, 4] += 1e-3
    digests = [AdoptedModel(model, name="tiny").card.digest for model in (one, same, other)]
    assert digests[0] == digests[1] != digests[2]


def test_end_tokens_come_from_both_configurations():
    model = tiny("llama")
    model.config.eos_token_id = 7
    model.generation_config.eos_token_id = [7, 9]
    assert AdoptedModel(model, name="tiny").card.eos_tokens == {7, 9}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_gpu_is_named():
    with pytest.raises(BadInput, match="sees 0 CUDA devices"):
        AdoptedModel(tiny("llama"), name="tiny", device="cuda")


def test_a_pool_larger_than_memory_is_refused():
    adopted = AdoptedModel(tiny("llama", head_dim=1024), name="tiny")
    with pytest.raises(BadInput, match="lower --num-blocks"):  # 70 TB
        TransformersRunner(adopted, EngineConfig(num_blocks=2**24, block_size=127))
