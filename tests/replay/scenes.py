"""Clean traces that the tests of the rules start from and break in one event."""

from __future__ import annotations

from builders import Row, Trace
from kvrewind.recorder.events import (
    BlockCopied,
    BlockReleased,
    RequestForked,
    RequestPreempted,
    StepCompleted,
    StepDispatched,
)
from kvrewind.replay.check import check
from kvrewind.replay.findings import Finding
from kvrewind.replay.verdict import Report


def judged(trace: Trace) -> Report:
    return check(trace.envelopes())


def assert_clean(trace: Trace) -> None:
    report = judged(trace)
    assert report.findings == ()
    assert report.missing == ()
    assert report.verdict == "clean"


def root_of(report: Report) -> Finding:
    (root,) = report.roots
    return root


def shared_prefix(second: range | list[int] | None = None, **config) -> Trace:
    """A computes two blocks; B shares the first one and computes the rest of its own prompt."""
    trace = Trace(**config)
    trace.next_step()
    trace.add("A", range(10, 17), tenant="one")
    trace.allocate("A", 0, 1)
    trace.allocate("A", 1, 2)
    trace.step(("A", 0, 7), sample={"A": 90})
    trace.register("A", 0, "k0")
    trace.next_step()
    tokens = [10, 11, 12, 13, 50, 51] if second is None else list(second)
    trace.add("B", tokens, tenant="one")
    trace.look_up("B", ["k0"], [1])
    trace.share("B", 0, 1, "k0")
    trace.allocate("B", 1, 3)
    trace.step(("A", 7, 1), ("B", 4, len(tokens) - 4), sample={"A": 91, "B": 92})
    trace.finish("A")
    trace.next_step()
    trace.step(("B", len(tokens), 1), sample={"B": 93})
    trace.finish("B")
    trace.end()
    return trace


def reused_block(**config) -> Trace:
    """A -> B -> A: A's block is evicted for B, and A's prompt comes back."""
    trace = Trace(num_blocks=4, **config)
    trace.next_step()
    trace.add("A", range(10, 15))
    trace.allocate("A", 0, 0)
    trace.allocate("A", 1, 1)
    trace.step(("A", 0, 5), sample={"A": 90})
    trace.register("A", 0, "k0")
    trace.finish("A")
    trace.next_step()
    trace.add("B", range(30, 35))
    trace.unregister(0)
    trace.allocate("B", 0, 0)
    trace.allocate("B", 1, 2)
    trace.step(("B", 0, 5), sample={"B": 91})
    trace.finish("B")
    trace.next_step()
    trace.add("C", range(10, 15))
    trace.allocate("C", 0, 0)
    trace.allocate("C", 1, 3)
    trace.step(("C", 0, 5), sample={"C": 92})
    trace.finish("C")
    trace.end()
    return trace


def two_decoding(b_starts_at: int = 2, **config) -> Trace:
    """A and B each compute a prompt and decode beside each other."""
    trace = Trace(**config)
    trace.next_step()
    trace.add("A", range(10, 15))
    trace.add("B", range(30, 35))
    for request, blocks in (("A", (0, 1)), ("B", (b_starts_at, 3))):
        for index, block in enumerate(blocks):
            trace.allocate(request, index, block)
    trace.step(("A", 0, 5), ("B", 0, 5), sample={"A": 90, "B": 91})
    trace.next_step()
    trace.step(("A", 5, 1), ("B", 5, 1), sample={"A": 92, "B": 93})
    trace.finish("A")
    trace.finish("B")
    trace.end()
    return trace


def preempted(**config) -> Trace:
    """A is preempted, B takes one of its blocks, A comes back and computes everything again."""
    trace = Trace(**config)
    trace.next_step()
    trace.add("A", range(10, 15))
    trace.allocate("A", 0, 0)
    trace.allocate("A", 1, 1)
    trace.step(("A", 0, 5), sample={"A": 90})
    trace.next_step()
    trace.emit(RequestPreempted(request="A", reason="full"))
    trace.give_up("A")
    trace.add("B", range(30, 34))
    trace.allocate("B", 0, 1)
    trace.step(("B", 0, 4), sample={"B": 91})
    trace.next_step()
    trace.allocate("A", 0, 4)
    trace.allocate("A", 1, 5)
    trace.allocate("B", 1, 6)
    trace.step(("A", 0, 6), ("B", 4, 1), sample={"A": 92, "B": 93})
    trace.finish("A")
    trace.finish("B")
    trace.end()
    return trace


def forked(copied: int = 2, **config) -> Trace:
    """B forks A in the middle of a block; A keeps the block, B gets a copy before it writes."""
    trace = Trace(**config)
    trace.next_step()
    trace.add("A", range(10, 16))
    trace.allocate("A", 0, 0)
    trace.allocate("A", 1, 1)
    trace.step(("A", 0, 6), sample={"A": 90})
    trace.next_step()
    trace.add("B", [*range(10, 16), 95], parent="A")
    trace.emit(RequestForked(request="B", parent="A", tokens=6))
    trace.share("B", 0, 0)
    trace.share("B", 1, 1)
    trace.counts[0, 1] -= 1
    trace.allocate("B", 1, 2)
    trace.emit(BlockCopied(source=1, destination=2, slots=copied))
    trace.emit(BlockReleased(block=1, request="B", index=1, ref_count=1))
    trace.step(("A", 6, 1), ("B", 6, 1), sample={"A": 91, "B": 96})
    trace.finish("A")
    trace.finish("B")
    trace.end()
    return trace


def same_step_share(**config) -> Trace:
    """The vLLM way: a block is registered and shared before the step that writes it."""
    trace = Trace(**({"publish": "scheduled"} | config))
    trace.next_step()
    trace.add("A", range(10, 16))
    trace.add("B", [*range(10, 14), 50])
    trace.allocate("A", 0, 0)
    trace.allocate("A", 1, 1)
    trace.register("A", 0, "k0")
    trace.look_up("B", ["k0"], [0])
    trace.share("B", 0, 0, "k0")
    trace.allocate("B", 1, 2)
    trace.step(("A", 0, 6), ("B", 4, 1), sample={"A": 90, "B": 91})
    trace.finish("A")
    trace.finish("B")
    trace.end()
    return trace


def overlapped(late_writes: bool = False) -> Trace:
    """Two steps in flight: the second is scheduled and dispatched before the first completes."""
    trace = Trace()
    trace.now = 1
    trace.add("A", range(10, 13))
    trace.allocate("A", 0, 0)
    first, second = Row("A", 0, 3), Row("A", 3, 1)
    trace.schedule(first)
    trace.build(first)
    trace.emit(StepDispatched())
    trace.now = 2
    trace.schedule(second)
    trace.build(second, tokens=(90,))
    trace.emit(StepDispatched())
    if not late_writes:
        trace.write(first, step=1)
    trace.emit(StepCompleted(), 1)
    if late_writes:
        trace.write(first, step=1)
    trace.now = 1
    trace.sample([first], {"A": 90})
    trace.now = 2
    if not late_writes:
        trace.write(second, write="decode")
    trace.emit(StepCompleted())
    if late_writes:
        trace.write(second, write="decode")
    trace.sample([second], {"A": 91})
    trace.finish("A")
    trace.end()
    return trace
