"""Whatever a stored payload became, it is an event or it is refused; in every format version."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from kvrewind.recorder.codec import StoredRow
from kvrewind.recorder.decoding import decoding_of
from kvrewind.recorder.errors import BadEvent
from kvrewind.recorder.events import Event
from kvrewind.recorder.openfile import OpenTrace

VERSION_1 = Path(__file__).parents[2] / "traces" / "v1" / "leak.kvtrace"
TRIALS = 10_000


def rows_of(path: Path) -> list[StoredRow]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    rows = [StoredRow(*row) for row in connection.execute("select * from events order by seq")]
    connection.close()
    return rows


def spoilt(payload: bytes, chance: random.Random) -> bytes:
    spoilt = bytearray(payload)
    at = chance.randrange(len(spoilt))
    match chance.choice(("flip", "flip", "byte", "cut", "insert")):
        case "flip":
            spoilt[at] ^= 1 << chance.randrange(8)
        case "byte":
            spoilt[at] = chance.randrange(256)
        case "cut":
            del spoilt[at:]
        case _:
            spoilt[at:at] = chance.randbytes(3)
    return bytes(spoilt)


@pytest.mark.parametrize("version", [1, 2])
def test_a_spoilt_payload_is_an_event_or_refused(
    version: int, make_trace: Callable[..., Path]
) -> None:
    path = VERSION_1 if version == 1 else make_trace(40)
    rows, chance, refused = rows_of(path), random.Random(5), 0
    trace = OpenTrace(path)
    decoding = decoding_of(version, trace.rows)
    for _ in range(TRIALS):
        row = chance.choice(rows)
        try:
            event = decoding.decode(row._replace(payload=spoilt(row.payload, chance)))
            assert isinstance(event, Event)
        except BadEvent as error:
            refused += 1
            assert row.kind in str(error)
    trace.close()
    assert TRIALS // 4 < refused < TRIALS


@pytest.mark.parametrize("version", [1, 2])
def test_a_payload_that_is_not_msgpack_is_called_so(
    version: int, make_trace: Callable[..., Path]
) -> None:
    path = VERSION_1 if version == 1 else make_trace(2)
    trace = OpenTrace(path)
    row = rows_of(path)[-2]._replace(payload=b"\xc1")
    with pytest.raises(BadEvent, match=r"not msgpack$"):
        decoding_of(version, trace.rows).decode(row)
    trace.close()
