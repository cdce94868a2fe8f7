"""Answers on softmax, attention, one head and its gradient, as readers would write them.

Most run on NumPy and PyTorch alike, so that one answer can be tested in both. A wrong answer stands
under the name of the mistake that its check must find; in `DOUBLES`, of the two.
"""

import math
from functools import partial

import numpy as np
import pytest
from answer_programs import Program
from array_api_compat import array_namespace, device

import attnbook as ab

program = partial(Program, globals())


def exp(x):
    return array_namespace(x).exp(x)


def total(x, axis=-1, keepdims=True):
    return array_namespace(x).sum(x, axis=axis, keepdims=keepdims)


def top(x, axis=-1, keepdims=True):
    return array_namespace(x).max(x, axis=axis, keepdims=keepdims)


def dot(x, y):
    return array_namespace(x).tensordot(x, y, axes=([-1], [-2]))


def unit(x):
    return x / total(x * x) ** 0.5


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


def shifted(x, shift):
    return exp(x - shift) / total(exp(x - shift))


def right_scores(q, k):
    return (q @ k.mT) / q.shape[-1] ** 0.5


def safe_softmax(scores, axis=-1):
    """Return the softmax, zeros for a row of −∞ alone."""
    xp = array_namespace(scores)
    highest = top(scores, axis)
    e = exp(scores - xp.where(highest == -math.inf, xp.zeros_like(highest), highest))
    z = total(e, axis)
    return e / xp.where(z == 0, xp.ones_like(z), z)


def right_weights(q, k, mask=None, bias=None, scale=None):
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias
    return safe_softmax(scores if mask is None else hidden(scores, mask))


def right_attention(q, k, v, mask=None):
    return right_weights(q, k, mask) @ v


SOFTMAX_PROGRAM = program("""
x
e = exp(x)
shifted_e = exp(x - top(x))
out = shifted_e / total(shifted_e)
""")


SOFTMAX = SOFTMAX_PROGRAM.wrong("""
wrong axis: sm(x, -2)
not normalised: shifted_e
length instead of sum: unit(x)
logarithm returned: x - xp.log(total(e))
no maximum: e / total(e)
not the maximum: shifted(x, np.median(np.asarray(x), axis=-1, keepdims=True))
axis 1 of a batch: sm(x, 1)
""") | SOFTMAX_PROGRAM.taking("axis=-1").wrong("axis ignored: out = sm(x)")


WEIGHTS_PROGRAM = program("""
q, k
d = q.shape[-1]
s = q @ k.mT / d**0.5
w = sm(s)
""")


HIDE = "w = sm(s) if mask is None else …"


WEIGHTS = (
    WEIGHTS_PROGRAM.wrong("""
no scale: s = xp.einsum("...qd,...kd->...qk", q, k)
softmax over the query axis: w = sm(s) / total(sm(s), -2)
transposed: w = right_weights(q, k).mT
all axes reversed: w = sm(q @ k.T / k.shape[1] ** 0.5, 1)
scores normalised: w = sm(s / xp.max(s))
""")
    | WEIGHTS_PROGRAM.taking("mask=None", HIDE).wrong("""
mask after the exponential: sm(s) * mask / total(sm(s) * as_numbers(mask, s))
hidden scores not low enough: sm(s - 2 * (1 - as_numbers(mask, s)))
""")
    | WEIGHTS_PROGRAM.taking("bias=None").wrong("""
bias before the scale: s = (q @ k.mT + (0 if bias is None else bias)) / d**0.5
""")
)


ATTENTION_PROGRAM = program(f"q, k, v{WEIGHTS_PROGRAM.lines}out = w @ v")


