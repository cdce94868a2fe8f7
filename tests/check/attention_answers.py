"""Answers that readers might hand in, right and wrong, each written as a reader would.

Most run on NumPy and PyTorch alike, so that one answer can be tested in both. A wrong answer stands
under the name of the mistake that its check must find; several under one name are told apart by a
number, as in "no scale 2".
"""

import math
import re

import numpy as np
from array_api_compat import array_namespace, device


def exp(x):
    return array_namespace(x).exp(x)


def total(x, axis=-1, keepdims=True):
    return array_namespace(x).sum(x, axis=axis, keepdims=keepdims)


def top(x, axis=-1, keepdims=True):
    return array_namespace(x).max(x, axis=axis, keepdims=keepdims)


def dot(x, y):
    return array_namespace(x).tensordot(x, y, axes=([-1], [-2]))


def root_of_sum(x):
    return array_namespace(x).sqrt(total(x * x))


def sm(x, axis=-1):
    e = exp(x - top(x, axis))
    return e / total(e, axis)


def hidden(scores, mask, number=-math.inf):
    xp = array_namespace(scores)
    return xp.where(mask, scores, xp.full_like(scores, number))


def as_numbers(mask, like):
    return array_namespace(like).astype(mask, like.dtype)


def one_hot(x):
    xp = array_namespace(x)
    places = xp.arange(x.shape[-1], device=device(x))
    return as_numbers(places == xp.argmax(x, axis=-1, keepdims=True), x)


def right_softmax(x, axis=-1):
    return sm(x, axis)


def naive(x, axis=-1):
    return exp(x) / total(exp(x), axis)


def global_maximum(x):
    e = exp(x - array_namespace(x).max(x))
    return e / total(e)


def right_scores(q, k):
    return (q @ k.mT) / q.shape[-1] ** 0.5


def safe_softmax(scores):
    """Return the softmax over keys, zeros for a row of −∞ alone."""
    xp = array_namespace(scores)
    highest = top(scores)
    e = exp(scores - xp.where(highest == -math.inf, xp.zeros_like(highest), highest))
    z = total(e)
    return e / xp.where(z == 0, xp.ones_like(z), z)


def right_weights(q, k, mask=None, bias=None, scale=None):
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias
    return safe_softmax(scores if mask is None else hidden(scores, mask))


def shifted(x, shift):
    return exp(x - shift) / total(exp(x - shift))


SOFTMAX = {
    "wrong axis": lambda x: sm(x, 0),
    "wrong axis 2": lambda x: naive(x, -2),
    "one sum for all": lambda x: exp(x) / array_namespace(x).sum(exp(x)),
    "not normalised": exp,
    "not normalised 2": lambda x: exp(x - top(x)),
    "length instead of sum": lambda x: exp(x) / root_of_sum(exp(x)),
    "length instead of sum 2": lambda x: x / root_of_sum(x),
    "no exponential": lambda x: x / total(x),
    "squares or absolute values": lambda x: x * x / total(x * x),
    "squares or absolute values 2": lambda x: abs(x) / total(abs(x)),
    "logarithm returned": lambda x: x - array_namespace(x).log(total(exp(x))),
    "base 2": lambda x: 2**x / total(2**x),
    "sign of the scores": lambda x: exp(-x) / total(exp(-x)),
    "softmax twice": lambda x: sm(sm(x)),
    "hard maximum": one_hot,
    "sigmoid": lambda x: exp(x) / (1 + exp(x)),
    "keepdims forgotten": lambda x: exp(x - top(x)) / total(exp(x - top(x)), keepdims=False),
    "keepdims forgotten 2": lambda x: (
        exp(x - top(x, keepdims=False)) / total(exp(x - top(x, keepdims=False)))
    ),
    "keepdims forgotten 3": lambda x: (
        exp(x - top(x, keepdims=False)) / total(exp(x - top(x, keepdims=False)), keepdims=False)
    ),
    "keepdims forgotten 4": lambda x: exp(x) / total(exp(x), keepdims=False),
    "no maximum": naive,
    "maximum of the whole array": global_maximum,
    "not the maximum": lambda x: shifted(x, -top(-x)),
    "not the maximum 2": lambda x: shifted(x, total(x) / x.shape[-1]),
    "not the maximum 3": lambda x: shifted(x, x[..., :1]),
    "not the maximum 4": lambda x: shifted(x, np.median(np.asarray(x), axis=-1, keepdims=True)),
    "axis 1 of a batch": lambda x: sm(x, 1),
    "axis ignored": lambda x, axis=-1: sm(x),
}


def _with_scale(factor):
    return lambda q, k: sm(q @ k.mT * factor(q, k))


def _of_scores(function):
    return lambda q, k: function(right_scores(q, k))


def _masked(function):
    return lambda q, k, mask=None: (
        right_weights(q, k) if mask is None else function(right_scores(q, k), mask)
    )


def _unit(x):
    return x / root_of_sum(x)


