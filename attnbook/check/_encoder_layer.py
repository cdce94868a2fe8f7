"""The check of an encoder layer, pre-norm and post-norm."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import attnbook
from attnbook.check import _layer_steps as s
from attnbook.check._built import run_in_modes
from attnbook.check._layer_mistakes import ORDER_MISTAKES, PIECE_MISTAKES, RESIDUAL_MISTAKES
from attnbook.check._layer_steps import Steps, norms_of, swap
from attnbook.check._model import Case, Check, Mistake, Stage, Values, draw
from attnbook.check._optional import with_options
from attnbook.check._report import Report
from attnbook.check._weights import FLIPPED

_PARAMETERS = ("x", "weights")


def encoder_layer(f: Callable, *, norm: str | None = None, time_limit: float = 10.0) -> Report:
    """Check an encoder layer: self-attention, then the feed-forward network.

    Runs `f` on layers of both norm orders, on a square and on sizes that are all different, on one
    token, in float64 and float32, on batches, and with masks if it takes them. A module of PyTorch
    is checked in eval mode and in train mode.

    Parameters
    ----------
    f : callable
        Called as ``f(x, weights)``, by position, on (n, d_model) and
        `attnbook.EncoderLayerWeights`; and with `mask`, boolean and (n, n), **True = may attend**,
        if it takes an argument of that name or a third one. Or a class, such as a
        `torch.nn.Module`, that is built from the weights, ``f(weights)``, and called with x and a
        mask. It returns an array (n, d_model). It may be written for one sequence, without leading
        axes, or for batches alone.
    norm : str, optional
        ``"pre"`` or ``"post"`` checks that order alone. Unless given, `f` must follow weights.norm.
    time_limit : float
        Seconds for all calls together, in each mode.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `f` is not callable, `norm` is unknown, or `time_limit` is not a finite number of at
        least 0.

    Examples
    --------
    >>> import attnbook as ab
    >>> from attnbook import check
    >>> def my_layer(x, weights):
    ...     y = ab.layer_norm(x, weights.self_attention_norm.gain, weights.self_attention_norm.bias)
    ...     x = x + ab.multi_head_attention(y, y, y, weights.self_attention)
    ...     y = ab.layer_norm(x, weights.feed_forward_norm.gain, weights.feed_forward_norm.bias)
    ...     return ab.feed_forward(y, weights.feed_forward)
    >>> check.encoder_layer(my_layer, norm="pre").mistake
    'no residual around the feed-forward network'
    """
    return run_in_modes(of_order(ENCODER_LAYER, norm), f, time_limit)


def of_order(check: Check, norm: str | None) -> Check:
    """Return the check with the cases of one norm order alone."""
    if norm is None:
        return check
    if norm not in ("pre", "post"):
        raise ValueError(f"norm must be one of pre, post, got {norm!r}")
    stages = (
        replace(stage, cases=tuple(c for c in stage.cases if c.arguments["weights"].norm == norm))
        for stage in check.stages
    )
    return replace(check, stages=tuple(stage for stage in stages if stage.cases))


def varied(weights: Any) -> Any:
    """Return the same structure with normal numbers everywhere, in gains and biases too."""
    return weights.with_arrays(
        {
            name: draw(40 + i, *x.shape) / np.sqrt(x.shape[0]) + name.endswith("gain")
            for i, (name, x) in enumerate(weights.arrays().items())
        }
    )


def order_is_free(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether a permutation of the tokens permutes the output, where no mask stands."""
    if case.options:
        return None
    moved = again(x=np.flip(case.arrays["x"], axis=-2))
    if moved and not np.allclose(moved[0], np.flip(values[0], axis=-2), atol=1e-4):
        return (
            "Without a mask, reversing the order of the tokens must reverse the outputs and change "
            "nothing else; here it does."
        )
    return None


def _query_normalised(steps, x, raw, memory, weights, mask, memory_mask):
    return steps.attend(x, raw, raw, weights.self_attention, mask)


def _value_not_normalised(steps, x, raw, memory, weights, mask, memory_mask):
    return steps.attend(x, x, raw, weights.self_attention, mask)


