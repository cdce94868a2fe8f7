"""The check of a decoder layer: which tokens attend to which, through which mask."""

from collections.abc import Callable
from functools import partial

import numpy as np

import attnbook
from attnbook.check import _layer_steps as s
from attnbook.check._built import run_in_modes
from attnbook.check._encoder_layer import in_both_orders, of_order, varied
from attnbook.check._layer_mistakes import ORDER_MISTAKES, PIECE_MISTAKES, RESIDUAL_MISTAKES
from attnbook.check._layer_steps import Steps, norms_of, only, swap
from attnbook.check._model import Case, Check, Mistake, Stage, Values, draw
from attnbook.check._optional import with_options
from attnbook.check._report import Report

_PARAMETERS = ("x", "memory", "weights")


def decoder_layer(f: Callable, *, norm: str | None = None, time_limit: float = 10.0) -> Report:
    """Check a decoder layer: self-attention, attention to the memory, the feed-forward network.

    Runs `f` on layers of both norm orders, on as many tokens in the target as in the memory and on
    different numbers, on one token, in float64 and float32, on batches, and with both masks if it
    takes them. A module of PyTorch is checked in eval mode and in train mode.

    Parameters
    ----------
    f : callable
        Called as ``f(x, memory, weights)``, by position, on (n_t, d_model), (n_s, d_model) and
        `attnbook.DecoderLayerWeights`; and with `mask`, boolean and (n_t, n_t), and `memory_mask`,
        (n_t, n_s) or (1, n_s), **True = may attend**, for those of these arguments that it takes;
        both are causal or not by what is given, never by themselves. Or a class, such as a
        `torch.nn.Module`, that is built from the weights, ``f(weights)``, and called with x, memory
        and the masks. It returns an array (n_t, d_model). It may be written for one sequence,
        without leading axes, or for batches alone.
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
    >>> def my_layer(x, memory, weights, mask=None, memory_mask=None):
    ...     return ab.decoder_layer(memory, x, weights, mask, memory_mask)
    >>> check.decoder_layer(my_layer).mistake
    'target and memory exchanged'
    """
    return run_in_modes(of_order(DECODER_LAYER, norm), f, time_limit)


def _to_memory(query: str, key: str, value: str, attention: str = "cross_attention") -> Callable:
    """Return cross-attention whose inputs are taken from "x" or "memory"."""

    def wrong(steps, x, raw, memory, weights, mask, memory_mask):
        inputs = {"x": x, "memory": memory}
        chosen = (inputs[name] for name in (query, key, value))
        return steps.attend(*chosen, getattr(weights, attention), memory_mask)

    return wrong


def _to_target(attention: str) -> Callable:
    return lambda steps, x, raw, memory, weights, mask, memory_mask: steps.attend(
        x, x, x, getattr(weights, attention), mask
    )


def _memory_normalised(steps, x, raw, memory, weights, mask, memory_mask):
    if weights.norm == "post":
        return steps.attend(x, memory, memory, weights.cross_attention, memory_mask)
    y = steps.norm(memory, weights.cross_attention_norm)
    return steps.attend(x, y, y, weights.cross_attention, memory_mask)


def _seeing(mine: Callable, memory: Callable) -> Steps:
    """Return the layer whose two masks are chosen from (mask, memory_mask)."""

    def to_target(steps, x, raw, memory_, weights, mask, memory_mask):
        return steps.attend(x, x, x, weights.self_attention, mine(mask, memory_mask))

    def to_memory(steps, x, raw, memory_, weights, mask, memory_mask):
        chosen = memory(mask, memory_mask)
        return steps.attend(x, memory_, memory_, weights.cross_attention, chosen)

    return swap(to_target=to_target, to_memory=to_memory)


def _not(mask):
    return None if mask is None else ~mask


def _mine(mask, memory_mask):
    return mask


def _of_memory(mask, memory_mask):
    return memory_mask


def _no_mask(mask, memory_mask):
    return None


def _both_of(mask, memory_mask):
    if mask is None or memory_mask is None:
        return mask if memory_mask is None else memory_mask
    return mask & memory_mask


def _causal_to_target(steps, x, raw, memory, weights, mask, memory_mask):
    """Add a causal mask of its own."""
    causal = np.tri(x.shape[-2], dtype=bool)
    return steps.attend(x, x, x, weights.self_attention, _both_of(mask, causal))


def _exchanged(x, memory, weights, mask=None, memory_mask=None):
    return Steps().decode(memory, x, weights, mask, memory_mask)


