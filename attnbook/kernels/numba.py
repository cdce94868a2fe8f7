"""Rung 5, *numba*: the tiles of rung *tiled* in loops that are compiled for this processor.

A panel of 128 queries stands transposed, one query a column, and meets 64 keys at a time. The
scores of a tile, its weights and its weighted sums are then rows of 128 numbers that are treated
alike: LLVM makes vectors of them, and nothing leaves the inner caches in between. The loops are in
`numba_loops.plain`; threads share the panels. Agrees with `attnbook.kernels.tiled`. Takes NumPy arrays
and PyTorch's tensors, and computes in float32.
"""

from attnbook.kernels.numba_loops.calls import compute, share
from attnbook.kernels.numba_loops.gradients import portable as backward
from attnbook.kernels.numba_loops.plain import WIDTH, attend

__all__ = ["attention", "backward", "forward"]


def attention(query, key, value, mask, bias, scale, is_causal):
    """Return the output; O(n d) memory beside it. Few queries go another way (`numba_loops.decode`)."""
    return compute(_panels, (query, key, value, mask, bias, scale, is_causal), few=True)[0]


def forward(query, key, value, mask, bias, scale, is_causal, *, n_threads=None):
    """Return the output and the logarithm of each row's sum of exponentials, -inf for no key."""
    arguments = (query, key, value, mask, bias, scale, is_causal)
    return compute(_panels, arguments, few=False, n_threads=n_threads)


def _panels(work, n_threads, output, log_total):
    n_rows = work.starts.shape[2] * work.n_q
    width = min(WIDTH, -(-n_rows // 16) * 16)
    share(lambda counter: attend(work, width, counter, output, log_total), n_threads)
