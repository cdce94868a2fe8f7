r"""Self-attention in less than quadratic time: Gaussians for the crowd, scores for the few.

.. math:: \hat O = \frac{\sum_{i \in R} e^{s\,q \cdot k_i}\, v_i + \sum_c Z_c O_c}
                        {\sum_{i \in R} e^{s\,q \cdot k_i} + \sum_c Z_c}

R are the keys that a query scores one by one. The rest lies in cells c, whose mass :math:`Z_c` and
mean value :math:`O_c` are those of a Gaussian with the moments of the cell (`Moments`).
"""

import math
from typing import Annotated

import numpy as np

from attnbook.arrays.arguments import Array, check_attention, check_int, dtype_name, library
from attnbook.arrays.projections import generator

WIDTH = 16
"""Rows are padded to a multiple of so many numbers."""


def self_attention_sketch(
    query: Annotated[Array, "... n_q d_k"],
    key: Annotated[Array, "... n_k d_k"],
    value: Annotated[Array, "... n_k d_v"],
    *,
    n_cells: int = 1,
    n_scored: int = 0,
    n_heavy: int = 0,
    n_long: int = 0,
    n_tables: int = 3,
    n_bits: int | None = None,
    n_probes: int = 20,
    distance: int = 14,
    scale: float | None = None,
    seed: "int | np.random.Generator" = 0,
    n_threads: int | None = None,
) -> Annotated[Array, "... n_q d_v"]:
    r"""Return an estimate of attention without a mask, in time linear in the number of keys.

    Each query adds up four parts, and no key counts in two of them:

    - the `n_heavy` longest keys, scored one by one by every query;
    - all keys of the `n_scored` cells that weigh most for it, scored one by one;
    - keys that stick out, with scores of at least `Moments.limit`, among those that `n_tables` hash
      tables find and the `n_long` next in length;
    - all others as Gaussians, below that limit, from the moments of their cell.

    Parameters
    ----------
    query : float32 array of NumPy, shape (..., n_q, d_k)
    key : array, shape (..., n_k, d_k)
    value : array, shape (..., n_k, d_v)
        Leading axes broadcast. There may be as many queries as keys, or not.
    n_cells : int
        Cells that k-means puts the keys of a head into. 1 for keys without clusters; 128 to 512
        for keys with.
    n_scored : int
        Cells that a query scores whole, those of the largest estimated mass.
    n_heavy : int
        For keys of very different lengths, measured from their mean: hashes miss the long ones, and
        no Gaussian has them. 0.8 % of the keys, say.
    n_long : int
        So many keys, the longest after the heavy ones, are compared with every query by their code,
        and scored where code and length together promise a high score: about an eighth of them.
        1.6 % of the keys, say: 1 % are scored then, `n_heavy` included.
    n_tables : int
        Tables, each of buckets by `n_bits` signs of a code of 64 signs, so n_tables n_bits ≤ 64;
        tables beyond that are left out. 0 where no key sticks out of its cell.
    n_bits : int, optional
        From 1 to 16; by default such that a bucket has 4 keys, if that lies between 4 and 16.
    n_probes : int
        Buckets that a query looks into in each table: its own and those across the planes that it
        is nearest to.
    distance : int
        Keys in these buckets are scored if their code differs from that of the query in at most so
        many of the 64 signs: 14 stand for an angle of 39 degrees.
    scale : float, optional
        s above; 1/√d_k by default.
    seed : int or numpy.random.Generator
        For the directions of the signs and the first cells.
    n_threads : int, optional
        The cores of the process by default.

    Returns
    -------
    float32 array, shape (..., n_q, d_v)
        Zeros if there is no key.

    Raises
    ------
    TypeError
        For anything but float32 arrays of NumPy, or a number that is not an int.
    ValueError
        For shapes that do not fit, or a number out of range.
    ImportError
        If Numba is not installed.

    Notes
    -----
    With every cell scored, or every key heavy, the result is exact attention to rounding. What the
    Gaussians leave out is not bounded by anything that is measured here: compare a few queries with
    `attention` before you trust settings for keys of a new kind. The error of a Gaussian with n
    keys is at best what its moments do not see of the sample, √((exp(σ²) - 1 - σ²)/n) of a value's
    deviation for scores of deviation σ. Where values have nothing to do with keys and no mean, that
    is all there is of attention to flat scores, and every estimate from a part of the keys is wrong
    by as much as the output is long.

    A query takes at most 32 codes of a bucket and 256 found keys. Scores are compared in float32:
    keys far from 0 should be centred first, which changes nothing (claim 1).

    Cost: O(n_k d (d + d_v + n_cells)) for the keys and O(d (d + d_v) + n_cells (d + d_v)) a query,
    beyond the keys that it scores.

    References
    ----------
    Norouzi, Punjani and Fleet (2012), "Fast search in Hamming space with multi-index hashing"; Lv
    et al. (2007), "Multi-probe LSH"; chapter `sketch`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> query, key = rng.standard_normal((2, 1009, 16), dtype=np.float32)
    >>> value = np.float32(1) + key
    >>> estimate = self_attention_sketch(query, key, value)
    >>> from attnbook import attention
    >>> exact = attention(query, key, value)
    >>> bool(np.linalg.norm(estimate - exact) < 0.05 * np.linalg.norm(exact))
    True
    """
    check_int("n_cells", n_cells, at_least=1)
    check_int("n_scored", n_scored)
    check_int("n_heavy", n_heavy)
    check_int("n_long", n_long)
    check_int("n_tables", n_tables)
    check_int("n_probes", n_probes, at_least=1)
    if check_int("distance", distance) > 64:
        raise ValueError(f"distance must be at most 64, got {distance}")
    if n_bits is not None and check_int("n_bits", n_bits, at_least=1) > 16:
        raise ValueError(f"n_bits must be at most 16, got {n_bits}")
    if n_threads is not None:
        check_int("n_threads", n_threads, at_least=1)
    rng = generator(seed)
    arrays = {"query": query, "key": key, "value": value}
    scale = check_attention(arrays, None, None, scale)
    if library(query) != "numpy" or dtype_name(query.dtype) != "float32":
        raise TypeError(
            "query must be a float32 array of NumPy, "
            f"got {dtype_name(query.dtype)} of {library(query)}"
        )
    try:
        from attnbook.sketch._self_sketch import SelfSketch
    except ImportError as error:
        raise ImportError(
            "self_attention_sketch needs Numba: pip install 'attnbook[fast]'"
        ) from error
    d_v = value.shape[-1]
    leading = np.broadcast_shapes(*(x.shape[:-2] for x in arrays.values()))
    q, k, v = (_rows(x, leading) for x in arrays.values())
    if 0 in q.shape or 0 in k.shape:
        return np.zeros((*leading, q.shape[1], d_v), dtype=np.float32)
    sketch = SelfSketch(k, v, n_cells, n_heavy, rng, n_threads)
    sketch.add_codes(n_tables, n_bits, n_probes, distance, n_long, rng)
    out = sketch.answer(q, scale, n_scored)
    return out[..., :d_v].reshape(*leading, q.shape[1], d_v)


def _rows(x, leading):
    """Return a writable contiguous array (h, n, d) whose rows are a multiple of 16 wide."""
    if x.shape[:-2] != leading:
        x = np.broadcast_to(x, (*leading, *x.shape[-2:]))
    x = x.reshape(math.prod(leading), *x.shape[-2:])
    short = -x.shape[-1] % WIDTH if x.shape[-1] else WIDTH
    return np.pad(x, ((0, 0), (0, 0), (0, short))) if short else np.require(x, None, ["C", "W"])
