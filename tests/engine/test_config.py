"""Every switch is one frozen field, checked when the configuration is built."""

from __future__ import annotations

from typing import Any

import pytest
from kvrewind.engine.config import BadSwitch, EngineConfig
from kvrewind.engine.faults.registry import FAULTS, fault_named, with_implied


@pytest.mark.parametrize(
    ("switch", "value"),
    [
        ("block_size", 0),
        ("num_blocks", -1),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 0),
        ("attention", "flash"),
        ("dtype", "int4"),
        ("device", "tpu"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(switch: str, value: Any) -> None:
    with pytest.raises(BadSwitch, match=switch):
        EngineConfig(**{switch: value})


def test_the_recorded_map_gives_the_configuration_back() -> None:
    config = EngineConfig(block_size=8, prefix_cache=False, faults=("key-no-parent",), seed=3)
    recorded = config.as_recorded() | {"switch_of_a_later_version": 1}
    assert EngineConfig.from_recorded(recorded) == config
    assert recorded["sharing"] == "off"


def test_mask_faults_imply_the_reference_path() -> None:
    for fault in FAULTS:
        config = with_implied(EngineConfig(faults=(fault.name,)))
        assert config.attention == fault.implies.get("attention", "fast")
    assert with_implied(EngineConfig(faults=("mask-batch-index",))).attention == "reference"


def test_an_unknown_fault_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadSwitch, match=r"no fault 'key-lenght-only'.*key-length-only"):
        fault_named("key-lenght-only")
