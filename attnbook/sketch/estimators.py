r"""Estimators give weights to the keys that the tables return.

.. math:: \hat O = \sum_{(t, i)} w_{t i} v_i

Each function takes scores and masks of one shape (n_q, n_tables, C): place (t, c) holds the c-th
key of the query's bucket in table t. Each returns weights of that shape, zero at empty places.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from attnbook.arrays.arguments import check_array, check_float, check_same_home
from attnbook.arrays.array import Array, array_namespace, dtype_name
from attnbook.arrays.empty_rows import or_one
from attnbook.arrays.weights import check_part
from attnbook.hashing.collision import log_chance
from attnbook.single_head.softmax import softmax_of
from attnbook.sketch.logits import masked


@dataclass(frozen=True, eq=False)
class Candidates:
    """The keys that the tables return for each query, padded to one shape.

    Attributes
    ----------
    rows : int64 array, shape (n_q, n_tables, C)
        Places of the keys; any number where nothing was found.
    found : boolean array, shape (n_q, n_tables, C)
        True where there is a key.
    distinct : boolean array, shape (n_q, n_tables, C)
        True where a key is met for the first time, table by table, so that each counts once.
    """

    rows: Annotated[Array, "n_q n_tables C"]
    found: Annotated[Array, "n_q n_tables C"]
    distinct: Annotated[Array, "n_q n_tables C"]

    @classmethod
    def of(
        cls, rows: Annotated[Array, "n_q n_tables C"], found: Annotated[Array, "n_q n_tables C"]
    ) -> "Candidates":
        """Return `rows` and `found` with the first place of each row, for O(L C log(L C)) a query.

        Raises TypeError or ValueError if they are not integers and booleans of one such shape.
        """
        check_array("rows", rows)
        check_same_home("found", found, "rows", rows)
        xp = array_namespace(rows)
        for name, x, kind in (("rows", rows, "integral"), ("found", found, "bool")):
            if not xp.isdtype(x.dtype, kind):
                raise TypeError(f"{name} must have {kind} dtype, got {dtype_name(x.dtype)}")
        if rows.ndim != 3 or tuple(found.shape) != tuple(rows.shape):
            raise ValueError(
                "rows and found must have one shape (n_q, n_tables, C), "
                f"got {tuple(rows.shape)} and {tuple(found.shape)}"
            )
        rows = xp.astype(rows, xp.int64, copy=False)
        n_q, n_tables, width = rows.shape
        size = n_tables * width
        if size == 0:
            return cls(rows, found, found)
        flat = xp.reshape(xp.where(found, rows, xp.full_like(rows, -1)), (n_q, size))
        order = xp.argsort(flat, axis=-1, stable=True)
        ordered = xp.take_along_axis(flat, order, axis=-1)
        new = xp.concat(
            [xp.ones_like(ordered[:, :1], dtype=xp.bool), ordered[:, 1:] != ordered[:, :-1]],
            axis=-1,
        )
        first = xp.take_along_axis(new & (ordered >= 0), xp.argsort(order, axis=-1), axis=-1)
        return cls(rows, found, xp.reshape(first, rows.shape))


def union(
    scores: Annotated[Array, "n_q n_tables C"], candidates: Candidates
) -> Annotated[Array, "n_q n_tables C"]:
    r"""Take one softmax over the distinct keys of all buckets.

    .. math:: w_i = e^{s_i} \Big/ \sum_{j \in R} e^{s_j}

    R is the set of keys found. The weights sum to 1, or are all 0 where nothing was found. What
    they miss is bounded by claim 29: ‖O_R − O‖ ≤ (1 − A_R) D_V.

    Parameters
    ----------
    scores : array, shape (n_q, n_tables, C)
        The score of each place; those of empty places do not count.
    candidates : Candidates

    Returns
    -------
    array, shape (n_q, n_tables, C)
        They sum to 1, or are all 0 where nothing was found.

    Raises
    ------
    TypeError, ValueError
        If `candidates` is not a `Candidates`, or another argument not floats of its shape.

    Examples
    --------
    >>> import numpy as np
    >>> found = np.array([[[True, False], [True, True]]])  # a query, two tables, two places
    >>> held = Candidates.of(np.array([[[4, 0], [4, 7]]]), found)  # key 4 in both tables
    >>> scores = np.log([[[1.0, 1.0], [1.0, 3.0]]])
    >>> union(scores, held).round(3)
    array([[[0.25, 0.  ],
            [0.  , 0.75]]])
    """
    _check(candidates, scores=scores)
    return _over_all(scores, candidates.distinct)


def duplicates(
    scores: Annotated[Array, "n_q n_tables C"], candidates: Candidates
) -> Annotated[Array, "n_q n_tables C"]:
    r"""Take one softmax over all buckets, in which a key found t times counts t times.

    .. math:: \sum_t w_{t i} \propto t_i\, e^{s_i}, \qquad \mathbb E\, t_i = L\, p_i^\kappa

    Near keys gain weight beyond their score (claim 28).

    Parameters
    ----------
    scores : array, shape (n_q, n_tables, C)
        The score of each place; those of empty places do not count.
    candidates : Candidates

    Returns
    -------
    array, shape (n_q, n_tables, C)
        They sum to 1, or are all 0 where nothing was found.

    Raises
    ------
    TypeError, ValueError
        If `candidates` is not a `Candidates`, or another argument not floats of its shape.

    Examples
    --------
    >>> import numpy as np
    >>> found = np.array([[[True, False], [True, True]]])  # a query, two tables, two places
    >>> held = Candidates.of(np.array([[[4, 0], [4, 7]]]), found)  # key 4 in both tables
    >>> scores = np.log([[[1.0, 1.0], [1.0, 3.0]]])
    >>> duplicates(scores, held).round(3)
    array([[[0.2, 0. ],
            [0.2, 0.6]]])
    """
    _check(candidates, scores=scores)
    return _over_all(scores, candidates.found)


def importance(
    scores: Annotated[Array, "n_q n_tables C"],
    candidates: Candidates,
    probability: Annotated[Array, "n_q n_tables C"],
) -> Annotated[Array, "n_q n_tables C"]:
    r"""Divide what was found by the probability of finding it.

    .. math:: w_i \propto e^{s_i} / P_i, \qquad P_i = 1 - (1 - p_i^\kappa)^L

    Numerator and denominator are Horvitz-Thompson estimates, each unbiased; their ratio is biased
    by the order of its variance (claim 28).

    Parameters
    ----------
    scores : array, shape (n_q, n_tables, C)
        The score of each place; those of empty places do not count.
    candidates : Candidates
    probability : array, shape (n_q, n_tables, C)
        P of every place, above 0; one that has underflowed counts as the smallest number.

    Returns
    -------
    array, shape (n_q, n_tables, C)
        They sum to 1, or are all 0 where nothing was found.

    Raises
    ------
    TypeError, ValueError
        If `candidates` is not a `Candidates`, or another argument not floats of its shape.

    Examples
    --------
    >>> import numpy as np
    >>> found = np.array([[[True, False], [True, True]]])  # a query, two tables, two places
    >>> held = Candidates.of(np.array([[[4, 0], [4, 7]]]), found)  # key 4 in both tables
    >>> scores = np.log([[[1.0, 1.0], [1.0, 3.0]]])
    >>> importance(scores, held, np.array([[[0.5, 1.0], [0.5, 0.1]]])).round(2)
    array([[[0.06, 0.  ],
            [0.  , 0.94]]])
    """
    _check(candidates, scores=scores, probability=probability)
    xp = array_namespace(scores)
    # a place without a key has no probability
    safe = xp.where(candidates.distinct, probability, xp.ones_like(probability))
    return _over_all(scores - log_chance(safe), candidates.distinct)


def per_table_mean(
    scores: Annotated[Array, "n_q n_tables C"], candidates: Candidates
) -> Annotated[Array, "n_q n_tables C"]:
    """Take a softmax in each bucket and the mean over the buckets that hold a key.

    Parameters
    ----------
    scores : array, shape (n_q, n_tables, C)
        The score of each place; those of empty places do not count.
    candidates : Candidates

    Returns
    -------
    array, shape (n_q, n_tables, C)
        They sum to 1, or are all 0 where nothing was found.

    Raises
    ------
    TypeError, ValueError
        If `candidates` is not a `Candidates`, or another argument not floats of its shape.

    Examples
    --------
    >>> import numpy as np
    >>> found = np.array([[[True, False], [True, True]]])  # a query, two tables, two places
    >>> held = Candidates.of(np.array([[[4, 0], [4, 7]]]), found)  # key 4 in both tables
    >>> scores = np.log([[[1.0, 1.0], [1.0, 3.0]]])
    >>> per_table_mean(scores, held).round(3)
    array([[[0.5  , 0.   ],
            [0.125, 0.375]]])
    """
    weights = per_table_sum(scores, candidates)
    xp = array_namespace(weights)
    some = xp.astype(xp.any(candidates.found, axis=-1, keepdims=True), weights.dtype)
    return weights / or_one(xp.sum(some, axis=-2, keepdims=True))  # (n_q, 1, 1)


def per_table_sum(
    scores: Annotated[Array, "n_q n_tables C"], candidates: Candidates
) -> Annotated[Array, "n_q n_tables C"]:
    """Take a softmax in each bucket and add them up, as notes E1 and E2 do.

    The weights sum to the number of buckets that hold a key, not to 1, so that claims 25 and 26 are
    false for it.

    Parameters
    ----------
    scores : array, shape (n_q, n_tables, C)
        The score of each place; those of empty places do not count.
    candidates : Candidates

    Returns
    -------
    array, shape (n_q, n_tables, C)
        They sum to the number of buckets that hold a key.

    Raises
    ------
    TypeError, ValueError
        If `candidates` is not a `Candidates`, or another argument not floats of its shape.

    Examples
    --------
    >>> import numpy as np
    >>> found = np.array([[[True, False], [True, True]]])  # a query, two tables, two places
    >>> held = Candidates.of(np.array([[[4, 0], [4, 7]]]), found)  # key 4 in both tables
    >>> scores = np.log([[[1.0, 1.0], [1.0, 3.0]]])
    >>> per_table_sum(scores, held).round(3)
    array([[[1.  , 0.  ],
            [0.25, 0.75]]])
    """
    _check(candidates, scores=scores)
    return softmax_of(masked(scores, candidates.found), axis=-1)


def _check(candidates, **arrays):
    """Raise unless the arrays are floats of the shape of the candidates."""
    check_part("candidates", candidates, Candidates)
    shape = tuple(candidates.rows.shape)
    for name, x in arrays.items():
        check_float(name, x)
        check_same_home(name, x, "candidates", candidates.rows)
        if tuple(x.shape) != shape:
            raise ValueError(
                f"{name} must have shape {shape} to match candidates, got {tuple(x.shape)}"
            )


def _over_all(scores, mask):
    xp = array_namespace(scores)
    n_q, n_tables, width = scores.shape
    flat = xp.reshape(masked(scores, mask), (n_q, n_tables * width))
    return xp.reshape(softmax_of(flat, axis=-1), scores.shape)


ESTIMATORS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (union, importance, duplicates, per_table_mean, per_table_sum)
}
"""Every estimator by its name."""
