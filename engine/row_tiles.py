"""Matrix products whose rows come out the same, bit for bit, whatever rows stand beside them.

A BLAS picks a kernel by the shape of the whole product, and two kernels may add the terms of one
row in another order: one row is a product of a matrix and a vector, and of a few rows the last
ones may be computed apart from the others. So rows are computed in calls of a few fixed sizes, all
multiples of one tile:

    rows     0 ........ 255 | 256 ... 287 | 288 .. 301, two rows of zeros
    calls         256             32                 16

Which sizes agree is not known but tried, on the machine at hand and once for each shape of the
weights: random rows through each size, bit for bit against one tile at a time. Only sizes that
agree are called. In what order terms are added doesn't depend on what they are, so numbers that
come out the same for hundreds of random rows do so for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..recorder.errors import BadInput

TILES = (16, 32, 64)
"""Rows of the smallest call; the first that works is taken. Fewer than 16 are spread over threads
too thinly on many machines."""

MULTIPLES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Of a tile: the sizes that are tried, so that many rows take few calls and little padding."""

NARROWEST = 16
"""Columns below which kernels of another kind take over; weights are padded to as many."""

MOST_WORK = 2e9
"""Multiplications in the largest call that is tried: the trial must stay short."""

Product = Callable[[Tensor], Tensor]
"""rows [M, K] -> [M, N]"""


class NotExact(BadInput):
    """This model can't be computed batch-invariantly on this machine."""


class RowTiles:
    """Products with weights, in calls of sizes that were tried. One for a model.

    Sizes are tried when a shape is met for the first time, or with another number of threads, and
    remembered. Raises `NotExact` if none works.
    """

    def __init__(self) -> None:
        self._sizes: dict[tuple[object, ...], tuple[int, ...]] = {}

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., K] and weight [N, K] -> [..., N], as `torch.nn.functional.linear`."""
        width = weight.shape[0]
        if width < NARROWEST:
            missing = NARROWEST - width
            weight = pad(weight, (0, 0, 0, missing))
            bias = None if bias is None else pad(bias, (0, missing))
            return self.linear(x, weight, bias)[..., :width]

        def product(rows: Tensor) -> Tensor:
            return torch.nn.functional.linear(rows, weight, bias)

        kind = (*weight.stride(), weight.dtype, bias is not None)
        return self._in_tiles(product, x, weight.shape, kind)

    def packed(self, x: Tensor, weight: Tensor, bias: Tensor | None, *fused: object) -> Tensor:
        """As `linear`, of a weight [N, K] that oneDNN has packed; nothing may be fused with it."""

        def product(rows: Tensor) -> Tensor:
            return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, *fused)

        return self._in_tiles(product, x, weight.shape, ("packed", bias is not None))

    def grouped(self, x: Tensor, weights: Tensor, ends: Sequence[int]) -> Tensor:
        """x [M, K], weights [G, K, N]: rows up to `ends[g]` are multiplied with the g-th."""
        starts = [0, *ends[:-1]]
        parts = [
            self.linear(x[start:end], weight.mT)
            for weight, start, end in zip(weights, starts, ends, strict=True)
            if end > start
        ]
        return torch.cat(parts)

    def _in_tiles(
        self, product: Product, x: Tensor, shape: Sequence[int], kind: tuple[object, ...]
    ) -> Tensor:
        """x [..., K] -> [..., N]. `shape` (N, K) and `kind` say what may be another kernel."""
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        key = (*shape, *kind, torch.get_num_threads())
        if key not in self._sizes:
            most = MOST_WORK / (shape[0] * shape[1])
            self._sizes[key] = sizes_that_agree(product, shape[1], most, x.dtype)
        return _in_calls(product, rows, self._sizes[key]).unflatten(0, x.shape[:-1])


def sizes_that_agree(
    product: Product, inner: int, most_rows: float, dtype: torch.dtype
) -> tuple[int, ...]:
    """Sizes of a call, the largest first, that give every row the same; they include one tile.

    `inner`: K. Raises `NotExact` if a row's place in the smallest call makes a difference.
    """
    numbers = torch.Generator().manual_seed(0)
    for tile in TILES:
        largest = max(n for n in MULTIPLES if n == 1 or n * tile <= most_rows)
        rows = torch.randn(largest * tile, inner, generator=numbers).to(dtype)
        if _any_place_will_do(product, rows[:tile]):
            one_by_one = torch.cat([product(part) for part in rows.split(tile)])
            sizes = (n * tile for n in reversed(MULTIPLES) if n <= largest)
            return tuple(
                size for size in sizes if torch.equal(product(rows[-size:]), one_by_one[-size:])
            )
    raise NotExact(
        f"exact: on this machine a row of a matrix product ({inner} terms) depends on its place "
        f"among {TILES[0]} to {TILES[-1]} rows, with {torch.get_num_threads()} threads; "
        "try OMP_NUM_THREADS=1, or leave exact off"
    )


def _any_place_will_do(product: Product, rows: Tensor) -> bool:
    """Whether each row of one call comes out the same from other places in it."""
    expected = product(rows)
    shifts = (1, 2, 4, 8)  # over each border that a kernel might draw within the tile
    return all(
        torch.equal(product(rows.roll(shift, 0)), expected.roll(shift, 0)) for shift in shifts
    )


def _in_calls(product: Product, rows: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """`sizes` from the largest down; what is missing to a tile at the end is padded with zeros."""
    count, tile = len(rows), sizes[-1]
    if count in sizes or not count:
        return product(rows)
    padded = pad(rows, (0, 0, 0, -count % tile))
    done, parts = 0, []
    for size in sizes:
        while len(padded) - done >= size:
            parts.append(product(padded[done : done + size]))
            done += size
    return torch.cat(parts)[:count]
