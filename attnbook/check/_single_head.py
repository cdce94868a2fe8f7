"""The check of a learned head: the mistakes of attention, and those made with the matrices."""

import math
from collections.abc import Callable

import array_api_compat
import numpy as np

import attnbook
from attnbook.check import _recipes as r
from attnbook.check._attention import order_of_keys_is_free
from attnbook.check._calls import binds, signature_of
from attnbook.check._model import Case, Check, Mistake, Stage, draw
from attnbook.check._recipes import Recipe
from attnbook.check._softmax import LARGE_ERRORS, SPREAD_ERRORS
from attnbook.check._weight_mistakes import WEIGHT_MISTAKES
from attnbook.check._weights import EMPTY, FLIPPED, LARGE, OUTBID, OUTBID_MASK, RAGGED, SPREAD

_PARAMETERS = ("query", "key", "value", "W_Q", "W_K", "W_V")


def _reference(query, key, value, W_Q, W_K, W_V, W_O=None, mask=None):
    weights = attnbook.SingleHeadWeights(W_Q, W_K, W_V, W_O)
    return attnbook.single_head_attention(query, key, value, weights, mask)


def _adapt(function: Callable) -> Callable:
    """Return `function` as one of six arrays, if it takes `SingleHeadWeights` or needs a W_O."""
    try:
        signature = signature_of(function)
    except Exception:  # some functions do not tell
        return function
    parameters = signature.parameters

    def with_weights(query, key, value, W_Q, W_K, W_V, W_O=None, **options):
        weights = attnbook.SingleHeadWeights(W_Q, W_K, W_V, W_O)
        return function(query, key, value, weights, **options)

    def with_output(query, key, value, W_Q, W_K, W_V, W_O=None, **options):
        if W_O is None:
            xp = array_api_compat.array_namespace(W_V)
            W_O = xp.eye(W_V.shape[1], dtype=W_V.dtype, device=array_api_compat.device(W_V))
        return function(query, key, value, W_Q, W_K, W_V, W_O=W_O, **options)

    if list(parameters)[3:4] == ["weights"] or (binds(signature, 4) and not binds(signature, 6)):
        adapted = with_weights
    elif "W_O" in parameters and not binds(signature, 6):
        adapted = with_output
    else:
        return function
    if "mask" in parameters:
        return adapted
    return lambda query, key, value, W_Q, W_K, W_V, W_O=None: adapted(
        query, key, value, W_Q, W_K, W_V, W_O
    )


def _model(project: Callable, recipe: Recipe = r.RIGHT, finish: Callable = np.matmul) -> Callable:
    """Return the head that projects its six arrays by `project` and its output by `finish`."""

    def model(query, key, value, W_Q, W_K, W_V, W_O=None, **options):
        q, k, v = project(query, key, value, W_Q, W_K, W_V)
        output = recipe.output(q, k, v, **options)
        return output if W_O is None else finish(output, W_O)

    return model


def _right(x, y, z, a, b, c):
    return x @ a, y @ b, z @ c


def _scaled_by_width(width: Callable) -> Callable:
    def model(*arrays, W_O=None, **options):
        scale = 1 / math.sqrt(width(*arrays))
        return _model(_right)(*arrays, W_O=W_O, scale=scale, **options)

    return model


def _sizes(n_q, n_k, d_query, d_key, d_value, d_k, d_v, leading=(), dtype="float64"):
    drawn = {
        "query": draw(6, *leading, n_q, d_query),
        "key": draw(7, *leading, n_k, d_key),
        "value": draw(8, *leading, n_k, d_value),
        "W_Q": draw(9, d_query, d_k) / math.sqrt(d_query),
        "W_K": draw(10, d_key, d_k) / math.sqrt(d_key),
        "W_V": draw(11, d_value, d_v) / math.sqrt(d_value),
    }
    return {name: x.astype(dtype) for name, x in drawn.items()}


def _through_identity(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**inputs, "W_Q": np.eye(4), "W_K": np.eye(4), "W_V": np.eye(2)}


_SIZES = (
    (3, 3, 3, 3, 3, 3, 3),  # a square
    (2, 3, 5, 7, 11, 13, 17),  # every size another prime
    (3, 2, 5, 5, 5, 2, 7),  # one width for all inputs
    (2, 5, 3, 3, 3, 2, 2),  # and one for all that is projected
    (1, 1, 3, 3, 3, 2, 5),  # one token
)

