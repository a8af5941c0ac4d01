"""Linear layers computed from packed weights: when, and that they say the same."""

from __future__ import annotations

import threading

import pytest
import torch
from kvrewind.engine.packed_weights import PackedWeights
from torch import Tensor, nn

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


@pytest.fixture
def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(256, 400)


@pytest.mark.parametrize("rows", [1, 2, 16, 65])
@torch.inference_mode()
def test_a_packed_layer_computes_what_the_plain_one_does(layer: nn.Linear, rows: int) -> None:
    x = torch.randn(1, rows, 256)
    plain = layer(x)
    with PackedWeights(layer).used():
        torch.testing.assert_close(layer(x), plain, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_the_packed_copy_is_read_only_while_it_is_asked_for(layer: nn.Linear) -> None:
    x = torch.randn(3, 256)
    before = layer(x)
    packed = PackedWeights(layer)
    layer.weight.zero_()
    assert not torch.allclose(layer(x), before)
    with packed.used():
        torch.testing.assert_close(layer(x), before, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(layer(x), before)


@torch.inference_mode()
def test_another_thread_goes_on_with_the_plain_weights(layer: nn.Linear) -> None:
    x = torch.randn(3, 256)
    packed = PackedWeights(layer)
    layer.weight.zero_()
    plain, elsewhere = layer(x), list[Tensor]()

    @torch.inference_mode()
    def compute() -> None:
        elsewhere.append(layer(x))

    with packed.used():
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
    assert torch.equal(elsewhere[0], plain)


@pytest.mark.parametrize("other", [nn.Linear(256, 400).bfloat16(), nn.Linear(16, 24)])
def test_a_layer_of_another_data_type_and_a_small_one_are_left_alone(other: nn.Linear) -> None:
    forward = other.forward
    PackedWeights(other)
    assert other.forward == forward
