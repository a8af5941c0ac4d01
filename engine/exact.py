"""Exact mode: a request's logits are the same, bit for bit, alone and in any mix.

The model's own code runs as it is; while it does, what it calls of torch is replaced where the
result for one token could depend on the tokens beside it:

    a step     one line of tokens, padded to a multiple of 16, whatever the layout
    products   `row_tiles.RowTiles`: calls of sizes that were tried to agree
    attention  `attention.exact.ExactAttention`: key tiles from the request's own first token on
    silu, ...  in whole vectors: the last numbers of an array would go through other code

All else a model may do must be known to be invariant: it moves numbers, it rounds each result
correctly and by itself (IEEE 754), or it reduces one token's own row. A model that does anything
else is refused when it is loaded, and so is a machine on which a trial comes out with other bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

from .attention import trial
from .attention.exact import ExactAttention, ScoreTiles
from .attention.hook import STEP_ARGUMENT, LayerCall
from .attention.pool import KVPool
from .attention.step import AttentionPath, PagedStep
from .inputs import IntArray, StepInputs
from .known_operations import Census
from .row_tiles import NotExact, RowTiles

if TYPE_CHECKING:
    from .adopted_model import AdoptedModel

LINE = 16
"""Tokens of a step, and rows of logits, are padded to a multiple of this."""

WHOLE_VECTORS = 64
"""Numbers; a multiple of what any CPU's vector loop takes at once."""

ONE_THREAD = 2**15
"""Numbers up to which torch gives an element-wise operation to one thread. Where it is cut between
threads, a part's last numbers go through other code."""


class ExactModel:
    """A model that was adopted, computed batch-invariantly.

    Raises `NotExact` if its code or this machine doesn't allow it.
    """

    def __init__(self, adopted: AdoptedModel) -> None:
        if adopted.device.type != "cpu":
            raise NotExact(
                f"exact: not on {adopted.device} yet; take --device cpu, or leave exact off"
            )
        self._adopted = adopted
        self._arithmetic = _Arithmetic()
        self._score_tiles = ScoreTiles()
        with torch.inference_mode():
            _refuse_unknown_operations(self, self._arithmetic, adopted.card.name)
            _refuse_other_bits(self, adopted)

    def path(self, *, nan_scrubbed: bool = False) -> AttentionPath:
        """How attention is planned; see `ExactAttention`."""
        return partial(ExactAttention, tiles=self._score_tiles, nan_scrubbed=nan_scrubbed)

    def logits(self, inputs: StepInputs, step: LayerCall) -> Tensor:
        """[S, vocab] float32 logits of `inputs.logit_tokens`, as `AdoptedModel.logits`."""
        wanted, index = np.unique(inputs.logit_tokens, return_inverse=True)
        with self._adopted.packed_weights.used(), self._arithmetic:
            output = self._adopted.model(
                input_ids=_line(inputs.tokens)[None],
                position_ids=_line(inputs.positions)[None],
                use_cache=False,
                logits_to_keep=_line(wanted),
                **{STEP_ARGUMENT: _Unpadded(step, len(inputs.tokens), self._arithmetic)},
            )
        logits = output.logits[0, : len(wanted)].float()
        return logits if len(index) == len(wanted) else logits[torch.from_numpy(index)]


def _line(numbers: IntArray) -> Tensor:
    return torch.from_numpy(np.pad(numbers, (0, -len(numbers) % LINE)))


class _Unpadded:
    """Implements `hook.LayerCall`: keeps a line's pads from the step, where nothing is replaced."""

    def __init__(self, step: LayerCall, tokens: int, arithmetic: _Arithmetic) -> None:
        self._step = step
        self._tokens = tokens
        self._arithmetic = arithmetic

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        extras: dict[str, Any],
    ) -> Tensor:
        with self._arithmetic.paused():
            missing = query.shape[2] - self._tokens
            if not missing:
                return self._step(module, query, key, value, scaling, extras)
            query, key, value = (states[:, :, : self._tokens] for states in (query, key, value))
            out = self._step(module, query, key, value, scaling, extras)
            return pad(out, (0, 0, 0, 0, 0, missing))


