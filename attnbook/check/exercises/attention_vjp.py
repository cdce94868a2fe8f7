"""The gradients of attention in steps, the ways to get each wrong, and the check of them."""

from collections.abc import Callable
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Values, Way, draw, only, without
from attnbook.check.engine.text import Text
from attnbook.check.exercises import attention_weights as w
from attnbook.check.shared import attention_cases as cases
from attnbook.check.shared.scores import weights_from_steps


@documented
def attention_vjp(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the gradients of attention with respect to query, key and value.

    Runs `f` on the sizes of `attention`, on scores of ±1000, in float64 and float32, on batches,
    and with masks, a scale and a bias if it takes them.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value, grad_output)``, by position, where grad_output (n_q, d_v)
        is ∂L/∂output. It returns three arrays, (grad_query, grad_key, grad_value). It may be
        written for one sequence, without leading axes. `mask`, `scale` and `bias` are those of
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


REVERSED: Way = {
    "grad_weights": lambda g, v: g @ v.T,
    "grad_key": lambda d, q, k, v: d.T @ q,
    "grad_value": lambda a, g, v, d: a.T @ g,
}
FORWARD_REVERSED = only(w.BATCH_MISTAKES, "all axes reversed")[0].ways

TEXT = Text(globals())

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
    steps=TEXT.steps,
    variants=TEXT.variants,
    stages=(
        *cases.attention_stages(
            _arguments, _with_gradient, cases.SIZES, cases.BATCHES, *cases.MASKED
        ),
        *cases.option_stages(_arguments),
    ),
    mistakes=(
        *TEXT.mistakes,
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
