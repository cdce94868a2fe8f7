"""The gradients of attention in steps, the ways to get each wrong, and the check of them."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

import attnbook
from attnbook.check import attention_cases as cases
from attnbook.check import softmax_gradients
from attnbook.check import weights as w
from attnbook.check.engine import documented, run
from attnbook.check.linear_gradients import PRODUCTS
from attnbook.check.normalization import VARIANTS
from attnbook.check.report import Report
from attnbook.check.scores import WEIGHT_STEPS, sized, transposed, weights_from_steps
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Values, Way, draw, each, only, without


@documented
def attention_vjp(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the gradients of attention with respect to query, key and value.

    Runs `f` on the sizes of `attention`, on scores of ±1000, in float64 and float32, on batches;
    and with masks, a scale and a bias, for those of these arguments that it takes.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value, grad_output)``, by position, where grad_output (n_q, d_v)
        is ∂L/∂output. It returns three arrays, (grad_query, grad_key, grad_value). It may be
        written for one sequence, without leading axes. `mask`, `scale` and `bias` as in
        `attention`.

    Examples
    --------
    >>> from attnbook import attention_vjp, check
    >>> def my_vjp(query, key, value, grad_output):
    ...     grads = attention_vjp(query, key, value, grad_output)
    ...     return grads[1], grads[0], grads[2]
    >>> check.attention_vjp(my_vjp).mistake
    'grad_query and grad_key swapped'
    """
    return run(ATTENTION_VJP, f, time_limit)


GRADIENT_STEPS: dict[str, Callable] = {
    **WEIGHT_STEPS,
    "incoming": lambda g: g,
    "grad_weights": lambda g, v: g @ transposed(v),
    "mean": softmax_gradients.STEPS["mean"],  # of the gradient of the weights, in each row
    "jacobian": softmax_gradients.STEPS["jacobian"],
    "query_factor": lambda factor, query: factor,
    "key_factor": lambda factor, query: factor,
    "value_factor": lambda factor: 1,
    "grad_query": lambda d, q, k, v: d @ k,
    "grad_key": lambda d, q, k, v: transposed(d) @ q,
    "grad_value": lambda a, g, v, d: transposed(a) @ g,
    "results": lambda grads: grads,
}


def gradients_from_steps(s, query, key, value, grad_output, *, mask=None, bias=None, scale=None):
    """Return the three gradients by the steps `s`."""
    g = s.incoming(grad_output)
    a = weights_from_steps(s, query, key, value=value, mask=mask, bias=bias, scale=scale)
    factor = s.factor(query, key, value, scale)
    da = s.grad_weights(g, value)
    d = s.jacobian(a, da, s.mean(a, da))
    return s.results(
        (
            s.grad_query(d, query, key, value) * s.query_factor(factor, query),
            s.grad_key(d, query, key, value) * s.key_factor(factor, query),
            s.grad_value(a, g, value, d) * s.value_factor(factor),
        )
    )


def _factors(function: Callable) -> tuple[dict[str, Callable], ...]:
    """Return the ways that change the factor of both gradients, of the query's, of the key's."""
    query, key = {"query_factor": function}, {"key_factor": function}
    return {**query, **key}, query, key


def _in_order(*order: int) -> dict[str, Callable]:
    return {"results": lambda grads: tuple(grads[i] for i in order)}


def _each(function: Callable) -> dict[str, Callable]:
    return {"results": lambda grads: tuple(map(function, grads))}


def _root(factor, query):
    return query.shape[-1] ** -0.5


_REVERSED: Way = {
    "grad_weights": lambda g, v: g @ v.T,
    "grad_key": lambda d, q, k, v: d.T @ q,
    "grad_value": lambda a, g, v, d: a.T @ g,
}

_BUT_THE_SECOND = (PRODUCTS[0], *PRODUCTS[2:])
_BUT_THE_THIRD = (*PRODUCTS[:2], *PRODUCTS[3:])

