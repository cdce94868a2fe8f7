"""Attention with a mask that is always given: masks of every shape, and the check of it."""

from collections.abc import Callable
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, without
from attnbook.check.engine.text import Text
from attnbook.check.exercises import attention as o
from attnbook.check.exercises import softmax as soft
from attnbook.check.shared import attention_cases as cases
from attnbook.check.shared.scores import transposed


@documented
def masked_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check attention with a mask that is always given.

    Runs `f` with masks of every shape that broadcasts, on scores of ±1000, on visible scores below
    -10⁴ and below -10⁹, with one fully masked row and with only such rows, in float64 and float32,
    on batches, and with one mask per sequence.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value, mask)``, by position, on (n_q, d_k), (n_k, d_k),
        (n_k, d_v) and a boolean mask, **True = may attend**, of shape (n_q, n_k) or one that
        broadcasts to it: (1, n_k) for padding, (n_k,), (n_q, 1), and (batch, 1, n_k) for a batch.
        It returns only the output, of shape (n_q, d_v). A fully masked query gets zeros. It may be
        written only for one sequence, without leading axes, or only for batches, and it may raise
        an error for a mask that is not (n_q, n_k).

    Examples
    --------
    >>> from attnbook import attention, check
    >>> check.masked_attention(lambda q, k, v, mask: attention(q, k, v, ~mask)).mistake
    'mask inverted'
    """
    return run(MASKED_ATTENTION, f, time_limit)


_WIDE = np.array([[True, False, True, False, False], [False, True, True, False, True]])
_TALL = np.array([[True, False], [False, True], [True, True], [True, False], [False, True]])
_PADDING = np.array([True, True, True, False, False])
_LENGTHS = np.array([[[True, True, False]], [[True, False, False]], [[True, True, True]]])
"""Masks of which none is its own transpose, nor its own opposite upside down."""

_QUIET = {name: x * 2.0**-17 if name == "query" else x for name, x in cases.OUTBID.items()}
"""Visible scores are −2¹⁵ = −32768, hidden ones +2¹⁵; every product is exact."""


def _from_steps(s, query, key, value, mask):
    return s.output(o.attention_from_steps(s, query, key, value, mask=mask), mask)


def is_padding(mask):
    return mask.ndim == 1 or mask.shape[-2] == 1


def on_the_query_side(mask):
    """Turn a mask of keys alone, and no other, into one of queries."""
    if not is_padding(mask):
        return mask
    return mask[:, np.newaxis] if mask.ndim == 1 else transposed(mask)


def padding_zeroed(output, mask):
    return output * on_the_query_side(mask) if is_padding(mask) else output


def first_visible(scores):
    visible = scores > -np.inf
    return np.where(visible & (np.cumsum(visible, axis=-1) == 1), 1.0, 0.0)


TEXT = Text(globals())

_OWN = TEXT.mistakes


def _cases(*masks_and_sizes: tuple, **how: Any) -> tuple[Case, ...]:
    return tuple(Case({**cases.arrays(*n, **how), "mask": mask}) for mask, n in masks_and_sizes)


def _given(inputs: dict, mask: np.ndarray) -> tuple[Case, ...]:
    return (Case({**inputs, "mask": mask}),)


_LARGE_MASK = np.array([[True, True, False], [False, True, True], [True, False, True]])
_SPREAD_MASK = np.array([[True, False, True], [True, True, False]])
_PRIMES, _ONE = (2, 3, 5, 7), (1, 1, 3, 2)
_PLAIN = ((cases.FLIPPED, (3, 3, 3, 3)), (_WIDE, (2, 5, 3, 7)))
_MORE = (
    (_TALL, (5, 2, 7, 3)),
    (_WIDE[:1], (1, 5, 2, 3)),
    (cases.RAGGED, (2, 3, 5, 5)),
    (cases.RAGGED, (2, 3, 2, 1)),
)


def _of_one_axis(mask: np.ndarray, name: str, *all_sizes: tuple) -> Stage:
    return Stage(
        _cases(*((mask, sizes) for sizes in all_sizes)), may_raise=f"a mask of one {name},"
    )


MASKED_ATTENTION = Check(
    name="masked_attention",
    parameters=("query", "key", "value", "mask"),
    results={"output": "(..., n_q, d_v)"},
    reference=attnbook.attention,
    compute=_from_steps,
    steps=TEXT.steps,
    variants=TEXT.variants,
    stages=(
        # in each row something is hidden and something is not
        Stage(_cases(*_PLAIN, *_MORE)),
        Stage(_cases(*_PLAIN, dtype="float32")),
        Stage(_given(cases.LARGE, _LARGE_MASK), errors=soft.LARGE_ERRORS),
        Stage(_given(cases.SPREAD, _SPREAD_MASK), errors=soft.SPREAD_ERRORS),
        Stage(_given(_QUIET, cases.OUTBID_MASK)),
        Stage(_given(cases.OUTBID, cases.OUTBID_MASK)),
        Stage(_cases((cases.EMPTY, _PRIMES), (np.array([[True]]), _ONE))),
        Stage(_cases((cases.NOTHING, _PRIMES), (np.array([[False]]), _ONE))),
        _of_one_axis(_PADDING[np.newaxis], "row, (1, n_k)", (5, 5, 3, 2), (2, 5, 3, 7)),
        _of_one_axis(_PADDING, "axis, (n_k,)", (5, 5, 3, 2), (2, 5, 3, 7)),
        _of_one_axis(_PADDING[:, np.newaxis], "column, (n_q, 1)", (5, 2, 3, 7), (5, 5, 3, 2)),
        Stage(
            (
                *_cases((cases.RAGGED, _PRIMES), leading=(11,)),
                *_cases(_PLAIN[0], (_LARGE_MASK[[0, 1, 2, 0, 1]], (5, 3, 3, 3)), leading=(3,)),
            ),
            may_raise="a batch (leading axes)",
        ),
        Stage(
            _cases(
                (_LENGTHS, _PRIMES),
                (_LENGTHS, (3, 3, 5, 7)),
                (np.stack([cases.RAGGED, ~cases.RAGGED, cases.EMPTY]), _PRIMES),
                leading=(3,),
            ),
            may_raise="a mask for each sequence, (batch, 1, n_k),",
            within="a batch (leading axes)",
        ),
        Stage(
            _cases((_LENGTHS[:, np.newaxis], _PRIMES), leading=(3, 2)),
            may_raise="four axes, one for heads,",
            within="a batch (leading axes)",
        ),
    ),
    mistakes=(
        *_OWN,
        *without(o.ATTENTION_MISTAKES, "mean of the values", "+∞ or NaN for hidden scores"),
    ),
    properties=(
        o.empty_rows_are_zero,
        o.outputs_between_values,
        o.order_of_keys_is_free,
        o.hidden_keys_change_nothing,
    ),
    legible=True,
)
