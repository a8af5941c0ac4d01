"""Requests, and the block table of one of them."""

from __future__ import annotations

from ...replay.oracles import foreign_passphrases
from ...replay.requests import RequestState
from ...replay.state import Pool, State
from ...replay.writes import Write
from .blame import CULPRIT
from .blocks import PoolView, device_table, present_writer
from .events import Names
from .spans import Line, Row, Span, joined

MOST_PASSPHRASES = 500
"""With more requests than this, answers aren't searched for the others' passphrases."""

LEAD = 2
"""Tokens shown before the first foreign one."""

_STATUS = {
    "waiting": ("waits", "dim"),
    "running": ("runs", "good"),
    "preempted": ("preempt", "warn"),
    "finished": ("done", "dim"),
}


def request_order(state: State) -> list[str]:
    """Those at work in order of arrival, then the finished ones."""
    finished = [name for name, request in state.requests.items() if request.is_finished]
    return [name for name, _ in state.unfinished()] + finished


def request_row(view: PoolView, name: str, names: Names) -> Row:
    """`▸r2 runs  57+4  4 blocks “one bemovi”`"""
    request = view.state.requests[name]
    status, role = _STATUS[request.status]
    blocks = sum(1 for b in view.pool.table(name) if b is not None)
    prompt = len(request.added.prompt_tokens)
    tag = names.owners.name(name)
    line = (
        Span(f"{tag.text:<6} ", tag.role),
        Span(f"{status:<7}", role),
        Span(f"{prompt:>4}+{len(request.tokens) - prompt:<3}", "text"),
        Span(f"{blocks:>3}b ", "dim"),
        *answer(view.state, name, names),
    )
    return Row(line, request=name)


def answer(state: State, name: str, names: Names) -> Line:
    """What a request has said so far; marked if somebody else's passphrase is in it."""
    request = state.requests[name]
    said = names.pieces.text(request.tokens[len(request.added.prompt_tokens) :])
    if not said:
        return ()
    role = "bad" if _says_foreign(state, name, said) else "text"
    return (Span(f"“{said}”", role),)


def _says_foreign(state: State, name: str, said: str) -> bool:
    if len(state.requests) > MOST_PASSPHRASES:
        return False
    words = {other: request.added.passphrase for other, request in state.requests.items()}
    return bool(foreign_passphrases(name, said, words))


def table_rows(view: PoolView, names: Names, *, is_narrow: bool = False) -> list[Row]:
    """Per logical index: the block, who wrote it, who holds it, and what it says there."""
    if view.request is None or view.request not in view.state.requests:
        return []
    table = view.pool.table(view.request)
    given = device_table(view.state, view.request, view.group) or ()
    length = max(len(table), len(given))
    return [_table_row(view, index, table, given, names, is_narrow) for index in range(length)]


def _table_row(
    view: PoolView,
    index: int,
    table: tuple[int | None, ...],
    given: tuple[int, ...],
    names: Names,
    is_narrow: bool,
) -> Row:
    own = table[index] if index < len(table) else None
    number = given[index] if index < len(given) and given[index] >= 0 else own
    if number is None:
        return Row((Span(f"{index:>3} ", "dim"), Span("-", "dim")))
    write = present_writer(view.state, view.group, number)
    mark = CULPRIT if _is_wrong(view, number) else " "
    differs = own is not None and number != own
    stray = Span(f" device; own is b{own}", "bad") if differs else Span("")
    line = (
        Span(f"{index:>3} ", "dim"),
        Span(f"{f'b{number}':<4}", "block"),
        Span(mark, "bad"),
        *_by(write, names, is_narrow),
        *(() if is_narrow else _holders(view, number, names)),
        stray,
        *content(view, index, number, names, lead=0 if is_narrow else LEAD),
    )
    return Row(line, block=number)


def _is_wrong(view: PoolView, number: int) -> bool:
    """A finding says that this request has no right to the block."""
    blame, seq = view.blame.of_block(number), view.state.seq or 0
    return blame is not None and view.request is not None and blame.is_victim(view.request, seq)


def _by(write: Write | None, names: Names, is_narrow: bool) -> Line:
    if write is None:
        return (Span(f" {'unwritten':<12}", "dim"),)
    tag = names.owners.tag(write.request)
    who = Span(f" {tag.text:<5}", tag.role)
    return (who,) if is_narrow else (who, Span(f"{f'{write.step}:{write.seq}':<7}", "dim"))


def _holders(view: PoolView, number: int, names: Names) -> Line:
    holders = list(dict.fromkeys(h.request for h in view.pool.block(number).holders))
    others = [name for name in holders if name != view.request]
    if view.request not in holders:
        return (Span("not held ", "bad"),)
    if not others:
        return (Span("alone   ", "dim"),)
    tags = joined([(names.owners.tag(name),) for name in others[:2]])
    rest = (Span(f"+{len(others) - 2}", "dim"),) if len(others) > 2 else ()
    used = sum(len(span.text) for span in (*tags, *rest))
    return *tags, *rest, Span(" " * max(8 - used, 1))


def content(view: PoolView, index: int, number: int, names: Names, lead: int) -> Line:
    """The text in a block's slots; tokens that are not the request's own stand out."""
    request = view.state.requests.get(view.request) if view.request is not None else None
    tokens = slot_tokens(view.pool, view.state, number, view.group)
    each = names.pieces.each(tokens)
    if each is None:
        filled = sum(1 for token in tokens if token is not None)
        return (Span(f"{filled}/{len(tokens)} slots", "dim"),)
    own = _own_tokens(request, index, len(tokens))
    wrong = [
        token is not None and mine is not None and token != mine
        for token, mine in zip(tokens, own, strict=True)
    ]
    return _excerpt(each, tokens, wrong, lead)


def _excerpt(each: list[str], tokens: list[int | None], wrong: list[bool], lead: int) -> Line:
    """Begins `lead` tokens before the first wrong one, if there is one."""
    start = max(wrong.index(True) - lead, 0) if True in wrong else 0
    out: list[Span] = [Span("…", "dim")] if start else []
    for text, token, is_wrong in list(zip(each, tokens, wrong, strict=True))[start:]:
        if token is not None:
            out.append(Span(text if out else text.lstrip(), "bad" if is_wrong else "text"))
    return tuple(out)


def slot_tokens(pool: Pool, state: State, number: int, group: int) -> list[int | None]:
    """What each slot of a block holds in its present generation; None where unwritten."""
    writes = [state.writer(group, slot) for slot in pool.slots_of(number)]
    generation = pool.block(number).generation
    return [w.token if w is not None and w.generation == generation else None for w in writes]


def _own_tokens(request: RequestState | None, index: int, size: int) -> list[int | None]:
    tokens = request.tokens if request else ()
    own: list[int | None] = list(tokens[index * size : (index + 1) * size])
    return own + [None] * (size - len(own))
