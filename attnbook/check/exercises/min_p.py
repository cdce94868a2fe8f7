"""The cut of min-p, and the ways to get it wrong."""

from collections.abc import Callable

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.text import Text
from attnbook.check.shared.cutting import cut_check, near_the_best


@documented
def min_p(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check min-p sampling: keep tokens of at least `threshold` times the largest probability.

    Runs `f` on the distributions of `top_p`.

    Parameters
    ----------
    f : callable
        Called as ``f(p, threshold)``, by position, on a distribution (V,) and a number above 0 and
        at most 1. It returns the distribution (V,) that is drawn from, as for `top_p`.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> def my_min_p(p, threshold):
    ...     q = np.where(p >= threshold, p, 0)
    ...     return q / q.sum()
    >>> check.min_p(my_min_p).mistake
    'threshold not relative'
    """
    return run(MIN_P, f, time_limit)


TEXT = Text(globals())
MIN_P = cut_check("min_p", near_the_best, TEXT.mistakes)
