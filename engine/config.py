"""Every switch of the engine, in one frozen value."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..recorder.errors import BadInput


class BadSwitch(BadInput):
    """A switch has a value, or a combination of values, that the engine can't honour."""


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
    prefix_cache: bool = switch(
        True, "Share the blocks of an equal prefix between requests of one tenant."
    )
    continuous_batching: bool = switch(
        True, "Admit requests while others run; otherwise a batch runs to its end first."
    )
    attention: Literal["fast", "reference"] = switch(
        "fast",
        "Each row gathers its own blocks, or one explicit rows x slots mask over the whole pool.",
    )
    device: str = switch("cpu", "cpu, cuda, or auto.")
    dtype: str = switch("float32", "Data type of weights and cache: float32, bfloat16, float16.")
    seed: int = switch(0, "Seed of all that is random: the passphrases of a scenario.")
    faults: tuple[str, ...] = switch((), "Planted faults, by name (`kvrewind faults` lists them).")

    def __post_init__(self) -> None:
        for name in ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise BadSwitch(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.attention not in ("fast", "reference"):
            raise BadSwitch(f"attention must be fast or reference, not {self.attention!r}.")
        if self.dtype not in ("float32", "bfloat16", "float16"):
            raise BadSwitch(f"dtype must be float32, bfloat16 or float16, not {self.dtype!r}.")
        if self.device not in ("auto", "cpu") and not self.device.startswith("cuda"):
            raise BadSwitch(f"device must be cpu, cuda or auto, not {self.device!r}.")

    def as_recorded(self) -> dict[str, Any]:
        """The map that `RunStarted.config` carries: every switch, and what readers rely on."""
        return asdict(self) | {
            "faults": list(self.faults),
            "exact": False,
            "sharing": "tenant" if self.prefix_cache else "off",
            "publish": "completed",
        }

    @classmethod
    def from_recorded(cls, recorded: dict[str, Any]) -> EngineConfig:
        """Inverse of `as_recorded`; keys that aren't switches of this version are passed over."""
        known = {name: recorded[name] for name in cls.__dataclass_fields__ if name in recorded}
        if "faults" in known:
            known["faults"] = tuple(known["faults"])
        return cls(**known)
