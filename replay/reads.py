"""Which slots a row of a step reads, from the arrays that the device was given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..recorder.events import InputsBuilt, MaskBuilt

MOST_POSITIONS = 1 << 22
"""A longer row is a wrong number, and is read so far."""

WEAKEST_FILL = -1e4
"""A fill above this doesn't mask."""


def slots_by_position(table: Sequence[int], seq_len: int, block_size: int) -> list[int | None]:
    """The slot of each position below seq_len; None where the table has a hole or ends.

    Without a block size no slot is known.
    """
    slots: list[int | None] = []
    if block_size < 1:  # of a trace that lost its header
        return slots
    for position in range(max(seq_len, 0)):
        index, offset = divmod(position, block_size)
        block = table[index] if index < len(table) else -1
        slots.append(block * block_size + offset if block >= 0 else None)
    return slots


def slots_of_row(build: InputsBuilt, row: int, block_size: int) -> list[int | None]:
    """As `slots_by_position`, of one row of a build; arrays that are too short make short rows."""
    table = build.block_tables[row] if row < len(build.block_tables) else ()
    seq_len = build.seq_lens[row] if row < len(build.seq_lens) else 0
    return slots_by_position(table, min(seq_len, MOST_POSITIONS), block_size)


def slots_read(build: InputsBuilt, mask: MaskBuilt | None, row: int, block_size: int) -> list[int]:
    """The slots that some query of the row sees, in the order of the keys, without doubles."""
    if block_size < 1 or not 0 <= row < len(build.requests):
        return []
    if mask is None or mask.form == "lengths" or mask.allowed is None:
        window = mask.window if mask else None
        return _distinct(_own_keys(build, row, block_size, window))
    return _distinct(_seen_keys(build, mask, row, block_size))


def _own_keys(
    build: InputsBuilt, row: int, block_size: int, window: int | None
) -> list[int | None]:
    slots = slots_of_row(build, row, block_size)
    if window is None or row >= len(build.query_lens):
        return slots
    earliest = len(slots) - build.query_lens[row] - window + 1
    return slots[max(earliest, 0) :]


def _seen_keys(build: InputsBuilt, mask: MaskBuilt, row: int, block_size: int) -> list[int | None]:
    """Rows of a dense mask: sum(query_lens) of them, each padded to whole bytes."""
    queries = sum(mask.query_lens)
    if not mask.allowed or queries < 1 or len(mask.allowed) % queries:
        return []  # no whole rows
    if row >= len(mask.query_lens):
        return []
    bits = np.unpackbits(np.frombuffer(mask.allowed, np.uint8).reshape(queries, -1), axis=1)
    first = sum(mask.query_lens[:row])
    seen = bits[first : first + mask.query_lens[row]]  # [queries of the row, keys]
    slots = _slots_of_keys(build, mask, row, block_size, bits.shape[1])
    if not _masks(mask):
        return slots
    return [slots[key] for key in np.flatnonzero(seen.max(axis=0, initial=0)) if key < len(slots)]


def _slots_of_keys(
    build: InputsBuilt, mask: MaskBuilt, row: int, block_size: int, width: int
) -> list[int | None]:
    """What slot each column of the mask is, for this row."""
    if mask.keys == "pool":
        return list(range(width))
    rows = range(len(build.requests)) if mask.keys == "concatenated" else (row,)
    return [slot for r in rows for slot in _own_keys(build, r, block_size, None)]


def _masks(mask: MaskBuilt) -> bool:
    """An additive mask of a bool dtype, or with a weak fill, hides nothing."""
    if mask.meaning != "additive":
        return True
    return mask.dtype != "bool" and (mask.fill is None or mask.fill <= WEAKEST_FILL)


def _distinct(slots: Iterable[int | None]) -> list[int]:
    return list(dict.fromkeys(slot for slot in slots if slot is not None))
