"""A trace without anybody's words: tokens as keyed hashes, and no text.

What is done to a field follows from its name and shape, and every field of every event is named
in `_HOW`: an event with a field that isn't can't be redacted at all, so none is ever forgotten.
Hashes are equal where what they stand for is, which is all that checks, blame and provenance ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal, TypeVar

from . import redacted_values as values
from .errors import BadInput
from .events import DecisionMade, Event, PiecesDefined, RunStarted, Scalar
from .fields import FieldSpec, fields_of
from .keyed_hash import KeyedHashes, RedactionKey
from .sink import Sink

LABEL = "redaction"
"""The entry of `RunStarted.config` that a redacted trace has."""

Names = Literal["clear", "keyed"]
"""Of requests, tenants, sessions and adapters. In clear, a finding can be told to whom it
concerns; who the names alone would give away wants them keyed."""

E = TypeVar("E", bound=Event)


class AlreadyRedacted(BadInput):
    """Hashes of hashes would agree with nothing."""


def is_redacted(header: RunStarted | None) -> bool:
    """Whether a trace with this header holds hashes in place of tokens."""
    return header is not None and bool(header.config.get(LABEL))


def key_id(header: RunStarted) -> str | None:
    """The same for traces that were redacted with one key; None for one in clear."""
    label = header.config.get(LABEL)
    found = label.get("key_id") if isinstance(label, Mapping) else None
    return found if isinstance(found, str) else None


class RedactingSink:
    """Stands in front of another sink, which hears of no token and no text."""

    def __init__(self, sink: Sink, redactor: Redactor) -> None:
        self._sink = sink
        self._redactor = redactor
        self.listening = getattr(sink, "listening", True)

    def emit(self, event: Event, step: int) -> None:
        self._sink.emit(self._redactor.redact(event), step)


class Redactor:
    """Redacts the events of one run, or of one fleet with one key. `label` is what the header
    says of it; without one the header stays as it is."""

    def __init__(
        self,
        hashes: values.Hashes,
        *,
        names: Names = "clear",
        label: Mapping[str, str] | None = None,
    ) -> None:
        self.hashes = hashes
        self._names: dict[str, str] | None = {} if names == "keyed" else None
        self._label = label

    @classmethod
    def keyed(cls, key: RedactionKey, names: Names = "clear") -> Redactor:
        hashes = KeyedHashes(key)
        label = {"tokens": "blake2b keyed, 63 bits", "names": names, "key_id": hashes.id}
        return cls(hashes, names=names, label=label)

    def redact(self, event: E) -> E:
        """The event without what it would give away; fields that we don't know are left out.

        Raises AlreadyRedacted for the header of a redacted run.
        """
        changes: dict[str, Any] = {}
        for name, how in _plan(type(event)):
            value = getattr(event, name)
            if value is not None:
                changes[name] = how(self, value)
        if isinstance(event, DecisionMade):
            changes["choice"] = values.choice(self, event.about, event.choice)
            if event.about == "epoch":
                changes.pop("request", None)  # it says what was loaded anew
        if isinstance(event, RunStarted) and self._label is not None:
            self.refuse_redacted(event)
            changes["config"] = changes["config"] | {LABEL: dict(self._label)}
        if event.unknown:
            changes["unknown"] = {}
        return replace(event, **changes) if changes else event

    def refuse_redacted(self, header: RunStarted | None) -> None:
        """Raises AlreadyRedacted for the header of a redacted run."""
        if is_redacted(header):
            raise AlreadyRedacted(
                "the trace, or a rank of it, is redacted already; hand it over as it is, or redact "
                "the others before they are merged"
            )

    def name(self, name: Scalar) -> Scalar:
        """Of a request, tenant, session or adapter. r0/1, the name of a further sample of r0,
        becomes that of one of r0's hash: a re-execution names it so."""
        if self._names is None:
            return name
        if not isinstance(name, str):
            return self.hashes.scalar("name", name)
        if name not in self._names:
            stem, _, number = name.rpartition("/")
            is_sample = stem and len(number) <= 3 and number.isdecimal()
            hashed = str(self.hashes.scalar("name", stem if is_sample else name))[:16]
            self._names[name] = f"{hashed}/{number}" if is_sample else hashed
        return self._names[name]

    @property
    def has_clear_names(self) -> bool:
        return self._names is None


# --- what is done to a field ----------------------------------------------------------------------

How = Callable[[Redactor, Any], Any]


