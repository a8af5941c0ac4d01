"""Rows of a damaged SQLite file, read page by page without SQLite.

SQLite refuses a file that ends before its last page, and reaches rows only through inner pages,
which may lie behind the cut. The rows themselves are in leaf pages that describe themselves, so we
take every leaf that is whole. File format: https://www.sqlite.org/fileformat2.html, sections 1.3
(header), 1.6 (b-tree pages) and 2.1 (records).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HEADER_SIZE = 100
_TABLE_LEAF = 0x0D
_INTEGER_SIZES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}

Value = None | int | float | str | bytes


class FileHeader(NamedTuple):
    """What the first hundred bytes of a SQLite file say."""

    page_size: int
    reserved: int
    """Unused bytes at the end of each page."""
    page_count: int
    user_version: int
    application_id: int

    @property
    def size(self) -> int:
        return self.page_size * self.page_count


class StoredRow(NamedTuple):
    rowid: int
    values: tuple[Value, ...]


def read_header(data: bytes) -> FileHeader | None:
    """None if these are not the first bytes of a SQLite database."""
    if len(data) < HEADER_SIZE or not data.startswith(b"SQLite format 3\0"):
        return None
    page_size = int.from_bytes(data[16:18], "big")
    return FileHeader(
        page_size=65536 if page_size == 1 else page_size,
        reserved=data[20],
        page_count=int.from_bytes(data[28:32], "big"),
        user_version=int.from_bytes(data[60:64], "big"),
        application_id=int.from_bytes(data[68:72], "big"),
    )


def table_rows(path: Path) -> Iterator[StoredRow]:
    """Every row of every table that can be read whole, in no particular order."""
    with path.open("rb") as file:
        pages = _Pages(file.read())
    for number in range(1, pages.count + 1):
        yield from pages.leaf_rows(number)


class _Pages:
    def __init__(self, data: bytes) -> None:
        header = read_header(data)
        if header is None or header.page_size < 512:
            raise ValueError("not a SQLite database")
        self._data = data
        self._page_size = header.page_size
        self._usable = header.page_size - header.reserved
        self.count = len(data) // header.page_size

    def leaf_rows(self, number: int) -> Iterator[StoredRow]:
        page = self._page(number)
        start = HEADER_SIZE if number == 1 else 0
        if page[start] != _TABLE_LEAF:
            return
        (cells,) = struct.unpack_from(">H", page, start + 3)
        for cell in range(min(cells, self._page_size // 4)):
            try:
                (offset,) = struct.unpack_from(">H", page, start + 8 + 2 * cell)
                yield self._row(page, offset)
            except (ValueError, IndexError, struct.error):
                continue  # a damaged cell, or one whose tail is behind the cut: not a row

    def _page(self, number: int) -> bytes:
        if not 1 <= number <= self.count:
            raise ValueError("a page behind the end")
        start = (number - 1) * self._page_size
        return self._data[start : start + self._page_size]

    def _row(self, page: bytes, offset: int) -> StoredRow:
        size, offset = _varint(page, offset)
        rowid, offset = _varint(page, offset)
        if size > len(self._data):
            raise ValueError("a row larger than the file")
        return StoredRow(rowid, _record(self._payload(page, offset, size)))

    def _payload(self, page: bytes, offset: int, size: int) -> bytes:
        """The row's bytes: all in the page, or its head here and the rest in a chain of pages."""
        local = self._local_size(size)
        payload = page[offset : offset + local]
        if local < size:
            following = int.from_bytes(page[offset + local : offset + local + 4], "big")
            payload += self._overflow(following, size - local)
        if len(payload) != size:
            raise ValueError("a row that ends early")
        return payload

    def _local_size(self, size: int) -> int:
        most, least = self._usable - 35, (self._usable - 12) * 32 // 255 - 23
        if size <= most:
            return size
        kept = least + (size - least) % (self._usable - 4)
        return kept if kept <= most else least

    def _overflow(self, number: int, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            page = self._page(number)
            parts.append(page[4 : min(self._usable, 4 + size)])
            size -= len(parts[-1])
            number = int.from_bytes(page[:4], "big")
        return b"".join(parts)


def _record(data: bytes) -> tuple[Value, ...]:
    end, offset = _varint(data, 0)
    kinds: list[int] = []
    while offset < end:
        kind, offset = _varint(data, offset)
        kinds.append(kind)
    values: list[Value] = []
    offset = end
    for kind in kinds:
        value, offset = _value(data, offset, kind)
        values.append(value)
    return tuple(values)


def _value(data: bytes, offset: int, kind: int) -> tuple[Value, int]:
    size = _INTEGER_SIZES.get(kind)
    if size is not None:
        return int.from_bytes(_take(data, offset, size), "big", signed=True), offset + size
    if kind == 0:
        return None, offset
    if kind == 7:
        return struct.unpack(">d", _take(data, offset, 8))[0], offset + 8
    if kind in (8, 9):
        return kind - 8, offset
    if kind < 12:
        raise ValueError("a reserved type")
    size = (kind - 12) // 2
    content = _take(data, offset, size)
    return content if kind % 2 == 0 else content.decode(), offset + size


def _take(data: bytes, offset: int, size: int) -> bytes:
    content = data[offset : offset + size]
    if len(content) != size:
        raise ValueError("a value that ends early")
    return content


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """Big-endian, 7 bits a byte, the ninth byte whole; and the offset behind it."""
    value = 0
    for index in range(8):
        byte = data[offset + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, offset + index + 1
    value = value << 8 | data[offset + 8]
    return value - (1 << 64) if value >> 63 else value, offset + 9
