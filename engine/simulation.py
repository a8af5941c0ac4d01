"""One workload under one setting, by a simulated clock, measured and not recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..recorder.sink import Sink
from .clock import SimulatedClock, StepCost
from .config import EngineConfig
from .engine import DidNotFinish, Engine
from .garbage import rarely_collected
from .llm import Model, make_engine
from .meter import Measured, Meter
from .request import Prompt


@dataclass(frozen=True, slots=True)
class Simulated:
    """`stuck` says why the run could not go on, where it could not."""

    measured: Measured
    stuck: str | None


def simulate(
    model: Model,
    config: EngineConfig,
    prompts: Sequence[Prompt],
    cost: StepCost,
    *,
    asked: Sequence[Prompt] | None = None,
    on_step: Callable[[Engine], None] = lambda engine: None,
    watched: Callable[[Sink], Sink] = lambda sink: sink,
) -> Simulated:
    """Run to the end. `asked` are the prompts by whose priorities it is measured, if not the same;
    `watched` may put a sink of its own before the one that measures.

    Raises `PromptRefused` for a request that could never be served.
    """
    clock = SimulatedClock(cost, config.steps_in_flight)
    meter = Meter(clock, asked or prompts)
    sink = watched(meter)
    engine = make_engine(model, config, prompts, sink, clock=clock, define_pieces=False)
    stuck = None
    try:
        with rarely_collected():
            engine.run(on_step=lambda: on_step(engine))
    except DidNotFinish as error:
        stuck = str(error)
    return Simulated(meter.measured(), stuck)
