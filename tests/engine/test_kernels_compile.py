"""The kernels compile for the GPUs they are meant for, and keep to the registers there are.

Proved by ptxas, which needs no GPU. What they compute is tested by interpretation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')
pytest.importorskip("triton", reason='needs the extra: pip install "kvrewind[engine]"')

SCRIPT = Path(__file__).with_name("kernels_ahead.py")
CAPABILITIES = (80, 90, 100)


@pytest.fixture(scope="module")
def cubins(tmp_path_factory):
    """One dict per kernel, use and capability."""
    cache = tmp_path_factory.mktemp("triton")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, CAPABILITIES)],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_kernel_compiles_for_every_capability(cubins):
    kernels = {"decode", "join", "prefill", "probe", "write", "scrub", "digest"}
    found = {(cubin["name"].split(":")[0], cubin["capability"]) for cubin in cubins}
    assert found == {(kernel, number) for kernel in kernels for number in CAPABILITIES}
    assert all(cubin["cubin_bytes"] > 1000 for cubin in cubins)


def test_no_kernel_spills_registers(cubins):
    assert {cubin["name"]: cubin["spilled"] for cubin in cubins if cubin["spilled"]} == {}
    assert all(0 < cubin["registers"] <= 255 for cubin in cubins)


def test_every_kernel_fits_into_the_shared_memory_of_a_multiprocessor(cubins):
    """99 KiB is what the smallest of these GPUs' relatives (8.6, 8.9, 12.0) give a block."""
    assert {c["name"]: c["shared_bytes"] for c in cubins if c["shared_bytes"] > 99 * 1024} == {}
