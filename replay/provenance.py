"""Who read whose memory, and what let it happen: answered from the log, not by running it again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..recorder.events import Envelope, InputsBuilt, MaskBuilt, SlotsWritten
from .findings import Finding
from .history import Entry, allocations_of_block, entry_of
from .reads import slots_of_row, slots_read
from .requests import RequestState
from .state import Build, Pool, State, StepState
from .timeline import Timeline
from .writes import Write


class Read(NamedTuple):
    """A row that read slots which others wrote."""

    request: str | None
    row: int
    step: int
    seq: int
    """Of the dispatch, when the row read; of its build if it was never dispatched."""
    slots: tuple[int, ...]
    """The foreign ones, in the order of the keys."""

    @property
    def position(self) -> str:
        return f"{self.step}:{self.seq}"


class Written(NamedTuple):
    """What one event wrote into slots that were read."""

    request: str | None
    """None for a pad."""
    seq: int
    step: int
    kind: str
    writes: tuple[Write, ...]
    """By position."""

    @property
    def position(self) -> str:
        return f"{self.step}:{self.seq}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Between a wrong decision and what it did, each link an event."""

    finding: Finding
    """The one that shows the harm: the foreign read where there is one."""
    group: int
    """The KV group."""
    block: int | None
    read: Read | None
    written: tuple[Written, ...]
    """Who last wrote what was read, latest last."""
    held: Entry | None
    """How the reader came to hold the block, if it ever did."""
    allocated: Entry | None
    """The allocation that began the block's generation that was read."""
    released: tuple[Entry, ...]
    """Releases up to the read, since the earliest of the two above and the culprit."""
    freed: tuple[Entry, ...]
    culprit: Entry | None
    """The event that carried the wrong decision out."""


def last_writer(timeline: Timeline, slot: int, seq: int, group: int | None = None) -> Write | None:
    """The write that a slot holds after event `seq`, of whatever generation of its block.

    None if nobody wrote it. Raises NoSuchPosition outside the trace.
    """
    return timeline.state_at(seq).writer(group, slot)


def chain(timeline: Timeline, finding: Finding, root: Finding | None = None) -> Chain:
    """Who read, who wrote, who released, freed, was given the block, and what allowed it.

    `root` is the finding that names the culprit, where that is another one.
    """
    culprit_seq = finding.culprit_seq if root is None else root.culprit_seq
    culprit = None if culprit_seq is None else entry_of(timeline.at(culprit_seq))
    moment = _Moment.of(timeline, finding)
    read = moment.read(finding) if moment else None
    written = moment.written(read) if moment and read else ()
    block = _block_of(finding, read, moment)
    before = read.seq if read else finding.seq
    group = moment.group if moment else 0
    held = allocated = None
    released: tuple[Entry, ...] = ()
    freed: tuple[Entry, ...] = ()
    if block is not None:
        life = allocations_of_block(timeline.source, block, group, before + 1)
        victim = read.request if read else finding.victim
        gained = [e for e in life if e.kind in ("BlockAllocated", "BlockShared")]
        held = next((e for e in reversed(gained) if e.request == victim), None)
        allocated = next((e for e in reversed(gained) if e.kind == "BlockAllocated"), None)
        blamed = culprit if culprit and culprit.block == block else None
        since = min((e.seq for e in (held, allocated, blamed) if e), default=0)
        released = tuple(e for e in life if e.kind == "BlockReleased" and e.seq >= since)
        freed = tuple(e for e in life if e.kind == "BlockFreed" and e.seq >= since)
    return Chain(
        finding=finding,
        group=group,
        block=block,
        read=read,
        written=written,
        held=held,
        allocated=allocated,
        released=released,
        freed=freed,
        culprit=culprit,
    )


def _block_of(finding: Finding, read: Read | None, moment: _Moment | None) -> int | None:
    """The block that the finding is about: its own, else that of the first slot read."""
    if finding.block is not None:
        return finding.block
    size = moment.pool.block_size if moment else 0
    slots = [finding.slot] if finding.slot is not None else list(read.slots) if read else []
    return slots[0] // size if slots and size else None


