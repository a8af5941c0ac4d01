"""A recording runs again as it was, under other switches, alone, or with its tokens forced."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kvrewind.engine.config import EngineConfig
from kvrewind.engine.epochs import EpochChange
from kvrewind.engine.inputs import StepInputs
from kvrewind.engine.llm import SymbolicModel, make_engine
from kvrewind.engine.request import Prompt, Request
from kvrewind.engine.runner import StepOutput
from kvrewind.engine.workloads.default import default_workload
from kvrewind.recorder.errors import BadInput
from kvrewind.recorder.events import PiecesDefined, RunEnded, RunStarted, TokensSampled
from kvrewind.recorder.memory import MemorySink
from kvrewind.replay.recording import Abort, NotReexecutable, Recording
from kvrewind.replay.reexecute import Forced, Reexecutor, first_divergence

MODEL = SymbolicModel()


def recorded(**switches) -> list:
    workload, sink = default_workload(), MemorySink()
    config = EngineConfig(**(dict(workload.switches) | switches))
    prompts = [spec.tokenized(MODEL.encode, 32) for spec in workload.specs]
    make_engine(MODEL, config, prompts, sink).run()
    return sink.envelopes


def test_unchanged_switches_give_the_same_stream() -> None:
    envelopes = recorded()
    rerun = Reexecutor(Recording.of(envelopes), MODEL).run()
    assert first_divergence(envelopes, rerun.envelopes, bits=True) is None
    assert rerun.finished


def test_the_first_divergence_names_both_events() -> None:
    envelopes = recorded()
    at = next(i for i, e in enumerate(envelopes) if isinstance(e.event, TokensSampled))
    changed = replace(envelopes[at].event, tokens=(1,))
    other = [*envelopes[:at], envelopes[at]._replace(event=changed), *envelopes[at + 1 :]]
    divergence = first_divergence(envelopes, other)
    assert divergence is not None
    assert (divergence.recorded, divergence.replayed) == (envelopes[at], other[at])
    shorter = first_divergence(envelopes, envelopes[:-1])
    assert shorter is not None
    assert (shorter.recorded, shorter.replayed) == (envelopes[-1], None)


def test_floats_count_only_to_the_bit() -> None:
    envelopes = recorded()
    at = next(i for i, e in enumerate(envelopes) if isinstance(e.event, TokensSampled))
    changed = replace(envelopes[at].event, margins=(0.5,))
    other = [*envelopes[:at], envelopes[at]._replace(event=changed), *envelopes[at + 1 :]]
    assert first_divergence(envelopes, other) is None
    assert first_divergence(envelopes, other, bits=True) is not None


def test_switches_of_the_recording_can_be_replaced() -> None:
    executor = Reexecutor(Recording.of(recorded()), MODEL)
    serial = executor.run({"max_num_seqs": 1})
    header = serial.envelopes[0].event
    assert isinstance(header, RunStarted)
    assert header.config["max_num_seqs"] == 1
    assert serial.finished
    rows = [e.event for e in serial.envelopes if e.kind == "InputsBuilt"]
    assert {len(event.requests) for event in rows} == {1}


def test_one_request_runs_alone_and_an_unknown_one_is_refused() -> None:
    executor = Reexecutor(Recording.of(recorded()), MODEL)
    alone = executor.run(only="r3")
    assert [e.event.request for e in alone.envelopes if e.kind == "RequestAdded"] == ["r3"]
    with pytest.raises(BadInput, match="no request 'r99'"):
        executor.run(only="r99")


def test_a_run_that_livelocks_is_cut_off_and_says_so() -> None:
    recording = replace(Recording.of(recorded()), steps=1, sampled={})
    rerun = Reexecutor(recording, MODEL).run()
    assert not rerun.finished
    assert rerun.envelopes[-1].event == RunEnded(reason="did-not-finish")
    assert rerun.envelopes[-1].step == 4


def test_a_recording_without_pieces_is_repeated_without_them() -> None:
    bare = [e for e in recorded() if not isinstance(e.event, PiecesDefined)]
    rerun = Reexecutor(Recording.of(bare), MODEL).run()
    assert not any(isinstance(e.event, PiecesDefined) for e in rerun.envelopes)
    assert first_divergence(bare, rerun.envelopes) is None


def test_what_another_engine_or_no_engine_recorded_is_refused() -> None:
    envelopes = recorded()
    header = envelopes[0]
    assert isinstance(header.event, RunStarted)
    with pytest.raises(NotReexecutable, match="no RunStarted"):
        Recording.of(envelopes[1:])
    foreign = header._replace(event=replace(header.event, engine="vllm"))
    with pytest.raises(NotReexecutable, match="written by vllm"):
        Recording.of([foreign, *envelopes[1:]])


def test_other_weights_are_refused_and_other_versions_are_told() -> None:
    recording = Recording.of(recorded())
    assert Reexecutor(recording, MODEL).other_versions() == []
    header = replace(recording.header, versions=recording.header.versions | {"numpy": "0.1"})
    (told,) = Reexecutor(replace(recording, header=header), MODEL).other_versions()
    assert told.startswith("numpy 0.1 (here ")
    other = replace(recording.header, model_digest="of other weights")
    with pytest.raises(NotReexecutable, match="weights differ"):
        Reexecutor(replace(recording, header=other), MODEL).run()


def test_forced_tokens_replace_what_the_runner_says() -> None:
    class Babbler:
        card = MODEL.runner(EngineConfig()).card
        memory = MODEL.runner(EngineConfig()).memory

        def begin(self, request: Request) -> None: ...

        def execute(self, inputs: StepInputs) -> StepOutput:
            return StepOutput(tokens=(3,) * len(inputs.requests))

    envelopes = recorded()
    recording = Recording.of(envelopes)
    sink = MemorySink()
    make_engine(
        MODEL,
        recording.config,
        recording.prompts,
        sink,
        runner=Forced(Babbler(), recording.sampled),
        header=recording.header,
    ).run()
    assert first_divergence(envelopes, sink.envelopes) is None


def run_of(*prompts: Prompt, **switches) -> list:
    """With n = 2 further samples, an abort of one of them, and a reload in the middle."""
    config, sink = EngineConfig(**({"block_size": 4, "num_blocks": 40} | switches)), MemorySink()
    engine = make_engine(MODEL, config, list(prompts), sink)
    engine.abort("a/2", 4)
    engine.change_epoch(EpochChange("adapter", 2, "lora", step=6))
    engine.run(100)
    return sink.envelopes


FULL = Prompt(
    request="a", prompt_tokens=tuple(range(3, 17)), max_new_tokens=9, tenant="t", session="s",
    external_id="x", passphrase="bemovi", adapter="lora", extra_keys=((5, "image"), (0, "salt")),
    priority=-1, n=3, temperature=0.7, top_k=5, top_p=0.9, pin=True, retention=2,
    arrival_step=2, ignore_eos=True,
)  # fmt: skip


def test_a_recording_has_all_that_its_prompts_said() -> None:
    recording = Recording.of(run_of(FULL))
    assert recording.prompts == (FULL,)
    assert [child.request for child in recording.children["a"]] == ["a/1", "a/2"]
    assert recording.aborts == (Abort(4, "a/2"),)
    assert recording.epochs == (EpochChange("adapter", 2, "lora", step=6),)


def test_samples_aborts_and_reloads_happen_again() -> None:
    envelopes = run_of(FULL, replace(FULL, request="b", n=1, arrival_step=4), steps_in_flight=2)
    assert {"RequestForked", "AbortRequested", "EpochChanged"} <= {e.kind for e in envelopes}
    rerun = Reexecutor(Recording.of(envelopes), MODEL).run()
    assert first_divergence(envelopes, rerun.envelopes, bits=True) is None
    forced = Reexecutor(Recording.of(envelopes), MODEL).run(force_tokens=True)
    assert first_divergence(envelopes, forced.envelopes, bits=True) is None


def test_one_sample_of_several_runs_alone() -> None:
    executor = Reexecutor(Recording.of(run_of(FULL)), MODEL)
    for name in ("a", "a/1"):
        alone = executor.run(only=name).envelopes
        added = [e.event for e in alone if e.kind == "RequestAdded"]
        assert [event.request for event in added] == [name]
        assert "n" not in added[0].sampling


def test_forced_tokens_are_those_of_their_index_where_a_row_gives_several() -> None:
    """Drafts are accepted as they were, whatever the model would say."""
    prompt = Prompt(request="r", prompt_tokens=(7, 8) * 5, max_new_tokens=8, ignore_eos=True)
    config, sink = EngineConfig(block_size=4, speculation=3), MemorySink()
    said = {"r": (7, 8, 7, 9, 7, 8, 7, 8)}
    runner = Forced(MODEL.runner(config), said)
    make_engine(MODEL, config, [prompt], sink, runner=runner).run()
    assert Recording.of(sink.envelopes).sampled["r"] == said["r"]
    verified = [e.event for e in sink.envelopes if e.kind == "DraftVerified"]
    assert {event.accepted < len(event.proposed) for event in verified} == {True, False}
    again = Reexecutor(Recording.of(sink.envelopes), MODEL).run(force_tokens=True)
    assert first_divergence(sink.envelopes, again.envelopes) is None
