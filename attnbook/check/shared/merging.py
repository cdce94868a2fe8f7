"""The merge of two running softmaxes in steps, and the ways to get each wrong."""

from types import SimpleNamespace

import numpy as np

from attnbook.check.engine.text import Text


def finite(maximum):
    return np.where(maximum == -np.inf, 0, maximum)


def both(factors, pair):
    return factors[0] * pair[0] + factors[1] * pair[1]


def merge_from_steps(s, m_1, z_1, u_1, m_2, z_2, u_2):
    """Return the part of both by the steps `s`."""
    m = s.maximum(m_1, m_2)
    base = s.base(m_1, m_2, m)
    f = s.first_factor(m_1, m_2, base), s.second_factor(m_2, m_1, base)
    z, u = (z_1, z_2), (u_1, u_2)
    return s.results(m, s.total(f, z), s.weighted(f, u, z), m_1, m_2)


def without_empty_part(parts, either):
    """Return the merge in which one empty row of the first part, or of either, drops the part."""
    if np.any(parts[0] == -np.inf):
        return parts[3:]
    if either and np.any(parts[3] == -np.inf):
        return parts[:3]
    return merge_from_steps(SimpleNamespace(**TEXT.steps), *parts)


TEXT = Text(globals())

MERGE_MISTAKES = TEXT.mistakes
