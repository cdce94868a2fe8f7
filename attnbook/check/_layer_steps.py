"""A layer of the transformer in steps, each of which can be swapped for a wrong one.

The models of the mistakes of encoder and decoder layers are computed from these.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import attnbook
from attnbook.check import _recipes as r
from attnbook.check._split_heads import heads_of, joined


@dataclass(frozen=True)
class Part:
    """One sublayer: its name, what it computes, and the gain and bias of its normalisation.

    `apply` is given its input, and the same before a normalisation.
    """

    name: str
    apply: Callable
    norm: Any


def normalize(x, weights):
    return attnbook.layer_norm(x, weights.gain, weights.bias, epsilon=weights.epsilon)


def attend(query, key, value, weights, mask):
    return attnbook.multi_head_attention(query, key, value, weights, mask)


def attend_to_target(steps, x, raw, memory, weights, mask, memory_mask):
    return steps.attend(x, x, x, weights.self_attention, mask)


def attend_to_memory(steps, x, raw, memory, weights, mask, memory_mask):
    return steps.attend(x, memory, memory, weights.cross_attention, memory_mask)


def add(x, part, order, norm, start):
    """Return the residual connection around one sublayer; `start` is the input of the layer."""
    if order == "pre":
        return x + part.apply(norm(x, part.norm), x)
    return norm(x + part.apply(x, x), part.norm)


@dataclass(frozen=True)
class Steps:
    """A layer, step by step; a mistake replaces one step."""

    norm: Callable = normalize  # x, its weights
    attend: Callable = attend  # query, key, value, its weights, mask
    to_target: Callable = attend_to_target  # itself, x, x before its norm, *given
    to_memory: Callable = attend_to_memory
    feed: Callable = attnbook.feed_forward  # x, its weights
    add: Callable = add
    order: Callable = lambda norm: norm  # of "pre" or "post"
    arrange: Callable = lambda parts: parts
    see: Callable = lambda mask: mask

    def encode(self, x, weights, mask=None):
        return self._run(x, None, weights, mask, None)

    def decode(self, x, memory, weights, mask=None, memory_mask=None):
        return self._run(x, memory, weights, mask, memory_mask)

    def _run(self, x, memory, w, mask, memory_mask):
        given = (memory, w, self._seen(mask), self._seen(memory_mask))
        parts = [
            Part("self", lambda *y: self.to_target(self, *y, *given), w.self_attention_norm),
            Part("feed", lambda y, raw: self.feed(y, w.feed_forward), w.feed_forward_norm),
        ]
        if memory is not None:
            to_memory = partial(self.to_memory, self)
            cross = Part("cross", lambda *y: to_memory(*y, *given), w.cross_attention_norm)
            parts.insert(1, cross)
        start = x
        for part in self.arrange(parts):
            x = self.add(x, part, self.order(w.norm), self.norm, start)
        return x

    def _seen(self, mask):
        return None if mask is None else self.see(mask)


def swap(**steps: Callable) -> Steps:
    """Return the right layer with some steps replaced."""
    return replace(Steps(), **steps)


# Wrong residual connections. Each takes the place of `add`.


def only(names: tuple[str, ...], wrong: Callable) -> Callable:
    """Return the residual that is `wrong` around the parts of these names."""
    return lambda x, part, *rest: (wrong if part.name in names else add)(x, part, *rest)


def no_residual(x, part, order, norm, start):
    if order == "pre":
        return part.apply(norm(x, part.norm), x)
    return norm(part.apply(x, x), part.norm)


def from_normalized(x, part, order, norm, start):
    if order == "post":
        return add(x, part, order, norm, start)
    y = norm(x, part.norm)
    return y + part.apply(y, x)


def norm_inside(x, part, order, norm, start):
    """Normalise what the sublayer returns, before it is added."""
    return x + norm(part.apply(x, x), part.norm)


def norm_inside_of_post(x, part, order, norm, start):
    return (norm_inside if order == "post" else add)(x, part, order, norm, start)


def norm_on_both_sides(x, part, order, norm, start):
    return norm(x + part.apply(norm(x, part.norm), x), part.norm)


def norm_on_both_sides_of(wanted: str) -> Callable:
    return lambda x, part, order, norm, start: (norm_on_both_sides if order == wanted else add)(
        x, part, order, norm, start
    )


def no_norm(x, part, order, norm, start):
    return x + part.apply(x, x)


def input_of_layer_read(x, part, order, norm, start):
    """Run the sublayers side by side."""
    if order == "pre":
        return x + part.apply(norm(start, part.norm), start)
    return norm(x + part.apply(start, start), part.norm)


def input_of_layer_added(x, part, order, norm, start):
    if order == "pre":
        return start + part.apply(norm(x, part.norm), x)
    return norm(start + part.apply(x, x), part.norm)


# Wrong arrangements of the parts.


def without(name: str) -> Callable:
    return lambda parts: [part for part in parts if part.name != name]


def in_order(*names: str) -> Callable:
    return lambda parts: sorted(parts, key=lambda part: names.index(part.name))


def norms_of(*indices: int) -> Callable:
    """Give part i the normalisation of part indices[i]."""
    return lambda parts: [
        replace(part, norm=parts[i].norm) for part, i in zip(parts, indices, strict=True)
    ]


# Wrong pieces.


def unbiased_norm(x, weights):
    y = x - np.mean(x, axis=-1, keepdims=True)
    deviation = np.sqrt(np.var(x, axis=-1, ddof=1, keepdims=True) + weights.epsilon)
    return weights.gain * y / deviation + weights.bias


def unbiased_norm_outside(x, weights):
    y = x - np.mean(x, axis=-1, keepdims=True)
    deviation = np.std(x, axis=-1, ddof=1, keepdims=True) + weights.epsilon
    return weights.gain * y / deviation + weights.bias


def norm_over_sequence(x, weights):
    y = x - np.mean(x, axis=-2, keepdims=True)
    deviation = np.sqrt(np.var(x, axis=-2, keepdims=True) + weights.epsilon)
    return weights.gain * y / deviation + weights.bias


def norm_without_gain(x, weights):
    return attnbook.layer_norm(x, epsilon=weights.epsilon)


WRONG_NORMS = (unbiased_norm, unbiased_norm_outside, norm_over_sequence, norm_without_gain)


def _heads(weights, query, key, value, biased=True):
    """Return queries, keys and values of every head."""
    pairs = ((query, "Q"), (key, "K"), (value, "V"))
    for x, name in pairs:
        projected = x @ getattr(weights, f"W_{name}")
        bias = getattr(weights, f"b_{name}")
        yield heads_of(projected + bias if biased else projected, weights.n_heads)


def attention_by(
    recipe: r.Recipe = r.RIGHT, join: Callable = joined, *, biased: bool = True, out: bool = True
) -> Callable:
    """Return multi-head attention by another recipe, or with a step left out."""

    def wrong(query, key, value, weights, mask):
        heads = _heads(weights, query, key, value, biased)
        output = join(recipe.output(*heads, mask=mask))
        if not out:
            return output
        return output @ weights.W_O + (weights.b_O if biased else 0)

    return wrong


def one_big_head(query, key, value, weights, mask):
    single = replace(weights, n_heads=1, n_kv_heads=1)
    return attnbook.multi_head_attention(query, key, value, single, mask)


def _bare_join(heads):
    *leading, h, n, d = heads.shape
    return heads.reshape(*leading, n, h * d)


WRONG_ATTENTIONS = (
    attention_by(r.swap(factor=lambda query, key, scale: 1.0)),
    attention_by(
        r.swap(factor=lambda query, key, scale: 1 / math.sqrt(query.shape[-1] * query.shape[-3]))
    ),
    attention_by(biased=False),
    attention_by(out=False),
    attention_by(join=_bare_join),
    one_big_head,
)


def without_activation(x, weights):
    return (x @ weights.W_1 + weights.b_1) @ weights.W_2 + weights.b_2


def activation_last(x, weights):
    return np.maximum(without_activation(x, weights), 0)


def feed_without_biases(x, weights):
    return np.maximum(x @ weights.W_1, 0) @ weights.W_2


def always_gelu(x, weights):
    return attnbook.gelu(x @ weights.W_1 + weights.b_1) @ weights.W_2 + weights.b_2


WRONG_FEEDS = (activation_last, feed_without_biases, always_gelu)
