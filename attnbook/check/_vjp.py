"""The check of the gradient of attention: the steps of the backward pass, and wrong ones."""

import itertools
from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check import _recipes as r
from attnbook.check._model import Case, Check, Mistake, Stage, Values, draw
from attnbook.check._recipes import RIGHT, Recipe
from attnbook.check._softmax import LARGE_ERRORS, SPREAD_ERRORS
from attnbook.check._weight_mistakes import ON_A_BATCH, OPTION_MISTAKES, WEIGHT_MISTAKES, scaled_by
from attnbook.check._weights import (
    EMPTY,
    FLIPPED,
    LARGE,
    OUTBID,
    OUTBID_MASK,
    RAGGED,
    SIZES,
    SPREAD,
    arrays,
)

_RESULTS = {
    "grad_query": "(..., n_q, d_k)",
    "grad_key": "(..., n_k, d_k)",
    "grad_value": "(..., n_k, d_v)",
}


def _jacobian(weights, grad_weights):
    along = np.sum(weights * grad_weights, axis=-1, keepdims=True)
    return weights * (grad_weights - along)


def _backward(
    recipe: Recipe = RIGHT,
    jacobian: Callable = _jacobian,
    grad_weights: Callable = lambda g, v: g @ r.transposed(v),
    grad_query: Callable = lambda d, q, k, v: d @ k,
    grad_key: Callable = lambda d, q, k, v: r.transposed(d) @ q,
    grad_value: Callable = lambda a, g: r.transposed(a) @ g,
    factor: Callable = lambda s: s,
    incoming: Callable = lambda g: g,
    order: Callable = lambda grads: grads,
) -> Callable:
    """Return the backward pass with some of its steps replaced."""

    def model(query, key, value, grad_output, *, mask=None, bias=None, scale=None):
        g = incoming(grad_output)
        a = recipe.weights(query, key, mask=mask, bias=bias, scale=scale)
        s = factor(recipe.factor(query, key, scale))
        d = jacobian(a, grad_weights(g, value))
        return order(
            (
                grad_query(d, query, key, value) * s,
                grad_key(d, query, key, value) * s,
                grad_value(a, g),
            )
        )

    return model


_INHERITED = (
    "scale by d_k",
    "softmax over the query axis",
    "key not transposed",
    "softmax twice",
    "no maximum",
    "maximum of the whole array",
    "softmax over axis 1 of a batch",
    "width from shape[1]",
    "not the maximum",
    "mask inverted",
    "mask ignored",
    "mask with a large negative number",
    "empty row NaN",
    "empty row uniform",
    "scale ignored",
    "bias ignored",
)
"""Mistakes in the recomputed weights that are as likely here as in the forward pass."""


def _in_order(order: tuple[int, ...]) -> Callable:
    return lambda grads: tuple(grads[i] for i in order)


def key_gradients_cancel(case: Case, values: Values, again: Callable) -> str | None:
    if np.allclose(np.sum(values[1], axis=-2), 0, atol=1e-6):
        return None
    return (
        "Adding one vector to every key changes no weight, so the rows of grad_key must sum to "
        "zero; here they do not."
    )


def value_gradients_add_up(case: Case, values: Values, again: Callable) -> str | None:
    incoming = np.sum(case.arrays["grad_output"], axis=-2)
    if "mask" in case.options or np.allclose(np.sum(values[2], axis=-2), incoming):
        return None
    return (
        "The weights of a query sum to one, so the rows of grad_value must sum to the same as "
        "those of grad_output; here they do not."
    )


