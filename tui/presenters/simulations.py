"""Measured runs side by side: one row a measure, one column a setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...engine.meter import Measured, Waits
from ...engine.simulation import Simulated

MOST_PRIORITIES = 5
"""In the table; JSON has all."""


@dataclass(frozen=True, slots=True)
class Run:
    """`setting`: what was compared, by name; empty for a run that stands alone."""

    setting: Mapping[str, Any]
    result: Simulated


@dataclass(frozen=True, slots=True)
class Row:
    """`wanted`: shown where that is true of any run."""

    title: str
    cell: Callable[[Measured], str]
    wanted: Callable[[Measured], bool] = lambda measured: True


def rows(runs: Sequence[Run]) -> tuple[Row, ...]:
    """Those that say something of these runs."""
    measured = [run.result.measured for run in runs]
    return tuple(
        row for row in (*_ROWS, *_by_priority(measured)) if any(row.wanted(one) for one in measured)
    )


def setting_cell(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def as_json(run: Run) -> dict[str, Any]:
    """Every measure, whether the table shows it or not."""
    measured = run.result.measured
    derived = {"hit_rate": measured.hit_rate, "tokens_per_s": measured.tokens_per_s}
    return {
        "setting": dict(run.setting),
        **derived,
        **asdict(measured),
        "stuck": run.result.stuck,
    }


def _by_priority(measured: Sequence[Measured]) -> Iterator[Row]:
    present = sorted({p for one in measured for p in one.first_token_by_priority})
    if len(present) < 2:
        return
    for priority in present[:MOST_PRIORITIES]:
        for title, which in (("mean", _mean), ("p95", _p95)):
            yield Row(
                f"  priority {priority}, {title}",
                lambda m, p=priority, w=which: w(m.first_token_by_priority.get(p, _NONE)),
            )


_NONE = Waits()


def _mean(waits: Waits) -> str:
    return _seconds(waits.mean_s)


def _p95(waits: Waits) -> str:
    return _seconds(waits.p95_s)


def _p99(waits: Waits) -> str:
    return _seconds(waits.p99_s)


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{1000 * value:.1f} ms" if value < 1 else f"{value:.2f} s"


def _share(of: float) -> str:
    return f"{100 * of:.1f} %"


_ROWS = (
    Row("prefix hit rate", lambda m: _share(m.hit_rate)),
    Row("evicted blocks", lambda m: str(m.evictions)),
    Row("loaded from host", lambda m: str(m.host_loads), lambda m: m.host_stores > 0),
    Row("stored to host", lambda m: str(m.host_stores), lambda m: m.host_stores > 0),
    Row("preemptions", lambda m: str(m.preemptions)),
    Row("tokens computed twice", lambda m: str(m.recomputed_tokens)),
    Row("pool in use, mean", lambda m: _share(m.pool_mean)),
    Row("pool in use, peak", lambda m: _share(m.pool_peak)),
    Row(
        "drafts accepted",
        lambda m: _share(m.drafts_accepted / m.drafts) if m.drafts else "-",
        lambda m: m.drafts > 0,
    ),
    Row("unfinished requests", lambda m: str(m.unfinished), lambda m: m.unfinished > 0),
    Row("steps", lambda m: str(m.steps)),
    Row("time", lambda m: _seconds(m.time_s)),
    Row("tokens a second", lambda m: f"{m.tokens_per_s:.1f}"),
    Row("next token, mean", lambda m: _mean(m.next_token)),
    Row("next token, p99", lambda m: _p99(m.next_token)),
    Row("first token, mean", lambda m: _mean(m.first_token)),
    Row("first token, p95", lambda m: _p95(m.first_token)),
)
