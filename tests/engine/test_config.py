"""Every switch is one frozen field, checked when the configuration is built."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from kvrewind.engine.config import SECTIONS, BadSwitch, EngineConfig
from kvrewind.engine.faults.registry import FAULTS, fault_named, with_implied


@pytest.mark.parametrize(
    ("switch", "value", "allowed"),
    [
        ("block_size", 0, "at least 1"),
        ("block_size", 2.5, "a whole number"),
        ("block_size", "16", "a whole number"),
        ("block_size", 10**10, "at most 2147483647"),
        ("num_blocks", -1, "at least 1"),
        ("num_blocks", True, "a whole number"),
        ("num_blocks", 2**24 + 1, "at most 16777216"),
        ("max_num_seqs", 0, "at least 1"),
        ("max_num_batched_tokens", 0, "at least 1"),
        ("continuous_batching", 1, "true or false"),
        ("chunked_prefill", "no", "true or false"),
        ("preemption", None, "true or false"),
        ("steps_in_flight", 3, "1 or 2"),
        ("speculation", -1, "at least 0"),
        ("sharing", "all", "off, tenant or global"),
        ("granularity", "word", "block, paragraph, prompt or sequence"),
        ("reuse", "lifo", "first-freed, last-freed or quarantine=N"),
        ("reuse", "quarantine=-1", "first-freed, last-freed or quarantine=N"),
        ("reuse", "quarantine=256", "N below the pool's 256 blocks"),
        ("scrub", "ones", "none, zero or nan"),
        ("scrub_at", "never", "free or allocation"),
        ("host_blocks", -1, "at least 0"),
        ("transfer_steps", 0, "at least 1"),
        ("layout", "ragged", "packed, padded-left, padded-right or dense"),
        ("attention", "flash", "fast or reference"),
        ("device", "tpu", "cpu, cuda, cuda:N or auto"),
        ("device", "cudax", "cpu, cuda, cuda:N or auto"),
        ("dtype", "int4", "float32, bfloat16 or float16"),
        ("kv_dtype", "int3", "auto, float16, bfloat16, int8 or int4"),
        ("kv_dtype", "int8,", "a comma list with one a layer"),
        ("kv_dtype", 8, "a text"),
        ("seed", 2**40, "at most"),
        ("faults", ["key-no-parent"], "a tuple of texts"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name_with_what_is_allowed(
    switch: str, value: Any, allowed: str
) -> None:
    with pytest.raises(BadSwitch) as refused:
        EngineConfig(**{switch: value})
    told = str(refused.value)
    assert told.startswith(f"{switch} must be ")
    assert allowed in told
    assert repr(value) in told


@pytest.mark.parametrize(
    ("switches", "told"),
    [
        ({"speculation": 2, "steps_in_flight": 2}, "speculation must be 0 with steps_in_flight 2"),
        (
            {"persistent_buffers": True, "layout": "dense"},
            "persistent_buffers must be off with layout dense",
        ),
        ({"num_blocks": 2**20, "block_size": 2**20}, "num_blocks must be at most 2047 with this"),
    ],
)
def test_a_combination_that_cannot_work_is_refused(switches: dict[str, Any], told: str) -> None:
    for name, value in switches.items():
        if name != "num_blocks":
            EngineConfig(**{name: value, "num_blocks": 16})  # each by itself does
    with pytest.raises(BadSwitch, match=told):
        EngineConfig(**switches)


def test_what_a_trace_says_of_its_switches_is_checked_like_anything_else() -> None:
    recorded = EngineConfig().as_recorded() | {"block_size": "16"}
    with pytest.raises(BadSwitch, match="block_size must be a whole number"):
        EngineConfig.from_recorded(recorded)


def test_every_switch_stands_in_a_section_of_the_command_line_and_says_what_it_does() -> None:
    for switch in fields(EngineConfig):
        assert switch.metadata["section"] in SECTIONS
        assert switch.metadata["help"].endswith(".")


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
