"""Answers to the checks of gradients: linear map, softmax, cross-entropy, RMS norm, embedding.

A wrong answer stands under the name of the mistake that its check must find.
"""

from functools import partial

import numpy as np
import pytest
from answer_programs import Program
from array_api_compat import array_namespace
from attention_answers import sm, total  # noqa: F401 (for the programs)
from transformer_answers import mean, root  # noqa: F401

program = partial(Program, globals())


def flat(x):
    return x.reshape(-1, x.shape[-1])


def one_hot(ids, n, like):
    """Return the one-hot rows of `ids`, in the library and dtype of `like`."""
    xp = array_namespace(like)
    return xp.asarray(np.eye(n)[np.asarray(ids)], dtype=like.dtype)


# A linear map.


LINEAR = program("""
x, W, g
d = g @ W.mT
D = flat(x).mT @ flat(g)
out = (d, D)
""")
LINEAR_VJP = LINEAR.wrong("""
another product: d = W @ g.mT
one token alone: D = x[-1:].mT @ g[-1:]
tokens summed before the product: D = mean(x, 0).mT @ mean(g, 0)
output in the place of grad_output: d = (x @ W) @ W.mT; D = flat(x).mT @ flat(x @ W)
gradients swapped: out = (D, d)
batch averaged: D = flat(x).mT @ flat(g) / (x.shape[0] if x.ndim > 2 else 1)
""")


def linear_in_loops(x, W, g):
    d, D = np.zeros(x.shape), np.zeros(W.shape)
    for place in np.ndindex(*x.shape[:-1]):
        for i in range(W.shape[0]):
            for j in range(W.shape[1]):
                d[place][i] += float(g[place][j]) * float(W[i, j])
                D[i, j] += float(x[place][i]) * float(g[place][j])
    return d, D


def by_autograd(forward, *at):
    """Return PyTorch's gradients of `forward`, whose last argument is the incoming gradient."""
    torch = pytest.importorskip("torch")
    *inputs, g = at
    leaves = [x.clone().requires_grad_() for x in inputs]
    with torch.enable_grad():
        return torch.autograd.grad((forward(*leaves) * g).sum(), leaves)


def torch_linear(x, W, g):
    return by_autograd(lambda x, W: x @ W, x, W, g)


# A softmax.


SOFTMAX = program("""
a, g
m = total(a * g)
out = a * (g - m)
""")
SOFTMAX_VJP = SOFTMAX.wrong("""
first term forgotten: m + 0 * a
softmax of grad_output: sm(g)
sum over the wrong axis: m = xp.sum(a * g)
sign of the second term: a * g * (1 - 2 * a) + a * m
weights taken for scores: m = total(sm(a) * g); out = sm(a) * (g - m)
axis 1 of a batch: m = total(a * g, 1)
""")


def softmax_in_loops(a, g):
    out = np.zeros(a.shape)
    for place in np.ndindex(*a.shape[:-1]):
        for i in range(a.shape[-1]):
            for j in range(a.shape[-1]):
                slope = float(a[place][i]) * ((i == j) - float(a[place][j]))
                out[place][j] += float(g[place][i]) * slope
    return out


def torch_softmax(a, g):
    (grad,) = by_autograd(lambda s: s.softmax(-1), a.log().clamp(min=-1e4), g)
    return grad


# The cross-entropy.


LOSS = program("""
z, t
p = sm(z)
y = one_hot(t, z.shape[-1], z)
n = z.shape[-2] if z.ndim < 3 else z.shape[0] * z.shape[1]
d = p - y
out = d / n
""")
CROSS_ENTROPY_VJP = LOSS.wrong("""
half divided: p - y / n
gradient by the probabilities: d = -y / p
gradient of the probability of the label: d = -p * (y - total(p * y))
squared error: d = 2 * p * (p - y - total(p * (p - y)))
label by position: y = one_hot(np.arange(z.shape[-2]) % z.shape[-1], z.shape[-1], z)
exp overflows: p = xp.exp(z) / total(xp.exp(z))
divided by the length alone: d / z.shape[-2]
""")


def loss_in_loops(z, t):
    out = np.zeros(z.shape)
    for place in np.ndindex(*z.shape[:-1]):
        row = np.asarray(z[place], dtype=float)
        powers = np.exp(row - row.max())
        out[place] = powers / powers.sum()
        out[place][int(t[place])] -= 1
    return out / np.asarray(t).size


def torch_loss(z, t):
    torch = pytest.importorskip("torch")
    leaf = z.clone().requires_grad_()
    with torch.enable_grad():
        loss = torch.nn.functional.cross_entropy(leaf.flatten(0, -2), t.flatten())
        return torch.autograd.grad(loss, leaf)[0]


# Root-mean-square normalisation.


RMS = program("""
x, c, g
r = root(mean(x * x) + 1e-5)
y = x / r
h = g * c
m = mean(h * y)
d = (h - y * m) / r
k = g * y
C = total(flat(k), 0, keepdims=False)
out = (d, C)
""")
RMS_NORM_VJP = RMS.wrong("""
sums multiplied: C = total(flat(g), 0, keepdims=False) * total(flat(y), 0, keepdims=False)
second term over the tokens: m = mean(h * y, None)
gain after the second term: d = c * (g - y * mean(g * y)) / r
layer norm for RMS norm: d = (h - mean(h) - y * m) / r
no epsilon: r = root(mean(x * x))
batch not summed: C = total(k, 0, keepdims=False)
""") | RMS.taking("epsilon=1e-5").wrong("epsilon ignored: r = root(mean(x * x) + 1e-5)")


