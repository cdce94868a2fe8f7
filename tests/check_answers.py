"""Answers that readers might hand in, right and wrong, each written as a reader would.

Most run on NumPy and PyTorch alike, so that one answer can be tested in both. A wrong answer stands
under the name of the mistake that its check must find; several under one name are told apart by a
number, as in "no scale 2".
"""

import math

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

WRONG = {
    "softmax": SOFTMAX,
    "attention_weights": WEIGHTS | WEIGHTS_ALONE,
    "attention": ATTENTION,
    "single_head": SINGLE_HEAD,
    "attention_vjp": ATTENTION_VJP,
}


def only_torch(answer):
    """Return the answer of a reader who writes for PyTorch alone."""

    def torch_answer(*arrays, **options):
        import torch

        return answer(*(torch.mul(x, 1) for x in arrays), **options)

    return _with_options_of(answer, torch_answer)


def in_float32(answer):
    """Return the answer of a reader who turns everything into float32."""

    def narrow(*arrays, **options):
        xp = array_namespace(arrays[0])
        options = {
            name: x
            if isinstance(x, float | int) or x.dtype == xp.bool
            else xp.astype(x, xp.float32)
            for name, x in options.items()
        }
        return answer(*(xp.astype(x, xp.float32) for x in arrays), **options)

    return _with_options_of(answer, narrow)


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
