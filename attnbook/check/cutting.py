"""The tails that a sampler cuts, top-p and min-p, in steps, and the ways to get each wrong."""

from collections.abc import Callable

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.signatures import signed_as
from attnbook.check.steps import Case, Check, Mistake, Stage, Values, each


@documented
def top_p(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the cut of nucleus sampling: the fewest likeliest tokens that come to `threshold`.

    Runs `f` where the model is sure and where it is not, on numbers that meet the threshold
    exactly, on equally likely tokens at the cut, on a threshold of 1 and on one below the largest
    probability, in float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(p, threshold)``, by position, on a distribution (V,) and a number above 0 and
        at most 1. It returns the distribution (V,) that is drawn from: 0 for what is cut, and the
        rest divided by its sum. The likeliest token always stays. Of equally likely tokens at the
        cut any may stay, but no more of them than the sum needs.

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


@documented
def min_p(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the cut of min-p: the tokens of at least `threshold` times the largest probability.

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


def _falling(p):
    return np.argsort(-p, kind="stable")


def _back(kept, order):
    result = np.empty_like(kept)
    result[order] = kept
    return result


def _before(ranked):
    """Return the sum of the better ones for each token."""
    return np.concatenate([[0.0], np.cumsum(ranked)[:-1]])


def _share(q, p, threshold):
    return q / np.sum(q)


def _share_of_nothing(q, p, threshold):
    return q / (np.sum(q) or 1)


def _softmax(q, p, threshold):
    powers = np.exp(q) * (q > 0)
    return powers / np.sum(powers)


def _no_more_than_missing(ranked, p, threshold):
    """Return what each token may add to the sum before it until that is the threshold."""
    return np.clip(threshold - _before(ranked), 0, ranked)


def _nucleus(ranked, threshold):
    return _before(ranked) < threshold - 1e-9


def _near_the_best(ranked, threshold):
    return ranked >= threshold * np.max(ranked) * (1 - 1e-6)


def _of_the_first(p, q):
    """Return `q` with what is kept of equally likely tokens moved to the first of them."""
    if getattr(q, "shape", None) != p.shape:
        return q
    likely, kept = np.asarray(p), np.asarray(q)
    source = np.empty(len(likely), dtype=int)
    source[_falling(likely)] = np.lexsort((-kept, -likely))
    return q[source.tolist()]


def _cut(steps, p, threshold):
    order = steps.order(p)
    ranked = p[order]
    kept = np.where(steps.keeps(ranked, threshold), steps.numbers(ranked, p, threshold), 0)
    return _of_the_first(p, steps.share(steps.back(kept, order), p, threshold))


_STEPS: dict[str, Callable] = {
    "order": _falling,
    "numbers": lambda ranked, p, threshold: ranked,
    "back": _back,
    "share": _share,
}


def _of_both(keeps: Callable) -> tuple[Mistake, ...]:
    """Return what can go wrong in either cut."""
    return mistakes(
        """
        not renormalised: What you return does not sum to 1. Divide what is left by its sum.
        divided by another number: You divide what is left by its largest probability, by the
            threshold or by a number of tokens. Divide it by its sum.
        order not undone: Your result stands in the order of the probabilities. Put each number back
            where its token stands in the vocabulary.
        nothing cut: You cut no token, however unlikely it is.
        equal shares: You give all that is left the same number. Divide its own numbers by their
            sum.
        softmax of what is left: You take a softmax of probabilities. They are no logits: divide
            what is left by its sum.
        tail kept: You keep what should be cut and cut what should be kept.
        only the likeliest: You keep the likeliest token alone, whatever the threshold.
        places lost: You return the numbers of the tokens that stay, and nothing for the others. Put
            0 where a token is cut, so that each number stands at its token.
        cut part shared out: You give what is cut to the tokens that stay in equal parts, or all of
            it to the likeliest. Divide by the sum: then they keep their proportions.
        powers: You square what is left, or take its root, before you divide by the sum.
        raised: You raise what is unlikely to a least probability. It is set to 0.
        """,
        {
            "not renormalised": each("share", lambda q, p, t: q),
            "divided by another number": each(
                "share",
                lambda q, p, t: q / np.max(q),
                lambda q, p, t: q / t,
                lambda q, p, t: q / np.count_nonzero(q),
                lambda q, p, t: q / len(p),
            ),
            "order not undone": each(
                "back",
                lambda kept, order: np.sort(kept)[::-1],
                lambda kept, order: np.sort(kept),
                lambda kept, order: kept,
            ),
            "places lost": each(
                "back",
                lambda kept, order: kept[kept > 0],
                lambda kept, order: _back(kept, order)[_back(kept, order) > 0],
            ),
            "cut part shared out": each(
                "share",
                lambda q, p, t: np.where(q > 0, q + (1 - np.sum(q)) / np.count_nonzero(q), 0),
                lambda q, p, t: q + (1 - np.sum(q)) * (np.arange(len(q)) == np.argmax(q)),
            ),
            "powers": each(
                "share",
                lambda q, p, t: q**2 / np.sum(q**2),
                lambda q, p, t: np.sqrt(q) / np.sum(np.sqrt(q)),
            ),
            "nothing cut": each("keeps", lambda r, t: r >= 0),
            "equal shares": each(
                "share",
                lambda q, p, t: (q > 0) / np.sum(q > 0),
                lambda q, p, t: (q > 0) * 1.0,
            ),
            "raised": tuple(
                {
                    "keeps": lambda r, t: r >= 0,
                    "numbers": lambda r, p, t, least=least: np.maximum(r, least(r, t)),
                }
                for least in (lambda r, t: t * np.max(r), lambda r, t: t)
            ),
            "softmax of what is left": each(
                "share", _softmax, lambda q, p, t: np.exp(q) / np.sum(np.exp(q))
            ),
            "tail kept": each("keeps", lambda r, t: ~keeps(r, t), lambda r, t: r <= t * np.max(r)),
            "only the likeliest": each("keeps", lambda r, t: np.arange(len(r)) == 0),
        },
    )


def _with_the_first(*keeps: Callable) -> tuple:
    """Return the ways to choose so, with the likeliest token cut and kept where they say so."""
    guarded = (lambda r, t, own=own: own(r, t) | (np.arange(len(r)) == 0) for own in keeps)
    return each("keeps", *keeps, *guarded)


_TOP_P_MISTAKES = mistakes(
    """
    crossing token dropped: You drop the token with which the sum reaches the threshold. What is
        left then has less than the threshold, and nothing is left where the likeliest token alone
        has more. Keep each token before which the sum is below the threshold.
    sum above the threshold [Meta's Llama]: you keep a token if the sum of the likelier ones is not
        above the threshold. Only where that sum is exactly the threshold you keep one token more
        than are needed. Here a token stays only if the sum of the likelier ones is below it.
    equal ones kept: You keep all tokens that are as likely as the last one that is needed. Where
        several are equally likely at the cut, only as many of them stay as the sum needs; in the
        package these are the first in the vocabulary.
    one token too many: You keep one token more than are needed. Where the sum has reached the
        threshold, the next token goes.
    threshold on each token: You compare each probability with the threshold. It is the sum of the
        likeliest that must reach it.
    one minus the threshold: You let the sum reach 1 − threshold. It reaches the threshold itself.
    min-p: You keep the tokens of at least a share of the largest probability: that is min-p. Top-p
        adds probabilities until their sum reaches the threshold.
    top-k: You keep a share of the number of tokens. How many are kept must depend on their
        probabilities.
    not sorted: You add the probabilities in the order of the vocabulary. Sort them first, so that
        the likeliest come first.
    mask of the sorted: You find which of the sorted tokens stay, and apply that to the unsorted
        ones. Put it back into the order of the vocabulary first.
    likely ones cut: You sort from the least likely token. Begin with the likeliest.
    order applied twice: You apply the sorting order a second time where it should be undone. With
        order = argsort(−p), write q[order] = …, not q = …[order].
    crossing token reduced: The token with which the sum reaches the threshold gets what was missing
        to it, and no more. It stays with its whole probability.
    crossing token alone: You keep the token with which the sum reaches the threshold, and no other.
        All those before it stay as well.
    sum compared the wrong way: You keep the tokens at which the sum has reached the threshold: the
        unlikely ones. Keep each before which it is below.
    """,
    {
        "crossing token dropped": _with_the_first(
            lambda r, t: np.cumsum(r) <= t + 1e-9, lambda r, t: np.cumsum(r) < t - 1e-9
        ),
        "crossing token reduced": (
            {
                "keeps": _nucleus,
                "numbers": _no_more_than_missing,
                "share": lambda q, p, t: q,
            },
            {"keeps": _nucleus, "numbers": _no_more_than_missing},
        ),
        "crossing token alone": each(
            "keeps", lambda r, t: np.arange(len(r)) == np.argmax(np.cumsum(r) >= t - 1e-9)
        ),
        "sum compared the wrong way": each(
            "keeps",
            lambda r, t: np.cumsum(r) >= t - 1e-9,
            lambda r, t: np.cumsum(r) > t + 1e-9,
        ),
        "one minus the threshold": _with_the_first(lambda r, t: _before(r) < 1 - t - 1e-9),
        "sum above the threshold": each("keeps", lambda r, t: _before(r) <= t + 1e-9),
        "equal ones kept": each("keeps", lambda r, t: r >= np.min(r[_nucleus(r, t)])),
        "one token too many": each(
            "keeps", lambda r, t: np.concatenate([[True], _nucleus(r, t)[:-1]])
        ),
        "threshold on each token": _with_the_first(
            lambda r, t: r >= t - 1e-9, lambda r, t: r >= 1 - t - 1e-9
        )
        + each("keeps", lambda r, t: r < t, lambda r, t: r > 1 - t + 1e-9),
        "min-p": each("keeps", _near_the_best, lambda r, t: _near_the_best(r, 1 - t)),
        "top-k": each(
            "keeps",
            lambda r, t: np.arange(len(r)) < max(int(t * len(r)), 1),
            lambda r, t: np.arange(len(r)) < np.ceil(t * len(r)),
            lambda r, t: np.arange(len(r)) < max(round(t * len(r)), 1),
        ),
        "not sorted": each("order", lambda p: np.arange(len(p))),
        "mask of the sorted": {
            "numbers": lambda ranked, p, threshold: p,
            "back": lambda kept, order: kept,
        },
        "likely ones cut": each("order", lambda p: np.argsort(p, kind="stable")),
        "order applied twice": each("back", lambda kept, order: kept[order]),
    },
)

_MIN_P_MISTAKES = mistakes(
    """
    threshold not relative: You compare each probability with the threshold itself. Where the model
        is not sure no token may be left. Multiply it by the largest probability first.
    difference to the largest: You compare with the largest probability minus the threshold. It is a
        share of the largest: multiply.
    relative to the mean: You compare with a share of the mean or the median. It is the largest
        probability that counts.
    equal one dropped: You drop a token of exactly the threshold. At least that much is enough: ≥.
    top-p: You add probabilities until the sum reaches the threshold: that is top-p. Min-p compares
        each with the largest.
    one minus the threshold: You compare with 1 − threshold times the largest probability.
    no share of the largest: You divide the largest probability by the threshold or the reverse, add
        the two, or raise one to the power of the other. Multiply them.
    threshold subtracted: You subtract the threshold, or its share of the largest, from what stays.
        What stays keeps its probability, and all are divided by their sum.
    """,
    {
        "threshold not relative": each("keeps", lambda r, t: r >= t),
        "difference to the largest": each("keeps", lambda r, t: r >= np.max(r) - t),
        "relative to the mean": each(
            "keeps",
            *(lambda r, t, share=share: r >= t * share(r) for share in (np.mean, np.median)),
        ),
        "no share of the largest": each(
            "keeps",
            lambda r, t: r >= np.max(r) / t,
            lambda r, t: r >= t / np.max(r),
            lambda r, t: r >= np.max(r) + t,
            lambda r, t: r >= np.max(r) ** t,
        ),
        "threshold subtracted": (
            *each("numbers", lambda r, p, t: r - t * np.max(r), lambda r, p, t: r - t),
            {"keeps": lambda r, t: r > t, "numbers": lambda r, p, t: r - t},
        ),
        "equal one dropped": each("keeps", lambda r, t: r > t * np.max(r) * (1 + 1e-6)),
        "top-p": each("keeps", _nucleus, lambda r, t: _nucleus(r, 1 - t)),
        "one minus the threshold": each("keeps", lambda r, t: _near_the_best(r, 1 - t)),
    },
)


def _kept_by(right: Callable) -> Callable:
    """Return the property that the tokens are kept which ``right(ranked, threshold)`` keeps."""

    def kept(case: Case, values: Values, again: Callable) -> str | None:
        p, threshold, q = case.arrays["p"], case.arguments["threshold"], values[0]
        if q.shape != p.shape:
            return None
        order = _falling(p)
        wanted = np.sort(order[right(p[order], threshold)]).tolist()
        found = np.flatnonzero(q).tolist()
        if found != wanted:
            return f"Here you keep the tokens {found}; those that stay are {wanted}."
        if np.isclose(np.sum(q), 1, atol=1e-4):
            return "You keep the right tokens here, but not in proportion to their probabilities."
        return f"You keep the right tokens here, but your numbers sum to {np.sum(q):.4g}, not to 1."

    return kept


def _case(threshold: float, *p: float, dtype: str = "float64") -> Case:
    return Case({"p": np.array(p, dtype=dtype), "threshold": threshold})


def _any_of_equals(function: Callable) -> Callable:
    return signed_as(function, lambda p, threshold: _of_the_first(p, function(p, threshold)))


_SURE = (0.05, 0.8125, 0.02, 0.0375, 0.08)
_UNSURE = (0.11, 0.19, 0.14, 0.23, 0.17, 0.16)
_EXACT = (0.125, 0.5, 0.0625, 0.25, 0.03125, 0.03125)
_EQUAL = ((0.1, 0.25, 0.2, 0.25, 0.2), (0.25, 0.25, 0.25, 0.25), (0.15, 0.15, 0.4, 0.15, 0.15))


def _check(name: str, keeps: Callable, own: tuple[Mistake, ...]) -> Check:
    return Check(
        name=name,
        parameters=("p", "threshold"),
        results={"q": "(V,)"},
        compute=_cut,
        steps={**_STEPS, "keeps": keeps},
        stages=(
            Stage(
                (
                    *(_case(t, *p) for p in (_SURE, _UNSURE) for t in (0.45, 0.85, 0.07)),
                    _case(1.0, *_EXACT),
                    *(_case(t, *_EXACT) for t in (0.5, 0.25, 0.75)),
                )
            ),
            Stage(tuple(_case(0.6, *p) for p in _EQUAL)),
            Stage((_case(0.75, *_EXACT, dtype="float32"), _case(0.45, *_UNSURE, dtype="float32"))),
        ),
        mistakes=own + _of_both(keeps),
        variants=each("share", _share_of_nothing),
        properties=(_kept_by(keeps),),
        adapt=_any_of_equals,
    )


TOP_P = _check("top_p", _nucleus, _TOP_P_MISTAKES)
MIN_P = _check("min_p", _near_the_best, _MIN_P_MISTAKES)