_MISTAKES = (
    Mistake(
        "no scale in the gradients",
        "The factor 1/√d_k is missing from the gradients of query and key. The scores are "
        "Q Kᵀ/√d_k, so by the chain rule the factor comes back in both.",
        (
            _backward(factor=lambda s: 1),
            _backward(grad_query=lambda d, q, k, v: d @ k * np.sqrt(q.shape[-1])),
            _backward(grad_key=lambda d, q, k, v: r.transposed(d) @ q * np.sqrt(q.shape[-1])),
        ),
    ),
    Mistake(
        "no scale",
        "Your gradients are those of attention without the 1/√d_k. The weights that you recompute "
        "must be those of the forward pass, and the factor comes back in the gradients of query "
        "and key.",
        (_backward(scaled_by(lambda q, k: 1.0)),),
    ),
    Mistake(
        "scale forgotten in the weights",
        "You recompute the weights without the 1/√d_k, though you apply it to the gradients. The "
        "weights must be those of the forward pass.",
        (
            lambda q, k, v, g, **o: _backward(
                scaled_by(lambda q, k: 1.0), factor=lambda s: 1 / np.sqrt(q.shape[-1])
            )(q, k, v, g, **o),
        ),
    ),
    Mistake(
        "scale twice",
        "You apply 1/√d_k twice on the way back. It is one factor in the scores, so it is one "
        "factor in the gradients of query and key.",
        (
            _backward(factor=lambda s: s * s),
            _backward(grad_query=lambda d, q, k, v: d @ k / np.sqrt(q.shape[-1])),
            _backward(grad_key=lambda d, q, k, v: r.transposed(d) @ q / np.sqrt(q.shape[-1])),
        ),
    ),
    Mistake(
        "second term of the softmax Jacobian",
        "Your gradient of the scores is A ⊙ ∂L/∂A alone. A larger score also takes weight from all "
        "other keys of its row: the second term, the row sum of A ⊙ ∂L/∂A, is missing.",
        (_backward(jacobian=lambda a, da: a * da),),
    ),
    Mistake(
        "diagonal of the softmax Jacobian",
        "You use A(1 − A), the diagonal of the Jacobian, as for a sigmoid. Every score of a row "
        "changes every weight of that row: the entries off the diagonal count too.",
        (_backward(jacobian=lambda a, da: a * (1 - a) * da),),
    ),
    Mistake(
        "softmax skipped",
        "You pass the gradient of the weights on as that of the scores, as if there were no "
        "softmax between them. Multiply by the Jacobian of the softmax.",
        (_backward(jacobian=lambda a, da: da),),
    ),
    Mistake(
        "sum over the wrong axis",
        "In the softmax Jacobian you sum over the queries, or over all entries. Each row has a "
        "softmax of its own: sum A ⊙ ∂L/∂A over the keys, the last axis, and keep the axis.",
        (
            _backward(jacobian=lambda a, da: a * (da - np.sum(a * da, axis=-2, keepdims=True))),
            _backward(jacobian=lambda a, da: a * (da - np.sum(a * da))),
        ),
    ),
    Mistake(
        "keepdims forgotten",
        "In the softmax Jacobian the axis that you sum over is gone, so row i is combined with the "
        "sum of row j. It runs only where n_q = n_k, or with one query. Pass keepdims=True.",
        (_backward(jacobian=lambda a, da: a * (da - np.sum(a * da, axis=-1))),),
    ),
    Mistake(
        "sum without the weights",
        "In the softmax Jacobian you sum ∂L/∂A over the keys, or take its mean, without the "
        "weights. What is subtracted is the mean weighted by A.",
        (
            _backward(jacobian=lambda a, da: a * (da - np.sum(da, axis=-1, keepdims=True))),
            _backward(jacobian=lambda a, da: a * (da - np.mean(da, axis=-1, keepdims=True))),
        ),
    ),
    Mistake(
        "sign",
        "The gradients of query and key have the wrong sign. In the softmax Jacobian the weighted "
        "mean is subtracted from ∂L/∂A, not the other way round.",
        (_backward(factor=lambda s: -s),),
    ),
    Mistake(
        "sign of the second term",
        "In the softmax Jacobian you add the weighted mean of ∂L/∂A. It is subtracted: what one "
        "key gains, the others of its row lose.",
        (_backward(jacobian=lambda a, da: a * (da + np.sum(a * da, axis=-1, keepdims=True))),),
    ),
    Mistake(
        "grad_query and grad_key swapped",
        "You return the gradient of the key where that of the query is expected, and the other way "
        "round. Return (grad_query, grad_key, grad_value).",
        (_backward(order=_in_order((1, 0, 2))),),
    ),
    Mistake(
        "order of the gradients",
        "The three gradients are right but in another order. Return (grad_query, grad_key, "
        "grad_value), in the order of the arguments.",
        tuple(
            _backward(order=_in_order(order))
            for order in itertools.permutations(range(3))
            if order not in ((0, 1, 2), (1, 0, 2))
        ),
    ),
    Mistake(
        "weights not transposed in grad_value",
        "You compute grad_value with A where Aᵀ is needed. It runs only where n_q = n_k. A value "
        "is read by all queries, so its gradient collects over the queries: a column of A.",
        (_backward(grad_value=lambda a, g: a @ g),),
    ),
    Mistake(
        "scores not transposed in grad_key",
        "You compute grad_key with the gradient of the scores where its transpose is needed. It "
        "runs only where n_q = n_k. A key meets all queries, so its gradient collects over them.",
        (_backward(grad_key=lambda d, q, k, v: d @ q),),
    ),
    Mistake(
        "scores transposed in grad_query",
        "You compute grad_query with the transposed gradient of the scores. It runs only where "
        "n_q = n_k. Row i of that gradient belongs to query i already.",
        (_backward(grad_query=lambda d, q, k, v: r.transposed(d) @ k),),
    ),
    Mistake(
        "grad_query from the wrong factor",
        "The score of a pair is query · key, so the gradient of the query is made of keys. You use "
        "another array there; it runs only where the shapes fit by chance.",
        (
            _backward(grad_query=lambda d, q, k, v: d @ v),
            _backward(grad_query=lambda d, q, k, v: d @ q),
        ),
    ),
    Mistake(
        "grad_key from the wrong factor",
        "The score of a pair is query · key, so the gradient of the key is made of queries. You "
        "use another array there; it runs only where the shapes fit by chance.",
        (
            _backward(grad_key=lambda d, q, k, v: r.transposed(d) @ k),
            _backward(grad_key=lambda d, q, k, v: r.transposed(d) @ v),
        ),
    ),
    Mistake(
        "value not transposed",
        "You compute the gradient of the weights without transposing the value. It runs only where "
        "n_k = d_v. The gradient of one weight is the dot product of a row of grad_output and a "
        "row of value.",
        (_backward(grad_weights=lambda g, v: g @ v),),
    ),
    Mistake(
        "grad_output ignored",
        "Your gradients are those of the sum of all outputs: they do not depend on grad_output. "
        "It says how the loss depends on each output, and every gradient passes through it.",
        (_backward(incoming=np.ones_like),),
    ),
    Mistake(
        "all axes reversed",
        "On a batch, .T reverses all axes: batch and tokens change places, and where the sizes "
        "fit by chance the numbers are wrong. Exchange the last two axes only.",
        tuple(
            _backward(
                recipe,
                grad_weights=lambda g, v: g @ v.T,
                grad_key=lambda d, q, k, v: d.T @ q,
                grad_value=lambda a, g: a.T @ g,
            )
            for recipe in (RIGHT, *ON_A_BATCH["all axes reversed"])
        ),
    ),
    *(
        Mistake(name, message, tuple(_backward(recipe) for recipe in recipes))
        for name, message, recipes in WEIGHT_MISTAKES + OPTION_MISTAKES
        if name in _INHERITED
    ),
)


