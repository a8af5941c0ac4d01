"""The garbage collector during a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 50_000
"""Objects that may come before those made since are looked through: an event lives until it is
recorded, a few thousand events, and is then freed without a collector, since it is in no cycle."""


@contextmanager
def rarely_collected() -> Iterator[None]:
    """What is there now is not looked through while the run lasts, and what it makes rarely.

    At 50,000 tokens a second the collector would take a tenth of the time. It is the process's:
    for commands that are there for one run.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