@dataclass(frozen=True, slots=True)
class _Moment:
    """The step in which a finding showed, as its rows read."""

    state: State
    step: int
    steps: StepState
    build: InputsBuilt
    mask: MaskBuilt | None
    seq: int
    own: dict[int, Write]
    """Slots that the step itself writes: keys are written before attention reads."""

    @classmethod
    def of(cls, timeline: Timeline, finding: Finding) -> _Moment | None:
        """None if the finding is not about a step that was built."""
        shown = timeline.at(finding.seq)
        step = shown.step
        span = timeline.span_of_step(step)
        steps = _step_state(timeline, step, max(finding.seq, span.last_seq))
        build = _build_of(steps, finding, _group_of(shown)) if steps else None
        if steps is None or build is None:
            return None
        seq = steps.dispatched_seq
        state = timeline.state_at(build.seq if seq is None else seq)
        group = build.event.group or 0
        masks = [m.event for m in steps.masks if (m.event.group or 0) == group]
        return cls(
            state,
            step,
            steps,
            build.event,
            masks[-1] if masks else None,
            build.seq if seq is None else seq,
            _own_writes(timeline, step, span.first_seq, span.last_seq, state, group),
        )

    @property
    def group(self) -> int:
        return self.build.group or 0

    @property
    def pool(self) -> Pool:
        return self.state.pool(self.group)

    def read(self, finding: Finding) -> Read | None:
        """What the finding's row read of others; None if no row is named or it read nothing."""
        row = _row_of(self.build, finding)
        if row is None:
            return None
        request = self.build.requests[row]
        size = self.pool.block_size
        slots = slots_read(self.build, self.mask, row, size)
        if finding.block is not None:
            slots = [slot for slot in slots if slot // size == finding.block]
        foreign = self._foreign(row, slots)
        if not foreign:
            foreign = [slot for slot in slots if slot == finding.slot]
        if not foreign:
            return None
        of_source = [s for s in foreign if (w := self.writer(s)) and w.request == finding.source]
        return Read(request, row, self.step, self.seq, tuple(of_source or foreign))

    def writer(self, slot: int) -> Write | None:
        return self.own.get(slot) or self.state.writer(self.group, slot)

    def written(self, read: Read) -> tuple[Written, ...]:
        """By the event that wrote, in their order."""
        by_event: dict[tuple[int, str | None], list[Write]] = {}
        for slot in read.slots:
            write = self.writer(slot)
            if write is not None:
                by_event.setdefault((write.seq, write.request), []).append(write)
        return tuple(
            Written(
                request,
                seq,
                writes[0].step,
                writes[0].kind,
                tuple(sorted(writes, key=lambda write: write.position)),
            )
            for (seq, request), writes in sorted(by_event.items(), key=lambda item: item[0][0])
        )

    def _foreign(self, row: int, slots: Iterable[int]) -> list[int]:
        """Those that another wrote, unless the reader's own tokens give the same content there."""
        request = self.build.requests[row]
        size = self.pool.block_size
        placed = enumerate(slots_of_row(self.build, row, size))
        positions = {slot: position for position, slot in placed if slot is not None}
        common: dict[tuple[str | None, int], int] = {}
        foreign: list[int] = []
        for slot in slots:
            write = self.writer(slot)
            if write is None or write.request == request:
                continue
            key = (write.request, write.revision)
            if key not in common:
                common[key] = same_tokens(self.state, request, write)
            if positions.get(slot) != write.position or write.position >= common[key]:
                foreign.append(slot)
        return foreign


def same_tokens(state: State, reader: str | None, write: Write) -> int:
    """How many leading tokens of the reader are those of the writer; 0 for another tenant's,
    adapter's, or a pad's."""
    mine = state.requests.get(reader) if reader is not None else None
    other = state.requests.get(write.request) if write.request is not None else None
    if mine is None or other is None or _for_whom(mine) != _for_whom(other):
        return 0
    return common_length(mine.tokens, other.tokens_at(write.revision))


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))


def _for_whom(request: RequestState) -> tuple[object, object]:
    return request.added.tenant, request.added.adapter


def _step_state(timeline: Timeline, step: int, until: int) -> StepState | None:
    """The step as it ended; a state forgets steps that completed long before."""
    found = timeline.state_at(until).steps.get(step)
    if found is not None:
        return found
    return timeline.state_at(timeline.span_of_step(step).last_seq).steps.get(step)


def _group_of(envelope: Envelope) -> int | None:
    """The KV group that an event is about; None for one that is about no group of its own."""
    event: Any = envelope.event
    return (event.group or 0) if hasattr(event, "group") else None


def _build_of(steps: StepState, finding: Finding, group: int | None) -> Build | None:
    """The last build before dispatch, of that group if one is known, that has the finding's row."""
    dispatched = steps.dispatched_seq
    builds = [b for b in steps.builds if dispatched is None or b.seq < dispatched]
    builds = [b for b in builds if group in (None, b.event.group or 0)] or builds
    for build in reversed(builds):
        if _row_of(build.event, finding) is not None:
            return build
    return builds[-1] if builds else None


def _row_of(build: InputsBuilt, finding: Finding) -> int | None:
    if finding.row is not None and finding.row < len(build.requests):
        return finding.row
    if finding.victim is not None and finding.victim in build.requests:
        return build.requests.index(finding.victim)
    return None


def _own_writes(
    timeline: Timeline, step: int, first_seq: int, last_seq: int, state: State, group: int
) -> dict[int, Write]:
    """What the step's rows write into their slots."""
    own: dict[int, Write] = {}
    size = state.pool(group).block_size
    for envelope in timeline.source.find(
        kinds=[SlotsWritten.__name__], start_seq=first_seq, stop_seq=last_seq + 1
    ):
        event = envelope.event
        if not isinstance(event, SlotsWritten) or envelope.step != step or size < 1:
            continue
        if (event.group or 0) != group:
            continue
        tokens = event.tokens if event.tokens is not None else (None,) * len(event.slots)
        for name, position, token, slot in zip(
            event.requests, event.positions, tokens, event.slots, strict=False
        ):
            known = state.requests.get(name) if name is not None else None
            own[slot] = Write(
                name,
                known.revision if known else 0,
                position,
                token,
                slot,
                envelope.seq,
                step,
                event.write,
                state.pool(group).block(slot // size).generation,
                state.epoch_of(name),
            )
    return own
