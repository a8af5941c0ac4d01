"""Host memory behind the pool: freed blocks that are cached go there, and come back when wanted.

    freed, cached ── store ──> host memory ── load ──> a request's own block
         (held back until stored)        (the request waits until loaded)

A transfer takes `transfer_steps` steps. Data moves at its end: what reads a block too early reads
what the block held before.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

from ..recorder.events import BlockDigested, SlotsWritten, TransferFinished, TransferStarted
from .block_pool import BlockPool
from .config import EngineConfig
from .content import Content
from .journal import Journal
from .lookup import PrefixLookup
from .questions import Load, Store
from .request import Request, Status
from .runner import BlockMemory

Place = tuple[int, Content]
"""KV group and content: what a host block holds."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A block of a request that host memory has."""

    question: Load
    host_block: int

    @property
    def index(self) -> int:
        return self.question.id.index


@dataclass(frozen=True, slots=True)
class Loads:
    """What is loaded so that `blocks` leading blocks needn't be computed; per KV group."""

    blocks: int
    wanted: tuple[tuple[Wanted, ...], ...]


class Chosen(NamedTuple):
    """A block that is stored, where to, and who freed it from which index."""

    question: Store
    host_block: int
    freed_by: tuple[Request, int]


@dataclass(slots=True, eq=False)
class Transfer:
    """Some blocks of one KV group on their way. Parallel lists."""

    name: str
    direction: Literal["store", "load"]
    group: int
    blocks: tuple[int, ...]
    contents: tuple[Content, ...]
    host_blocks: tuple[int, ...]
    due: int
    """The step that it finishes in, before anything is scheduled."""
    request: Request | None = None
    """Who waits for a load."""
    indices: tuple[int, ...] = ()
    """Of a load: the blocks' places in the request's table."""
    freed_by: tuple[tuple[Request, int], ...] = ()
    """Of a store: who freed each block, and from which index."""


@dataclass(slots=True)
class HostMemory:
    """Which host block holds what; least recently used first."""

    num_blocks: int
    _held: OrderedDict[Place, int] = field(default_factory=OrderedDict)
    _unused: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._unused = list(reversed(range(self.num_blocks)))

    def holding(self, group: int, content: Content) -> int | None:
        return self._held.get((group, content))

    def touch(self, group: int, content: Content) -> None:
        if (group, content) in self._held:
            self._held.move_to_end((group, content))

    def claim(self, busy: set[int]) -> int | None:
        """An unused block, else that of the least recently used content; never one of `busy`."""
        if self._unused:
            return self._unused.pop()
        for place, block in self._held.items():
            if block not in busy:
                del self._held[place]
                return block
        return None

    def put(self, group: int, content: Content, block: int) -> None:
        self._held[group, content] = block

    def unclaim(self, blocks: Sequence[int]) -> None:
        """Nothing came of what they were claimed for."""
        self._unused.extend(blocks)