PROJECTION_MISTAKES: tuple[tuple[str, str, tuple[Callable, ...]], ...] = (
    (
        "values not projected",
        "You mix the values as they came. What a head passes on is value W_V, of width d_v.",
        (lambda x, y, z, a, b, c: (x @ a, y @ b, z),),
    ),
    (
        "keys not projected",
        "You compare the projected queries with the keys as they came. It runs only where "
        "d_key = d_k. Both sides need their matrix: query W_Q and key W_K.",
        (lambda x, y, z, a, b, c: (x @ a, y, z @ c),),
    ),
    (
        "queries not projected",
        "You compare the queries as they came with the projected keys. It runs only where "
        "d_query = d_k. Both sides need their matrix: query W_Q and key W_K.",
        (lambda x, y, z, a, b, c: (x, y @ b, z @ c),),
    ),
    (
        "nothing projected",
        "You apply plain attention to the inputs and use no matrix. Project query, key and value "
        "first, each by its own.",
        (lambda x, y, z, a, b, c: (x, y, z),),
    ),
    (
        "W transposed",
        "You multiply by the transpose of a matrix. It runs only where the matrix is square. W_Q "
        "has shape (d_query, d_k), so a row of the input times W_Q is a row of width d_k.",
        (
            lambda x, y, z, a, b, c: (x @ a.T, y @ b.T, z @ c.T),
            lambda x, y, z, a, b, c: (x @ a.T, y @ b, z @ c),
            lambda x, y, z, a, b, c: (x @ a, y @ b.T, z @ c),
            lambda x, y, z, a, b, c: (x @ a, y @ b, z @ c.T),
        ),
    ),
    (
        "W_Q used for the keys",
        "You project the keys with W_Q. Then a token always matches itself best, and the head "
        "cannot learn to look for something else. Keys have a matrix of their own, W_K.",
        (lambda x, y, z, a, b, c: (x @ a, y @ a, z @ c),),
    ),
    (
        "W_K used for the queries",
        "You project the queries with W_K. Queries have a matrix of their own, W_Q.",
        (lambda x, y, z, a, b, c: (x @ b, y @ b, z @ c),),
    ),
    (
        "W_Q and W_K swapped",
        "You project the queries with W_K and the keys with W_Q. Each input goes with the matrix "
        "of its own name.",
        (lambda x, y, z, a, b, c: (x @ b, y @ a, z @ c),),
    ),
    (
        "W_K used for the values",
        "You project the values with W_K. What a token offers to be found by and what it passes on "
        "are two things: values have a matrix of their own, W_V.",
        (lambda x, y, z, a, b, c: (x @ a, y @ b, z @ b),),
    ),
    (
        "self-attention only",
        "You take keys or values from the query, so the head only ever looks at itself. In "
        "cross-attention they come from elsewhere: project the arguments `key` and `value`.",
        (
            lambda x, y, z, a, b, c: (x @ a, x @ b, x @ c),
            lambda x, y, z, a, b, c: (x @ a, x @ b, z @ c),
            lambda x, y, z, a, b, c: (x @ a, y @ b, x @ c),
        ),
    ),
    (
        "values from the key",
        "You project the argument `key` to get the values. They may differ: the values come from "
        "the argument `value`.",
        (lambda x, y, z, a, b, c: (x @ a, y @ b, y @ c),),
    ),
)
"""Name, sentence and projections of each, shared with the check of several heads."""

HEAD_MISTAKES = (
    Mistake(
        "scale by d_model",
        "You divide the scores by the root of the width of the input. The dot products are taken "
        "after the projection, where each has d_k terms: divide by √d_k.",
        (
            _scaled_by_width(lambda x, y, z, a, b, c: x.shape[-1]),
            _scaled_by_width(lambda x, y, z, a, b, c: y.shape[-1]),
        ),
    ),
    Mistake(
        "scale by √d_v",
        "You divide the scores by √d_v, the root of the width of the values. The scores are dot "
        "products of query and key, which have d_k terms.",
        (_scaled_by_width(lambda x, y, z, a, b, c: c.shape[-1]),),
    ),
    Mistake(
        "W_O forgotten",
        "Your function takes `W_O` and does not use it: the output keeps the width d_v. Multiply "
        "the mixed values by W_O at the end.",
        (_model(_right, finish=lambda output, W_O: output),),
    ),
    Mistake(
        "W_O transposed",
        "You multiply by the transpose of W_O. It runs only where W_O is square. W_O has shape "
        "(d_v, d_out).",
        (_model(_right, finish=lambda output, W_O: output @ W_O.T),),
    ),
)

SINGLE_HEAD = Check(
    name="single_head",
    parameters=_PARAMETERS,
    results={"output": "(..., n_q, d_v or d_out)"},
    reference=_reference,
    stages=(
        Stage(tuple(Case(_sizes(*sizes)) for sizes in _SIZES)),
        Stage(tuple(Case(_sizes(*sizes, dtype="float32")) for sizes in _SIZES[:2])),
        Stage((Case(_through_identity(LARGE)),), errors=LARGE_ERRORS),
        Stage((Case(_through_identity(SPREAD)),), errors=SPREAD_ERRORS),
        Stage(
            tuple(
                Case(_sizes(2, 3, 5, 7, 11, 2, d_v), {"W_O": draw(12, d_v, d_out) / 2})
                for d_v, d_out in ((3, 3), (5, 7))
            ),
            option="W_O",
        ),
        Stage(
            (Case(_sizes(2, 3, 5, 7, 11, 13, 17, (19,))), Case(_sizes(3, 3, 3, 3, 3, 3, 3, (3,)))),
            beyond="a batch (leading axes)",
        ),
        Stage(
            (
                Case(_sizes(2, 3, 5, 7, 11, 13, 17), {"mask": RAGGED}),
                Case(_sizes(3, 3, 5, 7, 11, 13, 17), {"mask": FLIPPED}),
            ),
            option="mask",
        ),
        Stage((Case(_through_identity(OUTBID), {"mask": OUTBID_MASK}),), option="mask"),
        Stage((Case(_sizes(2, 3, 5, 7, 11, 13, 17), {"mask": EMPTY}),), option="mask"),
    ),
    mistakes=(
        *(
            Mistake(name, message, tuple(_model(_right, recipe) for recipe in recipes))
            for name, message, recipes in WEIGHT_MISTAKES
        ),
        *(
            Mistake(name, message, tuple(_model(project) for project in projects))
            for name, message, projects in PROJECTION_MISTAKES
        ),
        *HEAD_MISTAKES,
    ),
    properties=(order_of_keys_is_free,),
    options=("W_O", "mask"),
    remarked_options=("W_O", "mask"),
    adapt=_adapt,
)
