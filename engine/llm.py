"""A model with its tokenizer, and one run of the engine over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..recorder.events import RunStarted
from ..recorder.sink import Sink
from .canary.wordpiece import WordPiece
from .clock import Clock
from .config import BadSwitch, EngineConfig
from .decisions import Policy
from .engine import Engine
from .faults.registry import policy_of
from .kv_dtype import layer_dtypes
from .models import load_model
from .request import Prompt
from .runner import Runner
from .symbolic import SymbolicRunner


class Model(Protocol):
    """What can be recorded: text to tokens and back, and a runner with an empty pool per run."""

    @property
    def name(self) -> str: ...

    def encode(self, text: str) -> list[int]:
        """A prompt as the model is given it (chat template applied, where it has one)."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text, without marks such as the one that ends an answer."""
        ...

    def piece(self, token: int) -> str: ...

    def runner(self, config: EngineConfig) -> Runner:
        """A runner for one run; the weights are loaded once."""
        ...


class SymbolicModel:
    """The simulator, which reads and writes the canary's language. `windows`: of each KV group;
    None = it sees everything."""

    name = "symbolic"

    def __init__(self, name: str = name, windows: tuple[int | None, ...] = (None,)) -> None:
        self.name = name
        self._windows = windows
        self._tokenizer = WordPiece.load()

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        marks = (self._tokenizer.eos_id, self._tokenizer.pad_id)
        return self._tokenizer.decode([token for token in tokens if token not in marks])

    def piece(self, token: int) -> str:
        return self._tokenizer.piece(token)

    def runner(self, config: EngineConfig) -> Runner:
        """Raises `BadSwitch` for a `kv_dtype` that lists another number of layers than it has (one
        a KV group), and for a device that it doesn't compute on."""
        if config.device not in ("cpu", "auto"):
            raise BadSwitch(
                f"device must be cpu or auto with --model {self.name}: it is simulated."
            )
        layer_dtypes(config.kv_dtype, len(self._windows))
        return SymbolicRunner(config, self._tokenizer, name=self.name, windows=self._windows)


SIMULATED: tuple[tuple[str, tuple[int | None, ...]], ...] = (
    ("symbolic", (None,)),
    ("symbolic-windows", (None, 16)),
)
"""Models without weights: name, and the window of each KV group."""


def open_model(name: str, config: EngineConfig) -> Model:
    """`symbolic`, `symbolic-windows` (layers that see the last 16 tokens beside others that see
    all), `canary`, `smollm2`, or the path of a transformers directory.

    Raises `BadInput` for a model that isn't there, saying how to get it.
    """
    for simulated, windows in SIMULATED:
        if name == simulated:
            return SymbolicModel(name, windows)
    return load_model(name, config)


def make_engine(
    model: Model,
    config: EngineConfig,
    prompts: Sequence[Prompt],
    sink: Sink,
    *,
    runner: Runner | None = None,
    policy: Policy | None = None,
    header: RunStarted | None = None,
    clock: Clock | None = None,
    define_pieces: bool = True,
) -> Engine:
    """An engine with its prompts handed in, ready to `run`.

    Without a policy it decides as its configuration says, planted faults included.
    """
    engine = Engine(
        config,
        runner or model.runner(config),
        sink,
        policy=policy or policy_of(config),
        pieces=model.piece if define_pieces else None,
        header=header,
        clock=clock,
    )
    engine.add(prompts)
    return engine
