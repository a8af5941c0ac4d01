"""Re-execution of a redacted run: no model can read its tokens, so what it said is told again.

Nearly every decision of the engine asks only whether tokens are equal, and of keyed hashes that is
known as well. The simulator works out what each row sees, whatever model was recorded, and each
request says the tokens that it said then. What a request would have said otherwise isn't known:
under other switches it says the same, and behind the last recorded token something of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import chain, repeat

from ..engine.canary.wordpiece import WordPiece
from ..engine.config import EngineConfig
from ..engine.llm import SIMULATED, Model, open_model
from ..engine.request import Prompt
from ..engine.runner import KVGroup, ModelCard, Runner
from ..engine.sampling import Sample
from ..engine.symbolic import SymbolicRunner
from ..recorder.events import (
    Envelope,
    Event,
    InputsBuilt,
    PiecesDefined,
    RunStarted,
    Scalar,
    SlotsWritten,
)
from ..recorder.redaction import LABEL, Redactor, is_redacted
from ..recorder.sink import Sink
from .forced import Forced
from .recording import NotReexecutable, Recording

_TOKENS = 1 << 63
"""Keyed hashes are below it."""


def model_of(recording: Recording, named: str | None = None) -> Model:
    """What runs a recording again: the recorded model, where it lies now if `named`, or for a
    redacted one the simulator. Raises `BadInput` when it isn't there, `NotReexecutable` for a
    model that would have to read hashes."""
    header = recording.header
    if not is_redacted(header):
        return open_model(named or header.model, recording.config)
    if named is not None and named not in [name for name, _ in SIMULATED]:
        raise NotReexecutable(
            "the trace is redacted: its tokens are keyed hashes, which no model can read; leave "
            "--model out, and the requests say what they said when it was recorded."
        )
    return RetoldModel(recording)


class RetoldModel:
    """Implements `Model` for the requests of one redacted recording."""

    def __init__(self, recording: Recording) -> None:
        if recording.config.granularity == "paragraph":
            raise NotReexecutable(
                "the trace is redacted, and its prefixes end with paragraphs "
                "(--granularity paragraph): which tokens end one is not told, so the run can't be "
                "re-executed; `kvrewind check` judges it as it stands."
            )
        if recording.has_gaps:
            raise NotReexecutable(
                "the trace is redacted, and events are missing in it (a ring, or a dropped span): "
                "what its requests said there is not known, so the run can't be re-executed; "
                "`kvrewind check` judges it as it stands."
            )
        self._recording = recording

    @property
    def name(self) -> str:
        return self._recording.header.model

    def encode(self, text: str) -> list[int]:
        raise NotReexecutable(
            "the trace is redacted, so that its model can't be given a text; "
            "use one recorded without --redact."
        )

    def decode(self, tokens: Sequence[int]) -> str:
        noun = "token" if len(tokens) == 1 else "tokens"
        return f"({len(tokens)} redacted {noun})"

    def piece(self, token: int) -> str:
        return ""

    def runner(self, config: EngineConfig) -> Runner:
        card = self._card()
        windows = [KVGroup.of(group).window for group in card.groups]
        tokenizer = WordPiece.load()  # of which nothing is asked
        simulator = SymbolicRunner(config, tokenizer, windows=windows, voices=_Murmur(), card=card)
        return Forced(simulator, self._recording.sampled)

    def _card(self) -> ModelCard:
        header = self._recording.header
        return ModelCard(
            name=header.model,
            digest=header.model_digest,
            tokenizer_digest=header.tokenizer_digest,
            dtype=header.dtype,
            device=header.device,
            groups=header.groups,
            eos_tokens=self._recording.ended_by,
            vocab_size=_TOKENS,
            max_positions=header.config.get("max_positions"),
            versions=header.versions,
        )


class _Murmur:
    """What requests say where nothing was recorded: each another token at each index."""

    def begin(self, prompt: Prompt) -> None:
        pass

    def next(self, request: str, index: int, source: str) -> int:
        digest = blake2b(f"{index}:{request}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % _TOKENS

    def draw(self, best: int, sample: Sample) -> int:
        return best


class Wordless:
    """Stands in front of a sink that is to hold what a redacted trace holds."""

    listening = True

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def emit(self, event: Event, step: int) -> None:
        if isinstance(event, PiecesDefined):
            event = PiecesDefined(tokens=(), pieces=())
        self._sink.emit(event, step)


def labelled(header: RunStarted, recorded: RunStarted) -> RunStarted:
    """A header of a run that was made from a redacted one."""
    if not is_redacted(recorded):
        return header
    return replace(header, config=header.config | {LABEL: recorded.config[LABEL]})


def numbered(envelopes: Iterable[Envelope]) -> list[Envelope]:
    """The events with keys as numbers in the order in which they first come, since those of a
    redacted run and its re-execution differ by name alone; without digests of what blocks hold,
    which nobody computes again, and without the tokens of pads, which the engine makes up."""
    redactor = Redactor(_Numbers())
    return [e._replace(event=_without_pads(redactor.redact(e.event))) for e in envelopes]


def _without_pads(event: Event) -> Event:
    match event:
        case InputsBuilt(tokens=tuple() as tokens) if None in event.requests:
            of = chain.from_iterable(map(repeat, event.requests, event.query_lens))
        case SlotsWritten(tokens=tuple() as tokens) if None in event.requests:
            of = iter(event.requests)
        case _:
            return event
    kept = (0 if name is None else token for name, token in zip(of, tokens, strict=False))
    return replace(event, tokens=tuple(kept))


class _Numbers:
    """Implements `redacted_values.Hashes`."""

    def __init__(self) -> None:
        self._known: dict[Scalar, int] = {}

    def tokens(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tokens

    def scalar(self, role: str, value: Scalar) -> Scalar:
        if role == "digest":
            return 0
        return self._known.setdefault(value, len(self._known)) if role == "key" else value
