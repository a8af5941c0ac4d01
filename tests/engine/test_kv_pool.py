"""Whole blocks of the KV pool: scrubbed, copied, digested, taken to host memory and put back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')

from kvrewind.engine.attention.pool import KVPool, LayerShape  # noqa: E402
from kvrewind.engine.config import KV_DTYPES  # noqa: E402
from kvrewind.recorder.events import RunStarted  # noqa: E402
from kvrewind.replay.kv_footprint import Footprint  # noqa: E402

torch.set_num_threads(1)

BLOCK_SIZE, NUM_BLOCKS = 4, 6
SHAPES = [LayerShape(2, 7, 5), LayerShape(2, 7, 5), LayerShape(1, 8, 8)]  # odd and even sizes
FULL, OTHER = (0, 1), (2,)
"""Layers of two KV groups."""


def filled_pool(kv_dtype, seed=0):
    pool = KVPool(
        SHAPES,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        dtype=torch.float32,
        device=torch.device("cpu"),
        kv_dtypes=[kv_dtype] * len(SHAPES),
    )
    torch.manual_seed(seed)
    slots = torch.randperm(pool.num_slots)
    for layer, (heads, key_dim, value_dim) in enumerate(SHAPES):
        keys = torch.randn(len(slots), heads, key_dim)
        pool.write(layer, slots, keys, torch.randn(len(slots), heads, value_dim))
    return pool


def content(pool):
    """(layer, key or value, block) -> [block_size, heads, dim], as attention would read it."""
    return {
        (layer, which, block): rows.clone()
        for layer in range(len(SHAPES))
        for which, tensor in zip("kv", pool.all_slots(layer), strict=True)
        for block, rows in enumerate(tensor.split(BLOCK_SIZE))
    }


def changed(before, after):
    """{(layer, block)} whose content differs."""
    return {
        (layer, block)
        for (layer, which, block), rows in before.items()
        if not torch.equal(rows, after[layer, which, block])
    }


@pytest.fixture(params=KV_DTYPES)
def pool(request):
    return filled_pool(request.param)


def test_a_vector_with_a_nan_reads_as_nan_and_its_neighbours_stay(pool):
    before = content(pool)
    key, value = torch.randn(1, 2, 7), torch.randn(1, 2, 5)
    key[0, 1, 3] = torch.nan
    pool.write(0, torch.tensor([9]), key, value)
    after = content(pool)
    assert changed(before, after) == {(0, 2)}
    rows = after[0, "k", 2]
    assert rows[1, 1, 3].isnan()
    assert not rows[1, 0].isnan().any()
    assert torch.equal(rows[[0, 2, 3]], before[0, "k", 2][[0, 2, 3]])


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_numbers_beyond_float16_stay_large_or_become_infinite_and_never_wrap(kv_dtype):
    pool = filled_pool(kv_dtype)
    value = torch.full((1, 1, 8), -1e30)
    pool.write(2, torch.tensor([0]), torch.full((1, 1, 8), 1e30), value)
    keys, values = pool.gather(2, torch.tensor([0]))
    assert (keys[0] > 9e29).all()
    assert (values[0] < -9e29).all()
    assert keys[0].isinf().all() == (kv_dtype == "float16")


@pytest.mark.parametrize("how", ["zero", "nan"])
def test_a_scrub_overwrites_the_named_blocks_of_one_group_and_nothing_else(pool, how):
    before = content(pool)
    pool.scrub(FULL, [4, 1], how)
    after = content(pool)
    assert changed(before, after) == {(0, 1), (0, 4), (1, 1), (1, 4)}
    scrubbed = torch.cat(
        [after[layer, w, b].flatten() for layer, b in changed(before, after) for w in "kv"]
    )
    assert (scrubbed.isnan() if how == "nan" else scrubbed == 0).all()


def test_scrubbing_with_nan_is_undone_by_the_next_write(pool):
    pool.scrub(FULL, [2], "nan")
    key, value = torch.randn(1, 2, 7), torch.randn(1, 2, 5)
    pool.write(0, torch.tensor([2 * BLOCK_SIZE + 1]), key, value)
    keys, _ = pool.gather(0, torch.tensor([2]))
    assert keys.isnan().all(dim=(1, 2)).tolist() == [True, False, True, True]
    torch.testing.assert_close(keys[1], key[0], atol=0.3, rtol=0)


def test_a_copy_moves_leading_slots_as_they_are_stored(pool):
    before = content(pool)
    pool.copy(FULL, [(3, 0, 2), (5, 4, BLOCK_SIZE)])
    after = content(pool)
    assert changed(before, after) == {(0, 0), (0, 4), (1, 0), (1, 4)}
    for layer in FULL:
        for which in "kv":
            assert torch.equal(after[layer, which, 0][:2], before[layer, which, 3][:2])
            assert torch.equal(after[layer, which, 0][2:], before[layer, which, 0][2:])
            assert torch.equal(after[layer, which, 4], before[layer, which, 5])


def test_copies_are_carried_out_in_their_order(pool):
    before = content(pool)
    pool.copy(OTHER, [(3, 0, BLOCK_SIZE), (0, 1, BLOCK_SIZE)])
    assert torch.equal(content(pool)[2, "k", 1], before[2, "k", 3])


def test_a_copied_block_has_the_digest_of_its_source_and_a_partial_copy_has_not(pool):
    assert pool.digest(FULL, 3) != pool.digest(FULL, 0)
    pool.copy(FULL, [(3, 0, BLOCK_SIZE - 1)])
    assert pool.digest(FULL, 3) != pool.digest(FULL, 0)
    pool.copy(FULL, [(3, 0, BLOCK_SIZE)])
    assert pool.digest(FULL, 3) == pool.digest(FULL, 0)


def test_a_digest_changes_with_any_bit_of_its_block_and_with_no_other(pool):
    whole, neighbour = pool.digest(FULL, 2), pool.digest(FULL, 3)
    other_group = pool.digest(OTHER, 2)
    (block,) = pool.take(FULL, [2])
    digests = {whole}
    for number, part in enumerate(block.parts):
        for byte in range(part.nbytes):
            flipped = block.parts[number].clone()
            flipped.view(torch.uint8).view(-1)[byte] ^= 1 << (byte % 8)
            parts = (*block.parts[:number], flipped, *block.parts[number + 1 :])
            pool.put(FULL, [2], [type(block)(parts)])
            digests.add(pool.digest(FULL, 2))
    assert len(digests) == 1 + sum(part.nbytes for part in block.parts)
    assert pool.digest(FULL, 3) == neighbour
    assert pool.digest(OTHER, 2) == other_group
    pool.put(FULL, [2], [block])
    assert pool.digest(FULL, 2) == whole


def test_what_is_taken_comes_back_exactly_into_any_block(pool):
    before = content(pool)
    digests = [pool.digest(FULL, block) for block in (1, 4)]
    one, other = pool.take(FULL, [1, 4])
    assert [one.digest(), other.digest()] == digests
    pool.scrub(FULL, range(NUM_BLOCKS), "nan")
    pool.put(FULL, [5, 0], [one, other])
    after = content(pool)
    for layer in FULL:
        for which in "kv":
            assert torch.equal(after[layer, which, 5], before[layer, which, 1])
            assert torch.equal(after[layer, which, 0], before[layer, which, 4])
            assert after[layer, which, 3].isnan().all()
    assert [pool.digest(FULL, block) for block in (5, 0)] == digests


def test_what_is_taken_stays_as_it_was_when_the_pool_changes(pool):
    (block,) = pool.take(FULL, [1])
    then = block.digest()
    pool.scrub(FULL, [1], "zero")
    assert block.digest() == then != pool.digest(FULL, 1)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_memory_is_what_the_account_of_the_cache_says(kv_dtype):
    pool = filled_pool(kv_dtype)
    header = RunStarted(
        engine="kvrewind", engine_version="0", model="tiny", dtype="float32", device="cpu",
        num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, sentinel_blocks=[], versions={},
        wall_clock="2026-01-01T00:00:00Z", config={"kv_dtype": kv_dtype},
        groups=[
            {"layers": [layer], "kv_heads": heads, "head_dim": key_dim, "value_dim": value_dim}
            for layer, (heads, key_dim, value_dim) in enumerate(SHAPES)
        ],
    )  # fmt: skip
    assert pool.num_bytes == NUM_BLOCKS * (Footprint.of(header).bytes_per_block or 0)


def test_layers_may_differ_in_precision():
    pool = KVPool(
        SHAPES,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        dtype=torch.float32,
        device=torch.device("cpu"),
        kv_dtypes=["auto", "int8", "int4"],
    )
    torch.manual_seed(3)
    errors = []
    for layer, (heads, key_dim, value_dim) in enumerate(SHAPES):
        key, value = torch.randn(4, heads, key_dim), torch.randn(4, heads, value_dim)
        pool.write(layer, torch.arange(4), key, value)
        read, _ = pool.gather(layer, torch.tensor([0]))
        errors.append((read - key).abs().max().item())
    assert errors[0] == 0 < errors[1] < 0.05 < errors[2] < 0.5
