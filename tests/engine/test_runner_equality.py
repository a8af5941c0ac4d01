"""Our paged engine says what `model.generate` says, whatever the mix and the block numbers."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='needs the extra: pip install "kvrewind[engine]"')

from kvrewind.engine.adopted_model import AdoptedModel  # noqa: E402
from kvrewind.engine.attention.hook import IMPLEMENTATION  # noqa: E402
from kvrewind.engine.config import EngineConfig  # noqa: E402
from kvrewind.engine.inputs import GroupInputs, StepInputs  # noqa: E402
from kvrewind.engine.models import CANARY, SMOLLM2, load_model, whats_missing  # noqa: E402
from kvrewind.engine.sampling import Sample, Sampling  # noqa: E402
from kvrewind.engine.transformers_runner import TransformersRunner  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM  # noqa: E402

torch.set_num_threads(1)  # several test processes may share the cores

BLOCK_SIZE = 16
NUM_BLOCKS = 64
LENGTHS = (1, 15, 16, 17, 31, 32, 33, 100)  # block borders, and one that needs several blocks
NEW_TOKENS = 20  # over at least one more border from each


def tiny_llama():
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
        num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=256,
        initializer_range=0.3, eos_token_id=None, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def tiny_gpt2():
    torch.manual_seed(2)
    config = GPT2Config(
        vocab_size=97, n_embd=48, n_layer=3, n_head=4, n_positions=256,
        initializer_range=0.3, eos_token_id=None, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


MODELS = {"llama": tiny_llama, "gpt2": tiny_gpt2}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param]()


@pytest.fixture(scope="module")
def prompts(model):
    return random_prompts(model.config.vocab_size, LENGTHS)


@pytest.fixture(scope="module")
def expected(model, prompts):
    answers = [generate(model, prompt, NEW_TOKENS) for prompt in prompts]
    assert all(len(set(answer)) > 3 for answer in answers), "a constant answer proves nothing"
    assert len(set(map(tuple, answers))) == len(answers)
    return answers


def random_prompts(vocab_size, lengths):
    numbers = np.random.default_rng(3)
    return [numbers.integers(0, vocab_size, length).tolist() for length in lengths]


def generate(model, prompt, new_tokens):
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


def runner_for(model, attention, **switches):
    config = EngineConfig(num_blocks=NUM_BLOCKS, attention=attention, **switches)
    adopted = AdoptedModel(copy.deepcopy(model), name="tiny", dtype=config.dtype)
    return TransformersRunner(adopted, config)


class Sequence:
    def __init__(self, tokens, table=(), computed=0):
        self.tokens = list(tokens)
        self.prompt = len(tokens)
        self.table = list(table)
        self.computed = computed


class Mix:
    """A throw-away engine: allocates blocks in no order, packs rows in no order."""

    def __init__(self, runner, attention, seed=0):
        self.runner = runner
        self.dense = attention == "reference"
        self.numbers = np.random.default_rng(seed)
        self.free = self.numbers.permutation(NUM_BLOCKS).tolist()
        self.sequences = {}

    def add(self, name, tokens, table=(), computed=0):
        self.sequences[name] = Sequence(tokens, table, computed)

    def inputs(self, names):
        rows = [self.sequences[name] for name in names]
        for row in rows:
            while len(row.table) * BLOCK_SIZE < len(row.tokens):
                row.table.append(self.free.pop())
        tables = np.full((len(rows), max(len(row.table) for row in rows)), -1)
        for i, row in enumerate(rows):
            tables[i, : len(row.table)] = row.table
        spans = [np.arange(row.computed, len(row.tokens)) for row in rows]
        slots = [self.slots(row) for row in rows]
        query_lens = np.asarray([len(span) for span in spans])
        group = GroupInputs(
            block_tables=tables,
            slot_mapping=np.concatenate(
                [slot[span] for slot, span in zip(slots, spans, strict=True)]
            ),
            mask=self.mask(slots, spans) if self.dense else None,
        )
        return StepInputs(
            step=1,
            requests=tuple(names),
            phases=tuple("decode" if row.computed >= row.prompt else "prefill" for row in rows),
            query_lens=query_lens,
            seq_lens=np.asarray([len(row.tokens) for row in rows]),
            tokens=np.concatenate(
                [np.asarray(r.tokens)[s] for r, s in zip(rows, spans, strict=True)]
            ),
            positions=np.concatenate(spans),
            groups=(group,),
            logit_tokens=np.cumsum(query_lens) - 1,
            samples=tuple(
                Sample(name, len(row.tokens), i, Sampling())
                for i, (name, row) in enumerate(zip(names, rows, strict=True))
            ),
            drafts=np.zeros(len(rows), dtype=np.int64),
        )

    @staticmethod
    def slots(row):
        index = np.arange(len(row.tokens))
        return np.asarray(row.table)[index // BLOCK_SIZE] * BLOCK_SIZE + index % BLOCK_SIZE

    @staticmethod
    def mask(slots, spans):
        lines = []
        for slot, span in zip(slots, spans, strict=True):
            for position in span:
                line = np.zeros(NUM_BLOCKS * BLOCK_SIZE, dtype=bool)
                line[slot[: position + 1]] = True
                lines.append(line)
        return np.stack(lines)

    def step(self, names):
        output = self.runner.execute(self.inputs(names))
        for name, token in zip(names, output.tokens, strict=True):
            row = self.sequences[name]
            row.computed = len(row.tokens)
            row.tokens.append(token)
        return output

    def answer(self, name):
        row = self.sequences[name]
        return row.tokens[row.prompt :]

    def run(self, wanted, new_tokens, arrivals_per_step):
        """Admit `wanted` a few at a time, so that prefill and decode rows meet in one step."""
        waiting, running = list(wanted.items()), []
        while waiting or running:
            for name, prompt in waiting[:arrivals_per_step]:
                self.add(name, prompt)
                running.append(name)
            waiting = waiting[arrivals_per_step:]
            self.step(self.numbers.permutation(running).tolist())
            running = [name for name in running if len(self.answer(name)) < new_tokens]
        return [self.answer(name) for name in wanted]


@pytest.mark.parametrize("attention", ["fast", "reference"])
def test_each_prompt_alone_gets_the_answer_of_generate(model, prompts, expected, attention):
    runner = runner_for(model, attention)
    for prompt, answer in zip(prompts, expected, strict=True):
        assert Mix(runner, attention).run({"r0": prompt}, NEW_TOKENS, 1) == [answer]


@pytest.mark.parametrize("arrivals_per_step", [1, 3, 8])
@pytest.mark.parametrize("attention", ["fast", "reference"])
def test_mixed_prompts_get_the_answers_of_generate(
    model, prompts, expected, attention, arrivals_per_step
):
    mix = Mix(runner_for(model, attention), attention, seed=arrivals_per_step)
    wanted = {f"r{i}": prompt for i, prompt in enumerate(prompts)}
    assert mix.run(wanted, NEW_TOKENS, arrivals_per_step) == expected


def test_more_rows_of_one_query_length_than_one_call_takes(model):
    """Equal suffixes upon shared blocks are computed in one call; long prompts one by one."""
    mix = Mix(runner_for(model, "fast"), "fast")
    prompts = random_prompts(model.config.vocab_size, [40] * 4 + [90] * 3 + [5] * 3)
    answers = [generate(model, prompt, 4) for prompt in prompts]
    assert mix.run({f"r{i}": p for i, p in enumerate(prompts)}, 4, 5) == answers


@pytest.mark.parametrize("attention", ["fast", "reference"])
def test_a_prefix_hit_continues_from_the_shared_blocks(model, prompts, expected, attention):
    mix = Mix(runner_for(model, attention), attention)
    owner, answer = prompts[-1], expected[-1]
    mix.add("owner", owner)
    mix.step(["owner"])
    own_suffix = [(token + 1) % model.config.vocab_size for token in owner[80:]]
    mix.add("same", owner, table=mix.sequences["owner"].table[:6], computed=96)
    mix.add("branch", owner[:80] + own_suffix, table=mix.sequences["owner"].table[:5], computed=80)
    for _ in range(NEW_TOKENS):
        mix.step(["branch", "owner", "same"])
    assert mix.answer("same") == answer
    assert mix.answer("owner")[:NEW_TOKENS] == answer
    assert mix.answer("branch") == generate(model, owner[:80] + own_suffix, NEW_TOKENS)
    assert mix.sequences["same"].table[:6] == mix.sequences["owner"].table[:6]


@pytest.mark.parametrize("attention", ["fast", "reference"])
def test_only_the_last_token_is_recomputed_when_all_else_is_cached(model, prompts, attention):
    mix = Mix(runner_for(model, attention), attention)
    prompt = prompts[LENGTHS.index(33)]
    mix.add("owner", prompt)
    mix.add("same", prompt, computed=32)
    mix.step(["owner"])
    mix.sequences["same"].table = list(mix.sequences["owner"].table[:2])
    assert mix.inputs(["same"]).query_lens.tolist() == [1]
    mix.step(["same"])
    assert mix.answer("same") == mix.answer("owner")


@pytest.mark.parametrize("attention", ["fast", "reference"])
def test_first_step_logits_are_those_of_eager_attention(model, prompts, attention):
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    mix = Mix(runner_for(model, attention), attention)
    for i, prompt in enumerate(prompts):
        mix.add(f"r{i}", prompt)
    ours = mix.runner.logits(mix.inputs(list(mix.sequences)))
    with torch.inference_mode():
        theirs = torch.stack([eager(torch.tensor([p])).logits[0, -1] for p in prompts])
    assert theirs.std() > 0.5
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_a_foreign_block_in_the_table_changes_the_answer(model, prompts, expected):
    """The device believes its table: that is what makes a wrong one a leak."""
    mix = Mix(runner_for(model, "fast"), "fast")
    mix.add("victim", prompts[-1])
    mix.add("other", prompts[-2])
    mix.step(["victim", "other"])
    mix.sequences["victim"].table[1] = mix.sequences["other"].table[0]
    for _ in range(NEW_TOKENS - 1):
        mix.step(["victim"])
    assert mix.answer("victim") != expected[-1]


def test_a_mask_that_shows_foreign_slots_changes_the_logits(model, prompts):
    mix = Mix(runner_for(model, "reference"), "reference")
    mix.add("victim", prompts[1])
    mix.add("other", prompts[-1])
    inputs = mix.inputs(["other", "victim"])
    right = mix.runner.logits(inputs)
    inputs.groups[0].mask[:] = inputs.groups[0].mask.any(axis=0)
    wrong = mix.runner.logits(inputs)
    assert (wrong[1] - right[1]).abs().max() > 0.1


def test_a_row_that_sees_nothing_still_gets_a_token(model, prompts):
    mix = Mix(runner_for(model, "reference"), "reference")
    mix.add("blind", prompts[1])
    inputs = mix.inputs(["blind"])
    inputs.groups[0].mask[:] = False
    output = mix.runner.execute(inputs)
    assert output.tokens == (0,)
    assert output.margins == (0.0,)


def test_a_row_that_sees_nothing_spoils_no_other(model, prompts, expected):
    """Its KV is NaN from the second layer on, in slots that all rows' scores pass over."""
    mix = Mix(runner_for(model, "reference"), "reference")
    mix.add("blind", prompts[1])
    inputs = mix.inputs(["blind"])
    inputs.groups[0].mask[:] = False
    mix.runner.execute(inputs)
    assert mix.runner.pool.all_slots(1)[0].isnan().any()
    assert mix.run({"seeing": prompts[-1]}, NEW_TOKENS, 1) == [expected[-1]]


