"""The check of a decoder layer: which tokens attend to which, through which mask."""

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented
from attnbook.check.engine.steps import Case, Stage, Values, draw
from attnbook.check.engine.text import Text
from attnbook.check.shared import sublayers


@documented
def decoder_layer(f: Callable, *, norm: str | None = None, time_limit: float = 10.0) -> Report:
    """Check a decoder layer: self-attention, cross-attention, feed-forward network.

    Runs `f` on layers of both norm orders, on several sizes, in float64 and float32, on batches,
    and with both masks if it takes them. A PyTorch module runs in eval mode and in train mode.

    Parameters
    ----------
    f : callable
        Called as ``f(x, memory, weights)``, by position, on (n_t, d_model), (n_s, d_model) and
        `attnbook.DecoderLayerWeights`, and, if it takes them, with `mask`, boolean and (n_t, n_t),
        and `memory_mask`, (n_t, n_s) or (1, n_s), **True = may attend**. It can also be a class or
        a `torch.nn.Module` that is built from the weights, ``f(weights)``, and called with x,
        memory and the masks. It returns an array (n_t, d_model). It may be written only for one
        sequence, without leading axes, or only for batches.
    norm : str, optional
        ``"pre"`` or ``"post"`` checks only that order; anything else raises a ValueError. By
        default, `f` must follow weights.norm.

    Examples
    --------
    >>> import attnbook as ab
    >>> from attnbook import check
    >>> def my_layer(x, memory, weights, mask=None, memory_mask=None):
    ...     return ab.decoder_layer(memory, x, weights, mask, memory_mask)
    >>> check.decoder_layer(my_layer).mistake
    'target and memory exchanged'
    """
    return sublayers.run_in_order(DECODER_LAYER, norm, f, time_limit)


def both(mask, memory_mask):
    """Tell whether both masks are given."""
    return mask is not None and memory_mask is not None


def both_masks(mask, memory_mask):
    if both(mask, memory_mask):
        return mask & memory_mask
    return mask if memory_mask is None else memory_mask


# one normalisation for two sublayers or for all three, that of one of them
SHARED_NORMS = [
    order
    for order in itertools.product(sublayers.SUBLAYERS, repeat=3)
    if order != sublayers.SUBLAYERS
    and all(order[sublayers.SUBLAYERS.index(name)] == name for name in order)
]

TEXT = Text(globals())


def memory_matters(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether another memory changes the output."""
    memory = case.arrays["memory"]
    other = draw(38, *memory.shape).astype(memory.dtype)  # no multiple, no shift of it
    moved = again(memory=other)
    if moved and np.allclose(moved[0], values[0]):
        return "Another memory must change the output; yours stays the same."
    return None


_both = partial(sublayers.in_both_orders, attnbook.DecoderLayerWeights)
_HIDES = np.array([[True, True, False]])
_OTHER = np.array([[True, False, True], [True, True, False], [False, True, True]])

DECODER_LAYER = sublayers.of_layers(
    "decoder_layer",
    ("mask", "memory_mask"),
    TEXT.mistakes,
    results={"output": "(..., n_t, d_model)"},
    compute=sublayers.decode,
    stages=(
        # n_t, n_s, d_model, heads, d_ff
        Stage(_both((4, 4, 4, 2, 4), (3, 5, 6, 2, 11), (5, 2, 6, 3, 7), (1, 3, 6, 2, 5))),
        Stage(_both((3, 5, 6, 2, 11), dtype="float32")),
        Stage(_both((3, 3, 6, 2, 5), (3, 5, 6, 2, 7), mask=np.tri(3, dtype=bool)), option="mask"),
        Stage(
            (
                *_both((3, 3, 6, 2, 5), memory_mask=_HIDES),
                *_both((3, 3, 6, 2, 7), memory_mask=_OTHER),
                *_both((5, 3, 6, 2, 7), memory_mask=_HIDES),
            ),
            option="memory_mask",
        ),
        Stage(
            (
                *_both((3, 3, 6, 2, 5), mask=np.tri(3, dtype=bool), memory_mask=_HIDES[[0, 0, 0]]),
                *_both((3, 3, 6, 2, 7), mask=np.tri(3, dtype=bool), memory_mask=_OTHER),
            ),
            option="mask memory_mask",
        ),
        Stage(
            (*_both((3, 5, 6, 2, 11), batch=(2,)), *_both((4, 4, 4, 2, 4), batch=(4,))),
            may_raise="a batch (leading axes)",
        ),
        Stage(
            _both((5, 3, 6, 2, 11), batch=(2,), memory_mask=sublayers.LENGTHS),
            option="memory_mask",
            may_raise="a mask for each sequence, (batch, 1, 1, n_s),",
            within="a batch (leading axes)",
        ),
    ),
    properties=(memory_matters,),
)
