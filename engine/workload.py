"""Where the names of `workloads/` used to be."""

from __future__ import annotations

from .workloads.default import default_workload
from .workloads.scenarios import SCENARIOS, scenario_named
from .workloads.spec import PromptSpec, Workload

__all__ = ["SCENARIOS", "PromptSpec", "Workload", "default_workload", "scenario_named"]
