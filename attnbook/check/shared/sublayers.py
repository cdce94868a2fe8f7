"""A layer of the transformer in steps: what enters each sublayer, the residuals, and their order.

Encoder and decoder layers are computed here, from the steps of attention, of the feed-forward
network and of layer normalisation, and of a few of their own for each sublayer.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine.modules import run_in_modes
from attnbook.check.engine.report import Report
from attnbook.check.engine.signatures import with_options
from attnbook.check.engine.steps import Case, Check, Mistake, Way, draw, only, without
from attnbook.check.engine.text import Text
from attnbook.check.exercises.feed_forward import FEED_MISTAKES, feed, same
from attnbook.check.exercises.layer_norm import NORM_MISTAKES, normalize
from attnbook.check.exercises.multi_head_attention import MULTI_HEAD_ATTENTION
from attnbook.check.shared.heads import heads_from_steps

SELF, CROSS, FEED = SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")


# What enters a sublayer, how its result is joined to its input, and how the sum leaves. `norm` is
# the layer normalisation of the sublayer, `start` the input of the whole layer.


class _Affine:
    """What takes the place of a matrix in ``x @ W`` and adds a bias."""

    __array_ufunc__ = None  # so that NumPy leaves the product to it

    def __init__(self, W: np.ndarray, bias: np.ndarray):
        self.W, self.bias, self.shape = W, bias, W.shape

    def __rmatmul__(self, x):
        return x @ self.W + self.bias

    def __getitem__(self, rows):
        return _Affine(self.W[rows], self.bias)

    @property
    def T(self):  # noqa: N802
        return _Affine(self.W.T, self.bias)


def _several_heads(s, inputs, w, mask):
    biased = ((w.W_Q, w.b_Q), (w.W_K, w.b_K), (w.W_V, w.b_V), (w.W_O, w.b_O))
    given: list[Any] = [*inputs, *(_Affine(W, s.bias(b)) for W, b in biased), w.n_heads, mask]
    return heads_from_steps(s, *given)


def decode(s: Any, x, memory, weights, mask=None, memory_mask=None):
    """Compute a decoder layer from its steps, or without a memory an encoder layer."""
    x, memory = s.exchange(x, memory)
    order, start = s.order(weights.norm), x
    masks = {
        SELF: s.self_mask(mask, memory_mask, x.shape[-2]),
        CROSS: s.cross_mask(mask, memory_mask, x.shape[-2]),
    }
    names = [name for name in SUBLAYERS if hasattr(weights, name)]
    norms = s.norms({name: getattr(weights, f"{name}_norm") for name in names})
    matrices = s.matrices({name: getattr(weights, name) for name in names})
    for name in s.sequence(names):
        before, join, after = (getattr(s, f"{way}_{name}") for way in ("before", "join", "after"))

        def norm(y, n=norms[name]):
            return normalize(s, y, n.gain, n.bias, n.epsilon)

        y, w = before(x, start, norm, order), matrices[name]
        if name == FEED:
            made = feed(s, y, w.W_1, w.b_1, w.W_2, w.b_2)
        elif name == SELF:
            made = _several_heads(s, s.to_target(y, x), w, masks[name])
        else:
            read = s.memory(memory, norm, order)
            made = _several_heads(s, s.to_memory(y, read, x, start), w, masks[name])
        x = after(join(x, y, made, start, norm, order), norm, order)
    return x


def around(names: Iterable[str] = SUBLAYERS, **steps: Callable) -> Way:
    """Return the way that replaces `before`, `join` or `after` of these sublayers."""
    return {f"{step}_{name}": wrong for name in names for step, wrong in steps.items()}


# Wrong ways around a sublayer.


def in_order(order: str, join: Callable) -> Callable:
    """Return the join that is wrong in one norm order alone."""
    return lambda *given: join(*given) if given[-1] == order else given[0] + given[2]


def _only_made(x, entered, made, start, norm, order):
    return made


def normalised(x, *others):
    return others[-2](x)  # norm, order


def made_normalised(x, entered, made, start, norm, order):
    return x + norm(made)


def lost(names: Iterable[str] = SUBLAYERS) -> tuple[Way, ...]:
    """Return the ways without a residual: in both orders, in one of them."""
    return (
        around(names, join=_only_made),
        *(around(names, join=in_order(order, _only_made)) for order in ("pre", "post")),
    )


def from_entered(names: Iterable[str] = SUBLAYERS) -> Way:
    """Return the way that adds what enters a sublayer, normalised in pre-norm."""
    return around(names, join=lambda x, entered, made, *others: entered + made)


def bare(names: Iterable[str] = SUBLAYERS) -> tuple[Way, ...]:
    """Return the ways without normalisation: in both orders, in one of them."""
    before, after = around(names, before=same), around(names, after=same)
    return {**before, **after}, before, after


def arranged(*names: str) -> tuple[Way]:
    """Return the way that runs the sublayers in this order, or leaves some out."""
    return ({"sequence": lambda given: [name for name in names if name in given]},)


def norms_of(norms, *sources):
    """Return the normalisations of these sublayers, for each in their order."""
    return dict(zip(norms, (norms[name] for name in sources), strict=True))


# Wrong masks, made of the mask of the target, that of the memory and the length of the target.


def causal(mask, memory_mask, n):
    """Return the mask of the target without the future."""
    allowed = np.tri(n, dtype=bool)
    return allowed if mask is None else mask & allowed


def changed(change, mask):
    """Return the changed mask, if there is one."""
    return None if mask is None else change(mask)


# padding of two sequences of three tokens
LENGTHS = np.array([[True, True, False], [True, False, False]])[:, np.newaxis, np.newaxis]
EACH_AND_ALL = (SUBLAYERS, (SELF,), (FEED,))

TEXT = Text(globals())

_OF_HEADS = (
    *("bare reshape in the split", "bare reshape in the join", "bare reshape in both"),
    *("interleaved features", "heads joined in reverse", "one big head", "heads averaged"),
    *("heads summed", "softmax over the heads", "scale by √d_model", "scale by √h"),
    *("W_O forgotten", "W_O transposed", "no scale", "scale by d_k", "scale multiplied"),
    *("root cut to an integer", "softmax over the query axis", "no softmax", "scores ignored"),
    *("sign of the scores", "one sum for all", "not normalised", "mask multiplies the scores"),
    *("mask added to the scores", "mask after the softmax", "nothing projected"),
    *("values not projected", "keys not projected", "queries not projected", "W transposed"),
    *("W_Q used for the keys", "W_K used for the queries", "W_K used for the values"),
    *("W_Q used for the values", "W_Q and W_K swapped", "W_K and W_V swapped"),
)
_NOT_OF_FEED = (
    *("sign of the activation", "comparison for the activation", "maximum over an axis"),
    *("bias multiplied", "normalised inside", "first matrix used twice", "matrices exchanged"),
    *("hidden layer returned", "number multiplied"),
)
_NOT_OF_NORM = (
    *("epsilon as a floor", "mean added", "mean subtracted last", "median for the mean"),
    *("variance as a difference", "range for the deviation", "mean absolute deviation"),
    *("gain or bias used twice", "bias not added", "gain not multiplied", "keepdims forgotten"),
    *("squares overflow in half precision", "axis 1 of a batch", "epsilon ignored"),
    *("sign of the difference", "largest number for the mean", "another root of the variance"),
    *("normalised twice", "epsilon subtracted", "not normalised"),
)
"""What goes wrong inside of the pieces and is looked for in a layer too, or is not."""


def _of(piece: str, mistakes: tuple[Mistake, ...]) -> tuple[Mistake, ...]:
    """Return the mistakes of a piece with its name, in few ways: each makes many pairs."""
    return tuple(
        replace(
            m,
            name=f"{piece}: {m.name}",
            message=f"In your {piece}: {_went_on(m.message)}",
            ways=m.ways[:4],
        )
        for m in mistakes
    )


def _went_on(sentence: str) -> str:
    """Return a sentence as it goes on after a colon; a name such as W_1 stays."""
    is_word = sentence[1] == " " or sentence[1].islower()
    return (sentence[0].lower() if is_word else sentence[0]) + sentence[1:]


_PIECE_MISTAKES = (
    Mistake(
        "multi-head attention: biases forgotten",
        "In your multi-head attention: You multiply by the matrices and add no biases. b_Q, b_K, "
        "b_V and b_O belong to them.",
        ({"bias": np.zeros_like},),
    ),
    *_of("multi-head attention", only(MULTI_HEAD_ATTENTION.mistakes, *_OF_HEADS)),
    *_of("feed-forward network", without(FEED_MISTAKES, *_NOT_OF_FEED)),
    *_of("layer normalisation", without(NORM_MISTAKES, *_NOT_OF_NORM)),
)


# What the two checks have in common.


def _varied(weights: Any) -> Any:
    """Return the same structure with normal numbers everywhere, in gains and biases too."""
    return weights.with_arrays(
        {
            name: draw(40 + i, *x.shape) / np.sqrt(x.shape[0]) + name.endswith("gain")
            for i, (name, x) in enumerate(weights.arrays().items())
        }
    )


def in_both_orders(
    kind: Any, *sizes: tuple, batch: tuple[int, ...] = (), dtype: str = "float64", **options: Any
) -> tuple[Case, ...]:
    """Return cases in pre-norm and in post-norm, of one or two lengths, d_model, heads, d_ff."""
    cases = []
    for *lengths, d_model, n_heads, d_ff in sizes:
        for norm in ("pre", "post"):
            weights = _varied(kind.init(0, d_model, n_heads, d_ff, norm=norm)).to(dtype=dtype)
            arrays = {
                name: draw(35 + i, *batch, lengths[i], d_model).astype(dtype)
                for i, name in enumerate(("x", "memory")[: len(lengths)])
            }
            about = f", {n_heads} heads, {norm}-norm"
            cases.append(Case({**arrays, "weights": weights}, options, about))
    return tuple(cases)


def of_layers(name: str, masks: tuple[str, ...], own: tuple[Mistake, ...], **fields: Any) -> Check:
    """Return the check of a layer with some masks and some mistakes of its own."""
    inputs = ("x", "memory")[: len(masks)]
    parameters = (*inputs, "weights")
    options: dict[str, tuple] = dict.fromkeys(masks, (None, ()))
    return Check(
        name=name,
        parameters=parameters,
        reference=getattr(attnbook, name),
        steps=TEXT.steps,
        mistakes=(*TEXT.mistakes, *own, *_PIECE_MISTAKES),
        options=masks,
        remarked_options=masks,
        adapt=lambda function: with_options(function, parameters, options),
        **fields,
    )


def run_in_order(check: Check, norm: str | None, f: Callable, time_limit: float) -> Report:
    """Run the check on the cases of one norm order, or of both."""
    if norm not in (None, "pre", "post"):
        raise ValueError(f"norm must be one of pre, post, got {norm!r}")
    stages = (
        replace(stage, cases=tuple(c for c in stage.cases if c.arguments["weights"].norm == norm))
        for stage in check.stages
    )
    if norm is not None:
        check = replace(check, stages=tuple(stages))
    return run_in_modes(check, f, time_limit)
