"""The memory account in a person's words."""

from __future__ import annotations

from typing import NamedTuple

from ...replay.kv_footprint import SCALE_BYTES, SCALED, GroupFootprint
from ...replay.memory_report import Free, Level, Memory, Need, PoolSize, Reservation

UNKNOWN = "unknown"


class Grid(NamedTuple):
    """Cells under headings; the first column is text, the others are figures."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def costs(memory: Memory) -> list[tuple[str, str]]:
    """What a token, a block, a request and the pool take: (name, text) each."""
    rows = [(_token_of(group, memory), _formula(group)) for group in memory.groups]
    if len(memory.groups) > 1:
        rows.append(("a token", f"{size(memory.bytes_per_token)} in all KV groups"))
    if memory.bytes_per_block is not None:
        rows.append(("a block", size(memory.bytes_per_block) + _each(memory)))
    if memory.pool is not None:
        rows.append(("the pool", _pool(memory.pool, memory)))
    if memory.need is not None:
        rows.append(("a request", _request(memory.need)))
        rows.append((counted(memory.need.requests, "request"), _need(memory.need)))
    return rows


def use(memory: Memory) -> Grid | None:
    """What the pool held while the steps were computed."""
    named = (
        ("held by requests", memory.held),
        ("cached, unheld", memory.cached),
        ("saved by sharing", memory.saved),
    )
    rows = [_level(name, level) for name, level in named if level is not None]
    if memory.free is not None:
        rows.insert(2, _free(memory.free))
    headings = ("blocks", "mean", "", "of pool", "peak", "", "of pool", "step")
    title = f"the pool over {counted(memory.steps, 'step')}"
    return Grid(title, headings, tuple(rows)) if rows else None


def fragmentation(memory: Memory) -> str | None:
    found = memory.fragmentation
    if found is None or found.mean_share is None:
        return None
    of = _amount(found.mean_bytes, found.mean_slots, "slot")
    share = percent(found.mean_share)
    return f"internal fragmentation: {share} of what is held is not written ({of}, mean)"


def contiguous(memory: Memory) -> Grid | None:
    """What paging held, and what reserving one stretch for each request would have taken."""
    held, unwritten = memory.held, memory.fragmentation
    if held is None:
        return None
    paged = (
        "in blocks, as it was",
        _amount(held.mean_bytes, held.mean_blocks, "block"),
        _amount(held.peak_bytes, held.peak_blocks, "block"),
        percent(unwritten.mean_share if unwritten else None),
        "1.0",
    )
    reserved = (memory.contiguous.longest, memory.contiguous.context)
    rows = (paged, *(_reservation(each) for each in reserved if each is not None))
    title = "what contiguous allocation would have reserved for the same requests"
    return Grid(title, ("each request", "mean", "peak", "unwritten", "x held"), rows)


def size(count: float | None) -> str:
    """Bytes for people: 4.50 MiB."""
    if count is None:
        return UNKNOWN
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):  # noqa: B007
        count /= 1024
        if count < 1000:
            break
    return f"{count:,.{2 if count < 10 else 1}f} {unit}"


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _token_of(group: GroupFootprint, memory: Memory) -> str:
    return "a token" if len(memory.groups) == 1 else f"a token, group {group.group}"


def _formula(group: GroupFootprint) -> str:
    if group.bytes_per_token is None:
        return UNKNOWN
    scales = f" and {SCALE_BYTES}-byte scales" if set(group.dtypes) & set(SCALED) else ""
    window = "" if group.window is None else f", the last {group.window:,} of a request"
    return (
        f"{size(group.bytes_per_token)}: {counted(group.layers or 0, 'layer')} x "
        f"{counted(group.kv_heads or 0, 'KV head')} x ({group.head_dim} + {group.value_dim}) "
        f"numbers, {' and '.join(group.dtypes)}{scales}{window}"
    )


def _each(memory: Memory) -> str:
    groups = f", one of each of {len(memory.groups)} KV groups" if len(memory.groups) > 1 else ""
    pool = memory.pool
    tokens = pool.tokens // pool.blocks if pool and pool.tokens and pool.blocks else None
    return (f": {counted(tokens, 'token')}" if tokens else "") + groups


def _pool(pool: PoolSize, memory: Memory) -> str:
    groups = max(len(memory.groups), 1)
    told = "" if pool.bytes is None else f"{size(pool.bytes)}: "
    told += counted(pool.blocks, "block")
    if groups > 1:
        told += " a KV group"
    if pool.tokens is not None:
        told += f", {counted(pool.tokens, 'token')}"
    if pool.sentinels:
        told += f", and {counted(pool.sentinels, 'sentinel')}"
    if memory.held is not None:
        told += f"; {pool.never_used_blocks:,} of {groups * pool.blocks:,} never used"
    return told


def _request(need: Need) -> str:
    return f"of {counted(need.length, 'token')} takes " + _both(
        need.bytes_per_request, None, need.blocks_per_request
    )


def _need(need: Need) -> str:
    told = f"of {counted(need.length, 'token')} need " + _both(
        need.bytes, need.block_bytes, need.blocks
    )
    return told if need.fit is None else f"{told}; room for {need.fit:,}"


def _both(exact: int | None, in_blocks: int | None, blocks: int | None) -> str:
    """To the token, and in whole blocks; what is unknown is left out."""
    held = None if blocks is None else counted(blocks, "block")
    if exact is None:
        return held or UNKNOWN
    if held is None:
        return size(exact)
    return f"{size(exact)} ({held if in_blocks is None else f'{size(in_blocks)} in {held}'})"


def _level(name: str, level: Level) -> tuple[str, ...]:
    return (
        name,
        f"{level.mean_blocks:,.1f}",
        _optional(level.mean_bytes),
        _share(level.mean_share),
        f"{level.peak_blocks:,}",
        _optional(level.peak_bytes),
        _share(level.peak_share),
        str(level.peak_step) if level.peak_blocks else "",
    )


def _free(free: Free) -> tuple[str, ...]:
    """The other way round: the figure in place of the peak is the least."""
    return (
        "free",
        f"{free.mean_blocks:,.1f}",
        _optional(free.mean_bytes),
        _share(free.mean_share),
        f"{free.least_blocks:,}",
        "at least",
        "",
        str(free.least_step),
    )


def _optional(count: float | None) -> str:
    return "" if count is None else size(count)


def _share(share: float | None) -> str:
    return "" if share is None else percent(share)


def _reservation(reserved: Reservation) -> tuple[str, ...]:
    name = (
        "prompt + max_new_tokens"
        if reserved.length is None
        else f"the context, {counted(reserved.length, 'token')}"
    )
    times = reserved.mean_times_held
    return (
        name,
        _amount(reserved.mean_bytes, reserved.mean_tokens, "token"),
        _amount(reserved.peak_bytes, reserved.peak_tokens, "token"),
        percent(reserved.mean_wasted_share),
        UNKNOWN if times is None else f"{times:,.1f}",
    )


def _amount(in_bytes: float | None, count: float, noun: str) -> str:
    return counted(round(count), noun) if in_bytes is None else size(in_bytes)
