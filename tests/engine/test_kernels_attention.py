"""The attention kernels against the reference path: any tables, lengths, heads, types."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')
pytest.importorskip("triton", reason='needs the extra: pip install "kvrewind[engine]"')

from kernel_device import DEVICE, INTERPRETED  # noqa: E402
from kvrewind.engine.attention.kernels.decode import SPLIT  # noqa: E402
from kvrewind.engine.attention.kernels.probe import attention_by_owner  # noqa: E402
from kvrewind.engine.attention.pool import KVPool, LayerShape  # noqa: E402
from kvrewind.engine.attention.reference import ReferenceAttention  # noqa: E402
from kvrewind.engine.attention.scores import Scoring  # noqa: E402
from kvrewind.engine.attention.triton_path import TritonAttention, decode_rows  # noqa: E402
from kvrewind.engine.attention.triton_pool import TritonPool  # noqa: E402
from kvrewind.engine.inputs import GroupInputs, StepInputs  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # numpy's, of infinities

LAYER = 1
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}


class Case:
    """A pool full of numbers, a step over it, and what the reference path makes of them."""

    def __init__(
        self, query_lens, seq_lens, tables, *, heads=4, kv_heads=2, dim=16, value_dim=16,
        block_size=4, window=None, softcap=None, sinks=False, dtype=torch.float32, kv_dtype="auto",
    ):  # fmt: skip
        torch.manual_seed(sum(seq_lens))
        shape = LayerShape(kv_heads, dim, value_dim)
        num_blocks = max(block for table in tables for block in table) + 2
        self.pool = TritonPool(
            [shape] * 2, num_blocks=num_blocks, block_size=block_size, dtype=dtype, device=DEVICE,
            kv_dtypes=[kv_dtype] * 2,
        )  # fmt: skip
        slots = torch.arange(self.pool.num_slots)
        key, value = (torch.randn(len(slots), kv_heads, d, dtype=dtype) for d in (dim, value_dim))
        KVPool.write(self.pool, LAYER, slots.to(DEVICE), key.to(DEVICE), value.to(DEVICE))
        self.inputs = step_of(query_lens, seq_lens, tables, window)
        in_memory = torch.randn(heads, len(self.inputs.tokens), dim, dtype=dtype)
        self.query = in_memory.transpose(0, 1).to(DEVICE)  # as models leave it
        drawn = torch.linspace(-1.0, 2.0, heads, dtype=dtype, device=DEVICE) if sinks else None
        self.scoring = Scoring(dim**-0.5, softcap, drawn)

    def attended(self, **switches):
        """[T, heads, value_dim] by the kernels."""
        (group,) = self.inputs.groups
        path = TritonAttention(self.inputs, group, self.pool, **switches)
        return path.attend(LAYER, self.query, self.scoring).float().cpu()

    def expected(self):
        """The same by the reference path, on the host and in float32, from the numbers stored."""
        keys, values = (tensor.float().cpu() for tensor in self.pool.all_slots(LAYER))
        exact = KVPool(
            [LayerShape(*keys.shape[1:], values.shape[-1])], num_blocks=self.num_blocks,
            block_size=self.pool.block_size, dtype=torch.float32, device=torch.device("cpu"),
        )  # fmt: skip
        exact.write(0, torch.arange(len(keys)), keys, values)
        mask = visible(self.inputs, self.pool)
        (group,) = self.inputs.groups
        path = ReferenceAttention(self.inputs, replace(group, mask=mask), exact)
        sinks = self.scoring.sinks
        scoring = self.scoring._replace(sinks=None if sinks is None else sinks.cpu())
        return path.attend(0, self.query.float().cpu(), scoring)

    def poison(self, slots, which=(0, 1)):
        """NaN into keys (0) and values (1)."""
        for number in which:
            parts = self.pool.stored(LAYER)[number]
            parts[-1][slots] = torch.nan  # the vectors, or their scales

    @property
    def num_blocks(self):
        return self.pool.num_slots // self.pool.block_size

    def assert_equal(self, actual, expected):
        sees = torch.from_numpy(visible(self.inputs, self.pool).any(axis=1))
        pads = torch.from_numpy(np.repeat(self.inputs.seq_lens == 0, self.inputs.query_lens))
        assert not actual[pads].any()
        tolerance = TOLERANCE[self.query.dtype]
        torch.testing.assert_close(actual[sees], expected[sees], atol=tolerance, rtol=tolerance)


def step_of(query_lens, seq_lens, tables, window):
    """A sequence length of 0 makes a row a pad."""
    width = max(len(table) for table in tables)
    total = sum(query_lens)
    return StepInputs(
        step=1,
        requests=tuple(f"r{i}" if seq_len else None for i, seq_len in enumerate(seq_lens)),
        phases=("prefill",) * len(tables),
        query_lens=np.asarray(query_lens),
        seq_lens=np.asarray(seq_lens),
        tokens=np.zeros(total, dtype=np.int64),
        positions=np.zeros(total, dtype=np.int64),
        groups=(
            GroupInputs(
                block_tables=np.asarray([[*t, *[-1] * (width - len(t))] for t in tables]),
                slot_mapping=np.full(total, -1),
                window=window,
            ),
        ),
        logit_tokens=np.cumsum(query_lens) - 1,
        samples=(),
        drafts=np.zeros(len(tables), dtype=np.int64),
    )


def visible(inputs, pool):
    """[T, num_slots] what table, length, position and window show."""
    (group,) = inputs.groups
    mask = np.zeros((len(inputs.tokens), pool.num_slots), dtype=bool)
    for token, row in enumerate(inputs.row_of_token.tolist()):
        if not inputs.seq_lens[row]:
            continue
        last = int(inputs.seq_lens[row] - inputs.row_starts[row + 1] + token)
        first = 0 if group.window is None else max(last - group.window + 1, 0)
        table = group.block_tables[row]
        for key in range(first, last + 1):
            index = key // pool.block_size
            if index < len(table) and table[index] >= 0:
                mask[token, table[index] * pool.block_size + key % pool.block_size] = True
    return mask


def random_rows(seed, block_size=4):
    """Decode rows, draft rows, chunks of prompts and pads over shuffled blocks, some of them shared
    between rows, some tables with holes or too short."""
    rng = np.random.default_rng(seed)
    query_lens, seq_lens, tables = [], [], []
    blocks = rng.permutation(24)
    for _ in range(3):
        query_len = int(rng.choice([1, 1, 3, 11, 19]))
        seq_len = query_len + int(rng.integers(0, 50))
        table = rng.choice(blocks, -(-seq_len // block_size), replace=False)
        table[rng.random(len(table)) < 0.1] = -1
        query_lens.append(query_len)
        seq_lens.append(seq_len)
        tables.append(table[: len(table) - int(rng.random() < 0.1)].tolist())
    place = int(rng.integers(0, 4))
    query_lens.insert(place, int(rng.integers(1, 12)))
    seq_lens.insert(place, 0)
    tables.insert(place, [])
    return query_lens, seq_lens, tables


SWITCHES = {
    "plain": {},
    "one KV head": {"heads": 3, "kv_heads": 1, "softcap": 0.7},
    "as many KV heads": {"heads": 2, "kv_heads": 2, "window": 9, "sinks": True},
    "odd dims": {"dim": 10, "value_dim": 6, "block_size": 3, "window": 1},
    "window, soft cap and sinks": {"window": 17, "softcap": 0.7, "sinks": True},
    "float16": {"dtype": torch.float16, "dim": 32, "block_size": 16, "sinks": True},
    "bfloat16": {"dtype": torch.bfloat16, "window": 30, "softcap": 2.0},
    "int8": {"kv_dtype": "int8", "window": 12},
    "int8 under bfloat16": {"kv_dtype": "int8", "dtype": torch.bfloat16},
    "int4": {"kv_dtype": "int4", "dim": 18, "value_dim": 7, "sinks": True},
    "float16 under float32": {"kv_dtype": "float16", "softcap": 0.7},
}


SEEDS = range(1 if INTERPRETED else 25)
"""Interpretation takes a second for what a GPU does in no time."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("switches", SWITCHES)
def test_the_kernels_compute_what_the_reference_path_does(switches, seed):
    options = SWITCHES[switches]
    numbered = seed * len(SWITCHES) + [*SWITCHES].index(switches)
    case = Case(*random_rows(numbered, options.get("block_size", 4)), **options)
    case.assert_equal(case.attended(nan_scrubbed=bool(seed % 2)), case.expected())