class HostTier:
    """Starts transfers and finishes them. Does nothing where `host_blocks` is 0."""

    def __init__(
        self,
        config: EngineConfig,
        pools: Sequence[BlockPool],
        lookup: PrefixLookup,
        memory: BlockMemory,
        journal: Journal,
    ) -> None:
        self.enabled = config.host_blocks > 0 and config.shares
        self._config = config
        self._pools = pools
        self._lookup = lookup
        self._blocks = memory
        self._journal = journal
        self._memory = HostMemory(config.host_blocks)
        self._open: list[Transfer] = []
        self._count = 0
        self._to_store: list[dict[int, tuple[Request, int]]] = [{} for _ in pools]
        """Per group: block -> who freed it last, and from which index."""
        self._tries = Counter[tuple[str, int, int, int]]()
        for group, pool in enumerate(pools):
            pool.interrupt_by(partial(self._cancel_store, group))

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    def under_way(self, request: Request) -> tuple[str, ...]:
        """Transfers into the request's blocks that haven't finished."""
        return tuple(transfer.name for transfer in self._open if transfer.request is request)

    # Loads.

    def loadable(self, request: Request, blocks: int) -> Loads:
        """What host memory has behind the `blocks` leading blocks that needn't be computed."""
        found: list[list[Wanted]] = [[] for _ in self._pools]
        length = best = blocks
        while self.enabled and length < self._lookup.usable(request):
            asked = [self._ask(request, length, group) for group in range(len(self._pools))]
            if asked[0] is None:
                break
            for group, wanted in enumerate(asked):
                if wanted is not None:
                    found[group].append(wanted)
            length += 1
            if all(self._has_needed(found[g], g, blocks, length) for g in range(len(found))):
                best = length
        first = [self._lookup.first_needed(group, best) for group in range(len(found))]
        return Loads(
            best,
            tuple(
                tuple(wanted for wanted in of_group if first[group] <= wanted.index < best)
                for group, of_group in enumerate(found)
            ),
        )

    def _ask(self, request: Request, index: int, group: int) -> Wanted | None:
        content = self._lookup.content(request, index)
        host_block = self._memory.holding(group, content)
        id = self._journal.next_id("load", request, index, group)
        question = Load(id, content, host_block)
        answer: int | None = self._journal.answer(question)
        return None if answer is None else Wanted(question, answer)

    def _has_needed(self, found: list[Wanted], group: int, start: int, length: int) -> bool:
        needed = range(max(start, self._lookup.first_needed(group, length)), length)
        return {wanted.index for wanted in found} >= set(needed)

    def start_loads(self, request: Request, loads: Loads) -> None:
        """Into blocks that the request was allocated; it waits until `under_way` is empty."""
        for group, wanted in enumerate(loads.wanted):
            if not wanted:
                continue
            for one in wanted:
                self._journal.carry_out(one.question, one.host_block)
                self._memory.touch(group, one.question.content)
            blocks = [request.tables[group][one.index] for one in wanted]
            self._start(
                Transfer(
                    self._next_name("load"),
                    "load",
                    group,
                    tuple(block for block in blocks if block is not None),
                    tuple(one.question.content for one in wanted),
                    tuple(one.host_block for one in wanted),
                    self._journal.step + self._config.transfer_steps,
                    request,
                    tuple(one.index for one in wanted),
                )
            )

    # Stores.

    def start_stores(self, spare: int) -> None:
        """What was freed and is cached goes to host memory, but for `spare` free blocks that the
        next steps may need: a block is held back as long as its transfer lasts."""
        if not self.enabled:
            return
        for group, pool in enumerate(self._pools):
            waiting = self._to_store[group]
            waiting.update(pool.take_freed_cached())
            chosen = self._choose(group, waiting, pool.num_free - spare)
            if chosen:
                self._start_store(group, chosen)

    def _choose(
        self, group: int, waiting: dict[int, tuple[Request, int]], most: int
    ) -> list[Chosen]:
        """What is stored now; what can't be goes on waiting."""
        chosen: list[Chosen] = []
        for block_id, (request, index) in tuple(waiting.items()):
            entry = self._pools[group].blocks[block_id].entry
            is_free = not self._pools[group].blocks[block_id].ref_count
            if entry is None or not is_free or self._is_stored(group, entry.content):
                del waiting[block_id]
                continue
            if len(chosen) >= most or (host_block := self._claim(chosen)) is None:
                break
            del waiting[block_id]
            id = self._journal.id("store", request, index, group, self._try(request, index, group))
            store = Store(id, block_id, entry.content)
            chosen.append(Chosen(store, host_block, (request, index)))
        return chosen

    def _try(self, request: Request, index: int, group: int) -> str:
        """A store that was given up and is begun again is another decision."""
        freed = request.name, index, request.ordinal, group
        self._tries[freed] += 1
        return f"try{self._tries[freed]}" if self._tries[freed] > 1 else ""

    def _is_stored(self, group: int, content: Content) -> bool:
        """Or is on its way there."""
        if self._memory.holding(group, content) is not None:
            return True
        return any(
            t.direction == "store" and t.group == group and content in t.contents
            for t in self._open
        )

    def _claim(self, chosen: Sequence[Chosen]) -> int | None:
        busy = {block for transfer in self._open for block in transfer.host_blocks}
        return self._memory.claim(busy | {one.host_block for one in chosen})

    def _start_store(self, group: int, chosen: Sequence[Chosen]) -> None:
        blocks = tuple(self._journal.decide(one.question) for one in chosen)
        transfer = Transfer(
            self._next_name("store"),
            "store",
            group,
            blocks,
            tuple(one.question.content for one in chosen),
            tuple(one.host_block for one in chosen),
            self._journal.step + self._config.transfer_steps,
            freed_by=tuple(one.freed_by for one in chosen),
        )
        for block in transfer.blocks:
            self._pools[group].hold_back(block)
        self._start(transfer)
        self._digest(transfer)

    def _digest(self, transfer: Transfer) -> None:
        for block in transfer.blocks:
            if self._journal.listening:
                self._journal.emit(
                    BlockDigested(
                        block=block,
                        digest=self._blocks.digest(block, transfer.group),
                        at=transfer.direction,
                        transfer=transfer.name,
                        group=transfer.group or None,
                    )
                )

    def finish_due(self) -> None:
        """What ends with the step before this one: its data moves, and it is over.

        A scrub that waits for a step to be built must not undo a load: it goes first.
        """
        self._finish_all([t for t in self._open if t.due <= self._journal.step])

    def finish_now(self) -> None:
        """Waits for all that is under way."""
        self._finish_all(list(self._open))

    def _finish_all(self, due: Sequence[Transfer]) -> None:
        if any(transfer.direction == "load" for transfer in due):
            self._blocks.move([move for pool in self._pools for move in pool.take_moves()])
        for transfer in due:
            if transfer.direction == "store":
                self._finish_store(transfer)
            else:
                self._finish_load(transfer)

    def _finish_store(self, transfer: Transfer) -> None:
        self._blocks.store(transfer.blocks, transfer.host_blocks, transfer.group)
        for block, content, host in zip(
            transfer.blocks, transfer.contents, transfer.host_blocks, strict=True
        ):
            self._pools[transfer.group].give_back(block)
            self._memory.put(transfer.group, content, host)
        self._finish(transfer)

    def _cancel_store(self, group: int, block: int) -> None:
        """The block was taken over meanwhile and is freed once more: its store is given up, and
        begun again when there is time."""
        for transfer in [t for t in self._open if t.group == group and block in t.blocks]:
            self._memory.unclaim(transfer.host_blocks)
            for each, freed_by in zip(transfer.blocks, transfer.freed_by, strict=True):
                self._pools[group].give_back(each)
                self._to_store[group][each] = freed_by
            self._finish(transfer, "cancelled")

    def _finish_load(self, transfer: Transfer) -> None:
        request = transfer.request
        assert request is not None, "a load is some request's"
        self._blocks.load(transfer.host_blocks, transfer.blocks, transfer.group)
        if self._journal.listening:
            self._journal.emit(self._written(transfer, request))
        self._digest(transfer)
        self._finish(transfer)
        if request.status is Status.FINISHED:
            return
        pool = self._pools[transfer.group]
        for index, content in zip(transfer.indices, transfer.contents, strict=True):
            pool.publish(request, index, content, self._config.block_size)

    def _written(self, transfer: Transfer, request: Request) -> SlotsWritten:
        size = self._config.block_size
        positions = [i * size + offset for i in transfer.indices for offset in range(size)]
        slots = [block * size + offset for block in transfer.blocks for offset in range(size)]
        return SlotsWritten(
            write="transfer",
            requests=(request.name,) * len(slots),
            positions=tuple(positions),
            tokens=tuple(request.tokens[position] for position in positions),
            slots=tuple(slots),
            group=transfer.group or None,
        )

    def _next_name(self, direction: str) -> str:
        self._count += 1
        return f"{direction}-{self._count}"

    # Transitions: mutate and emit, nothing else does either.

    def _start(self, transfer: Transfer) -> None:
        self._open.append(transfer)
        if self._journal.listening:
            self._journal.emit(
                TransferStarted(
                    transfer=transfer.name,
                    direction=transfer.direction,
                    blocks=transfer.blocks,
                    keys=tuple(content.key for content in transfer.contents),
                    host_blocks=transfer.host_blocks,
                    request=transfer.request.name if transfer.request else None,
                    group=transfer.group or None,
                )
            )

    def _finish(self, transfer: Transfer, status: Literal["ok", "cancelled"] = "ok") -> None:
        self._open.remove(transfer)
        if self._journal.listening:
            self._journal.emit(TransferFinished(transfer=transfer.name, status=status))
