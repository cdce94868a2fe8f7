"""The check of the causal mask: which way round, where the diagonal lies, and booleans."""

from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check._calls import binds, signature_of
from attnbook.check._engine import run
from attnbook.check._model import Case, Check, Mistake, Stage, Values
from attnbook.check._report import Report


def causal_mask(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a causal mask: which query may attend to which key.

    Runs `f` on squares, on more keys than queries, as with a cache, down to one query, and on more
    queries than keys.

    Parameters
    ----------
    f : callable
        Called as ``f(n_q, n_k)``, by position, on two ints, or as ``f(n)`` if it takes one alone;
        then only squares are checked. It returns a boolean array (n_q, n_k) of any library,
        **True = may attend**, aligned to the last key: query i may attend to key j where
        j ≤ i + n_k - n_q.
    time_limit : float
        Seconds for all calls together.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `f` is not callable, or `time_limit` is not a finite number of at least 0.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> check.causal_mask(lambda n_q, n_k: np.tri(n_q, n_k, dtype=bool)).mistake
    'aligned to the first key'
    """
    return run(CAUSAL_MASK, f, time_limit)


def _adapt(function: Callable) -> Callable:
    """Return `function` as one of n_q, and of n_k too if it takes two sizes."""
    try:
        signature = signature_of(function)
    except Exception:  # some functions do not tell
        return lambda n_q, n_k=None: function(n_q, n_q if n_k is None else n_k)
    if binds(signature, 2):
        return lambda n_q, n_k=None: function(n_q, n_q if n_k is None else n_k)
    return function


def _pairs(n_q, n_k):
    """Return the places of queries and keys in the sequence of keys, to be compared."""
    return np.arange(n_q)[:, np.newaxis] + n_k - n_q, np.arange(n_k)


def _model(allows: Callable) -> Callable:
    """Return the mask of all pairs that `allows(i, j, n_k - n_q)`, with i aligned to the end."""

    def model(n_q, n_k=None):
        n_k = n_q if n_k is None else n_k
        i, j = _pairs(n_q, n_k)
        return np.broadcast_to(allows(i, j, n_k - n_q), (n_q, n_k))

    return model


def _right(i, j, surplus):
    return j <= i


def last_query_sees_all(case: Case, values: Values, again: Callable) -> str | None:
    if np.all(values[0][-1]):
        return None
    return "The last query stands beside the last key and may see every key; here it may not."


def later_queries_see_more(case: Case, values: Values, again: Callable) -> str | None:
    if np.all(values[0][:-1] <= values[0][1:]):
        return None
    return "What one query may see the next may see too; here it may not."


def _numbers(returned):
    """Return the numbers of an array that should have been boolean, else none."""
    is_numbers = isinstance(returned, np.ndarray) and returned.dtype.kind in "iuf"
    return returned.flatten() if is_numbers else np.zeros(0)


def _looks_additive(returned):
    numbers = _numbers(returned)
    return numbers.size > 1 and bool(np.all((numbers == 0) | (numbers < -100)))


def _looks_boolean(returned):
    numbers = _numbers(returned)
    return numbers.size > 0 and bool(np.all((numbers == 0) | (numbers == 1)))


_MISTAKES = (
    Mistake(
        "additive mask",
        "You return the numbers that are added to the scores, 0 where a query may look and −∞ or a "
        "large negative number where it may not. A mask is boolean here, True = may attend: return "
        "mask == 0.",
        (),
        told_by=_looks_additive,
    ),
    Mistake(
        "numbers for booleans",
        "You return the numbers 0 and 1. A mask is boolean, True = may attend: compare, as in mask "
        "== 1, or make the array with dtype=bool. Numbers would be taken for something to add to "
        "the scores, or for indices.",
        (),
        told_by=_looks_boolean,
    ),
    Mistake(
        "inverted",
        "Your mask is inverted: it is True where a query may not look. Here True means that the "
        "query may attend to the key. Other libraries have it the other way round, which is why it "
        "is worth a test.",
        (_model(lambda i, j, surplus: j > i), _model(lambda i, j, surplus: j > i - surplus)),
    ),
    Mistake(
        "upper triangle",
        "You return the upper triangle: each query sees itself and the future, and not the past. "
        "Rows are queries and columns are keys, so what came before lies to the left of the "
        "diagonal: the lower triangle.",
        (
            _model(lambda i, j, surplus: j >= i),
            _model(lambda i, j, surplus: j >= i - surplus),
            _model(lambda i, j, surplus: j >= i - 2 * surplus),
            lambda n_q, n_k=None: np.tri(n_q, n_k, (n_k or n_q) - n_q, dtype=bool).T,
            lambda n_q, n_k=None: np.tri(n_q, n_k, dtype=bool).T,
        ),
    ),
    Mistake(
        "own place hidden",
        "The diagonal is one place too low: a query does not see the key at its own place, and the "
        "first query sees nothing at all. Its own token is known to it: j ≤ i, not j < i.",
        (_model(lambda i, j, surplus: j < i), _model(lambda i, j, surplus: j < i - surplus)),
    ),
    Mistake(
        "next place visible",
        "The diagonal is one place too high: each query sees the key after its own, which is the "
        "very token that it is to predict. The loss will be too good.",
        (
            _model(lambda i, j, surplus: j <= i + 1),
            _model(lambda i, j, surplus: j <= i - surplus + 1),
        ),
    ),
    Mistake(
        "everything visible",
        "Every query may see every key: nothing is hidden.",
        (_model(lambda i, j, surplus: j >= 0),),
    ),
    Mistake(
        "diagonal alone",
        "Each query sees its own place and nothing before it.",
        (_model(lambda i, j, surplus: j == i), _model(lambda i, j, surplus: j == i - surplus)),
    ),
    Mistake(
        "aligned to the first key",
        "You align the first query with the first key. With more keys than queries, as with a "
        "cache, the queries are the last tokens: the last query belongs to the last key. One new "
        "query would see the first key alone. Key j is visible to query i where j ≤ i + n_k − n_q.",
        (_model(lambda i, j, surplus: j <= i - surplus),),
    ),
    Mistake(
        "offset never negative",
        "With fewer keys than queries you align the first query with the first key. The last query "
        "belongs to the last key there too, so the first queries see nothing: the offset n_k − n_q "
        "may be negative. Do not cut it at 0.",
        (lambda n_q, n_k=None: np.tri(n_q, n_k, max(0, (n_k or n_q) - n_q), dtype=bool),),
    ),
    Mistake(
        "offset with the wrong sign",
        "You shift the diagonal by n_q − n_k, the wrong way. The last query sees every key, so "
        "with more keys than queries the diagonal moves to the right: j ≤ i + n_k − n_q.",
        (_model(lambda i, j, surplus: j <= i - 2 * surplus),),
    ),
    Mistake(
        "shape transposed",
        "Your mask has a row for each key. The scores are (n_q, n_k), a row for each query, and so "
        "is the mask.",
        (
            lambda n_q, n_k=None: _model(_right)(n_k or n_q, n_q),
            lambda n_q, n_k=None: np.tri(n_k or n_q, n_q, dtype=bool),
        ),
    ),
    Mistake(
        "square only",
        "You return a square mask, whatever the other size is. The mask has a row for each query "
        "and a column for each key: (n_q, n_k).",
        (
            lambda n_q, n_k=None: np.tri(n_q, dtype=bool),
            lambda n_q, n_k=None: np.tri(n_k or n_q, dtype=bool),
        ),
    ),
)

_SIZES = ((2, 5), (1, 7), (5, 2), (3, 4), (4, 3), (1, 2))
"""n_q and n_k: a cache with several queries and with one, more queries than keys, and by one."""

CAUSAL_MASK = Check(
    name="causal_mask",
    parameters=("n_q", "n_k"),
    results={"mask": "(n_q, n_k)"},
    reference=attnbook.masking.causal,
    stages=(
        Stage(tuple(Case({"n_q": n}) for n in (3, 1, 2, 5))),
        Stage(tuple(Case({"n_q": n_q}, {"n_k": n_k}) for n_q, n_k in _SIZES), option="n_k"),
    ),
    mistakes=_MISTAKES,
    properties=(last_query_sees_all, later_queries_see_more),
    options=("n_k",),
    remarked_options=("n_k",),
    adapt=_adapt,
    kind="bool",
)
