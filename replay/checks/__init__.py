"""One file a rule of the trace contract, and `CHECKS`: the order in which they judge.

The order is the contract's triage. What an earlier rule reports is the cause that a later one
finds, and does not report again: rows before tables, tables before what is read through them, a
stale key before the content that it led to, and the foreign read, which needs a cause, last.
"""

from __future__ import annotations

from .address import Address
from .base import Rule
from .dangling_table import DanglingTable
from .exclusive_write import ExclusiveWrite
from .foreign_read import ForeignRead
from .identity import Identity
from .mask import Mask
from .ref_count import RefCount
from .row_identity import RowIdentity
from .stale_index import StaleIndex
from .unwritten_read import UnwrittenRead

CHECKS: tuple[type[Rule], ...] = (
    RefCount,
    StaleIndex,
    RowIdentity,
    DanglingTable,
    Address,
    ExclusiveWrite,
    Identity,
    Mask,
    UnwrittenRead,
    ForeignRead,
)
