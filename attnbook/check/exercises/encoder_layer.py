"""The check of an encoder layer, pre-norm and post-norm."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented
from attnbook.check.engine.steps import Case, Stage, Values
from attnbook.check.engine.text import Text
from attnbook.check.shared import sublayers
from attnbook.check.shared.attention_cases import FLIPPED


@documented
def encoder_layer(f: Callable, *, norm: str | None = None, time_limit: float = 10.0) -> Report:
    """Check an encoder layer: self-attention, then the feed-forward network.

    Runs `f` on layers of both norm orders, on several sizes, in float64 and float32, on batches,
    and with masks if it takes them. A PyTorch module runs in eval mode and in train mode.

    Parameters
    ----------
    f : callable
        Called as ``f(x, weights)``, by position, on (n, d_model) and
        `attnbook.EncoderLayerWeights`, and with `mask`, boolean and (n, n), **True = may attend**,
        if it takes an argument of that name or a third one. It can also be a class or a
        `torch.nn.Module` that is built from the weights, ``f(weights)``, and called with x and a
        mask. It returns an array (n, d_model). It may be written only for one sequence, without
        leading axes, or only for batches.
    norm : str, optional
        ``"pre"`` or ``"post"`` checks only that order; anything else raises a ValueError. By
        default, `f` must follow weights.norm.

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
    return sublayers.run_in_order(ENCODER_LAYER, norm, f, time_limit)


def order_is_free(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether a permutation of the tokens permutes the output, where no mask stands."""
    if case.options:
        return None
    moved = again(x=np.flip(case.arrays["x"], axis=-2))
    if moved and not np.allclose(moved[0], np.flip(values[0], axis=-2), atol=1e-4):
        return (
            "Without a mask, reversing the order of the tokens must reverse the outputs and change "
            "nothing else; yours change otherwise."
        )
    return None


def batch_second(x, weights, mask=None):
    """Return the layer of an x of (n, batch, d_model)."""
    turned = np.swapaxes(x, 0, 1) if x.ndim == 3 else x
    output: Any = attnbook.encoder_layer(turned, weights, mask)
    return np.swapaxes(output, 0, 1) if x.ndim == 3 else output


TEXT = Text(globals())

_OWN = TEXT.mistakes

_both = partial(sublayers.in_both_orders, attnbook.EncoderLayerWeights)

ENCODER_LAYER = sublayers.of_layers(
    "encoder_layer",
    ("mask",),
    _OWN,
    results={"output": "(..., n, d_model)"},
    compute=lambda s, x, weights, mask=None: sublayers.decode(s, x, None, weights, mask),
    stages=(
        # n, d_model, heads, d_ff
        Stage(_both((4, 4, 2, 4), (5, 6, 2, 11), (2, 6, 3, 7), (1, 6, 2, 5))),
        Stage(_both((5, 6, 2, 11), dtype="float32")),
        Stage(
            (
                *_both((5, 6, 2, 11), mask=np.tri(5, dtype=bool)),
                *_both((3, 6, 2, 5), mask=FLIPPED),
            ),
            option="mask",
        ),
        Stage(
            (*_both((5, 6, 2, 11), batch=(3,)), *_both((4, 4, 2, 4), batch=(4,))),
            may_raise="a batch (leading axes)",
        ),
        Stage(
            _both((3, 6, 2, 11), batch=(2,), mask=sublayers.LENGTHS),
            option="mask",
            may_raise="a mask for each sequence, (batch, 1, 1, n),",
            within="a batch (leading axes)",
        ),
    ),
    properties=(order_is_free,),
)
