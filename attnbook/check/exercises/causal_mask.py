"""The causal mask in steps, the ways to get each wrong, and the check of it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import binds, signature_of
from attnbook.check.engine.steps import Case, Check, Stage, Values
from attnbook.check.engine.text import Text


@documented
def causal_mask(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a causal mask: which query may attend to which key.

    Runs `f` on squares, on more keys than queries, as with a cache, down to one query, on more
    queries than keys, and on sizes of 0.

    Parameters
    ----------
    f : callable
        Called as ``f(n_q, n_k)``, by position, on two ints. If it takes only one argument, it is
        called as ``f(n)``, and only square masks are checked. It returns a boolean array (n_q, n_k)
        of any library, **True = may attend**. The last query is aligned with the last key, so query
        i may attend to key j if j ≤ i + n_k - n_q. For a size of 0 it may raise an error.

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


TEXT = Text(globals())


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
    steps=TEXT.steps,
    stages=(
        Stage(tuple(Case({"n_q": n}) for n in (3, 1, 2, 5))),
        # a cache with several queries and with one, more queries than keys, and by one
        Stage(_cases((2, 5), (1, 7), (5, 2), (3, 4), (4, 3), (1, 2)), option="n_k"),
        Stage((Case({"n_q": 0}),), may_raise="a size of 0"),
        Stage(_cases((0, 3), (3, 0)), option="n_k", may_raise="a size of 0"),
    ),
    mistakes=TEXT.mistakes,
    properties=(last_query_sees_all, later_queries_see_more),
    options=("n_k",),
    remarked_options=("n_k",),
    adapt=_adapt,
    kind="bool",
)
