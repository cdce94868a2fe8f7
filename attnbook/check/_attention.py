"""The check of attention: the mistakes of its weights, and those made with the values."""

import math
from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check import _recipes as r
from attnbook.check._model import Case, Check, Mistake, Values
from attnbook.check._recipes import swap
from attnbook.check._weight_mistakes import OPTION_MISTAKES, WEIGHT_MISTAKES
from attnbook.check._weights import DOT_ON_A_BATCH, STAGES, dot_of_batches


def outputs_between_values(case: Case, values: Values, again: Callable) -> str | None:
    value = case.arrays["value"]
    low = np.min(value, axis=-2, keepdims=True) - 1e-6
    high = np.max(value, axis=-2, keepdims=True) + 1e-6
    if np.all((low <= values[0]) & (values[0] <= high)):
        return None
    return (
        "Each output is a weighted mean of the values and lies between the smallest and the "
        "largest of its column; here one lies outside."
    )


def order_of_keys_is_free(case: Case, values: Values, again: Callable) -> str | None:
    if {"mask", "bias"} & {*case.arguments, *case.options}:
        return None
    moved = again(**{name: np.flip(case.arrays[name], axis=-2) for name in ("key", "value")})
    if moved and not np.allclose(moved[0], values[0]):
        return (
            "Reversing the order of keys and values together must change nothing; here it changes "
            "the output."
        )
    return None


def hidden_keys_change_nothing(case: Case, values: Values, again: Callable) -> str | None:
    mask = {**case.arguments, **case.options}.get("mask")
    if mask is None or mask.ndim != 2:
        return None
    unseen = ~mask[0][:, np.newaxis]  # what query 0 may not attend to
    moved = again(**{name: case.arrays[name] + unseen for name in ("key", "value")})
    if moved and not np.allclose(moved[0][..., 0, :], values[0][..., 0, :]):
        return "A key that query 0 may not attend to still changes its output."
    return None


ATTENTION_MISTAKES = (
    Mistake(
        *DOT_ON_A_BATCH,
        (
            lambda q, k, v, **options: np.dot(r.RIGHT.weights(q, k, **options), v),
            swap(product=dot_of_batches).output,
            lambda q, k, v, **options: np.dot(
                swap(product=dot_of_batches).weights(q, k, **options), v
            ),
        ),
    ),
    Mistake(
        "weights returned",
        "You return the weights, not the output. They say how much each value counts; the output "
        "is the values mixed by them, of shape (n_q, d_v).",
        (lambda q, k, v, **options: r.RIGHT.weights(q, k, **options),),
    ),
    Mistake(
        "values not mixed",
        "You return the values as they came. Multiply them by the weights: each query gets its own "
        "mixture.",
        (lambda q, k, v, **options: v,),
    ),
    Mistake(
        "query and key swapped",
        "Query and key have changed places: each key looks for queries. It runs only where "
        "n_q = n_k. The rows of the scores belong to the queries: Q Kᵀ.",
        (lambda q, k, v, **options: r.RIGHT.output(k, q, v, **options),),
    ),
    Mistake(
        "weights transposed",
        "You multiply the values by the transposed weights. It runs only where n_q = n_k, and the "
        "rows that mix the values no longer sum to one.",
        (lambda q, k, v, **options: r.transposed(r.RIGHT.weights(q, k, **options)) @ v,),
    ),
    Mistake(
        "elementwise product",
        "You multiply weights and values entry by entry. It runs only where the shapes fit by "
        "chance. Each output is a sum over all keys: a matrix product.",
        (lambda q, k, v, **options: r.RIGHT.weights(q, k, **options) * v,),
    ),
    Mistake(
        "values transposed",
        "You transpose the values before you mix them. It runs only where n_k = d_v. The weights "
        "run over the keys, which are the rows of the value.",
        (lambda q, k, v, **options: r.RIGHT.weights(q, k, **options) @ r.transposed(v),),
    ),
    Mistake(
        "value used as key",
        "You compare the query with the values. The scores come from query and key; the values "
        "enter only when they are mixed.",
        (lambda q, k, v, **options: r.RIGHT.output(q, v, v, **options),),
    ),
    Mistake(
        "key used as value",
        "You mix the keys instead of the values. Keys decide how much, values decide what.",
        (lambda q, k, v, **options: r.RIGHT.output(q, k, k, **options),),
    ),
    Mistake(
        "query compared with itself",
        "You compare the queries with each other and never look at the key. That is the same only "
        "if query and key are one array, and runs only where n_q = n_k.",
        (lambda q, k, v, **options: r.RIGHT.output(q, q, v, **options),),
    ),
    Mistake(
        "scale by √d_v",
        "You divide the scores by √d_v, the root of the width of the values. The scores are dot "
        "products of query and key, which have d_k terms.",
        (
            lambda q, k, v, **options: r.RIGHT.output(
                q, k, v, **{"scale": 1 / math.sqrt(v.shape[-1]), **options}
            ),
        ),
    ),
)

_RENAMED = {
    "scores ignored": (
        "mean of the values",
        "Every output is the plain mean of all values, whatever the query asks for: the scores "
        "never reach the weights.",
    ),
    "hard maximum": (
        "hard look-up",
        "Each query gets the value of its best key alone: a hard look-up. Attention is the soft "
        "one: every value gets a share, so that gradients can flow.",
    ),
}

ATTENTION = Check(
    name="attention",
    parameters=("query", "key", "value"),
    results={"output": "(..., n_q, d_v)"},
    reference=attnbook.attention,
    stages=STAGES,
    mistakes=(
        *(
            Mistake(
                *_RENAMED.get(name, (name, message)), tuple(recipe.output for recipe in recipes)
            )
            for name, message, recipes in WEIGHT_MISTAKES + OPTION_MISTAKES
        ),
        *ATTENTION_MISTAKES,
    ),
    properties=(outputs_between_values, order_of_keys_is_free, hidden_keys_change_nothing),
    options=("mask", "bias", "scale"),
    remarked_options=("mask",),
)