ATTENTION = (
    ATTENTION_PROGRAM.wrong("""
np.dot on a batch: out = dot(w, v)
scale by √d_v: out = xp.einsum("...qk,...kd->...qd", sm(q @ k.mT / v.shape[-1] ** 0.5), v)
values not weighed: out = 0 * (w @ v) + total(v, -2)
maximum of the whole array: w = shifted(s, xp.max(s))
hard look-up: w = one_hot(s)
width from shape[1]: s = q @ k.mT / k.shape[1] ** 0.5
""")
    | ATTENTION_PROGRAM.taking("mask=None", HIDE).wrong("""
empty row NaN: sm(hidden(s, mask))
mask with a large negative number: sm(s - 1e6 * (1 - as_numbers(mask, s)))
""")
    | ATTENTION_PROGRAM.taking("scale=None").wrong("""
scale on top of 1/√d_k: w = sm(s if scale is None else s * scale)
""")
)


PROJECTIONS = """
xa = x @ A
yb = y @ B
zc = z @ C
"""


HEAD_PROGRAM = program(
    f"x, y, z, A, B, C{PROJECTIONS}q = xa\nk = yb\nv = zc{ATTENTION_PROGRAM.lines}"
)


right_head = HEAD_PROGRAM.but()


SINGLE_HEAD = (
    HEAD_PROGRAM.wrong("""
self-attention only: zc = x @ C
W transposed: xa = x @ A.T
key and value exchanged: out = right_attention(x @ A, z @ B, y @ C)
scale by d_model: s = q @ k.mT / y.shape[-1] ** 0.5
no maximum: w = exp(s) / total(exp(s))
""")
    | HEAD_PROGRAM.taking("mask=None", HIDE).wrong("mask transposed: sm(hidden(s, mask.mT))")
    | HEAD_PROGRAM.taking("W_O=None").wrong("""
W_O transposed: out = w @ v if W_O is None else w @ v @ W_O.T
""")
)


VJP_PROGRAM = program("""
q, k, v, g
d = q.shape[-1]
c = d**-0.5
s = q @ k.mT * c
w = sm(s)
dw = g @ v.mT
ds = w * (dw - total(w * dw)) * c
dq = ds @ k
dk = ds.mT @ q
dv = w.mT @ g
out = (dq, dk, dv)
""")


gradients = VJP_PROGRAM.but()


ATTENTION_VJP = (
    VJP_PROGRAM.wrong("""
scale twice: dq = ds @ k * c
second term of the softmax Jacobian: ds = w * dw * c
grad_value averaged: dv = w.mT @ g / g.shape[-2]
sum over the wrong axis: ds = w * (dw - xp.sum(w * dw)) * c
order of the gradients: out = (dq, dv, dk)
no maximum: w = exp(s) / total(exp(s))
all axes reversed: s = q @ k.T / q.shape[1] ** 0.5; dw = g @ v.T; dk = ds.T @ q; dv = w.T @ g
softmax over axis 1 of a batch: w = sm(s, 1)
""")
    | VJP_PROGRAM.taking("mask=None", HIDE).wrong("empty row NaN: sm(hidden(s, mask))")
    | VJP_PROGRAM.taking("bias=None").wrong("bias ignored: w = sm(s)")
)


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


def einsum_weights(Q, K, mask=None):
    scores = np.einsum("...qd,...kd->...qk", Q, K) / np.sqrt(Q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    highest = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isinf(highest), 0, highest))
    return e / np.maximum(e.sum(-1, keepdims=True), 1e-300)


def torch_attention(query, key, value, mask=None):
    torch = pytest.importorskip("torch")
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def torch_vjp(query, key, value, grad_output):
    torch = pytest.importorskip("torch")
    inputs = [x.clone().requires_grad_() for x in (query, key, value)]
    return torch.autograd.grad(torch_attention(*inputs), inputs, grad_output)


WRONG = {
    "softmax": SOFTMAX,
    "attention_weights": WEIGHTS,
    "attention": ATTENTION,
    "single_head": SINGLE_HEAD,
    "attention_vjp": ATTENTION_VJP,
}