_OWN: tuple[tuple[str, str, tuple[Steps, ...]], ...] = (
    *ORDER_MISTAKES,
    *RESIDUAL_MISTAKES,
    (
        "no residual around the cross-attention",
        "The residual around the attention to the memory is missing: add its input to what it "
        "returns, or the target is forgotten.",
        (swap(add=only(("cross",), s.no_residual)),),
    ),
    (
        "residual around the cross-attention from the normalised input",
        "Around the attention to the memory you add the normalised x. With pre-norm the residual "
        "carries x itself.",
        (swap(add=only(("cross",), s.from_normalized)),),
    ),
    (
        "cross-attention not normalised",
        "The normalisation that belongs to the attention to the memory is missing.",
        (swap(add=only(("cross",), s.no_norm)),),
    ),
    (
        "norms swapped",
        "You use the weights of the normalisations in another order: self_attention_norm, "
        "cross_attention_norm and feed_forward_norm each belong to the sublayer of that name.",
        tuple(
            swap(arrange=norms_of(*order))
            for order in ((1, 0, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0), (2, 0, 1))
        ),
    ),
    (
        "one norm for several sublayers",
        "Two or three of your normalisations use the same gain and bias. Each has its own: "
        "self_attention_norm, cross_attention_norm and feed_forward_norm.",
        tuple(
            swap(arrange=norms_of(*order))
            for order in ((0, 0, 0), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 2), (2, 1, 2))
        ),
    ),
    (
        "memory ignored",
        "Your second attention attends to the target again, so the layer never sees the source. "
        "Queries come from the target, keys and values from the memory.",
        (
            swap(to_memory=_to_target("cross_attention")),
            swap(to_memory=_to_target("self_attention")),
            swap(to_memory=_to_memory("x", "x", "x")),
        ),
    ),
    (
        "queries from the memory",
        "In your cross-attention target and memory are swapped: the memory asks, and the target "
        "answers. Queries come from the target, keys and values from the memory.",
        (swap(to_memory=_to_memory("memory", "x", "x")),),
    ),
    (
        "values from the target",
        "Your cross-attention takes its keys from the memory and its values from the target. Both "
        "come from the memory.",
        (swap(to_memory=_to_memory("x", "memory", "x")),),
    ),
    (
        "keys from the target",
        "Your cross-attention takes its values from the memory and its keys from the target. Both "
        "come from the memory.",
        (swap(to_memory=_to_memory("x", "x", "memory")),),
    ),
    (
        "everything from the memory",
        "Your cross-attention attends from the memory to the memory. Its queries come from the "
        "target.",
        (swap(to_memory=_to_memory("memory", "memory", "memory")),),
    ),
    (
        "self-attention's weights for the memory",
        "Your attention to the memory uses the matrices of the self-attention. It has its own, "
        "weights.cross_attention.",
        (swap(to_memory=_to_memory("x", "memory", "memory", "self_attention")),),
    ),
    (
        "cross-attention's weights for the target",
        "Your self-attention uses the matrices of the cross-attention. It has its own, "
        "weights.self_attention.",
        (swap(to_target=_to_target("cross_attention")),),
    ),
    (
        "weights of the attentions swapped",
        "The matrices of your two attentions are exchanged.",
        (
            swap(
                to_target=_to_target("cross_attention"),
                to_memory=_to_memory("x", "memory", "memory", "self_attention"),
            ),
        ),
    ),
    (
        "memory normalised",
        "You normalise the memory with the weights of the layer. The encoder has normalised it "
        "once and for all; pre-norm is for the queries, x.",
        (swap(to_memory=_memory_normalised),),
    ),
    (
        "cross-attention before self-attention",
        "You attend to the memory first. The target attends to itself first, then to the memory.",
        (swap(arrange=s.in_order("cross", "self", "feed")),),
    ),
    (
        "cross-attention last",
        "You attend to the memory last. It comes between self-attention and the feed-forward "
        "network.",
        (swap(arrange=s.in_order("self", "feed", "cross")),),
    ),
    (
        "feed-forward network first",
        "Your feed-forward network comes first. It is the last of the three.",
        (swap(arrange=s.in_order("feed", "self", "cross")),),
    ),
    (
        "cross-attention missing",
        "Your layer never looks at the memory: the attention to it is missing.",
        (swap(arrange=s.without("cross")),),
    ),
    *PIECE_MISTAKES,
    (
        "causal mask of its own",
        "Your self-attention hides the future although no mask is given. The caller decides: use "
        "`mask` as it comes.",
        (swap(to_target=_causal_to_target),),
    ),
    (
        "mask ignored",
        "The mask of the target changes nothing: each token sees the very tokens that it is to "
        "predict. Hand it to the self-attention.",
        (_seeing(_no_mask, _of_memory),),
    ),
    (
        "memory_mask ignored",
        "The mask of the memory changes nothing: the target attends to the padding of the source. "
        "Hand it to the cross-attention.",
        (_seeing(_mine, _no_mask),),
    ),
    (
        "masks swapped",
        "Your masks are exchanged: `mask` belongs to the self-attention, `memory_mask` to the "
        "attention to the memory.",
        (_seeing(_of_memory, _mine),),
    ),
    (
        "mask used for the memory too",
        "You hand the mask of the target to both attentions. The memory has a mask of its own, and "
        "may be seen as a whole: it is not the future of the target.",
        (_seeing(_mine, _mine), _seeing(_mine, _both_of)),
    ),
    (
        "memory_mask used for the target too",
        "You hand the mask of the memory to both attentions. It hides padding of the source; "
        "the self-attention has `mask`.",
        (_seeing(_both_of, _of_memory),),
    ),
    (
        "masks inverted",
        "Your masks work the wrong way round: True means that the query may attend to the key. "
        "PyTorch's modules have it the other way; pass ~mask to those.",
        (
            _seeing(lambda mask, _: _not(mask), lambda _, memory: _not(memory)),
            _seeing(lambda mask, _: _not(mask), _of_memory),
            _seeing(_mine, lambda _, memory: _not(memory)),
        ),
    ),
)


