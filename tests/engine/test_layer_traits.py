"""KV groups follow from what the layers hand over."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')

from kvrewind.engine.attention.pool import LayerShape
from kvrewind.engine.attention.traits import LayerTraits, kv_groups

SHAPE = LayerShape(2, 8, 8)


def test_full_attention_comes_first_and_windows_follow_by_their_first_layer():
    windows = [16, None, 8, 16, None]
    groups = kv_groups([LayerTraits(SHAPE, 0.5, window=window) for window in windows])
    assert groups == [
        {"layers": [1, 4], "kv_heads": 2, "head_dim": 8},
        {"layers": [0, 3], "kv_heads": 2, "head_dim": 8, "window": 16},
        {"layers": [2], "kv_heads": 2, "head_dim": 8, "window": 8},
    ]


def test_layers_that_store_as_much_are_one_group_however_they_score():
    (group,) = kv_groups(
        [LayerTraits(SHAPE, 0.5), LayerTraits(SHAPE, 0.1, softcap=3.0, sinks=True)]
    )
    assert group["layers"] == [0, 1]


def test_values_of_another_width_are_told_and_set_layers_apart():
    groups = kv_groups([LayerTraits(SHAPE, 0.5), LayerTraits(LayerShape(2, 8, 5), 0.5)])
    assert [group.get("value_dim") for group in groups] == [None, 5]
