"""The check of the weights of attention, and what every attention can get wrong in them.

Attention, a learned head, several heads and the gradients take over these mistakes.
"""

import math
from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check import normalization as soft
from attnbook.check.attention_cases import arrays, stages_of
from attnbook.check.engine import documented, run
from attnbook.check.hidden_scores import MASK_MISTAKES
from attnbook.check.report import Report
from attnbook.check.scores import (
    SCORE_MISTAKES,
    WEIGHT_STEPS,
    dot_products,
    one_over_root,
    sized,
    transposed,
    weights_from_steps,
)
from attnbook.check.sentences import mistakes, sentences
from attnbook.check.steps import Check, Mistake, Way, renamed, without


@documented
def attention_weights(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the weights of attention, softmax(Q Kᵀ/√d_k).

    Runs `f` on sizes that are all different primes, on a square, on one token, one query and one
    key, on scores of ±1000, in float64 and float32, on batches; and with masks (causal, ragged, a
    row that hides everything, nothing but such rows), a scale and a bias, for those of these
    arguments that it takes.

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


_OF_WEIGHTS = sentences(
    """
    one sum for all: All weights together sum to one: you divide by the sum over all queries. Each
        query shares out one unit of attention, so each row needs its own sum.
    not normalised: Your weights are exponentials, at most divided by the largest one of the row, so
        the rows do not sum to one. Divide each row by its sum.
    temperature: Your scores are multiplied or divided by a number, such as 2 or 10, beside 1/√d_k.
        That is a temperature, which nobody asked for here.
    logarithm returned: You use the logarithm of the softmax as weights. They are negative; their
        exponentials sum to one, not they themselves.
    sigmoid: You apply the sigmoid to each score on its own, so the keys do not compete and a row
        does not sum to one. Attention divides by the sum over the keys.
    hard maximum: All weight goes to the best key, and the others get none: a hard look-up.
        Attention is the soft one: every key gets a share, so that gradients can flow.
    keepdims forgotten: The axis that you reduce is gone, so row i is combined with the maximum or
        the sum of row j. It runs only where n_q = n_k, or with one query. Pass keepdims=True.
    """
)
"""What is said of the mistakes of a softmax here."""

_AXIS_1: Way = {"axis": lambda x, axis: 1}
_WIDTHS: tuple[Way, ...] = ({}, sized(-0.5, 0, 1), sized(-0.5, 1, 1))

BATCH_MISTAKES = mistakes(
    """
    all axes reversed: On a batch, .T reverses all axes: batch and tokens change places, and where
        the sizes fit by chance the numbers are wrong. Exchange the last two axes only.
    softmax over axis 1 of a batch: For a matrix axis 1 is the axis of the keys, for a batch it is
        that of the queries. Write −1, which is the last axis of any array.
    width from shape[1]: You read d_k from shape[1]. For a batch that is the number of tokens. Read
        it from shape[-1], which is the width of any array.
    """,
    {
        "all axes reversed": tuple(
            {"product": lambda query, key: query @ key.T, **axis, **width}
            for axis in ({}, _AXIS_1)
            for width in _WIDTHS
        ),
        "softmax over axis 1 of a batch": tuple({**_AXIS_1, **width} for width in _WIDTHS),
        "width from shape[1]": _WIDTHS[1:],
    },
)
"""They show on a batch only and come together; the first is told first."""

OPTION_MISTAKES = mistakes(
    """
    scale ignored: Your function takes `scale` and does not use it. It takes the place of 1/√d_k.
    scale on top of 1/√d_k: You apply both. A scale that is given takes the place of 1/√d_k.
    scale 0 taken for none: You write `scale or …`, and 0 counts as False. Ask `scale is None`.
    scale divides: You divide the scores by `scale`. It is the factor itself, by default 1/√d_k.
    bias ignored: Your function takes `bias` and does not use it. Add it to the scores.
    bias before the scale: You add the bias before you scale, so it is scaled as well. Scale first.
    bias subtracted: You subtract the bias from the scores. It is added.
    bias multiplies the scores: You multiply the scores by the bias. It is added.
    bias after the softmax: You add the bias to the weights: rows no longer sum to one. Add it to
        the scores.
    """,
    {
        "scale ignored": {"factor": lambda q, k, v, scale: one_over_root(q, k, v, None)},
        "scale on top of 1/√d_k": {
            "factor": lambda q, k, v, scale: q.shape[-1] ** -0.5 * (1 if scale is None else scale)
        },
        "scale 0 taken for none": {"factor": lambda q, k, v, scale: scale or q.shape[-1] ** -0.5},
        "scale divides": {"factor": lambda q, k, v, scale: 1 / (scale or math.sqrt(q.shape[-1]))},
        "bias ignored": {"add": lambda s, bias, factor: s},
        "bias before the scale": {"add": lambda s, bias, factor: s + bias * factor},
        "bias subtracted": {"add": lambda s, bias, factor: s - bias},
        "bias multiplies the scores": {"add": lambda s, bias, factor: s * bias},
        "bias after the softmax": {
            "add": lambda s, bias, factor: s,
            "after": lambda w, mask, bias, factor: w if bias is None else w + bias,
        },
    },
)
"""Those made with `scale` and `bias`."""

_NOT_HERE = ("sign of the scores", "wrong axis", "axis 1 of a batch", "axis ignored")
WEIGHT_MISTAKES = (
    *SCORE_MISTAKES,
    *renamed(
        without(soft.NORMALIZATION_MISTAKES, *_NOT_HERE),
        {name: (name, message) for name, message in _OF_WEIGHTS.items()},
    ),
    *BATCH_MISTAKES,
    *MASK_MISTAKES,
)
"""What every attention can get wrong in its weights, the more plausible first."""

DOT_ON_A_BATCH = (
    "np.dot on a batch",
    "np.dot of two batches multiplies every matrix of one with every matrix of the other. Use @, "
    "which takes them in pairs.",
)
DOT_PRODUCT = {"product": lambda query, key: np.dot(query, transposed(key))}


_OF_ONE_INPUT = mistakes(
    """
    query compared with itself: You compare the queries with each other and never look at the key.
        That is the same only if query and key are one array.
    keys compared with themselves: You compare the keys with each other and never look at the query.
        That is the same only if query and key are one array.
    """,
    {
        "query compared with itself": {"product": lambda q, k: dot_products(q, q)},
        "keys compared with themselves": {"product": lambda q, k: dot_products(k, k)},
    },
)


def _without_value(inputs):
    return {name: inputs[name] for name in ("query", "key")}


WEIGHTS = Check(
    name="attention_weights",
    parameters=("query", "key"),
    results={"weights": "(..., n_q, n_k)"},
    reference=attnbook.attention_weights,
    compute=weights_from_steps,
    steps=WEIGHT_STEPS,
    variants=soft.VARIANTS,
    stages=stages_of(lambda *sizes, **how: _without_value(arrays(*sizes, **how)), _without_value),
    mistakes=(
        Mistake(
            "transposed",
            "Your weights are transposed: one row for each key. Each query needs a row of its own, "
            "of shape (n_q, n_k): the dot products are Q Kᵀ, in this order.",
            (
                {"product": lambda q, k: dot_products(k, q)},
                {"after": lambda weights, *others: transposed(weights)},
            ),
        ),
        Mistake(*DOT_ON_A_BATCH, (DOT_PRODUCT,)),
        *_OF_ONE_INPUT,
        *WEIGHT_MISTAKES,
        *OPTION_MISTAKES,
    ),
    properties=(soft.rows_sum_to_one, soft.weights_are_positive),
    options=("mask", "bias", "scale"),
    remarked_options=("mask",),
    legible=True,
)
