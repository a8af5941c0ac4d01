"""Settings that must stand before torch is imported and before properties are defined."""

import os

from hypothesis import settings

# On a busy machine, torch's threads that spin while they wait make small models many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Triton's kernels are interpreted, so that they can be tested without a GPU; `make test-gpu` runs
# the same tests compiled. It counts when triton is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

# New examples are searched for on a developer's machine; CI repeats the same ones, so that what
# breaks it is the change and not the luck.
settings.register_profile("kvrewind", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("kvrewind")
