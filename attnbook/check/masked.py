"""Attention with a mask that is always given: masks of every shape, and the check of it."""

from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check.engine import documented, run
from attnbook.check.normalization import LARGE_ERRORS, SPREAD_ERRORS, VARIANTS
from attnbook.check.outputs import (
    ATTENTION_MISTAKES,
    ATTENTION_STEPS,
    attention_from_steps,
    empty_rows_are_zero,
    hidden_keys_change_nothing,
    order_of_keys_is_free,
    outputs_between_values,
)
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Way, each, without
from attnbook.check.weights import (
    EMPTY,
    FLIPPED,
    LARGE,
    NOTHING,
    OUTBID,
    OUTBID_MASK,
    RAGGED,
    RENORMALIZED,
    SPREAD,
    arrays,
    causal,
    dot_products,
    filled_with,
    hide,
    lowered_by,
    transposed,
)


@documented
def masked_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check attention with a mask that is always given.

    Runs `f` with masks of every shape that broadcasts, on scores of ±1000, on visible scores below
    -10⁴ and below -10⁹, on a row that hides everything and on a mask of nothing but such rows, in
    float64 and float32, on batches, and with a mask for each sequence.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value, mask)``, by position, on (n_q, d_k), (n_k, d_k),
        (n_k, d_v) and a boolean mask, **True = may attend**, of shape (n_q, n_k) or one that
        broadcasts to it: (1, n_k) for padding, (n_k,), (n_q, 1), and (batch, 1, n_k) for a batch.
        It returns the output alone, of shape (n_q, d_v). A query that may attend to nothing gets
        zeros. It may be written for one sequence, without leading axes, or for batches alone, and
        it may raise on a mask that is not (n_q, n_k).

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

_QUIET = {name: x * 2.0**-17 if name == "query" else x for name, x in OUTBID.items()}
"""Visible scores are −2¹⁵ = −32768, hidden ones +2¹⁵; every product is exact."""


def _from_steps(s, query, key, value, mask):
    return s.output(attention_from_steps(s, query, key, value, mask=mask), mask)


def _is_padding(mask):
    return mask.ndim == 1 or mask.shape[-2] == 1


def _on_the_query_side(mask):
    """Turn a mask of keys alone, and no other, into one of queries."""
    if not _is_padding(mask):
        return mask
    return mask[:, np.newaxis] if mask.ndim == 1 else transposed(mask)


def _padding_zeroed(output, mask):
    return output * _on_the_query_side(mask) if _is_padding(mask) else output


def _first_visible(scores):
    visible = scores > -np.inf
    return np.where(visible & (np.cumsum(visible, axis=-1) == 1), 1.0, 0.0)


def _to_the_last(scores, mask):
    return causal(scores, scores.shape[-1] - scores.shape[-2])


def _of_batches(see: Callable) -> tuple[Way, ...]:
    """Return the ways that put masks of 3 axes, and of 3 and more, through `see`."""
    return each(
        "see",
        lambda mask: see(mask) if mask.ndim == 3 else mask,
        lambda mask: see(mask) if mask.ndim > 2 else mask,
    )


_OWN = mistakes(
    """
    mean of the visible values: Every output is the plain mean of the values that its query may see,
        whatever it asks for: the scores never reach the weights.
    first visible key alone: Each query gets the value of the first key that it may see, and no
        other. The mask says which keys take part; the softmax of their scores says how much each
        counts.
    score 0 taken for hidden: You multiply the scores by the mask and then hide every score that is
        0. A visible key that is orthogonal to the query has score 0 too, and is lost. Choose by the
        mask itself, as where(mask, scores, −∞) does.
    another mask: You use a causal mask of your own making, whatever mask is given. Use the argument
        `mask` alone; whether it is causal is the business of the caller.
    mask with −10⁴: You hide scores with −10⁴ or another number that is not low enough. Scores that
        are lower still are outbid by it, and the hidden keys win: here every visible score is
        −32768. Large logits occur in trained models. Only −∞ is below every score.
    hidden keys in the maximum: You zero the exponentials of hidden keys before you divide, but your
        shift is the maximum over hidden keys too: what you set their scores to, such as 0, takes
        part. Where every visible score lies far below it, the visible exponentials underflow, and
        0/0 is NaN, or a row of zeros if you guard it. Take the maximum of the visible scores alone,
        or hide the others with −∞ before it.
    padding on the query side: You apply a mask of keys, (1, n_k), to the queries: real tokens still
        attend to padding, and the rows of the padding are emptied instead. Its last axis is that of
        the keys, and its one row holds for every query: hide columns of the scores.
    outputs of padding zeroed: You hide the padding from every query, which is right, and also zero
        the outputs of the queries at the same places. The mask does not ask for that: its one row,
        (1, n_k), holds for every query, and query and key need not be the same sequence. Let the
        loss leave those outputs out.
    mask of the first sequence: You use the mask of the first sequence for the whole batch. Each
        sequence has its own: keep the leading axes of the mask.
    mask broadcast over the wrong axis: You drop the axis of the queries from a mask of shape
        (batch, 1, n_k). Then its first axis, the batch, is taken for that of the queries, and fits
        by chance where the two sizes are equal. Keep the axis of length 1.
    """,
    {
        "mean of the visible values": ({"product": lambda q, k: 0 * dot_products(q, k)},),
        "first visible key alone": ({"finish": lambda weights, x, axis: _first_visible(x)},),
        "score 0 taken for hidden": (
            {"hide": lambda scores, mask: np.where(scores * mask == 0, -np.inf, scores)},
        ),
        "another mask": each("hide", lambda scores, mask: causal(scores), _to_the_last),
        "mask with −10⁴": tuple(
            way(number) for number in (1e4, 1e3) for way in (lambda x: filled_with(-x), lowered_by)
        ),
        "hidden keys in the maximum": tuple(
            {**way, **filled_with(fill)} for fill in (0.0, -1e4, -1e9) for way in RENORMALIZED
        ),
        "padding on the query side": (
            {"see": _on_the_query_side},
            {
                "hide": lambda scores, mask: scores if _is_padding(mask) else hide(scores, mask),
                "output": _padding_zeroed,
            },
        ),
        "outputs of padding zeroed": ({"output": _padding_zeroed},),
        "mask of the first sequence": _of_batches(lambda mask: mask[:1]),
        "mask broadcast over the wrong axis": _of_batches(
            lambda mask: mask[..., 0, :] if mask.shape[-2] == 1 else mask
        ),
    },
)