def test_tokens_without_a_slot_are_written_nowhere(model, prompts):
    runner = runner_for(model, "fast")
    mix = Mix(runner, "fast")
    mix.add("r0", prompts[-1])
    inputs = mix.inputs(["r0"])
    kept = inputs.groups[0].slot_mapping[:40].copy()
    inputs.groups[0].slot_mapping[40:] = -1
    runner.execute(inputs)
    written = (runner.pool.all_slots(0)[0] != 0).any(dim=(1, 2)).nonzero().flatten().tolist()
    assert written == sorted(kept.tolist())


def test_margins_and_log_probabilities_describe_the_sampled_token(model, prompts):
    mix = Mix(runner_for(model, "fast"), "fast")
    mix.add("r0", prompts[3])
    inputs = mix.inputs(["r0"])
    logits = mix.runner.logits(inputs)[0]
    output = mix.runner.execute(inputs)
    best, second = logits.sort(descending=True).values[:2]
    assert output.tokens == (logits.argmax().item(),)
    assert output.margins == pytest.approx([(best - second).item()], abs=1e-5)
    assert output.logprobs == pytest.approx([logits.log_softmax(-1).max().item()], abs=1e-5)


def test_bfloat16_runs_through_the_same_code(model, prompts):
    half = copy.deepcopy(model).to(torch.bfloat16)
    with torch.inference_mode():
        theirs = half(torch.tensor([prompts[3]])).logits[0, -1].float()
    runner = runner_for(model, "fast", dtype="bfloat16")
    mix = Mix(runner, "fast")
    mix.add("r0", prompts[3])
    ours = mix.runner.logits(mix.inputs(["r0"]))[0]
    assert runner.pool.all_slots(0)[0].dtype == torch.bfloat16
    assert (ours - theirs).abs().max() < 0.05 * theirs.abs().max()