WEIGHTS = {
    "no scale": _with_scale(lambda q, k: 1),
    "scale by d_k": _with_scale(lambda q, k: 1 / k.shape[-1]),
    "scale multiplied": _with_scale(lambda q, k: k.shape[-1] ** 0.5),
    "scale by √n_k": _with_scale(lambda q, k: len(k) ** -0.5),
    "scale by √n_q": _with_scale(lambda q, k: len(q) ** -0.5),
    "scale after the softmax": lambda q, k: sm(q @ k.mT) / math.sqrt(q.shape[-1]),
    "softmax over the query axis": _of_scores(lambda s: sm(s, 0)),
    "no softmax": right_scores,
    "key not transposed": lambda q, k: sm(q @ k / math.sqrt(q.shape[-1])),
    "cosine similarity": lambda q, k: sm(_unit(q) @ _unit(k).mT),
    "cosine similarity 2": lambda q, k: sm(right_scores(_unit(q), _unit(k))),
    "not normalised": _of_scores(exp),
    "not normalised 2": _of_scores(lambda s: exp(s - top(s))),
    "no exponential": _of_scores(lambda s: s / total(s)),
    "one sum for all": _of_scores(lambda s: exp(s) / array_namespace(s).sum(exp(s))),
    "sign of the scores": _of_scores(lambda s: sm(-s)),
    "softmax twice": _of_scores(lambda s: sm(sm(s))),
    "logarithm returned": _of_scores(lambda s: array_namespace(s).log(sm(s))),
    "sigmoid": _of_scores(lambda s: 1 / (1 + exp(-s))),
    "hard maximum": _of_scores(one_hot),
    "scores ignored": _of_scores(lambda s: sm(s * 0)),
    "keepdims forgotten": _of_scores(SOFTMAX["keepdims forgotten"]),
    "keepdims forgotten 2": _of_scores(SOFTMAX["keepdims forgotten 2"]),
    "keepdims forgotten 3": _of_scores(SOFTMAX["keepdims forgotten 3"]),
    "keepdims forgotten 4": _of_scores(SOFTMAX["keepdims forgotten 4"]),
    "no maximum": _of_scores(naive),
    "maximum of the whole array": _of_scores(global_maximum),
    "not the maximum": _of_scores(SOFTMAX["not the maximum"]),
    "not the maximum 2": _of_scores(SOFTMAX["not the maximum 2"]),
    "all axes reversed": lambda q, k: sm(q @ k.T / math.sqrt(q.shape[-1])),
    "all axes reversed 2": lambda q, k: sm(q @ k.T / math.sqrt(q.shape[1])),
    "all axes reversed 3": lambda q, k: sm(q @ k.T / math.sqrt(k.shape[1]), 1),
    "all axes reversed 4": lambda q, k: sm(q @ k.T / math.sqrt(k.shape[1])),
    "softmax over axis 1 of a batch": _of_scores(lambda s: sm(s, 1)),
    "softmax over axis 1 of a batch 2": lambda q, k: sm(q @ k.mT / math.sqrt(q.shape[1]), 1),
    "width from shape[1]": _with_scale(lambda q, k: k.shape[1] ** -0.5),
    "width from shape[1] 2": _with_scale(lambda q, k: q.shape[1] ** -0.5),
    "mask inverted": _masked(lambda s, mask: safe_softmax(hidden(s, mask == 0))),
    "mask ignored": _masked(lambda s, mask: sm(s)),
    "mask multiplies the scores": _masked(lambda s, mask: sm(s * mask)),
    "mask added to the scores": _masked(lambda s, mask: sm(s + as_numbers(mask, s))),
    "mask transposed": _masked(lambda s, mask: safe_softmax(hidden(s, mask.mT))),
    "mask after the softmax": _masked(lambda s, mask: sm(s) * mask),
    "mask after the exponential": _masked(
        lambda s, mask: sm(s) * mask / total(sm(s) * as_numbers(mask, s))
    ),
    "mask with a large negative number": _masked(lambda s, mask: sm(hidden(s, mask, -1e9))),
    "mask with a large negative number 2": _masked(lambda s, mask: sm(hidden(s, mask, -10000))),
    "mask with a large negative number 3": _masked(
        lambda s, mask: sm(s - 1e9 * (1 - as_numbers(mask, s)))
    ),
    "mask with a large negative number 4": _masked(
        lambda s, mask: sm(s - 1e6 * (1 - as_numbers(mask, s)))
    ),
    "mask with a large negative number 5": _masked(
        lambda s, mask: sm(s - 1e4 * (1 - as_numbers(mask, s)))
    ),
    "empty row NaN": _masked(lambda s, mask: sm(hidden(s, mask))),
    "empty row uniform": _masked(
        lambda s, mask: sm(hidden(s, mask, array_namespace(s).finfo(s.dtype).min))
    ),
    "empty row uniform 2": _masked(lambda s, mask: sm(hidden(s, mask, -1e20))),
    "scale ignored": lambda q, k, scale=None: right_weights(q, k),
    "scale on top of 1/√d_k": lambda q, k, scale=1: sm(right_scores(q, k) * scale),
    "scale divides": lambda q, k, scale=None: sm(q @ k.mT / (scale or math.sqrt(q.shape[-1]))),
    "bias ignored": lambda q, k, bias=None: right_weights(q, k),
    "bias before the scale": lambda q, k, bias=0: sm((q @ k.mT + bias) / math.sqrt(q.shape[-1])),
    "bias subtracted": lambda q, k, bias=0: sm(right_scores(q, k) - bias),
    "bias multiplies the scores": lambda q, k, bias=1: sm(right_scores(q, k) * bias),
    "bias after the softmax": lambda q, k, bias=0: sm(right_scores(q, k)) + bias,
}
"""Wrong weights, which are wrong in attention, in a head and in a gradient as well."""

WEIGHTS_ALONE = {
    "np.dot on a batch": lambda q, k: sm(dot(q, k.mT) / math.sqrt(q.shape[-1])),
    "transposed": lambda q, k: right_weights(k, q),
    "transposed 2": lambda q, k: right_weights(q, k).mT,
}


def mixed(weights):
    """Return attention with these weights, taking the same options."""

    def plain(q, k, v):
        return weights(q, k) @ v

    def masked(q, k, v, mask=None):
        return weights(q, k, mask=mask) @ v

    def scaled(q, k, v, scale=None):
        return (weights(q, k) if scale is None else weights(q, k, scale=scale)) @ v

    def biased(q, k, v, bias=None):
        return (weights(q, k) if bias is None else weights(q, k, bias=bias)) @ v

    taken = weights.__code__.co_varnames[: weights.__code__.co_argcount]
    for name, function in {"mask": masked, "scale": scaled, "bias": biased}.items():
        if name in taken:
            return function
    return plain


RENAMED = {"scores ignored": "mean of the values", "hard maximum": "hard look-up"}

ATTENTION = {RENAMED.get(name, name): mixed(answer) for name, answer in WEIGHTS.items()} | {
    "np.dot on a batch": lambda q, k, v: dot(right_weights(q, k), v),
    "np.dot on a batch 2": lambda q, k, v: sm(dot(q, k.mT) / math.sqrt(q.shape[-1])) @ v,
    "np.dot on a batch 3": lambda q, k, v: dot(sm(dot(q, k.mT) / math.sqrt(q.shape[-1])), v),
    "weights returned": lambda q, k, v: right_weights(q, k),
    "values not mixed": lambda q, k, v: v * 1,
    "query and key swapped": lambda q, k, v: right_weights(k, q) @ v,
    "weights transposed": lambda q, k, v: right_weights(q, k).mT @ v,
    "elementwise product": lambda q, k, v: right_weights(q, k) * v,
    "values transposed": lambda q, k, v: right_weights(q, k) @ v.mT,
    "value used as key": lambda q, k, v: right_weights(q, v) @ v,
    "key used as value": lambda q, k, v: right_weights(q, k) @ k,
    "query compared with itself": lambda q, k, v: right_weights(q, q) @ v,
    "scale by √d_v": lambda q, k, v: sm(q @ k.mT / math.sqrt(v.shape[-1])) @ v,
}


def right_attention(q, k, v, mask=None):
    return right_weights(q, k, mask) @ v


def head(inner):
    """Return the learned head around an attention."""
    if inner.__code__.co_argcount == 4 and "mask" in inner.__code__.co_varnames:
        return lambda x, y, z, A, B, C, mask=None: inner(x @ A, y @ B, z @ C, mask=mask)
    return lambda x, y, z, A, B, C: inner(x @ A, y @ B, z @ C)


def _head_scaled(width):
    return lambda x, y, z, A, B, C: sm((x @ A) @ (y @ B).mT / math.sqrt(width(x, y, C))) @ (z @ C)


