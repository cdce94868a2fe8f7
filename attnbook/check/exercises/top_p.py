"""The cut of nucleus sampling, and the ways to get it wrong."""

from collections.abc import Callable

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.text import Text
from attnbook.check.shared.cutting import cut_check, nucleus


@documented
def top_p(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check nucleus sampling: keep the fewest most likely tokens that sum to `threshold`.

    Runs `f` on sharp and on flat distributions, on sums that meet the threshold exactly, on equally
    likely tokens at the cut, on a threshold of 1 and on one below the largest probability, in
    float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(p, threshold)``, by position, on a distribution (V,) and a number above 0 and
        at most 1. It returns the distribution (V,) from which to draw: 0 for tokens that are cut,
        and the others divided by their sum. The most likely token is always kept. Among equally
        likely tokens at the cut, any may be kept, but no more of them than the sum needs.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> def my_top_p(p, threshold):
    ...     order = np.argsort(-p)
    ...     kept = order[np.cumsum(p[order]) <= threshold]
    ...     q = np.zeros_like(p)
    ...     q[kept] = p[kept] / p[kept].sum()
    ...     return q
    >>> check.top_p(my_top_p).mistake
    'crossing token dropped'
    """
    return run(TOP_P, f, time_limit)


TEXT = Text(globals())
TOP_P = cut_check("top_p", nucleus, TEXT.mistakes)
