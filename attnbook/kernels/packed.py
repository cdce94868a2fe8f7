"""Rung 5, *packed*: tiles whose sums never leave the registers, in the shape of this processor.

The tiles of rung *tiled* in compiled loops, those of the folder `numba_loops`; threads share them.
A core multiplies and adds two vectors a cycle, but reads hardly more than two. So the sums of a
tile are held in as many registers as there are, and each vector that is read serves all its rows
(Goto & van de Geijn 2008, "Anatomy of high-performance matrix multiplication"). The queries are
packed for it; keys and values are read one number at a time where they are. The products of tiles
are those of `attnbook.compilers.register_tiles`. Agrees with `attnbook.kernels.tiled`. Takes NumPy
arrays and PyTorch's tensors, and computes in float32; or with products of bfloat16 numbers, where
tensors hold them and the processor multiplies them. PyTorch's products of such numbers round the
scores to 8 bits too; on a processor with AVX512-BF16, at 4,096 tokens, the products of all tiles
alone took as long as this rung in all.
"""

from typing import Any

from attnbook.arrays.array import dtype_name
from attnbook.compilers.register_tiles import TILES, Tile, has_pairs, lanes
from attnbook.kernels.numba_loops import backward as gradients
from attnbook.kernels.numba_loops import forward as panels
from attnbook.kernels.numba_loops.pages import paged_attention as paged_attention

PAIRS = Tile(16, 8, 2, pairs=True)
"""The tile for bfloat16: each step of a sum adds two products, of numbers rounded to 8 bits."""


def vector_unit() -> str:
    """Return the name of this processor's vector registers and how many numbers each holds."""
    name = {16: "AVX-512", 8: "AVX2", 4: "SSE2 or Neon"}[lanes()]
    return f"{name}, {lanes()} lanes"


def tile_for(
    query: Any, key: Any, value: Any, mask: Any, bias: Any, scale: float, is_causal: bool
) -> Tile:
    """Return the tile for these arrays: of bfloat16 pairs, where one instruction takes them."""
    tile = TILES[lanes()]
    able = has_pairs() and bias is None and dtype_name(query.dtype) == "bfloat16"
    return PAIRS if able and query.shape[-1] and query.shape[-1] % 2 == 0 else tile


def attention(*arguments: Any) -> Any:
    """Return the output; O(n d) memory beside it. Few queries go another way (`few_queries`)."""
    return forward(*arguments, few=True)[0]


def forward(
    *arguments: Any, tile: Tile | None = None, few: bool = False, n_threads: int | None = None
) -> tuple[Any, Any]:
    """Return the output and the logarithm of each row's sum of exponentials, -inf for no key.

    `tile` is a `Tile` for other registers than this processor's, such as those of AVX2. With `few`,
    which no backward pass may follow, few queries go another way, as in `attention`.
    """
    tile = tile or tile_for(*arguments)
    return panels.forward(tile, arguments, few=few, n_threads=n_threads)


def backward(*arguments: Any) -> tuple[Any, ...]:
    """Return the gradients of query, key and value, by products that stay in registers."""
    return gradients.backward(gradients.TILES[lanes()], *arguments)
