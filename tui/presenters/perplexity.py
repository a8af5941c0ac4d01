"""What the precision of the cache costs, as rows, as JSON, and as a plot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ...engine.perplexity import Difference, Measured

PLOT_HEIGHT = 18
INSTALL_PLOT = 'pip install "kvrewind[plot]"'


@dataclass(frozen=True, slots=True)
class Compared:
    """One setting at one length beside the model's own data type, whose `difference` is None."""

    measured: Measured
    difference: Difference | None

    def row(self) -> tuple[str, ...]:
        """Cells: context, setting, perplexity, difference."""
        measured, difference = self.measured, self.difference
        apart = "" if difference is None else signed(difference)
        return str(measured.length), measured.kv_dtype, f"{measured.perplexity:.4f}", apart

    def to_json(self) -> dict[str, Any]:
        """As `--format json` has it; null where there is no number."""
        difference = self.difference
        return {
            "length": self.measured.length,
            "kv_dtype": self.measured.kv_dtype,
            "perplexity": _finite(self.measured.perplexity),
            "difference": None if difference is None else _finite(difference.perplexity),
            "uncertainty": None if difference is None else _finite(difference.uncertainty),
        }


def compared(base: Sequence[Measured], others: Sequence[Sequence[Measured]]) -> list[Compared]:
    """By length, and within a length the model's own data type first."""
    found: list[Compared] = []
    for at, own in enumerate(base):
        found.append(Compared(own, None))
        found += [Compared(other[at], other[at].difference(own)) for other in others]
    return found


def signed(difference: Difference) -> str:
    return f"{difference.perplexity:+.4f} ± {difference.uncertainty:.4f}"


def can_plot() -> bool:
    return find_spec("plotext") is not None


def plot(entries: Sequence[Compared], title: str, width: int) -> str:
    """Added perplexity by context length, as text with ANSI colours. Needs plotext."""
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.limit_size(False, False)  # the width is ours to say, also in a pipe
    plotext.plotsize(width, PLOT_HEIGHT)
    for kv_dtype, points in _curves(entries):
        lengths, added = zip(*points, strict=True)
        plotext.plot(lengths, added, label=kv_dtype, marker="braille")
    lengths = sorted({entry.measured.length for entry in entries})
    plotext.xscale("log")
    plotext.xticks(lengths, [str(length) for length in lengths])
    plotext.title(title)
    plotext.xlabel("context, tokens")
    return plotext.build()


def _curves(entries: Sequence[Compared]) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    """(setting, its (length, added perplexity)s), without what can't be drawn."""
    for kv_dtype in dict.fromkeys(e.measured.kv_dtype for e in entries if e.difference):
        points = [
            (entry.measured.length, entry.difference.perplexity)
            for entry in entries
            if entry.difference is not None
            and entry.measured.kv_dtype == kv_dtype
            and math.isfinite(entry.difference.perplexity)
        ]
        if points:
            yield kv_dtype, points


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
