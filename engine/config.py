"""Every switch of the engine, in one frozen value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from ..recorder.errors import BadInput


class BadSwitch(BadInput):
    """A switch has a value, or a combination of values, that the engine can't honour."""


POOL = "Pool and batch"
SCHEDULING = "Scheduling"
PREFIXES = "Prefix cache"
FREE_BLOCKS = "Free blocks and host memory"
DEVICE = "Device"
RUN = "Run"
SECTIONS = (POOL, SCHEDULING, PREFIXES, FREE_BLOCKS, DEVICE, RUN)
"""Of the switches, in the order in which the command line lists them."""

KV_DTYPES = ("auto", "float16", "bfloat16", "int8", "int4")

MOST_BLOCKS = 2**24
LARGEST = 2**31 - 1
"""Of whole numbers, and of the slots of a pool: kernels count slots in 32 bits."""

_LEAST: Mapping[str, int] = {
    "block_size": 1,
    "num_blocks": 1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "speculation": 0,
    "host_blocks": 0,
    "transfer_steps": 1,
    "seed": -LARGEST,
}
_MOST: Mapping[str, int] = {"num_blocks": MOST_BLOCKS, "host_blocks": MOST_BLOCKS}
_KINDS: Mapping[type, str] = {int: "a whole number", bool: "true or false", str: "a text"}