DOUBLES = {
    "softmax": SOFTMAX_PROGRAM.wrong("""
wrong axis; base 2: out = 2**x / total(2**x, 0)
sign of the scores; logarithm returned: out = xp.log(sm(-x))
wrong axis; no maximum: out = exp(x) / total(exp(x), -2)
base 2; no maximum: out = 2**x / total(2**x)
divided by another number; no maximum: out = e / top(-e) * -1
"""),
    "attention_weights": WEIGHTS_PROGRAM.taking("mask=None").wrong("""
scale by d_k; mask inverted: s = q @ k.mT / d; w = sm(s if mask is None else hidden(s, ~mask))
no scale; mask after the softmax: s = q @ k.mT; w = sm(s) * (1 if mask is None else mask)
"""),
    "attention": ATTENTION_PROGRAM.wrong("""
no scale; no softmax: out = q @ k.mT @ v
no scale; softmax over the query axis: w = sm(q @ k.mT, 0)
scale by d_k; softmax twice: w = sm(sm(q @ k.mT / d))
scale by √n_k; key used as value: out = sm(q @ k.mT / len(k) ** 0.5) @ k
no scale; no maximum: s = q @ k.mT; w = exp(s) / total(exp(s))
"""),
    "single_head": HEAD_PROGRAM.wrong("no scale; values not projected: s = q @ k.mT; zc = z"),
    "attention_vjp": VJP_PROGRAM.wrong(
        "scale in grad_value; second term of the softmax Jacobian: ds = w * dw * c; "
        "dv = w.mT @ g * c"
    ),
}

RIGHT = {
    "softmax": (
        ab.softmax,
        right_softmax,
        loop_softmax,
        lambda x: np.exp(x - np.logaddexp.reduce(x, axis=-1, keepdims=True)),
    ),
    "attention_weights": (
        ab.attention_weights,
        right_weights,
        loop_weights,
        einsum_weights,
        lambda q, k: sm(q @ k.T / q.shape[1] ** 0.5) if q.ndim == 2 else 1 / 0,
    ),
    "attention": (
        ab.attention,
        right_attention,
        loop_attention,
        lambda Q, K, V, *, mask=None: np.einsum(
            "...qk,...kd->...qd", einsum_weights(Q, K, mask), V
        ),
    ),
    "single_head": (
        ab.single_head_attention,
        right_head,
        loop_head,
        lambda x, y, z, A, B, C, W_O: right_attention(x @ A, y @ B, z @ C) @ W_O,
        lambda x, y, z, A, B, C, W_O, mask=None: right_attention(x @ A, y @ B, z @ C, mask) @ W_O,
        lambda x, y, z, A, B, C, W_O=None, *, mask=None: (
            right_attention(x @ A, y @ B, z @ C, mask)
            @ (np.eye(C.shape[1]) if W_O is None else W_O)
        ),
        lambda x, y, z, A, B=None, C=None: right_attention(x @ A, y @ B, z @ C),
        lambda x, y, z, weights: ab.single_head_attention(x, y, z, weights),
        lambda x, y, z, parameters, mask=None: ab.single_head_attention(x, y, z, parameters, mask),
        lambda x, y, z, parameters: ab.single_head_attention(x, y, z, parameters),
        lambda x, y, z, weights, mask=None, dropout=0, training=False: ab.single_head_attention(
            x, y, z, weights, mask
        ),
    ),
    "attention_vjp": (
        ab.attention_vjp,
        lambda q, k, v, g: gradients(q, k, v, g),
        loop_vjp,
    ),
}

ONLY_TORCH = {
    "softmax": lambda x, axis=-1: x.softmax(axis),
    "attention_weights": lambda q, k: (q @ k.transpose(-2, -1) / q.size(-1) ** 0.5).softmax(-1),
    "attention": torch_attention,
    "single_head": lambda x, y, z, A, B, C: torch_attention(x @ A, y @ B, z @ C),
    "attention_vjp": torch_vjp,
}
