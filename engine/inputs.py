"""The arrays of one step, exactly as the device is given them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..recorder.events import InputsBuilt, MaskBuilt, Phase, SlotsWritten

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """R rows (one per request) and T tokens, packed in row order.

    The runner reads these and nothing else: what is wrong here is wrong on the device.
    """

    step: int
    requests: tuple[str, ...]  # [R]
    phases: tuple[Phase, ...]  # [R]
    query_lens: IntArray  # [R] tokens of this step
    seq_lens: IntArray  # [R] tokens of the request, this step's included
    block_tables: IntArray  # [R, longest] physical blocks, -1 past the end and in holes
    tokens: IntArray  # [T]
    positions: IntArray  # [T]
    slot_mapping: IntArray  # [T] slot each token's KV is written to, -1 = nowhere
    mask: BoolArray | None = None  # [T, num_slots] True = visible; None = by lengths

    @property
    def row_starts(self) -> IntArray:
        """[R + 1] offsets of the rows' tokens."""
        return np.concatenate(([0], np.cumsum(self.query_lens)))

    @property
    def row_of_token(self) -> IntArray:
        """[T] row index of each token."""
        return np.repeat(np.arange(len(self.requests)), self.query_lens)

    def built(self) -> InputsBuilt:
        lens = (self.block_tables >= 0).cumsum(axis=1).argmax(axis=1) + 1
        return InputsBuilt(
            requests=self.requests,
            tokens=tuple(self.tokens.tolist()),
            phases=self.phases,
            query_lens=tuple(self.query_lens.tolist()),
            seq_lens=tuple(self.seq_lens.tolist()),
            block_tables=tuple(
                tuple(row[:n])
                for row, n in zip(self.block_tables.tolist(), lens.tolist(), strict=True)
            ),
            positions=tuple(self.positions.tolist()),
            slot_mapping=tuple(self.slot_mapping.tolist()),
        )

    def mask_built(self) -> MaskBuilt:
        """`lengths` for the fast path; the explicit rows x slots mask for the reference path."""
        query_lens = tuple(self.query_lens.tolist())
        if self.mask is None:
            return MaskBuilt(
                form="lengths",
                requests=self.requests,
                query_lens=query_lens,
                meaning="bool_keep",
                dtype="bool",
                applied="before_softmax",
            )
        return MaskBuilt(
            form="dense",
            requests=self.requests,
            query_lens=query_lens,
            allowed=np.packbits(self.mask, axis=1).tobytes(),
            keys="pool",
            meaning="additive",
            dtype="float32",
            fill=-np.inf,
            applied="before_softmax",
        )

    def written(self) -> tuple[SlotsWritten, ...]:
        """One event per phase present: the KV that the device writes in this step."""
        rows = self.row_of_token
        events: list[SlotsWritten] = []
        for phase in ("prefill", "decode"):
            rows_of_phase = [i for i, p in enumerate(self.phases) if p == phase]
            chosen = np.flatnonzero(np.isin(rows, rows_of_phase) & (self.slot_mapping >= 0))
            if len(chosen):
                events.append(
                    SlotsWritten(
                        write=phase,
                        requests=tuple(self.requests[i] for i in rows[chosen].tolist()),
                        positions=tuple(self.positions[chosen].tolist()),
                        tokens=tuple(self.tokens[chosen].tolist()),
                        slots=tuple(self.slot_mapping[chosen].tolist()),
                    )
                )
        return tuple(events)
