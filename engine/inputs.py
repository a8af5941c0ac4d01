"""The arrays of one step, exactly as the device is given them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..recorder.events import InputsBuilt, MaskBuilt, Phase, SlotsWritten
from .sampling import Sample

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Layout = Literal["packed", "padded-left", "padded-right", "dense"]
MaskKeys = Literal["pool", "per_row", "concatenated"]
ScrubHow = Literal["zero", "nan"]
WriteKind = Literal["prefill", "decode", "draft", "pad"]


class BlockCopy(NamedTuple):
    """The `slots` leading slots of a block, copied before the step attends."""

    source: int
    destination: int
    slots: int
    group: int


class BlockScrub(NamedTuple):
    """A block to overwrite before the step attends."""

    block: int
    how: ScrubHow
    group: int


BlockMove = BlockScrub | BlockCopy


class BufferUse(NamedTuple):
    """The persistent buffer that the step's arrays stand in: its name, which rebuild of it this
    is, and the width of its block tables."""

    buffer: str
    stamp: int
    stride: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInputs:
    """What differs from one KV group to another."""

    block_tables: IntArray  # [R, longest] physical blocks, -1 past the end and in holes
    slot_mapping: IntArray  # [T] slot each token's KV is written to, -1 = nowhere
    layers: tuple[int, ...] | None = None
    """The layers of the group; None when there is but one group."""
    window: int | None = None
    """Query q sees key k iff q - k < window."""
    mask: BoolArray | None = None  # [T, keys] True = visible; None = by lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """R rows and T tokens, packed in row order; S tokens are to be chosen.

    A row is one request's, or a pad (request None, seq_len 0). The runner reads these and nothing
    else: what is wrong here is wrong on the device.
    """

    step: int
    requests: tuple[str | None, ...]  # [R]
    phases: tuple[Phase, ...]  # [R]
    query_lens: IntArray  # [R] tokens of this step
    seq_lens: IntArray  # [R] tokens of the request, this step's included
    tokens: IntArray  # [T]
    positions: IntArray  # [T]
    groups: tuple[GroupInputs, ...]
    logit_tokens: IntArray  # [S] which of the T tokens' logits are wanted
    samples: tuple[Sample, ...]  # [S] what is chosen from them
    drafts: IntArray  # [R] how many of the row's last tokens are drafts
    layout: Layout = "packed"
    mask_keys: MaskKeys = "pool"
    """What the columns of an explicit mask are: every slot of the pool; each row's own keys, as
    wide as the longest; or the keys of all rows, one row's behind the other's."""
    moves: tuple[BlockMove, ...] = ()
    """Carried out one after the other before anything of the step is written."""
    buffer: BufferUse | None = None

    @property
    def row_starts(self) -> IntArray:
        """[R + 1] offsets of the rows' tokens."""
        return np.concatenate(([0], np.cumsum(self.query_lens)))

    @property
    def row_of_token(self) -> IntArray:
        """[T] row index of each token."""
        return np.repeat(np.arange(len(self.requests)), self.query_lens)

    def group_of(self, layer: int) -> int:
        """The KV group of a layer of the model."""
        for number, group in enumerate(self.groups):
            if group.layers is None or layer in group.layers:
                return number
        raise LookupError(f"layer {layer} is in no KV group")

    def fill_in(self, tokens: IntArray) -> None:
        """The step's tokens are known at last."""
        self.tokens[:] = tokens

    def built(self, *, tokens_known: bool = True) -> Iterator[InputsBuilt]:
        """What the device is given, one event a KV group."""
        tokens = tuple(self.tokens.tolist()) if tokens_known else None
        query_lens, seq_lens = tuple(self.query_lens.tolist()), tuple(self.seq_lens.tolist())
        positions = tuple(self.positions.tolist())
        for number, group in enumerate(self.groups):
            yield InputsBuilt(
                requests=self.requests,
                tokens=tokens,
                phases=self.phases,
                query_lens=query_lens,
                seq_lens=seq_lens,
                block_tables=_ragged(group.block_tables, self.seq_lens),
                positions=positions,
                slot_mapping=tuple(group.slot_mapping.tolist()),
                group=number or None,
                buffer=self.buffer.buffer if self.buffer else None,
                stamp=self.buffer.stamp if self.buffer else None,
                stride=self.buffer.stride if self.buffer else None,
            )

    def masks_built(self) -> Iterator[MaskBuilt]:
        """`lengths`, or the explicit mask, one event a KV group."""
        query_lens = tuple(self.query_lens.tolist())
        for number, group in enumerate(self.groups):
            explicit = group.mask is not None
            yield MaskBuilt(
                form="dense" if explicit else "lengths",
                requests=self.requests,
                query_lens=query_lens,
                allowed=np.packbits(group.mask, axis=1).tobytes()
                if group.mask is not None
                else None,
                keys=self.mask_keys if explicit else None,
                meaning="additive" if explicit else "bool_keep",
                dtype="float32" if explicit else "bool",
                fill=-np.inf if explicit else None,
                applied="before_softmax",
                window=group.window,
                layers=group.layers,
                group=number or None,
            )

    def written(self) -> Iterator[SlotsWritten]:
        """The KV that the device writes in this step, one event a kind of write and KV group."""
        rows, kinds = self.row_of_token, None
        for number, group in enumerate(self.groups):
            if self._writes_one_kind and group.slot_mapping.min() >= 0:
                yield self._written(self.phases[0], number, rows, slice(None))
                continue
            kinds = self._write_kinds() if kinds is None else kinds
            for kind in ("prefill", "decode", "draft", "pad"):
                chosen = np.flatnonzero((kinds == kind) & (group.slot_mapping >= 0))
                if len(chosen):
                    yield self._written(kind, number, rows, chosen)

    def _written(
        self, kind: WriteKind, group: int, rows: IntArray, chosen: IntArray | slice
    ) -> SlotsWritten:
        """`rows` [T], `chosen`: which of the T tokens."""
        return SlotsWritten(
            write=kind,
            requests=tuple([self.requests[i] for i in rows[chosen].tolist()]),
            positions=tuple(self.positions[chosen].tolist()),
            tokens=tuple(self.tokens[chosen].tolist()),
            slots=tuple(self.groups[group].slot_mapping[chosen].tolist()),
            group=group or None,
        )

    @property
    def _writes_one_kind(self) -> bool:
        """As steps of decode rows do: no drafts, no pads, one phase."""
        return len(set(self.phases)) == 1 and None not in self.requests and not self.drafts.any()

    def _write_kinds(self) -> NDArray[np.str_]:
        """[T] prefill, decode, draft or pad."""
        by_row = [
            phase if request is not None else "pad"
            for request, phase in zip(self.requests, self.phases, strict=True)
        ]
        kinds = np.repeat(np.array(by_row, dtype="<U7"), self.query_lens)
        ends = np.cumsum(self.query_lens)
        for row in np.flatnonzero(self.drafts):
            kinds[ends[row] - self.drafts[row] : ends[row]] = "draft"
        return kinds


def _ragged(tables: IntArray, seq_lens: IntArray) -> tuple[tuple[int, ...], ...]:
    """Each row up to its last block; a live row without any has one hole, a pad nothing."""
    if not tables.shape[1]:
        return ((),) * len(tables)
    lengths = (tables >= 0).cumsum(axis=1).argmax(axis=1) + 1
    lengths[seq_lens == 0] = 0
    return tuple([tuple(row[:n]) for row, n in zip(tables.tolist(), lengths.tolist(), strict=True)])
