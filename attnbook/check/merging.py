"""The merge of two running softmaxes in steps, the ways to get each wrong, and the check of it."""

from collections.abc import Callable

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.signatures import signature_of
from attnbook.check.steps import Case, Check, Stage, Values, draw, each


@documented
def merge_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the merge of two parts of an attention, each of keys that the other has not read.

    A part is a triple (maximum, total, weighted): of the scores s_j and values v_j that it has
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


def _finite(maximum):
    return np.where(maximum == -np.inf, 0, maximum)


def _factor(own, other, base):
    return np.exp(own - base)


_STEPS: dict[str, Callable] = {
    "maximum": np.maximum,
    "base": lambda m_1, m_2, m: _finite(m),  # what the exponents are relative to
    "first_factor": _factor,  # own maximum, the other's, base
    "second_factor": _factor,
    "total": lambda f_1, f_2, z_1, z_2: f_1 * z_1 + f_2 * z_2,
    "weighted": lambda f_1, f_2, u_1, u_2, z_1, z_2: f_1 * u_1 + f_2 * u_2,
    "results": lambda m, z, u, m_1, m_2: (m, z, u),
}


def _from_steps(s, m_1, z_1, u_1, m_2, z_2, u_2):
    m = s.maximum(m_1, m_2)
    base = s.base(m_1, m_2, m)
    f_1, f_2 = s.first_factor(m_1, m_2, base), s.second_factor(m_2, m_1, base)
    z, u = s.total(f_1, f_2, z_1, z_2), s.weighted(f_1, f_2, u_1, u_2, z_1, z_2)
    return s.results(m, z, u, m_1, m_2)


def _reference(m_1, z_1, u_1, m_2, z_2, u_2):
    m = np.maximum(m_1, m_2)
    f_1, f_2 = np.exp(m_1 - _finite(m)), np.exp(m_2 - _finite(m))
    return m, f_1 * z_1 + f_2 * z_2, f_1 * u_1 + f_2 * u_2


def _factors(function: Callable) -> dict[str, Callable]:
    """Return the way that makes both factors by `function(own, other, base)`."""
    return {"first_factor": function, "second_factor": function}


def _relative_to(maximum: Callable) -> tuple[dict[str, Callable], ...]:
    """Return two ways to be relative to another number: with it returned, or the maximum."""
    return {"maximum": maximum}, {"base": lambda m_1, m_2, m: _finite(maximum(m_1, m_2))}


def _bare_base(m_1, m_2, m):
    return m


def _safe(total):
    return np.where(total == 0, 1, total)


def _of_outputs(join: Callable) -> tuple[dict[str, Callable], ...]:
    """Return the ways whose weighted is made of the two finished outputs, guarded or not."""
    return tuple(
        {
            "weighted": lambda f_1, f_2, u_1, u_2, z_1, z_2, safe=safe: join(
                u_1 / safe(z_1), u_2 / safe(z_2), f_1, f_2
            )
        }
        for safe in (_safe, lambda total: total)
    )


def _winner(m_1, z_1, u_1, m_2, z_2, u_2):
    first = m_1 >= m_2
    return tuple(np.where(first, a, b) for a, b in ((m_1, m_2), (z_1, z_2), (u_1, u_2)))


def _as_if_outputs(f_1, f_2, u_1, u_2, z_1, z_2):
    return f_1 * z_1 * u_1 + f_2 * z_2 * u_2


def _averaged_outputs(f_1, f_2, u_1, u_2, z_1, z_2):
    return _as_if_outputs(f_1, f_2, u_1, u_2, z_1, z_2) / _safe(f_1 * z_1 + f_2 * z_2)


def _returned(function: Callable) -> dict[str, Callable]:
    return {"results": function}


