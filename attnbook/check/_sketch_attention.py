"""The check of attention over the union of the buckets that a query falls into."""

from collections.abc import Callable

import numpy as np

from attnbook.check._engine import run
from attnbook.check._model import Case, Check, Stage, Values, draw
from attnbook.check._report import Report
from attnbook.check._sketch_mistakes import EMPTY_ROW, MISTAKES, meets_in, reference, union


def sketch_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check attention over the keys that share a bucket with the query in at least one table.

    Key j is a candidate of query i where query_signatures[i, t] == key_signatures[j, t] in one
    table t or more. The output of a query is softmax(q · k/√d) over its candidates, each counted
    once, times their values; a query without candidates gets zeros. Runs `f` on a square, on one
    query, one key and one table, on sizes that are all different primes, on keys that are found
    in several tables, on queries that find nothing, on scores of ±1000, in float64 and float32,
    and on signatures that need all bits of an int64.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value, query_signatures, key_signatures)``, by position, on
        arrays (n_q, d), (n_k, d) and (n_k, d_v) of floats and (n_q, n_tables) and (n_k, n_tables)
        of int64. It returns the output alone, of shape (n_q, d_v).
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
    >>> from attnbook import attention, check
    >>> def my_sketch(query, key, value, query_signatures, key_signatures):
    ...     meets = query_signatures[:, None, :] == key_signatures[None, :, :]
    ...     return attention(query, key, value, meets.all(axis=-1))
    >>> check.sketch_attention(my_sketch).mistake
    'every table'
    """
    return run(SKETCH_ATTENTION, f, time_limit)


def _candidates(case: Case) -> np.ndarray:
    return union(meets_in(*(case.arguments[f"{who}_signatures"] for who in ("query", "key"))))


def outputs_between_candidates(case: Case, values: Values, again: Callable) -> str | None:
    for output, found in zip(values[0], _candidates(case), strict=True):
        there = case.arrays["value"][found]
        if len(there) == 0 or output.shape != there.shape[1:]:
            continue
        if np.any(output < there.min(axis=0) - 1e-5) or np.any(output > there.max(axis=0) + 1e-5):
            return (
                "Each output is a weighted mean of the candidates' values and lies between the "
                "smallest and the largest of its column; here one lies outside."
            )
    return None


def others_change_nothing(case: Case, values: Values, again: Callable) -> str | None:
    unseen = ~_candidates(case)[0][:, np.newaxis]  # what query 0 does not find
    moved = again(**{name: case.arrays[name] + unseen for name in ("key", "value")})
    if moved and not np.allclose(moved[0][0], values[0][0]):
        return (
            "Changing keys that share no bucket with a query must not change its output; here it "
            "does."
        )
    return None


def order_of_keys_is_free(case: Case, values: Values, again: Callable) -> str | None:
    names = ("key", "value", "key_signatures")
    moved = again(**{name: np.flip(case.arrays[name], axis=0) for name in names})
    if moved and not np.allclose(moved[0], values[0]):
        return (
            "Reversing the order of keys, values and their signatures together must change "
            "nothing; here it changes the output."
        )
    return None


def order_of_tables_is_free(case: Case, values: Values, again: Callable) -> str | None:
    names = ("query_signatures", "key_signatures")
    moved = again(**{name: np.flip(case.arrays[name], axis=1) for name in names})
    if moved and not np.allclose(moved[0], values[0]):
        return "Reversing the order of the tables must change nothing; here it changes the output."
    return None


def _case(
    sizes: tuple[int, int, int, int],
    query_signatures: list,
    key_signatures: list,
    dtype: str = "float64",
) -> Case:
    n_q, n_k, d, d_v = sizes
    arrays = {"query": draw(35, n_q, d), "key": draw(36, n_k, d), "value": draw(37, n_k, d_v)}
    return _signed(
        {name: x.astype(dtype) for name, x in arrays.items()}, query_signatures, key_signatures
    )


def _signed(arrays: dict, query_signatures: list, key_signatures: list) -> Case:
    signatures = {"query_signatures": query_signatures, "key_signatures": key_signatures}
    given = {name: np.array(rows, dtype=np.int64) for name, rows in signatures.items()}
    return Case({**arrays, **given})


# every query finds a key; one in two tables, one in the first alone, one in the last alone
_SQUARE = ([[1, 2, 3], [4, 1, 5], [1, -6, 7]], [[1, 2, 0], [4, 3, 7], [13, -6, 3]])
_WIDE = ([[5, 0], [-3, 2]], [[5, 1], [0, 2], [5, 0], [-3, 5], [2, 2], [-3, 2], [1, 0]])
_TALL = ([[1, 4, 2], [3, 0, 0], [3, 4, 1], [0, 9, 2], [1, 5, 6]], [[1, 4, 2], [3, 5, 2]])
_ONE_TABLE = ([[7], [-1], [3]], [[-1], [7], [3], [7], [-1]])
_EMPTY = ([[1, 2], [8, 9], [3, 4]], [[1, 0], [3, 2], [5, 4], [1, 2], [2, 1]])
_LARGE = {
    "query": np.array([[2048.0, 0.0, 0.0, 0.0], [-2048.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]]),
    "key": np.array([[1024, 0, 3072, 512], [1025, 1024, 2048, 0], [1023, 2048, 512, 4096]]) / 1024,
    "value": draw(4, 3, 2),
}
"""Scores near 1024, −1024 and 1; every product is exact."""
_SPREAD = {
    "query": np.array([[2048.0, 0.0, 0.0, 0.0], [0.0, 2048.0, 0.0, 0.0]]),
    "key": np.array([[1.0, -1.0, 3.0, 2.0], [0.0, 0.0, 1.0, 5.0], [-1.0, 1.0, 2.0, 0.0]]),
    "value": draw(4, 3, 2),
}
"""Scores 1024, 0 and −1024; the candidates are those with the lowest scores."""
_BIG = 2**62
_BITS = (
    [[_BIG, 5], [-_BIG + 1, 2**33 + 7], [2**40 + 3, _BIG - 2]],
    [
        [_BIG, 7],
        [_BIG - 1, 2**34 + 5],
        [-_BIG, 2**33 + 7],
        [-_BIG + 1, 5],
        [3, _BIG - 2],
        [2**40 + 2, _BIG - 3],
        [2**41 + 3, 7],
    ],
)
"""Signatures that are equal in 8, 16, 24, 32 or 53 bits, and not in 64."""

_OF_NOTHING = (ValueError, ZeroDivisionError, IndexError, RuntimeError)
"""What a largest score of no scores, or a division by their sum, raises in one library or other."""

SKETCH_ATTENTION = Check(
    name="sketch_attention",
    parameters=("query", "key", "value", "query_signatures", "key_signatures"),
    results={"output": "(n_q, d_v)"},
    reference=reference,
    stages=(
        Stage(
            (
                _case((3, 3, 3, 3), *_SQUARE),
                _case((2, 7, 3, 5), *_WIDE),
                _case((5, 2, 7, 3), *_TALL),
                _case((3, 5, 2, 7), *_ONE_TABLE),
                _case((1, 1, 5, 2), [[4, 2]], [[3, 2]]),
                _case((3, 3, 5, 2), *_SQUARE),
            )
        ),
        Stage((_case((3, 3, 3, 3), *_SQUARE, "float32"), _case((2, 7, 3, 5), *_WIDE, "float32"))),
        Stage(
            (_case((3, 5, 2, 7), *_EMPTY), _case((1, 2, 3, 2), [[1]], [[2], [0]])),
            errors=dict.fromkeys(_OF_NOTHING, EMPTY_ROW[0]),
        ),
        Stage((_signed(_LARGE, *_SQUARE),), errors={OverflowError: "no maximum"}),
        Stage(
            (_signed(_SPREAD, [[1, 2], [3, 4]], [[0, 4], [3, 2], [1, 2]]),),
            errors={ZeroDivisionError: "maximum over all keys"},
        ),
        Stage((_case((3, 7, 5, 3), *_BITS),)),
    ),
    mistakes=MISTAKES,
    properties=(
        others_change_nothing,
        order_of_keys_is_free,
        order_of_tables_is_free,
        outputs_between_candidates,
    ),
    options=(),
    remarked_options=(),
)
