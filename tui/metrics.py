"""What a recording has seen so far, for Prometheus to scrape.

Served from a thread of its own, over HTTP at `/metrics`, by the package `prometheus-client` (extra
`metrics`), which is loaded only when asked for.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ..recorder.errors import BadInput
from ..recorder.events import Envelope
from ..replay.checks import CHECKS
from ..replay.run_tally import RunTally

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_ADDRESS = re.compile(r"(?:(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):)?(?P<port>[0-9]{1,5})")
_LOOPBACK = "127.0.0.1"
_FINDINGS = "Findings of the online checks"
_CHECKS = (*(rule.slug for rule in CHECKS), "passphrase")


class Address(NamedTuple):
    """Where to serve. Port 0: any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `9464` (this machine only) or `0.0.0.0:9464`. Raises `BadInput`."""
        found = _ADDRESS.fullmatch(text.strip())
        if found is None or int(found["port"]) > 65_535:
            raise BadInput(
                f"--metrics must be a port as in 9464, or a host and a port as in 0.0.0.0:9464, "
                f"not {text!r}"
            )
        return cls((found["host"] or _LOOPBACK).strip("[]"), int(found["port"]))


@dataclass(frozen=True, slots=True)
class RecorderUse:
    """What the recorder itself has done by now."""

    queued_events: int
    """Accepted and not committed."""
    events: int
    dropped_events: int
    trace_bytes: int | None
    """None where the trace is no file."""


class Gauges:
    """Counts steps as an observer does, and gives the counts to a scrape in another thread.

    `recorder` gives what the recorder has done, if there is one.
    """

    def __init__(self) -> None:
        self.recorder: Callable[[], RecorderUse] | None = None
        self._findings: Callable[[], Mapping[str, int]] | None = None
        self._lock = threading.Lock()
        self._tally = RunTally()

    def __call__(self, envelopes: Sequence[Envelope]) -> None:
        with self._lock:
            self._tally(envelopes)

    def restart(self, findings: Callable[[], Mapping[str, int]] | None = None) -> None:
        """Count another run, of which `findings` gives the findings by check."""
        with self._lock:
            self._tally, self._findings = RunTally(), findings

    def collect(self) -> Iterator[Metric]:
        """The interface of a Prometheus collector."""
        with self._lock:
            yield from _of_run(self._tally)
        if self._findings is not None:
            yield _labelled("kvrewind_findings", _FINDINGS, ("check",), _by_check(self._findings()))
        if self.recorder is not None:
            yield from _of_recorder(self.recorder())


def _of_run(tally: RunTally) -> list[Metric]:
    pools = {
        (str(group), state): float(count)
        for group, use in tally.pools().items()
        for state, count in use._asdict().items()
        if count is not None
    }
    unfinished = tally.requests - tally.finished
    return [
        _gauge(
            "kvrewind_prefix_hit_ratio", "Share of prompt tokens from the cache", tally.hit_rate
        ),
        _labelled("kvrewind_pool_blocks", "Blocks of the pool", ("group", "state"), pools),
        _gauge("kvrewind_unfinished_requests", "Requests added and not ended", unfinished),
        _counter("kvrewind_requests", "Requests added", tally.requests),
        _counter("kvrewind_preemptions", "Times a request was preempted", tally.preemptions),
        _counter("kvrewind_steps", "Scheduler steps with rows", tally.steps),
        _counter("kvrewind_prompt_tokens", "Tokens of the prompts added", tally.prompt_tokens),
        _counter("kvrewind_sampled_tokens", "Tokens generated", tally.sampled_tokens),
    ]


def _of_recorder(use: RecorderUse) -> Iterator[Metric]:
    name = "kvrewind_recorder"
    yield _gauge(f"{name}_queued_events", "Events that wait to be written", use.queued_events)
    yield _counter(f"{name}_events", "Events recorded or dropped", use.events)
    yield _counter(f"{name}_dropped_events", "Events that found no room", use.dropped_events)
    if use.trace_bytes is not None:
        yield _gauge(f"{name}_trace_bytes", "Size of the trace", use.trace_bytes)


def _by_check(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    """Checks that found nothing too, so that an alert may ask for each from the start."""
    return {(check,): float(counts.get(check, 0)) for check in {*_CHECKS, *counts}}


def _gauge(name: str, what: str, value: float) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(name, what, value=value)


def _counter(name: str, what: str, value: float) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(name, what, value=value)


def _labelled(
    name: str, what: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]
) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, what, labels=labels)
    for of, value in sorted(values.items()):
        family.add_metric(of, value)
    return family


class MetricsServer:
    """Serves gauges until it is closed.

    Raises `BadInput` where the extra is missing, or the address can't be served at.
    """

    def __init__(self, address: Address, gauges: Gauges) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise BadInput(
                '--metrics needs the package prometheus-client: pip install "kvrewind[metrics]"'
            ) from error
        registry = CollectorRegistry()
        registry.register(gauges)  # pyright: ignore[reportArgumentType] -- it asks for no subclass
        try:
            self._server: Any
            self._server, _ = start_http_server(address.port, address.host, registry)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise BadInput(
                f"--metrics can't serve at {address.host}:{address.port}: {why}; "
                "choose another port, or 0 for a free one"
            ) from error
        host = f"[{address.host}]" if ":" in address.host else address.host
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
