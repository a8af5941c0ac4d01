"""One answer while it is being made, for whoever waits for it in another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from .request import FinishReason, Request


class RequestFailed(Exception):
    """A request ended by an error. What raised it, where something did, is its `__cause__`."""


class Stream:
    """The tokens of one request as they come. Any thread may use it, and several at a time.

    It keeps no token of its own: it looks at those of the request, as far as whole steps have
    brought them, so reading twice costs nothing and everybody may read from the first on.

    `samples` are the streams of all samples of the prompt, this one first where it is the
    prompt's own.
    """

    def __init__(self, name: str, abort: Callable[[str], None]) -> None:
        self.name = name
        self.samples: tuple[Stream, ...] = (self,)
        self._abort = abort
        self._changed = threading.Condition()
        self._tokens: Sequence[int] = ()
        self._start = 0
        """Where the answer begins in the request's tokens."""
        self._end = 0
        """Tokens of the request that may be seen."""
        self._finish_reason: FinishReason | None = None
        self._error: RequestFailed | None = None
        self._listener: Callable[[], None] | None = None

    def __iter__(self) -> Iterator[int]:
        return self.tokens()

    def tokens(self, timeout: float | None = None) -> Iterator[int]:
        """Each token as it comes, from the first on, until the request ends.

        Raises `TimeoutError` when one takes more than `timeout` seconds, and `RequestFailed`
        after the last token of a request that an error ended.
        """
        seen = 0
        while news := self._wait_for_more(seen, timeout):
            yield from news
            seen += len(news)
        self.raise_error()

    def result(self, timeout: float | None = None) -> tuple[int, ...]:
        """All tokens, once the request has ended (an aborted one has those before the abort).

        Raises `TimeoutError` after `timeout` seconds, and `RequestFailed` when an error ended it.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.done, timeout):
                raise TimeoutError(f"request {self.name!r} has not ended within {timeout} s")
        self.raise_error()
        return self.read()

    def read(self, seen: int = 0) -> tuple[int, ...]:
        """What has come beyond the first `seen` tokens. Doesn't wait."""
        return tuple(self._tokens[self._start + seen : self._end])

    def abort(self) -> None:
        """End the request at the next step. Nothing happens to one that has ended."""
        self._abort(self.name)

    @property
    def done(self) -> bool:
        return self._finish_reason is not None

    @property
    def finish_reason(self) -> FinishReason | None:
        """None while it goes on."""
        return self._finish_reason

    @property
    def error(self) -> RequestFailed | None:
        return self._error

    def raise_error(self) -> None:
        """Raises `RequestFailed` if an error ended the request."""
        if self._error is not None:
            raise self._error.with_traceback(None)  # not the traces of all who asked before

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener`, who must not wait for anything, at once and whenever something came.

        It is called in the engine's thread; a second one takes the place of the first.
        """
        self._listener = listener
        listener()

    def _wait_for_more(self, seen: int, timeout: float | None) -> tuple[int, ...]:
        with self._changed:
            here = self._changed.wait_for(lambda: self.done or self.read(seen), timeout)
        if not here:
            raise TimeoutError(f"request {self.name!r} brought no token within {timeout} s")
        return self.read(seen)

    # --- the engine's thread ----------------------------------------------------------------------

    def follow(self, request: Request) -> None:
        """Show what the request has by now."""
        if len(request.tokens) == self._end and request.finish_reason is None:
            return
        with self._changed:
            self._tokens = request.tokens
            self._start = len(request.prompt.prompt_tokens)
            self._end = len(request.tokens)
            if request.finish_reason == "error":
                self._error = RequestFailed(f"request {self.name!r} failed: {request.error}")
            self._finish_reason = request.finish_reason
            self._changed.notify_all()
        self._tell()

    def fail(self, why: str, cause: BaseException | None) -> None:
        """Nothing will come any more."""
        with self._changed:
            self._error = RequestFailed(f"request {self.name!r} failed: {why}")
            self._error.__cause__ = cause
            self._finish_reason = "error"
            self._changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        listener = self._listener
        if listener is not None:
            listener()
