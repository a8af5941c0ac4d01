"""The vocabulary: every event of the trace contract, version 1.

The annotations are the schema. The codec, the JSON lines reader and the trace file all read the
types below through `fields.fields_of`, so an event is added by writing its class and naming it in
`EVENTS`; nothing registers itself.

Arrays are tuples: immutable, so that an event can never change after the emitting thread let go
of it (a view of a reused buffer would put the staging fault F12 into our own recorder).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

CONTRACT_VERSION = 1

Ints = tuple[int, ...]
Floats = tuple[float, ...]
Names = tuple[str, ...]
Rows = tuple[str | None, ...]
"""One request per row or token; None is a pad."""
Table = tuple[tuple[int, ...], ...]
"""Ragged rows of block numbers; -1 is a hole or padding, as the device is given it."""
Scalar = str | int
"""An opaque name that is only ever compared: a key, a digest, a buffer, a tenant."""

Phase = Literal["prefill", "decode"]
Phases = tuple[Phase, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What any event may carry: the decision that it carries out, and fields we don't know."""

    decision: str | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The header of a run. `groups` lists {layers, kv_heads, head_dim, window?} per KV group."""

    engine: str
    engine_version: str
    model: str
    model_digest: str | None = None
    tokenizer_digest: str | None = None
    dtype: str
    device: str
    num_blocks: int
    block_size: int
    groups: list[Any]
    sentinel_blocks: Ints
    seed: int | None = None
    wall_clock: str
    config: dict[str, Any]
    versions: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecesDefined(Event):
    """Token -> text, once per token; left out under redaction."""

    tokens: Ints
    pieces: Names


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochChanged(Event):
    epoch: Scalar
    what: Literal["weights", "adapter", "pool"]
    adapter: Scalar | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAdded(Event):
    """`extra_keys` is a list of [first position, key]; a plain key counts from 0."""

    request: str
    prompt_tokens: Ints
    max_new_tokens: int
    tenant: Scalar | None = None
    session: Scalar | None = None
    adapter: Scalar | None = None
    priority: int | None = None
    parent: str | None = None
    external_id: Scalar | None = None
    extra_keys: list[Any] | None = None
    sampling: dict[str, Any] | None = None
    passphrase: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestForked(Event):
    """`request` is the child; it takes over the first `tokens` tokens of `parent`."""

    request: str
    parent: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRequested(Event):
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPreempted(Event):
    """Releases nothing by itself: releases follow. The request keeps its tokens."""

    request: str
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFinished(Event):
    """`message`: what went wrong, where the reason is an error."""

    request: str
    reason: Literal["eos", "length", "aborted", "error"]
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixLookedUp(Event):
    """`keys` in the order asked for; `blocks` is what the leading ones gave."""

    request: str
    keys: tuple[Scalar, ...]
    blocks: Ints
    hit_tokens: int
    missed_because: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRevised(Event):
    """The request's tokens are cut to `tokens_kept`, then `tokens` are appended."""

    request: str
    tokens_kept: int
    tokens: Ints | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAllocated(Event):
    """The block's generation grows by one; at a used index it replaces the table entry."""

    block: int
    request: str
    index: int
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShared(Event):
    """Another holder; the generation stays. `key` is None for a fork."""

    block: int
    request: str
    index: int
    ref_count: int
    key: Scalar | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReleased(Event):
    """One reference dropped; `ref_count` is the count afterwards."""

    block: int
    request: str
    index: int | None = None
    ref_count: int
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFreed(Event):
    """The count reached zero; `cached` says that the block keeps an index entry."""

    block: int
    cached: bool
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRegistered(Event):
    """A key enters the prefix index. `tokens` are the block's own (exactly block_size)."""

    block: int
    key: Scalar
    request: str | None = None
    parent_key: Scalar | None = None
    tokens: Ints
    extra_keys: list[Any] | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockUnregistered(Event):
    block: int
    key: Scalar
    reason: Literal["evicted", "reused", "reset"]
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopied(Event):
    """Itself the write; the `slots` leading slots keep their first writer."""

    source: int
    destination: int
    slots: int
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockScrubbed(Event):
    block: int
    how: Literal["zero", "nan"]
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScheduled(Event):
    """`computed`: tokens whose KV exists before this step; `scheduled`: tokens of this step."""

    requests: Names
    computed: Ints
    scheduled: Ints
    phases: Phases


