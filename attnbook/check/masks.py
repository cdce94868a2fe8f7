"""The causal mask in steps, the ways to get each wrong, and the check of it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

import attnbook
from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.signatures import binds, signature_of
from attnbook.check.steps import Case, Check, Stage, Values, each


@documented
def causal_mask(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a causal mask: which query may attend to which key.

    Runs `f` on squares, on more keys than queries, as with a cache, down to one query, on more
    queries than keys, and on sizes of 0.

    Parameters
    ----------
    f : callable
        Called as ``f(n_q, n_k)``, by position, on two ints, or as ``f(n)`` if it takes one alone;
        then only squares are checked. It returns a boolean array (n_q, n_k) of any library,
        **True = may attend**, aligned to the last key: query i may attend to key j where
        j ≤ i + n_k - n_q. On a size of 0 it may raise.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> check.causal_mask(lambda n_q, n_k: np.tri(n_q, n_k, dtype=bool)).mistake
    'aligned to the first key'
    """
    report = run(CAUSAL_MASK, f, time_limit)
    if report.case is None or not _takes_two(f):
        return report
    n_q = report.case.arguments["n_q"]  # the case is called again with both sizes by position
    n_k = report.case.input.get("n_k", n_q)
    message = report.message
    if n_q > n_k and report.mistake in ("raises", "wrong shape"):
        message += (
            f" Here there are more queries than keys, so the mask has shape ({n_q}, {n_k}) and its "
            f"first {n_q - n_k} rows are empty. A slice of a square mask, such as mask[-n_q:], has "
            "at most n_k rows. Compare the places instead: j ≤ i + n_k - n_q."
        )
    case = replace(report.case, arguments={"n_q": n_q, "n_k": n_k}, options={})
    return replace(report, message=message, case=case)


_STEPS: dict[str, Callable] = {
    "sizes": lambda n_q, n_k: (n_q, n_k),
    "offset": lambda n_q, n_k: n_k - n_q,
    "compare": lambda i, j: j <= i,  # places of query and key in the sequence of keys
    "result": lambda mask: mask,
}


def _from_steps(s, n_q, n_k=None):
    n_q, n_k = s.sizes(n_q, n_q if n_k is None else n_k)
    i, j = np.arange(n_q)[:, np.newaxis] + s.offset(n_q, n_k), np.arange(n_k)
    return s.result(np.broadcast_to(s.compare(i, j), (n_q, n_k)))


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


def _is_of_nothing(returned):
    """Tell whether `returned` is what NumPy makes of an empty list."""
    is_floats = isinstance(returned, np.ndarray) and returned.dtype.kind == "f"
    return is_floats and returned.shape[-1:] == (0,)


