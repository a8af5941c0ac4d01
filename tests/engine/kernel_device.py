"""Where the tests of the kernels run: on a GPU by `make test-gpu`, else interpreted on the CPU."""

import os

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