def rms_in_loops(x, gain, g, epsilon=1e-5):
    step, grad_x, grad_gain = 1e-6, np.zeros(x.shape), np.zeros(gain.shape)

    def loss(x, gain):
        size = np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon)
        return np.sum(x / size * gain * np.asarray(g, dtype=float))

    x, gain = (np.array(a, dtype=float) for a in (x, gain))
    for at, grad in ((x, grad_x), (gain, grad_gain)):
        for place in np.ndindex(*at.shape):
            old, h = at[place], step * max(abs(at[place]), 1e-4)
            at[place] = old + h
            above = loss(x, gain)
            at[place] = old - h
            grad[place] = (above - loss(x, gain)) / (2 * h)
            at[place] = old
    return grad_x, grad_gain


def torch_rms(x, gain, g, eps=1e-5):
    norm = pytest.importorskip("torch").nn.functional.rms_norm
    return by_autograd(lambda x, gain: norm(x, gain.shape, gain, eps), x, gain, g)


# The embedding.


TABLE = program("""
i, E, g
h = one_hot(i, E.shape[0], g)
out = flat(h).mT @ flat(g)
""")


def written(i, E, g, order=1):
    grad = np.zeros(tuple(E.shape))
    ids, rows = np.asarray(i).reshape(-1), np.asarray(flat(g))
    grad[ids[::order]] = rows[::order]
    return array_namespace(g).asarray(grad, dtype=g.dtype)


def but_row_0(grad):
    xp = array_namespace(grad)
    return xp.concat([xp.zeros_like(grad[:1]), grad[1:]])


EMBED_VJP = TABLE.wrong("""
repeated token counted once: written(i, E, g, -1)
rows of other tokens: h[1:].mT @ g[:-1]
rows by position: xp.concat([flat(g), 0 * E])[: E.shape[0]]
only the rows that occur: (flat(h).mT @ flat(g))[np.unique(np.asarray(i))]
gathered for scattered: g[i % g.shape[0]]
id 0 taken for padding: but_row_0(flat(h).mT @ flat(g))
batch averaged: flat(h).mT @ flat(g) / (i.shape[0] if i.ndim > 1 else 1)
""")


def table_in_loops(i, E, g):
    grad = np.zeros(tuple(E.shape))
    for place in np.ndindex(*i.shape):
        grad[int(i[place])] += np.asarray(g[place], dtype=float)
    return grad


def added_at(i, E, g):
    grad = np.zeros(tuple(E.shape), dtype=np.asarray(g).dtype)
    np.add.at(grad, np.asarray(i), np.asarray(g))
    return grad


def torch_table(i, E, g):
    return pytest.importorskip("torch").zeros_like(E).index_add(0, i.flatten(), flat(g))


WRONG = {
    "linear_vjp": LINEAR_VJP,
    "softmax_vjp": SOFTMAX_VJP,
    "cross_entropy_vjp": CROSS_ENTROPY_VJP,
    "rms_norm_vjp": RMS_NORM_VJP,
    "embed_vjp": EMBED_VJP,
}
DOUBLES = {
    "linear_vjp": LINEAR.wrong("""
W not transposed in grad_x; averaged over the tokens: d = g @ W; D = x.mT @ g / x.shape[-2]
"""),
    "cross_entropy_vjp": LOSS.wrong("""
mean forgotten; label one too large: y = one_hot((t + 1) % z.shape[-1], z.shape[-1], z); out = d
mean forgotten; sign: y - p
"""),
    "rms_norm_vjp": RMS.wrong("""
size taken for a constant; grad_gain averaged: d = h / r; C = mean(flat(k), 0, keepdims=False)
"""),
    "embed_vjp": TABLE.wrong("""
repeated token counted once; gradient negated: -written(i, E, g)
repeated token averaged; averaged over the tokens: (flat(h).mT @ flat(g)) / i.size / xp.clip(
        xp.sum(flat(h), axis=0), 1)[:, None]
"""),
}
RIGHT = {
    "linear_vjp": (LINEAR.but(), linear_in_loops, lambda x, W, g: (g @ W.T, flat(x).T @ flat(g))),
    "softmax_vjp": (SOFTMAX.but(), softmax_in_loops, lambda a, g: a * g - a * total(a * g)),
    "cross_entropy_vjp": (LOSS.but(), loss_in_loops),
    "rms_norm_vjp": (RMS.but(), rms_in_loops, lambda x, gain, g: RMS.but()(x, gain, g)),
    "embed_vjp": (TABLE.but(), table_in_loops, added_at),
}
ONLY_TORCH = {
    "linear_vjp": torch_linear,
    "softmax_vjp": torch_softmax,
    "cross_entropy_vjp": torch_loss,
    "rms_norm_vjp": torch_rms,
    "embed_vjp": torch_table,
}