_OF_A_SOFTMAX = {
    mistake.name: mistake.ways
    for mistake in only(
        softmax_gradients.MISTAKES,
        *("softmax skipped", "second term not multiplied by the weights"),
        *("sum over the wrong axis", "keepdims forgotten", "mean instead of sum"),
        *("sum without the weights", "sign of the second term"),
    )
}

_BACKWARD_MISTAKES = mistakes(
    """
    no scale in the gradients: The factor 1/√d_k is missing from the gradient of the query, of the
        key, or of both. The scores are Q Kᵀ/√d_k, so by the chain rule it comes back in both.
    no scale: Your gradients are those of attention without the 1/√d_k. Recompute the weights of the
        forward pass; the factor comes back in the gradients of query and key.
    scale forgotten in the weights: You recompute the weights without the 1/√d_k, though you apply
        it to the gradients. The weights must be those of the forward pass.
    scale twice: You apply 1/√d_k twice on the way back. It is one factor in the scores, so it is
        one factor in the gradients of query and key.
    scale multiplied in the gradients: You multiply the gradient of query or key, or both, by √d_k
        where it is to be divided by it. The factor of the scores, 1/√d_k, comes back unchanged.
    scale in grad_value: You apply 1/√d_k to the gradient of the value. The factor belongs to the
        scores; the value is mixed by the weights, and its gradient is Aᵀ times grad_output alone.
    second term of the softmax Jacobian: Your gradient of the scores is A ⊙ ∂L/∂A alone. A larger
        score also takes weight from all other keys of its row: the row sum of A ⊙ ∂L/∂A is missing.
    diagonal of the softmax Jacobian: You use A(1 − A), the diagonal of the Jacobian, as for a
        sigmoid. Every score of a row changes every weight of it: entries off the diagonal count.
    softmax skipped: You pass the gradient of the weights on as that of the scores, as if there were
        no softmax between them. Multiply by the Jacobian of the softmax.
    weights missing in the Jacobian: You subtract the weighted mean from ∂L/∂A and stop there. In
        the softmax Jacobian the difference is multiplied by the weights: A ⊙ (∂L/∂A − mean).
    second term not multiplied by the weights: Your gradient of the scores is A ⊙ ∂L/∂A minus the
        row sum. The row sum is multiplied by the weights too: A ⊙ (∂L/∂A − row sum).
    sum over the wrong axis: In the softmax Jacobian you sum over the queries, or over all entries.
        Each row has its own softmax: sum A ⊙ ∂L/∂A over the keys, the last axis, and keep it.
    keepdims forgotten: In the softmax Jacobian the axis that you sum over is gone, so row i is
        combined with the sum of row j. It runs only where n_q = n_k or 1. Pass keepdims=True.
    mean instead of sum: In the softmax Jacobian you take the mean of A ⊙ ∂L/∂A over the keys. It is
        the sum: the weights in it sum to one already.
    sum without the weights: In the softmax Jacobian you sum ∂L/∂A over the keys, or take its mean,
        without the weights. What is subtracted is the mean weighted by A.
    sign: The gradient of query or key, or both, has the wrong sign. In the softmax Jacobian the
        weighted mean is subtracted from ∂L/∂A, not the other way round.
    sign of the second term: In the softmax Jacobian you add the weighted mean of ∂L/∂A. It is
        subtracted: what one key gains, the others of its row lose.
    all gradients negated: All three gradients have the wrong sign: they point where the loss falls.
        A gradient points where it grows; the minus belongs to the step of the optimizer.
    gradients averaged: Your gradients are divided by the number of queries or of outputs, as for a
        mean of the outputs. grad_output holds such factors already.
    grad_query and grad_key swapped: You return the gradient of the key where that of the query is
        expected, and the other way round. Return (grad_query, grad_key, grad_value).
    order of the gradients: The three gradients are right but in another order. Return (grad_query,
        grad_key, grad_value), in the order of the arguments.
    weights not transposed in grad_value: You compute grad_value with A where Aᵀ is needed. It runs
        only where n_q = n_k. All queries read a value, so its gradient collects over them: a column
        of A.
    grad_value from the wrong factor: The output is A V, so the gradient of the value is Aᵀ times
        grad_output. You use another array there: the value itself, or the gradient of the scores.
    scores not transposed in grad_key: grad_key needs the transposed gradient of the scores. It runs
        only where n_q = n_k. A key meets all queries, so its gradient collects over them.
    scores transposed in grad_query: You compute grad_query with the transposed gradient of the
        scores. It runs only where n_q = n_k. Row i of that gradient belongs to query i already.
    grad_query from the wrong factor: The score of a pair is query · key, so the gradient of the
        query is made of keys. You use another array; it runs only where the shapes fit by chance.
    grad_key from the wrong factor: The score of a pair is query · key, so the gradient of the key
        is made of queries. You use another array; it runs only where the shapes fit by chance.
    value not transposed: You compute the gradient of the weights without transposing the value. It
        runs only where n_k = d_v. That of one weight is the dot product of a row of grad_output and
        one of value.
    grad_output ignored: Your gradients are those of the sum of all outputs: they do not depend on
        grad_output. It says how the loss depends on each output; every gradient passes through it.
    all axes reversed: On a batch, .T reverses all axes: batch and tokens change places, and where
        the sizes fit by chance the numbers are wrong. Exchange the last two axes only.
    first term of the softmax Jacobian: Your gradient of the scores is the second term alone, A
        times the row sum of A ⊙ ∂L/∂A. It is subtracted from the first one, A ⊙ ∂L/∂A.
    weights in the place of their gradient: You make grad_query and grad_key of the weights A. They
        are made of the gradient of the scores.
    grad_output left out: Your grad_query and grad_key do not depend on grad_output. It hands down
        the loss, through the weights as well.
    grad_value averaged: You divide grad_value by the number of queries. A value collects what all
        queries hand down: a sum.
    weights left out of grad_value: Every value gets the sum or the mean of all rows of grad_output,
        whatever its weights. It gets Aᵀ times grad_output.
    another product: You multiply the right two matrices in another order, or with another one of
        them transposed. It runs only where the sizes agree. With G for the gradient of the scores,
        grad_query is G K, grad_key is Gᵀ Q, and grad_value is Aᵀ times grad_output.
    """,
    {
        **_OF_A_SOFTMAX,
        "no scale in the gradients": _factors(lambda factor, query: 1),
        "no scale": sized(0),
        "scale forgotten in the weights": {**sized(0), **_factors(_root)[0]},
        "scale twice": _factors(lambda factor, query: factor * factor),
        "scale multiplied in the gradients": _factors(lambda factor, query: 1 / factor),
        "scale in grad_value": {"value_factor": lambda factor: factor},
        "second term of the softmax Jacobian": {"jacobian": lambda a, da, mean: a * da},
        "diagonal of the softmax Jacobian": {"jacobian": lambda a, da, mean: a * (1 - a) * da},
        "weights missing in the Jacobian": {"jacobian": lambda a, da, mean: da - mean},
        "sign": ({"jacobian": lambda a, da, mean: a * (mean - da)}, *_factors(lambda f, query: -f)),
        "first term of the softmax Jacobian": each(
            "jacobian", lambda a, da, mean: -a * mean, lambda a, da, mean: a * mean
        ),
        "weights in the place of their gradient": {"jacobian": lambda a, da, mean: a},
        "grad_output left out": each(
            "grad_weights",
            lambda g, v: 0 * g @ transposed(v),
            lambda g, v: np.ones_like(g @ transposed(v)),
            lambda g, v: np.ones_like(g) @ transposed(v),
        ),
        "grad_value averaged": each(
            "grad_value", lambda a, g, v, d: transposed(a) @ g / g.shape[-2]
        ),
        "weights left out of grad_value": each(
            "grad_value",
            lambda a, g, v, d: 0 * v + np.sum(g, axis=-2, keepdims=True),
            lambda a, g, v, d: 0 * v + np.mean(g, axis=-2, keepdims=True),
        ),
        "all gradients negated": _each(np.negative),
        "gradients averaged": each(
            "incoming", lambda g: g / g.shape[-2], lambda g: g / (g.shape[-1] * g.shape[-2])
        ),
        "grad_query and grad_key swapped": _in_order(1, 0, 2),
        "order of the gradients": tuple(
            _in_order(*order)
            for order in itertools.permutations(range(3))
            if order not in ((0, 1, 2), (1, 0, 2))
        ),
        "weights not transposed in grad_value": {"grad_value": lambda a, g, v, d: a @ g},
        "grad_value from the wrong factor": each(
            "grad_value",
            lambda a, g, v, d: transposed(a) @ v,
            lambda a, g, v, d: transposed(d) @ g,
            lambda a, g, v, d: transposed(a) @ a @ v,
        ),
        "scores not transposed in grad_key": {"grad_key": lambda d, q, k, v: d @ q},
        "scores transposed in grad_query": {"grad_query": lambda d, q, k, v: transposed(d) @ k},
        "another product": (
            *({"grad_query": lambda d, q, k, v, by=by: by(d, k)} for by in PRODUCTS[1:]),
            *({"grad_key": lambda d, q, k, v, by=by: by(d, q)} for by in _BUT_THE_THIRD),
            *({"grad_value": lambda a, g, v, d, by=by: by(a, g)} for by in _BUT_THE_THIRD),
            *({"grad_weights": lambda g, v, by=by: by(g, v)} for by in _BUT_THE_SECOND),
        ),
        "grad_query from the wrong factor": each(
            "grad_query", lambda d, q, k, v: d @ v, lambda d, q, k, v: d @ q
        ),
        "grad_key from the wrong factor": each(
            "grad_key",
            lambda d, q, k, v: transposed(d) @ k,
            lambda d, q, k, v: transposed(d) @ v,
        ),
        "value not transposed": {"grad_weights": lambda g, v: g @ v},
        "grad_output ignored": {"incoming": np.ones_like},
        "all axes reversed": tuple(
            {**_REVERSED, **way}
            for way in ({}, *only(w.BATCH_MISTAKES, "all axes reversed")[0].ways)
        ),
    },
)


