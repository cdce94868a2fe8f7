"""The rule of speculative sampling in steps: what is kept of a draft, and what is drawn instead."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values
from attnbook.check.engine.text import Text


@documented
def speculative_rule(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the rule by which speculative sampling keeps a drafted token or replaces it.

    Runs `f` on similar and on different distributions, on tokens with probability 0 under the
    model, and in float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(p, p_draft)``, by position, on the distributions (V,) of the model and of the
        draft model. The second is positive for every token, and the two differ. It returns two
        arrays (V,): for each token, the probability that it is kept if it was drafted, and the
        distribution of the replacement for a token that is not kept.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> def my_rule(p, p_draft):
    ...     return np.minimum(1, p / p_draft), p
    >>> check.speculative_rule(my_rule).mistake
    'drawn from the model'
    """
    return run(SPECULATIVE_RULE, f, time_limit)


def accepted(p, q):
    return np.minimum(1, p / q)


def missing(p, q):
    return np.maximum(p - q, 0)


def normalised(x):
    return x / np.sum(x)


def _rule(steps: Any, p, p_draft):
    kept = steps.kept(p, p_draft)
    return steps.results(kept, steps.share(steps.rest(p, p_draft)))


def the_result_is_the_model(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether a token that is drafted and kept or replaced has the model's distribution."""
    p, q = case.arrays["p"], case.arrays["p_draft"]
    kept, rest = values
    if kept.shape != p.shape or rest.shape != p.shape:
        return None
    mixed = q * kept + (1 - np.sum(q * kept)) * rest
    i = int(np.argmax(np.abs(mixed - p)))
    if np.isclose(mixed[i], p[i], atol=1e-5):
        return None
    return (
        f"By your rule token {i} comes out with probability {mixed[i]:.3g}; the model gives it "
        f"{p[i]:.3g}."
    )


def _case(p: Any, q: Any, dtype: str = "float64") -> Case:
    return Case({"p": np.array(p, dtype=dtype), "p_draft": np.array(q, dtype=dtype)})


_PAIRS = (
    ((0.6, 0.3, 0.1), (0.2, 0.5, 0.3)),
    ((0.5, 0.25, 0.15, 0.1, 0.0), (0.4, 0.3, 0.1, 0.1, 0.1)),
    ((0.05, 0.1, 0.25, 0.3, 0.1, 0.2), (0.35, 0.2, 0.15, 0.1, 0.1, 0.1)),
    ((0.0, 1.0), (0.875, 0.125)),
)

TEXT = Text(globals())

SPECULATIVE_RULE = Check(
    name="speculative_rule",
    parameters=("p", "p_draft"),
    results={"kept": "(V,)", "instead": "(V,)"},
    compute=_rule,
    steps=TEXT.steps,
    stages=(
        Stage(tuple(_case(*pair) for pair in _PAIRS)),
        Stage((_case(*_PAIRS[1], "float32"),)),
    ),
    mistakes=TEXT.mistakes,
    properties=(the_result_is_the_model,),
)
