"""`kvrewind doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from rich.table import Table

from ...engine.models import INSTALL_ENGINE, available_models
from ..console import out
from ..presenters.perplexity import INSTALL_PLOT

PACKAGES = (  # (package, what for, how to get it)
    ("sqlalchemy", "the trace file", "pip install kvrewind"),
    ("msgpack", "event payloads", "pip install kvrewind"),
    ("numpy", "step inputs and masks", "pip install kvrewind"),
    ("textual", "the app", "pip install kvrewind"),
    ("torch", "running a model", INSTALL_ENGINE),
    ("transformers", "running a model", INSTALL_ENGINE),
    ("safetensors", "reading weights", INSTALL_ENGINE),
    ("gguf", "reading SmolLM2", INSTALL_ENGINE),
    ("plotext", "plots", INSTALL_PLOT),
    ("triton", "attention on a GPU", INSTALL_ENGINE),
)

_DEVICE = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"


def doctor() -> int:
    """Say what this machine has: packages, device, models.

    For example:

        kvrewind doctor
    """
    table = Table(box=None, pad_edge=False)
    for column in ("what", "here", "for", "how to get it"):
        table.add_column(column, overflow="fold", no_wrap=column == "what")
    table.add_row("kvrewind", version("kvrewind"), "", "")
    table.add_row("python", platform.python_version(), "", "")
    for package, purpose, how in PACKAGES:
        found = version_of(package)
        table.add_row(package, found or "missing", purpose, "" if found else how)
    table.add_row("gpu", _gpu() or "none", "--device cuda", "")
    table.add_row("model symbolic", "ready", "simulating without weights", "")
    table.add_row(
        "model symbolic-windows", "ready", "the same with two KV groups, one windowed", ""
    )
    for model in available_models():
        table.add_row(
            f"model {model.name}",
            "missing" if model.missing else "ready",
            model.what,
            model.missing or "",
        )
    out().print(table, markup=False)
    return 0


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gpu() -> str | None:
    """Asked in a process of its own: the command line itself never loads torch."""
    if version_of("torch") is None:
        return None
    asked = subprocess.run(
        [sys.executable, "-c", _DEVICE], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or None
