"""Where the bundled canary model lies on disk: weights, configuration, tokenizer, card."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

# setuptools installs packages unpacked, so that the package's folder is a real one;
# `from_pretrained` needs a path.
CANARY_DIR: Path = Path(str(files("kvrewind.engine.canary")))
