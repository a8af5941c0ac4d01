"""Which workload a command is told to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..engine.prompts_file import read_prompts
from ..engine.workloads.poisson import PoissonTraffic
from ..engine.workloads.scenarios import SCENARIOS, scenario_named
from ..engine.workloads.spec import PromptSpec, Workload
from ..recorder.errors import BadInput


@dataclass(frozen=True, slots=True)
class Source:
    """A file, generated traffic, or a scenario; the first scenario when nothing is named.

    `first` keeps that many requests. A file is read once, whatever the seed.
    """

    name: str
    specs: Sequence[PromptSpec] | None
    traffic: PoissonTraffic | None
    first: int | None

    @classmethod
    def of(
        cls, file: Path | None, scenario: str | None, poisson: str | None, first: int | None
    ) -> Source:
        """Raises `BadInput` when more than one is named, or one can't be read."""
        if sum(given is not None for given in (file, scenario, poisson)) > 1:
            raise BadInput("give one workload: a file of prompts, a scenario, or --poisson")
        if first is not None and first < 1:
            raise BadInput(f"--first must be at least 1, not {first}")
        if file is not None:
            return cls(str(file), read_prompts(file, first), None, first)
        if poisson is not None:
            return cls(f"poisson {poisson}".strip(), None, PoissonTraffic.parse(poisson), first)
        return cls(scenario or next(iter(SCENARIOS)), None, None, first)

    def workload(self, seed: int) -> Workload:
        if self.specs is not None:
            specs, switches, what = self.specs, {}, "a file of prompts"
        elif self.traffic is not None:
            specs, switches, what = self.traffic.specs(seed), {}, "generated traffic"
        else:
            scenario = scenario_named(self.name, seed)
            specs, switches, what = scenario.specs, scenario.switches, scenario.what
        return Workload(self.name, what, tuple(specs[: self.first]), switches)
