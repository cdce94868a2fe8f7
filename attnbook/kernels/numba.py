"""Rung 5, *numba*: the tiles of rung *tiled* in loops that are compiled for this processor.

A panel of 128 queries stands transposed, one query a column, and meets 64 keys at a time. The
scores of a tile, its weights and its weighted sums are then rows of 128 numbers that are treated
alike: LLVM makes vectors of them, and nothing leaves the inner caches in between. The loops are in
the folder `numba_loops`; threads share the panels. Agrees with `attnbook.kernels.tiled`. Takes
NumPy arrays and PyTorch's tensors, and computes in float32.
"""

from typing import Any

from attnbook.kernels.numba_loops import backward as gradients
from attnbook.kernels.numba_loops import forward as panels
from attnbook.kernels.numba_loops.pages import paged_attention as paged_attention


def attention(*arguments: Any) -> Any:
    """Return the output; O(n d) memory beside it. Few queries go another way (`few_queries`)."""
    return forward(*arguments, few=True)[0]


def forward(*arguments: Any, few: bool = False, n_threads: int | None = None) -> tuple[Any, Any]:
    """Return the output and the logarithm of each row's sum of exponentials, -inf for no key.

    With `few`, which no backward pass may follow, few queries go another way, as in `attention`.
    """
    return panels.forward(None, arguments, few=few, n_threads=n_threads)


def backward(*arguments: Any) -> tuple[Any, ...]:
    """Return the gradients of query, key and value, by loops that any compiler makes vectors of."""
    return gradients.backward(None, *arguments)
