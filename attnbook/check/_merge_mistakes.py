"""Wrong ways to merge two parts of an attention: factors, maxima, outputs, parts without a key."""

from collections.abc import Callable

import numpy as np

from attnbook.check._model import Mistake


def _finite(maximum):
    return np.where(maximum == -np.inf, 0, maximum)


def _larger(m_1, m_2, axis=None):
    return np.maximum(m_1, m_2)


def _to_the_maximum(m_1, m_2, maximum):
    return np.exp(m_1 - _finite(maximum)), np.exp(m_2 - _finite(maximum))


def _model(
    maximum: Callable = _larger,
    factors: Callable = _to_the_maximum,
    total: Callable = lambda f_1, f_2, z_1, z_2: f_1 * z_1 + f_2 * z_2,
    weighted: Callable = lambda f_1, f_2, u_1, u_2: f_1 * u_1 + f_2 * u_2,
    returned: Callable = lambda m, z, u: (m, z, u),
) -> Callable:
    """Return the merge with some of its steps replaced."""

    def model(m_1, z_1, u_1, m_2, z_2, u_2):
        m = maximum(m_1, m_2)
        f_1, f_2 = factors(m_1, m_2, m)
        return returned(m, total(f_1, f_2, z_1, z_2), weighted(f_1, f_2, u_1, u_2))

    return model


reference = _model()


def _of_factors(change: Callable) -> Callable:
    """Return the merge with the two factors changed."""
    return _model(factors=lambda m_1, m_2, m: change(*_to_the_maximum(m_1, m_2, m)))


def _relative_to(maximum: Callable) -> tuple[Callable, ...]:
    """Return two merges relative to another number, with it returned or the true maximum."""

    def factors(m_1, m_2, m):
        return _to_the_maximum(m_1, m_2, maximum(m_1, m_2))

    return _model(maximum=maximum, factors=factors), _model(factors=factors)


def _outputs(join: Callable) -> tuple[Callable, ...]:
    """Return merges whose weighted is made of the two finished outputs and their shares."""

    def model(m_1, z_1, u_1, m_2, z_2, u_2):
        m, z, _ = reference(m_1, z_1, u_1, m_2, z_2, u_2)
        f_1, f_2 = _to_the_maximum(m_1, m_2, m)
        o_1, o_2 = (u / np.where(total == 0, 1, total) for u, total in ((u_1, z_1), (u_2, z_2)))
        return m, z, join(o_1, o_2, f_1, f_2, z)

    def bare(m_1, z_1, u_1, m_2, z_2, u_2):
        m, z, _ = reference(m_1, z_1, u_1, m_2, z_2, u_2)
        f_1, f_2 = _to_the_maximum(m_1, m_2, m)
        return m, z, join(u_1 / z_1, u_2 / z_2, f_1, f_2, z)

    return model, bare


def _as_if_outputs(m_1, z_1, u_1, m_2, z_2, u_2):
    m, z, u = reference(m_1, z_1, z_1 * u_1, m_2, z_2, z_2 * u_2)
    return m, z, u


def _averaged_outputs(m_1, z_1, u_1, m_2, z_2, u_2):
    m, z, u = _as_if_outputs(m_1, z_1, u_1, m_2, z_2, u_2)
    return m, z, u / np.where(z == 0, 1, z)


def _winner(m_1, z_1, u_1, m_2, z_2, u_2):
    first = m_1 >= m_2
    return tuple(np.where(first, a, b) for a, b in ((m_1, m_2), (z_1, z_2), (u_1, u_2)))


def _log_total(divide: Callable) -> Callable:
    def model(*parts):
        m, z, u = reference(*parts)
        whole = m + np.log(np.where(z == 0, 1, z))
        return divide(whole, z, u / np.where(z == 0, 1, z))

    return model


def _bare_factors(m_1, m_2, m):
    return np.exp(m_1 - m), np.exp(m_2 - m)


def _by_difference(m_1, m_2, m):
    step = m_1 - m_2  # NaN where both are -inf
    return np.exp(np.minimum(step, 0)), np.exp(np.minimum(-step, 0))


def _large_for_none(value: float) -> Callable:
    return _model(returned=lambda m, z, u: (np.where(m == -np.inf, value, m), z, u))