att = right_attention
SINGLE_HEAD = {
    name: head(mixed(answer))
    for name, answer in WEIGHTS.items()
    if not {"scale", "bias"} & set(answer.__code__.co_varnames)
} | {
    "values not projected": lambda x, y, z, A, B, C: att(x @ A, y @ B, z),
    "keys not projected": lambda x, y, z, A, B, C: att(x @ A, y, z @ C),
    "queries not projected": lambda x, y, z, A, B, C: att(x, y @ B, z @ C),
    "nothing projected": lambda x, y, z, A, B, C: att(x, y, z),
    "W transposed": lambda x, y, z, A, B, C: att(x @ A.T, y @ B.T, z @ C.T),
    "W transposed 2": lambda x, y, z, A, B, C: att(x @ A.T, y @ B, z @ C),
    "W transposed 3": lambda x, y, z, A, B, C: att(x @ A, y @ B.T, z @ C),
    "W transposed 4": lambda x, y, z, A, B, C: att(x @ A, y @ B, z @ C.T),
    "W_Q used for the keys": lambda x, y, z, A, B, C: att(x @ A, y @ A, z @ C),
    "W_K used for the queries": lambda x, y, z, A, B, C: att(x @ B, y @ B, z @ C),
    "W_Q and W_K swapped": lambda x, y, z, A, B, C: att(x @ B, y @ A, z @ C),
    "W_K used for the values": lambda x, y, z, A, B, C: att(x @ A, y @ B, z @ B),
    "scale by d_model": _head_scaled(lambda x, y, C: x.shape[-1]),
    "scale by d_model 2": _head_scaled(lambda x, y, C: y.shape[-1]),
    "scale by √d_v": _head_scaled(lambda x, y, C: C.shape[-1]),
    "self-attention only": lambda x, y, z, A, B, C: att(x @ A, x @ B, x @ C),
    "self-attention only 2": lambda x, y, z, A, B, C: att(x @ A, x @ B, z @ C),
    "self-attention only 3": lambda x, y, z, A, B, C: att(x @ A, y @ B, x @ C),
    "values from the key": lambda x, y, z, A, B, C: att(x @ A, y @ B, y @ C),
    "W_O forgotten": lambda x, y, z, A, B, C, W_O=None: att(x @ A, y @ B, z @ C),
    "W_O transposed": lambda x, y, z, A, B, C, W_O=None: (
        att(x @ A, y @ B, z @ C) if W_O is None else att(x @ A, y @ B, z @ C) @ W_O.T
    ),
}


def gradients(q, k, v, g, weights=right_weights, scale=None):
    """Return the gradients by the steps of the backward pass."""
    s = q.shape[-1] ** -0.5 if scale is None else scale
    a = weights(q, k)
    da = g @ v.mT
    ds = a * (da - total(a * da)) * s
    return ds @ k, ds.mT @ q, a.mT @ g


def _through(jacobian):
    def answer(q, k, v, g):
        a = right_weights(q, k)
        ds = jacobian(a, g @ v.mT) / math.sqrt(q.shape[-1])
        return ds @ k, ds.mT @ q, a.mT @ g

    return answer


def _ended(end):
    """Return gradients whose last lines are `end(ds, a, q, k, v, g)`, with a scaled ds."""

    def answer(q, k, v, g):
        a = right_weights(q, k)
        da = g @ v.mT
        ds = a * (da - total(a * da)) / math.sqrt(q.shape[-1])
        return end(ds, a, q, k, v, g)

    return answer


def _picked(*order):
    return lambda q, k, v, g: tuple(gradients(q, k, v, g)[i] for i in order)


def _times(*factors):
    return lambda q, k, v, g: tuple(
        x * f(q.shape[-1]) for x, f in zip(gradients(q, k, v, g), factors, strict=True)
    )


def _value_not_transposed(q, k, v, g):
    a = right_weights(q, k)
    ds = a * (g @ v - total(a * (g @ v))) / math.sqrt(q.shape[-1])
    return ds @ k, ds.mT @ q, a.mT @ g


def _masked_gradients(name):
    return lambda q, k, v, g, mask=None: gradients(
        q, k, v, g, lambda q, k: WEIGHTS[name](q, k, mask)
    )


def _gradients_of_matrices(weights):
    def answer(q, k, v, g):
        a = weights(q, k)
        da = g @ v.T
        ds = a * (da - total(a * da)) / math.sqrt(q.shape[-1])
        return ds @ k, ds.T @ q, a.T @ g

    return answer


def _same(d):
    return 1


def jacobian_and_value(q, k, v, g):
    """Leave out the second term of the Jacobian, and scale the gradient of the value."""
    a, s = right_weights(q, k), q.shape[-1] ** -0.5
    ds = a * (g @ v.mT) * s
    return ds @ k, ds.mT @ q, a.mT @ g * s


ATTENTION_VJP = {
    "no scale in the gradients": _times(math.sqrt, math.sqrt, _same),
    "no scale in the gradients 2": _times(math.sqrt, _same, _same),
    "no scale in the gradients 3": _times(_same, math.sqrt, _same),
    "no scale": lambda q, k, v, g: gradients(q, k, v, g, WEIGHTS["no scale"], 1),
    "scale forgotten in the weights": lambda *x: gradients(*x, WEIGHTS["no scale"]),
    "scale twice": _times(lambda d: d**-0.5, lambda d: d**-0.5, _same),
    "scale twice 2": _times(lambda d: d**-0.5, _same, _same),
    "scale twice 3": _times(_same, lambda d: d**-0.5, _same),
    "second term of the softmax Jacobian": _through(lambda a, da: a * da),
    "diagonal of the softmax Jacobian": _through(lambda a, da: a * da - a * a * da),
    "softmax skipped": _through(lambda a, da: da),
    "sum over the wrong axis": _through(lambda a, da: a * (da - total(a * da, 0))),
    "sum over the wrong axis 2": _through(lambda a, da: a * (da - array_namespace(a).sum(a * da))),
    "keepdims forgotten": _through(lambda a, da: a * (da - total(a * da, keepdims=False))),
    "sum without the weights": _through(lambda a, da: a * (da - total(da))),
    "sum without the weights 2": _through(lambda a, da: a * (da - total(da) / da.shape[-1])),
    "sign": _through(lambda a, da: a * (total(a * da) - da)),
    "sign of the second term": _through(lambda a, da: a * (da + total(a * da))),
    "grad_query and grad_key swapped": _picked(1, 0, 2),
    "order of the gradients": _picked(2, 1, 0),
    "order of the gradients 2": _picked(2, 0, 1),
    "order of the gradients 3": _picked(0, 2, 1),
    "order of the gradients 4": _picked(1, 2, 0),
    "weights not transposed in grad_value": _ended(
        lambda ds, a, q, k, v, g: (ds @ k, ds.mT @ q, a @ g)
    ),
    "scores not transposed in grad_key": _ended(
        lambda ds, a, q, k, v, g: (ds @ k, ds @ q, a.mT @ g)
    ),
    "scores transposed in grad_query": _ended(
        lambda ds, a, q, k, v, g: (ds.mT @ k, ds.mT @ q, a.mT @ g)
    ),
    "grad_query from the wrong factor": _ended(
        lambda ds, a, q, k, v, g: (ds @ v, ds.mT @ q, a.mT @ g)
    ),
    "grad_query from the wrong factor 2": _ended(
        lambda ds, a, q, k, v, g: (ds @ q, ds.mT @ q, a.mT @ g)
    ),
    "grad_key from the wrong factor": _ended(
        lambda ds, a, q, k, v, g: (ds @ k, ds.mT @ k, a.mT @ g)
    ),
    "grad_key from the wrong factor 2": _ended(
        lambda ds, a, q, k, v, g: (ds @ k, ds.mT @ v, a.mT @ g)
    ),
    "value not transposed": _value_not_transposed,
    "grad_output ignored": lambda q, k, v, g: gradients(q, k, v, g * 0 + 1),
    "scale by d_k": lambda q, k, v, g: gradients(
        q, k, v, g, WEIGHTS["scale by d_k"], 1 / q.shape[-1]
    ),
    "softmax over the query axis": lambda *x: gradients(*x, WEIGHTS["softmax over the query axis"]),
    "softmax twice": lambda *x: gradients(*x, WEIGHTS["softmax twice"]),
    "key not transposed": lambda *x: gradients(*x, WEIGHTS["key not transposed"]),
    "no maximum": lambda *x: gradients(*x, WEIGHTS["no maximum"]),
    "maximum of the whole array": lambda *x: gradients(*x, WEIGHTS["maximum of the whole array"]),
    "not the maximum": lambda *x: gradients(*x, WEIGHTS["not the maximum"]),
    "all axes reversed": _gradients_of_matrices(WEIGHTS["all axes reversed"]),
    "all axes reversed 2": _gradients_of_matrices(WEIGHTS["all axes reversed 2"]),
    "all axes reversed 3": _gradients_of_matrices(right_weights),
    "width from shape[1]": lambda q, k, v, g: gradients(
        q, k, v, g, WEIGHTS["width from shape[1]"], k.shape[1] ** -0.5
    ),
    "softmax over axis 1 of a batch": lambda *x: gradients(
        *x, WEIGHTS["softmax over axis 1 of a batch"]
    ),
    "mask ignored": lambda q, k, v, g, mask=None: gradients(q, k, v, g),
    "mask inverted": _masked_gradients("mask inverted"),
    "mask with a large negative number": _masked_gradients("mask with a large negative number"),
    "empty row NaN": _masked_gradients("empty row NaN"),
    "empty row uniform": _masked_gradients("empty row uniform"),
    "scale ignored": lambda q, k, v, g, scale=None: gradients(q, k, v, g),
    "bias ignored": lambda q, k, v, g, bias=None: gradients(q, k, v, g),
}


