"""A learned head in steps: projections, attention, W_O. The check of it."""

import inspect
import math
from collections.abc import Callable

import array_api_compat
import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import binds, signature_of, signed
from attnbook.check.engine.steps import Case, Check, Stage, draw
from attnbook.check.engine.text import Text
from attnbook.check.exercises.attention import (
    OUTPUT_MISTAKES,
    attention_from_steps,
    order_of_keys_is_free,
)
from attnbook.check.exercises.attention_weights import WEIGHT_MISTAKES
from attnbook.check.shared.attention_cases import FLIPPED, RAGGED, attention_stages


@documented
def single_head(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a learned head: project query, key and value, then attend.

    Runs `f` on widths that are all different primes, on a square and on inputs of equal width, on
    one token, on scores of ±1000, in float64 and float32, on batches, and with a mask and a W_O if
    it takes them.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value, W_Q, W_K, W_V)``, by position, on (n_q, d_query),
        (n_k, d_key), (n_k, d_value), (d_query, d_k), (d_key, d_k) and (d_value, d_v), and, if it
        takes them, with a seventh argument named `W_O`, of shape (d_v, d_out), and with `mask`. If
        it takes four arguments, it is called as ``f(query, key, value, weights)`` with
        `attnbook.SingleHeadWeights`. It returns only the output, of shape (n_q, d_v), or
        (n_q, d_out) with a W_O.

    Examples
    --------
    >>> from attnbook import attention, check
    >>> def my_head(query, key, value, W_Q, W_K, W_V):
    ...     return attention(query @ W_Q, key @ W_K, value)
    >>> check.single_head(my_head).mistake
    'values not projected'
    """
    return run(SINGLE_HEAD, f, time_limit)


def head_from_steps(s, query, key, value, W_Q, W_K, W_V, W_O=None, mask=None):
    """Return the output of one head by the steps `s`."""
    given = (query, key, value, W_Q, W_K, W_V)
    q, k, v = s.project_query(*given), s.project_key(*given), s.project_value(*given)
    scale = scale_of(s.width(query, key, W_Q, W_V, 1))
    output = attention_from_steps(s, q, k, v, mask=mask, scale=scale)
    return output if W_O is None else s.output(output, W_O)


def scale_of(width):
    return None if width is None else 1 / math.sqrt(width)


TEXT = Text(globals())

PROJECTION_MISTAKES = TEXT["projection mistakes"]
"""Those of one head, which several heads make too."""


def takes_weights(signature: inspect.Signature, count: int) -> bool:
    """Tell whether it is one of query, key, value and weights, not of `count` arguments."""
    named = list(signature.parameters)[3:4] == ["weights"]
    return named or (binds(signature, 4) and not binds(signature, count))


def _adapt(function: Callable) -> Callable:
    """Return `function` as one of six arrays, if it takes `SingleHeadWeights` or needs a W_O."""
    signature = signature_of(function)
    if signature is None:
        return function

    def with_weights(query, key, value, W_Q, W_K, W_V, W_O=None, **options):
        weights = attnbook.SingleHeadWeights(W_Q, W_K, W_V, W_O)
        return function(query, key, value, weights, **options)

    def with_output(*given, W_O=None, **options):
        if W_O is None:
            W_V = given[-1]
            xp = array_api_compat.array_namespace(W_V)
            W_O = xp.eye(W_V.shape[1], dtype=W_V.dtype, device=array_api_compat.device(W_V))
        return function(*given, W_O=W_O, **options)

    if takes_weights(signature, 6):
        adapted = with_weights
    elif "W_O" in signature.parameters and not binds(signature, 6):
        adapted = with_output
    else:
        return function
    return signed(adapted, SINGLE_HEAD.parameters, {"W_O", *({"mask"} & {*signature.parameters})})


def drawn(n_q, n_k, d_query, d_key, d_value, d_k, d_v, leading=(), dtype="float64"):
    arrays = {
        "query": draw(6, *leading, n_q, d_query),
        "key": draw(7, *leading, n_k, d_key),
        "value": draw(8, *leading, n_k, d_value),
        "W_Q": draw(9, d_query, d_k) / math.sqrt(d_query),
        "W_K": draw(10, d_key, d_k) / math.sqrt(d_key),
        "W_V": draw(11, d_value, d_v) / math.sqrt(d_value),
    }
    return {name: x.astype(dtype) for name, x in arrays.items()}


def _through_identity(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**inputs, "W_Q": np.eye(4), "W_K": np.eye(4), "W_V": np.eye(2)}


_SIZES = (
    (3, 3, 3, 3, 3, 3, 3),  # a square
    (2, 3, 5, 7, 11, 13, 17),  # every size another prime
    (3, 2, 5, 5, 5, 2, 7),  # one width for all inputs
    (2, 5, 3, 3, 3, 2, 2),  # and one for all that is projected
    (1, 2, 3, 3, 3, 2, 1),  # a small one
    (1, 1, 3, 3, 3, 2, 5),  # one token
)

SINGLE_HEAD = Check(
    name="single_head",
    parameters=("query", "key", "value", "W_Q", "W_K", "W_V"),
    results={"output": "(..., n_q, d_v or d_out)"},
    compute=head_from_steps,
    steps=TEXT.steps,
    variants=TEXT.variants,
    stages=(
        *attention_stages(
            drawn,
            _through_identity,
            _SIZES,
            ((_SIZES[1], (19,)), (_SIZES[0], (3,))),
            (RAGGED, _SIZES[1]),
            (FLIPPED, (3, 3, 5, 7, 11, 13, 17)),
        ),
        Stage(
            tuple(
                Case(drawn(2, 3, 5, 7, 11, 2, d_v), {"W_O": draw(12, d_v, d_out) / 2})
                for d_v, d_out in ((3, 3), (5, 7))
            ),
            option="W_O",
        ),
    ),
    mistakes=(
        *WEIGHT_MISTAKES,
        *PROJECTION_MISTAKES,
        *TEXT["output matrix mistakes"],
        *OUTPUT_MISTAKES,
    ),
    properties=(order_of_keys_is_free,),
    options=("W_O", "mask"),
    remarked_options=("W_O", "mask"),
    adapt=_adapt,
    legible=True,
)
