"""The rule of speculative sampling in steps: what is kept of a draft, and what is drawn instead."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Values, each


@documented
def speculative_rule(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the rule by which speculative sampling keeps a drafted token or replaces it.

    Runs `f` on near and far distributions, on tokens that the model gives no chance at all, and in
    float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(p, p_draft)``, by position, on the distributions (V,) of the model and of the
        draft model, which gives every token a chance and differs from that of the model. It returns
        two arrays (V,): for each token the probability that it is kept if it was drafted, and the
        distribution of the token that is drawn instead of one that is not kept.

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


def _kept(p, q):
    return np.minimum(1, p / q)


def _missing(p, q):
    return np.maximum(p - q, 0)


def _share(x):
    return x / np.sum(x)


def _rule(steps: Any, p, p_draft):
    kept = steps.kept(p, p_draft)
    return steps.results(kept, steps.share(steps.rest(p, p_draft)))


_STEPS: dict[str, Callable] = {
    "kept": _kept,
    "rest": _missing,
    "share": _share,
    "results": lambda kept, rest: (kept, rest),
}


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

SPECULATIVE_RULE = Check(
    name="speculative_rule",
    parameters=("p", "p_draft"),
    results={"kept": "(V,)", "instead": "(V,)"},
    compute=_rule,
    steps=_STEPS,
    stages=(
        Stage(tuple(_case(*pair) for pair in _PAIRS)),
        Stage((_case(*_PAIRS[1], "float32"),)),
    ),
    mistakes=mistakes(
        """
        ratio not cut off: Your probability of keeping a token exceeds 1 where the model gives it
            more than the draft does. Cut it at 1: min(1, p / p_draft).
        ratio inverted: You keep a token with p_draft / p. A token that the draft gives too often is
            the one to be dropped: p / p_draft.
        kept by the model alone: You keep a token with probability p. The draft has already made it
            rare or frequent: divide by p_draft.
        kept if likelier: You keep a token if the model gives it at least as much as the draft does,
            and never otherwise. Between them it is kept with probability p / p_draft.
        the smaller one returned: You return min(p, p_draft): that is how often a token is drafted
            and kept. If it was drafted, it is kept with that divided by p_draft.
        kept too seldom: You keep a token with p / (p + p_draft), with a share of the largest ratio
            or of the sum of all, or all tokens alike. The most that works is min(1, p / p_draft),
            token by token.
        always kept: You keep every draft: then the text is that of the draft model.
        dropped for kept: You return the probability that a token is dropped.
        drawn from the model: You draw the token instead from p. What the draft gives often is then
            made too often, once kept and once drawn. Draw from max(p − p_draft, 0), renormalised.
        drawn from the draft: You draw the token instead from the draft model again.
        difference the other way: You draw instead from max(p_draft − p, 0), which the draft gives
            too often. What is missing is max(p − p_draft, 0).
        size of the difference: You draw instead from the size or the square of p − p_draft. Only
            where the model gives more than the draft is something missing.
        not in proportion: You draw instead among the tokens to which the model gives more, but not
            in proportion to how much more it gives: max(p − p_draft, 0), divided by its sum.
        negative numbers: The distribution of the token instead has negative numbers: cut p −
            p_draft at 0.
        divided by another number: You divide the distribution of the token instead by its largest
            number or by the number of tokens. Divide it by its sum.
        not renormalised: The distribution of the token instead does not sum to 1. Divide it by its
            sum.
        softmax: You take a softmax of the differences. Divide them by their sum.
        exchanged: You return the two results in the other order.
        ratio cut on the wrong side: You take max(1, p / p_draft), which is no probability. Cut it
            at 1 with the minimum.
        kept by the draft alone: You keep a token with probability p_draft, or with p times p_draft.
            It was drafted already: keep it with p divided by p_draft.
        difference for the ratio: You keep a token by the difference of p and p_draft. It is their
            ratio that says how much too often the draft gives it.
        power of the ratio: You keep a token with the root or the square of p / p_draft. Take the
            ratio itself.
        kept the other way: You keep a token if the model gives it less than the draft does. It is
            the one to be dropped at times.
        drawn from both: You draw the token instead from the smaller, the larger or the sum of p and
            p_draft. What is missing is max(p − p_draft, 0).
        drawn evenly: You draw every token instead with the same chance. Draw what is missing.
        drawn from the dropped: You draw the token instead from those that are dropped. The draft
            gives them too often: what is missing is max(p − p_draft, 0).
        ratio for the difference: You draw the token instead by the ratio of p and p_draft. What is
            missing is their difference.
        """,
        {
            "ratio not cut off": each("kept", lambda p, q: p / q),
            "ratio cut on the wrong side": each("kept", lambda p, q: np.maximum(1, p / q)),
            "ratio inverted": each(
                "kept",
                lambda p, q: np.minimum(1, q / p),
                lambda p, q: q / p,
                lambda p, q: np.minimum(1, q / np.maximum(p, 1e-12)),
            ),
            "kept by the model alone": each("kept", lambda p, q: p),
            "kept by the draft alone": each("kept", lambda p, q: q, lambda p, q: p * q),
            "difference for the ratio": each(
                "kept",
                lambda p, q: p - q,
                lambda p, q: q - p,
                lambda p, q: np.maximum(p - q, 0),
                lambda p, q: np.abs(p - q),
                lambda p, q: 1 - np.abs(p - q),
                lambda p, q: np.minimum(1, np.exp(p - q)),
                lambda p, q: np.minimum(1, 1 + p - q),
            ),
            "power of the ratio": each(
                "kept", lambda p, q: np.sqrt(_kept(p, q)), lambda p, q: _kept(p, q) ** 2
            ),
            "kept the other way": each(
                "kept", lambda p, q: (p < q) * 1.0, lambda p, q: (p <= q) * 1.0
            ),
            "kept if likelier": each(
                "kept", lambda p, q: (p >= q) * 1.0, lambda p, q: (p > q) * 1.0
            ),
            "the smaller one returned": each("kept", np.minimum),
            "kept too seldom": each(
                "kept",
                lambda p, q: p / (p + q),
                lambda p, q: p / q / np.max(p / q),
                lambda p, q: _share(_kept(p, q)),
                lambda p, q: _share(p / q),
                lambda p, q: np.full_like(p, np.sum(np.minimum(p, q))),
            ),
            "always kept": each("kept", lambda p, q: np.ones_like(p)),
            "dropped for kept": each(
                "kept", lambda p, q: 1 - _kept(p, q), lambda p, q: np.maximum(0, 1 - q / p)
            )
            + each("kept", lambda p, q: 1 - p / q),
            "drawn from the model": each("rest", lambda p, q: p),
            "drawn from the draft": each("rest", lambda p, q: q),
            "drawn from both": each("rest", np.minimum, np.maximum, np.add),
            "drawn evenly": each("rest", lambda p, q: np.ones_like(p)),
            "drawn from the dropped": each(
                "rest", lambda p, q: 1 - _kept(p, q), lambda p, q: p * (1 - _kept(p, q))
            ),
            "ratio for the difference": (
                *each(
                    "rest",
                    lambda p, q: p / q,
                    lambda p, q: _missing(p / q, 1),
                    lambda p, q: (p > q) * p / q,
                    _kept,
                ),
                {"rest": lambda p, q: p / q, "share": lambda x: x},
                {"rest": _kept, "share": lambda x: x},
            ),
            "difference the other way": each("rest", lambda p, q: _missing(q, p)),
            "size of the difference": each(
                "rest", lambda p, q: np.abs(p - q), lambda p, q: (p - q) ** 2
            ),
            "not in proportion": each(
                "rest",
                lambda p, q: np.where(p > q, p, 0),
                lambda p, q: (p > q) * 1.0,
                lambda p, q: _missing(p, q) ** 2,
                lambda p, q: (np.arange(len(p)) == np.argmax(p - q)) * 1.0,
            ),
            "negative numbers": (
                {"rest": lambda p, q: p - q, "share": lambda x: x},
                {"rest": lambda p, q: p - q},
                {"rest": lambda p, q: (p - q) / np.sum(np.abs(p - q)), "share": lambda x: x},
                {"rest": lambda p, q: (p - q) / np.sum(_missing(p, q)), "share": lambda x: x},
            ),
            "divided by another number": each(
                "share", lambda x: x / np.max(x), lambda x: x / len(x)
            ),
            "not renormalised": each("share", lambda x: x),
            "softmax": (
                {"share": lambda x: _share(np.exp(x))},
                {"rest": lambda p, q: p - q, "share": lambda x: _share(np.exp(x))},
            ),
            "exchanged": each("results", lambda kept, rest: (rest, kept)),
        },
    ),
    properties=(the_result_is_the_model,),
)