_MISTAKES = mistakes(
    """
    no rescaling: You add totals and weighted sums as they are. They are relative to two different
        maxima: multiply each part by exp(its maximum − the common maximum) first.
    total not rescaled: You rescale the weighted sums and add the totals as they are. The total is a
        sum of the same exponentials and needs the same two factors.
    weighted not rescaled: You rescale the totals and add the weighted sums as they are. They are
        relative to the two old maxima as well and need the same two factors.
    one part rescaled: You multiply one part by its factor and take the other as it is. Either may
        have the smaller maximum, in each row: both need a factor, and that of the larger is 1 by
        itself.
    factors exchanged: You multiply each part by the factor of the other. A part's factor is made of
        its own maximum: exp(its maximum − the common maximum).
    sign of the exponent: You multiply by exp(common maximum − own maximum), which grows where it
        should shrink. The smaller part counts less: exp(own − common) is at most 1.
    minimum: You take the smaller of the two maxima. It is a correct shift on paper, but exponents
        above 0 overflow, and what you return as the maximum is not one.
    one part's maximum for both: You take the maximum of one part for both, as if it were always the
        larger. In rows in which it is not, exponents are above 0 and may overflow. Take the larger
        of the two.
    sum or mean of the maxima: You add or average the two maxima. Of all scores of both parts, the
        largest is the larger of the two.
    one maximum for all rows: You take one maximum for all rows. Each query has a maximum of its
        own, and a row far below another's underflows to 0. Compare entry by entry.
    maximum not updated: Total and weighted are relative to the larger maximum, but you return that
        of one part. The next merge would rescale by the wrong factor.
    no maximum: You take exp of a maximum before the common one is subtracted. That undoes the
        shift: exp(1000) is infinite, and exp(−1000) is 0. Subtract the larger maximum in the
        exponent.
    one part dropped: You return one of the two parts. The keys of the other count too, by the
        factor exp(its maximum − the common maximum).
    outputs added: You divide each part by its own total and add or average the outputs. A part with
        most of the exponentials then counts no more than one with few. Add the rescaled weighted
        sums and divide once, at the very end.
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
    maximum and total exchanged: Your maximum and your total have changed places. The order is
        (maximum, total, weighted).
    empty parts NaN: Where neither part has read a key both maxima are −∞, and −∞ − (−∞) is NaN.
        Subtract 0 there instead of the maximum: exp(−∞ − 0) is 0, which keeps total and weighted at
        0.
    maximum of nothing: Where neither part has read a key you return a finite maximum. A later part
        whose scores lie below it would be rescaled to nothing. The maximum of no scores is −∞.
    totals averaged: You average the two totals, or the two weighted sums. Both count exponentials:
        the rescaled ones are added.
    totals multiplied: You multiply the two totals. They are sums of exponentials: the rescaled ones
        are added.
    """,
    {
        "no rescaling": (_factors(lambda own, other, base: np.ones_like(own)),),
        "total not rescaled": ({"total": lambda f_1, f_2, z_1, z_2: z_1 + z_2},),
        "weighted not rescaled": ({"weighted": lambda f_1, f_2, u_1, u_2, z_1, z_2: u_1 + u_2},),
        "one part rescaled": (
            {"second_factor": lambda own, other, base: np.ones_like(own)},
            {"first_factor": lambda own, other, base: np.ones_like(own)},
        ),
        "factors exchanged": (_factors(lambda own, other, base: np.exp(other - base)),),
        "sign of the exponent": (
            {**_factors(lambda own, other, base: np.exp(base - own)), "base": _bare_base},
            _factors(lambda own, other, base: np.exp(base - own)),
        ),
        "minimum": _relative_to(lambda m_1, m_2: np.minimum(m_1, m_2)),
        "one part's maximum for both": (
            *_relative_to(lambda m_1, m_2: m_1 + 0),
            *_relative_to(lambda m_1, m_2: m_2 + 0),
        ),
        "sum or mean of the maxima": (
            *_relative_to(lambda m_1, m_2: m_1 + m_2),
            *_relative_to(lambda m_1, m_2: (m_1 + m_2) / 2),
        ),
        "one maximum for all rows": _relative_to(
            lambda m_1, m_2: np.broadcast_to(np.max(np.maximum(m_1, m_2)), m_1.shape)
        ),
        "maximum not updated": (
            _returned(lambda m, z, u, m_1, m_2: (m_1, z, u)),
            _returned(lambda m, z, u, m_1, m_2: (m_2, z, u)),
        ),
        "no maximum": (
            _factors(lambda own, other, base: np.exp(own)),
            {**_factors(lambda own, other, base: np.exp(own) / np.exp(base)), "base": _bare_base},
            {
                **_factors(lambda own, other, base: np.exp(own)),
                "maximum": lambda m_1, m_2: np.zeros_like(m_1),
            },
        ),
        "one part dropped": each(
            "compute", lambda *parts: parts[:3], lambda *parts: parts[3:], _winner
        ),
        "outputs added": (
            *_of_outputs(lambda o_1, o_2, f_1, f_2: o_1 + o_2),
            *_of_outputs(lambda o_1, o_2, f_1, f_2: (o_1 + o_2) / 2),
            *_of_outputs(lambda o_1, o_2, f_1, f_2: f_1 * o_1 + f_2 * o_2),
            *_of_outputs(lambda o_1, o_2, f_1, f_2: (f_1 * o_1 + f_2 * o_2) / (f_1 + f_2)),
        ),
        "divided already": (
            _returned(lambda m, z, u, m_1, m_2: (m, z, u / _safe(z))),
            _returned(lambda m, z, u, m_1, m_2: (m, z, u / z)),
            _returned(lambda m, z, u, m_1, m_2: (m, z / z, u / z)),
        ),
        "log-sum-exp for the maximum": (
            _returned(
                lambda m, z, u, m_1, m_2: (
                    m + np.log(_safe(z)),
                    np.where(z == 0, 0.0, 1.0),
                    u / _safe(z),
                )
            ),
            _returned(
                lambda m, z, u, m_1, m_2: (m + np.log(_safe(z)), np.ones_like(z), u / _safe(z))
            ),
        ),
        "weighted taken for an output": each("weighted", _as_if_outputs, _averaged_outputs),
        "rescaled twice": (
            _factors(lambda own, other, base: np.exp(own - base) ** 2),
            {"weighted": lambda f_1, f_2, u_1, u_2, z_1, z_2: f_1**2 * u_1 + f_2**2 * u_2},
            {"total": lambda f_1, f_2, z_1, z_2: f_1**2 * z_1 + f_2**2 * z_2},
        ),
        "base 2": (_factors(lambda own, other, base: np.exp2(own - base)),),
        "no exponential": (
            {**_factors(lambda own, other, base: own - base), "base": _bare_base},
            {**_factors(lambda own, other, base: own / base), "base": _bare_base},
        ),
        "maximum and total exchanged": (_returned(lambda m, z, u, m_1, m_2: (z, m, u)),),
        "empty parts NaN": (
            {"base": _bare_base},
            _factors(lambda own, other, base: np.exp(np.minimum(own - other, 0))),
        ),
        "maximum of nothing": tuple(
            _returned(lambda m, z, u, m_1, m_2, x=x: (np.where(m == -np.inf, x, m), z, u))
            for x in (0.0, -1e4, -1e9, -1e30)
        ),
        "totals averaged": (
            {
                "total": lambda f_1, f_2, z_1, z_2: (f_1 * z_1 + f_2 * z_2) / 2,
                "weighted": lambda f_1, f_2, u_1, u_2, z_1, z_2: (f_1 * u_1 + f_2 * u_2) / 2,
            },
            {"total": lambda f_1, f_2, z_1, z_2: (f_1 * z_1 + f_2 * z_2) / 2},
            {"weighted": lambda f_1, f_2, u_1, u_2, z_1, z_2: (f_1 * u_1 + f_2 * u_2) / 2},
        ),
        "totals multiplied": each(
            "total",
            lambda f_1, f_2, z_1, z_2: f_1 * z_1 * f_2 * z_2,
            lambda f_1, f_2, z_1, z_2: z_1 * z_2,
        ),
    },
)


