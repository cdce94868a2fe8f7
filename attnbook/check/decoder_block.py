"""The check of a decoder layer: which tokens attend to which, through which mask."""

from collections.abc import Callable
from functools import partial
from itertools import permutations

import numpy as np

import attnbook
from attnbook.check.modes import run_in_modes
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.signatures import with_options
from attnbook.check.steps import Case, Check, Stage, Values, Way, draw, each
from attnbook.check.sublayers import (
    CROSS,
    FEED,
    LAYER_STEPS,
    ORDER_MISTAKES,
    PIECE_MISTAKES,
    RESIDUAL_MISTAKES,
    SELF,
    SUBLAYERS,
    arranged,
    bare,
    decode,
    from_entered,
    in_both_orders,
    lost,
    norms_of,
    of_order,
    varied,
)

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
        Seconds of computing for all calls together, in each mode.

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


def _to_memory(query: str, key: str, value: str) -> Way:
    """Return the cross-attention whose inputs are taken from "x" or "memory"."""

    def inputs(x, memory, norm, order):
        given = {"x": x, "memory": memory}
        return given[query], given[key], given[value]

    return {"to_memory": inputs}


def _normalised(always: bool, norm_of: Callable = lambda norm, memory: norm(memory)) -> Way:
    """Return the cross-attention that normalises the memory, always or in pre-norm alone."""

    def inputs(x, memory, norm, order):
        y = norm_of(norm, memory) if always or order == "pre" else memory
        return x, y, y

    return {"to_memory": inputs}


def _matrices(**sources: str) -> Way:
    """Return the way that gives an attention the matrices of another."""
    return {
        "matrices": lambda matrices: {
            **matrices,
            **{name: matrices[source] for name, source in sources.items()},
        }
    }


def _masks(mine: Callable, memory: Callable) -> Way:
    """Return the way whose two masks are chosen from (mask, memory_mask)."""
    return {"masks": lambda mask, other, n: (mine(mask, other), memory(mask, other))}


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


def _transposed(mask):
    return None if mask is None else np.swapaxes(mask, -1, -2)


