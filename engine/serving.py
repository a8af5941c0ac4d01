"""The engine in a thread of its own, fed and read from any other.

    submit, abort, close          Stream.tokens, Stream.result
            |                               ^
            v                               | follow, after each step
         inbox ---- at a step's begin ---> engine

What the threads hand in waits in the inbox until the next step begins, so the trace tells each
input at the step that took it in, and a re-execution needs nothing else: when it came doesn't
matter.
"""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import NamedTuple, Self

from .admission import PromptRefused, UnknownRequest, refuse_impossible, sample_names
from .engine import Engine
from .epochs import EpochChange
from .request import Prompt
from .stream import Stream


class EngineStopped(Exception):
    """The engine takes nothing in any more: it was closed, or failed (then with a `__cause__`)."""


class _Submit(NamedTuple):
    prompt: Prompt
    streams: tuple[Stream, ...]


class _Abort(NamedTuple):
    name: str


class _Close(NamedTuple):
    drain: bool


class ThreadedEngine:
    """Steps an engine for as long as there is work, and sleeps while there is none.

    The engine belongs to the thread from here on: nobody else may touch it, or its sink. As a
    context manager it is closed at the end: after what was submitted has ended, or at once when
    the block raised.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inbox: SimpleQueue[_Submit | _Abort | EpochChange | _Close] = SimpleQueue()
        self._streams: dict[str, Stream] = {}
        """Those that go on. The engine's thread only."""
        self._closing = False
        """The engine's thread only: whether the inbox has asked for the end."""
        self._door = threading.Lock()
        """So that nothing is handed in behind an engine that has stopped."""
        self._names = engine.names
        self._closed = False
        self.failure: BaseException | None = None
        """What stopped the engine, when it wasn't `close`."""
        self._thread = threading.Thread(target=self._serve, name="kvrewind-engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._stop(drain=False)

    # --- any thread -------------------------------------------------------------------------------

    def submit(self, prompt: Prompt) -> Stream:
        """Hand a request in; the next step to begin takes it in.

        Raises `PromptRefused` for one that could never be served, and `EngineStopped`.
        """
        if prompt.arrival_s is not None:
            raise PromptRefused(
                f"request {prompt.request!r} has an arrival_s, but what is submitted arrives now; "
                "leave it out"
            )
        config, card = self._engine.config, self._engine.runner.card
        with self._door:
            self._refuse_when_stopped()
            refuse_impossible([prompt], config, card, known=self._names)
            names = (prompt.request, *sample_names(prompt))
            streams = tuple(Stream(name, self.abort) for name in names)
            self._names.update(stream.name for stream in streams)
            for stream in streams:
                stream.samples = streams
            self._inbox.put(_Submit(prompt, streams))
        return streams[0]

    def abort(self, name: str) -> None:
        """End a request at the next step; nothing happens to one that has ended.

        Raises `UnknownRequest`.
        """
        if name not in self._names:
            raise UnknownRequest(name)
        self._inbox.put(_Abort(name))

    def change_epoch(self, change: EpochChange) -> None:
        """Say that weights, an adapter or the pool's memory are loaded anew: from the next step on
        nothing computed before is shared. Raises `EngineStopped`."""
        with self._door:
            self._refuse_when_stopped()
            self._inbox.put(change)

    def close(self, *, drain: bool = True) -> None:
        """Take nothing in any more and end the run: after all requests have ended, or (without
        `drain`) aborting them. Returns when the trace has its end; may be called again.

        Raises `EngineStopped` if the engine failed before.
        """
        self._stop(drain=drain)
        if self.failure is not None:
            raise EngineStopped(f"the engine failed: {self.failure}") from self.failure

    def _stop(self, *, drain: bool) -> None:
        with self._door:
            self._closed = True
            self._inbox.put(_Close(drain))
        self._thread.join()

    def _refuse_when_stopped(self) -> None:
        if self.failure is not None:
            raise EngineStopped(f"the engine failed: {self.failure}") from self.failure
        if self._closed:
            raise EngineStopped("the engine is closed; open another one")

    # --- the engine's thread ----------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while self._take_in():
                self._engine.advance()
                self._deliver()
            self._engine.end()
        except BaseException as error:  # whatever it is, all who wait must hear of it
            self._fail(error)

    def _take_in(self) -> bool:
        """Hand over what has come; with nothing to do, wait for it. False when it is the end."""
        while True:
            try:
                item = self._inbox.get(block=not (self._engine.has_work or self._closing))
            except Empty:
                return self._engine.has_work
            self._hand_over(item)

    def _hand_over(self, item: _Submit | _Abort | EpochChange | _Close) -> None:
        match item:
            case _Submit(prompt, streams):
                self._streams.update((stream.name, stream) for stream in streams)
                self._engine.add([prompt])
            case _Abort(name):
                self._engine.abort(name)
            case EpochChange():
                self._engine.change_epoch(item)
            case _Close(drain):
                self._closing = True
                if not drain:
                    for name in self._engine.names:
                        self._engine.abort(name)

    def _deliver(self) -> None:
        for name, stream in tuple(self._streams.items()):
            request = self._engine.requests.get(name)
            if request is not None:
                stream.follow(request)
            if stream.done:
                del self._streams[name]

    def _fail(self, error: BaseException) -> None:
        with self._door:
            self.failure = error
        for stream in (*self._streams.values(), *self._unheard()):
            stream.fail(f"the engine stopped: {error}", error)
        self._streams.clear()

    def _unheard(self) -> list[Stream]:
        """Streams of what nobody will take in any more."""
        unheard: list[Stream] = []
        while not self._inbox.empty():
            item = self._inbox.get()
            unheard += item.streams if isinstance(item, _Submit) else ()
        return unheard