# Properties.


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


def _with_gradient(inputs: dict) -> dict:
    query, value = inputs["query"], inputs["value"]
    grad_output = draw(13, *query.shape[:-1], value.shape[-1])
    return {**inputs, "grad_output": grad_output.astype(query.dtype)}


def _arguments(*sizes: int, **how: Any) -> dict:
    return _with_gradient(cases.arrays(*sizes, **how))


ATTENTION_VJP = Check(
    name="attention_vjp",
    parameters=("query", "key", "value", "grad_output"),
    results={
        "grad_query": "(..., n_q, d_k)",
        "grad_key": "(..., n_k, d_k)",
        "grad_value": "(..., n_k, d_v)",
    },
    reference=attnbook.attention_vjp,
    compute=gradients_from_steps,
    steps=GRADIENT_STEPS,
    variants=VARIANTS,
    stages=(
        *cases.attention_stages(
            _arguments, _with_gradient, cases.SIZES, cases.BATCHES, *cases.MASKED
        ),
        *cases.option_stages(_arguments),
    ),
    mistakes=(
        *_BACKWARD_MISTAKES,
        *without(
            w.WEIGHT_MISTAKES,
            "no scale",
            "all axes reversed",
            "keepdims forgotten",
            "mean instead of sum",
            "scale after the softmax",
        ),
        *w.OPTION_MISTAKES,
    ),
    properties=(key_gradients_cancel, value_gradients_add_up),
    options=("mask", "bias", "scale"),
    remarked_options=("mask",),
    legible=True,
)
