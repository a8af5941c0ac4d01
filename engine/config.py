"""Every switch of the engine, in one frozen value."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from ..recorder.errors import BadInput


class BadSwitch(BadInput):
    """A switch has a value, or a combination of values, that the engine can't honour."""


_AT_LEAST_ONE = (
    "block_size",
    "num_blocks",
    "max_num_seqs",
    "max_num_batched_tokens",
    "transfer_steps",
)

KV_DTYPES = ("auto", "float16", "bfloat16", "int8", "int4")


def switch(default: Any, help: str) -> Any:
    """A field of the configuration with the sentence that the command line says of it."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The switches of one run. Each field is an option of `kvrewind record` and `replay`.

    Raises `BadSwitch` when built with a value that can't work, naming the field and what is
    allowed.
    """

    block_size: int = switch(16, "Tokens in a block of the KV cache.")
    num_blocks: int = switch(256, "Blocks in the pool.")
    max_num_seqs: int = switch(16, "Most requests that run at the same time.")
    max_num_batched_tokens: int = switch(
        2048, "Most tokens in a step; a longer prompt gets a step of its own."
    )
    continuous_batching: bool = switch(
        True, "Admit requests while others run; otherwise a batch runs to its end first."
    )
    chunked_prefill: bool = switch(
        True, "Compute a long prompt in pieces; otherwise it waits for a step of its own."
    )
    preemption: bool = switch(
        True,
        "Preempt when the pool is full; otherwise a request is admitted with blocks for its end.",
    )
    steps_in_flight: int = switch(
        1, "2: the next step is scheduled and sent before the last has completed."
    )
    speculation: int = switch(
        0, "Most draft tokens a step, looked up in the request's own tokens; 0: none."
    )
    prefix_cache: bool = switch(True, "Share the blocks of an equal prefix between requests.")
    sharing: Literal["off", "tenant", "global"] = switch(
        "tenant", "Who may share: requests of one tenant, or all."
    )
    granularity: Literal["block", "paragraph", "prompt", "sequence"] = switch(
        "block", "Where a shared prefix may end."
    )
    reuse: str = switch(
        "first-freed",
        "Which free block is handed out: first-freed, last-freed, or quarantine=N "
        "(the N freed last are not).",
    )
    scrub: Literal["none", "zero", "nan"] = switch(
        "none", "What a block is overwritten with; nan makes a stale read visible."
    )
    scrub_at: Literal["free", "allocation"] = switch("free", "When a block is scrubbed.")
    host_blocks: int = switch(
        0, "Blocks of host memory that evicted cached blocks go to and come back from; 0: none."
    )
    transfer_steps: int = switch(1, "Steps that a transfer to or from host memory takes.")
    layout: Literal["packed", "padded-left", "padded-right", "dense"] = switch(
        "packed", "How rows reach the model: one behind the other, padded, or over all keys."
    )
    persistent_buffers: bool = switch(
        False, "Decode steps over buffers that are reused, padded to captured sizes."
    )
    attention: Literal["fast", "reference"] = switch(
        "fast",
        "Each row gathers its own blocks, or one explicit rows x slots mask over the whole pool.",
    )
    device: str = switch("cpu", "cpu, cuda, or auto.")
    dtype: str = switch("float32", "Data type of the weights: float32, bfloat16, float16.")
    kv_dtype: str = switch(
        "auto",
        "Data type of the cache: auto (that of the weights), float16, bfloat16, int8, int4; "
        "one for all layers, or a comma list.",
    )
    seed: int = switch(0, "Seed of all that is random: the passphrases of a scenario.")
    faults: tuple[str, ...] = switch((), "Planted faults, by name (`kvrewind faults` lists them).")

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            self._refuse_below(name, 1)
        for name in ("speculation", "host_blocks"):
            self._refuse_below(name, 0)
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal and getattr(self, name) not in get_args(hint):
                self._refuse(name, " or ".join(get_args(hint)))
        if self.steps_in_flight not in (1, 2):
            self._refuse("steps_in_flight", "1 or 2")
        if self.dtype not in ("float32", "bfloat16", "float16"):
            self._refuse("dtype", "float32, bfloat16 or float16")
        if self.device not in ("auto", "cpu") and not self.device.startswith("cuda"):
            self._refuse("device", "cpu, cuda or auto")
        if set(self.kv_dtype.split(",")) - set(KV_DTYPES):
            self._refuse("kv_dtype", f"{', '.join(KV_DTYPES)}, or a comma list with one a layer")
        self._refuse_reuse()
        self._refuse_combinations()

    def _refuse_below(self, name: str, least: int) -> None:
        if getattr(self, name) < least:
            raise BadSwitch(f"{name} must be at least {least}, not {getattr(self, name)}.")

    def _refuse(self, name: str, allowed: str) -> NoReturn:
        raise BadSwitch(f"{name} must be {allowed}, not {getattr(self, name)!r}.")

    def _refuse_reuse(self) -> None:
        if self.reuse in ("first-freed", "last-freed"):
            return
        word, _, count = self.reuse.partition("=")
        if word != "quarantine" or not count.isdecimal():
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
                f"persistent_buffers must be off with layout {self.layout}: buffers are packed."
            )

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
            "exact": False,
            "sharing": self.sharing if self.prefix_cache else "off",
            "publish": "completed",
        }

    @classmethod
    def from_recorded(cls, recorded: dict[str, Any]) -> EngineConfig:
        """Inverse of `as_recorded`; keys that aren't switches of this version are passed over."""
        known = {name: recorded[name] for name in cls.__dataclass_fields__ if name in recorded}
        if "faults" in known:
            known["faults"] = tuple(known["faults"])
        if not known.get("prefix_cache", True):
            known.pop("sharing", None)  # recorded as off, whatever it would be otherwise
        return cls(**known)
