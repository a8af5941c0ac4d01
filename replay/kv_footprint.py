"""What the KV cache of a model costs, by the usual formula: a token, a block, a request.

    bytes of a token = sum over layers of  KV heads x (bytes of a key + bytes of a value)

KV heads are those that are stored: fewer than the query heads under grouped-query attention, one
under multi-query attention. A key takes head_dim numbers of the cache's data type, a value
value_dim (head_dim where the header doesn't name another). int8 and int4 store, besides, a 4-byte
scale per slot and head for the key and one for the value; int4 packs two numbers in a byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..recorder.events import RunStarted

SCALE_BYTES = 4
"""Of the float scale of a quantized key or value."""

LARGEST_BLOCK = 1 << 16
"""In tokens; a block size past this is nonsense, and not worth counting its slots."""

SCALED = ("int8", "int4")

_BITS = {
    "float64": 64, "float32": 32, "float": 32, "float16": 16, "half": 16, "bfloat16": 16,
    "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "float8_e4m3fn": 8, "float8_e5m2": 8,
    "int8": 8, "int4": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFootprint:
    """One KV group. Sizes that the header doesn't tell, and what follows from them, are None."""

    group: int
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    window: int | None = None
    """In tokens; None: every token is kept."""
    dtypes: tuple[str, ...] = ()
    """Of the cache, each named once."""
    bytes_per_token: int | None = None
    bytes_per_block: int | None = None

    def kept(self, length: int) -> int:
        """How many of its last tokens a request of that length needs."""
        return length if self.window is None else min(length, self.window)

    def blocks(self, length: int, block_size: int) -> int:
        """Most blocks that a request of that length holds. A window may begin inside a block, so
        it takes one more than its tokens fill; a prompt's chunk takes its own besides."""
        blocks = _ceil(length, block_size)
        if self.window is None:
            return blocks
        return min(blocks, _ceil(self.window - 1, block_size) + 1)


@dataclass(frozen=True, slots=True)
class Footprint:
    """The KV cache of one run. `unknown` says, a sentence each, why bytes can't be counted."""

    groups: tuple[GroupFootprint, ...]
    block_size: int | None
    unknown: tuple[str, ...]

    @classmethod
    def of(cls, header: RunStarted) -> Footprint:
        """Reads any header, also one of another engine that says less than the contract asks."""
        unknown: list[str] = []
        block_size = header.block_size if 0 < header.block_size <= LARGEST_BLOCK else None
        if block_size is None:
            unknown.append(
                f"a block of {header.block_size} tokens, as the header has it, can't be counted"
            )
        if not header.groups:
            unknown.append("the header lists no KV groups, so nothing can be told in bytes")
            return cls((GroupFootprint(group=0),), block_size, tuple(unknown))
        dtypes = _dtypes(header, unknown)
        groups = tuple(
            _group(number, entry, block_size, dtypes, unknown)
            for number, entry in enumerate(header.groups)
        )
        return cls(groups, block_size, tuple(dict.fromkeys(unknown)))

    @classmethod
    def unknown_to_all(cls) -> Footprint:
        """Of a trace without a header."""
        return cls((), None, ())

    @property
    def bytes_per_token(self) -> int | None:
        """Of a token inside every group's window."""
        return _total(group.bytes_per_token for group in self.groups)

    @property
    def bytes_per_block(self) -> int | None:
        """Of one block of each group."""
        return _total(group.bytes_per_block for group in self.groups)

    def bytes_of(self, length: int) -> int | None:
        """What a request of that many tokens needs, to the token."""
        return _total(
            None if group.bytes_per_token is None else group.bytes_per_token * group.kept(length)
            for group in self.groups
        )

    def blocks_of(self, length: int) -> int | None:
        """Most blocks that it holds, of all groups together."""
        size = self.block_size
        return _total(g.blocks(length, size) if size is not None else None for g in self.groups)

    def block_bytes_of(self, length: int) -> int | None:
        """The bytes of these blocks."""
        size = self.block_size
        if size is None:
            return None
        return _total(
            None if g.bytes_per_block is None else g.bytes_per_block * g.blocks(length, size)
            for g in self.groups
        )

    def requests_in(self, num_blocks: int, length: int) -> int | None:
        """How many requests of that length fit into pools of that many blocks a group."""
        size = self.block_size
        if size is None or not self.groups:
            return None
        return min(num_blocks // max(g.blocks(length, size), 1) for g in self.groups)


def _group(
    number: int, entry: Any, block_size: int | None, dtypes: dict[int, str], unknown: list[str]
) -> GroupFootprint:
    if not isinstance(entry, dict):
        unknown.append(f"KV group {number} of the header is no map, so its bytes can't be told")
        return GroupFootprint(group=number)
    layers = _layers(entry)
    heads, key = _size(entry.get("kv_heads")), _size(entry.get("head_dim"))
    value = _size(entry.get("value_dim", key))
    needed = {"layers": layers, "kv_heads": heads, "head_dim": key, "value_dim": value or not key}
    if lacking := [name for name, known in needed.items() if not known]:
        unknown.append(
            f"KV group {number} of the header has no usable {' and '.join(lacking)}, "
            "so its bytes can't be told"
        )
    names = [dtypes[layer] for layer in layers if layer in dtypes]
    size = None
    if heads and key and value and names and len(names) == len(layers):
        size = sum(heads * (_vector(key, name) + _vector(value, name)) for name in names)
    return GroupFootprint(
        group=number,
        layers=len(layers) or None,
        kv_heads=heads,
        head_dim=key,
        value_dim=value,
        window=_size(entry.get("window")),
        dtypes=tuple(dict.fromkeys(names)),
        bytes_per_token=size,
        bytes_per_block=None if size is None or block_size is None else size * block_size,
    )


def _dtypes(header: RunStarted, unknown: list[str]) -> dict[int, str]:
    """Layer -> name of its cache's data type, for those whose size is known.

    `kv_dtype` is one name for all layers, or a comma list with one for each; auto is the model's.
    """
    layers = sorted({layer for entry in header.groups for layer in _layers(entry)})
    given = str(header.config.get("kv_dtype") or "auto")
    names = [header.dtype if name.strip() == "auto" else name.strip() for name in given.split(",")]
    names = [name.removeprefix("torch.") for name in names]
    if len(names) == 1:
        names *= len(layers)
    if len(names) != len(layers):
        unknown.append(
            f"kv_dtype names {len(names)} data types, and the header {len(layers)} layers, "
            "so nothing can be told in bytes"
        )
        return {}
    for name in dict.fromkeys(names):
        if name not in _BITS:
            unknown.append(f"how many bytes a number of type {name!r} takes is not known here")
    return {layer: name for layer, name in zip(layers, names, strict=True) if name in _BITS}


def _layers(entry: Any) -> list[int]:
    """The layers of a group; empty where the header doesn't list them."""
    listed = entry.get("layers") if isinstance(entry, dict) else None
    if not isinstance(listed, list) or any(type(layer) is not int for layer in listed):
        return []
    return listed


def _vector(numbers: int, dtype: str) -> int:
    """Bytes of one head's key or value."""
    return _ceil(numbers * _BITS[dtype], 8) + (SCALE_BYTES if dtype in SCALED else 0)


def _size(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _ceil(numbers: int, divisor: int) -> int:
    return -(-numbers // divisor)


def _total(parts: Iterable[int | None]) -> int | None:
    """None where one of them, or all, is unknown."""
    known = list(parts)
    return sum(part for part in known if part is not None) if known and None not in known else None