def test_long_texts_are_joined_from_their_splits():
    """A row ends at a border of splits, one behind it, one has its first split behind a window."""
    long = [*range(40)]
    case = Case(
        [1, 1, 2, 12],
        [SPLIT, SPLIT + 1, 2 * SPLIT + 40, 2 * SPLIT + 70],
        [long[:16], long[5:22], long[:35], long[3:]],
        heads=2, kv_heads=1, block_size=16, window=300, sinks=True,
    )  # fmt: skip
    case.assert_equal(case.attended(), case.expected())


def test_a_rows_bits_do_not_depend_on_its_neighbours():
    table = [*range(3, 22)]
    alone = Case([1], [290], [table], block_size=16)
    mixed = Case(
        [9, 1, 1], [9, 290, 700], [[24], table, [*range(44)]], block_size=16
    )  # a table more than twice as wide
    for ours, theirs in zip(alone.pool.stored(LAYER), mixed.pool.stored(LAYER), strict=True):
        theirs[0][: 22 * 16] = ours[0][: 22 * 16]
    mixed.query[9] = alone.query[0]
    assert torch.equal(alone.attended()[0], mixed.attended()[9])


@pytest.mark.parametrize("window", [None, 6])
def test_exact_arithmetic_makes_a_prompts_token_the_same_bits_as_a_decode_row(window):
    tables = [[7, 2, 9, 4, 1]]
    prompt = Case([18], [18], tables, window=window, heads=2, kv_heads=1)
    at_once = prompt.attended(exact=True)
    prompt.assert_equal(at_once, prompt.expected())
    for token in (0, 4, 17):
        one = Case([1], [token + 1], tables, window=window, heads=2, kv_heads=1)
        one.pool, one.query = prompt.pool, prompt.query[token : token + 1]
        assert torch.equal(one.attended()[0], at_once[token])


