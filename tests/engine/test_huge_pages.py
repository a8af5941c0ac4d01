"""Asking for huge pages: contents stay, and what can't be had is no error."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from kvrewind.engine.huge_pages import HUGE_PAGE, use_huge_pages


def test_memory_keeps_its_contents_and_stays_writable() -> None:
    numbers = np.arange(4 * HUGE_PAGE, dtype=np.int64)
    use_huge_pages([(numbers.ctypes.data, numbers.nbytes)])
    assert np.array_equal(numbers, np.arange(4 * HUGE_PAGE))
    numbers += 1
    assert numbers[-1] == 4 * HUGE_PAGE


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks nothing elsewhere")
def test_asked_for_are_the_whole_huge_pages_of_what_lies_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "kvrewind.engine.huge_pages.advise", lambda first, size, _: asked.append((first, size))
    )
    mib = 2**20
    together = [(11 * mib, mib - 64), (9 * mib, 2 * mib - 64)]
    small, far = (40 * mib, 4096), (101 * mib, 4 * mib)
    use_huge_pages([far, *together, small])
    assert set(asked) == {(102 * mib, 2 * mib)}
    asked.clear()
    use_huge_pages([(7 * mib, 2 * mib), *together])
    assert set(asked) == {(8 * mib, 2 * mib)}


def test_nothing_and_memory_that_is_not_there_are_no_error() -> None:
    use_huge_pages([])
    use_huge_pages([(2 * HUGE_PAGE, 4 * HUGE_PAGE)])
