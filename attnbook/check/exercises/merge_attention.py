"""The check of the merge of two running softmaxes."""

from collections.abc import Callable

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import signature_of
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.shared.merging import MERGE_MISTAKES, TEXT, merge_from_steps


@documented
def merge_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the merge of two partial results of attention over disjoint sets of keys.

    A part is a triple (maximum, total, weighted). For the scores s_j and values v_j that it has
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

    signature = signature_of(function)
    if signature is not None:
        adapted.__signature__ = signature  # type: ignore[attr-defined]
    return adapted


def _again(change: Callable, wanted: Callable, sentence: str) -> Callable[..., str | None]:
    """Return the property that with other arrays the results are ``wanted(arrays, values)``."""

    def holds(case: Case, values: Values, again: Callable) -> str | None:
        pairs = zip(again(**change(case.arrays)), wanted(case.arrays, values), strict=False)
        return None if all(np.allclose(got, right) for got, right in pairs) else sentence

    return holds


order_is_free = _again(
    lambda arrays: {name: arrays[_NAMES[i - 3]] for i, name in enumerate(_NAMES)},
    lambda arrays, values: values,
    "Exchanging the two parts must change nothing; here it changes the result.",
)
nothing_changes_nothing = _again(
    lambda arrays: {
        **{name: np.zeros_like(x) for name, x in arrays.items() if name.startswith("second")},
        "second_maximum": np.full_like(arrays["second_maximum"], -np.inf),
    },
    lambda arrays, values: list(arrays.values())[:3],
    "Merged with a part that has read nothing, a part must stay as it is; here it does not.",
)
one_more_in_every_score = _again(
    lambda arrays: {name: x + 1 for name, x in arrays.items() if name.endswith("maximum")},
    lambda arrays, values: (values[0] + 1, *values[1:]),
    "With 1 added to every score, both maxima are larger by 1 and nothing else changes; here the "
    "result does otherwise.",
)


def _part(seed: int, n: int, n_k: int, d_v: int, lead: tuple = (), shift: float = 0.0) -> list:
    """Return the part that has read `n_k` drawn keys, with `shift` added to their scores."""
    scores, value = 2 * draw(seed, *lead, n, n_k) + shift, draw(seed + 1, *lead, n_k, d_v)
    if n_k == 0:
        rows = (*lead, n, 1)
        return [np.full(rows, -np.inf), np.zeros(rows), np.zeros((*lead, n, d_v))]
    maximum = np.max(scores, axis=-1, keepdims=True)
    weights = np.exp(scores - maximum)
    return [maximum, np.sum(weights, axis=-1, keepdims=True), weights @ value]


_LABELS = ("maximum", "total", "weighted")
_NAMES: list[str] = [f"{part}_{label}" for part in ("first", "second") for label in _LABELS]


def _case(first: list, second: list, dtype: str = "float64", about: str = "") -> Case:
    arrays = (x.astype(dtype) for x in (*first, *second))
    return Case(dict(zip(_NAMES, arrays, strict=True)), about=about)


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
    results={"maximum": "(..., n_q, 1)", "total": "(..., n_q, 1)", "weighted": "(..., n_q, d_v)"},
    compute=merge_from_steps,
    steps=TEXT.steps,
    stages=(
        Stage(_plain()),
        Stage(_plain("float32")[:2]),
        Stage(_LARGE, errors={OverflowError: "no maximum", ZeroDivisionError: "no maximum"}),
        Stage(_FAR, errors={OverflowError: "one part's maximum for both"}),
        Stage(_EMPTY, errors=dict.fromkeys((ValueError, ZeroDivisionError), "empty parts NaN")),
        Stage(
            (
                _case(_part(58, 3, 5, 2, (7,)), _part(69, 3, 4, 2, (7,))),
                _case(_part(58, 3, 5, 2, (2, 3)), _part(69, 3, 4, 2, (2, 3))),
            ),
            may_raise="a batch (leading axes)",
        ),
    ),
    mistakes=MERGE_MISTAKES,
    properties=(order_is_free, nothing_changes_nothing, one_more_in_every_score),
    adapt=_adapt,
)