EMPTY = (
    "empty parts NaN",
    "Where neither part has read a key both maxima are −∞, and −∞ − (−∞) is NaN. Subtract 0 "
    "there instead of the maximum: exp(−∞ − 0) is 0, which keeps total and weighted at 0.",
)

MISTAKES = (
    Mistake(
        "no rescaling",
        "You add totals and weighted sums as they are. They are relative to two different maxima: "
        "multiply each part by exp(its maximum − the common maximum) first.",
        (_of_factors(lambda f_1, f_2: (np.ones_like(f_1), np.ones_like(f_2))),),
    ),
    Mistake(
        "total not rescaled",
        "You rescale the weighted sums and add the totals as they are. The total is a sum of the "
        "same exponentials and needs the same two factors.",
        (_model(total=lambda f_1, f_2, z_1, z_2: z_1 + z_2),),
    ),
    Mistake(
        "weighted not rescaled",
        "You rescale the totals and add the weighted sums as they are. They are relative to the "
        "two old maxima as well and need the same two factors.",
        (_model(weighted=lambda f_1, f_2, u_1, u_2: u_1 + u_2),),
    ),
    Mistake(
        "one part rescaled",
        "You multiply one part by its factor and take the other as it is. Either may have the "
        "smaller maximum, in each row: both need a factor, and that of the larger is 1 by itself.",
        (
            _of_factors(lambda f_1, f_2: (f_1, np.ones_like(f_2))),
            _of_factors(lambda f_1, f_2: (np.ones_like(f_1), f_2)),
        ),
    ),
    Mistake(
        "factors exchanged",
        "You multiply each part by the factor of the other. A part's factor is made of its own "
        "maximum: exp(its maximum − the common maximum).",
        (_of_factors(lambda f_1, f_2: (f_2, f_1)),),
    ),
    Mistake(
        "sign of the exponent",
        "You multiply by exp(common maximum − own maximum), which grows where it should shrink. "
        "The smaller part counts less: exp(own − common) is at most 1.",
        (
            _model(factors=lambda m_1, m_2, m: (np.exp(m - m_1), np.exp(m - m_2))),
            _of_factors(lambda f_1, f_2: (1 / f_1, 1 / f_2)),
        ),
    ),
    Mistake(
        "minimum",
        "You take the smaller of the two maxima. It is a correct shift on paper, but exponents "
        "above 0 overflow, and what you return as the maximum is not one.",
        _relative_to(lambda m_1, m_2: np.minimum(m_1, m_2)),
    ),
    Mistake(
        "one part's maximum for both",
        "You take the maximum of one part for both, as if it were always the larger. In rows in "
        "which it is not, exponents are above 0 and may overflow. Take the larger of the two.",
        (*_relative_to(lambda m_1, m_2: m_1 + 0), *_relative_to(lambda m_1, m_2: m_2 + 0)),
    ),
    Mistake(
        "sum or mean of the maxima",
        "You add or average the two maxima. Of all scores of both parts, the largest is the larger "
        "of the two.",
        (
            *_relative_to(lambda m_1, m_2: m_1 + m_2),
            *_relative_to(lambda m_1, m_2: (m_1 + m_2) / 2),
        ),
    ),
    Mistake(
        "one maximum for all rows",
        "You take one maximum for all rows. Each query has a maximum of its own, and a row far "
        "below another's underflows to 0. Compare entry by entry.",
        _relative_to(lambda m_1, m_2: np.broadcast_to(np.max(np.maximum(m_1, m_2)), m_1.shape)),
    ),
    Mistake(
        "maximum not updated",
        "Total and weighted are relative to the larger maximum, but you return that of one part. "
        "The next merge would rescale by the wrong factor.",
        (
            lambda m_1, z_1, u_1, *other: (m_1, *reference(m_1, z_1, u_1, *other)[1:]),
            lambda *parts: (parts[3], *reference(*parts)[1:]),
        ),
    ),
    Mistake(
        "no maximum",
        "You take exp of a maximum before the common one is subtracted. That undoes the shift: "
        "exp(1000) is infinite, and exp(−1000) is 0. Subtract the larger maximum in the exponent.",
        (
            _model(factors=lambda m_1, m_2, m: (np.exp(m_1), np.exp(m_2))),
            _model(factors=lambda m_1, m_2, m: (np.exp(m_1) / np.exp(m), np.exp(m_2) / np.exp(m))),
            _model(
                maximum=lambda m_1, m_2: np.zeros_like(m_1),
                factors=lambda m_1, m_2, m: (np.exp(m_1), np.exp(m_2)),
            ),
        ),
    ),
    Mistake(
        "one part dropped",
        "You return one of the two parts. The keys of the other count too, by the factor "
        "exp(its maximum − the common maximum).",
        (lambda *parts: parts[:3], lambda *parts: parts[3:], _winner),
    ),
    Mistake(
        "outputs added",
        "You divide each part by its own total and add or average the outputs. A part with most "
        "of the exponentials then counts no more than one with few. Add the rescaled weighted sums "
        "and divide once, at the very end.",
        (
            *_outputs(lambda o_1, o_2, f_1, f_2, z: o_1 + o_2),
            *_outputs(lambda o_1, o_2, f_1, f_2, z: (o_1 + o_2) / 2),
            *_outputs(lambda o_1, o_2, f_1, f_2, z: f_1 * o_1 + f_2 * o_2),
            *_outputs(lambda o_1, o_2, f_1, f_2, z: (f_1 * o_1 + f_2 * o_2) / (f_1 + f_2)),
        ),
    ),
    Mistake(
        "divided already",
        "You return the weighted sum divided by the total: that is the output, not a part that can "
        "be merged again. Divide once, after the last merge.",
        (
            lambda *parts: _log_total(lambda whole, z, o: (reference(*parts)[0], z, o))(*parts),
            lambda *parts: _log_total(lambda whole, z, o: (reference(*parts)[0], z / z, o))(*parts),
        ),
    ),
    Mistake(
        "log-sum-exp for the maximum",
        "You return the logarithm of the sum of exponentials as the maximum, with the output and a "
        "total of 1. It is the same part in another form; here the maximum is the largest score, "
        "and total and weighted are relative to it.",
        (
            _log_total(lambda whole, z, o: (whole, np.where(z == 0, 0.0, 1.0), o)),
            _log_total(lambda whole, z, o: (whole, np.ones_like(z), o)),
        ),
    ),
    Mistake(
        "weighted taken for an output",
        "You multiply the weighted sums by their totals, as if they were outputs. They are sums "
        "that were never divided: rescale them and add.",
        (_as_if_outputs, _averaged_outputs),
    ),
    Mistake(
        "rescaled twice",
        "Your factor is squared, or total and weighted get it twice. Each sum is multiplied by "
        "exp(own maximum − common maximum) once.",
        (
            _of_factors(lambda f_1, f_2: (f_1**2, f_2**2)),
            _model(weighted=lambda f_1, f_2, u_1, u_2: f_1**2 * u_1 + f_2**2 * u_2),
        ),
    ),
    Mistake(
        "base 2",
        "You rescale by powers of 2, and the parts were made with powers of e. Either both use "
        "exp, or both use exp2 and scores multiplied by log₂ e.",
        (
            _model(
                factors=lambda m_1, m_2, m: (
                    np.exp2(m_1 - _finite(m)),
                    np.exp2(m_2 - _finite(m)),
                )
            ),
        ),
    ),
    Mistake(
        "no exponential",
        "You multiply by the difference of the maxima, or by their ratio, without exp. A score of "
        "m more makes an exponential exp(m) times as large.",
        (
            _model(factors=lambda m_1, m_2, m: (m_1 - m, m_2 - m)),
            _model(factors=lambda m_1, m_2, m: (m_1 / m, m_2 / m)),
        ),
    ),
    Mistake(
        "maximum and total exchanged",
        "Your maximum and your total have changed places. The order is (maximum, total, weighted).",
        (_model(returned=lambda m, z, u: (z, m, u)),),
    ),
    Mistake(*EMPTY, (_model(factors=_bare_factors), _model(factors=_by_difference))),
    Mistake(
        "maximum of nothing",
        "Where neither part has read a key you return a finite maximum. A later part whose scores "
        "lie below it would be rescaled to nothing. The maximum of no scores is −∞.",
        tuple(map(_large_for_none, (0.0, -1e4, -1e9, -1e30))),
    ),
)
