"""A trace's header, counts and sizes: plain for JSON, and in a person's words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...recorder.events import RunStarted
from ...recorder.presence import is_being_written
from ...recorder.reader import TraceReader
from ...recorder.redaction import is_redacted
from ...recorder.storage import Storage
from ...replay.summary import Summary
from .memory import counted, percent, size

_RING = "ring"
_ROOTS_SHOWN = 5
_UNKNOWN = "unknown"


def facts_of(
    reader: TraceReader, summary: Summary, storage: Storage, problems: list[str]
) -> dict[str, Any]:
    """The fields of `kvrewind info --format json`, but for the memory account."""
    tally, checks = summary.tally, summary.checked(problems)
    run = summary.run or reader.run
    return {
        "trace": str(reader.path),
        "format": storage.format,
        "writer": storage.header.get("writer"),
        "bytes": reader.size,
        "sizes": _sizes(storage, tally.sampled_tokens),
        "complete": reader.complete,
        "being_written": _is_live(reader),
        "problems": problems,
        "frozen": _frozen(storage),
        "ring": any(dropped.why == _RING for dropped in summary.dropped),
        "dropped": [asdict(dropped) for dropped in summary.dropped],
        "redacted": is_redacted(run),
        **_header(run),
        "ended": summary.ended,
        "seconds": round(summary.seconds, 6),
        "ranks": sorted(summary.ranks),
        "steps": tally.last_step,
        "requests": tally.requests,
        "finished": tally.finished,
        "prompt_tokens": tally.prompt_tokens,
        "sampled_tokens": tally.sampled_tokens,
        "cached_tokens": tally.cached_tokens,
        "hit_rate": tally.hit_rate if tally.prompt_tokens else None,
        "preemptions": tally.preemptions,
        "evictions": tally.evictions,
        "events": summary.kinds.total(),
        "kinds": dict(summary.kinds.most_common()),
        "check": None if checks is None else checks.plain(),
    }


def rows_of(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, text) each, in a person's order; a name that is empty goes on with the one before."""
    parts = (_stored(facts), _recorded(facts), _did(facts), _found(facts["check"]))
    return [row for part in parts for row in part]


# --- plain ----------------------------------------------------------------------------------------


def _sizes(storage: Storage, tokens: int) -> dict[str, Any] | None:
    sizes = storage.sizes
    if sizes is None:
        return None

    def a_token(count: int | None) -> float | None:
        return None if count is None or not tokens else round(count / tokens, 1)

    return {
        "events": sizes.events,
        "indexes": sizes.indexes,
        "other": sizes.other,
        "events_per_token": a_token(sizes.events),
        "indexes_per_token": a_token(sizes.indexes),
        "measured": sizes.is_measured,
    }


def _is_live(reader: TraceReader) -> bool | None:
    return is_being_written(reader.path) if isinstance(reader.path, Path) else None


def _frozen(storage: Storage) -> dict[str, Any] | None:
    """None where the recording was not frozen."""
    text = storage.header.get("frozen")
    if text is None:
        return None
    try:
        found = json.loads(text)
        return {"reason": found["reason"], "position": f"{found['step']}:{found['seq']}"}
    except (ValueError, KeyError, TypeError):
        return {"reason": text, "position": None}


def _header(run: RunStarted | None) -> dict[str, Any]:
    if run is None:
        return {"engine": None}
    return {
        "engine": f"{run.engine} {run.engine_version}",
        "model": run.model,
        "model_digest": run.model_digest,
        "tokenizer_digest": run.tokenizer_digest,
        "dtype": run.dtype,
        "device": run.device,
        "seed": run.seed,
        "started": run.wall_clock,
        "pool": f"{run.num_blocks} blocks of {run.block_size} tokens",
        "num_blocks": run.num_blocks,
        "block_size": run.block_size,
        "sentinel_blocks": list(run.sentinel_blocks),
        "groups": run.groups,
        "config": run.config,
        "versions": run.versions,
    }


# --- in words -------------------------------------------------------------------------------------

Rows = Iterator[tuple[str, str]]