@pytest.fixture(scope="module", params=[CANARY, SMOLLM2])
def real(request):
    """A real model, prompts, and what `generate` makes of them."""
    if missing := whats_missing(request.param):
        pytest.skip(missing)
    loaded = load_model(request.param, EngineConfig())
    model = loaded._adopted.model
    model.set_attn_implementation("sdpa")
    prompts = random_prompts(model.config.vocab_size, LENGTHS)
    answers = [generate(model, prompt, 8) for prompt in prompts]
    model.set_attn_implementation(IMPLEMENTATION)
    return loaded, prompts, answers


@pytest.mark.parametrize("attention", ["fast", "reference"])
def test_a_real_model_answers_a_mix_as_generate_does(real, attention):
    loaded, prompts, answers = real
    mix = Mix(loaded.runner(EngineConfig(num_blocks=NUM_BLOCKS, attention=attention)), attention)
    assert mix.run({f"r{i}": p for i, p in enumerate(prompts)}, 8, 3) == answers


@pytest.mark.parametrize("attention", ["fast", "reference"])
def test_a_real_model_answers_each_prompt_alone_as_generate_does(real, attention):
    loaded, prompts, answers = real
    for prompt, answer in zip(prompts, answers, strict=True):
        runner = loaded.runner(EngineConfig(num_blocks=NUM_BLOCKS, attention=attention))
        assert Mix(runner, attention).run({"alone": prompt}, 8, 1) == [answer]