_MISTAKES = mistakes(
    """
    additive mask [torch.nn.Transformer]: you return the numbers that are added to the scores, 0
        where a query may look and −∞ where it may not. Here a mask is boolean, True = may attend:
        return mask == 0.
    numbers for booleans: You return the numbers 0 and 1. A mask is boolean, True = may attend:
        compare, as in mask == 1, or make the array with dtype=bool. Numbers would be taken for
        something to add to the scores, or for indices.
    list of nothing: For a size of 0 your lists are empty, and np.array makes numbers of them, or an
        array of one axis. Fill np.zeros((n_q, n_k), dtype=bool), or compare two ranges.
    inverted [torch.nn.MultiheadAttention]: your mask is True where a query may not look. Here True
        means that the query may attend to the key: return ~mask, or turn the comparison round.
    upper triangle: You return the upper triangle: each query sees itself and the future, and not
        the past. Rows are queries and columns are keys, so what came before lies in the lower
        triangle.
    own place hidden: The diagonal is one place too low: a query does not see the key at its own
        place, and the first sees nothing. Its own token is known to it: j ≤ i, not j < i.
    next place visible: The diagonal is one place too high: each query sees the key after its own,
        which is the very token that it is to predict. The loss will be too good.
    everything visible: Every query may see every key: nothing is hidden.
    nothing visible: No query may see any key: everything is hidden, its own place too.
    diagonal alone: Each query sees its own place and nothing before it.
    own place alone hidden: Each query sees every place but its own, those after it too. What lies
        after it is hidden, and its own is not: j ≤ i.
    upside down: The first query sees everything and the last one a single key: the rows are in
        reverse order, or the columns. The later the query, the more it sees.
    window of two: Each query sees its own place and the one before, no more. A causal mask shows
        all before.
    aligned to the first key: You align the first query with the first key. With more keys, as with
        a cache, the queries are the last tokens: the last query belongs to the last key. One new
        query would see the first key alone. It is j ≤ i + n_k − n_q.
    offset never negative: With fewer keys than queries you align the first query with the first
        key, or shift the diagonal to the right. The last query belongs to the last key there too,
        so the first queries see nothing: the offset n_k − n_q may be negative. Keep its sign.
    offset with the wrong sign: You shift the diagonal by n_q − n_k, the wrong way. The last query
        sees every key, so with more keys the diagonal moves to the right: j ≤ i + n_k − n_q.
    offset off by one: With another number of keys than of queries your diagonal is one place too
        far left or right. The last query sees the last key and all before: j ≤ i + n_k − n_q.
    last row empty: The last query sees nothing: the loop over the queries ends too early.
    shape transposed: Your mask has a row for each key. The scores are (n_q, n_k), a row for each
        query, and so is the mask.
    square only: You return a square mask, though the two sizes differ. The mask has a row for each
        query and a column for each key: (n_q, n_k).
    diagonal two places off: Your diagonal is two places too high or too low: a query sees the two
        keys after its own, or does not see its own and the one before it. It is j ≤ i.
    neighbour alone: Each query sees the place before its own, or the one after it, and no other. It
        sees its own place and all before it.
    short window: Each query sees its own place and two or three before it, no more. A causal mask
        shows all before.
    """,
    {
        "list of nothing": {"result": lambda mask: mask if len(mask) else np.zeros(0, dtype=bool)},
        "inverted": {"result": np.logical_not},
        "upper triangle": {"compare": lambda i, j: j >= i},
        "own place hidden": {"compare": lambda i, j: j < i},
        "next place visible": {"compare": lambda i, j: j <= i + 1},
        "everything visible": {"compare": lambda i, j: j >= 0},
        "nothing visible": {"compare": lambda i, j: j < 0},
        "diagonal alone": {"compare": lambda i, j: j == i},
        "own place alone hidden": {"compare": lambda i, j: j != i},
        "upside down": each("result", lambda mask: mask[::-1], lambda mask: mask[:, ::-1]),
        "diagonal two places off": each(
            "compare", lambda i, j: j <= i + 2, lambda i, j: j <= i - 2
        ),
        "neighbour alone": each("compare", lambda i, j: j == i - 1, lambda i, j: j == i + 1),
        "short window": each(
            "compare",
            lambda i, j: (j <= i) & (j > i - 3),
            lambda i, j: (j <= i) & (j > i - 4),
        ),
        "window of two": {"compare": lambda i, j: (j <= i) & (j >= i - 1)},
        "aligned to the first key": {"offset": lambda n_q, n_k: 0},
        "offset never negative": each(
            "offset", lambda n_q, n_k: max(0, n_k - n_q), lambda n_q, n_k: abs(n_k - n_q)
        ),
        "offset with the wrong sign": {"offset": lambda n_q, n_k: n_q - n_k},
        "offset off by one": tuple(
            {"offset": lambda n_q, n_k, by=by: n_k - n_q + by * (n_k != n_q)} for by in (-1, 1)
        ),
        "last row empty": each(
            "result", lambda mask: mask & (np.arange(len(mask)) < len(mask) - 1)[:, np.newaxis]
        ),
        "shape transposed": (
            {"sizes": lambda n_q, n_k: (n_k, n_q)},
            {"sizes": lambda n_q, n_k: (n_k, n_q), "offset": lambda n_q, n_k: 0},
            {"result": np.transpose},
        ),
        "square only": tuple(
            {"sizes": lambda n_q, n_k, size=size: (size(n_q, n_k),) * 2}
            for size in (lambda n_q, n_k: n_q, lambda n_q, n_k: n_k, max, min)
        ),
    },
    {
        "additive mask": _looks_additive,
        "numbers for booleans": _looks_boolean,
        "list of nothing": _is_of_nothing,
    },
)


def _takes_two(function: Callable) -> bool:
    signature = signature_of(function)
    return signature is None or binds(signature, 2)


def _adapt(function: Callable) -> Callable:
    """Return `function` as one of n_q, and of n_k too if it takes two sizes."""
    if _takes_two(function):
        return lambda n_q, n_k=None: function(n_q, n_q if n_k is None else n_k)
    return function


def last_query_sees_all(case: Case, values: Values, again: Callable) -> str | None:
    if np.all(values[0][-1:]):
        return None
    return "The last query stands beside the last key and may see every key; here it may not."


def later_queries_see_more(case: Case, values: Values, again: Callable) -> str | None:
    if np.all(values[0][:-1] <= values[0][1:]):
        return None
    return "What one query may see the next may see too; here it may not."


def _cases(*sizes: tuple[int, int]) -> tuple[Case, ...]:
    return tuple(Case({"n_q": n_q}, {"n_k": n_k}) for n_q, n_k in sizes)


CAUSAL_MASK = Check(
    name="causal_mask",
    parameters=("n_q", "n_k"),
    results={"mask": "(n_q, n_k)"},
    reference=attnbook.masking.causal,
    compute=_from_steps,
    steps=_STEPS,
    stages=(
        Stage(tuple(Case({"n_q": n}) for n in (3, 1, 2, 5))),
        # a cache with several queries and with one, more queries than keys, and by one
        Stage(_cases((2, 5), (1, 7), (5, 2), (3, 4), (4, 3), (1, 2)), option="n_k"),
        Stage((Case({"n_q": 0}),), may_raise="a size of 0"),
        Stage(_cases((0, 3), (3, 0)), option="n_k", may_raise="a size of 0"),
    ),
    mistakes=_MISTAKES,
    properties=(last_query_sees_all, later_queries_see_more),
    options=("n_k",),
    remarked_options=("n_k",),
    adapt=_adapt,
    kind="bool",
)
