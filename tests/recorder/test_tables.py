"""Block tables stored as changes, and names as numbers, come back as they were."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvrewind.recorder.arrays import WrongType, pack_ints, unpack_ints
from kvrewind.recorder.codec import Context, StoredRow, decode, plan_of
from kvrewind.recorder.digest import step_digests
from kvrewind.recorder.events import Envelope, InputsBuilt
from kvrewind.recorder.step_encoder import StepEncoder
from kvrewind.recorder.tables import own_rows, unpack_table

TABLES = [spec.name for spec in plan_of(InputsBuilt).fields].index("block_tables")
BLOCKS = st.integers(-1, 40) | st.integers(-(2**63), 2**63 - 1)
NAMES = st.sampled_from([None, "a", "b", "c", "a-request-with-a-long-name"])


def build(
    requests: tuple[str | None, ...], tables: tuple[tuple[int, ...], ...], group: int | None = None
) -> InputsBuilt:
    count = len(requests)
    return InputsBuilt(
        requests=requests,
        query_lens=(1,) * count,
        seq_lens=tuple(range(count)),
        block_tables=tables,
        positions=tuple(range(5, 5 + count)),
        slot_mapping=(-1,) * count,
        group=group,
    )


@st.composite
def growing(draw: st.DrawFn) -> list[InputsBuilt]:
    """Rows come, grow, lose their beginning or end, are replaced, and go."""
    rows: dict[str | None, tuple[int, ...]] = {}
    found = []
    for _ in range(draw(st.integers(1, 14))):
        for _ in range(draw(st.integers(0, 3))):
            name = draw(NAMES)
            row = rows.get(name, ())
            rows[name] = draw(
                st.sampled_from(
                    [
                        (*row, draw(BLOCKS)),
                        (-1,) * min(2, len(row)) + row[2:],
                        row[:-1],
                        (*row[:1], draw(BLOCKS), *row[2:]),
                        tuple(draw(st.lists(BLOCKS, max_size=9))),
                    ]
                )
            )
        listed = draw(st.lists(st.sampled_from([*rows, None]), max_size=6))  # names may repeat
        extra = st.sampled_from([(), (7,)])  # so that they differ from row to row
        tables = tuple((*rows.get(name, ()), *draw(extra)) for name in listed)
        if draw(st.booleans()):
            tables = tables[: draw(st.integers(0, len(tables)))]
        found.append(build(tuple(listed), tables, draw(st.sampled_from([None, 0, 1]))))
    return found


class Written:
    """What a trace would hold, without the trace."""

    def __init__(self) -> None:
        self.encoder = StepEncoder()
        self.rows: dict[int, StoredRow] = {}
        self.names: dict[int, str] = {}
        self.digests: list[Any] = []

    def add(self, envelope: Envelope) -> None:
        step = self.encoder.encode(envelope.step, [envelope])
        self.rows.update({row[0]: StoredRow(*row) for row in step.events})
        self.names.update(step.names)
        self.digests.append(step.digest)

    def read(self, seq: int) -> Any:
        return decode(self.rows[seq], Context(self.names.get, self._bases, {}))

    def _bases(self, seq: int) -> Any:
        return own_rows(msgpack.unpackb(self.rows[seq].payload)[TABLES])


@given(events=growing(), ranks=st.lists(st.integers(0, 1), min_size=14, max_size=14))
def test_any_tables_come_back_in_any_order_of_asking(
    events: list[InputsBuilt], ranks: list[int]
) -> None:
    written = Written()
    envelopes = [Envelope(3 * i, i, 0, ranks[i], event) for i, event in enumerate(events)]
    for envelope in envelopes:
        written.add(envelope)
    for envelope in reversed(envelopes):
        assert written.read(envelope.seq) == envelope.event
    assert written.digests == list(step_digests(envelopes))


@given(events=growing(), again=st.integers(0, 13))
def test_behind_a_restart_nothing_refers_to_what_was_before(
    events: list[InputsBuilt], again: int
) -> None:
    written = Written()
    for index, event in enumerate(events):
        if index == again:
            written.encoder.restart()
            written.rows.clear()
            written.names.clear()
        written.add(Envelope(index, index, 0, 0, event))
    for seq, row in written.rows.items():
        assert written.read(row.seq) == events[seq]


def test_a_table_that_only_grows_takes_few_bytes() -> None:
    written, row = Written(), tuple(range(1000, 1256))
    sizes = []
    for step in range(200):
        row = (*row, 2000 + step) if step % 16 == 0 else row
        written.add(Envelope(step, step, 0, 0, build(("a", "b"), (row, row))))
        sizes.append(len(written.rows[step].payload))
    in_full = [size for size in sizes if size > 1_000]
    assert len(in_full) < 5
    assert sum(sizes) / len(sizes) < 180  # the rows alone are 1024 bytes
    assert all(written.read(seq).block_tables == (row, row) for seq in range(192, 200))


def test_a_name_is_stored_once() -> None:
    written, name = Written(), "request-" + "x" * 80
    for step in range(50):
        written.add(Envelope(step, step, 0, 0, build((name, None), ((1,), ()))))
    assert written.names == {1: name}
    assert name.encode() not in b"".join(row.payload for row in written.rows.values())


@pytest.mark.parametrize(
    "stored",
    [
        7,
        [],
        [pack_ints([1]), pack_ints([])],
        [pack_ints([-1, 1]), pack_ints([])],
        [pack_ints(c) for c in ([0], [], [0], [1], [0], [0], [0])],  # its own base
        [pack_ints(c) for c in ([0], [], [5], [2], [0], [0], [0])],  # the second base of one
        [pack_ints(c) for c in ([0], [], [5], [1], [9], [0], [0])],  # a row that the base lacks
        [pack_ints(c) for c in ([0], [], [5], [1], [1], [0], [0])],  # a row that is a change itself
        [pack_ints(c) for c in ([0], [], [5], [1], [0], [0], [4])],  # more cut than there is
        [pack_ints(c) for c in ([0], [], [5], [1], [0], [3], [0])],  # more holes than there is
        [pack_ints(c) for c in ([0], [], [5], [1, 1], [0], [0], [0])],  # columns of two lengths
    ],
)
def test_a_damaged_table_is_refused(stored: Any) -> None:
    with pytest.raises(WrongType):
        unpack_table(stored, 10, lambda _: [(1, 2), None])


# --- arrays ---------------------------------------------------------------------------------------

ANY_INTS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=70) | st.lists(
    st.tuples(st.integers(-300, 70_000), st.integers(0, 1), st.integers(1, 60)), max_size=4
).map(lambda runs: [first + step * i for first, step, count in runs for i in range(count)])


@given(ANY_INTS)
def test_any_integers_come_back(numbers: list[int]) -> None:
    packed = pack_ints(numbers)
    assert unpack_ints(msgpack.unpackb(msgpack.packb(packed))) == tuple(numbers)
    assert pack_ints(tuple(numbers)) == packed


@pytest.mark.parametrize(
    ("numbers", "most"),
    [
        ([7] * 1_000, 6),
        (list(range(9, 2_009)), 7),
        ([5] * 4, 5),
        ([*range(64), *[9, 9, 7] * 9], 91),
    ],
)
def test_equal_and_consecutive_numbers_take_few_bytes(numbers: list[int], most: int) -> None:
    assert len(pack_ints(numbers).data) <= most


@given(st.binary(max_size=24), st.sampled_from([1, 4, 9, 12]))
def test_no_bytes_give_anything_but_an_array_or_an_error(data: bytes, code: int) -> None:
    try:
        numbers = unpack_ints(msgpack.ExtType(code, data))
    except WrongType:
        return
    assert unpack_ints(pack_ints(numbers)) == numbers
