"""The cache in less precision than the model: how far off, in which layers, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')

from kvrewind.engine.attention.quantize import (  # noqa: E402
    INT4_LEVELS,
    INT8_LEVELS,
    dequantize,
    pack,
    quantize,
    unpack,
)
from kvrewind.engine.config import BadSwitch, EngineConfig  # noqa: E402
from kvrewind.engine.kv_dtype import layer_dtypes  # noqa: E402
from kvrewind.engine.llm import open_model  # noqa: E402

torch.set_num_threads(1)

LEVELS = (INT8_LEVELS, INT4_LEVELS)
LOST = 127 * torch.finfo(torch.float32).tiny
"""Vectors with no larger entry may become zeros."""


def vectors(**elements):
    shape = st.tuples(st.integers(1, 4), st.integers(1, 9))
    return arrays(np.float32, shape, elements=st.floats(width=32, **elements)).map(torch.from_numpy)


finite = vectors(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("levels", LEVELS)
@given(x=finite)
def test_what_comes_back_is_off_by_half_a_step_at_most(levels, x):
    codes, scales = quantize(x, levels)
    back = dequantize(codes, scales, torch.float32)
    error = (x.double() - back.double()).abs()
    assert (error <= scales.double() / 2 * (1 + 1e-5) + LOST).all()
    assert codes.abs().max() <= levels
    assert back.isfinite().all()


@pytest.mark.parametrize("levels", LEVELS)
@given(x=finite)
def test_quantizing_what_came_back_changes_it_no_further(levels, x):
    once = dequantize(*quantize(x, levels), torch.float32)
    twice = dequantize(*quantize(once, levels), torch.float32)
    torch.testing.assert_close(twice, once, rtol=1e-6, atol=LOST)


@pytest.mark.parametrize("levels", LEVELS)
@given(x=finite)
def test_a_vector_is_stored_the_same_whatever_stands_beside_it(levels, x):
    larger = torch.full_like(x, 3e38)
    for together, alone in zip(
        quantize(torch.cat([larger, x]), levels), quantize(x, levels), strict=True
    ):
        assert torch.equal(together[len(x) :], alone)


@pytest.mark.parametrize("levels", LEVELS)
def test_zeros_nan_and_the_very_large_survive_in_kind(levels):
    largest, nan, inf = torch.finfo(torch.float32).max, torch.nan, torch.inf
    rows = torch.tensor([[0.0, 0.0], [nan, 2.0], [largest, -largest], [-inf, 1.0], [3.0, -1.5]])
    zeros, broken, large, infinite, plain = dequantize(*quantize(rows, levels), torch.float32)
    assert zeros.tolist() == [0.0, 0.0]
    assert broken.isnan().all()
    torch.testing.assert_close(large, rows[2], rtol=1e-5, atol=0)
    assert infinite[0] < -0.99 * largest
    torch.testing.assert_close(plain, rows[4], atol=3.0 / levels / 2 + 1e-6, rtol=0)


@given(
    codes=arrays(
        np.int8,
        st.tuples(st.integers(1, 4), st.integers(1, 9)),
        elements=st.integers(-INT4_LEVELS, INT4_LEVELS),
    ).map(torch.from_numpy)
)
def test_four_bits_pack_two_to_a_byte_and_come_back_exactly(codes):
    dim = codes.shape[-1]
    packed = pack(codes)
    assert packed.shape == (len(codes), (dim + 1) // 2)
    assert torch.equal(unpack(packed, dim), codes)


def test_a_single_setting_holds_for_all_layers_and_a_list_names_each():
    assert layer_dtypes("int8", 3) == ("int8",) * 3
    assert layer_dtypes("auto,int8,int4", 3) == ("auto", "int8", "int4")


@pytest.mark.parametrize("listed", ["int8,int8", "int8,int8,auto,auto"])
def test_a_list_of_another_length_than_the_model_is_refused(listed):
    with pytest.raises(BadSwitch, match=r"kv_dtype lists \d layers and the model has 3; .*int4"):
        layer_dtypes(listed, 3)


@pytest.mark.parametrize("value", ["int3", "int8,", "auto;int8", ""])
def test_an_unknown_data_type_is_refused_with_those_allowed(value):
    with pytest.raises(BadSwitch, match=r"kv_dtype must be auto, .*int4.*a comma list"):
        EngineConfig(kv_dtype=value)


def test_the_simulator_refuses_a_list_of_more_layers_than_it_has():
    model = open_model("symbolic-windows", EngineConfig())
    model.runner(EngineConfig(kv_dtype="int8,int4"))
    with pytest.raises(BadSwitch, match="kv_dtype lists 3 layers and the model has 2"):
        model.runner(EngineConfig(kv_dtype="int8,int4,int8"))
