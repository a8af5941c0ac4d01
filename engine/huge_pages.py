"""Memory in pages of 2 MiB, where the system can do that.

Linux gives memory out in pages of 4 KiB; read once a step and in order, hundreds of megabytes of
weights then cost a look-up of the address every 4 KiB, and the CPU's prefetching stops at each
page's end. Measured gain: 12 to 15 % of a product of 16 rows (`benchmarks/README.md`).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator

HUGE_PAGE = 2**21
_SMALL_GAP = 2**16
"""Between allocations that lie side by side: their headers."""

_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25
"""madvise(2); the second is known from Linux 6.1 on and does at once what the first asks for."""


def use_huge_pages(ranges: Iterable[tuple[int, int]]) -> None:
    """Ask for huge pages under (address, bytes) of memory in use, whose contents stay.

    Only advice: a system that can't or won't leaves the memory as it is.
    """
    for first, end in _joined(ranges):
        first, end = -(-first // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
        if first < end:
            advise(first, end - first, _MADV_HUGEPAGE)
            advise(first, end - first, _MADV_COLLAPSE)


def advise(address: int, size: int, advice: int) -> None:
    """madvise(2); what it answers doesn't matter here."""
    if sys.platform.startswith("linux"):
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        madvise(address, size, advice)


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """(first, end) of memory that lies together."""
    first = end = 0
    for address, size in sorted(ranges):
        if address > end + _SMALL_GAP:
            yield first, end
            first = address
        end = max(end, address + size)
    yield first, end
