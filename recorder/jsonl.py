"""The contract's JSON lines, in both directions.

One object a line: `kind`, `step`, then the event's fields; `seq` (else the line number, from 0),
`t_ns` and `rank` (else 0) are optional. Bytes are lower-case hex, a float that is not finite is
the string `"-inf"`, `"inf"` or `"nan"`, an absent optional field equals null, unknown fields are
kept. What is written is compact ASCII, without absent optionals. In fields whose shape the
contract leaves open, bytes and floats that are not finite come back as the text they became.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn, TextIO, TypeVar

from .errors import BadEvent, BadInput, BadLine
from .events import KINDS, Envelope, Event
from .fields import FieldSpec, Shape, fields_of
from .plain import canonical, small_enough

E = TypeVar("E", bound=Event)

_NOT_FINITE = {"-inf": -math.inf, "inf": math.inf, "nan": math.nan}
_INT64 = 1 << 63


# --- write ----------------------------------------------------------------------------------------


def write_jsonl(envelopes: Iterable[Envelope], stream: TextIO) -> int:
    """Write one line per event; the number of lines."""
    count = 0
    for envelope in envelopes:
        stream.write(to_line(envelope))
        stream.write("\n")
        count += 1
    return count


def to_line(envelope: Envelope) -> str:
    """One event as one line of JSON, without its newline."""
    record: dict[str, Any] = {"kind": envelope.kind, "step": envelope.step, "seq": envelope.seq}
    if envelope.t_ns:
        record["t_ns"] = envelope.t_ns
    if envelope.rank:
        record["rank"] = envelope.rank
    record.update(to_json(envelope.event))
    return json.dumps(record, separators=(",", ":"), allow_nan=False, default=canonical)


def to_json(event: Event) -> dict[str, Any]:
    """The fields of an event as JSON values, absent optionals left out."""
    values: dict[str, Any] = {}
    for spec in fields_of(type(event)):
        value = getattr(event, spec.name)
        if value is None and not spec.required:
            continue
        to = _TO_JSON.get(spec.shape)
        values[spec.name] = value if to is None else to(value)
    if event.unknown:
        values.update(canonical(dict(event.unknown)))
    return values


def from_json(cls: type[E], values: Mapping[str, Any]) -> E:
    """The event of that class with those fields, as `to_json` gives them. Raises BadEvent."""
    try:
        return _event(cls, dict(values))
    except _Problem as problem:
        raise BadEvent(cls.__name__, problem.problem) from None


def _float_to_json(value: float) -> float | str:
    return value if math.isfinite(value) else str(float(value))


_TO_JSON: Mapping[Shape, Callable[[Any], Any]] = {
    "float": _float_to_json, "bytes": bytes.hex,
    "floats": lambda values: [_float_to_json(value) for value in values],
    "list": canonical, "map": canonical, "any": canonical,
}  # fmt: skip


# --- read -----------------------------------------------------------------------------------------


def read_jsonl(
    source: Path | str | IO[str] | IO[bytes], name: str | None = None
) -> Iterator[Envelope]:
    """Events of a file or an open stream, in order; `name` is what messages call it.

    Raises BadLine, naming file and line, at the first line that is no event of the contract, and
    BadInput if a file can't be opened.
    """
    if isinstance(source, (str, Path)):
        try:
            stream = Path(source).open("rb")  # noqa: SIM115 -- closed below, after the error message
        except OSError as error:
            raise BadInput(
                f"{source} can't be opened: {(error.strerror or str(error)).lower()}; "
                "check the name and its permissions"
            ) from error
        with stream:
            yield from _read(stream, name or str(source))
    else:
        yield from _read(source, name or str(getattr(source, "name", "standard input")))


def _read(stream: IO[Any], name: str) -> Iterator[Envelope]:
    next_seq = 0
    for index, text in _lines(stream, name):
        try:
            envelope = _envelope(text, index, next_seq)
        except _Problem as problem:
            raise BadLine(name, index + 1, problem.problem, problem.try_next) from None
        next_seq = envelope.seq + 1
        yield envelope


def _lines(stream: IO[Any], name: str) -> Iterator[tuple[int, str]]:
    """Index from 0 and text of each line that is not blank."""
    lines = iter(stream)
    index = 0
    while True:
        try:
            line = next(lines, None)
            if line is None:
                return
            text = line.decode() if isinstance(line, bytes) else line
        except UnicodeDecodeError as error:
            raise BadLine(
                name, index + 1, f"not UTF-8 text ({error.reason})", "save the file as UTF-8"
            ) from None
        if index == 0:
            text = text.removeprefix("\ufeff")
        if text.strip():
            yield index, text
        index += 1


class _Problem(Exception):
    """What is wrong with a line; the caller knows which."""

    def __init__(self, problem: str, try_next: str = "correct the line or remove it") -> None:
        super().__init__(problem)
        self.problem = problem
        self.try_next = try_next


def _envelope(text: str, index: int, next_seq: int) -> Envelope:
    record = _parse(text)
    cls = _kind(record)
    step = _count(record, "step", None)
    seq = _count(record, "seq", index)
    t_ns = _count(record, "t_ns", 0)
    rank = _count(record, "rank", 0)
    if seq < next_seq:
        raise _Problem(
            f"seq {seq} is not above {next_seq - 1}, the seq before it",
            "sort the lines by seq, or leave seq out of all of them",
        )
    return Envelope(seq, step, t_ns, rank, _event(cls, record))


def _parse(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise _Problem(
            f"not JSON ({error.msg} at column {error.colno})", "write one JSON object on each line"
        ) from None
    except RecursionError:
        raise _Problem("nested too deep") from None
    except ValueError as error:  # an integer of thousands of digits
        raise _Problem(f"not a JSON value that can be read ({error})") from None
    if not isinstance(record, dict):
        raise _Problem("not a JSON object", "write one JSON object on each line")
    return record


def _refuse_constant(constant: str) -> NoReturn:
    raise _Problem(f"{constant} is not JSON", 'write "-inf", "inf" or "nan" as a string')


def _kind(record: dict[str, Any]) -> type[Event]:
    kind = record.pop("kind", None)
    if kind is None:
        raise _Problem("the field 'kind' is missing", "give it the name of an event")
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise _Problem(
            f"{_shown(kind)} is no kind of event",
            "use one of the contract's names, such as BlockAllocated",
        )
    return cls


def _count(record: dict[str, Any], name: str, default: int | None) -> int:
    """A number of the envelope, from 0."""
    value = record.pop(name, None)
    if value is None:
        if default is None:
            raise _Problem(f"the field {name!r} is missing", "add it")
        return default
    if type(value) is not int or not 0 <= value < _INT64:
        raise _Problem(f"the field {name!r} is {_shown(value)}, not an integer from 0")
    return value


def _event(cls: type[E], record: dict[str, Any]) -> E:
    values: dict[str, Any] = {}
    for spec, convert in _converters(cls):
        present = spec.name in record
        value = record.pop(spec.name, None)
        if value is None and not (present and spec.shape == "any"):
            if spec.required:
                raise _Problem(f"{cls.__name__} lacks the field {spec.name!r}", "add it")
            continue
        try:
            values[spec.name] = convert(value)
        except _Wrong as wrong:
            raise _Problem(
                f"the field {spec.name!r} of {cls.__name__} is {_shown(value)}, not {wrong}"
            ) from None
    if record:
        values["unknown"] = _unknown(record)
    return cls(**values)


def _unknown(record: dict[str, Any]) -> dict[str, Any]:
    try:
        return _open(record)
    except _Wrong as wrong:
        raise _Problem(f"a field that the contract doesn't know is not {wrong}") from None


def _shown(value: Any) -> str:
    """A value as the line has it, short enough for a sentence."""
    if isinstance(value, (dict, list)):
        return "a list" if isinstance(value, list) else "an object"
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


class _Wrong(Exception):
    """Says what was expected of a value."""


def _open(value: Any) -> Any:
    try:
        plain = canonical(value)
        _require_finite(value)
    except ValueError as error:
        raise _Wrong(f"a value that a trace can hold ({error})") from None
    return plain


def _require_finite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number too large for a float")
    if isinstance(value, list):
        for item in value:
            _require_finite(item)
    elif isinstance(value, dict):
        for item in value.values():
            _require_finite(item)


def _int(value: Any) -> int:
    if type(value) is not int:
        raise _Wrong("an integer")
    if not -_INT64 <= value < _INT64:
        raise _Wrong("an integer of at most 64 bits")
    return value


def _float(value: Any) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if type(value) not in (int, float):
        raise _Wrong('a number, or "-inf", "inf" or "nan"')
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _Wrong('a number that a float can hold (write "-inf" as a string)')
    return number


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _Wrong("true or false")
    return value


def _str(value: Any) -> str:
    if type(value) is not str:
        raise _Wrong("text")
    return _open(value)


def _bytes(value: Any) -> bytes:
    if type(value) is str and len(value) % 2 == 0 and not set(value) - set("0123456789abcdef"):
        return bytes.fromhex(value)
    raise _Wrong("a string of lower-case hex digits, two per byte")


def _scalar(value: Any) -> str | int:
    if type(value) is int:
        try:
            return small_enough(value)
        except ValueError as error:
            raise _Wrong(f"a name or number that a trace can hold ({error})") from None
    if type(value) is not str:
        raise _Wrong("text or an integer")
    return _open(value)


def _row(value: Any) -> str | None:
    return None if value is None else _str(value)


def _list_of(item: Callable[[Any], Any], what: str) -> Callable[[Any], tuple[Any, ...]]:
    def convert(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _Wrong(what)
        try:
            return tuple([item(each) for each in value])
        except _Wrong as wrong:
            raise _Wrong(f"{what} (one entry is not {wrong})") from None

    return convert


def _container(expected: type, what: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if type(value) is not expected:
            raise _Wrong(what)
        return _open(value)

    return convert


def _word(words: tuple[str, ...]) -> Callable[[Any], str]:
    def convert(value: Any) -> str:
        if type(value) is not str or value not in words:
            raise _Wrong(f"one of {', '.join(words)}")
        return value

    return convert


_ints = _list_of(_int, "a list of integers")

_FROM_JSON: Mapping[Shape, Callable[[Any], Any]] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "str": _str,
    "bytes": _bytes,
    "scalar": _scalar,
    "list": _container(list, "a list"),
    "map": _container(dict, "an object"),
    "any": _open,
    "ints": _ints,
    "floats": _list_of(_float, "a list of numbers"),
    "names": _list_of(_str, "a list of texts"),
    "rows": _list_of(_row, "a list of requests and nulls"),
    "scalars": _list_of(_scalar, "a list of texts or integers"),
    "table": _list_of(_ints, "a list of lists of integers"),
}


@cache
def _converters(cls: type[Event]) -> tuple[tuple[FieldSpec, Callable[[Any], Any]], ...]:
    return tuple((spec, _converter(spec)) for spec in fields_of(cls))


def _converter(spec: FieldSpec) -> Callable[[Any], Any]:
    if spec.words is None:
        return _FROM_JSON[spec.shape]
    word = _word(spec.words)
    return _list_of(word, "a list of words") if spec.shape == "words" else word