def switch(section: str, default: Any, help: str) -> Any:
    """A field of the configuration, where the command line lists it and what it says of it."""
    return field(default=default, metadata={"section": section, "help": help})


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The switches of one run. Each field is an option of `kvrewind record` and `replay`.

    Raises `BadSwitch` when built with a value that can't work, naming the field and what is
    allowed.
    """

    block_size: int = switch(POOL, 16, "Tokens in a block of the KV cache.")
    num_blocks: int = switch(POOL, 256, "Blocks in the pool of each KV group.")
    max_num_seqs: int = switch(POOL, 16, "Most requests that run at the same time.")
    max_num_batched_tokens: int = switch(POOL, 2048, "Most tokens in a step.")
    continuous_batching: bool = switch(
        SCHEDULING,
        True,
        "Admit requests while others run; otherwise a batch runs to its end first.",
    )
    chunked_prefill: bool = switch(
        SCHEDULING,
        True,
        "Compute a prompt in pieces where the step has no room for all of it; otherwise it waits "
        "for a step that has, and one longer than any step gets a step of its own.",
    )
    preemption: bool = switch(
        SCHEDULING,
        True,
        "Preempt the least urgent request when the pool is full; otherwise a request is admitted "
        "only when there are blocks for it to its end.",
    )
    steps_in_flight: int = switch(
        SCHEDULING, 1, "1, or 2: the next step is scheduled and sent before the last has completed."
    )
    speculation: int = switch(
        SCHEDULING,
        0,
        "Most draft tokens of a request in a step, continued from where its last tokens occurred "
        "before; 0: none. Not with 2 steps in flight.",
    )
    prefix_cache: bool = switch(
        PREFIXES, True, "Share the blocks of an equal prefix between requests."
    )
    sharing: Literal["off", "tenant", "global"] = switch(
        PREFIXES, "tenant", "Who may share: nobody, the requests of one tenant, or all."
    )
    granularity: Literal["block", "paragraph", "prompt", "sequence"] = switch(
        PREFIXES,
        "block",
        "Where a shared prefix may end: behind any full block, or only with a paragraph, an "
        "earlier request's prompt, or its prompt and answer.",
    )
    reuse: str = switch(
        FREE_BLOCKS,
        "first-freed",
        "Which free block is handed out: first-freed, last-freed, or quarantine=N (first-freed, "
        "but for the N freed last).",
    )
    scrub: Literal["none", "zero", "nan"] = switch(
        FREE_BLOCKS,
        "none",
        "What a block is overwritten with between two holders; nan makes a stale read visible.",
    )
    scrub_at: Literal["free", "allocation"] = switch(
        FREE_BLOCKS, "free", "When a block is scrubbed."
    )
    digests: bool = switch(
        FREE_BLOCKS,
        False,
        "Digest blocks in the device's memory when they enter the prefix cache and whenever they "
        "are shared, and one more after each step: a change that nobody logged shows.",
    )
    host_blocks: int = switch(
        FREE_BLOCKS,
        0,
        "Blocks of host memory, which freed cached blocks are stored to and loaded from; 0: none.",
    )
    transfer_steps: int = switch(
        FREE_BLOCKS, 1, "Steps that a transfer to or from host memory takes."
    )
    layout: Literal["packed", "padded-left", "padded-right", "dense"] = switch(
        DEVICE,
        "packed",
        "How rows reach the model: one behind the other, padded to one length, or over the keys "
        "of all rows with one mask (dense).",
    )
    persistent_buffers: bool = switch(
        DEVICE,
        False,
        "Build decode steps in buffers that are reused, padded to a power of two, as captured "
        "graphs are. Only with layout packed.",
    )
    attention: Literal["fast", "reference"] = switch(
        DEVICE,
        "fast",
        "fast: each row reads its own blocks, on CUDA by Triton kernels; reference: one explicit "
        "rows x slots mask over the whole pool.",
    )
    exact: bool = switch(
        DEVICE,
        False,
        "Compute so that a request's logits are the same, bit for bit, alone and in any mix; any "
        "difference is then a fault. Costs some speed; only on the CPU.",
    )
    device: str = switch(DEVICE, "cpu", "cpu, cuda, cuda:N, or auto.")
    dtype: Literal["float32", "bfloat16", "float16"] = switch(
        DEVICE, "float32", "Data type of the weights."
    )
    kv_dtype: str = switch(
        DEVICE,
        "auto",
        "Data type of the cache: auto (that of the weights), float16, bfloat16, int8 or int4; "
        "one for all layers, or a comma list with one a layer.",
    )
    seed: int = switch(
        RUN,
        0,
        "Seed of all that is random: sampling at a temperature, a scenario's passphrases, "
        "generated traffic.",
    )
    faults: tuple[str, ...] = switch(
        RUN, (), "A fault to plant, by name (`kvrewind faults` lists them); may be repeated."
    )

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            self._refuse_other_than(name, hint)
        for name, least in _LEAST.items():
            self._refuse_outside(name, least, _MOST.get(name, LARGEST))
        if self.num_blocks * self.block_size > LARGEST:
            self._refuse("num_blocks", f"at most {LARGEST // self.block_size} with this block_size")
        if self.steps_in_flight not in (1, 2):
            self._refuse("steps_in_flight", "1 or 2")
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", self.device):
            self._refuse("device", "cpu, cuda, cuda:N or auto")
        if set(self.kv_dtype.split(",")) - set(KV_DTYPES):
            self._refuse("kv_dtype", f"{_one_of(KV_DTYPES)}, or a comma list with one a layer")
        self._refuse_reuse()
        self._refuse_combinations()

    def _refuse_other_than(self, name: str, hint: Any) -> None:
        """Values come from callers and from traces too, which nobody type-checks."""
        value = getattr(self, name)
        if get_origin(hint) is Literal:
            if value not in get_args(hint):
                self._refuse(name, _one_of(get_args(hint)))
        elif get_origin(hint) is tuple:
            if not isinstance(value, tuple) or not all(isinstance(part, str) for part in value):
                self._refuse(name, "a tuple of texts")
        elif type(value) is not hint:
            self._refuse(name, _KINDS[hint])

    def _refuse_outside(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        if value < least:
            self._refuse(name, f"at least {least}")
        if value > most:
            self._refuse(name, f"at most {most}")

    def _refuse(self, name: str, allowed: str) -> NoReturn:
        raise BadSwitch(f"{name} must be {allowed}, not {getattr(self, name)!r}.")

    def _refuse_reuse(self) -> None:
        if self.reuse in ("first-freed", "last-freed"):
            return
        if not re.fullmatch("quarantine=[0-9]{1,9}", self.reuse):
            self._refuse("reuse", "first-freed, last-freed or quarantine=N")
        if self.quarantine >= self.num_blocks:
            self._refuse("reuse", f"quarantine=N with N below the pool's {self.num_blocks} blocks")

    def _refuse_combinations(self) -> None:
        if self.speculation and self.steps_in_flight > 1:
            raise BadSwitch(
                "speculation must be 0 with steps_in_flight 2: drafts continue tokens that the "
                "host doesn't know yet."
            )
        if self.persistent_buffers and self.layout != "packed":
            raise BadSwitch(
                "persistent_buffers must be off with layout "
                f"{self.layout}: what is captured is packed."
            )
        if self.exact and self.device.startswith("cuda"):
            raise BadSwitch(f"exact must be off with device {self.device}: it needs the CPU.")

    @property
    def quarantine(self) -> int:
        """How many of the blocks freed last are not handed out."""
        _, _, count = self.reuse.partition("=")
        return int(count or 0)

    @property
    def shares(self) -> bool:
        """Whether any prefix is shared at all."""
        return self.prefix_cache and self.sharing != "off"

    @property
    def explicit_mask(self) -> bool:
        """Whether the step's mask is built as a matrix, and not left to lengths."""
        return self.attention == "reference" or self.layout == "dense"

    def as_recorded(self) -> dict[str, Any]:
        """The map that `RunStarted.config` carries: every switch, and what readers rely on."""
        return asdict(self) | {
            "faults": list(self.faults),
            "sharing": self.sharing if self.prefix_cache else "off",
            "publish": "completed",
        }

    @classmethod
    def from_recorded(cls, recorded: dict[str, Any]) -> EngineConfig:
        """Inverse of `as_recorded`; keys that aren't switches of this version are passed over."""
        known = {name: recorded[name] for name in cls.__dataclass_fields__ if name in recorded}
        if isinstance(known.get("faults"), list):
            known["faults"] = tuple(known["faults"])
        if not known.get("prefix_cache", True):
            known.pop("sharing", None)  # recorded as off, whatever it would be otherwise
        return cls(**known)


def _one_of(words: Sequence[str]) -> str:
    """`a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} or {last}"
