"""Attention in steps: its weights, and the values that they mix. The check of it."""

import math
from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check import attention_cases as cases
from attnbook.check import weights as w
from attnbook.check.engine import documented, run
from attnbook.check.normalization import VARIANTS
from attnbook.check.report import Report
from attnbook.check.scores import (
    SCORE_MISTAKES,
    WEIGHT_STEPS,
    sized,
    transposed,
    weights_from_steps,
)
from attnbook.check.sentences import mistakes, moved
from attnbook.check.steps import Case, Check, Mistake, Values, each, only, renamed


@documented
def attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check attention, softmax(Q Kᵀ/√d_k) V.

    Runs `f` as `attention_weights` does, with values of a width d_v of their own.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value)``, by position, on (n_q, d_k), (n_k, d_k) and (n_k, d_v).
        If it takes arguments named `mask` (**True = may attend**), `scale` or `bias`, they are
        passed by name. It returns the output alone, of shape (n_q, d_v). It may be written for one
        sequence, without leading axes.

    Examples
    --------
    >>> from attnbook import check, softmax
    >>> def my_attention(query, key, value):
    ...     return softmax(query @ key.mT / key.shape[-1]) @ value
    >>> check.attention(my_attention).mistake
    'scale by d_k'
    """
    return run(ATTENTION, f, time_limit)


ATTENTION_STEPS: dict[str, Callable] = {
    "inputs": lambda query, key, value: (query, key, value),
    **WEIGHT_STEPS,
    "mix": lambda weights, value: weights @ value,
    "result": lambda output, query, value: output,
}


def attention_from_steps(s, query, key, value, **options):
    """Return the output of attention by the steps `s`."""
    query, key, value = s.inputs(query, key, value)
    weights = weights_from_steps(s, query, key, value=value, **options)
    return s.result(s.mix(weights, value), query, value)


OUTPUT_MISTAKES = (
    Mistake(*w.DOT_ON_A_BATCH, ({"mix": np.dot}, w.DOT_PRODUCT, {**w.DOT_PRODUCT, "mix": np.dot})),
    *mistakes(
        """
    weights returned: You return the weights, not the output. They say how much each value counts;
        the output is the values mixed by them, of shape (n_q, d_v).
    values not mixed: You return the values as they came. Multiply them by the weights: a mixture a
        query.
    query and key swapped: Query and key have changed places: each key looks for queries. It runs
        only where n_q = n_k. The rows of the scores belong to the queries: Q Kᵀ.
    weights transposed: You multiply the values by the transposed weights. It runs only where n_q =
        n_k, and the rows that mix the values no longer sum to one.
    elementwise product: You multiply weights and values entry by entry. It runs only where the
        shapes fit by chance. Each output is a sum over all keys: a matrix product.
    values transposed: You transpose the values before you mix them. It runs only where n_k = d_v.
        The weights run over the keys, which are the rows of the value.
    values before the weights: You multiply the values by the weights from the wrong side, value @
        weights. It runs only where the sizes fit by chance. The weights come first: their columns
        belong to the keys, which are the rows of the value.
    value used as key: You compare the query with the values. The scores come from query and key;
        the values enter only when they are mixed.
    key used as value: You mix the keys instead of the values. Keys decide how much, values what.
    key and value swapped: Key and value have changed places: you compare the query with the values
        and mix the keys. It runs only where d_v = d_k. Keys decide how much, values decide what.
    query used as value: You mix the queries instead of the values. What is found comes from
        `value`.
    query compared with itself: You compare the queries with each other and never look at the key.
        That is the same only if query and key are one array, and runs only where n_q = n_k.
    keys compared with themselves: You compare the keys with each other and never look at the query.
        That is the same only if query and key are one array.
    query added: You add the query to the output. The residual connection belongs to the layer, not
        to attention: return the mixed values alone.
    output divided again: You divide the mixed values once more, by the number of keys or by a root
        of a width. The weights of a query sum to one, so the mixture is a mean already.
    scale by √d_v: You divide the scores by √d_v, the root of the width of the values. The scores
        are dot products of query and key, which have d_k terms.
    values in another order: The values come in another order than the keys, reversed or moved by
        one place. Weight j belongs to value j, as score j belongs to key j.
    values not weighed: Your output is the sum or the largest of the values, whatever the query asks
        for. Each output is their mean, weighed by the weights of the query.
    """,
        {
            "weights returned": {"mix": lambda weights, value: weights},
            "values not mixed": {"mix": lambda weights, value: value},
            "query and key swapped": {"inputs": lambda q, k, v: (k, q, v)},
            "weights transposed": {"mix": lambda weights, value: transposed(weights) @ value},
            "elementwise product": {"mix": lambda weights, value: weights * value},
            "values transposed": {"mix": lambda weights, value: weights @ transposed(value)},
            "values before the weights": {"mix": lambda weights, value: value @ weights},
            "value used as key": {"inputs": lambda q, k, v: (q, v, v)},
            "key used as value": {"inputs": lambda q, k, v: (q, k, k)},
            "key and value swapped": {"inputs": lambda q, k, v: (q, v, k)},
            "query used as value": {"inputs": lambda q, k, v: (q, k, q)},
            "query compared with itself": {"inputs": lambda q, k, v: (q, q, v)},
            "keys compared with themselves": {"inputs": lambda q, k, v: (k, k, v)},
            "query added": {"result": lambda output, query, value: output + query},
            "output divided again": each(
                "result",
                lambda output, query, value: output / value.shape[-2],
                lambda output, query, value: output / math.sqrt(value.shape[-1]),
                lambda output, query, value: output / math.sqrt(query.shape[-1]),
            ),
            "values in another order": each(
                "inputs",
                lambda q, k, v: (q, k, v[..., ::-1, :]),
                lambda q, k, v: (q, k, np.roll(v, 1, axis=-2)),
                lambda q, k, v: (q, k, np.roll(v, -1, axis=-2)),
            ),
            "values not weighed": each(
                "mix",
                lambda weights, value: 0 * (weights @ value) + np.sum(value, -2, keepdims=True),
                lambda weights, value: 0 * (weights @ value) + np.max(value, -2, keepdims=True),
            ),
            "scale by √d_v": sized(-0.5, 2),
        },
    ),
)

SCALE_MISTAKES = only(
    OUTPUT_MISTAKES + SCORE_MISTAKES,
    *("no scale", "scale by d_k", "scale multiplied", "another power of d_k", "scale by √d_v"),
)
"""What goes wrong with the step `factor` alone."""

_OF_OUTPUTS = {
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


# Properties.


def _visible_rows(case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """Return whether each query, (..., n_q, 1), may attend to anything."""
    mask = case.input.get("mask")
    some = True if mask is None else np.any(mask, axis=-1, keepdims=True)
    return np.broadcast_to(some, (*shape[:-1], 1))


def empty_rows_are_zero(case: Case, values: Values, again: Callable) -> str | None:
    off = values[0] * ~_visible_rows(case, values[0].shape)
    if np.all(off == 0):
        return None
    number = off[off != 0][0]
    return f"A query that may attend to nothing must get zeros; here it gets {number:.4g}."


def outputs_between_values(case: Case, values: Values, again: Callable) -> str | None:
    value, seen = case.arrays["value"], _visible_rows(case, values[0].shape)
    low = np.min(value, axis=-2, keepdims=True) - 1e-6
    high = np.max(value, axis=-2, keepdims=True) + 1e-6
    if value.ndim == 3 and len(value) < len(values[0]):  # heads that share their values
        low, high = (np.repeat(x, len(values[0]) // len(x), axis=0) for x in (low, high))
    if np.all((low <= values[0]) & (values[0] <= high) | ~seen):
        return None
    return (
        "Each output is a weighted mean of the values and lies between the smallest and the "
        "largest of its column; here one lies outside."
    )


_in_any_order = moved(
    lambda arguments: {name: np.flip(arguments[name], axis=-2) for name in ("key", "value")},
    np.allclose,
    "Reversing the order of keys and values together must change nothing; here it changes the "
    "output.",
)


def order_of_keys_is_free(case: Case, values: Values, again: Callable) -> str | None:
    return None if {"mask", "bias"} & {*case.input} else _in_any_order(case, values, again)


def hidden_keys_change_nothing(case: Case, values: Values, again: Callable) -> str | None:
    mask = case.input.get("mask")
    if mask is None or mask.ndim != 2:
        return None
    unseen = ~mask[0][:, np.newaxis]  # what query 0 may not attend to
    moved = again(**{name: case.arrays[name] + unseen for name in ("key", "value")})
    if moved and not np.allclose(moved[0][..., 0, :], values[0][..., 0, :]):
        return "A key that query 0 may not attend to still changes its output."
    return None


ATTENTION_MISTAKES = (*renamed(w.WEIGHT_MISTAKES, _OF_OUTPUTS), *OUTPUT_MISTAKES)
"""Those of the weights and those made with the values."""

ATTENTION = Check(
    name="attention",
    parameters=("query", "key", "value"),
    results={"output": "(..., n_q, d_v)"},
    reference=attnbook.attention,
    compute=attention_from_steps,
    steps=ATTENTION_STEPS,
    variants=VARIANTS,
    stages=cases.stages_of(cases.arrays, dict),
    mistakes=(*ATTENTION_MISTAKES, *w.OPTION_MISTAKES),
    properties=(
        empty_rows_are_zero,
        outputs_between_values,
        order_of_keys_is_free,
        hidden_keys_change_nothing,
    ),
    options=("mask", "bias", "scale"),
    remarked_options=("mask",),
    legible=True,
)
