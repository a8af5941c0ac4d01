"""Every benchmark starts: its imports and options are those of the code that it measures."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')

FOLDER = Path(__file__).parents[2] / "benchmarks"
HELPERS = {"measuring.py", "vllm_answers.py"}
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if path.name not in HELPERS)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_tells_its_options(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert "--" in capsys.readouterr().out


def test_each_is_in_the_page_of_results() -> None:
    page = (FOLDER / "README.md").read_text()
    assert [script.name for script in SCRIPTS if script.name not in page] == []
