"""Products of rows in calls of sizes that agree; and what torch does to the last of an array."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')

from kvrewind.engine.row_tiles import (  # noqa: E402
    MULTIPLES,
    TILES,
    NotExact,
    RowTiles,
    sizes_that_agree,
)

torch.set_num_threads(1)

WEIGHT = torch.randn(40, 24, generator=torch.Generator().manual_seed(1))


def by_row(rows):
    """A product that knows nothing of the other rows."""
    return torch.stack([WEIGHT @ row for row in rows])


def test_every_size_is_used_where_all_agree():
    sizes = sizes_that_agree(by_row, 24, 1e9, torch.float32)
    assert sizes == tuple(n * TILES[0] for n in reversed(MULTIPLES))


def test_a_size_that_computes_otherwise_is_left_out():
    def product(rows):
        return by_row(rows) + (1e-6 if len(rows) == 4 * TILES[0] else 0.0)

    assert 4 * TILES[0] not in sizes_that_agree(product, 24, 1e9, torch.float32)


def test_a_larger_tile_is_taken_where_places_in_a_small_one_differ():
    def product(rows):
        last = torch.arange(len(rows))[:, None] == 15
        return by_row(rows) + (1e-6 * last if len(rows) < 32 else 0.0)

    assert sizes_that_agree(product, 24, 1e9, torch.float32)[-1] == 32


def test_where_places_always_differ_exact_is_refused():
    def product(rows):
        return by_row(rows) + 1e-6 * torch.arange(len(rows))[:, None]

    with pytest.raises(NotExact, match="OMP_NUM_THREADS=1"):
        sizes_that_agree(product, 24, 1e9, torch.float32)


def test_a_large_product_is_tried_in_small_calls_only():
    called = []

    def product(rows):
        called.append(len(rows))
        return by_row(rows)

    assert sizes_that_agree(product, 24, 40, torch.float32) == (32, 16)
    assert max(called) == 32


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100, 700])
def test_a_row_is_the_same_among_any_number_of_rows(count):
    tiles = RowTiles()
    rows = torch.randn(700, 24, generator=torch.Generator().manual_seed(2))
    bias = torch.randn(40, generator=torch.Generator().manual_seed(3))
    among_many = tiles.linear(rows[None], WEIGHT, bias)[0, :count]
    among_few = tiles.linear(rows[:count], WEIGHT, bias)
    assert torch.equal(among_few, among_many)
    torch.testing.assert_close(among_few, rows[:count] @ WEIGHT.T + bias)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
@pytest.mark.parametrize("count", [1, 17, 100])
def test_packed_weights_are_tried_and_called_like_others(count):
    tiles = RowTiles()
    numbers = torch.Generator().manual_seed(2)
    weight, rows = torch.randn(96, 350, generator=numbers), torch.randn(300, 350, generator=numbers)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    among_many = tiles.packed(rows, packed, None, "none", [], "")[:count]
    assert torch.equal(tiles.packed(rows[:count], packed, None, "none", [], ""), among_many)
    torch.testing.assert_close(among_many, rows[:count] @ weight.T, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("width", [1, 4, 15])
def test_narrow_weights_are_computed_as_wide_ones_are(width):
    """Such as the router of a mixture of experts has."""
    tiles = RowTiles()
    rows = torch.randn(64, 24, generator=torch.Generator().manual_seed(2))
    narrow = tiles.linear(rows, WEIGHT[:width])
    assert torch.equal(tiles.linear(rows[5:6], WEIGHT[:width]), narrow[5:6])
    torch.testing.assert_close(narrow, rows @ WEIGHT[:width].T)


def test_each_group_of_rows_is_multiplied_with_its_own_weights():
    tiles = RowTiles()
    rows = torch.randn(9, 24, generator=torch.Generator().manual_seed(2))
    weights = torch.stack([WEIGHT.T, 2 * WEIGHT.T, 3 * WEIGHT.T])
    out = tiles.grouped(rows, weights, [4, 4, 9])
    torch.testing.assert_close(out, torch.cat([rows[:4] @ weights[0], rows[4:] @ weights[2]]))
