"""Which tokens each process holds: layouts that cut a sequence into equal shards.

A layout cuts a sequence of n tokens for p processes. Under a causal mask only some queries see a
shard of keys, and the layout decides whether all processes have the same amount of work.
"""

from typing import NamedTuple

from attnbook.arrays.arguments import (
    check_array,
    check_axis,
    check_choice,
    check_int,
    check_same_home,
)
from attnbook.arrays.array import Array, array_namespace, dtype_name

LAYOUTS = ("contiguous", "striped", "zigzag")
"""The names that ``layout=`` takes."""


class Seen(NamedTuple):
    """The part of a shard of scores that a causal mask leaves, where there is any."""

    rows: slice  # of the queries
    columns: slice  # of the keys
    is_causal: bool  # whether a causal mask, aligned to the last of both, cuts this part


def seen(layout: str, is_causal: bool, rank: int, source: int, n: int) -> Seen | None:
    """Return what the queries of process `rank` see of the keys of process `source`, n of each."""
    every, first, last = slice(None), slice(0, n // 2), slice(n // 2, n)
    if not is_causal:
        return Seen(every, every, False)
    if rank == source:
        return Seen(every, every, True)
    if layout == "striped":  # token i of an earlier stripe comes just before ours, of a later after
        later = Seen(slice(1, n), slice(0, n - 1), True)
        return Seen(every, every, True) if source < rank else later
    if layout == "contiguous":
        return Seen(every, every, False) if source < rank else None
    if source < rank:  # the early half of these keys is before all queries, the late half after
        return Seen(every, first, False)
    return Seen(last, every, False)  # all keys are before the late half of the queries


def shard_sequence(x: Array, n_shards: int, layout: str = "zigzag", axis: int = -2) -> list[Array]:
    r"""Cut a sequence into equal shards, one for each process.

    With p shards of a sequence of n tokens, shard r holds

    - ``"contiguous"``: the r-th run of n/p tokens;
    - ``"striped"``: the tokens r, r + p, r + 2p, …;
    - ``"zigzag"``: of 2p runs of n/2p tokens the r-th and the r-th from the end. Under a causal
      mask the first of the two has little to see and the second much, and their sum is the same
      for all r.

    Parameters
    ----------
    x : array, shape (..., n, d)
        Of any library and dtype. Positions are cut as any other array:
        ``shard_sequence(arange(n), p, axis=0)`` are the positions of the tokens of each shard.
    n_shards : int
        p, at least 1.
    layout : str
    axis : int
        That of the tokens.

    Returns
    -------
    list of p arrays, shape (..., n/p, d)
        In the order of the ranks.

    Raises
    ------
    TypeError
        If `x` is no array, or a number is no int.
    ValueError
        If n is no multiple of p, or of 2p for ``"zigzag"``; or if `layout` is unknown.

    See Also
    --------
    unshard_sequence : the inverse.

    References
    ----------
    Striped: Brandon et al. (2023), "Striped attention". Zigzag: Zhu (2024), ring-flash-attention;
    Llama Team (2024), "The Llama 3 herd of models", section 3.3.2. Chapter `distributed`.

    Examples
    --------
    >>> import numpy as np
    >>> [x.tolist() for x in shard_sequence(np.arange(8), 2, axis=0)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    check_array("x", x)
    check_choice("layout", layout, LAYOUTS)
    p = check_int("n_shards", n_shards, at_least=1)
    axis = check_axis(axis, x.ndim)
    n, unit = x.shape[axis], 2 * p if layout == "zigzag" else p
    if n % unit:
        raise ValueError(
            f"x must have a multiple of {unit} tokens for {p} {layout} shards, got {n}"
        )
    xp = array_namespace(x)

    def run(i, n_runs):
        return x[(slice(None),) * axis + (slice(i * n // n_runs, (i + 1) * n // n_runs),)]

    if layout == "contiguous":
        return [run(r, p) for r in range(p)]
    if layout == "striped":
        return [x[(slice(None),) * axis + (slice(r, None, p),)] for r in range(p)]
    return [xp.concat([run(r, 2 * p), run(2 * p - 1 - r, 2 * p)], axis=axis) for r in range(p)]


def unshard_sequence(shards: list[Array], layout: str = "zigzag", axis: int = -2) -> Array:
    """Put the shards of a sequence together again.

    Parameters
    ----------
    shards : list of p arrays, shape (..., n/p, d)
        As `shard_sequence` cuts them, in the order of the ranks.
    layout : str
    axis : int
        That of the tokens.

    Returns
    -------
    array, shape (..., n, d)

    Raises
    ------
    TypeError
        If `shards` is no list of arrays of one library, device and dtype.
    ValueError
        If the shards differ in shape, there is none, or `layout` is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> unshard_sequence([np.array([0, 1, 6, 7]), np.array([2, 3, 4, 5])], axis=0)
    array([0, 1, 2, 3, 4, 5, 6, 7])
    """
    if not isinstance(shards, (list, tuple)):
        raise TypeError(f"shards must be a list of arrays, got {type(shards).__name__}")
    if not shards:
        raise ValueError("shards must hold at least 1 array, got none")
    for i, x in enumerate(shards):
        check_same_home(f"shards[{i}]", x, "shards[0]", shards[0])
        if x.dtype != shards[0].dtype:
            raise TypeError(
                f"shards[{i}] must have the dtype of shards[0] ({dtype_name(shards[0].dtype)}), "
                f"got {dtype_name(x.dtype)}"
            )
        if x.shape != shards[0].shape:
            raise ValueError(
                f"shards[{i}] must have the shape {tuple(shards[0].shape)} of shards[0], "
                f"got {tuple(x.shape)}"
            )
    check_choice("layout", layout, LAYOUTS)
    xp, axis = array_namespace(shards[0]), check_axis(axis, shards[0].ndim)
    if layout == "striped":
        shape = list(shards[0].shape)
        shape[axis] *= len(shards)
        return xp.reshape(xp.stack(list(shards), axis=axis + 1), tuple(shape))
    if layout == "zigzag":
        half = shards[0].shape[axis] // 2
        if 2 * half != shards[0].shape[axis]:
            raise ValueError(
                "shards must have an even number of tokens for zigzag shards, "
                f"got {shards[0].shape[axis]}"
            )
        early = [x[(slice(None),) * axis + (slice(0, half),)] for x in shards]
        late = [x[(slice(None),) * axis + (slice(half, None),)] for x in shards]
        shards = [*early, *late[::-1]]
    return xp.concat(list(shards), axis=axis)
