"""The merge of two running softmaxes in steps, and the ways to get each wrong."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from attnbook.check.sentences import mistakes
from attnbook.check.steps import Way, each


def _finite(maximum):
    return np.where(maximum == -np.inf, 0, maximum)


def _factor(own, other, base):
    return np.exp(own - base)


def _sum(factors, pair):
    return factors[0] * pair[0] + factors[1] * pair[1]


def _sum_with(change: Callable) -> Callable:
    """Return the sum of two totals, or weighted sums, whose factors are changed."""
    return lambda factors, pair, *others: _sum(change(factors), pair)


MERGE_STEPS: dict[str, Callable] = {
    "maximum": np.maximum,
    "base": lambda m_1, m_2, m: _finite(m),  # what the exponents are relative to
    "first_factor": _factor,  # own maximum, the other's, base
    "second_factor": _factor,
    "total": _sum,  # the pairs of factors and of totals
    "weighted": lambda f, u, z: _sum(f, u),
    "results": lambda m, z, u, *maxima: (m, z, u),
}


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
        return merge_from_steps(SimpleNamespace(**MERGE_STEPS), *parts)

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


MERGE_MISTAKES = mistakes(
    """
    no rescaling: You add totals and weighted sums as they are. They are relative to two different
        maxima: multiply each part by exp(its maximum − the common maximum) first.
    total not rescaled: You rescale the weighted sums and add the totals as they are. The total is a
        sum of the same exponentials and needs the same two factors.
    weighted not rescaled: You rescale the totals and add the weighted sums as they are. They are
        relative to the two old maxima as well and need the same two factors.
    one part rescaled: You multiply one part by its factor and take the other, or one of its two
        sums, as it is. Either may
        have the smaller maximum, in each row: both need a factor; that of the larger is 1.
    factors exchanged: You multiply each part, or one of its sums, by the factor of the other. A
        part's factor is made of
        its own maximum: exp(its maximum − the common maximum).
    compared with the other part: You take exp(own maximum − the maximum of the other part).
        Subtract the common maximum, the larger of both.
    sign of the exponent: You multiply by exp(common maximum − own maximum), which grows where it
        should shrink. The smaller part counts less: exp(own − common) is at most 1.
    minimum: You take the smaller of the two maxima. It is a correct shift on paper, but exponents
        above 0 overflow, and what you return as the maximum is not one.
    one part's maximum for both: You take the maximum of one part for both, as if it were always the
        larger. Where it is not, exponents above 0 may overflow. Take the larger of the two.
    sum or mean of the maxima: You add or average the two maxima. The largest of all scores is the
        larger.
    one maximum for all rows: You take one maximum for all rows. Each query has a maximum of its
        own, and a row far below another's underflows to 0. Compare entry by entry.
    maximum not updated: Total and weighted are relative to the larger maximum, but you return that
        of one part. The next merge would rescale by the wrong factor.
    no maximum: Your exponentials are as large as those of the scores themselves, or of their
        negatives, since no maximum is subtracted inside exp: exp(1000) is infinite, exp(−1000) is
        0. Subtract the larger maximum in the exponent.
    one part dropped: You return one of the two parts. The keys of the other count too, by the
        factor exp(its maximum − the common maximum).
    outputs added: You divide each part by its own total and add or average the outputs. A part with
        many exponentials then counts no more than one with few. Add the rescaled weighted sums;
        divide once, at the end.
    divided already: You return the weighted sum divided by the total: that is the output, not a
        part that can be merged again. Divide once, after the last merge.
    log-sum-exp for the maximum: You return the logarithm of the sum of exponentials as the maximum,
        with the output and a total of 1. It is the same part in another form; here the maximum is
        the largest score, and total and weighted are relative to it.
    weighted taken for an output: You multiply the weighted sums by their totals, as if they were
        outputs. They are sums that were never divided: rescale them and add.
    rescaled twice: Your factor is squared, or total and weighted get it twice. Each sum is
        multiplied by exp(own maximum − common maximum) once.
    base 2: You rescale by powers of 2, and the parts were made with powers of e. Either both use
        exp, or both use exp2 and scores multiplied by log₂ e.
    no exponential: You multiply by the difference of the maxima, or by their ratio, without exp. A
        score of m more makes an exponential exp(m) times as large.
    maximum and total exchanged: The order is (maximum, total, weighted).
    empty parts NaN: Where neither part has read a key both maxima are −∞, and −∞ − (−∞) is NaN.
        Subtract 0 there instead of the maximum: exp(−∞ − 0) is 0, and so are total and weighted.
    maximum of nothing: Where neither part has read a key you return a finite maximum. A later part
        whose scores lie below it would be rescaled to nothing. The maximum of no scores is −∞.
    totals averaged: You average totals or weighted sums. Add the rescaled ones.
    totals multiplied: You multiply the totals, sums of exponentials. Add the rescaled ones.
    factors divided by their sum: Your two factors add up to 1, as the weights of a mean do. Nothing
        is averaged: multiply by exp(its maximum − the common maximum), which is 1 for the larger
        part, and add.
    smooth maximum: You take the logarithm of a sum of exponentials for the larger of the two
        maxima. The maximum of a part is its largest score, and the sums are relative to it.
    maximum from 0: Your maximum is never below 0, or another number that it begins with. Where all
        scores lie far below that, every exponential underflows. The maximum of no scores is −∞.
    total of nothing: Where neither part has read a key you return a total above 0. A sum of no
        exponentials is 0; what keeps a division from 0/0 belongs to the division, after the last
        merge.
    one empty row for all: Where a row of one part has read no key you return the other part for all
        rows. Each query has read keys of its own: decide row by row, as `where` does.
    logarithm of the total: You return the logarithm of the total, or add totals as if they were
        logarithms. A total is the sum of exponentials itself.
    """,
    {
        "no rescaling": _factors(_one),
        "total not rescaled": {"total": lambda f, z: z[0] + z[1]},
        "weighted not rescaled": {"weighted": lambda f, u, z: u[0] + u[1]},
        "one part rescaled": (
            {"second_factor": _one},
            {"first_factor": _one},
            *each("total", _sum_with(lambda f: (f[0], 1)), _sum_with(lambda f: (1, f[1]))),
            *each("weighted", _sum_with(lambda f: (f[0], 1)), _sum_with(lambda f: (1, f[1]))),
        ),
        "factors exchanged": (
            _factors(lambda own, other, base: np.exp(other - base)),
            {"total": _sum_with(lambda f: f[::-1])},
            {"weighted": _sum_with(lambda f: f[::-1])},
        ),
        "compared with the other part": _factors(lambda own, other, base: np.exp(own - other)),
        "sign of the exponent": (
            {**_factors(lambda own, other, base: np.exp(base - own)), "base": _bare_base},
            _factors(lambda own, other, base: np.exp(base - own)),
        ),
        "minimum": _relative_to(np.minimum),
        "one part's maximum for both": _relative_to(
            lambda m_1, m_2: m_1 + 0, lambda m_1, m_2: m_2 + 0
        ),
        "sum or mean of the maxima": (
            *_relative_to(lambda m_1, m_2: m_1 + m_2, lambda m_1, m_2: (m_1 + m_2) / 2),
            {"results": lambda m, z, u, m_1, m_2: (m_1 + m_2, z, u)},
        ),
        "smooth maximum": (
            {"maximum": np.logaddexp},
            {"results": lambda m, z, u, m_1, m_2: (np.logaddexp(m_1, m_2), z, u)},
            {"results": lambda m, z, u, *maxima: (m + np.log(z), z, u)},
        ),
        "maximum from 0": {"maximum": lambda m_1, m_2: np.maximum(np.maximum(m_1, m_2), 0)},
        "one maximum for all rows": _relative_to(
            lambda m_1, m_2: np.broadcast_to(np.max(np.maximum(m_1, m_2)), m_1.shape)
        ),
        "maximum not updated": each(
            "results",
            lambda m, z, u, m_1, m_2: (m_1, z, u),
            lambda m, z, u, m_1, m_2: (m_2, z, u),
        ),
        "no maximum": (
            _factors(lambda own, other, base: np.exp(own)),
            _factors(lambda own, other, base: np.exp(-own)),
            {**_factors(lambda own, other, base: np.exp(own) / np.exp(base)), "base": _bare_base},
            {
                **_factors(lambda own, other, base: np.exp(own)),
                "maximum": lambda m_1, m_2: np.zeros_like(m_1),
            },
        ),
        "one part dropped": each(
            "compute",
            lambda *parts: parts[:3],
            lambda *parts: parts[3:],
            lambda *parts: tuple(
                np.where(parts[0] >= parts[3], a, b)
                for a, b in zip(parts[:3], parts[3:], strict=True)
            ),
        ),
        "outputs added": _of_outputs(
            lambda f, o: o[0] + o[1],
            lambda f, o: (o[0] + o[1]) / 2,
            _sum,
            lambda f, o: _sum(f, o) / (f[0] + f[1]),
        ),
        "divided already": each(
            "results",
            lambda m, z, u, *maxima: (m, z, u / _safe(z)),
            lambda m, z, u, *maxima: (m, z, u / z),
            lambda m, z, u, *maxima: (m, z / z, u / z),
        ),
        "log-sum-exp for the maximum": tuple(
            {"results": lambda m, z, u, *_, one=one: (m + np.log(_safe(z)), one(z), u / _safe(z))}
            for one in (np.sign, np.ones_like)
        ),
        "weighted taken for an output": each(
            "weighted",
            _as_if_outputs,
            lambda f, u, z: _as_if_outputs(f, u, z) / _safe(_sum(f, z)),
        ),
        "rescaled twice": (
            _factors(lambda own, other, base: np.exp(own - base) ** 2),
            {"weighted": lambda f, u, z: _sum((f[0] ** 2, f[1] ** 2), u)},
            {"total": lambda f, z: _sum((f[0] ** 2, f[1] ** 2), z)},
        ),
        "base 2": _factors(lambda own, other, base: np.exp2(own - base)),
        "no exponential": (
            {**_factors(lambda own, other, base: own - base), "base": _bare_base},
            {**_factors(lambda own, other, base: own / base), "base": _bare_base},
        ),
        "maximum and total exchanged": {"results": lambda m, z, u, *maxima: (z, m, u)},
        "empty parts NaN": (
            {"base": _bare_base},
            _factors(lambda own, other, base: np.exp(np.minimum(own - other, 0))),
        ),
        "total of nothing": {"results": lambda m, z, u, *maxima: (m, _safe(z), u)},
        "one empty row for all": each("compute", _other_part(False), _other_part(True)),
        "maximum of nothing": tuple(
            {"results": lambda m, z, u, *_, x=x: (np.where(m == -np.inf, x, m), z, u)}
            for x in (0.0, -1e4, -1e9, -1e30, np.finfo(float).min)
        ),
        "totals averaged": (
            {"total": lambda f, z: _sum(f, z) / 2, "weighted": lambda f, u, z: _sum(f, u) / 2},
            {"total": lambda f, z: _sum(f, z) / 2},
            {"weighted": lambda f, u, z: _sum(f, u) / 2},
        ),
        "factors divided by their sum": (
            {
                "total": lambda f, z: _sum(f, z) / (f[0] + f[1]),
                "weighted": lambda f, u, z: _sum(f, u) / (f[0] + f[1]),
            },
            {"weighted": lambda f, u, z: _sum(f, u) / (f[0] + f[1])},
        ),
        "logarithm of the total": (
            {"results": lambda m, z, u, *maxima: (m, np.log(z), u)},
            *each("total", lambda f, z: np.logaddexp(*z)),
        ),
        "totals multiplied": each(
            "total", lambda f, z: f[0] * z[0] * f[1] * z[1], lambda f, z: z[0] * z[1]
        ),
    },
)
