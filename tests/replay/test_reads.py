"""Which slots a row reads, also from arrays that make no sense."""

from __future__ import annotations

from kvrewind.recorder.events import InputsBuilt
from kvrewind.replay.reads import MOST_POSITIONS, slots_of_row, slots_read


def build(seq_len: int) -> InputsBuilt:
    return InputsBuilt(
        requests=("a",),
        query_lens=(1,),
        seq_lens=(seq_len,),
        block_tables=((3, -1, 5),),
        positions=(seq_len - 1,),
        slot_mapping=(-1,),
    )


def test_a_row_reads_the_blocks_of_its_table_up_to_its_length() -> None:
    assert slots_of_row(build(10), 0, 4) == [12, 13, 14, 15, None, None, None, None, 20, 21]
    assert slots_read(build(10), None, 0, 4) == [12, 13, 14, 15, 20, 21]


def test_a_length_without_measure_reads_what_the_table_has() -> None:
    slots = slots_of_row(build(10**15), 0, 4)
    assert len(slots) == MOST_POSITIONS
    assert [slot for slot in slots if slot is not None] == [12, 13, 14, 15, 20, 21, 22, 23]


def test_without_a_block_size_no_slot_is_known() -> None:
    assert slots_of_row(build(10), 0, 0) == slots_read(build(10), None, 0, 0) == []
