"""What is known of one request."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from ..recorder.events import RequestAdded

Status = Literal["waiting", "running", "preempted", "finished"]


class RequestState(NamedTuple):
    added: RequestAdded
    tokens: tuple[int, ...]
    """Prompt and sampled tokens, as revised."""
    computed: int = 0
    """Tokens whose keys and values exist, as far as completed steps say."""
    status: Status = "waiting"
    preemptions: int = 0
    taken_over: int = 0
    """How many tokens a fork took over from its parent."""
    former: tuple[tuple[int, ...], ...] = ()
    """The tokens before each revision."""
    finished_seq: int | None = None

    @property
    def revision(self) -> int:
        return len(self.former)

    @property
    def is_finished(self) -> bool:
        return self.status == "finished"

    def tokens_at(self, revision: int) -> tuple[int, ...]:
        """The tokens that the request had when it had been revised that often."""
        return self.former[revision] if revision < len(self.former) else self.tokens

    def extra_keys_below(self, position: int) -> tuple[tuple[int, Any], ...]:
        """The extra keys that colour tokens before `position`: ((first position, key), ...)."""
        return tuple(pair for pair in placed_keys(self.added.extra_keys) if pair[0] < position)


def placed_keys(extra_keys: list[Any] | None) -> tuple[tuple[int, Any], ...]:
    """Extra keys as ((first position, key), ...); a plain key counts from 0."""
    placed: list[tuple[int, Any]] = []
    for item in extra_keys or ():
        if isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], int):
            placed.append((item[0], item[1]))
        else:
            placed.append((0, item))
    return tuple(sorted(placed, key=repr))
