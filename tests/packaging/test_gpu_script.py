"""`make test-gpu`: what can be said of it without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kvrewind.tui.cli import run

ROOT = Path(__file__).parents[2]


def test_without_a_gpu_it_says_so_and_fails() -> None:
    torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: run make test-gpu")
    done = subprocess.run(
        [ROOT / "scripts" / "test_gpu.sh"],
        env=os.environ | {"BIN": str(Path(sys.executable).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr


@pytest.mark.parametrize(("changed", "status"), [([], 0), (["--fault", "key-length-only"], 1)])
def test_recordings_are_compared_token_by_token(
    tmp_path: Path, changed: list[str], status: int
) -> None:
    a, b = tmp_path / "a.kvtrace", tmp_path / "b.kvtrace"
    for path, switches in ((a, []), (b, changed)):
        assert run(["record", "--model", "symbolic", "--out", str(path), *switches]) == 0
    script = ROOT / "scripts" / "same_tokens.py"
    done = subprocess.run([sys.executable, script, a, b], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert ("differs from answer token" in done.stdout) == bool(status)
