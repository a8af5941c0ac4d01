"""Both attention paths against attention written out row by row, on any table and any length."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')

from kvrewind.engine.attention.fast import FastAttention  # noqa: E402
from kvrewind.engine.attention.pool import KVPool, LayerShape  # noqa: E402
from kvrewind.engine.attention.reference import ReferenceAttention  # noqa: E402
from kvrewind.engine.attention.scores import QUERIES_AT_ONCE, Scoring  # noqa: E402
from kvrewind.engine.inputs import GroupInputs, StepInputs  # noqa: E402

torch.set_num_threads(1)

HEADS, KV_HEADS, DIM, VALUE_DIM = 6, 2, 8, 4
PLAIN = Scoring(0.4)
SCORINGS = {
    "plain": PLAIN,
    "softcap": Scoring(0.4, softcap=0.7),
    "sinks": Scoring(0.4, sinks=torch.linspace(-1.0, 2.0, HEADS)),
    "softcap and sinks": Scoring(0.4, 0.7, torch.linspace(2.0, -1.0, HEADS)),
}
MASK_KEYS = ("pool", "concatenated", "per_row")


def filled_pool(block_size=4, num_blocks=40):
    pool = KVPool(
        [LayerShape(KV_HEADS, DIM, VALUE_DIM)] * 2,
        num_blocks=num_blocks,
        block_size=block_size,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    torch.manual_seed(0)
    for tensor in everything(pool):
        tensor.normal_()
    return pool


def everything(pool):
    """Keys and values of both layers."""
    return [*pool.all_slots(0), *pool.all_slots(1)]


def step_of(query_lens, seq_lens, tables, window=None, mask=None, mask_keys="pool"):
    """A sequence length of 0 makes a row a pad."""
    width = max(len(table) for table in tables)
    total = sum(query_lens)
    tables = np.asarray([[*table, *[-1] * (width - len(table))] for table in tables])
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
                block_tables=tables, slot_mapping=np.full(total, -1), window=window, mask=mask
            ),
        ),
        logit_tokens=np.cumsum(query_lens) - 1,
        samples=(),
        drafts=np.zeros(len(tables), dtype=np.int64),
        mask_keys=mask_keys,
    )


def visible_keys(inputs, block_size):
    """For each of the step's tokens (row, {key index: slot}) of what it may read."""
    (group,) = inputs.groups
    for row, table in enumerate(group.block_tables.tolist()):
        first = int(inputs.seq_lens[row] - inputs.query_lens[row])
        for query in range(int(inputs.query_lens[row])):
            last = first + query if inputs.seq_lens[row] else -1
            yield (
                row,
                {
                    k: table[k // block_size] * block_size + k % block_size
                    for k in range(last + 1)
                    if k // block_size < len(table)
                    and table[k // block_size] >= 0
                    and (group.window is None or last - k < group.window)
                },
            )


def visible_slots(inputs, block_size):
    return [[*slots.values()] for _, slots in visible_keys(inputs, block_size)]


def written_out(pool, query, slots_per_query, scoring=PLAIN):
    """softmax(q k^T * scale) v with loops over queries and heads, layer 1."""
    out = torch.zeros(len(query), HEADS, VALUE_DIM)
    keys, values = pool.all_slots(1)
    for t, slots in enumerate(slots_per_query):
        for head in range(HEADS if slots else 0):
            kv_head = head // (HEADS // KV_HEADS)
            scores = (keys[slots, kv_head] @ query[t, head] * scoring.scaling).tolist()
            if scoring.softcap is not None:
                scores = [scoring.softcap * math.tanh(s / scoring.softcap) for s in scores]
            weights = torch.tensor([math.exp(score) for score in scores])
            total = weights.sum()
            if scoring.sinks is not None:
                total += math.exp(scoring.sinks[head])
            out[t, head] = weights / total @ values[slots, kv_head]
    return out


def queries(inputs):
    torch.manual_seed(1)
    return torch.randn(len(inputs.tokens), HEADS, DIM)


def attended(path, inputs, pool, query, scoring=PLAIN):
    return path(inputs, inputs.groups[0], pool).attend(1, query, scoring)


def masked(inputs, pool, mask_keys):
    """The same step with an explicit mask that shows what its tables and lengths say."""
    seq_lens = inputs.seq_lens
    width = {"pool": pool.num_slots, "concatenated": seq_lens.sum(), "per_row": seq_lens.max()}
    mask = np.zeros((len(inputs.tokens), width[mask_keys]), dtype=bool)
    for line, (row, slots) in zip(mask, visible_keys(inputs, pool.block_size), strict=True):
        if mask_keys == "pool":
            line[[*slots.values()]] = True
        else:
            before = seq_lens[:row].sum() if mask_keys == "concatenated" else 0
            line[[before + k for k in slots]] = True
    return with_mask(inputs, mask, mask_keys)


def with_mask(inputs, mask, mask_keys="pool"):
    (group,) = inputs.groups
    return replace(inputs, groups=(replace(group, mask=mask),), mask_keys=mask_keys)


CASES = {
    "one decode row": ([1], [9], [[7, 3, 11]]),
    "first token of all": ([1], [1], [[5]]),
    "a prompt from its beginning": ([10], [10], [[7, 3, 11]]),
    "a prompt after a prefix hit": ([3], [11], [[7, 3, 11]]),
    "decode rows of unlike lengths": (
        [1, 1, 1, 1], [3, 17, 4, 30], [[1], [*range(2, 7)], [8], [*range(20, 28)]],
    ),
    "rows that share blocks": ([1, 1, 4], [9, 10, 12], [[7, 3, 11], [7, 3, 12], [7, 3, 13]]),
    "prompts of one length after hits": ([2, 2, 2], [6, 7, 8], [[4, 5], [4, 6], [9, 10]]),
    "prefill between decode rows": ([1, 5, 1], [8, 5, 6], [[1, 2], [30, 29], [4, 0]]),
    "a hole in a table": ([1, 1], [10, 10], [[7, -1, 11], [1, 2, 3]]),
    "a hole at the front": ([3], [10], [[-1, 6, 11]]),
    "a length beyond the table": ([1], [11], [[7, 3]]),
    "a long prompt that is computed alone": ([70, 1], [70, 5], [[*range(10, 28)], [2, 3]]),
    "pads between the rows": ([2, 1, 5, 1], [0, 6, 5, 0], [[], [30, 29], [4, 0], []]),
    "pads behind a row": ([1, 1, 1], [9, 0, 0], [[7, 3, 11], [], []]),
}  # fmt: skip


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize("case", CASES)
def test_the_fast_path_reads_what_table_length_and_window_say(case, window, scoring):
    pool, scoring = filled_pool(), SCORINGS[scoring]
    inputs = step_of(*CASES[case], window=window)
    query = queries(inputs)
    expected = written_out(pool, query, visible_slots(inputs, pool.block_size), scoring)
    actual = attended(FastAttention, inputs, pool, query, scoring)
    seen = torch.tensor([bool(slots) for slots in visible_slots(inputs, pool.block_size)])
    seen |= torch.from_numpy(np.repeat(inputs.seq_lens == 0, inputs.query_lens))
    torch.testing.assert_close(actual[seen], expected[seen], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mask_keys", MASK_KEYS)
@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("case", CASES)
def test_the_reference_path_reads_what_the_mask_shows(case, scoring, mask_keys):
    pool, scoring = filled_pool(), SCORINGS[scoring]
    inputs = masked(step_of(*CASES[case]), pool, mask_keys)
    query = queries(inputs)
    expected = written_out(pool, query, visible_slots(inputs, pool.block_size), scoring)
    actual = attended(ReferenceAttention, inputs, pool, query, scoring)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_over_the_pool_the_mask_alone_decides():
    pool = filled_pool()
    plain = step_of([1, 5, 1], [8, 5, 6], [[1, 2], [30, 29], [4, 0]])
    inputs = masked(plain, pool, "pool")
    mask = inputs.groups[0].mask
    mask[0, 5] = mask[-1, 150] = True  # not theirs by any table
    query = queries(inputs)
    expected = written_out(pool, query, [np.flatnonzero(line).tolist() for line in mask])
    actual = attended(ReferenceAttention, inputs, pool, query)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    assert not torch.equal(actual, attended(FastAttention, plain, pool, query))


def test_over_all_rows_keys_a_mask_can_show_one_row_anothers():
    pool = filled_pool()
    inputs = masked(step_of([1, 1], [6, 3], [[7, 3], [11]]), pool, "concatenated")
    inputs.groups[0].mask[1, 5] = True  # the last key of the row before
    query = queries(inputs)
    slots = visible_slots(inputs, pool.block_size)
    expected = written_out(pool, query, [slots[0], [*slots[1], slots[0][5]]])
    actual = attended(ReferenceAttention, inputs, pool, query)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_in_own_keys_a_mask_can_show_what_lies_behind_the_rows_end():
    pool = filled_pool()
    inputs = masked(step_of([1, 1], [8, 3], [[7, 3], [11]]), pool, "per_row")
    inputs.groups[0].mask[1, 3:] = True  # one slot more of its block, then nothing is there
    query = queries(inputs)
    slots = visible_slots(inputs, pool.block_size)
    expected = written_out(pool, query, [slots[0], [*slots[1], 47]])
    actual = attended(ReferenceAttention, inputs, pool, query)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_many_queries_are_computed_in_parts_without_a_difference():
    pool = filled_pool()
    length = QUERIES_AT_ONCE + 5
    rows = np.random.default_rng(2).random((length, pool.num_slots)) < 0.1
    inputs = step_of([length], [length], [[*range(34)]], mask=rows)
    query = queries(inputs)
    expected = written_out(pool, query, [np.flatnonzero(line).tolist() for line in rows])
    actual = attended(ReferenceAttention, inputs, pool, query)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def paths(inputs, pool):
    """(path, step) of every way to compute what tables and lengths say where slots hold NaN."""
    yield partial(FastAttention, nan_scrubbed=True), inputs
    for mask_keys in MASK_KEYS:
        yield ReferenceAttention, masked(inputs, pool, mask_keys)


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("case", CASES)
def test_a_scrubbed_slot_that_nobody_sees_poisons_nobody(case, window, scoring):
    pool, scoring = filled_pool(), SCORINGS[scoring]
    inputs = step_of(*CASES[case], window=window)
    query = queries(inputs)
    slots = visible_slots(inputs, pool.block_size)
    expected = written_out(pool, query, slots, scoring)
    unseen = sorted(set(range(pool.num_slots)) - {s for of_query in slots for s in of_query})
    for tensor in everything(pool):
        tensor[unseen] = torch.nan
    lively = [bool(of_query) for of_query in slots]
    for path, step in paths(inputs, pool):
        actual = attended(path, step, pool, query, scoring)
        torch.testing.assert_close(actual[lively], expected[lively], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("stale", ["keys", "values"])
def test_a_scrubbed_slot_poisons_exactly_the_queries_that_see_it(stale):
    pool = filled_pool()
    inputs = step_of([4, 1, 1], [7, 9, 3], [[7, 3], [7, 5, 6], [8]], window=4)
    query = queries(inputs)
    slots = visible_slots(inputs, pool.block_size)
    pool.all_slots(1)[stale == "values"][7 * 4 + 2] = torch.nan  # key 2 of the first two rows
    sees = [7 * 4 + 2 in of_query for of_query in slots]
    assert sees == [True, True, True, False, False, False]
    for path, step in paths(inputs, pool):
        poisoned = attended(path, step, pool, query).isnan()
        assert poisoned.all(dim=(1, 2)).tolist() == poisoned.any(dim=(1, 2)).tolist() == sees


def test_a_hole_is_never_read():
    """Behind a window tables have holes; whatever a hole might be taken for changes nothing."""
    pool = filled_pool()
    inputs = step_of([1, 2], [14, 13], [[-1, -1, 6, 9], [-1, -1, 12, 13]], window=6)
    query = queries(inputs)
    for path, step in (*paths(inputs, pool), (FastAttention, inputs)):
        before = attended(path, step, pool, query)
        for tensor in everything(pool):
            for block in set(range(40)) - {6, 9, 12, 13}:
                tensor[block * 4 : block * 4 + 4] += 100
        assert torch.equal(before, attended(path, step, pool, query))


def test_a_write_changes_its_own_slots_and_layer_only():
    pool = filled_pool()
    before = [tensor.clone() for tensor in everything(pool)]
    key, value = torch.ones(2, KV_HEADS, DIM), torch.full((2, KV_HEADS, VALUE_DIM), 2.0)
    pool.write(1, torch.tensor([13, 6]), key, value)
    changed = [
        (now != then).any(dim=(1, 2)).nonzero().flatten().tolist()
        for now, then in zip(everything(pool), before, strict=True)
    ]
    assert changed == [[], [], [6, 13], [6, 13]]