@pytest.mark.parametrize("nan_scrubbed", [False, True])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_nan_in_slots_that_no_query_of_a_row_sees_does_not_matter(kv_dtype, nan_scrubbed):
    case = Case(
        [1, 10, 3], [6, 13, 20], [[5, 2], [1, 9, 4, 7], [-1, -1, 6, 8, 3]],
        window=8, kv_dtype=kv_dtype,
    )  # fmt: skip
    before = case.attended(nan_scrubbed=nan_scrubbed)
    unseen = ~visible(case.inputs, case.pool).any(axis=0)
    assert 0 < unseen.sum() < len(unseen)
    case.poison(torch.from_numpy(unseen).to(DEVICE))
    assert torch.equal(case.attended(nan_scrubbed=nan_scrubbed), before)


@pytest.mark.parametrize("which", [[0], [1], [0, 1]], ids=["keys", "values", "both"])
def test_nan_poisons_exactly_the_queries_that_see_it(which):
    case = Case([12, 1, 1], [15, 9, 3], [[7, 3, 1, 2], [7, 5, 6], [8]], window=5)
    stale = 3 * 4 + 2  # key 6 of the first row
    case.poison([stale], which)
    sees = torch.from_numpy(visible(case.inputs, case.pool)[:, stale])
    assert 0 < sees.sum() < 12
    poisoned = case.attended(nan_scrubbed=True).isnan()
    assert torch.equal(poisoned.all(dim=2).all(dim=1), sees)
    assert torch.equal(poisoned.any(dim=2).any(dim=1), sees)


def test_a_hole_is_never_read():
    case = Case([1, 11], [14, 13], [[-1, -1, 6, 9], [-1, 12, 11, 13]])
    before = case.attended()
    others = torch.ones(case.pool.num_slots, dtype=torch.bool)
    for block in (6, 9, 12, 11, 13):
        others[block * 4 : block * 4 + 4] = False
    for number in (0, 1):
        case.pool.stored(LAYER)[number][0][others.to(DEVICE)] += 100
    torch.testing.assert_close(case.attended(), before, atol=0, rtol=0, equal_nan=True)
    case.assert_equal(before, case.expected())


@pytest.mark.parametrize("sinks", [False, True])
def test_the_probe_sums_up_the_probability_on_each_owners_slots(sinks):
    """Two of four slots of a shared block are somebody else's; a slot may be nobody's."""
    case = Case(
        [1, 2, 1], [9, 30, 0], [[7, 3, 5], [7, *range(10, 17)], []], sinks=sinks, window=25,
        softcap=3.0,
    )  # fmt: skip
    owners = torch.full((case.pool.num_slots,), -1, dtype=torch.int32)
    owners[:32], owners[32:] = 0, 1
    owners[30:32] = 2
    owners[44] = -1
    (group,) = case.inputs.groups
    rows = decode_rows(case.inputs, np.ones(3, dtype=bool), DEVICE)
    tables = torch.from_numpy(group.block_tables.astype(np.int32)).to(DEVICE)
    keys, _ = case.pool.stored(LAYER)
    mass = attention_by_owner(
        case.query, keys, tables, rows, owners.to(DEVICE), 3, case.scoring,
        block_size=4, window=group.window,
    ).cpu()  # fmt: skip
    for owner in range(3):  # values of one where the slot is theirs give the sum of its weights
        of_owner = (owners == owner).float()[:, None, None].expand(-1, 2, 16)
        case.pool.stored(LAYER)[1][0].copy_(of_owner)
        expected = case.expected()[:, :, 0]
        torch.testing.assert_close(mass[:, :, owner], expected, atol=1e-5, rtol=1e-5)
    assert (mass.sum(dim=2)[0] < 1).all() == sinks
    assert not mass[3].any()
