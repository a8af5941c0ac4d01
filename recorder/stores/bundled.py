"""The trace in a bundle, read without anybody unpacking it."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Row, Select

from ..errors import NotATrace
from ..openfile import OpenTrace

BUNDLED_TRACE = "trace.kvtrace"
"""What the trace is called in every bundle."""

_MAGIC = b"PK\x03\x04"


def is_bundle(path: Path) -> bool:
    """Whether the file says that it is a zip file; what isn't there is none."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


class BundledTrace:
    """Implements `OpenPlace`. The trace is taken out into a temporary folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = tempfile.TemporaryDirectory(prefix="kvrewind-")
        try:
            self._trace = OpenTrace(_taken_out(path, Path(self._folder.name)))
        except BaseException:
            self._folder.cleanup()
            raise
        self.format = self._trace.format

    @property
    def size(self) -> int:
        return self._trace.size

    @property
    def damage(self) -> str | None:
        return self._trace.damage

    def rows(self, query: Select[Any], at_a_time: int = 2_000) -> Iterator[Row[Any]]:
        return self._trace.rows(query, at_a_time)

    def scalar(self, query: Select[Any]) -> Any:
        return self._trace.scalar(query)

    def fall_back(self, why: str, before: int | None = None) -> None:
        self._trace.fall_back(why, before)

    def rest(self) -> None:
        self._trace.rest()

    def close(self) -> None:
        self._trace.close()
        self._folder.cleanup()


def _taken_out(path: Path, folder: Path) -> Path:
    taken = folder / BUNDLED_TRACE
    try:
        with (
            zipfile.ZipFile(path) as archive,
            archive.open(BUNDLED_TRACE) as file,
            taken.open("wb") as target,
        ):
            shutil.copyfileobj(file, target)
    except KeyError:
        raise NotATrace(path, f"it is a zip file without {BUNDLED_TRACE} in it") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise NotATrace(path, f"it is a damaged zip file ({error})") from None
    return taken