@dataclass(frozen=True, slots=True, kw_only=True)
class InputsBuilt(Event):
    """What the device is given.

    Per row: `requests` (None = pad, seq_len 0), `query_lens`, `seq_lens` (this step's queries
    included), `block_tables` (ragged). Per token, packed in row order: `tokens`, `positions`,
    `slot_mapping` (-1 writes nowhere).
    """

    requests: Rows
    tokens: Ints | None = None
    phases: Phases | None = None
    query_lens: Ints
    seq_lens: Ints
    block_tables: Table
    positions: Ints
    slot_mapping: Ints
    group: int | None = None
    buffer: Scalar | None = None
    stamp: Scalar | None = None
    stride: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskBuilt(Event):
    """Which keys each query sees.

    `allowed` (dense): sum(query_lens) rows by the keys of `keys`, each row padded to whole
    bytes, most significant bit first, 1 = visible whatever `meaning` says.
    """

    form: Literal["lengths", "dense"]
    requests: Rows
    query_lens: Ints
    allowed: bytes | None = None
    keys: Literal["concatenated", "pool", "per_row"] | None = None
    meaning: Literal["bool_keep", "additive"]
    dtype: str
    fill: float | None = None
    applied: Literal["before_softmax", "after_softmax"]
    window: int | None = None
    layers: Ints | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDispatched(Event):
    """The step went to the device; its rows read now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReplayed(Event):
    buffer: Scalar
    stamp: Scalar
    stride: int
    rows: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsWritten(Event):
    """Parallel arrays, one entry per token."""

    write: Literal["prefill", "decode", "draft", "pad", "dummy", "copy", "transfer"]
    requests: Rows
    positions: Ints
    tokens: Ints | None = None
    slots: Ints
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompleted(Event):
    """`read` is [buffer, stamp] as echoed by the device."""

    read: list[Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVerified(Event):
    """`first` is the position of the first proposed token; `accepted` is a count."""

    request: str
    proposed: Ints
    first: int
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensSampled(Event):
    """`positions`: the index that each token takes in its request; `rows`: whose logits."""

    requests: Names
    tokens: Ints
    positions: Ints
    rows: Ints
    logprobs: Floats | None = None
    margins: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionProbed(Event):
    request: str
    layer: int
    foreign_mass: float
    entropy: float
    top_slots: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDigested(Event):
    block: int
    digest: Scalar
    at: Literal["register", "share", "read", "store", "load", "sweep"]
    transfer: Scalar | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStarted(Event):
    transfer: Scalar
    direction: Literal["store", "load", "send", "receive"]
    blocks: Ints
    keys: tuple[Scalar, ...]
    host_blocks: Ints | None = None
    request: str | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferFinished(Event):
    transfer: Scalar
    status: Literal["ok", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionMade(Event):
    """Logged just before the events that carry the decision out, which bear its id."""

    decision: str  # pyright: ignore[reportGeneralTypeIssues] -- required here, optional elsewhere
    about: str
    request: str | None = None
    choice: Any


RING = "ring"
"""`SpanDropped.why` where a ring begins."""

STAYS = ("RunStarted", "PiecesDefined", "RequestAdded")
"""Kinds of which events stay that are older than the ring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanDropped(Event):
    """Its own seq is the number after the gap.

    Where a ring begins, `why` is `ring`, `state` is the run's state after this seq (see
    `replay.snapshot`), and a few events inside the span are still there.
    """

    first_seq: int
    count: int
    why: str
    state: str | None = None


EVENTS: tuple[type[Event], ...] = (
    RunStarted,
    RunEnded,
    PiecesDefined,
    EpochChanged,
    RequestAdded,
    RequestForked,
    AbortRequested,
    RequestPreempted,
    RequestFinished,
    PrefixLookedUp,
    RequestRevised,
    BlockAllocated,
    BlockShared,
    BlockReleased,
    BlockFreed,
    BlockRegistered,
    BlockUnregistered,
    BlockCopied,
    BlockScrubbed,
    StepScheduled,
    InputsBuilt,
    MaskBuilt,
    StepDispatched,
    GraphReplayed,
    SlotsWritten,
    StepCompleted,
    DraftVerified,
    TokensSampled,
    AttentionProbed,
    BlockDigested,
    TransferStarted,
    TransferFinished,
    DecisionMade,
    SpanDropped,
)

KINDS: Mapping[str, type[Event]] = {cls.__name__: cls for cls in EVENTS}


class Envelope(NamedTuple):
    """An event in its place: `seq` from 0, `step` from 1 (0 before the first), `t_ns` from the
    start of the run, `rank` 0 unless several processes were merged."""

    seq: int
    step: int
    t_ns: int
    rank: int
    event: Event

    @property
    def kind(self) -> str:
        return type(self.event).__name__

    @property
    def position(self) -> str:
        """`step:seq`, what a person pastes into a bug report."""
        return f"{self.step}:{self.seq}"