def _stored(facts: Mapping[str, Any]) -> Rows:
    writer = facts["writer"]
    yield "trace", facts["trace"]
    yield "format", f"{facts['format']}" + (f", written by {writer}" if writer else "")
    yield "size", _size(facts)
    if facts["being_written"]:
        yield "whole", "not yet: it is being written"
    else:
        yield "whole", "yes" if facts["complete"] else "no"
    for problem in facts["problems"]:
        yield "", problem
    if facts["frozen"] is not None:
        frozen = facts["frozen"]
        at = "" if frozen["position"] is None else f" after {frozen['position']}"
        yield "frozen", f"{frozen['reason']}{at}: what came later was not recorded"
    for dropped in facts["dropped"]:
        last = dropped["first_seq"] + dropped["count"] - 1
        is_ring = dropped["why"] == _RING
        what = "not kept: a ring begins" if is_ring else f"dropped: {dropped['why']}; it goes on"
        name = "ring" if is_ring else "dropped"
        yield name, f"events {dropped['first_seq']} to {last} {what} at {dropped['position']}"
    if facts["redacted"]:
        yield "redacted", "yes: hashes in place of tokens"


def _size(facts: Mapping[str, Any]) -> str:
    sizes, whole = facts["sizes"], size(facts["bytes"])
    if sizes is None:
        return whole
    about = "" if sizes["measured"] else "about "
    parts = [f"events {about}{size(sizes['events'])}{_a_token(sizes['events_per_token'])}"]
    if sizes["indexes"] is not None:
        parts.append(f"indexes {size(sizes['indexes'])}{_a_token(sizes['indexes_per_token'])}")
    if sizes["other"] is not None:
        parts.append(f"the rest {size(sizes['other'])}")
    return f"{whole}: {', '.join(parts)}"


def _a_token(count: float | None) -> str:
    return "" if count is None else f" ({count:,.0f} B a generated token)"


def _recorded(facts: Mapping[str, Any]) -> Rows:
    if facts["engine"] is None:
        yield "engine", _UNKNOWN
        return
    yield "engine", facts["engine"]
    for name in ("model", "model_digest", "tokenizer_digest", "dtype", "device", "seed"):
        yield name.replace("_", " "), _shown(facts[name])
    yield "started", facts["started"]
    sentinels = facts["sentinel_blocks"]
    groups = len(facts["groups"])
    extra = [f"sentinels {_shown(sentinels)}"] if sentinels else []
    extra += [f"one for each of {groups} KV groups"] if groups > 1 else []
    yield "pool", "; ".join([facts["pool"], *extra])
    yield "config", _shown(facts["config"])
    yield "versions", _shown(facts["versions"])


def _did(facts: Mapping[str, Any]) -> Rows:
    ended = facts["ended"] or "it doesn't say"
    yield "ended", f"{ended}, after {facts['seconds']:.2f} s"
    if len(facts["ranks"]) > 1:
        yield "ranks", _shown(facts["ranks"])
    yield "steps", f"{facts['steps']:,}"
    yield "requests", f"{facts['requests']:,}, {facts['finished']:,} finished"
    yield "tokens", f"{facts['sampled_tokens']:,} generated, {facts['prompt_tokens']:,} in prompts"
    yield "prefix hits", f"{facts['cached_tokens']:,} prompt tokens ({percent(facts['hit_rate'])})"
    yield "preemptions", f"{facts['preemptions']:,}"
    yield "evictions", f"{facts['evictions']:,}"
    yield "events", f"{facts['events']:,}: {_shown(facts['kinds'])}"


def _found(check: Mapping[str, Any] | None) -> Rows:
    if check is None:
        yield "checks", "skipped (--no-check)"
        return
    by_check = f" ({_shown(check['by_check'])})" if check["by_check"] else ""
    yield "checks", f"{check['verdict']}: {counted(check['findings'], 'finding')}{by_check}"
    for root in check["roots"][:_ROOTS_SHOWN]:
        names = " ".join(filter(None, (root["check"], root["class"])))
        yield "", f"{names} at {root['position']}: {root['explanation']}"
    if len(check["roots"]) > _ROOTS_SHOWN:
        yield "", f"and {counted(len(check['roots']) - _ROOTS_SHOWN, 'root')} more"


def _shown(value: object) -> str:
    match value:
        case dict():
            return ", ".join(f"{k} {_shown(v)}" for k, v in value.items())
        case list() | tuple():
            return " ".join(map(str, value)) or "none"
        case bool():
            return "on" if value else "off"
        case None:
            return _UNKNOWN
        case _:
            return str(value)
