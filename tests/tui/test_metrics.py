"""`--metrics`: what Prometheus gets when it scrapes a run."""

from __future__ import annotations

import builtins
import re
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.faults.registry import with_implied
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.workloads.default import default_workload
from kvrewind.recorder.errors import BadInput
from kvrewind.recorder.writer import TraceWriter
from kvrewind.replay.checks import CHECKS
from kvrewind.replay.run_tally import RunTally
from kvrewind.tui.cli import run
from kvrewind.tui.metrics import Address
from kvrewind.tui.watching import OnFinding, Watch

pytest.importorskip("prometheus_client", reason='needs the extra: pip install "kvrewind[metrics]"')

Samples = Mapping[str, float]
"""Name with labels -> value."""


def scrape(url: str) -> Samples:
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return {
        ",".join(
            [sample.name, *(sample.labels[name] for name in sorted(sample.labels))]
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def url_of(told: str) -> str:
    (url,) = re.findall(r"^metrics: (http://\S+)$", told, re.MULTILINE)
    return url


class Scraped:
    """A run of the default workload, scraped after each step and once it is written."""

    def __init__(
        self,
        path: Path,
        on_finding: OnFinding,
        capsys: pytest.CaptureFixture[str],
        faults: tuple[str, ...] = (),
    ) -> None:
        workload, model = default_workload(), SymbolicModel()
        config = with_implied(EngineConfig(faults=faults, **workload.switches))
        prompts = [spec.tokenized(model.encode, 16) for spec in workload.specs]
        self.during: list[Samples] = []
        with Watch(on_finding, "0") as watch:
            url = url_of(capsys.readouterr().err)
            with TraceWriter(path) as writer:
                sink = watch.recording(writer)
                self.engine = make_engine(model, config, prompts, sink)
                self.engine.run(400, lambda: self.during.append(scrape(url)))
            self.after = scrape(url)
        self.writer, self.config = writer, config
        with pytest.raises(OSError):
            scrape(url)


@pytest.fixture
def clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Scraped]:
    yield Scraped(tmp_path / "clean.kvtrace", "log", capsys)


def test_a_scrape_tells_of_the_run_and_of_the_recorder(clean: Scraped) -> None:
    samples, requests = clean.after, clean.engine.requests
    assert samples["kvrewind_requests_total"] == len(requests)
    assert samples["kvrewind_unfinished_requests"] == 0
    assert samples["kvrewind_sampled_tokens_total"] == sum(r.num_sampled for r in requests.values())
    assert samples["kvrewind_prompt_tokens_total"] == sum(
        len(r.prompt.prompt_tokens) for r in requests.values()
    )
    assert samples["kvrewind_preemptions_total"] > 0
    assert 0 < samples["kvrewind_prefix_hit_ratio"] < 1
    assert samples["kvrewind_steps_total"] == clean.engine.step_number
    assert samples["kvrewind_recorder_events_total"] == clean.writer.events
    assert samples["kvrewind_recorder_queued_events"] == 0
    assert samples["kvrewind_recorder_dropped_events_total"] == 0
    assert isinstance(clean.writer.path, Path)
    assert samples["kvrewind_recorder_trace_bytes"] == clean.writer.path.stat().st_size
    pool = [samples[f"kvrewind_pool_blocks,0,{state}"] for state in ("used", "cached", "free")]
    assert sum(pool) == clean.config.num_blocks
    assert pool[0] == 0
    assert pool[1] > 0


def test_the_counts_move_while_the_run_goes_on(clean: Scraped) -> None:
    used = [samples.get("kvrewind_pool_blocks,0,used", 0) for samples in clean.during]
    assert max(used) > 10
    events = [samples["kvrewind_recorder_events_total"] for samples in clean.during]
    assert events == sorted(set(events))
    assert max(samples["kvrewind_recorder_queued_events"] for samples in clean.during) > 0


def test_every_check_is_there_from_the_start_so_that_an_alert_can_ask_for_it(
    clean: Scraped,
) -> None:
    for check_slug in (*(rule.slug for rule in CHECKS), "passphrase"):
        assert clean.during[0][f"kvrewind_findings,{check_slug}"] == 0
        assert clean.after[f"kvrewind_findings,{check_slug}"] == 0


def test_findings_are_counted_by_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leak = Scraped(tmp_path / "leak.kvtrace", "log", capsys, ("key-length-only",))
    assert leak.after["kvrewind_findings,identity"] == 7
    assert leak.after["kvrewind_findings,foreign-read"] == 7
    assert leak.after["kvrewind_findings,passphrase"] > 0
    assert leak.after["kvrewind_findings,mask"] == 0


def test_without_checks_nothing_is_said_of_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = Scraped(tmp_path / "unchecked.kvtrace", "off", capsys).after
    assert samples["kvrewind_steps_total"] > 0
    assert not [name for name in samples if name.startswith("kvrewind_findings")]


# --- where it is served ---------------------------------------------------------------------------


@pytest.fixture
def record(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def recorded(metrics: str) -> tuple[int, str]:
        trace = tmp_path / "t.kvtrace"
        status = run(["record", "--model", "symbolic", "--out", str(trace), "--metrics", metrics])
        assert trace.exists() is (status == 0)
        return status, capsys.readouterr().err

    return recorded


def test_port_0_takes_a_free_one_and_says_which(record) -> None:
    status, told = record("0")
    assert status == 0
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9][0-9]+/metrics", url_of(told))


def test_a_busy_port_is_refused_in_one_sentence_before_anything_runs(record) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, told = record(str(port))
    assert status == 2
    assert told == (
        f"kvrewind: --metrics can't serve at 127.0.0.1:{port}: address already in use; "
        "choose another port, or 0 for a free one\n"
    )


@pytest.mark.parametrize("text", ["", "web", "70000", "-1", "host:", ":80:80", "1.5"])
def test_what_is_no_port_is_refused(text: str, record) -> None:
    status, told = record(text)
    assert status == 2
    assert "Traceback" not in told
    assert repr(text) in told


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_a_host_may_be_named(text: str, address: tuple[str, int]) -> None:
    assert Address.parse(text) == address


def test_a_missing_package_is_named_with_what_installs_it(
    record, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = builtins.__import__

    def without(name: str, *args, **more):
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return load(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    status, told = record("0")
    assert status == 2
    assert told == (
        'kvrewind: --metrics needs the package prometheus-client: pip install "kvrewind[metrics]"\n'
    )


def test_a_host_that_is_nobodys_is_refused() -> None:
    with pytest.raises(BadInput, match=r"can't serve at 203\.0\.113\.9:0"):
        Watch("off", "203.0.113.9:0")


def test_gauges_that_fail_are_told_and_the_recording_goes_on(
    record, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: RunTally, envelopes: object) -> None:
        raise LookupError("no such gauge")

    monkeypatch.setattr(RunTally, "__call__", failing)
    status, told = record("0")
    assert status == 0
    assert told.count("LookupError('no such gauge')") == 1
    assert "saw no more of it" in told
