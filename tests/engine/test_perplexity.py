"""Perplexity through the paged pool: the model's own, and what the cache's precision adds to it."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')

from kvrewind.engine.adopted_model import AdoptedModel  # noqa: E402
from kvrewind.engine.config import BadSwitch  # noqa: E402
from kvrewind.engine.perplexity import (  # noqa: E402
    Measured,
    NotMeasurable,
    Plan,
    config_for,
    losses_after,
    measure,
    standard_text,
)
from kvrewind.engine.transformers_runner import TransformersRunner  # noqa: E402
from transformers import (  # noqa: E402
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

torch.set_num_threads(1)

LENGTH = 150
PLAN = Plan(lengths=(LENGTH,), last=LENGTH, windows=1)


def windowed_model():
    """Layers that see a window and layers that see all, in two KV groups."""
    torch.manual_seed(2)
    config = Gemma2Config(
        vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=4, head_dim=8,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        sliding_window=24, initializer_range=0.3, eos_token_id=None, bos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    return Gemma2ForCausalLM._from_config(config, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=256,
        initializer_range=0.3, eos_token_id=None, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def text():
    return np.random.default_rng(4).integers(0, 97, LENGTH + 1).tolist()


@pytest.fixture(scope="module")
def by_itself(model, text):
    return cross_entropy(model, text)


def cross_entropy(model, text):
    """Of every token but the first, by the model without our code."""
    ids = torch.tensor([text])
    with torch.inference_mode():
        logits = model(ids).logits[0, :-1]
        losses = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
    return losses.double().numpy()


@pytest.fixture(scope="module")
def adopted(model, by_itself):
    return AdoptedModel(copy.deepcopy(model), name="tiny")


def losses(adopted, text, kv_dtype, runner_class=TransformersRunner, **options):
    config = config_for(kv_dtype, PLAN, device="cpu", dtype="float32")
    return losses_after(runner_class(adopted, config), config, text, last=LENGTH, **options)


@pytest.mark.parametrize("chunk", [1, 7, 16, 512])
def test_in_the_model_s_own_precision_it_is_the_model_s_cross_entropy(
    adopted, text, by_itself, chunk
):
    np.testing.assert_allclose(losses(adopted, text, "auto", chunk=chunk), by_itself, atol=1e-4)


def test_layers_with_a_window_are_measured_as_the_model_computes_them(text):
    model = windowed_model()
    expected = cross_entropy(model, text)
    adopted = AdoptedModel(model, name="windowed")
    assert len(adopted.card.groups) == 2
    np.testing.assert_allclose(losses(adopted, text, "auto", chunk=40), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("kv_dtype", "least", "most"),
    [("float16", 1e-6, 1e-2), ("bfloat16", 1e-4, 5e-2), ("int8", 1e-4, 0.1), ("int4", 0.05, 2.0)],
)
def test_less_precision_comes_near_and_is_never_the_same(
    adopted, text, by_itself, kv_dtype, least, most
):
    apart = np.abs(losses(adopted, text, kv_dtype) - by_itself)
    assert least < apart.mean() < most


def test_a_list_sets_the_precision_of_each_layer_by_itself(adopted, text, by_itself):
    found = {
        listed: losses(adopted, text, listed)
        for listed in ("auto,auto,auto", "int4,auto,auto", "auto,auto,int4", "int4,int4,int4")
    }
    np.testing.assert_allclose(found["auto,auto,auto"], by_itself, atol=1e-4)
    np.testing.assert_array_equal(found["int4,int4,int4"], losses(adopted, text, "int4"))
    apart = [np.abs(found[listed] - by_itself).mean() for listed in found]
    assert apart[0] < apart[1] != apart[2] < apart[3]


def test_a_list_of_another_length_is_refused_when_the_runner_is_made(adopted):
    config = config_for("int8,int8", PLAN, device="cpu", dtype="float32")
    with pytest.raises(BadSwitch, match="kv_dtype lists 2 layers and the model has 3"):
        TransformersRunner(adopted, config)


def test_earlier_chunks_are_read_from_the_pool(adopted, text):
    """What is overwritten there after the first chunk is missed by all later ones."""

    class Scrubbing(TransformersRunner):
        def logits(self, inputs):
            if inputs.step == 2:
                (block,) = inputs.groups[0].block_tables[0, :1].tolist()
                self.pool.scrub([1], [block], "nan")
            return super().logits(inputs)

    found = losses(adopted, text, "int8", Scrubbing, chunk=32)
    assert np.isfinite(found[:32]).all()
    assert np.isnan(found[32:]).all()


def test_every_length_predicts_the_last_tokens_of_each_window_after_so_many_others(adopted, text):
    plan = Plan(lengths=(20, 70), last=8, windows=2)
    config = config_for("int8", plan, device="cpu", dtype="float32")
    windows, steps = plan.cut(text), []
    runner = TransformersRunner(adopted, config)
    short, long = measure(runner, config, windows, plan, on_step=lambda: steps.append(1))
    for found, length in ((short, 20), (long, 70)):
        contexts = [window[70 - length :] for window in windows]
        whole = [losses_after(runner, config, tokens, last=length) for tokens in contexts]
        expected = np.concatenate([every[-8:] for every in whole])
        np.testing.assert_allclose(found.losses, expected, atol=1e-5)
        assert (found.kv_dtype, found.length) == ("int8", length)
    assert np.abs(short.losses - long.losses).max() > 1e-3
    assert len(steps) == plan.steps == 4


def test_windows_lie_evenly_in_the_text_and_hold_one_token_more_than_the_longest_context():
    plan = Plan(lengths=(4, 9), last=4, windows=3)
    assert plan.cut(range(50)) == [range(10), range(20, 30), range(40, 50)]


def test_a_difference_carries_the_error_of_the_pairs():
    own = Measured("auto", 4, np.array([1.0, 3.0, 2.0, 2.0]))
    other = Measured("int8", 4, np.array([1.1, 3.3, 2.1, 2.3]))
    found = other.difference(own)
    assert found.perplexity == pytest.approx(math.exp(2.2) - math.exp(2.0))
    assert found.uncertainty == pytest.approx(
        2 * np.std([0.1, 0.3, 0.1, 0.3], ddof=1) / 2 * math.exp(2.0)
    )


def test_one_token_has_no_error_to_tell():
    own, other = (Measured("auto", 1, np.array([loss])) for loss in (1.0, 2.0))
    assert math.isnan(other.difference(own).uncertainty)


@pytest.mark.parametrize("numbers", [{"lengths": ()}, {"last": 0}, {"windows": 0}])
def test_numbers_below_one_are_refused(numbers):
    with pytest.raises(NotMeasurable, match="at least"):
        Plan(**({"lengths": (4,), "last": 2, "windows": 1} | numbers))


@pytest.mark.parametrize("length", [5, 0])
def test_a_context_shorter_than_what_is_predicted_is_refused(length):
    with pytest.raises(NotMeasurable, match=f"context of {length} tokens can't have its last 6"):
        Plan(lengths=(512, length), last=6, windows=1)


def test_a_text_that_is_too_short_is_refused_with_what_it_would_take():
    with pytest.raises(NotMeasurable, match=r"has 32 tokens, and 3 windows of 11 take 33"):
        Plan(lengths=(10,), last=5, windows=3).cut(range(32))


def test_a_length_beyond_the_model_s_positions_is_refused(adopted):
    Plan(lengths=(256,), last=5, windows=3).refuse_beyond(adopted.card)
    with pytest.raises(NotMeasurable, match="tiny has 256 positions, not 257"):
        Plan(lengths=(8, 257), last=5, windows=3).refuse_beyond(adopted.card)


def test_the_standard_text_is_english_that_comes_with_python():
    text = standard_text()
    assert len(text) > 300_000
    assert text.count(" the ") > 2_000
