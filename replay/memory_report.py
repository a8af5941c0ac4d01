"""What the memory account of a run comes to, as plain numbers.

Blocks and slots are counted over all KV groups, each with a pool of its own. Means are over steps;
a share is of means, so a step weighs by what it held. What can't be told is None, and `missing`
says why. Names of fields are those of `kvrewind info --format json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..recorder.events import (
    BlockAllocated,
    BlockShared,
    Event,
    RunStarted,
    SlotsWritten,
    SpanDropped,
)
from .kv_footprint import Footprint, GroupFootprint

_CONTEXT_NAMES = ("max_positions", "max_model_len", "max_position_embeddings", "context_length")
"""What the switches of a run may call the model's context; the contract names none."""


@dataclass(slots=True)
class Series:
    """One number a step, kept as its sum and its peak."""

    total: int = 0
    count: int = 0
    peak: int | None = None
    peak_step: int | None = None

    def add(self, step: int, value: int) -> None:
        self.total += value
        self.count += 1
        if self.peak is None or value > self.peak:
            self.peak, self.peak_step = value, step

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What `requests` requests of `length` tokens need, and what the model's context is. Each
    is the run's own where not given."""

    requests: int | None = None
    length: int | None = None
    context: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the account has counted."""

    header: RunStarted | None
    footprint: Footprint
    series: Mapping[str, Series]
    handed_out: Mapping[int, int]
    """KV group -> blocks that somebody has ever held."""
    longest: int
    """Tokens of the longest request."""
    strangers: int
    """Requests that held blocks and were never added."""
    seen: frozenset[type[Event]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """Without sentinels. Every KV group has `blocks` blocks of `tokens` tokens together."""

    blocks: int
    tokens: int | None
    bytes: int | None
    never_used_blocks: int
    sentinels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """`bytes` are to the token, `block_bytes` in whole blocks; `fit`: how many requests of that
    length this pool holds."""

    requests: int
    length: int
    bytes_per_request: int | None
    blocks_per_request: int | None
    bytes: int | None
    blocks: int | None
    block_bytes: int | None
    fit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Blocks over time; shares are of the pool."""

    mean_blocks: float
    mean_bytes: float | None
    mean_share: float | None
    peak_blocks: int
    peak_bytes: int | None
    peak_share: float | None
    peak_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Blocks that are neither held nor cached; `least` in the step that left the fewest."""

    mean_blocks: float
    mean_bytes: float | None
    mean_share: float
    least_blocks: int
    least_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation:
    """Slots that are held and not written; the share is of what is held."""

    mean_slots: float
    mean_bytes: float | None
    mean_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One stretch of memory for each resident request, as engines without paging have it.

    `wasted` is reserved and holds no token; `times_held`: how many times what paging held.
    """

    length: int | None
    """Tokens reserved for each; None: its own prompt_tokens + max_new_tokens."""
    mean_tokens: float
    peak_tokens: int
    peak_step: int
    mean_bytes: float | None
    peak_bytes: int | None
    mean_wasted_bytes: float | None
    mean_wasted_share: float | None
    mean_times_held: float | None
    peak_times_held: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contiguous:
    longest: Reservation | None
    context: Reservation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The whole account."""

    bytes_per_token: int | None
    bytes_per_block: int | None
    groups: tuple[GroupFootprint, ...]
    pool: PoolSize | None
    need: Need | None
    steps: int
    held: Level | None
    cached: Level | None
    """Blocks that nobody holds and that the prefix index keeps."""
    free: Free | None
    fragmentation: Fragmentation | None
    saved: Level | None
    """By sharing: holders beyond the first."""
    contiguous: Contiguous
    missing: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """As JSON says it."""
        return asdict(self)


def report_of(run: Run, ask: Ask) -> Memory:
    """Of what was counted; see `Memory`."""
    of, context = run.footprint, ask.context or _context(run.header)
    pool = _pool(run)
    told = bool(run.series["held"].count) and bool(run.seen & {BlockAllocated, BlockShared})
    return Memory(
        bytes_per_token=of.bytes_per_token,
        bytes_per_block=of.bytes_per_block,
        groups=of.groups,
        pool=pool,
        need=_need(run, ask, pool),
        steps=run.series["held"].count,
        held=_level(run, "held") if told else None,
        cached=_level(run, "cached") if told else None,
        free=_free(run, pool) if told and pool is not None else None,
        fragmentation=_fragmentation(run) if told and SlotsWritten in run.seen else None,
        saved=_level(run, "spare") if told else None,
        contiguous=Contiguous(
            longest=_longest(run) if told and not run.strangers else None,
            context=_whole_context(run, context) if told and context else None,
        ),
        missing=tuple(_missing(run, context)),
    )


def _context(header: RunStarted | None) -> int | None:
    if header is None:
        return None
    for name in _CONTEXT_NAMES:
        for said in (header.config, header.unknown):
            value = said.get(name)
            if type(value) is int and value > 0:
                return value
    return None


def _pool(run: Run) -> PoolSize | None:
    header, of = run.header, run.footprint
    if header is None or header.num_blocks < 1:
        return None
    sentinels = len({b for b in header.sentinel_blocks if 0 <= b < header.num_blocks})
    blocks, groups = header.num_blocks - sentinels, max(len(of.groups), 1)
    return PoolSize(
        blocks=blocks,
        tokens=None if of.block_size is None else blocks * of.block_size,
        bytes=None if of.bytes_per_block is None else blocks * of.bytes_per_block,
        never_used_blocks=max(blocks * groups - sum(run.handed_out.values()), 0),
        sentinels=sentinels,
    )


def _capacity(run: Run) -> int | None:
    """Of all pools, in the unit of the series."""
    pool = _pool(run)
    if pool is None or pool.bytes is not None:
        return pool.bytes if pool else None
    slots = pool.blocks * (run.footprint.block_size or 1)
    return slots * max(len(run.footprint.groups), 1)


def _need(run: Run, ask: Ask, pool: PoolSize | None) -> Need | None:
    of, length = run.footprint, ask.length or run.longest
    requests = ask.requests or _most_at_once(run)
    if not requests or not length or run.header is None:
        return None
    size, blocks, block_bytes = of.bytes_of(length), of.blocks_of(length), of.block_bytes_of(length)
    return Need(
        requests=requests,
        length=length,
        bytes_per_request=size,
        blocks_per_request=blocks,
        bytes=None if size is None else requests * size,
        blocks=None if blocks is None else requests * blocks,
        block_bytes=None if block_bytes is None else requests * block_bytes,
        fit=None if pool is None else of.requests_in(pool.blocks, length),
    )


def _most_at_once(run: Run) -> int | None:
    said = run.header.config.get("max_num_seqs") if run.header else None
    return said if type(said) is int and said > 0 else run.series["residents"].peak


def _level(run: Run, name: str) -> Level:
    blocks, size, whole = run.series[f"{name}_blocks"], run.series[name], _capacity(run)
    return Level(
        mean_blocks=blocks.mean or 0.0,
        mean_bytes=_in_bytes(run, size.mean),
        mean_share=_share(size.mean, whole),
        peak_blocks=blocks.peak or 0,
        peak_bytes=_in_bytes(run, size.peak),
        peak_share=_share(size.peak, whole),
        peak_step=size.peak_step or 0,
    )


def _free(run: Run, pool: PoolSize) -> Free:
    blocks = pool.blocks * max(len(run.footprint.groups), 1)
    taken, size = run.series["taken_blocks"], run.series["taken"].mean or 0.0
    capacity = _capacity(run) or 0
    return Free(
        mean_blocks=blocks - (taken.mean or 0.0),
        mean_bytes=_in_bytes(run, capacity - size),
        mean_share=_share(capacity - size, capacity) or 0.0,
        least_blocks=blocks - (taken.peak or 0),
        least_step=taken.peak_step or 0,
    )


def _fragmentation(run: Run) -> Fragmentation | None:
    if run.footprint.block_size is None:
        return None
    unwritten, held = run.series["unwritten"], run.series["held"]
    return Fragmentation(
        mean_slots=run.series["unwritten_slots"].mean or 0.0,
        mean_bytes=_in_bytes(run, unwritten.mean),
        mean_share=_share(unwritten.mean, held.mean),
    )


def _longest(run: Run) -> Reservation:
    size, tokens = run.series["reserved"], run.series["reserved_tokens"]
    return _reservation(run, None, tokens, size.mean, size.peak)


def _whole_context(run: Run, context: int) -> Reservation:
    residents, of = run.series["residents"], run.footprint
    each = of.bytes_of(context)
    if each is None:
        each = sum(group.kept(context) for group in of.groups) or context
    tokens = Series(
        residents.total * context,
        residents.count,
        (residents.peak or 0) * context,
        residents.peak_step,
    )
    return _reservation(
        run, context, tokens, each * (residents.mean or 0), each * (residents.peak or 0)
    )


def _reservation(
    run: Run, length: int | None, tokens: Series, mean: float | None, peak: int | None
) -> Reservation:
    held, alone = run.series["held"], run.series["alone"].mean
    counted = SlotsWritten in run.seen and run.footprint.block_size is not None
    wasted = max(mean - alone, 0.0) if counted and mean is not None and alone is not None else None
    return Reservation(
        length=length,
        mean_tokens=tokens.mean or 0.0,
        peak_tokens=tokens.peak or 0,
        peak_step=tokens.peak_step or 0,
        mean_bytes=_in_bytes(run, mean),
        peak_bytes=_in_bytes(run, peak),
        mean_wasted_bytes=_in_bytes(run, wasted),
        mean_wasted_share=_share(wasted, mean),
        mean_times_held=_share(mean, held.mean) if run.footprint.block_size else None,
        peak_times_held=_share(peak, held.peak) if run.footprint.block_size else None,
    )


def _in_bytes(run: Run, size: Any) -> Any:
    return None if run.footprint.bytes_per_token is None else size


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _missing(run: Run, context: int | None) -> Iterator[str]:
    header, seen = run.header, run.seen
    if header is None:
        yield "there is no RunStarted: record the pool's size and the KV groups"
    elif header.num_blocks < 1:
        yield f"a pool of {header.num_blocks} blocks, as the header has it, can't be filled"
    yield from run.footprint.unknown
    strange = [g for g in run.handed_out if not 0 <= g < len(run.footprint.groups)]
    if strange and header is not None:
        yield f"KV group {min(strange)} is not in the header: its bytes can't be told"
    if SpanDropped in seen:
        yield "events were dropped: from there on only blocks handed out since are counted"
    if not run.series["held"].count:
        yield "no step was recorded, so what the pool held over time can't be told"
        return
    if not seen & {BlockAllocated, BlockShared}:
        yield "there is no BlockAllocated: record which request holds which block"
        return
    if SlotsWritten not in seen:
        yield "there is no SlotsWritten, so what was held and not written can't be told"
    if run.strangers:
        yield (
            f"{run.strangers} requests held blocks and have no RequestAdded, so what they would "
            "have reserved can't be told"
        )
    if context is None:
        yield "the trace doesn't tell the model's context; --context gives it"
