"""One request before it is tokenized, and a named set of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..request import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSpec:
    """One request of a workload or a line of a prompts file, before it is tokenized.

    Either `prompt` (text) or `prompt_tokens`; the other fields are those of `Prompt`.
    """

    request: str
    prompt: str | None = None
    prompt_tokens: tuple[int, ...] | None = None
    max_new_tokens: int | None = None
    tenant: str | int | None = None
    session: str | int | None = None
    external_id: str | int | None = None
    passphrase: str | None = None
    adapter: str | int | None = None
    extra_keys: tuple[tuple[int, str | int], ...] = ()
    priority: int = 0
    n: int = 1
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    pin: bool = False
    retention: int = 0
    arrival_step: int = 1
    arrival_s: float | None = None
    abort_step: int | None = None
    ignore_eos: bool = False

    def tokenized(self, encode: Callable[[str], list[int]], max_new_tokens: int) -> Prompt:
        """`max_new_tokens` serves where the spec has none of its own."""
        tokens = self.prompt_tokens
        if tokens is None:
            tokens = tuple(encode(self.prompt or ""))
        passed_on = {f.name: getattr(self, f.name) for f in fields(self) if f.name in _SHARED}
        limit = self.max_new_tokens or max_new_tokens
        return Prompt(prompt_tokens=tokens, max_new_tokens=limit, **passed_on)


_SHARED = {f.name for f in fields(Prompt)} - {"prompt_tokens", "max_new_tokens"}


@dataclass(frozen=True, slots=True)
class Workload:
    """`switches` are the engine's, where the workload needs others than the defaults."""

    name: str
    what: str
    specs: tuple[PromptSpec, ...]
    switches: Mapping[str, Any] = field(default_factory=dict)