def _adapt(function: Callable) -> Callable:
    """Return a function of the six arrays that hands them over as two triples."""

    def adapted(*arrays):
        return function(arrays[:3], arrays[3:])

    signature = signature_of(function)
    if signature is not None:
        adapted.__signature__ = signature  # type: ignore[attr-defined]
    return adapted


def order_is_free(case: Case, values: Values, again: Callable) -> str | None:
    """The keys of both are the same keys whichever part comes first."""
    arrays = case.arrays
    other = {"first": "second", "second": "first"}
    swapped = {f"{other[name.split('_')[0]]}_{name.split('_')[1]}": x for name, x in arrays.items()}
    moved = again(**swapped)
    if moved and not all(np.allclose(m, v) for m, v in zip(moved, values, strict=True)):
        return "Exchanging the two parts must change nothing; here it changes the result."
    return None


def nothing_changes_nothing(case: Case, values: Values, again: Callable) -> str | None:
    arrays = case.arrays
    nothing = {
        "second_maximum": np.full_like(arrays["second_maximum"], -np.inf),
        "second_total": np.zeros_like(arrays["second_total"]),
        "second_weighted": np.zeros_like(arrays["second_weighted"]),
    }
    kept = [arrays[f"first_{label}"] for label in ("maximum", "total", "weighted")]
    moved = again(**nothing)
    if moved and not all(np.allclose(m, k) for m, k in zip(moved, kept, strict=True)):
        return (
            "Merged with a part that has read nothing, a part must stay as it is; here it does not."
        )
    return None


def one_more_in_every_score(case: Case, values: Values, again: Callable) -> str | None:
    names = ("first_maximum", "second_maximum")
    moved = again(**{name: case.arrays[name] + 1 for name in names})
    if moved and not all(np.allclose(m, v) for m, v in zip(moved[1:], values[1:], strict=True)):
        return (
            "With 1 added to every score, both maxima are larger by 1 and nothing else changes; "
            "here total or weighted does."
        )
    return None


def _part(seed: int, n: int, n_k: int, d_v: int, lead: tuple = (), shift: float = 0.0) -> list:
    """Return the part that has read `n_k` drawn keys, with `shift` added to their scores."""
    scores, value = 2 * draw(seed, *lead, n, n_k) + shift, draw(seed + 1, *lead, n_k, d_v)
    if n_k == 0:
        rows = (*lead, n, 1)
        return [np.full(rows, -np.inf), np.zeros(rows), np.zeros((*lead, n, d_v))]
    maximum = np.max(scores, axis=-1, keepdims=True)
    weights = np.exp(scores - maximum)
    return [maximum, np.sum(weights, axis=-1, keepdims=True), weights @ value]


def _case(first: list, second: list, dtype: str = "float64", about: str = "") -> Case:
    labels = ("maximum", "total", "weighted")
    named = {f"first_{label}": x for label, x in zip(labels, first, strict=True)}
    named |= {f"second_{label}": x for label, x in zip(labels, second, strict=True)}
    return Case({name: x.astype(dtype) for name, x in named.items()}, about=about)


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
    reference=_reference,
    compute=_from_steps,
    steps=_STEPS,
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
            beyond="a batch (leading axes)",
        ),
    ),
    mistakes=_MISTAKES,
    properties=(order_is_free, nothing_changes_nothing, one_more_in_every_score),
    adapt=_adapt,
)
