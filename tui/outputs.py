"""Where a command may write: nothing is lost that somebody may still want."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..recorder.errors import BadInput, OutputExists
from ..recorder.stores.address import Place


def require_output(output: Path, sources: Iterable[Place], *, force: bool) -> None:
    """Before anything is read. Raises `OutputExists`, and `BadInput` where the output is one of the
    `sources`, which not even `force` may write over: half way through it would be gone.
    """
    if not output.exists():
        return
    if not force:
        raise OutputExists(output)
    for source in sources:
        if isinstance(source, Path) and source.exists() and output.samefile(source):
            raise BadInput(f"{output} is what is read; choose another name with --out")
