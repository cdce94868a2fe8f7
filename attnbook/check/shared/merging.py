"""The merge of two running softmaxes in steps, and the ways to get each wrong."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from attnbook.check.engine.steps import Way, each
from attnbook.check.engine.text import Text


def _finite(maximum):
    return np.where(maximum == -np.inf, 0, maximum)


def _factor(own, other, base):
    return np.exp(own - base)


def _sum(factors, pair):
    return factors[0] * pair[0] + factors[1] * pair[1]


def _sum_with(change: Callable) -> Callable:
    """Return the sum of two totals, or weighted sums, whose factors are changed."""
    return lambda factors, pair, *others: _sum(change(factors), pair)


def merge_from_steps(s, m_1, z_1, u_1, m_2, z_2, u_2):
    """Return the part of both by the steps `s`."""
    m = s.maximum(m_1, m_2)
    base = s.base(m_1, m_2, m)
    f = s.first_factor(m_1, m_2, base), s.second_factor(m_2, m_1, base)
    z, u = (z_1, z_2), (u_1, u_2)
    return s.results(m, s.total(f, z), s.weighted(f, u, z), m_1, m_2)


def _other_part(either: bool) -> Callable:
    """Return the merge in which one empty row of the first part, or of either, drops the part."""

    def merged(*parts):
        if np.any(parts[0] == -np.inf):
            return parts[3:]
        if either and np.any(parts[3] == -np.inf):
            return parts[:3]
        return merge_from_steps(SimpleNamespace(**TEXT.steps), *parts)

    return merged


def _factors(function: Callable) -> dict[str, Callable]:
    """Return the way that makes both factors by `function(own, other, base)`."""
    return {"first_factor": function, "second_factor": function}


def _relative_to(*maxima: Callable) -> tuple[Way, ...]:
    """Return the ways to be relative to other numbers: with them returned, or the maximum."""
    bases = (lambda m_1, m_2, m, other=other: _finite(other(m_1, m_2)) for other in maxima)
    return (*each("maximum", *maxima), *each("base", *bases))


def _bare_base(m_1, m_2, m):
    return m


def _safe(total):
    return np.where(total == 0, 1, total)


def _one(own, other, base):
    return np.ones_like(own)


def _of_outputs(*joins: Callable) -> tuple[Way, ...]:
    """Return the ways whose weighted is made of the two finished outputs, guarded or not."""
    return tuple(
        {"weighted": lambda f, u, z, j=join, safe=safe: j(f, [u[i] / safe(z[i]) for i in (0, 1)])}
        for join in joins
        for safe in (_safe, np.asarray)
    )


def _as_if_outputs(f, u, z):
    return _sum(f, (z[0] * u[0], z[1] * u[1]))


TEXT = Text(globals())

MERGE_MISTAKES = TEXT.mistakes
