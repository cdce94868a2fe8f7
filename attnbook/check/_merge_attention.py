"""The check of the merge of two running softmaxes, those of two parts of the keys."""

import contextlib
from collections.abc import Callable

import numpy as np

from attnbook.check._calls import signature_of
from attnbook.check._engine import run
from attnbook.check._merge_mistakes import EMPTY, MISTAKES, reference
from attnbook.check._model import Case, Check, Stage, Values, draw
from attnbook.check._report import Report


def merge_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the merge of two parts of an attention, each of keys that the other has not read.

    A part is a triple (maximum, total, weighted): of the scores s_j and values v_j that it has
    read, maximum is m = max s_j, total is Σ exp(s_j − m), and weighted is Σ exp(s_j − m) v_j. A row
    that has read nothing has (−∞, 0, 0). Runs `f` on parts of different sizes, on one query, with
    the larger maximum on either side and on both, on scores of ±1000 and differences of 2000,
    with nothing read on one side and on both, in float64 and float32, and on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(first, second)``, by position, on two tuples (maximum, total, weighted) of
        arrays (n_q, 1), (n_q, 1) and (n_q, d_v). It returns such a tuple, the part that has read
        the keys of both. It may be written for one sequence, without leading axes.
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
    >>> def my_merge(first, second):
    ...     maximum = np.maximum(first[0], second[0])
    ...     return maximum, first[1] + second[1], first[2] + second[2]
    >>> check.merge_attention(my_merge).mistake
    'no rescaling'
    """
    return run(MERGE_ATTENTION, f, time_limit)


def _adapt(function: Callable) -> Callable:
    """Return a function of the six arrays that hands them over as two triples."""

    def adapted(*arrays):
        return function(arrays[:3], arrays[3:])

    with contextlib.suppress(Exception):  # some functions do not tell
        adapted.__signature__ = signature_of(function)  # type: ignore[attr-defined]
    return adapted


def order_is_free(case: Case, values: Values, again: Callable) -> str | None:
    """The keys of both are the same keys whichever part comes first."""
    arrays = case.arrays
    other = {"first": "second", "second": "first"}
    swapped = {f"{other[name.split('_')[0]]}_{name.split('_')[1]}": x for name, x in arrays.items()}
    moved = again(**swapped)
    if moved and not all(np.allclose(m, v) for m, v in zip(moved, values, strict=True)):
        return "Exchanging the two parts must change nothing; here it does."
    return None


def nothing_changes_nothing(case: Case, values: Values, again: Callable) -> str | None:
    arrays = case.arrays
    nothing = {
        "second_maximum": np.full_like(arrays["second_maximum"], -np.inf),
        "second_total": np.zeros_like(arrays["second_total"]),
        "second_weighted": np.zeros_like(arrays["second_weighted"]),
    }
    kept = [arrays[f"first_{label}"] for label in ("maximum", "total", "weighted")]
    moved = again(**nothing)
    if moved and not all(np.allclose(m, k) for m, k in zip(moved, kept, strict=True)):
        return (
            "Merged with a part that has read nothing, a part must stay as it is; here it does not."
        )
    return None


def one_more_in_every_score(case: Case, values: Values, again: Callable) -> str | None:
    names = ("first_maximum", "second_maximum")
    moved = again(**{name: case.arrays[name] + 1 for name in names})
    if moved and not all(np.allclose(m, v) for m, v in zip(moved[1:], values[1:], strict=True)):
        return (
            "With 1 added to every score, both maxima are larger by 1 and nothing else changes; "
            "here total or weighted does."
        )
    return None


def _part(seed: int, n: int, n_k: int, d_v: int, lead: tuple = (), shift: float = 0.0) -> list:
    """Return the part that has read `n_k` drawn keys, with `shift` added to their scores."""
    scores, value = 2 * draw(seed, *lead, n, n_k) + shift, draw(seed + 1, *lead, n_k, d_v)
    if n_k == 0:
        rows = (*lead, n, 1)
        return [np.full(rows, -np.inf), np.zeros(rows), np.zeros((*lead, n, d_v))]
    maximum = np.max(scores, axis=-1, keepdims=True)
    weights = np.exp(scores - maximum)
    return [maximum, np.sum(weights, axis=-1, keepdims=True), weights @ value]


def _case(first: list, second: list, dtype: str = "float64", about: str = "") -> Case:
    labels = ("maximum", "total", "weighted")
    named = {f"first_{label}": x for label, x in zip(labels, first, strict=True)}
    named |= {f"second_{label}": x for label, x in zip(labels, second, strict=True)}
    return Case({name: x.astype(dtype) for name, x in named.items()}, about=about)


def _rows(*parts: list) -> list:
    """Return the rows of several parts, one below the other."""
    return [np.concatenate(arrays, axis=-2) for arrays in zip(*parts, strict=True)]


def _plain(dtype: str = "float64") -> tuple[Case, ...]:
    return (
        _case(_part(50, 3, 5, 3), _part(60, 3, 2, 3), dtype),
        _case(_part(51, 7, 2, 5), _part(61, 7, 11, 5), dtype),
        _case(_part(52, 1, 1, 2), _part(62, 1, 1, 2), dtype),
    )


_NONE = _part(0, 2, 0, 3)
_LARGE = (
    _case(_part(53, 3, 5, 2, shift=1000.0), _part(63, 3, 2, 2, shift=1001.0)),
    _case(_part(53, 3, 5, 2, shift=-1000.0), _part(63, 3, 2, 2, shift=-1001.0)),
)
_FAR = (
    _case(
        _rows(_part(54, 2, 3, 5, shift=1000.0), _part(55, 1, 3, 5, shift=-1000.0)),
        _rows(_part(64, 2, 2, 5, shift=-1000.0), _part(65, 1, 2, 5, shift=1000.0)),
    ),
)
_EMPTY = (
    _case(_part(56, 2, 5, 3), _NONE, about=" (the second has read nothing)"),
    _case(_NONE, _part(66, 2, 7, 3), about=" (the first has read nothing)"),
    _case(_NONE, _NONE, about=" (neither has read anything)"),
    _case(
        _rows(_NONE, _part(57, 1, 3, 3, shift=-1000.0)),
        _rows(_part(67, 1, 2, 3), _part(0, 1, 0, 3), _part(68, 1, 2, 3, shift=-1000.0)),
        about=" (one row of neither)",
    ),
)

MERGE_ATTENTION = Check(
    name="merge_attention",
    parameters=("first", "second"),
    results={
        "maximum": "(..., n_q, 1)",
        "total": "(..., n_q, 1)",
        "weighted": "(..., n_q, d_v)",
    },
    reference=reference,
    stages=(
        Stage(_plain()),
        Stage(_plain("float32")[:2]),
        Stage(_LARGE, errors={OverflowError: "no maximum", ZeroDivisionError: "no maximum"}),
        Stage(_FAR, errors={OverflowError: "one part's maximum for both"}),
        Stage(_EMPTY, errors=dict.fromkeys((ValueError, ZeroDivisionError), EMPTY[0])),
        Stage(
            (
                _case(_part(58, 3, 5, 2, (7,)), _part(69, 3, 4, 2, (7,))),
                _case(_part(58, 3, 5, 2, (2, 3)), _part(69, 3, 4, 2, (2, 3))),
            ),
            beyond="a batch (leading axes)",
        ),
    ),
    mistakes=MISTAKES,
    properties=(order_is_free, nothing_changes_nothing, one_more_in_every_score),
    options=(),
    remarked_options=(),
    adapt=_adapt,
)
