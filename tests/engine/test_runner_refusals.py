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


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("falcon", {}, "attention code of its own"),
        ("bloom", {}, "attention code of its own"),
        ("mistral", {"sliding_window": 8}, "slides over a window"),
        ("gemma2", {"head_dim": 8}, "layers of type sliding_attention"),
        ("stablelm", {}, "doesn't pass keyword arguments on"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "depends on the whole batch",
        ),
    ],
)
def test_a_model_whose_attention_is_not_plain_is_refused(kind, changes, reason):
    with pytest.raises(UnfitModel, match=reason) as refusal:
        AdoptedModel(tiny(kind, **changes), name=kind)
    assert str(refusal.value).startswith(f"{kind} can't be run")
    assert refusal.value.exit_status == 2


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
    adopted = AdoptedModel(tiny("llama"), name="tiny")
    with pytest.raises(BadInput, match="lower --num-blocks"):
        TransformersRunner(adopted, EngineConfig(num_blocks=2**40))
