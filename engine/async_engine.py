"""The engine for asyncio: the same thread, its tokens awaited in an event loop.

async with AsyncEngine(engine) as live:
    async for token in live.generate(prompt):
        ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Self

from .admission import PromptRefused
from .engine import Engine
from .epochs import EpochChange
from .request import FinishReason, Prompt
from .serving import ThreadedEngine
from .stream import RequestFailed, Stream


class AsyncStream:
    """A `Stream` whose tokens are awaited. Belongs to the event loop that made it."""

    def __init__(self, stream: Stream) -> None:
        self.samples: tuple[AsyncStream, ...] = (self,)
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        stream.listen(self._tell)

    @property
    def name(self) -> str:
        return self._stream.name

    @property
    def done(self) -> bool:
        return self._stream.done

    @property
    def finish_reason(self) -> FinishReason | None:
        return self._stream.finish_reason

    @property
    def error(self) -> RequestFailed | None:
        return self._stream.error

    def abort(self) -> None:
        """End the request at the next step. Nothing happens to one that has ended."""
        self._stream.abort()

    def __aiter__(self) -> AsyncIterator[int]:
        return self.tokens()

    async def tokens(self) -> AsyncGenerator[int]:
        """Each token as it comes, from the first on. Raises `RequestFailed` at the end of a
        request that an error ended."""
        seen = 0
        while True:
            ended = self._stream.done  # asked first: what came before the end is read then
            for token in self._stream.read(seen):
                seen += 1
                yield token
            if ended:
                break
            await self._wait_beyond(seen)
        self._stream.raise_error()

    async def result(self) -> tuple[int, ...]:
        """All tokens, once the request has ended. Raises `RequestFailed`."""
        return tuple([token async for token in self.tokens()])

    async def _wait_beyond(self, seen: int) -> None:
        """Cleared before looking, so that nothing which comes in between is missed."""
        self._news.clear()
        if not self._stream.done and not self._stream.read(seen):
            await self._news.wait()

    def _tell(self) -> None:
        """In the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(self._news.set)
        except RuntimeError:
            if not self._loop.is_closed():  # else nobody is left to be told
                raise


class AsyncEngine:
    """What asyncio code needs of `ThreadedEngine`: nothing here ever blocks the event loop.

    As a context manager it is closed at the end: after what was submitted has ended, or at once
    when the block raised or was cancelled.
    """

    def __init__(self, engine: Engine) -> None:
        self._threaded = ThreadedEngine(engine)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(drain=kind is None)

    async def generate(self, prompt: Prompt) -> AsyncGenerator[int]:
        """The tokens of one request, which is submitted when the first one is asked for.

        Whoever stops listening (cancelled, or out of the loop) aborts the request. Raises
        `PromptRefused`, also for several samples of a prompt, which `submit` streams;
        `EngineStopped`; and `RequestFailed` where an error ended the request.
        """
        if prompt.n > 1:
            raise PromptRefused(
                f"request {prompt.request!r} asks for {prompt.n} samples and generate streams one; "
                "take submit, whose stream has them as `samples`"
            )
        stream = self.submit(prompt)
        try:
            async with aclosing(stream.tokens()) as tokens:
                async for token in tokens:
                    yield token
        finally:
            if not stream.done:
                stream.abort()

    def submit(self, prompt: Prompt) -> AsyncStream:
        """Hand a request in at once, and let go of it only by `AsyncStream.abort`.

        Raises `PromptRefused` and `EngineStopped`.
        """
        streams = tuple(AsyncStream(one) for one in self._threaded.submit(prompt).samples)
        for stream in streams:
            stream.samples = streams
        return streams[0]

    def abort(self, name: str) -> None:
        """End a request at the next step. Raises `UnknownRequest`."""
        self._threaded.abort(name)

    def change_epoch(self, change: EpochChange) -> None:
        """As `ThreadedEngine.change_epoch`."""
        self._threaded.change_epoch(change)

    async def close(self, *, drain: bool = True) -> None:
        """As `ThreadedEngine.close`. Cancelled while it waits, it waits no longer, and aborts."""
        try:
            await asyncio.to_thread(self._threaded.close, drain=drain)
        except asyncio.CancelledError:
            await asyncio.to_thread(self._threaded.close, drain=False)
            raise
