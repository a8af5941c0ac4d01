"""Every fault that can be planted, in the order of their classes."""

from __future__ import annotations

from dataclasses import replace

from ..config import BadSwitch, EngineConfig
from ..decisions import Policy, Reference
from .base import Fault, Faulty
from .counts import FREE_WHILE_SHARED
from .lifetime import TABLE_KEEPS_FREED
from .mask import MASK_BATCH_INDEX, MASK_BROADCAST_WRONG_AXIS
from .prefix import KEY_LENGTH_ONLY, KEY_NO_PARENT

FAULTS: tuple[Fault, ...] = (
    KEY_NO_PARENT,
    KEY_LENGTH_ONLY,
    FREE_WHILE_SHARED,
    TABLE_KEEPS_FREED,
    MASK_BATCH_INDEX,
    MASK_BROADCAST_WRONG_AXIS,
)


def fault_named(name: str) -> Fault:
    """Raises `BadSwitch` with the nearest known names."""
    for fault in FAULTS:
        if fault.name == name:
            return fault
    known = ", ".join(fault.name for fault in FAULTS)
    raise BadSwitch(f"there is no fault {name!r}; known are {known} (see `kvrewind faults`)")


def policy_of(config: EngineConfig) -> Policy:
    """How an engine with this configuration decides: rightly, but for the faults planted."""
    if not config.faults:
        return Reference()
    return Faulty(tuple(fault_named(name) for name in config.faults))


def with_implied(config: EngineConfig) -> EngineConfig:
    """The configuration with the switches that its faults need."""
    implied = {
        switch: value
        for name in config.faults
        for switch, value in fault_named(name).implies.items()
    }
    return replace(config, **implied)
