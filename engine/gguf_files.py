"""GGUF files, turned once into a directory that transformers loads in half a second.

Reading a GGUF through Python takes ten seconds and more, and transformers' own loader wants a
further package for it. The copy lies in the user's cache directory and is keyed by the content of
the file, so a new file gets a new copy.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

STORED_AS = torch.float16
"""The scales in the file are float16 too; twice the size would hold nothing more of use."""


def converted(file: Path) -> Path:
    """The directory with config, weights and tokenizer of a GGUF file, made if need be.

    Raises what the loaders raise for a file that is none, OSError if the cache can't be written.
    """
    target = cache_dir() / f"{file.stem}-{_digest(file)}"
    if (target / "config.json").exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".converting-") as folder:
        fresh = Path(folder) / "model"
        _convert(file, fresh)
        try:
            fresh.rename(target)  # whole or not at all
        except OSError:  # another process was faster
            if not (target / "config.json").exists():
                shutil.rmtree(target, ignore_errors=True)
                fresh.rename(target)
    return target


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/kvrewind`, by default `~/.cache/kvrewind`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvrewind"


def _convert(file: Path, directory: Path) -> None:
    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    config = AutoConfig.from_pretrained(file.parent, **where)
    model = AutoModelForCausalLM.from_config(config, dtype=STORED_AS)
    tensors = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)["tensors"]
    loaded = model.load_state_dict(tensors, strict=False)
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    if loaded.unexpected_keys or set(loaded.missing_keys) - tied:
        raise ValueError(f"its tensors don't fit the architecture {config.model_type}")
    model.tie_weights()
    AutoTokenizer.from_pretrained(file.parent, **where).save_pretrained(directory)
    model.save_pretrained(directory)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=8)).hexdigest()
