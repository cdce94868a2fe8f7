"""The check of the weights of attention, and what every attention can get wrong in them.

Attention, a learned head, several heads and the gradients take over these mistakes.
"""

from collections.abc import Callable

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Check, renamed, without
from attnbook.check.engine.text import Text
from attnbook.check.exercises import softmax as soft
from attnbook.check.shared.attention_cases import arrays, stages_of
from attnbook.check.shared.masks_of_scores import MASK_MISTAKES
from attnbook.check.shared.scores import SCORE_MISTAKES, weights_from_steps


@documented
def attention_weights(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the weights of attention, softmax(Q Kᵀ/√d_k).

    Runs `f` on sizes that are all different primes, on a square, on one token, one query and one
    key, on scores of ±1000, in float64 and float32, on batches, and, if it takes them, with masks
    (causal, ragged, one fully masked row, only such rows), a scale and a bias.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key)``, by position, on (n_q, d_k) and (n_k, d_k). If it takes
        arguments named `mask` (**True = may attend**), `scale` or `bias`, they are passed by name.
        It returns weights of shape (n_q, n_k). It may be written for one sequence, without
        leading axes.

    Examples
    --------
    >>> from attnbook import check, softmax
    >>> check.attention_weights(lambda q, k: softmax(q @ k.mT)).mistake
    'no scale'
    """
    return run(WEIGHTS, f, time_limit)


TEXT = Text(globals())

BATCH_MISTAKES = TEXT["batch mistakes"]
"""They show on a batch only and come together; the first is told first."""

OPTION_MISTAKES = TEXT["option mistakes"]
"""Those made with `scale` and `bias`."""

_NOT_HERE = ("sign of the scores", "wrong axis", "axis 1 of a batch", "axis ignored")
WEIGHT_MISTAKES = (
    *SCORE_MISTAKES,
    *renamed(
        without(soft.NORMALIZATION_MISTAKES, *_NOT_HERE),
        {m.name: (m.name, m.message) for m in TEXT["of weights"]},
    ),
    *BATCH_MISTAKES,
    *MASK_MISTAKES,
)
"""What every attention can get wrong in its weights, the more plausible first."""


def _without_value(inputs):
    return {name: inputs[name] for name in ("query", "key")}


WEIGHTS = Check(
    name="attention_weights",
    parameters=("query", "key"),
    results={"weights": "(..., n_q, n_k)"},
    reference=attnbook.attention_weights,
    compute=weights_from_steps,
    steps=TEXT.steps,
    variants=TEXT.variants,
    stages=stages_of(lambda *sizes, **how: _without_value(arrays(*sizes, **how)), _without_value),
    mistakes=(
        *TEXT["own mistakes"],
        *WEIGHT_MISTAKES,
        *OPTION_MISTAKES,
    ),
    properties=(soft.rows_sum_to_one, soft.weights_are_positive),
    options=("mask", "bias", "scale"),
    remarked_options=("mask",),
    legible=True,
)
