"""What the full blocks of requests hold, as each request's own tokens say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal
from weakref import WeakValueDictionary

from .content import Content, extra_keys_in
from .request import Prompt, Request

Sharing = Literal["off", "tenant", "global"]


class Contents:
    """Makes contents; equal ones are one object for as long as anybody holds it.

    Chains are then compared at their last link, however long they are. It makes no other
    difference: contents made without it are compared link by link, with the same result.

    With `sharing` global the tenant is no part of a content.
    """

    def __init__(
        self,
        block_size: int,
        sharing: Sharing = "tenant",
        epoch_of: Callable[[Prompt], str | None] = lambda prompt: None,
    ) -> None:
        self._block_size = block_size
        self._epoch_of = epoch_of
        self._names_tenant = sharing != "global"
        self._known: WeakValueDictionary[str, Content] = WeakValueDictionary()

    def of(self, request: Request, index: int) -> Content:
        """What the request's `index`-th block holds once it is full."""
        made = request.contents
        while len(made) <= index:
            start = len(made) * self._block_size
            tokens = request.tokens[start : start + self._block_size]
            made.append(self._after(made[-1] if made else None, tokens, request))
        return made[index]

    def _after(self, parent: Content | None, tokens: Sequence[int], request: Request) -> Content:
        prompt = request.prompt
        start = (parent.index + 1) * self._block_size if parent else 0
        return self.one(
            Content(
                parent=parent,
                tokens=tuple(tokens),
                tenant=prompt.tenant if self._names_tenant else None,
                adapter=prompt.adapter,
                epoch=self._epoch_of(prompt),
                extra_keys=extra_keys_in(prompt.extra_keys, range(start, start + self._block_size)),
            )
        )

    def one(self, content: Content) -> Content:
        """The one object that stands for all contents equal to this."""
        known = self._known.setdefault(content.key, content)
        return known if known == content else content  # two contents may have one key
