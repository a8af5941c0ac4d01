"""The kernels that write, scrub and digest slots do to the pool what its own code does."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')
pytest.importorskip("triton", reason='needs the extra: pip install "kvrewind[engine]"')

from kernel_device import DEVICE, INTERPRETED  # noqa: E402
from kvrewind.engine.attention.kernels.digest import digest_blocks, digest_on_host  # noqa: E402
from kvrewind.engine.attention.kernels.scrub import scrub_blocks  # noqa: E402
from kvrewind.engine.attention.kernels.slot_write import write_slots  # noqa: E402
from kvrewind.engine.attention.kv_store import make_store  # noqa: E402
from kvrewind.engine.attention.pool import LayerShape  # noqa: E402
from kvrewind.engine.attention.triton_pool import TritonPool  # noqa: E402
from kvrewind.engine.config import KV_DTYPES  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # numpy's, of infinities

BLOCK_SIZE, NUM_BLOCKS, HEADS = 4, 6, 2
NUM_SLOTS = BLOCK_SIZE * NUM_BLOCKS
SIZES = (7, 16)  # odd, and a whole tile


def store_of(kv_dtype, dim, dtype=torch.float32):
    """On the host. Every byte of it is something."""
    store = make_store(kv_dtype, (NUM_SLOTS, HEADS, dim), dtype=dtype, device=torch.device("cpu"))
    torch.manual_seed(dim)
    store.write(torch.arange(NUM_SLOTS), torch.randn(NUM_SLOTS, HEADS, dim, dtype=dtype))
    return store


def on_device(store):
    return tuple(part.to(DEVICE, copy=True) for part in store.parts)


def assert_same_bytes(parts, expected):
    for part, right in zip(parts, expected, strict=True):
        assert torch.equal(part.cpu().view(torch.uint8), right.view(torch.uint8))


def difficult_vectors(dim):
    """Of all sizes, with halves between two integers, and with what is no number."""
    torch.manual_seed(3)
    vectors = torch.randn(9, HEADS, dim) * 10.0 ** torch.arange(-5.0, 4.0)[:, None, None]
    vectors[1, 0] = 0
    vectors[2, 0, 3] = torch.nan
    vectors[3, 1, 2] = torch.inf
    vectors[3, 1, 3] = -torch.inf
    vectors[4, 0] = torch.tensor([127.0, *[2.5, -3.5, 0.5] * dim][:dim])
    vectors[5, 1] = 1e-44
    vectors[6, 0] = torch.finfo(torch.float32).max
    vectors[7, 1] = torch.tensor([7.0, *[2.5, -3.5, 0.5] * dim][:dim])
    return vectors


def roundable(vectors, kv_dtype):
    """The interpreter cuts off what bfloat16 has no room for, where devices round."""
    return vectors.bfloat16().float() if INTERPRETED and kv_dtype == "bfloat16" else vectors


@pytest.mark.parametrize("dim", SIZES)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_slots_are_written_bit_for_bit_as_the_store_writes_them(kv_dtype, dim):
    store = store_of(kv_dtype, dim)
    parts = on_device(store)
    slots = torch.tensor([17, 3, 0, 22, 9, 10, 4, 23, 12])
    vectors = roundable(difficult_vectors(dim), kv_dtype)
    write_slots(parts, slots.to(DEVICE), vectors.to(DEVICE))
    before = [part.clone() for part in store.parts]
    store.write(slots, vectors)
    assert any(not torch.equal(a, b) for a, b in zip(before, store.parts, strict=True))
    as_read = store.read(tuple(part.cpu() for part in parts))
    assert torch.equal(as_read.isnan(), store.all_slots().isnan())
    finite = as_read.nan_to_num(nan=0.0)  # NaN is NaN with any payload
    assert torch.equal(finite, store.all_slots().nan_to_num(nan=0.0))


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_slot_of_minus_one_is_written_nowhere(kv_dtype):
    store = store_of(kv_dtype, 7)
    parts = on_device(store)
    slots, vectors = torch.tensor([-1, 5, -1]), roundable(torch.randn(3, HEADS, 7), kv_dtype)
    write_slots(parts, slots.to(DEVICE), vectors.to(DEVICE))
    store.write(slots[1:2], vectors[1:2])
    assert_same_bytes(parts, store.parts)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_vectors_may_lie_in_memory_as_the_model_left_them(kv_dtype, dtype):
    """Half precision, and heads before tokens."""
    store = store_of(kv_dtype, 16, dtype)
    parts = on_device(store)
    slots = torch.tensor([5, 2, 11])
    vectors = torch.randn(HEADS, 3, 16).to(dtype).transpose(0, 1)
    write_slots(parts, slots.to(DEVICE), vectors.to(DEVICE))
    store.write(slots, vectors)
    assert_same_bytes(parts, store.parts)


@pytest.mark.parametrize("how", ["zero", "nan"])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_scrub_overwrites_the_named_blocks_as_the_store_does_and_no_other(kv_dtype, how):
    store = store_of(kv_dtype, 7)
    parts = on_device(store)
    scrub_blocks(parts, torch.tensor([4, -1, 1], device=DEVICE), BLOCK_SIZE, how)
    slots = torch.tensor([16, 17, 18, 19, 4, 5, 6, 7])
    store.clear(slots) if how == "zero" else store.poison(slots)
    as_read = store.read(tuple(part.cpu() for part in parts))
    assert torch.equal(as_read.isnan(), store.all_slots().isnan())
    assert as_read.isnan().any() == (how == "nan")
    assert torch.equal(as_read.nan_to_num(), store.all_slots().nan_to_num())


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_the_digest_of_a_block_is_what_the_host_makes_of_its_bytes(kv_dtype):
    parts = [*store_of(kv_dtype, 7).parts, *store_of(kv_dtype, 16).parts]
    blocks = torch.tensor([5, 0, 3])
    digests = digest_blocks([part.to(DEVICE) for part in parts], blocks.to(DEVICE), BLOCK_SIZE)
    assert digests == [
        digest_on_host(part[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE] for part in parts)
        for block in blocks.tolist()
    ]
    assert len(set(digests)) == len(blocks)
    assert all(len(digest) == 32 for digest in digests)


def test_any_bit_and_any_two_bytes_in_each_others_place_change_the_digest():
    torch.manual_seed(0)
    part = torch.randint(1, 255, (BLOCK_SIZE, 2, 5), dtype=torch.uint8)
    flat = part.view(-1)
    digests = {digest_on_host([part])}
    for byte in range(len(flat)):
        for changed in (1, 128):
            flat[byte] ^= changed
            digests.add(digest_on_host([part]))
            flat[byte] ^= changed
    assert len(digests) == 1 + 2 * len(flat)
    digests.add(digest_on_host([part.flip(0)]))
    digests.add(digest_on_host([part, torch.zeros_like(part)]))
    assert len(digests) == 3 + 2 * len(flat)


def test_a_block_keeps_its_digest_on_its_way_through_host_memory():
    shapes = [LayerShape(2, 7, 5), LayerShape(1, 8, 8)]
    pool = TritonPool(
        shapes, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype=torch.float32, device=DEVICE,
        kv_dtypes=["auto", "int4"],
    )  # fmt: skip
    torch.manual_seed(1)
    slots = torch.arange(NUM_SLOTS, device=DEVICE)
    for layer, (heads, key_dim, value_dim) in enumerate(shapes):
        key, value = (torch.randn(NUM_SLOTS, heads, d, device=DEVICE) for d in (key_dim, value_dim))
        pool.write(layer, slots, key, value)
    layers = (0, 1)
    before = pool.digest(layers, 3)
    (block,) = pool.take(layers, [3])
    assert block.digest() == before != pool.digest(layers, 4)
    pool.scrub(layers, [3, 4], "zero")
    assert pool.digest(layers, 3) == pool.digest(layers, 4) != before
    pool.put(layers, [4], [block])
    assert pool.digest(layers, 4) == before
