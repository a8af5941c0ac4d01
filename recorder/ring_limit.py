"""How long a ring is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import BadInput

_UNITS = {"KB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}
_LEAST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class RingLimit:
    """How much of a run stays: that many steps and up to a quarter (or 16) more, or as much as
    takes that many bytes."""

    steps: int | None = None
    bytes: int | None = None

    @classmethod
    def parse(cls, text: str) -> RingLimit:
        """From `200steps` or `64MB`. Raises BadInput."""
        found = re.fullmatch(r"([0-9]{1,12}) *(steps?|KB|MB|GB)", text.strip(), re.IGNORECASE)
        if found is None or int(found[1]) == 0:
            raise BadInput(
                f"--ring takes a number of steps or bytes, as in 200steps or 64MB, not {text!r}"
            )
        count, unit = int(found[1]), found[2].upper()
        if unit not in _UNITS:
            return cls(steps=count)
        size = count * _UNITS[unit]
        if size < _LEAST_BYTES:
            raise BadInput(f"--ring takes 1MB or more, not {text}; or give a number of steps")
        return cls(bytes=size)

    def __str__(self) -> str:
        if self.steps is not None:
            return f"{self.steps} steps"
        return f"{(self.bytes or 0) / 1e6:g} MB"
