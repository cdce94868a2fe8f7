"""Attention in steps: its weights, and the values that they mix. The check of it."""

from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Values, only, renamed
from attnbook.check.engine.symmetries import moved
from attnbook.check.engine.text import Text
from attnbook.check.exercises import attention_weights as w
from attnbook.check.shared import attention_cases as cases
from attnbook.check.shared.scores import (
    SCORE_MISTAKES,
    weights_from_steps,
)


@documented
def attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check attention, softmax(Q Kᵀ/√d_k) V.

    Runs `f` on the cases of `attention_weights`, with values of another width, d_v.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value)``, by position, on (n_q, d_k), (n_k, d_k) and (n_k, d_v).
        If it takes arguments named `mask` (**True = may attend**), `scale` or `bias`, they are
        passed by name. It returns only the output, of shape (n_q, d_v). It may be written for one
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


def attention_from_steps(s, query, key, value, **options):
    """Return the output of attention by the steps `s`."""
    query, key, value = s.inputs(query, key, value)
    weights = weights_from_steps(s, query, key, value=value, **options)
    return s.result(s.mix(weights, value), query, value)


TEXT = Text(globals())

OUTPUT_MISTAKES = TEXT.mistakes

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
    steps=TEXT.steps,
    variants=TEXT.variants,
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