def memory_matters(case: Case, values: Values, again: Callable) -> str | None:
    moved = again(memory=case.arrays["memory"] + 1)
    if moved and np.allclose(moved[0], values[0]):
        return "Another memory must change the output; here it does not."
    return None


def _case(
    norm: str,
    n_t: int,
    n_s: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    *leading: int,
    dtype: str = "float64",
    **options: np.ndarray,
) -> Case:
    weights = attnbook.DecoderLayerWeights.init(0, d_model, n_heads, d_ff, norm=norm)
    arguments = {
        "x": draw(36, *leading, n_t, d_model).astype(dtype),
        "memory": draw(37, *leading, n_s, d_model).astype(dtype),
        "weights": varied(weights).to(dtype=dtype),
    }
    return Case(arguments, options, about=f", {n_heads} heads, {norm}-norm")


_both = partial(in_both_orders, case=_case)
_SIZES = ((4, 4, 4, 2, 4), (3, 5, 6, 2, 11), (5, 2, 6, 3, 7), (1, 3, 6, 2, 5))
"""n_t, n_s, d_model, heads, d_ff."""
_CAUSAL = np.tri(3, dtype=bool)
_HIDES = np.array([[True, True, False]])
_OTHER = np.array([[True, False, True], [True, True, False], [False, True, True]])
_LENGTHS = np.array([[True, True, False], [True, False, False]])[:, np.newaxis, np.newaxis]

DECODER_LAYER = Check(
    name="decoder_layer",
    parameters=_PARAMETERS,
    results={"output": "(..., n_t, d_model)"},
    reference=attnbook.decoder_layer,
    stages=(
        Stage(_both(*_SIZES)),
        Stage(_both((3, 5, 6, 2, 11), dtype="float32")),
        Stage(_both((3, 3, 6, 2, 5), (3, 5, 6, 2, 7), mask=_CAUSAL), option="mask"),
        Stage(
            (
                *_both((3, 3, 6, 2, 5), memory_mask=_HIDES),
                *_both((3, 3, 6, 2, 7), memory_mask=_OTHER),
                *_both((5, 3, 6, 2, 7), memory_mask=_HIDES),
            ),
            option="memory_mask",
        ),
        Stage(_both((3, 5, 6, 2, 11, 2), (4, 4, 4, 2, 4, 4)), beyond="a batch (leading axes)"),
        Stage(
            _both((5, 3, 6, 2, 11, 2), memory_mask=_LENGTHS),
            option="memory_mask",
            may_raise="a mask for each sequence, (batch, 1, 1, n_s),",
            within="a batch (leading axes)",
        ),
    ),
    mistakes=(
        Mistake(
            "target and memory exchanged",
            "You take the memory for the target: the source attends to itself and then to the "
            "target. The first argument is x, the target.",
            (_exchanged,),
        ),
        *(
            Mistake(name, message, tuple(steps.decode for steps in wrong))
            for name, message, wrong in _OWN
        ),
    ),
    properties=(memory_matters,),
    options=("mask", "memory_mask"),
    remarked_options=("mask", "memory_mask"),
    adapt=lambda function: with_options(
        function, _PARAMETERS, {"mask": (None, ()), "memory_mask": (None, ())}
    ),
    sequences=("x", "memory"),
)