def _cases(*sizes: tuple, dtype: str = "float64", leading: tuple = (), **options) -> tuple:
    cases = []
    for n_q, n_k, d_k, d_v in sizes:
        drawn = arrays(n_q, n_k, d_k, d_v, leading, dtype)
        drawn["grad_output"] = draw(13, *leading, n_q, d_v).astype(dtype)
        cases.append(Case(drawn, options))
    return tuple(cases)


ATTENTION_VJP = Check(
    name="attention_vjp",
    parameters=("query", "key", "value", "grad_output"),
    results=_RESULTS,
    reference=attnbook.attention_vjp,
    stages=(
        Stage(_cases(*SIZES)),
        Stage(_cases(*SIZES[:2], dtype="float32")),
        Stage((Case({**LARGE, "grad_output": draw(13, 3, 2)}),), errors=LARGE_ERRORS),
        Stage((Case({**SPREAD, "grad_output": draw(13, 2, 2)}),), errors=SPREAD_ERRORS),
        Stage(
            _cases((2, 3, 5, 7), leading=(11,)) + _cases((3, 3, 3, 3), leading=(3,)),
            beyond="a batch (leading axes)",
        ),
        Stage(
            _cases((2, 3, 5, 7), mask=RAGGED) + _cases((3, 3, 2, 5), mask=FLIPPED), option="mask"
        ),
        Stage(
            (Case({**OUTBID, "grad_output": draw(13, 2, 2)}, {"mask": OUTBID_MASK}),),
            option="mask",
        ),
        Stage(_cases((2, 3, 5, 7), mask=EMPTY), option="mask"),
        Stage(_cases((2, 3, 5, 7), scale=0.25), option="scale"),
        Stage(_cases((2, 3, 5, 7), bias=draw(5, 2, 3)), option="bias"),
    ),
    mistakes=_MISTAKES,
    properties=(key_gradients_cancel, value_gradients_add_up),
    options=("mask", "bias", "scale"),
    remarked_options=("mask",),
)