def right_split(x, h):
    return x.reshape(*x.shape[:-1], h, x.shape[-1] // h).swapaxes(-2, -3)


def right_join(x):
    return x.swapaxes(-2, -3).reshape(*x.shape[:-3], x.shape[-2], -1)


def cut_in_bands(x, h):
    """Give head i every h-th feature."""
    return x.reshape(*x.shape[:-1], -1, h).swapaxes(-1, -2).swapaxes(-2, -3)


def join_bands(x):
    return x.swapaxes(-2, -3).swapaxes(-1, -2).reshape(*x.shape[:-3], x.shape[-2], -1)


def reshaped_split(x, h):
    return x.reshape(*x.shape[:-2], h, x.shape[-2], -1)


def reshaped_join(x):
    return x.reshape(*x.shape[:-3], x.shape[-2], -1)


def unswapped_split(x, h):
    return x.reshape(*x.shape[:-1], h, -1)


def reverse(x):
    return array_namespace(x).flip(x, axis=-3)


def stack(xs, axis):
    return array_namespace(xs[0]).stack(xs, axis=axis)


def columns(x, h, i):
    d = x.shape[-1] // h
    return x[..., i * d : (i + 1) * d]


SPLIT_HEADS = {
    "list of heads": lambda x, h: [columns(x, h, i) for i in range(h)],
    "list of heads 2": lambda x, h: tuple(right_split(x, h)),
    "bare reshape": lambda x, h: x.reshape(*x.shape[:-2], h, x.shape[-2], x.shape[-1] // h),
    "axes not exchanged": unswapped_split,
    "axes not exchanged 2": lambda x, h: stack([columns(x, h, i) for i in range(h)], -2),
    "interleaved features": cut_in_bands,
    "interleaved features 2": lambda x, h: stack([x[..., i::h] for i in range(h)], -3),
    "interleaved features 3": lambda x, h: x.reshape(*x.shape[:-1], -1, h).swapaxes(-1, -2),
    "interleaved features 4": lambda x, h: x.reshape(*x.shape[:-1], -1, h),
    "heads last": lambda x, h: stack([columns(x, h, i) for i in range(h)], -1),
    "features before tokens": lambda x, h: right_split(x, h).mT,
    "axes reversed": lambda x, h: x.reshape(*x.shape[:-1], h, x.shape[-1] // h).T,
    "heads in reverse": lambda x, h: stack([columns(x, h, i) for i in reversed(range(h))], -3),
    "cut along the sequence": lambda x, h: x.reshape(h, len(x) // h, x.shape[-1]),
    "cut along the sequence 2": lambda x, h: stack(
        [x[..., i * x.shape[-2] // h : (i + 1) * x.shape[-2] // h, :] for i in range(h)], -3
    ),
    "number and width swapped": lambda x, h: x.reshape(*x.shape[:-1], -1, h).swapaxes(-2, -3),
    "number and width swapped 2": lambda x, h: stack(
        [x[..., i : i + h] for i in range(0, x.shape[-1], h)], -3
    ),
    "not split": lambda x, h: x,
    "not split 2": lambda x, h: x[..., None, :, :],
    "axes counted from the front": lambda x, h: x.reshape(*x.shape[:-1], h, -1).swapaxes(0, 1),
    "batch in the sequence": lambda x, h: x.reshape(-1, h, x.shape[-1] // h).swapaxes(0, 1),
}


def _triangle(compare):
    """Return the mask of a reader who compares the places of queries and keys."""

    def answer(n_q, n_k):
        i, j = np.arange(n_q)[:, None], np.arange(n_k)
        return np.broadcast_to(compare(i, j, n_k - n_q), (n_q, n_k))

    return answer


def right_causal(n_q, n_k):
    return np.tri(n_q, n_k, n_k - n_q, dtype=bool)


CAUSAL_MASK = {
    "additive mask": lambda n_q, n_k: np.where(right_causal(n_q, n_k), 0, -np.inf),
    "additive mask 2": lambda n_q, n_k: np.triu(np.full((n_q, n_k), -1e9), 1),
    "additive mask 3": lambda n: np.where(np.tri(n) == 0, np.finfo(np.float32).min, 0),
    "numbers for booleans": lambda n_q, n_k: np.tri(n_q, n_k, n_k - n_q),
    "numbers for booleans 2": lambda n_q, n_k: np.tri(n_q, n_k, dtype=int),
    "inverted": lambda n_q, n_k: ~right_causal(n_q, n_k),
    "inverted 2": _triangle(lambda i, j, s: j > i),
    "inverted 3": lambda n: np.triu(np.ones((n, n), dtype=bool), 1),
    "upper triangle": lambda n_q, n_k: np.triu(np.ones((n_q, n_k), dtype=bool)),
    "upper triangle 2": _triangle(lambda i, j, s: i + s <= j),
    "upper triangle 3": lambda n_q, n_k: np.triu(np.ones((n_q, n_k), dtype=bool), n_q - n_k),
    "own place hidden": _triangle(lambda i, j, s: j < i + s),
    "own place hidden 2": lambda n_q, n_k: np.tri(n_q, n_k, -1, dtype=bool),
    "next place visible": _triangle(lambda i, j, s: j <= i + s + 1),
    "next place visible 2": lambda n_q, n_k: np.tri(n_q, n_k, 1, dtype=bool),
    "everything visible": lambda n_q, n_k: np.ones((n_q, n_k), dtype=bool),
    "diagonal alone": lambda n_q, n_k: np.eye(n_q, n_k, dtype=bool),
    "diagonal alone 2": lambda n_q, n_k: np.eye(n_q, n_k, n_k - n_q, dtype=bool),
    "aligned to the first key": lambda n_q, n_k: np.tri(n_q, n_k, dtype=bool),
    "aligned to the first key 2": _triangle(lambda i, j, s: ~(j > i)),
    "offset never negative": lambda n_q, n_k: np.tri(n_q, n_k, max(n_k - n_q, 0), dtype=bool),
    "offset never negative 2": _triangle(lambda i, j, s: j <= i + abs(s) / 2 + s / 2),
    "offset with the wrong sign": lambda n_q, n_k: np.tri(n_q, n_k, n_q - n_k, dtype=bool),
    "shape transposed": lambda n_q, n_k: right_causal(n_k, n_q),
    "upper triangle 4": lambda n_q, n_k: right_causal(n_q, n_k).T,
    "upper triangle 5": lambda n_q, n_k: np.tri(n_q, n_k, dtype=bool).T,
    "shape transposed 2": lambda n_q, n_k: np.tri(n_k, n_q, dtype=bool),
    "square only": lambda n_q, n_k: np.tri(n_k, dtype=bool),
    "square only 2": lambda n_q, n_k: np.tri(n_q, dtype=bool),
}


def _weighed(function):
    """Return attention whose weights are `function` of the scores, hidden ones at −∞."""
    return lambda q, k, v, mask: function(hidden(right_scores(q, k), mask)) @ v


def _scored(function):
    return lambda q, k, v, mask: safe_softmax(hidden(function(q, k), mask)) @ v


def _hiding(function):
    return lambda q, k, v, mask: function(right_scores(q, k), mask) @ v


def _shifted_by_all(see, guard=0):
    """Return attention that multiplies exponentials by the mask, after the maximum of all keys."""

    def weights(s, mask):
        seen = see(s, mask)
        e = exp(seen - top(seen)) * as_numbers(mask, s)
        z = total(e)
        return e / (z + (z == 0) * guard)

    return _hiding(weights)


def _with_exp(shift):
    """Return the softmax of a reader who subtracts `shift` and guards only against empty rows."""

    def weights(s):
        e = exp(s - shift(s))
        z = total(e)
        return e / array_namespace(z).where(z == 0, array_namespace(z).ones_like(z), z)

    return weights


def _least_visible(s):
    xp = array_namespace(s)
    low = -top(-xp.where(s == -math.inf, xp.full_like(s, math.inf), s))
    return xp.where(low == math.inf, xp.zeros_like(low), low)


def _causally(aligned):
    """Return attention with a causal mask, aligned to the first key (0) or to the last (1)."""

    def answer(q, k, v, mask):
        xp, n_q, n_k = array_namespace(q), q.shape[-2], k.shape[-2]
        places = xp.arange(n_q, device=device(q))[:, None] + aligned * (n_k - n_q)
        return right_attention(q, k, v, xp.arange(n_k, device=device(q)) <= places)

    return answer


def _column(mask):
    return mask[:, None] if mask.ndim == 1 else mask.mT


def _one_row(mask):
    return mask.ndim == 1 or mask.shape[-2] == 1


MASKED_ATTENTION = {
    name: (lambda q, k, v, mask, name=name: WEIGHTS[name](q, k, mask) @ v)
    for name in WEIGHTS
    if re.match("mask|empty row", name)
    and name not in {"mask with a large negative number 2", "mask with a large negative number 5"}
} | {
    "np.dot on a batch": lambda q, k, v, mask: dot(right_weights(q, k, mask), v),
    "no scale": _scored(lambda q, k: q @ k.mT),
    "scale by d_k": _scored(lambda q, k: q @ k.mT / q.shape[-1]),
    "scale multiplied": _scored(lambda q, k: q @ k.mT * q.shape[-1] ** 0.5),
    "softmax over the query axis": _weighed(lambda s: sm(s, -2)),
    "key not transposed": _scored(lambda q, k: q @ k / q.shape[-1] ** 0.5),
    "softmax twice": lambda q, k, v, mask: sm(safe_softmax(hidden(right_scores(q, k), mask))) @ v,
    "sign of the scores": _scored(lambda q, k: -right_scores(q, k)),
    "hard look-up": _weighed(one_hot),
    "no maximum": _weighed(naive),
    "maximum of the whole array": _weighed(global_maximum),
    "not the maximum": _weighed(_with_exp(lambda s: s[..., :1] * 0 + _least_visible(s))),
    "all axes reversed": lambda q, k, v, mask: (
        safe_softmax(hidden(q @ k.T / q.shape[-1] ** 0.5, mask)) @ v
    ),
    "width from shape[1]": _scored(lambda q, k: q @ k.mT / k.shape[1] ** 0.5),
    "softmax over axis 1 of a batch": lambda q, k, v, mask: (
        sm_or_zeros(hidden(right_scores(q, k), mask), 1) @ v
    ),
    "weights returned": lambda q, k, v, mask: right_weights(q, k, mask),
    "key used as value": lambda q, k, v, mask: right_weights(q, k, mask) @ k,
    "mean of the visible values": _scored(lambda q, k: 0 * (q @ k.mT)),
    "first visible key alone": _hiding(lambda s, mask: one_hot(as_numbers(mask, s))),
    "score 0 taken for hidden": _hiding(lambda s, mask: safe_softmax(hidden(s, s * mask != 0))),
    "another mask": lambda q, k, v, mask: right_attention(
        q, k, v, array_namespace(q).tril(array_namespace(q).ones_like(mask))
    ),
    "another mask 2": _causally(0),
    "another mask 3": _causally(1),
    "empty row sees everything": lambda q, k, v, mask: right_attention(
        q, k, v, mask | (as_numbers(mask, v).sum(-1)[..., None] == 0)
    ),
    "0 times infinity": _hiding(lambda s, mask: sm(s + (1 - as_numbers(mask, s)) * -math.inf)),
    "mask with −10⁴": _hiding(lambda s, mask: sm(hidden(s, mask, -1e4))),
    "mask with −10⁴ 2": _hiding(lambda s, mask: sm(s - 1e4 * (1 - as_numbers(mask, s)))),
    "mask with −10⁴ 3": _hiding(lambda s, mask: sm(hidden(s, mask, -1000.0))),
    "hidden keys in the maximum": _shifted_by_all(lambda s, mask: s * as_numbers(mask, s)),
    "hidden keys in the maximum 2": _shifted_by_all(lambda s, mask: hidden(s, mask, 0.0), guard=1),
    "hidden keys in the maximum 3": _shifted_by_all(lambda s, mask: hidden(s, mask, -1e4)),
    "hidden keys in the maximum 4": _shifted_by_all(lambda s, mask: hidden(s, mask, -1e4), guard=1),
    "hidden keys in the maximum 5": _shifted_by_all(lambda s, mask: hidden(s, mask, -1e9)),
    "hidden keys in the maximum 6": _shifted_by_all(lambda s, mask: hidden(s, mask, -1e9), guard=1),
    "mask after the exponential 2": _shifted_by_all(lambda s, mask: s),
    "padding on the query side": lambda q, k, v, mask: right_attention(
        q, k, v, _column(mask) if _one_row(mask) else mask
    ),
    "padding on the query side 2": lambda q, k, v, mask: (
        right_attention(q, k, v) * _column(mask)
        if _one_row(mask)
        else right_attention(q, k, v, mask)
    ),
    "padding on the query side 3": lambda q, k, v, mask: (
        sm(hidden(right_scores(q, k), _column(mask))) @ v
        if _one_row(mask)
        else right_attention(q, k, v, mask)
    ),
    "outputs of padding zeroed": lambda q, k, v, mask: (
        right_attention(q, k, v, mask) * (_column(mask) if _one_row(mask) else 1)
    ),
    "mask of the first sequence": lambda q, k, v, mask: right_attention(
        q, k, v, mask[0] if mask.ndim == 3 else mask
    ),
    "mask broadcast over the wrong axis": lambda q, k, v, mask: right_attention(
        q, k, v, mask[:, 0] if mask.ndim == 3 and mask.shape[1] == 1 else mask
    ),
}


def sm_or_zeros(scores, axis):
    xp = array_namespace(scores)
    highest = top(scores, axis)
    e = exp(scores - xp.where(highest == -math.inf, xp.zeros_like(highest), highest))
    z = total(e, axis)
    return e / xp.where(z == 0, xp.ones_like(z), z)


def heads_answer(weights=right_weights, split=right_split, join=right_join, out=None):
    """Return multi-head attention in the steps of a reader, some of them replaced."""

    def answer(x, y, z, A, B, C, W, h, mask=None):
        q, k, v = split(x @ A, h), split(y @ B, h), split(z @ C, h)
        a = weights(q, k) if mask is None else weights(q, k, mask=mask)
        return out(a @ v, W) if out else join(a @ v) @ W

    def unmasked(x, y, z, A, B, C, W, h):
        return answer(x, y, z, A, B, C, W, h)

    return answer if "mask" in weights.__code__.co_varnames else unmasked


def _heads_of_inputs(project):
    def answer(x, y, z, A, B, C, W, h):
        q, k, v = (right_split(projected, h) for projected in project(x, y, z, A, B, C))
        return right_join(right_attention(q, k, v)) @ W

    return answer


def _heads_split_by(*splits):
    def answer(x, y, z, A, B, C, W, h):
        q, k, v = (
            split(projected, h)
            for split, projected in zip(splits, (x @ A, y @ B, z @ C), strict=True)
        )
        return right_join(right_attention(q, k, v)) @ W

    return answer


def _heads_scaled(width):
    def answer(x, y, z, A, B, C, W, h):
        q, k, v = right_split(x @ A, h), right_split(y @ B, h), right_split(z @ C, h)
        return right_join(sm(q @ k.mT / width(x, y, A, C, h) ** 0.5) @ v) @ W

    return answer


def _heads_out(out):
    return heads_answer(lambda q, k: right_weights(q, k), out=out)


def _heads_masked(hide):
    def weights(q, k, mask=None):
        return right_weights(q, k) if mask is None else hide(right_scores(q, k), mask)

    return heads_answer(weights)


def _mean(x, axis):
    return array_namespace(x).mean(x, axis=axis)


def _first_head_overwrites(x, y, z, A, B, C, W, h):
    heads = [right_attention(columns(x @ A, h, 0), columns(y @ B, h, 0), columns(z @ C, h, 0))] * h
    return array_namespace(x).concat(heads, axis=-1) @ W


right_heads = heads_answer()


def _in_groups(x, y, z, A, B, C, W, h):
    q, k, v = (
        projected.reshape(*projected.shape[:-2], h, projected.shape[-2] // h, projected.shape[-1])
        for projected in (x @ A, y @ B, z @ C)
    )
    return right_attention(q, k, v).reshape(*x.shape[:-1], -1) @ W


def _sequence_first(x, y, z, *others):
    if x.ndim == 2:
        raise ValueError("expected (n, batch, width)")
    turned = (a.swapaxes(0, 1) for a in (x, y, z))
    return right_heads(*turned, *others).swapaxes(0, 1)


def _weights_of_all_heads(x, y, z, A, B, C, W, h):
    return _mean(right_weights(right_split(x @ A, h), right_split(y @ B, h)), -3) @ (z @ C) @ W


def _averaged_through_blocks(x, W):
    h = x.shape[-3]
    return sum(x[..., i, :, :] @ W.reshape(h, -1, W.shape[-1])[i] for i in range(h)) / h


def _one_head_masked(scores, mask):
    xp = array_namespace(scores)
    rest = [safe_softmax(scores[..., i, :, :]) for i in range(1, scores.shape[-3])]
    shape = scores[..., 0, :, :].shape
    first = xp.broadcast_to(mask, shape) if mask.ndim == 2 else mask[..., 0, :, :]
    return xp.stack([safe_softmax(hidden(scores[..., 0, :, :], first)), *rest], axis=-3)


def _without_axis_of_heads(mask):
    return mask[:, 0] if mask.ndim == 4 else mask


def _to_masked(see):
    return _heads_masked(lambda s, mask: safe_softmax(hidden(s, see(mask))))


MULTI_HEAD_ATTENTION = (
    {
        name: heads_answer(answer)
        for name, answer in WEIGHTS.items()
        if not {"scale", "bias"} & set(answer.__code__.co_varnames)
        and not re.match("all axes|softmax over|width from|scale by √n", name)
    }
    | {
        "scale by √n_k": _heads_scaled(lambda x, y, A, C, h: y.shape[-2]),
        "scale by √n_q": _heads_scaled(lambda x, y, A, C, h: x.shape[-2]),
        "softmax over the query axis": heads_answer(lambda q, k: sm(right_scores(q, k), -2)),
        "softmax over the heads": heads_answer(lambda q, k: sm(right_scores(q, k), 0)),
        "softmax over axis 2 of a batch": heads_answer(lambda q, k: sm(right_scores(q, k), 2)),
        "bare reshape in the split": heads_answer(split=reshaped_split),
        "bare reshape in the split 2": _heads_split_by(reshaped_split, reshaped_split, right_split),
        "bare reshape in the split 3": _heads_split_by(right_split, right_split, reshaped_split),
        "bare reshape in the join": heads_answer(join=reshaped_join),
        "bare reshape in both": heads_answer(split=reshaped_split, join=reshaped_join),
        "attention between heads": heads_answer(
            split=unswapped_split, join=lambda x: x.reshape(*x.shape[:-2], -1)
        ),
        "cut along the sequence": _in_groups,
        "sequence before batch": _sequence_first,
        "sequence before batch 2": lambda *given: (
            _sequence_first(*given) if given[0].ndim > 2 else right_heads(*given)
        ),
        "interleaved features": heads_answer(split=cut_in_bands, join=join_bands),
        "interleaved features 2": heads_answer(split=cut_in_bands),
        "interleaved features 3": heads_answer(join=join_bands),
        "heads joined in reverse": heads_answer(join=lambda x: right_join(reverse(x))),
        "one big head": lambda x, y, z, A, B, C, W, h: right_attention(x @ A, y @ B, z @ C) @ W,
        "one big head 2": lambda x, y, z, A, B, C, W, h: (
            sm((x @ A) @ (y @ B).mT / (A.shape[1] / h) ** 0.5) @ (z @ C) @ W
        ),
        "one head alone": _heads_out(lambda x, W: x[..., 0, :, :]),
        "one head alone 2": _heads_out(lambda x, W: x[..., -1, :, :]),
        "one head alone 3": _heads_out(lambda x, W: x[..., 0, :, :] @ W[: x.shape[-1]]),
        "one head alone 4": _heads_out(lambda x, W: x[..., -1, :, :] @ W[-x.shape[-1] :]),
        "one head for all": _first_head_overwrites,
        "heads averaged": _heads_out(lambda x, W: _mean(x, -3)),
        "heads averaged 2": _heads_out(_averaged_through_blocks),
        "heads averaged 3": _heads_out(lambda x, W: _mean(x, -3) @ W[: x.shape[-1]]),
        "heads averaged 4": _heads_out(
            lambda x, W: right_join(x * 0 + _mean(x, -3)[..., None, :, :]) @ W
        ),
        "heads summed": _heads_out(lambda x, W: total(x, -3, keepdims=False)),
        "heads summed 2": _heads_out(lambda x, W: total(x, -3, keepdims=False) @ W[: x.shape[-1]]),
        "heads summed 3": _heads_out(lambda x, W: right_join(x * 0 + total(x, -3)) @ W),
        "weights averaged over the heads": _weights_of_all_heads,
        "scale by √d_model": _heads_scaled(lambda x, y, A, C, h: A.shape[1]),
        "scale by √d_model 2": _heads_scaled(lambda x, y, A, C, h: x.shape[-1]),
        "scale by √h": _heads_scaled(lambda x, y, A, C, h: h),
        "scale from the width of the input": _heads_scaled(lambda x, y, A, C, h: x.shape[-1] / h),
        "scale from the width of the input 2": _heads_scaled(
            lambda x, y, A, C, h: x.shape[-1] // h
        ),
        "scale by √d_v": _heads_scaled(lambda x, y, A, C, h: C.shape[1] // h),
        "W_O forgotten": _heads_out(lambda x, W: right_join(x)),
        "W_O transposed": _heads_out(lambda x, W: right_join(x) @ W.T),
        "axes counted from the front": heads_answer(
            split=lambda x, h: x.reshape(*x.shape[:-1], h, -1).swapaxes(0, 1),
            join=lambda x: x.swapaxes(0, 1).reshape(*x.swapaxes(0, 1).shape[:-2], -1),
        ),
        "mask on one head": _heads_masked(_one_head_masked),
        "mask broadcast over the wrong axis": _to_masked(lambda mask: mask[:, None]),
        "mask broadcast over the wrong axis 2": _to_masked(_without_axis_of_heads),
        "mask broadcast over the wrong axis 3": _to_masked(lambda mask: mask[..., None, :]),
        "mask of the first sequence": _to_masked(lambda mask: mask[0] if mask.ndim == 4 else mask),
    }
    | {
        name: _heads_of_inputs(project)
        for name, project in {
            "values not projected": lambda x, y, z, A, B, C: (x @ A, y @ B, z),
            "keys not projected": lambda x, y, z, A, B, C: (x @ A, y, z @ C),
            "queries not projected": lambda x, y, z, A, B, C: (x, y @ B, z @ C),
            "nothing projected": lambda x, y, z, A, B, C: (x, y, z),
            "W transposed": lambda x, y, z, A, B, C: (x @ A.T, y @ B.T, z @ C.T),
            "W_Q used for the keys": lambda x, y, z, A, B, C: (x @ A, y @ A, z @ C),
            "W_K used for the queries": lambda x, y, z, A, B, C: (x @ B, y @ B, z @ C),
            "W_Q and W_K swapped": lambda x, y, z, A, B, C: (x @ B, y @ A, z @ C),
            "W_K used for the values": lambda x, y, z, A, B, C: (x @ A, y @ B, z @ B),
            "self-attention only": lambda x, y, z, A, B, C: (x @ A, x @ B, x @ C),
            "self-attention only 2": lambda x, y, z, A, B, C: (x @ A, x @ B, z @ C),
            "values from the key": lambda x, y, z, A, B, C: (x @ A, y @ B, y @ C),
        }.items()
    }
)


def merge_answer(
    maximum="xp.maximum(m1, m2)",
    f1="xp.exp(m1 - safe)",
    f2="xp.exp(m2 - safe)",
    total="f1 * z1 + f2 * z2",
    weighted="f1 * u1 + f2 * u2",
    result="(m, z, u)",
    safe="xp.where(m == -xp.inf, xp.zeros_like(m), m)",
):
    """Return a merge whose lines are these."""
    lines = [
        compile(line, "answer", "eval") for line in (maximum, safe, f1, f2, total, weighted, result)
    ]

    def my_merge(first, second):
        names = dict(zip(("m1", "z1", "u1"), first, strict=True))
        names |= dict(zip(("m2", "z2", "u2"), second, strict=True))
        names["xp"] = array_namespace(first[0])
        for name, line in zip(("m", "safe", "f1", "f2", "z", "u", "result"), lines, strict=True):
            names[name] = eval(line, names)
        return names["result"]

    return my_merge


MERGE_ATTENTION = {
    "no rescaling": merge_answer(total="z1 + z2", weighted="u1 + u2"),
    "total not rescaled": merge_answer(total="z1 + z2"),
    "weighted not rescaled": merge_answer(weighted="u1 + u2"),
    "one part rescaled": merge_answer(f2="xp.ones_like(m2)"),
    "one part rescaled 2": merge_answer(f1="xp.ones_like(m1)"),
    "factors exchanged": merge_answer(f1="xp.exp(m2 - m)", f2="xp.exp(m1 - m)"),
    "sign of the exponent": merge_answer(f1="xp.exp(m - m1)", f2="xp.exp(m - m2)"),
    "minimum": merge_answer("xp.minimum(m1, m2)"),
    "minimum 2": merge_answer(
        f1="xp.exp(m1 - xp.minimum(m1, m2))", f2="xp.exp(m2 - xp.minimum(m1, m2))"
    ),
    "one part's maximum for both": merge_answer("m2", f2="1"),
    "one part's maximum for both 2": merge_answer("m1", f1="1", f2="xp.exp(m2 - m1)"),
    "one part's maximum for both 3": merge_answer(f1="xp.exp(m1 - m2)", f2="1"),
    "sum or mean of the maxima": merge_answer("(m1 + m2) / 2"),
    "sum or mean of the maxima 2": merge_answer("m1 + m2"),
    "one maximum for all rows": merge_answer("xp.max(xp.maximum(m1, m2)) + xp.zeros_like(m1)"),
    "maximum not updated": merge_answer(result="(m1, z, u)"),
    "maximum not updated 2": merge_answer(result="(m2, z, u)"),
    "no maximum": merge_answer(f1="xp.exp(m1)", f2="xp.exp(m2)"),
    "no maximum 2": merge_answer("xp.zeros_like(m1)", f1="xp.exp(m1)", f2="xp.exp(m2)"),
    "no maximum 3": merge_answer(f1="xp.exp(m1) / xp.exp(m)", f2="xp.exp(m2) / xp.exp(m)"),
    "one part dropped": merge_answer(result="(m1, z1, u1)"),
    "one part dropped 2": merge_answer(result="(m2, z2, u2)"),
    "one part dropped 3": merge_answer(
        result="tuple(xp.where(m1 > m2, a, b) for a, b in ((m1, m2), (z1, z2), (u1, u2)))"
    ),
    "outputs added": merge_answer(weighted="u1 / z1 + u2 / z2"),
    "outputs added 2": merge_answer(weighted="(u1 / z1 + u2 / z2) / 2"),
    "outputs added 3": merge_answer(weighted="f1 * u1 / z1 + f2 * u2 / z2"),
    "divided already": merge_answer(weighted="(f1 * u1 + f2 * u2) / (f1 * z1 + f2 * z2)"),
    "divided already 2": merge_answer(
        weighted="(f1 * u1 + f2 * u2) / (f1 * z1 + f2 * z2)", result="(m, xp.ones_like(z), u)"
    ),
    "log-sum-exp for the maximum": merge_answer(result="(m + xp.log(z), xp.ones_like(z), u / z)"),
    "weighted taken for an output": merge_answer(weighted="f1 * z1 * u1 + f2 * z2 * u2"),
    "weighted taken for an output 2": merge_answer(
        weighted="(f1 * z1 * u1 + f2 * z2 * u2) / (f1 * z1 + f2 * z2)"
    ),
    "rescaled twice": merge_answer(f1="xp.exp(m1 - m) ** 2", f2="xp.exp(m2 - m) ** 2"),
    "rescaled twice 2": merge_answer(weighted="f1 * f1 * u1 + f2 * f2 * u2"),
    "base 2": merge_answer(f1="2 ** (m1 - safe)", f2="2 ** (m2 - safe)"),
    "no exponential": merge_answer(f1="m1 - m", f2="m2 - m"),
    "no exponential 2": merge_answer(f1="m1 / m", f2="m2 / m"),
    "maximum and total exchanged": merge_answer(result="(z, m, u)"),
    "empty parts NaN": merge_answer(safe="m"),
    "empty parts NaN 2": merge_answer(
        f1="xp.exp(xp.minimum(m1 - m2, xp.zeros_like(m1)))",
        f2="xp.exp(xp.minimum(m2 - m1, xp.zeros_like(m1)))",
    ),
    "maximum of nothing": merge_answer(result="(safe, z, u)"),
    "maximum of nothing 2": merge_answer(
        result="(xp.where(m == -xp.inf, xp.full_like(m, -1e9), m), z, u)"
    ),
}


WRONG = {
    "softmax": SOFTMAX,
    "attention_weights": WEIGHTS | WEIGHTS_ALONE,
    "attention": ATTENTION,
    "single_head": SINGLE_HEAD,
    "attention_vjp": ATTENTION_VJP,
    "split_heads": SPLIT_HEADS,
    "multi_head_attention": MULTI_HEAD_ATTENTION,
    "causal_mask": CAUSAL_MASK,
    "masked_attention": MASKED_ATTENTION,
    "merge_attention": MERGE_ATTENTION,
}


DOUBLES = {
    "attention": {
        "no scale; no softmax": lambda q, k, v: q @ k.mT @ v,
        "no scale; softmax over the query axis": lambda q, k, v: sm(q @ k.mT, 0) @ v,
        "scale by d_k; softmax twice": lambda q, k, v: sm(sm(q @ k.mT / q.shape[-1])) @ v,
        "scale by √n_k; key used as value": lambda q, k, v: sm(q @ k.mT / len(k) ** 0.5) @ k,
    },
    "softmax": {
        "wrong axis; base 2": lambda x: 2**x / total(2**x, 0),
        "sign of the scores; logarithm returned": lambda x: array_namespace(x).log(sm(-x)),
    },
    "multi_head_attention": {
        "scale by √d_model; W_O forgotten": lambda x, y, z, A, B, C, W, h: right_join(
            sm(right_split(x @ A, h) @ right_split(y @ B, h).mT / x.shape[-1] ** 0.5)
            @ right_split(z @ C, h)
        ),
        "bare reshape in the join; no scale": heads_answer(
            WRONG["attention_weights"]["no scale"], join=reshaped_join
        ),
    },
    "single_head": {
        "no scale; values not projected": lambda x, y, z, A, B, C: sm((x @ A) @ (y @ B).mT) @ z
    },
    "attention_vjp": {
        "scale in grad_value; second term of the softmax Jacobian": jacobian_and_value
    },
    "causal_mask": {"next place visible; inverted": lambda n: ~np.tri(n, n, 1, dtype=bool)},
    "merge_attention": {
        "total not rescaled; maximum not updated": merge_answer(
            total="z1 + z2", result="(m1, z, u)"
        )
    },
}


def in_float32(answer):
    """Return the answer of a reader who turns everything into float32."""

    def narrow(*arrays, **options):
        options = {name: _narrowed(x) for name, x in options.items()}
        return answer(*map(_narrowed, arrays), **options)

    return _with_options_of(answer, narrow)


def _narrowed(x):
    if isinstance(x, float | int):
        return x
    if isinstance(x, tuple):
        return tuple(map(_narrowed, x))
    xp = array_namespace(x)
    return x if x.dtype == xp.bool else xp.astype(x, xp.float32)


def _with_options_of(answer, function):
    import inspect

    function.__signature__ = inspect.signature(answer)
    return function


# Right answers in other styles.


def loop_softmax(x):
    out = np.zeros(x.shape)
    for i in range(len(x)):
        highest = max(float(s) for s in x[i])
        powers = [math.exp(float(s) - highest) for s in x[i]]
        for j in range(len(powers)):
            out[i, j] = powers[j] / sum(powers)
    return out


def loop_weights(query, key):
    n_q, n_k, d_k = len(query), len(key), len(query[0])
    scores = np.array(
        [
            [sum(float(query[i][c]) * float(key[j][c]) for c in range(d_k)) for j in range(n_k)]
            for i in range(n_q)
        ]
    )
    return loop_softmax(scores / d_k**0.5)


def loop_attention(query, key, value):
    weights = loop_weights(query, key)
    return np.array(
        [
            [
                sum(w * float(v[c]) for w, v in zip(row, value, strict=True))
                for c in range(len(value[0]))
            ]
            for row in weights
        ]
    )


def loop_head(query, key, value, W_Q, W_K, W_V):
    def product(x, w):
        return [
            [sum(float(a) * float(w[r][c]) for r, a in enumerate(row)) for c in range(len(w[0]))]
            for row in x
        ]

    return loop_attention(product(query, W_Q), product(key, W_K), product(value, W_V))


def loop_vjp(query, key, value, grad_output):
    weights = loop_weights(query, key)
    q, k, v, g = ([[float(c) for c in row] for row in x] for x in (query, key, value, grad_output))
    dq, dk, dv = (np.zeros((len(x), len(x[0]))) for x in (q, k, v))
    root = math.sqrt(len(q[0]))
    for i, a in enumerate(weights):
        da = [sum(x * y for x, y in zip(g[i], v[j], strict=True)) for j in range(len(k))]
        mean = sum(w * d for w, d in zip(a, da, strict=True))
        for j, w in enumerate(a):
            ds = w * (da[j] - mean) / root
            dv[j] += w * np.array(g[i])
            dq[i] += ds * np.array(k[j])
            dk[j] += ds * np.array(q[i])
    return [dq, dk, dv]