class _Arithmetic(TorchFunctionMode):
    """Replaces what is not batch-invariant, for as long as it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.replacing = False
        self._replaced = _replacements(RowTiles())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While it is entered: code of ours, which needs no replacement."""
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        replacement = self._replaced.get(func)
        if replacement is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        self.replacing = True
        try:
            return replacement(*args, **kwargs or {})
        finally:
            self.replacing = False


def _replacements(tiles: RowTiles) -> dict[Callable[..., Any], Callable[..., Any]]:
    def addmm(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return tiles.linear(x, weight.mT, bias)

    def grouped(x: Tensor, weights: Tensor, *, offs: Tensor, **absent: None) -> Tensor:
        return tiles.grouped(x, weights, offs.tolist())

    functions = torch.nn.functional
    by_element: tuple[Callable[..., Tensor], ...] = (
        functions.silu, functions.gelu, torch.sigmoid, Tensor.sigmoid, torch.tanh, Tensor.tanh,
        torch.erf, Tensor.erf, torch.exp, Tensor.exp, torch.cos, Tensor.cos, torch.sin, Tensor.sin,
    )  # fmt: skip
    return {
        functions.linear: tiles.linear,
        torch.ops.mkldnn._linear_pointwise: tiles.packed,
        torch.addmm: addmm,
        torch._grouped_mm: grouped,  # pyright: ignore[reportPrivateImportUsage] -- none other sees it
    } | {function: partial(_in_whole_vectors, function) for function in by_element}


def _in_whole_vectors(function: Callable[..., Tensor], x: Tensor, **switches: Any) -> Tensor:
    """`function` of each number of x by itself, so that none is at the end of an array."""
    size = x.numel()
    undivided = size <= ONE_THREAD or torch.get_num_threads() == 1
    if undivided and size % WHOLE_VECTORS == 0 and x.is_contiguous():
        return function(x, **switches)
    padded = pad(x.reshape(-1), (0, -size % WHOLE_VECTORS))
    parts = [function(part, **switches) for part in padded.split(ONE_THREAD)]
    return torch.cat(parts)[:size].view(x.shape)


def _refuse_unknown_operations(model: ExactModel, arithmetic: _Arithmetic, name: str) -> None:
    prompts = trial.prompts(model._adopted.card.vocab_size)
    census = Census(lambda: arithmetic.replacing)
    with census:
        model.logits(trial.prefill(prompts), _attend_to_nothing)
    if unknown := sorted(census.unknown):
        raise NotExact(
            f"exact: {name} uses {', '.join(unknown)}, of which it isn't known whether one token's "
            "result depends on the others; leave exact off"
        )


def _attend_to_nothing(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    extras: dict[str, Any],
) -> Tensor:
    return query.new_zeros(*query.shape[:-1], value.shape[-1]).transpose(1, 2)


def _refuse_other_bits(model: ExactModel, adopted: AdoptedModel) -> None:
    """Two prompts together and each alone, prefill and decode."""
    prompts = trial.prompts(adopted.card.vocab_size)
    together = _trial_logits(model, adopted, prompts, rows=(0, 1))
    alone = [_trial_logits(model, adopted, prompts, rows=(row,)) for row in (0, 1)]
    for mixed, *single in zip(together, *alone, strict=True):
        if not torch.equal(mixed, torch.cat(single)):
            raise NotExact(
                f"exact: on this machine {adopted.card.name} computes a request otherwise beside "
                f"another one, with {torch.get_num_threads()} threads; try OMP_NUM_THREADS=1, or "
                "leave exact off"
            )


def _trial_logits(
    model: ExactModel,
    adopted: AdoptedModel,
    prompts: list[list[int]],
    rows: tuple[int, ...],
) -> list[Tensor]:
    """[rows, vocab] of the prefill and of the decode step behind it."""
    pool = KVPool(
        [layer.shape for layer in adopted.layers],
        num_blocks=trial.NUM_BLOCKS,
        block_size=trial.BLOCK_SIZE,
        dtype=adopted.dtype,
        device=adopted.device,
    )
    steps = [make(prompts, adopted.card.groups, rows) for make in (trial.prefill, trial.decode)]
    return [model.logits(inputs, PagedStep(inputs, pool, model.path())) for inputs in steps]
