"""Rung 6, *packed*: tiles whose sums never leave the registers, in the shape of this processor.

A core multiplies and adds two vectors a cycle, but reads hardly more than two. So the sums of a
tile are held in as many registers as there are, and each vector that is read serves all its rows
(Goto & van de Geijn 2008, "Anatomy of high-performance matrix multiplication"). The queries are
packed for it; keys and values are read one number at a time where they are. The loops are in
`numba_loops.forward`, the registers in `register_tiles`. Agrees with `attnbook.kernels.numba`. Takes NumPy arrays
and PyTorch's tensors, and computes in float32.
"""

import numpy as np

from attnbook.compilers import register_tiles
from attnbook.kernels.numba_loops.calls import LEAST, compute, share
from attnbook.kernels.numba_loops.forward import attend, merge
from attnbook.kernels.numba_loops.gradients import packed as backward

__all__ = ["attention", "backward", "forward", "vector_unit"]

ENOUGH = 16
"""Pieces of work that keep several cores busy: fewer panels than these are split by keys."""


def vector_unit() -> str:
    """Return the name of this processor's vector registers and how many numbers each holds."""
    lanes = register_tiles.lanes()
    name = {16: "AVX-512", 8: "AVX2", 4: "SSE2 or Neon"}[lanes]
    return f"{name}, {lanes} lanes"


def attention(query, key, value, mask, bias, scale, is_causal):
    """Return the output; O(n d) memory beside it. Few queries go another way (`numba_loops.decode`)."""
    return compute(_panels_of(None), (query, key, value, mask, bias, scale, is_causal), few=True)[0]


def forward(query, key, value, mask, bias, scale, is_causal, *, tile=None, n_threads=None):
    """Return the output and the logarithm of each row's sum of exponentials, -inf for no key.

    `tile` is a `register_tiles.Tile` for other registers than this processor's, such as those of AVX2.
    """
    arguments = (query, key, value, mask, bias, scale, is_causal)
    return compute(_panels_of(tile), arguments, few=False, n_threads=n_threads)


def _panels_of(tile):
    tile = tile or register_tiles.TILES[register_tiles.lanes()]

    def panels(work, n_threads, output, log_total):
        _, n_heads, n_groups = work.starts.shape
        n_panels = n_heads * -(-n_groups * work.n_q // tile.width)
        n_chunks = max(1, min(work.n_k // LEAST, ENOUGH // n_panels))
        shape = (n_panels if n_chunks > 1 else 0, n_chunks, work.d_v + 2, tile.width)
        partial = np.empty(shape, np.float32)
        share(
            lambda counter: attend(tile, work, n_chunks, counter, partial, output, log_total),
            n_threads,
        )
        if n_chunks > 1:
            merge(work, partial, output, log_total)

    return panels
