"""What a caller asks for, and the life of one request inside the engine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal

from .block_table import BlockTable
from .ngram import Drafter
from .prefix_cache import Content
from .sampling import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One line of a prompts file, tokenized.

    `arrival_step` is the first step that may take it in, `arrival_s` the first second of the run;
    `ignore_eos` lets it run to `max_new_tokens`. `priority`: lower comes sooner. `n` samples of
    one prompt. `extra_keys`: (first position, key) of what colours the tokens from there on
    without being a token (an image, a cache salt). `pin` and `retention` say how long its cached
    blocks should stay: pinned ones while others are left, higher retention longer.
    `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 leave nothing out.
    """

    request: str
    prompt_tokens: tuple[int, ...]
    max_new_tokens: int
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

    @property
    def sampling(self) -> dict[str, Any]:
        """What `RequestAdded.sampling` carries: all that makes the same prompt answer otherwise,
        and what a re-execution needs besides. Left out where it has its default."""
        told: dict[str, Any] = {"temperature": self.temperature, "ignore_eos": self.ignore_eos}
        for name in ("n", "top_k", "top_p", "pin", "retention"):
            if getattr(self, name) != Prompt.__dataclass_fields__[name].default:
                told[name] = getattr(self, name)
        return told


def further_samples(prompt: Prompt) -> tuple[Prompt, ...]:
    """A prompt with n > 1 is a request and n - 1 forks of it, each with a name of its own."""
    return tuple(
        replace(prompt, request=f"{prompt.request}/{number}", n=1, abort_step=None)
        for number in range(1, prompt.n)
    )


FinishReason = Literal["eos", "length", "aborted", "error"]


class Status(Enum):
    WAITING = "waiting"
    LOADING = "loading"
    """Admitted; host memory is loaded into its blocks."""
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """A request in the engine: its tokens, its block table, and how far its KV is computed."""

    prompt: Prompt
    tokens: list[int]
    """Prompt and sampled tokens, in order."""
    tables: tuple[BlockTable, ...]
    """One per KV group."""
    sampling: Sampling
    arrival: int = 0
    """How many requests were taken in before it."""
    children: list[Request] = field(default_factory=list)
    """Further samples of its prompt that wait for it to be computed."""
    computed: int = 0
    """Tokens whose KV exists, or will once the steps in flight have completed."""
    prefill_until: int = 0
    """Its length when it was admitted: what comes after is decoded."""
    pending: int = 0
    """Tokens that steps in flight will choose."""
    finish_reason: FinishReason | None = None
    error: str | None = None
    """Why the step failed that ended it."""
    status: Status = Status.WAITING
    admissions: int = 0
    """How often it has been admitted; a preemption adds one."""
    drafter: Drafter = field(default_factory=Drafter)
    contents: list[Content] = field(default_factory=list)
    """What its full blocks hold, chained; grown on demand."""

    @classmethod
    def of(cls, prompt: Prompt, *, arrival: int = 0, groups: int = 1) -> Request:
        return cls(
            prompt=prompt,
            tokens=list(prompt.prompt_tokens),
            tables=tuple(BlockTable() for _ in range(groups)),
            sampling=Sampling(prompt.temperature, prompt.top_k, prompt.top_p),
            arrival=arrival,
        )

    @property
    def table(self) -> BlockTable:
        """That of the first KV group."""
        return self.tables[0]

    @property
    def length(self) -> int:
        """Its tokens, those that steps in flight will choose included."""
        return len(self.tokens) + self.pending

    @property
    def final_length(self) -> int:
        """Most tokens whose KV is ever written: the last one's isn't."""
        return len(self.prompt.prompt_tokens) + self.prompt.max_new_tokens - 1

    @property
    def name(self) -> str:
        return self.prompt.request

    @property
    def is_prefilling(self) -> bool:
        return self.computed < self.prefill_until

    @property
    def num_sampled(self) -> int:
        return len(self.tokens) - len(self.prompt.prompt_tokens)

    @property
    def ordinal(self) -> int:
        """Admissions before the present one, as decision ids count them."""
        return max(self.admissions - 1, 0)
