"""The check of a decoder layer: which tokens attend to which, through which mask."""

from collections.abc import Callable
from functools import partial
from itertools import permutations, product

import numpy as np

import attnbook
from attnbook.check import sublayers
from attnbook.check.engine import documented
from attnbook.check.hidden_layer import same
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Stage, Values, Way, draw, each
from attnbook.check.sublayers import CROSS, FEED, SELF, SUBLAYERS, arranged, norms_of


@documented
def decoder_layer(f: Callable, *, norm: str | None = None, time_limit: float = 10.0) -> Report:
    """Check a decoder layer: self-attention, attention to the memory, the feed-forward network.

    Runs `f` on layers of both norm orders, on several sizes, in float64 and float32, on batches,
    and with both masks if it takes them; a module of PyTorch in eval mode and in train mode.

    Parameters
    ----------
    f : callable
        Called as ``f(x, memory, weights)``, by position, on (n_t, d_model), (n_s, d_model) and
        `attnbook.DecoderLayerWeights`; and with `mask`, boolean and (n_t, n_t), and `memory_mask`,
        (n_t, n_s) or (1, n_s), **True = may attend**, for those of these arguments that it takes.
        Or a class or `torch.nn.Module` that is built from the weights, ``f(weights)``, and called
        with x, memory and the masks. It returns an array (n_t, d_model). It may be for one sequence
        alone, without leading axes, or for batches alone.
    norm : str, optional
        ``"pre"`` or ``"post"`` checks that order alone; anything else is a ValueError. Unless
        given, `f` must follow weights.norm.

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


def _matrices(sources: dict[str, str]) -> tuple[Way, ...]:
    """Return the way that gives attentions the matrices of another."""
    return each("matrices", lambda given: {name: given[sources.get(name, name)] for name in given})


def _of_memory(mask, memory_mask, n):
    return memory_mask


def _if_both(own: Callable, given: Callable) -> Callable:
    """Return what takes the mask of `given` where both are there, and else that of `own`."""

    def take(mask, memory_mask, n):
        both = mask is not None and memory_mask is not None
        return (given if both else own)(mask, memory_mask, n)

    return take


def _both_masks(mask, memory_mask, n):
    if mask is None or memory_mask is None:
        return mask if memory_mask is None else memory_mask
    return mask & memory_mask


def _all_from_target(x, memory, raw, start):
    return x, x, x


def _in_pre_norm(memory, norm, order):
    return norm(memory) if order == "pre" else memory


def _one_or_both(change: Callable) -> tuple[Way, ...]:
    """Return the ways that change the given masks: both, or one of them."""
    of_target = {"self_mask": sublayers.changed(change)}
    of_memory = {"cross_mask": sublayers.changed(change, _of_memory)}
    return {**of_target, **of_memory}, of_target, of_memory


_OWN = mistakes(
    """
    target and memory exchanged: You take the memory for the target. The first argument, x, is the
        target.
    no residual around the cross-attention: The residual around the attention to the memory is
        missing: add its input to what it returns, or the target is forgotten.
    residual around the cross-attention from the normalised input: Around the attention to the
        memory you add the normalised x. With pre-norm the residual carries x itself.
    cross-attention not normalised: The attention to the memory lacks its normalisation.
    norms swapped: You use the weights of the normalisations in another order: self_attention_norm,
        cross_attention_norm and feed_forward_norm each belong to the sublayer of that name.
    one norm for several sublayers: Two or three of your normalisations use the same gain and bias.
        Each has its own: self_attention_norm, cross_attention_norm and feed_forward_norm.
    memory ignored: Your second attention attends to the target again, so the layer never sees the
        source. Queries come from the target, keys and values from the memory.
    queries from the memory: The source asks and the target answers in your cross-attention. Queries
        come from the target, keys and values from the memory.
    values from the target: Your cross-attention takes keys from the memory and values from the
        target. Both come from the memory.
    keys from the target: Your cross-attention takes values from the memory and keys from the
        target. Both come from the memory.
    queries from the input of the layer: The queries of your cross-attention come from the input of
        the layer. They come from what the self-attention, residual and all, has made.
    everything from the memory: Your memory attends to itself. The queries come from the target.
    self-attention's weights for the memory: Your attention to the memory uses the matrices of the
        self-attention. It has its own, weights.cross_attention.
    cross-attention's weights for the target: Your self-attention uses the matrices of the
        cross-attention. It has its own, weights.self_attention.
    weights of the attentions swapped: The matrices of your two attentions are exchanged.
    memory normalised: You normalise the memory with the weights of the layer. The encoder has
        normalised it once and for all; pre-norm is for the queries, x.
    cross-attention before self-attention: You attend to the memory first. Self-attention comes
        before it.
    cross-attention last: Your attention to the memory comes last. The feed-forward network does.
    feed-forward network first: Your feed-forward network comes first. It is the last of the three.
    cross-attention missing: Your layer never looks at the memory: the attention to it is missing.
    causal mask of its own: Your self-attention hides the future unasked. Use `mask` as it comes.
    mask ignored: The mask of the target changes nothing: each token sees the very tokens that it is
        to predict. Hand it to the self-attention.
    memory_mask ignored: The mask of the memory changes nothing: the target attends to the padding
        of the source. Hand it to the cross-attention.
    masks swapped: Your masks are exchanged, always or where both are given: `mask` belongs to the
        self-attention, `memory_mask` to the attention to the memory.
    mask used for the memory too: You hand the mask of the target to both attentions. The memory has
        a mask of its own, and may be seen as a whole: it is not the future of the target.
    memory_mask used for the target too: You hand the mask of the memory to both attentions. It
        hides padding of the source; the self-attention has `mask`.
    masks inverted [the modules of PyTorch]: in your masks True hides a key. Here True means that
        the query may attend to the key: pass ~mask to those modules.
    mask transposed: Rows and columns of a mask are exchanged: rows are queries, columns are keys.
    """,
    {
        "target and memory exchanged": each("exchange", lambda x, memory: (memory, x)),
        "no residual around the cross-attention": sublayers.lost((CROSS,)),
        "residual around the cross-attention from the normalised input": sublayers.from_entered(
            (CROSS,)
        ),
        "cross-attention not normalised": sublayers.bare((CROSS,)),
        "norms swapped": tuple(norms_of(*order) for order in permutations(SUBLAYERS))[1:],
        "one norm for several sublayers": tuple(
            norms_of(*order)
            for order in product(SUBLAYERS, repeat=3)
            # whose norm another one uses has it as well
            if order != SUBLAYERS and all(order[SUBLAYERS.index(name)] == name for name in order)
        ),
        "memory ignored": (
            *each("to_memory", _all_from_target),
            {"to_memory": _all_from_target, "cross_mask": sublayers.no_mask},
            {"to_memory": _all_from_target, **_matrices({CROSS: SELF})[0]},
        ),
        "queries from the memory": each("to_memory", lambda x, memory, raw, start: (memory, x, x)),
        "values from the target": each(
            "to_memory",
            lambda x, memory, raw, start: (x, memory, x),
            lambda x, memory, raw, start: (x, memory, raw),
            lambda x, memory, raw, start: (x, memory, start),
        ),
        "keys from the target": each(
            "to_memory",
            lambda x, memory, raw, start: (x, x, memory),
            lambda x, memory, raw, start: (x, raw, memory),
            lambda x, memory, raw, start: (x, start, memory),
        ),
        "everything from the memory": each(
            "to_memory", lambda x, memory, raw, start: (memory,) * 3
        ),
        "queries from the input of the layer": each(
            f"before_{CROSS}",
            lambda x, start, norm, order: start,
            lambda x, start, norm, order: norm(start) if order == "pre" else start,
        ),
        "self-attention's weights for the memory": _matrices({CROSS: SELF}),
        "cross-attention's weights for the target": _matrices({SELF: CROSS}),
        "weights of the attentions swapped": _matrices({CROSS: SELF, SELF: CROSS}),
        "memory normalised": each(
            "memory",
            _in_pre_norm,
            lambda memory, norm, order: norm(memory),
            lambda memory, norm, order: _in_pre_norm(memory, attnbook.layer_norm, order),
            lambda memory, norm, order: attnbook.layer_norm(memory),
        ),
        "cross-attention before self-attention": arranged(CROSS, SELF, FEED),
        "cross-attention last": arranged(SELF, FEED, CROSS),
        "feed-forward network first": arranged(FEED, SELF, CROSS),
        "cross-attention missing": arranged(SELF, FEED),
        "causal mask of its own": each("self_mask", sublayers.causal),
        "mask ignored": each("self_mask", sublayers.no_mask),
        "memory_mask ignored": each("cross_mask", sublayers.no_mask),
        "masks swapped": (
            {"self_mask": _of_memory, "cross_mask": same},
            {"self_mask": _if_both(same, _of_memory), "cross_mask": _if_both(_of_memory, same)},
        ),
        "mask used for the memory too": each(
            "cross_mask",
            same,
            _both_masks,
            *(_if_both(_of_memory, mask) for mask in (same, _both_masks)),
        ),
        "memory_mask used for the target too": each(
            "self_mask",
            _both_masks,
            _of_memory,
            *(_if_both(same, mask) for mask in (_of_memory, _both_masks)),
        ),
        "masks inverted": _one_or_both(np.logical_not),
        "mask transposed": _one_or_both(np.matrix_transpose),
    },
)


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
    _OWN,
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