_OWN: tuple[tuple[str, str, tuple[Steps, ...]], ...] = (
    *ORDER_MISTAKES,
    *RESIDUAL_MISTAKES,
    (
        "norms swapped",
        "You use the weights of the two normalisations the wrong way round: self_attention_norm "
        "belongs to the self-attention, feed_forward_norm to the feed-forward network.",
        (swap(arrange=norms_of(1, 0)),),
    ),
    (
        "one norm for both",
        "Both your normalisations use the same gain and bias. Each sublayer has its own: "
        "self_attention_norm and feed_forward_norm.",
        (swap(arrange=norms_of(0, 0)), swap(arrange=norms_of(1, 1))),
    ),
    (
        "feed-forward network first",
        "Your feed-forward network comes first. The tokens attend to each other before that.",
        (swap(arrange=s.in_order("feed", "self")),),
    ),
    *PIECE_MISTAKES,
    (
        "keys and values not normalised",
        "With pre-norm your queries are normalised, and keys and values, or the values alone, are "
        "not. The normalised x is all three.",
        (swap(to_target=_query_normalised), swap(to_target=_value_not_normalised)),
    ),
    (
        "mask ignored",
        "The mask changes nothing: what it hides is still seen. Hand it on to the attention.",
        (swap(see=lambda mask: None),),
    ),
    (
        "mask inverted",
        "Your mask works the wrong way round: True means that the query may attend to the key. "
        "PyTorch's modules have it the other way; pass ~mask to those.",
        (swap(see=lambda mask: ~mask),),
    ),
    (
        "mask transposed",
        "Rows and columns of your mask are exchanged: rows are queries, columns are keys.",
        (swap(see=lambda mask: np.swapaxes(mask, -1, -2)),),
    ),
)


def _case(
    norm: str,
    n: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    *leading: int,
    dtype: str = "float64",
    **options: np.ndarray,
) -> Case:
    weights = attnbook.EncoderLayerWeights.init(0, d_model, n_heads, d_ff, norm=norm)
    x = draw(35, *leading, n, d_model).astype(dtype)
    return Case(
        {"x": x, "weights": varied(weights).to(dtype=dtype)},
        options,
        about=f", {n_heads} heads, {norm}-norm",
    )


def in_both_orders(*sizes: tuple[int, ...], case: Callable, **options: Any) -> tuple[Case, ...]:
    return tuple(case(norm, *size, **options) for size in sizes for norm in ("pre", "post"))


_both = partial(in_both_orders, case=_case)
_SIZES = ((4, 4, 2, 4), (5, 6, 2, 11), (2, 6, 3, 7), (1, 6, 2, 5))
"""n, d_model, heads, d_ff."""
_CAUSAL = np.tri(5, dtype=bool)
_LENGTHS = np.array([[True, True, False], [True, False, False]])[:, np.newaxis, np.newaxis]

ENCODER_LAYER = Check(
    name="encoder_layer",
    parameters=_PARAMETERS,
    results={"output": "(..., n, d_model)"},
    reference=attnbook.encoder_layer,
    stages=(
        Stage(_both(*_SIZES)),
        Stage(_both((5, 6, 2, 11), dtype="float32")),
        Stage(
            (*_both((5, 6, 2, 11), mask=_CAUSAL), *_both((3, 6, 2, 5), mask=FLIPPED)),
            option="mask",
        ),
        Stage(_both((5, 6, 2, 11, 3), (4, 4, 2, 4, 4)), beyond="a batch (leading axes)"),
        Stage(
            _both((3, 6, 2, 11, 2), mask=_LENGTHS),
            option="mask",
            may_raise="a mask for each sequence, (batch, 1, 1, n),",
            within="a batch (leading axes)",
        ),
    ),
    mistakes=tuple(
        Mistake(name, message, tuple(steps.encode for steps in wrong))
        for name, message, wrong in _OWN
    ),
    properties=(order_is_free,),
    options=("mask",),
    remarked_options=("mask",),
    adapt=lambda function: with_options(function, _PARAMETERS, {"mask": (None, ())}),
    sequences=("x",),
)
