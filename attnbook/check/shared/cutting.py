"""The tails that a sampler cuts, top-p and min-p, in steps, and the ways to get each wrong."""

from collections.abc import Callable

import numpy as np

from attnbook.check.engine.signatures import signed_as
from attnbook.check.engine.steps import Case, Check, Mistake, Stage, Values
from attnbook.check.engine.text import Text


def falling(p):
    return np.argsort(-p, kind="stable")


def put_back(kept, order):
    result = np.empty_like(kept)
    result[order] = kept
    return result


def before(ranked):
    """Return the sum of the better ones for each token."""
    return np.concatenate([[0.0], np.cumsum(ranked)[:-1]])


def nucleus(ranked, threshold):
    return before(ranked) < threshold - 1e-9


def near_the_best(ranked, threshold):
    return ranked >= threshold * np.max(ranked) * (1 - 1e-6)


def _of_the_first(p, q):
    """Return `q` with what is kept of equally likely tokens moved to the first of them."""
    if getattr(q, "shape", None) != p.shape:
        return q
    likely, kept = np.asarray(p), np.asarray(q)
    source = np.empty(len(likely), dtype=int)
    source[falling(likely)] = np.lexsort((-kept, -likely))
    return q[source.tolist()]


def _cut(steps, p, threshold):
    order = steps.order(p)
    ranked = p[order]
    kept = np.where(steps.keeps(ranked, threshold), steps.numbers(ranked, p, threshold), 0)
    return _of_the_first(p, steps.share(steps.back(kept, order), p, threshold))


def with_the_first(kept):
    """Keep the likeliest token too."""
    return kept | (np.arange(len(kept)) == 0)


TEXT = Text(globals())


def _kept_by(right: Callable) -> Callable:
    """Return the property that the tokens are kept which ``right(ranked, threshold)`` keeps."""

    def kept(case: Case, values: Values, again: Callable) -> str | None:
        p, threshold, q = case.arrays["p"], case.arguments["threshold"], values[0]
        if q.shape != p.shape:
            return None
        order = falling(p)
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


def cut_check(name: str, keeps: Callable, own: tuple[Mistake, ...]) -> Check:
    return Check(
        name=name,
        parameters=("p", "threshold"),
        results={"q": "(V,)"},
        compute=_cut,
        steps={**TEXT.steps, "keeps": keeps},
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
        mistakes=own + TEXT.mistakes,
        variants=TEXT.variants,
        properties=(_kept_by(keeps),),
        adapt=_any_of_equals,
    )