def _case(sizes, mask, leading=(), dtype="float64"):
    n_q, n_k, d_k, d_v = sizes
    return Case({**arrays(n_q, n_k, d_k, d_v, leading, dtype), "mask": mask})


_LARGE_MASK = np.array([[True, True, False], [False, True, True], [True, False, True]])
_SPREAD_MASK = np.array([[True, False, True], [True, True, False]])

MASKED_ATTENTION = Check(
    name="masked_attention",
    parameters=("query", "key", "value", "mask"),
    results={"output": "(..., n_q, d_v)"},
    reference=attnbook.attention,
    compute=_from_steps,
    steps={**ATTENTION_STEPS, "output": lambda output, mask: output},
    variants=VARIANTS,
    stages=(
        # in each row something is hidden and something is not
        Stage(
            (
                _case((3, 3, 3, 3), FLIPPED),
                _case((2, 5, 3, 7), _WIDE),
                _case((5, 2, 7, 3), _TALL),
                _case((1, 5, 2, 3), _WIDE[:1]),
                _case((2, 3, 5, 5), RAGGED),
                _case((2, 3, 2, 1), RAGGED),
            )
        ),
        Stage(
            (
                _case((3, 3, 3, 3), FLIPPED, dtype="float32"),
                _case((2, 5, 3, 7), _WIDE, dtype="float32"),
            )
        ),
        Stage((Case({**LARGE, "mask": _LARGE_MASK}),), errors=LARGE_ERRORS),
        Stage((Case({**SPREAD, "mask": _SPREAD_MASK}),), errors=SPREAD_ERRORS),
        Stage((Case({**_QUIET, "mask": OUTBID_MASK}),)),
        Stage((Case({**OUTBID, "mask": OUTBID_MASK}),)),
        Stage((_case((2, 3, 5, 7), EMPTY), _case((1, 1, 3, 2), np.array([[True]])))),
        Stage((_case((2, 3, 5, 7), NOTHING), _case((1, 1, 3, 2), np.array([[False]])))),
        Stage(
            (_case((5, 5, 3, 2), _PADDING[np.newaxis]), _case((2, 5, 3, 7), _PADDING[np.newaxis])),
            may_raise="a mask of one row, (1, n_k),",
        ),
        Stage(
            (_case((5, 5, 3, 2), _PADDING), _case((2, 5, 3, 7), _PADDING)),
            may_raise="a mask of one axis, (n_k,),",
        ),
        Stage(
            (_case((5, 2, 3, 7), _PADDING[:, np.newaxis]), _case((5, 5, 3, 2), _PADDING[:, None])),
            may_raise="a mask of one column, (n_q, 1),",
        ),
        Stage(
            (
                _case((2, 3, 5, 7), RAGGED, (11,)),
                _case((3, 3, 3, 3), FLIPPED, (3,)),  # .T fits by chance
                _case((5, 3, 3, 3), _LARGE_MASK[[0, 1, 2, 0, 1]], (3,)),
            ),
            beyond="a batch (leading axes)",
        ),
        Stage(
            (
                _case((2, 3, 5, 7), _LENGTHS, (3,)),
                _case((3, 3, 5, 7), _LENGTHS, (3,)),
                _case((2, 3, 5, 7), np.stack([RAGGED, ~RAGGED, EMPTY]), (3,)),
            ),
            may_raise="a mask for each sequence, (batch, 1, n_k),",
            within="a batch (leading axes)",
        ),
        Stage(
            (_case((2, 3, 5, 7), _LENGTHS[:, np.newaxis], (3, 2)),),
            may_raise="four axes, one for heads,",
            within="a batch (leading axes)",
        ),
    ),
    mistakes=(*_OWN, *without(ATTENTION_MISTAKES, "mean of the values")),
    properties=(
        empty_rows_are_zero,
        outputs_between_values,
        order_of_keys_is_free,
        hidden_keys_change_nothing,
    ),
    sequences=("query", "key", "value"),
    legible=True,
)
