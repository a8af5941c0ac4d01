"""What happened: the vocabulary of events, and the traces that hold them."""

from .errors import KvrewindError
from .events import EVENTS, KINDS, Envelope, Event
from .jsonl import read_jsonl, write_jsonl
from .memory import MemorySink
from .reader import TraceReader
from .sink import NullSink, Sink
from .writer import TraceWriter

__all__ = [
    "EVENTS",
    "KINDS",
    "Envelope",
    "Event",
    "KvrewindError",
    "MemorySink",
    "NullSink",
    "Sink",
    "TraceReader",
    "TraceWriter",
    "read_jsonl",
    "write_jsonl",
]
