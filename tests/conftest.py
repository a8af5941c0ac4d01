"""Settings that must stand before torch is imported."""

import os

# On a busy machine, torch's threads that spin while they wait make small models many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
