"""What a sketch knows of the quality of its own answer."""

from dataclasses import dataclass
from typing import Annotated

from attnbook.arrays.arguments import Array


@dataclass(frozen=True, eq=False)
class Evidence:
    r"""For each query, how much of the context the answer rests on.

    Attributes
    ----------
    n_keys : int
        Keys in the sketch. With none the output is zeros, as exact attention over no keys is.
    candidates : int64 array, shape (n_q,)
        Different keys that count with a score of their own: from the tables (with the tail
        "moments", those above its limit), in the window, heavy. 0 means that there were none.
    found_probability : array, shape (n_q,)
        Chance, over the draw of the tables, that the one of these with the largest weight would be
        found; 1 for a key in the window or a heavy one. A small chance says that this key was luck,
        and that others like it were missed. NaN where nothing was scored or the hash knows no
        probabilities.
    missed_mass : array, shape (n_q,)
        Estimate of 1 − M, the share of the exact softmax on keys that were not scored: from the
        tail if there is one; else from the candidates, each of which stands for 1 / P keys like
        it, so that keys unlike all of them stay unseen. 1 where there are keys and none was
        scored; NaN where it cannot be told.
    bound : array, shape (n_q,)
        :math:`(1 - M)\, D_V`, the largest distance from the exact output that claim 29 allows
        after dropping the missed keys, with the estimate of M. D_V is the diagonal of the box
        around all values. Where nothing was scored the output is zeros and there is no bound:
        infinity.
    """

    n_keys: int
    candidates: Annotated[Array, "n_q"]
    found_probability: Annotated[Array, "n_q"]
    missed_mass: Annotated[Array, "n_q"]
    bound: Annotated[Array, "n_q"]
