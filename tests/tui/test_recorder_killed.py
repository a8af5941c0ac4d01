"""kill -9 at random moments. The script does it a hundred times: see benchmarks/README.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "kill_recorder.py"


def test_what_a_killed_recorder_leaves_opens_and_is_sound_up_to_a_step() -> None:
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), "--times", "6", "--requests", "40", "--seed", "3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "6 killed" in ran.stdout
    assert "sound up to a step" in ran.stdout
