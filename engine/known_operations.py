"""Which operations of torch give a token the same result whatever tokens stand beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

MOVES_NUMBERS = (
    "alias", "arange", "cat", "chunk", "clone", "contiguous", "copy_", "detach", "dropout",
    "embedding", "empty", "empty_like", "expand", "expand_as", "flatten", "full", "full_like",
    "gather", "index", "index_put_", "index_select", "lift_fresh", "masked_fill", "narrow",
    "new_empty", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "pad", "permute",
    "repeat_interleave", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze",
    "stack", "t", "to", "transpose", "type_as", "unbind", "unflatten", "unsqueeze", "view", "where",
    "zero_", "zeros", "zeros_like", "_to_copy", "_unsafe_view",
)  # fmt: skip

COUNTS_OR_CHOOSES = (
    "cumsum", "eq", "floor_divide", "ge", "gt", "histc", "le", "lt", "maximum", "minimum", "ne",
    "sort", "topk",
)  # fmt: skip
"""`cumsum` of whole numbers: of how many tokens each expert has."""

ROUNDS_EACH_RESULT = (
    "abs", "add", "add_", "clamp", "clamp_max", "clamp_min", "div", "div_", "mul", "mul_", "neg",
    "pow", "reciprocal", "rsqrt", "sqrt", "square", "sub", "sub_",
)  # fmt: skip
"""Correctly, or by a division and a root that are (IEEE 754), so that no kernel can differ."""

EXPONENTS = (2, 3, 0.5, -0.5, -1)
"""Powers that torch computes by the operations above."""

OF_A_TOKENS_ROW = (
    "layer_norm", "mean", "native_layer_norm", "rms_norm", "softmax", "_softmax", "sum",
)  # fmt: skip
"""Reduced row by row; torch's loops over a row know nothing of the other rows."""

KNOWN = frozenset(MOVES_NUMBERS + COUNTS_OR_CHOOSES + ROUNDS_EACH_RESULT + OF_A_TOKENS_ROW)
"""By their names in aten."""


class Census(TorchDispatchMode):
    """While entered, notes operations that aren't known to be invariant.

    `passed_over` says whether an operation is ours to answer for.
    """

    def __init__(self, passed_over: Callable[[], bool]) -> None:
        super().__init__()
        self._passed_over = passed_over
        self.unknown: set[str] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name: str = func.overloadpacket.__name__
        if not self._passed_over():
            if name not in KNOWN:
                self.unknown.add(name)
            elif name == "pow" and args[1] not in EXPONENTS:
                self.unknown.add(f"pow by {args[1]}")
        return func(*args, **kwargs or {})
