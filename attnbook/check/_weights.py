"""The check of the attention weights, with the sizes and masks that other checks use too."""

from dataclasses import replace

import numpy as np

import attnbook
from attnbook.check import _recipes as r
from attnbook.check._model import Case, Check, Mistake, Stage, draw
from attnbook.check._recipes import swap
from attnbook.check._softmax import (
    LARGE_ERRORS,
    SPREAD_ERRORS,
    rows_sum_to_one,
    weights_are_positive,
)
from attnbook.check._weight_mistakes import OPTION_MISTAKES, WEIGHT_MISTAKES

SIZES = (
    (3, 3, 3, 3),
    (2, 5, 3, 7),
    (5, 2, 7, 3),
    (1, 1, 3, 2),
    (1, 5, 2, 3),
    (5, 1, 3, 2),
    (3, 3, 5, 2),
    (2, 3, 5, 5),
)
"""n_q, n_k, d_k, d_v: a square, primes in both orders, one token, one query, one key, and pairs."""

_CAUSAL = np.tril(np.ones((5, 5), dtype=bool))
RAGGED = np.array([[True, False, True], [False, True, True]])
FLIPPED = np.array([[False, False, True], [True, False, False], [False, True, True]])
EMPTY = np.array([[True, False, True], [False, False, False]])
"""Masks: none is its own transpose; the last has a row that hides every key."""

# visible scores are −4e9, hidden ones +4e9; every product is exact
OUTBID_MASK = np.array([[True, True, False], [False, False, True]])
OUTBID = {
    "query": np.array([[2.0**33, 0.0, 0.0, 0.0], [-(2.0**33), 0.0, 0.0, 0.0]]),
    "key": np.array([[-1.0, 1.0, 2.0, 0.0], [-1.0, 0.0, 1.0, 3.0], [1.0, 5.0, 1.0, 1.0]]),
    "value": draw(4, 3, 2),
}


DOT_ON_A_BATCH = (
    "np.dot on a batch",
    "np.dot of two batches multiplies every matrix of one with every matrix of the other. Use @, "
    "which takes them in pairs.",
)


def dot_of_batches(query, key):
    return np.dot(query, r.transposed(key))


def arrays(n_q, n_k, d_k, d_v, leading=(), dtype="float64"):
    """Return query, key and value of these sizes, the same ones every time."""
    return {
        "query": draw(2, *leading, n_q, d_k).astype(dtype),
        "key": draw(3, *leading, n_k, d_k).astype(dtype),
        "value": draw(4, *leading, n_k, d_v).astype(dtype),
    }


# scores near 1024, −1024 and 1; every product is exact, also in float32
LARGE = {
    "query": np.array([[2048.0, 0.0, 0.0, 0.0], [-2048.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]]),
    "key": np.array([[1024, 0, 3072, 512], [1025, 1024, 2048, 0], [1023, 2048, 512, 4096]]) / 1024,
    "value": draw(4, 3, 2),
}
# scores 1024, 0 and −1024, in both orders
SPREAD = {
    "query": np.array([[2048.0, 0.0, 0.0, 0.0], [0.0, 2048.0, 0.0, 0.0]]),
    "key": np.array([[1.0, -1.0, 3.0, 2.0], [0.0, 0.0, 1.0, 5.0], [-1.0, 1.0, 2.0, 0.0]]),
    "value": draw(4, 3, 2),
}
STAGES = (
    Stage(tuple(Case(arrays(*sizes)) for sizes in SIZES)),
    Stage(tuple(Case(arrays(*sizes, dtype="float32")) for sizes in SIZES[:2])),
    Stage(
        (Case(LARGE), Case({name: x.astype(np.float32) for name, x in LARGE.items()})),
        errors=LARGE_ERRORS,
    ),
    Stage((Case(SPREAD),), errors=SPREAD_ERRORS),
    Stage(
        (
            Case(arrays(2, 3, 5, 7, leading=(11,))),
            Case(arrays(3, 3, 3, 3, leading=(3,))),  # .T fits by chance
            Case(arrays(5, 3, 3, 3, leading=(3,))),
        ),
        beyond="a batch (leading axes)",
    ),
    Stage(
        (
            Case(arrays(3, 3, 2, 5), {"mask": FLIPPED}),
            Case(arrays(5, 5, 3, 2), {"mask": _CAUSAL}),
            Case(arrays(2, 3, 5, 7), {"mask": RAGGED}),
        ),
        option="mask",
    ),
    Stage((Case(OUTBID, {"mask": OUTBID_MASK}),), option="mask"),
    Stage((Case(arrays(2, 3, 5, 7), {"mask": EMPTY}),), option="mask"),
    Stage((Case(arrays(2, 3, 5, 7), {"scale": 0.25}),), option="scale"),
    Stage((Case(arrays(2, 3, 5, 7), {"bias": draw(5, 2, 3)}),), option="bias"),
    Stage(
        (Case(arrays(2, 3, 5, 7, leading=(11,)), {"mask": RAGGED}),),
        option="mask",
        beyond="a batch (leading axes) with a mask",
    ),
)
"""The stages of `attention`; those of its weights leave out the value."""


def _without_value(stage: Stage) -> Stage:
    cases = tuple(
        Case({name: x for name, x in case.arrays.items() if name != "value"}, case.options)
        for case in stage.cases
    )
    return replace(stage, cases=cases)


WEIGHTS = Check(
    name="attention_weights",
    parameters=("query", "key"),
    results={"weights": "(..., n_q, n_k)"},
    reference=attnbook.attention_weights,
    stages=tuple(_without_value(stage) for stage in STAGES),
    mistakes=(
        Mistake(
            "transposed",
            "Your weights are transposed: one row for each key. Each query needs a row of its own, "
            "of shape (n_q, n_k): the dot products are Q Kᵀ, in this order.",
            (
                lambda q, k, **options: r.RIGHT.weights(k, q, **options),
                lambda q, k, **options: r.transposed(r.RIGHT.weights(q, k, **options)),
            ),
        ),
        Mistake(*DOT_ON_A_BATCH, (swap(product=dot_of_batches).weights,)),
        *(
            Mistake(name, message, tuple(recipe.weights for recipe in recipes))
            for name, message, recipes in WEIGHT_MISTAKES + OPTION_MISTAKES
        ),
    ),
    properties=(rows_sum_to_one, weights_are_positive),
    options=("mask", "bias", "scale"),
    remarked_options=("mask",),
)
