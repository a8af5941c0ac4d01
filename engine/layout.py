"""How a step's rows lie before the model: packed, or padded to one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..recorder.events import Phase
from .inputs import Layout
from .rows import Row


@dataclass(frozen=True, slots=True)
class Pad:
    """A row that is nobody's: it fills the batch up, and writes and sees nothing."""

    query_len: int
    phase: Phase
    beside: Row
    """The row that it pads, or the last one of the step."""

    @property
    def seq_len(self) -> int:
        return 0

    @property
    def drafts(self) -> tuple[int, ...]:
        return ()


DeviceRow = Row | Pad


def lay_out(rows: Sequence[Row], layout: Layout) -> tuple[DeviceRow, ...]:
    """The rows in the order in which the device has them, pads included.

    Padded layouts give the model [R, longest]: each row's pads stand before or behind it.
    """
    if layout in ("packed", "dense"):
        return tuple(rows)
    longest = max(row.query_len for row in rows)
    laid: list[DeviceRow] = []
    for row in rows:
        missing = longest - row.query_len
        pads = [Pad(missing, row.phase, row)] if missing else []
        laid += [*pads, row] if layout == "padded-left" else [row, *pads]
    return tuple(laid)


def padded_to(rows: Sequence[Row], size: int) -> tuple[DeviceRow, ...]:
    """One-token rows, and pads of one token behind them up to `size` rows."""
    pad = Pad(1, "decode", rows[-1])
    return (*rows, *[pad] * (size - len(rows)))
