"""Both attention paths against attention written out row by row, on any table and any length."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')

from kvrewind.engine.attention.fast import FastAttention  # noqa: E402
from kvrewind.engine.attention.pool import KVPool, LayerShape  # noqa: E402
from kvrewind.engine.attention.reference import QUERIES_AT_ONCE, ReferenceAttention  # noqa: E402
from kvrewind.engine.inputs import GroupInputs, StepInputs  # noqa: E402

HEADS, KV_HEADS, DIM, VALUE_DIM = 6, 2, 8, 4
SCALING = 0.4


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


def step_of(query_lens, seq_lens, tables, mask=None):
    width = max(len(table) for table in tables)
    total = sum(query_lens)
    return StepInputs(
        step=1,
        requests=tuple(f"r{i}" for i in range(len(tables))),
        phases=("prefill",) * len(tables),
        query_lens=np.asarray(query_lens),
        seq_lens=np.asarray(seq_lens),
        tokens=np.zeros(total, dtype=np.int64),
        positions=np.zeros(total, dtype=np.int64),
        groups=(
            GroupInputs(
                block_tables=np.asarray(
                    [[*table, *[-1] * (width - len(table))] for table in tables]
                ),
                slot_mapping=np.full(total, -1),
                mask=mask,
            ),
        ),
        logit_tokens=np.cumsum(query_lens) - 1,
        samples=(),
        drafts=np.zeros(len(tables), dtype=np.int64),
    )


def visible_slots(inputs, block_size):
    """For each packed token the slots it may read, by tables and lengths alone."""
    for row, table in enumerate(inputs.groups[0].block_tables.tolist()):
        first = int(inputs.seq_lens[row] - inputs.query_lens[row])
        for query in range(int(inputs.query_lens[row])):
            yield [
                table[k // block_size] * block_size + k % block_size
                for k in range(first + query + 1)
                if k // block_size < len(table) and table[k // block_size] >= 0
            ]


def written_out(pool, query, slots_per_query):
    """softmax(q k^T * scale) v with loops over queries and heads, layer 1."""
    out = torch.empty(len(query), HEADS, VALUE_DIM)
    keys, values = pool.all_slots(1)
    for t, slots in enumerate(slots_per_query):
        for head in range(HEADS):
            kv_head = head // (HEADS // KV_HEADS)
            scores = [SCALING * (query[t, head] @ keys[s, kv_head]).item() for s in slots]
            weights = [math.exp(score - max(scores)) for score in scores]
            out[t, head] = (torch.tensor(weights) / sum(weights)) @ values[slots, kv_head]
    return out


def queries(inputs):
    torch.manual_seed(1)
    return torch.randn(len(inputs.tokens), HEADS, DIM)


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
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_fast_path_reads_what_table_and_length_say(case):
    pool = filled_pool()
    inputs = step_of(*CASES[case])
    query = queries(inputs)
    expected = written_out(pool, query, visible_slots(inputs, pool.block_size))
    actual = FastAttention(inputs, pool).attend(1, query, SCALING)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_the_reference_path_reads_what_the_mask_shows(case):
    pool = filled_pool()
    plain = step_of(*CASES[case])
    slots = list(visible_slots(plain, pool.block_size))
    mask = np.zeros((len(slots), pool.num_slots), dtype=bool)
    for line, own in zip(mask, slots, strict=True):
        line[own] = True
    mask[0, 5] = mask[-1, 150] = True  # not theirs by any table: the mask alone decides
    inputs = step_of(*CASES[case], mask=mask)
    query = queries(inputs)
    expected = written_out(pool, query, [np.flatnonzero(line).tolist() for line in mask])
    actual = ReferenceAttention(inputs, pool).attend(1, query, SCALING)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_the_reference_path_computes_many_queries_in_parts_without_a_difference():
    pool = filled_pool()
    length = QUERIES_AT_ONCE + 5
    rows = np.random.default_rng(2).random((length, pool.num_slots)) < 0.1
    inputs = step_of([length], [length], [[*range(34)]], mask=rows)
    query = queries(inputs)
    expected = written_out(pool, query, [np.flatnonzero(line).tolist() for line in rows])
    actual = ReferenceAttention(inputs, pool).attend(1, query, SCALING)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def everything(pool):
    """Keys and values of both layers."""
    return [*pool.all_slots(0), *pool.all_slots(1)]


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
