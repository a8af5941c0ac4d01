"""`record --kv-dtype`: right answers from a cache of less precision, recorded and replayed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from kvrewind.recorder.events import TokensSampled
from kvrewind.recorder.reader import TraceReader
from kvrewind.tui.cli import run

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch isn't installed")


def recorded(path: Path, *options: str) -> tuple[object, list[TokensSampled]]:
    """What the header says of the cache, and what was sampled."""
    assert run(["record", "--out", str(path), *options]) == 0
    with TraceReader(path) as reader:
        assert reader.run is not None
        sampled = [e.event for e in reader.envelopes() if isinstance(e.event, TokensSampled)]
        return reader.run.config["kv_dtype"], sampled


def margins(sampled: list[TokensSampled]) -> np.ndarray:
    return np.concatenate([event.margins or () for event in sampled])


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> list[TokensSampled]:
    """The default workload with the cache in the canary's own data type."""
    return recorded(tmp_path_factory.mktemp("full") / "a.kvtrace")[1]


@pytest.mark.parametrize(
    ("kv_dtype", "path"), [("int8", "fast"), ("int8", "reference"), ("bfloat16,int4", "fast")]
)
def test_the_canary_says_the_same_is_clean_and_replays_to_the_bit(
    kv_dtype: str, path: str, full: list[TokensSampled], tmp_path: Path
) -> None:
    trace = tmp_path / "a.kvtrace"
    told, sampled = recorded(trace, "--kv-dtype", kv_dtype, "--attention", path)
    assert told == kv_dtype
    assert [event.tokens for event in sampled] == [event.tokens for event in full]
    assert np.abs(margins(sampled) - margins(full)).max() > 1e-3
    assert run(["check", str(trace)]) == 0
    assert run(["replay", str(trace), "--verify=bits"]) == 0


def test_a_list_that_does_not_fit_the_model_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "a.kvtrace"
    assert run(["record", "--kv-dtype", "int8,int8,int8", "--out", str(trace)]) == 2
    assert "kv_dtype lists 3 layers and the model has 2" in capsys.readouterr().err
    assert not trace.exists()
