"""Requests come and go in any order: the engine against a plain model of what it may do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.engine import Engine
from kvrewind.engine.epochs import EpochChange
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt
from kvrewind.recorder.events import (
    DraftVerified,
    Envelope,
    RequestAdded,
    RequestFinished,
    RequestForked,
    RequestPreempted,
    StepScheduled,
    TokensSampled,
)
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.check import check
from kvrewind.replay.reducer import apply
from kvrewind.replay.state import State
from summaries import engine_summary

MODEL = SymbolicModel()
BLOCK, POOL, SEATS, BUDGET = 4, 14, 4, 10


@dataclass
class Plain:
    """One request, told by what was asked and scheduled alone; no block anywhere."""

    prompt: tuple[int, ...]
    limit: int
    priority: int
    arrival: int
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    is_running: bool = False
    end: str | None = None

    @property
    def turn(self) -> tuple[int, int]:
        return self.priority, self.arrival


class PlainScheduler:
    """Follows the events that say what runs, and says what is wrong with them."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.requests: dict[str, Plain] = {}

    def see(self, envelope: Envelope) -> None:
        match envelope.event:
            case RequestAdded() as event:
                prompt = event.prompt_tokens
                self.requests[event.request] = Plain(
                    prompt, event.max_new_tokens, event.priority or 0, len(self.requests),
                    list(prompt),
                )  # fmt: skip
            case RequestForked(request=name, parent=parent, tokens=tokens):
                assert tokens == len(self.requests[parent].prompt)
                self.requests[name].computed = tokens
                self.requests[name].is_running = True
            case RequestPreempted(request=name, reason=reason):
                if reason == "the pool is full":
                    self._last_of_all_is(name)
                self.requests[name].computed = 0
                self.requests[name].is_running = False
            case RequestFinished(request=name, reason=reason):
                assert self.requests[name].end is None, "it ends once"
                self.requests[name].end = reason
                self.requests[name].is_running = False
            case StepScheduled() as event:
                self._scheduled(event)
            case DraftVerified(request=name, first=first, accepted=accepted):
                self.requests[name].computed = first + accepted
            case TokensSampled() as event:
                self._sampled(event)
            case _:
                pass

    def _last_of_all_is(self, name: str) -> None:
        """Nobody less urgent is running when a request is preempted."""
        preempted = self.requests[name]
        running = [plain for plain in self.requests.values() if plain.is_running]
        assert all(plain.priority <= preempted.priority for plain in running)

    def _scheduled(self, event: StepScheduled) -> None:
        assert len(set(event.requests)) == len(event.requests) <= SEATS
        assert sum(event.scheduled) <= BUDGET
        rows = zip(event.requests, event.computed, event.scheduled, event.phases, strict=True)
        for name, computed, count, phase in rows:
            plain = self.requests[name]
            assert plain.end is None, "who ended doesn't run"
            if plain.is_running:
                assert computed == plain.computed, "nothing is computed twice or left out"
            else:
                self._admitted(name, computed)
            assert count >= 1
            assert phase == "prefill" or computed >= len(plain.prompt)
            plain.computed, plain.is_running = computed + count, True

    def _admitted(self, name: str, computed: int) -> None:
        """What is computed at admission are whole blocks, and nobody before it in the queue
        waits on (but for one that host memory is loaded for)."""
        plain = self.requests[name]
        assert computed % BLOCK == 0
        assert computed < len(plain.tokens)
        assert self.config.shares or computed == 0

    def _sampled(self, event: TokensSampled) -> None:
        for name, token, position in zip(
            event.requests, event.tokens, event.positions, strict=True
        ):
            plain = self.requests[name]
            assert position == len(plain.tokens), "tokens come one behind the other"
            plain.tokens.append(token)
            assert len(plain.tokens) <= len(plain.prompt) + plain.limit


SWITCHES = st.fixed_dictionaries(
    {
        "steps_in_flight": st.sampled_from([1, 2]),
        "prefix_cache": st.booleans(),
        "preemption": st.booleans(),
        "persistent_buffers": st.booleans(),
        "host_blocks": st.sampled_from([0, 6]),
        "transfer_steps": st.sampled_from([1, 2]),
        "reuse": st.sampled_from(["first-freed", "last-freed", "quarantine=2"]),
        "scrub": st.sampled_from(["none", "nan"]),
        "granularity": st.sampled_from(["block", "prompt", "sequence"]),
        "speculation": st.sampled_from([0, 3]),
    }
)
TEXTS = st.lists(st.integers(3, 5), min_size=1, max_size=4 * BLOCK)


class EngineMachine(RuleBasedStateMachine):
    """Prompts are drawn from three tokens, so that they share prefixes and repeat themselves."""

    engine: Engine

    @initialize(switches=SWITCHES)
    def begin(self, switches: dict[str, Any]) -> None:
        if switches["steps_in_flight"] == 2:
            switches["speculation"] = 0
        config = EngineConfig(
            block_size=BLOCK,
            num_blocks=POOL,
            max_num_seqs=SEATS,
            max_num_batched_tokens=BUDGET,
            **switches,
        )
        self.sink, self.state, self.plain = MemorySink(), State(), PlainScheduler(config)
        self.engine = make_engine(MODEL, config, [], self.sink)
        self.folded = 0
        self.count = 0

    @rule(
        tokens=TEXTS,
        limit=st.integers(1, 6),
        priority=st.sampled_from([0, 0, 1, -1]),
        samples=st.sampled_from([1, 1, 2, 3]),
        tenant=st.sampled_from([None, "t"]),
    )
    def submit(
        self, tokens: list[int], limit: int, priority: int, samples: int, tenant: str | None
    ) -> None:
        prompt = Prompt(
            request=f"r{self.count}",
            prompt_tokens=tuple(tokens),
            max_new_tokens=limit,
            priority=priority,
            n=samples,
            tenant=tenant,
            ignore_eos=True,
        )
        self.count += 1
        self.engine.add([prompt])

    @precondition(lambda self: self.plain.requests)
    @rule(choice=st.integers(0, 1_000))
    def abort(self, choice: int) -> None:
        names = sorted(self.plain.requests)
        self.engine.abort(names[choice % len(names)])

    @rule(what=st.sampled_from(["weights", "pool"]))
    def load_anew(self, what: Any) -> None:
        self.engine.change_epoch(EpochChange(what, f"epoch-{self.count}", step=0))

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()
            self._follow()

    @invariant()
    def the_fold_is_the_engine(self) -> None:
        if self.folded:
            assert self.state.summary() == engine_summary(self.engine)

    @invariant()
    def the_plain_model_knows_every_token(self) -> None:
        for name, plain in self.plain.requests.items():
            assert plain.tokens == self.engine.requests[name].tokens

    def _follow(self) -> None:
        for envelope in self.sink.envelopes[self.folded :]:
            apply(self.state, envelope)
            self.plain.see(envelope)
        self.folded = len(self.sink.envelopes)

    def teardown(self) -> None:
        """All that was submitted comes to its end, and the checks have nothing to say."""
        if not hasattr(self, "engine"):
            return
        while self.engine.has_work:
            self.engine.advance()
        self.engine.end()
        self._follow()
        assert all(plain.end for plain in self.plain.requests.values())
        assert check(self.sink.envelopes).verdict == "clean"
        for pool in self.engine.pools:
            assert len(pool.free_queue()) == POOL


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
