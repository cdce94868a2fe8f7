"""Sixteen rows times sixteen directions, with all sums in registers, and a prefetch."""

from attnbook.compilers.jit import compile_inner
from attnbook.compilers.register_tiles import Tile, multiply, prefetch

__all__ = ["LANES", "prefetch", "project_tile"]

LANES = 16  # numbers in a vector, and rows of a tile: their sums take 16 of 32 registers of AVX-512
TILE = Tile(LANES, LANES, 1)


@compile_inner
def project_tile(x, first, panels, p, out):
    """Multiply 16 rows with 16 directions: ``out[:, p] = x[first:first + 16] @ panels[p]``.

    x : (n, d); panels : (n_panels, d, 16); out : (16, n_panels, 16), all C-contiguous and of one
    dtype. Each sum is built in the order of d with fused multiply-adds, so equal rows have equal
    sums.
    """
    n_panels, d, width = panels.shape
    row, at = n_panels * width, p * d * width
    multiply(TILE, x, first * d, d, 1, panels, at, width, out, p * width, row, LANES, d)