_OWN = mistakes(
    """
    no residual around the cross-attention: The residual around the attention to the memory is
        missing: add its input to what it returns, or the target is forgotten.
    residual around the cross-attention from the normalised input: Around the attention to the
        memory you add the normalised x. With pre-norm the residual carries x itself.
    cross-attention not normalised: The normalisation that belongs to the attention to the memory is
        missing.
    norms swapped: You use the weights of the normalisations in another order: self_attention_norm,
        cross_attention_norm and feed_forward_norm each belong to the sublayer of that name.
    one norm for several sublayers: Two or three of your normalisations use the same gain and bias.
        Each has its own: self_attention_norm, cross_attention_norm and feed_forward_norm.
    memory ignored: Your second attention attends to the target again, so the layer never sees the
        source. Queries come from the target, keys and values from the memory.
    queries from the memory: Your cross-attention takes its queries from the memory and its keys and
        values from the target: the source asks and the target answers. Queries come from the
        target, keys and values from the memory.
    values from the target: Your cross-attention takes its keys from the memory and its values from
        the target. Both come from the memory.
    keys from the target: Your cross-attention takes its values from the memory and its keys from
        the target. Both come from the memory.
    everything from the memory: Your cross-attention attends from the memory to the memory. Its
        queries come from the target.
    self-attention's weights for the memory: Your attention to the memory uses the matrices of the
        self-attention. It has its own, weights.cross_attention.
    cross-attention's weights for the target: Your self-attention uses the matrices of the
        cross-attention. It has its own, weights.self_attention.
    weights of the attentions swapped: The matrices of your two attentions are exchanged.
    memory normalised: You normalise the memory with the weights of the layer. The encoder has
        normalised it once and for all; pre-norm is for the queries, x.
    cross-attention before self-attention: You attend to the memory first. The target attends to
        itself first, then to the memory.
    cross-attention last: You attend to the memory last. It comes between self-attention and the
        feed-forward network.
    feed-forward network first: Your feed-forward network comes first. It is the last of the three.
    cross-attention missing: Your layer never looks at the memory: the attention to it is missing.
    causal mask of its own: Your self-attention hides the future although no mask is given. The
        caller decides: use `mask` as it comes.
    mask ignored: The mask of the target changes nothing: each token sees the very tokens that it is
        to predict. Hand it to the self-attention.
    memory_mask ignored: The mask of the memory changes nothing: the target attends to the padding
        of the source. Hand it to the cross-attention.
    masks swapped: Your masks are exchanged: `mask` belongs to the self-attention, `memory_mask` to
        the attention to the memory.
    mask used for the memory too: You hand the mask of the target to both attentions. The memory has
        a mask of its own, and may be seen as a whole: it is not the future of the target.
    memory_mask used for the target too: You hand the mask of the memory to both attentions. It
        hides padding of the source; the self-attention has `mask`.
    masks inverted: Your masks work the wrong way round: True means that the query may attend to the
        key. PyTorch's modules have it the other way; pass ~mask to those.
    mask transposed: Rows and columns of a mask are exchanged: rows are queries, columns are keys.
    """,
    {
        "no residual around the cross-attention": lost((CROSS,)),
        "residual around the cross-attention from the normalised input": (from_entered((CROSS,)),),
        "cross-attention not normalised": bare((CROSS,)),
        "norms swapped": tuple(norms_of(*order) for order in permutations(SUBLAYERS))[1:],
        "one norm for several sublayers": (
            norms_of(SELF, SELF, SELF),
            norms_of(SELF, SELF, FEED),
            norms_of(SELF, CROSS, SELF),
            norms_of(SELF, CROSS, CROSS),
            norms_of(SELF, FEED, FEED),
            norms_of(FEED, CROSS, FEED),
            norms_of(CROSS, CROSS, FEED),
            norms_of(FEED, FEED, FEED),
            norms_of(CROSS, CROSS, CROSS),
        ),
        "memory ignored": (
            _to_memory("x", "x", "x"),
            {**_to_memory("x", "x", "x"), **_matrices(cross=SELF)},
        ),
        "queries from the memory": (_to_memory("memory", "x", "x"),),
        "values from the target": (_to_memory("x", "memory", "x"),),
        "keys from the target": (_to_memory("x", "x", "memory"),),
        "everything from the memory": (_to_memory("memory", "memory", "memory"),),
        "self-attention's weights for the memory": (_matrices(cross=SELF),),
        "cross-attention's weights for the target": (_matrices(self=CROSS),),
        "weights of the attentions swapped": (_matrices(self=CROSS, cross=SELF),),
        "memory normalised": (
            _normalised(always=False),
            _normalised(always=True),
            *(
                _normalised(always, lambda norm, memory: attnbook.layer_norm(memory))
                for always in (False, True)
            ),
        ),
        "cross-attention before self-attention": (arranged(CROSS, SELF, FEED),),
        "cross-attention last": (arranged(SELF, FEED, CROSS),),
        "feed-forward network first": (arranged(FEED, SELF, CROSS),),
        "cross-attention missing": (arranged(SELF, FEED),),
        "causal mask of its own": each(
            "masks", lambda mask, other, n: (_both_of(mask, np.tri(n, dtype=bool)), other)
        ),
        "mask ignored": (_masks(_no_mask, _of_memory),),
        "memory_mask ignored": (_masks(_mine, _no_mask),),
        "masks swapped": (_masks(_of_memory, _mine),),
        "mask used for the memory too": (_masks(_mine, _mine), _masks(_mine, _both_of)),
        "memory_mask used for the target too": (
            _masks(_both_of, _of_memory),
            _masks(_of_memory, _of_memory),
        ),
        "masks inverted": (
            _masks(lambda mask, _: _not(mask), lambda _, memory: _not(memory)),
            _masks(lambda mask, _: _not(mask), _of_memory),
            _masks(_mine, lambda _, memory: _not(memory)),
        ),
        "mask transposed": (
            _masks(lambda mask, _: _transposed(mask), _of_memory),
            _masks(_mine, lambda _, memory: _transposed(memory)),
            _masks(lambda mask, _: _transposed(mask), lambda _, memory: _transposed(memory)),
        ),
    },
)


def memory_matters(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether another memory changes the output."""
    memory = case.arrays["memory"]
    moved = again(
        memory=draw(38, *memory.shape).astype(memory.dtype)
    )  # no multiple, no shift of it
    if moved and np.allclose(moved[0], values[0]):
        return "Another memory must change the output; yours stays the same."
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
    compute=decode,
    steps=LAYER_STEPS,
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
        *mistakes(
            """
        target and memory exchanged: You take the memory for the target: the source attends to
            itself and then to the target. The first argument is x, the target.
        """,
            {"target and memory exchanged": each("exchange", lambda x, memory: (memory, x))},
        ),
        *ORDER_MISTAKES,
        *RESIDUAL_MISTAKES,
        *_OWN,
        *PIECE_MISTAKES,
    ),
    properties=(memory_matters,),
    options=("mask", "memory_mask"),
    remarked_options=("mask", "memory_mask"),
    adapt=lambda function: with_options(
        function, _PARAMETERS, {"mask": (None, ()), "memory_mask": (None, ())}
    ),
    sequences=("x", "memory"),
)