def _tokens(redactor: Redactor, tokens: tuple[int, ...]) -> tuple[int, ...]:
    return redactor.hashes.tokens(tokens)


def _key(redactor: Redactor, key: Scalar) -> Scalar:
    return redactor.hashes.scalar("key", key)


def _keys(redactor: Redactor, keys: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    return tuple(_key(redactor, key) for key in keys)


def _digest(redactor: Redactor, digest: Scalar) -> Scalar:
    return redactor.hashes.scalar("digest", digest)


def _name(redactor: Redactor, name: Scalar) -> Scalar:
    return redactor.name(name)


def _names(redactor: Redactor, names: tuple[str | None, ...]) -> tuple[Scalar | None, ...]:
    if redactor.has_clear_names:
        return names
    return tuple(None if name is None else redactor.name(name) for name in names)


def _absent(_: Redactor, value: Any) -> None:
    """For fields that needn't be there."""


def _empty(_: Redactor, value: tuple[Any, ...]) -> tuple[Any, ...]:
    return ()


def _kept(_: Redactor, value: Any) -> Any:
    return value


# fmt: off
_HOW: Mapping[tuple[str, str], How] = {
    **{(name, "ints"): _tokens for name in ("tokens", "prompt_tokens", "proposed")},
    **{(name, "scalar"): _key for name in ("key", "parent_key")},
    ("keys", "scalars"): _keys,
    ("digest", "scalar"): _digest,  # whoever has the model can work out the KV of a guess
    ("extra_keys", "list"): values.extra_keys,
    **{(name, "str"): _name for name in ("request", "parent")},
    **{(name, "scalar"): _name for name in ("tenant", "session", "adapter", "external_id")},
    **{("requests", shape): _names for shape in ("names", "rows")},
    ("decision", "str"): values.decision_id,
    ("choice", "any"): _kept,  # what it may tell depends on `about`: see `redact`
    ("pieces", "names"): _empty,
    ("passphrase", "str"): _absent,
    ("message", "str"): _absent,
    ("logprobs", "floats"): _absent,
    ("state", "str"): _absent,  # see `replay.redacted_state`
    ("margins", "floats"): values.rough_all,
    **{(name, "float"): values.rough for name in ("foreign_mass", "entropy")},
    ("sampling", "map"): values.sampling,
    **{(name, "map"): values.settings for name in ("config", "versions")},
    ("model", "str"): values.model_name,
    **{(name, "str"): values.reason for name in ("reason", "missed_because")},
    **{(name, "str"): _kept for name in (
        "engine", "engine_version", "model_digest", "tokenizer_digest", "dtype", "device",
        "wall_clock", "about", "why",
    )},
    **{(name, "int"): _kept for name in (
        "num_blocks", "block_size", "seed", "max_new_tokens", "priority", "tokens", "tokens_kept",
        "hit_tokens", "block", "index", "ref_count", "group", "source", "destination", "slots",
        "stride", "window", "first", "accepted", "layer", "first_seq", "count",
    )},
    **{(name, "ints"): _kept for name in (
        "sentinel_blocks", "blocks", "computed", "scheduled", "query_lens", "seq_lens", "positions",
        "slot_mapping", "layers", "slots", "rows", "top_slots", "host_blocks",
    )},
    **{(name, "scalar"): _kept for name in ("epoch", "buffer", "stamp", "transfer")},
    ("groups", "list"): values.numbers,
    ("read", "list"): _kept,
    ("rows", "any"): values.numbers,
    ("cached", "bool"): _kept,
    ("fill", "float"): _kept,
    ("allowed", "bytes"): _kept,
    ("block_tables", "table"): _kept,
}
# fmt: on


def _how(cls: type[Event], spec: FieldSpec) -> How:
    if spec.words is not None:
        return _kept
    if cls is PiecesDefined and spec.name != "decision":
        return _empty  # the event stays, so that positions are those of the run in clear
    how = _HOW.get((spec.name, spec.shape))
    if how is None:
        raise TypeError(
            f"{cls.__name__}.{spec.name} ({spec.shape}) isn't named in redaction.py: "
            "say there what a redacted trace may tell of it"
        )
    return how


@cache
def _plan(cls: type[Event]) -> tuple[tuple[str, How], ...]:
    """The fields that change, and how."""
    hows = ((spec, _how(cls, spec)) for spec in fields_of(cls))
    return tuple((spec.name, how) for spec, how in hows if how is not _kept)
