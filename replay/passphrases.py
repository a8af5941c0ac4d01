"""A passphrase in somebody else's words: evidence of a leak that needs no log of reads.

A request may carry a random pseudo-word (`RequestAdded.passphrase`). Sampled by another request,
whose own prompt doesn't have it, it came out of the cache. Searched is what a request has said, in
the text that `PiecesDefined` gives; under redaction there is none.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..recorder.events import (
    Envelope,
    PiecesDefined,
    RequestAdded,
    RequestFinished,
    RequestRevised,
    SpanDropped,
    TokensSampled,
)
from .findings import Finding
from .oracles import foreign_passphrases
from .pieces import Pieces

WORDS_KEPT = 1_000
"""Each word is looked for at each token; of more requests than this, the latest are kept."""


@dataclass(slots=True)
class _Speaker:
    given: list[int]
    """The tokens that it was given: what stands there, it may say."""
    tail: deque[int] = field(default_factory=deque)
    """Its last sampled tokens, as many as the longest word has letters and one more."""


class PassphraseWatch:
    """`see` every event of a run in order: `findings` has one for each (speaker, owner). `named`:
    how the findings call a request."""

    def __init__(self, named: Callable[[str], str] = str) -> None:
        self.findings: list[Finding] = []
        self._named = named
        self._pieces = Pieces()
        self._words: OrderedDict[str, str] = OrderedDict()
        """Owner -> its passphrase, of finished requests too: their blocks live on."""
        self._longest = 0
        self._speakers: dict[str, _Speaker] = {}
        self._said: set[tuple[str, str]] = set()

    def see(self, envelope: Envelope) -> None:
        match envelope.event:
            case TokensSampled() as event if self._words:
                for request, token in zip(event.requests, event.tokens, strict=False):
                    self._sampled(envelope, request, token)
            case RequestAdded() as event:
                self._speakers[event.request] = _Speaker(list(event.prompt_tokens))
                if event.passphrase:
                    self._keep(event.request, event.passphrase)
            case PiecesDefined() as event:
                self._pieces.define(event.tokens, event.pieces)
            case RequestRevised() as event if event.request in self._speakers:
                self._speakers[event.request].given.extend(event.tokens or ())
                self._speakers[event.request].tail.clear()
            case RequestFinished() as event:
                self._speakers.pop(event.request, None)
            case SpanDropped(state=None):  # where a ring begins, who speaks is still told
                self._speakers.clear()
            case _:
                pass

    def _keep(self, owner: str, word: str) -> None:
        self._words[owner] = word
        self._longest = max(self._longest, len(word))
        if len(self._words) > WORDS_KEPT:
            self._words.popitem(last=False)

    def _sampled(self, envelope: Envelope, request: str, token: int) -> None:
        speaker = self._speakers.get(request)
        if speaker is None:
            return
        speaker.tail.append(token)
        while len(speaker.tail) > self._longest + 1:
            speaker.tail.popleft()
        said = self._pieces.running_text(speaker.tail)
        for word, owner in foreign_passphrases(request, said, self._words):
            was_given = word.casefold() in self._pieces.running_text(speaker.given).casefold()
            if (request, owner) not in self._said and not was_given:
                self._said.add((request, owner))
                self.findings.append(_finding(envelope, self._named(request), self._named(owner)))


def _finding(envelope: Envelope, request: str, owner: str) -> Finding:
    return Finding(
        check="passphrase",
        fault_class="F20",
        root=True,
        position=envelope.position,
        seq=envelope.seq,
        culprit_seq=None,
        victim=request,
        source=owner,
        explanation=f"{request} says the passphrase of {owner}, which its prompt does not have",
    )
