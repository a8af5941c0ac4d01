"""Any transformers causal LM behind our paged KV cache, without a change to the model."""

from __future__ import annotations

import hashlib
import inspect
import platform
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from ..recorder.errors import BadInput
from .attention import trial
from .attention.fast import FastAttention
from .attention.fitness import GeometryProbe, UnfitModel, layer_shapes
from .attention.hook import IMPLEMENTATION, STEP_ARGUMENT, register
from .attention.pool import KVPool, LayerShape
from .attention.reference import ReferenceAttention
from .config import EngineConfig
from .inputs import StepInputs
from .request import Request
from .runner import ModelCard, StepOutput

ATTENTION = {"fast": FastAttention, "reference": ReferenceAttention}

ONE_THREAD_UP_TO_HIDDEN = 256
"""Handing work of this size to other threads costs more than it saves."""


class TransformersRunner:
    """Implements `runner.Runner`; owns the model and a KV pool of the config's size.

    The model is moved to the config's device and dtype and its attention is switched over to ours
    for good. With a small model on a CPU torch is set to one thread (process-wide).

    Raises `UnfitModel` if the model doesn't hand over the attention of every layer or computes
    other logits through the paged cache than by itself, `BadInput` if the device is missing.
    """

    def __init__(
        self,
        model: Any,
        config: EngineConfig,
        *,
        name: str,
        tokenizer_digest: str | None = None,
    ) -> None:
        self._name = name
        self._device = device_of(config.device)
        self._model = model.to(device=self._device, dtype=getattr(torch, config.dtype)).eval()
        self._attention = ATTENTION[config.attention]
        text = model.config.get_text_config(decoder=True)
        if self._device.type == "cpu" and text.hidden_size <= ONE_THREAD_UP_TO_HIDDEN:
            torch.set_num_threads(1)
        self._card = ModelCard(
            name=name,
            digest=weights_digest(model),
            tokenizer_digest=tokenizer_digest,
            dtype=config.dtype,
            device=str(self._device),
            groups=[],
            eos_tokens=_eos_tokens(model),
            vocab_size=text.vocab_size,
            max_positions=getattr(text, "max_position_embeddings", None),
            versions={
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
        )
        shapes = self._take_over()
        self._card.groups.extend(_groups(shapes))
        self._pool = self._new_pool(shapes, config.num_blocks, config.block_size)

    @property
    def card(self) -> ModelCard:
        return self._card

    def begin(self, request: Request) -> None:
        """Nothing to do: what a row says follows from its tokens."""

    def execute(self, inputs: StepInputs) -> StepOutput:
        """One step: KV written to `slot_mapping`, then attention, then the greedy tokens."""
        return greedy(self.logits(inputs))

    @torch.inference_mode()
    def logits(self, inputs: StepInputs) -> Tensor:
        """[R, vocab] float32 logits of each row's last query."""
        return self._logits(inputs, _Step(inputs, self._pool, self._attention(inputs, self._pool)))

    def _logits(self, inputs: StepInputs, step: Any) -> Tensor:
        last = torch.from_numpy(inputs.row_starts[1:] - 1).to(self._device)
        output = self._model(
            input_ids=torch.from_numpy(inputs.tokens)[None].to(self._device),
            position_ids=torch.from_numpy(inputs.positions)[None].to(self._device),
            use_cache=False,
            logits_to_keep=last,
            **{STEP_ARGUMENT: step},
        )
        return output.logits[0].float()

    def _new_pool(self, shapes: list[LayerShape], num_blocks: int, block_size: int) -> KVPool:
        return KVPool(
            shapes,
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=self._model.dtype,
            device=self._device,
        )

    @torch.inference_mode()
    def _take_over(self) -> list[LayerShape]:
        """Switch the model's attention to ours, and prove that the model stays the same."""
        if "logits_to_keep" not in inspect.signature(self._model.forward).parameters:
            raise UnfitModel(self._name, "its forward has no logits_to_keep")
        prompts = trial.prompts(self._card.vocab_size)
        alone = self._logits_without_us(prompts)
        register()
        self._model.set_attn_implementation(IMPLEMENTATION)
        prefill, decode = trial.prefill(prompts), trial.decode(prompts)
        probe = GeometryProbe()
        try:
            self._logits(prefill, probe)
        except TypeError as error:  # a model that takes no keyword of ours, or no position_ids
            raise UnfitModel(self._name, f"its forward refuses our arguments ({error})") from error
        shapes = layer_shapes(self._name, self._model.config, probe)
        pool = self._new_pool(shapes, trial.NUM_BLOCKS, trial.BLOCK_SIZE)
        for inputs, expected in zip((prefill, decode), alone, strict=True):
            step = _Step(inputs, pool, FastAttention(inputs, pool))
            self._compare(self._logits(inputs, step), expected)
        return shapes

    def _logits_without_us(self, prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
        """[prompts, vocab] at the last but one and at the last token of each prompt."""
        if self._model.config._attn_implementation == IMPLEMENTATION:
            self._model.set_attn_implementation("eager")
        rows = [
            self._model(
                input_ids=torch.tensor([prompt], device=self._device), use_cache=False
            ).logits[0, -2:]
            for prompt in prompts
        ]
        both = torch.stack(rows).float()
        return both[:, 0], both[:, 1]

    def _compare(self, ours: Tensor, expected: Tensor) -> None:
        tolerance = 1e-3 if self._model.dtype == torch.float32 else 0.1
        difference = (ours - expected).abs().max().item()
        if not difference <= tolerance * max(1.0, expected.abs().max().item()):
            raise UnfitModel(
                self._name, f"its logits differ by {difference:.3g} from those it computes alone"
            )


class _Step:
    """One step as the layers meet it: write first, then attend. Implements `hook.LayerCall`."""

    def __init__(
        self, inputs: StepInputs, pool: KVPool, attention: FastAttention | ReferenceAttention
    ) -> None:
        self._pool = pool
        self._attention = attention
        written = np.flatnonzero(inputs.slot_mapping >= 0)
        self._slots = torch.from_numpy(inputs.slot_mapping[written]).to(pool.device)
        partial = len(written) < len(inputs.slot_mapping)
        self._written = torch.from_numpy(written).to(pool.device) if partial else None

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        extras: dict[str, Any],
    ) -> Tensor:
        layer: int = module.layer_idx  # pyright: ignore[reportAssignmentType] -- proved at load
        keys, values = key[0].transpose(0, 1), value[0].transpose(0, 1)
        if self._written is not None:
            keys, values = keys[self._written], values[self._written]
        self._pool.write(layer, self._slots, keys, values)
        return self._attention.attend(layer, query[0].transpose(0, 1), scaling)[None]


def greedy(logits: Tensor) -> StepOutput:
    """logits [R, vocab] -> the best token of each row, its log probability and its lead.

    A row that saw nothing (a planted mask fault can do that) has NaN logits: they count as equal,
    so that the run goes on and the trace shows what happened.
    """
    finite = torch.nan_to_num(logits)
    best = finite.argmax(dim=-1)
    top = finite.topk(2, dim=-1).values
    logprobs = top[:, 0] - finite.logsumexp(dim=-1)
    return StepOutput(
        tokens=tuple(best.tolist()),
        logprobs=tuple(logprobs.tolist()),
        margins=tuple((top[:, 0] - top[:, 1]).tolist()),
    )


def device_of(name: str) -> torch.device:
    """The device that `auto`, `cpu`, `cuda` or `cuda:N` names here; `BadInput` if missing."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BadInput(
            f"--device {name}: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA "
            "devices here; take --device cpu or auto, or install a torch built for CUDA"
        )
    return device


def weights_digest(model: nn.Module) -> str:
    """blake2b over names, types, shapes and bytes of all weights, buffers left out."""
    digest = hashlib.blake2b(digest_size=16)
    for name, weight in sorted(model.named_parameters()):  # tied weights come once
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        plain = weight.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(plain.numpy().data)
    return digest.hexdigest()


def _eos_tokens(model: Any) -> frozenset[int]:
    found: set[int] = set()
    for config in (model.config, getattr(model, "generation_config", None)):
        tokens = getattr(config, "eos_token_id", None)
        found.update([tokens] if isinstance(tokens, int) else tokens or ())
    return frozenset(found)


def _groups(shapes: list[LayerShape]) -> list[dict[str, Any]]:
    """One KV group per distinct shape, as `RunStarted.groups` lists them."""
    return [
        {
            "layers": [layer for layer, other in enumerate(shapes) if other == shape],
            "kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
        }
        for shape in dict.fromkeys(shapes)
    ]
