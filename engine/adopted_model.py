"""A transformers model whose attention has been taken over, without a change to its code."""

from __future__ import annotations

import hashlib
import inspect
import platform
from functools import cached_property
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from ..recorder.errors import BadInput
from .attention import paths, trial
from .attention.fitness import GeometryProbe, UnfitModel, layer_traits
from .attention.hook import IMPLEMENTATION, STEP_ARGUMENT, LayerCall, register
from .attention.step import PagedStep
from .attention.traits import LayerTraits, kv_groups
from .exact import ExactModel
from .inputs import IntArray, StepInputs
from .packed_weights import PackedWeights
from .runner import ModelCard

ONE_THREAD_UP_TO_HIDDEN = 256
"""Handing work of this size to other threads costs more than it saves."""


class BrokenWeights(BadInput):
    """The weights can't compute anything: some are no finite numbers."""


class AdoptedModel:
    """A transformers model whose attention is ours: loaded and proved once, run many times.

    `model` is moved to the device and dtype and its attention is switched over for good. With a
    small model on a CPU torch is set to one thread (process-wide).

    Raises `UnfitModel` if the model doesn't hand over the attention of every layer or computes
    other logits through the paged cache than by itself, `BrokenWeights` if a weight is NaN or
    infinite, `BadInput` if the device is missing.
    """

    def __init__(
        self,
        model: Any,
        *,
        name: str,
        device: str = "cpu",
        dtype: str = "float32",
        tokenizer_digest: str | None = None,
    ) -> None:
        self.device = device_of(device)
        self.dtype: torch.dtype = getattr(torch, dtype)
        _refuse_broken(model, name)
        self.model = model.to(device=self.device, dtype=self.dtype).eval()
        text = model.config.get_text_config(decoder=True)
        if self.device.type == "cpu" and text.hidden_size <= ONE_THREAD_UP_TO_HIDDEN:
            torch.set_num_threads(1)
        self.packed_weights = PackedWeights(self.model)
        self.layers = _take_over(self, name, text.vocab_size)
        self.card = ModelCard(
            name=name,
            digest=weights_digest(model),
            tokenizer_digest=tokenizer_digest,
            dtype=dtype,
            device=str(self.device),
            groups=kv_groups(self.layers),
            eos_tokens=_eos_tokens(model),
            vocab_size=text.vocab_size,
            max_positions=getattr(text, "max_position_embeddings", None),
            versions={
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
        )

    @cached_property
    def exact(self) -> ExactModel:
        """The same model with batch-invariant arithmetic. Raises `NotExact` if there is none."""
        return ExactModel(self)

    def logits(self, inputs: StepInputs, step: LayerCall) -> Tensor:
        """[S, vocab] float32 logits of `inputs.logit_tokens`; `step` is met by every layer.

        A packed step is one line of T tokens for the model, a padded one has a line a request.
        """
        lines = _num_lines(inputs)
        line, column = np.divmod(inputs.logit_tokens, len(inputs.tokens) // lines)
        wanted, index = np.unique(column, return_inverse=True)
        with self.packed_weights.used():
            output = self.model(
                input_ids=self._on_device(inputs.tokens).view(lines, -1),
                position_ids=self._on_device(inputs.positions).view(lines, -1),
                use_cache=False,
                logits_to_keep=self._on_device(wanted),
                **{STEP_ARGUMENT: step},
            )
        if lines == 1 and np.array_equal(index, np.arange(len(wanted))):
            return output.logits[0].float()  # in order, as they mostly are: nothing to pick
        return output.logits[self._on_device(line), self._on_device(index)].float()

    def _on_device(self, array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def _num_lines(inputs: StepInputs) -> int:
    if not inputs.layout.startswith("padded"):
        return 1
    return sum(request is not None for request in inputs.requests)


@torch.inference_mode()
def _take_over(adopted: AdoptedModel, name: str, vocab_size: int) -> list[LayerTraits]:
    """Switch the model's attention to ours, and prove that its logits stay the same."""
    model = adopted.model
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        raise UnfitModel(name, "its forward has no logits_to_keep")
    _silence_padding_advice(model)
    prompts = trial.prompts(vocab_size)
    try:
        alone = _logits_alone(model, prompts)
    except Exception as error:  # whatever a model's own code raises
        reason = " ".join(str(error).split())[:300]
        raise UnfitModel(name, f"it can't compute a prompt by itself ({reason})") from error
    register()
    model.set_attn_implementation(IMPLEMENTATION)
    probe = GeometryProbe()
    try:
        adopted.logits(trial.prefill(prompts), probe)
    except TypeError as error:  # a forward that knows no position_ids, or no keyword of ours
        raise UnfitModel(name, f"its forward refuses our arguments ({error})") from error
    layers = layer_traits(name, model.config, probe)
    pool = paths.pool_type(adopted.device)(
        [layer.shape for layer in layers],
        num_blocks=trial.NUM_BLOCKS,
        block_size=trial.BLOCK_SIZE,
        dtype=adopted.dtype,
        device=adopted.device,
    )
    groups = kv_groups(layers)
    path = paths.fast_path(adopted.device)
    steps = trial.prefill(prompts, groups), trial.decode(prompts, groups)
    for inputs, expected in zip(steps, alone, strict=True):
        ours = adopted.logits(inputs, PagedStep(inputs, pool, path))
        _compare(name, ours, expected, adopted.dtype)
    return layers


def _silence_padding_advice(model: Any) -> None:
    """Some models warn of a pad token that comes without a mask. What a token sees is settled by
    tables and lengths here, and a prompt may begin with any token."""
    for module in model.modules():
        if hasattr(module, "warn_if_padding_and_no_attention_mask"):
            module.warn_if_padding_and_no_attention_mask = lambda *_: None


def _logits_alone(model: Any, prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """[prompts, vocab] at the last but one and at the last token of each prompt."""
    if model.config._attn_implementation == IMPLEMENTATION:
        model.set_attn_implementation("eager")
    rows = [
        model(input_ids=torch.tensor([prompt], device=model.device), use_cache=False).logits[0, -2:]
        for prompt in prompts
    ]
    both = torch.stack(rows).float()
    return both[:, 0], both[:, 1]


def _compare(name: str, ours: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    difference = (ours - expected).abs().max().item()
    if not difference <= tolerance * max(1.0, expected.abs().max().item()):  # NaN is refused too
        raise UnfitModel(
            name, f"its logits differ by {difference:.3g} from those it computes alone"
        )


def _refuse_broken(model: nn.Module, name: str) -> None:
    for parameter, weight in model.named_parameters():
        if weight.is_floating_point() and not weight.isfinite().all():
            what = "NaN" if weight.isnan().any() else "infinity"
            raise BrokenWeights(
                f"{name}: the weights are broken, {parameter} holds {what} "
                f"({int((~weight.isfinite()).sum())} of {weight.numel()} numbers); "
                "take another copy of the model, or train it again from before they broke"
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
