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
one factor left out: d = total(g) + 0 * x
    D = total(flat(g), 0) + 0 * W
multiplied by the input: d = (g @ W.mT) * x
order of the tokens lost: D = array_namespace(x).flip(flat(x), axis=0).mT @ flat(g)
W not transposed in grad_x: d = g @ W
x not transposed in grad_W: D = x @ g
    D = x @ g.mT
another product: d = W @ g.mT
    D = flat(x).mT @ flat(g).mT
grad_W transposed: D = (x.mT @ g).mT.mT.mT
averaged over the tokens: D = flat(x).mT @ flat(g) / x.shape[-2]
    D = flat(x).mT @ flat(g) / g.shape[-2] / g.shape[-1]
one token alone: D = x[:1].mT @ g[:1]
    D = x[-1:].mT @ g[-1:]
tokens summed before the product: D = total(x, 0).mT @ total(g, 0)
    D = mean(x, 0).mT @ mean(g, 0)
tokens mixed in grad_x: d = total(g @ W.mT, 0) + 0 * x
    d = mean(g @ W.mT, 0, keepdims=False)
grad_x averaged: d = g @ W.mT / x.shape[-2]
    d = g @ W.mT / x.shape[-2]; D = flat(x).mT @ flat(g) / x.shape[-2]
output in the place of grad_output: d = (x @ W) @ W.mT; D = flat(x).mT @ flat(x @ W)
output in the place of x: D = flat(x @ W).mT @ flat(g)
W in the place of x: D = W.mT @ g
    D = W @ g
x in the place of W: d = g @ x.mT
grad_output passed on: d = g
weights added to the gradient: D = flat(x).mT @ flat(g) + W
step taken: D = W - flat(x).mT @ flat(g)
gradients swapped: out = (D, d)
divided by a width: D = flat(x).mT @ flat(g) / x.shape[-1]
    d = g @ W.mT / x.shape[-1]
grad_output ignored: d = xp.ones_like(g) @ W.mT; D = flat(x).mT @ flat(xp.ones_like(g))
    D = flat(x).mT @ flat(xp.ones_like(g))
    d = xp.ones_like(g) @ W.mT
all gradients negated: out = (-d, -D)
batch not summed: D = x.mT @ g
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
first term forgotten: -a * m
    m + 0 * a
weights forgotten in the first term: g - a * m
weights squared: a * (g - a * m)
    a * (a * g - m)
weights and grad_output exchanged: g * (a - m)
1 for grad_output: a * (1 - m)
1 − weights for the weights: (1 - a) * (g - m)
terms multiplied: a * g * m
largest for the sum: m = xp.max(a * g, axis=-1, keepdims=True)
softmax of grad_output: a * (sm(g) - total(a * sm(g)))
    sm(g)
second term forgotten: a * g
diagonal of the Jacobian: a * (1 - a) * g
softmax skipped: g + 0 * a
weights forgotten in front: g - m
second term not multiplied by the weights: a * g - m
sum over the wrong axis: m = total(a * g, -2)
    m = xp.sum(a * g)
keepdims forgotten: m = total(a * g, keepdims=False)
mean instead of sum: m = mean(a * g)
sum without the weights: m = total(g)
    m = mean(g)
weights squared in the sum: m = total(a * a * g)
sign: a * (m - g)
sign of the second term: a * (g + m)
    a * g * (1 - 2 * a) + a * m
divided by the weights: (g - m) / a
log-softmax for softmax: g - a * total(g)
cross-entropy for softmax: a - g
weights taken for scores: m = total(sm(a) * g); out = sm(a) * (g - m)
grad_output ignored: a * (1 - a)
    a * (1 - total(a))
divided by the number of rows: a * (g - m) / a.shape[-2]
    a * (g - m) / a.shape[-1]
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
label added: d = p + y
another number at the label: d = p * (1 - y) - y
    d = p * (1 - y)
    d = p - 2 * y
1 in every column: d = p - 1
loss for the gradient: d = -xp.log(p) * y
multiplied by the loss: d = (p - y) * -xp.log(total(p * y))
multiplied by the probabilities: d = p * (p - y)
likeliest word for the label: y = one_hot(xp.argmax(z, axis=-1), z.shape[-1], z)
label of another token: y = one_hot(xp.flip(t, axis=-1), z.shape[-1], z)
ids for the one-hot rows: y = xp.astype(t, z.dtype)[..., None]
sigmoid for softmax: p = 1 / (1 + xp.exp(-z))
not normalised: p = xp.exp(z)
likeliest word alone: p = one_hot(xp.argmax(z, axis=-1), z.shape[-1], z)
softmax of the difference: d = sm(z - y)
divided by another number: d / (n + 1)
    d / n**0.5
mean forgotten: d
divided by all numbers: d / n / z.shape[-1]
divided by the vocabulary: d / z.shape[-1]
mean twice: d / n**2
half divided: p / n - y
    p - y / n
multiplied by the number: d * n
every target in every row: d = p - xp.max(y, axis=-2, keepdims=True)
label forgotten: d = p
label alone: d = (p - y) * y
    d = -y
softmax forgotten: p = z
logarithms for probabilities: p = xp.log(sm(z))
softmax twice: p = sm(sm(z))
softmax over the tokens: p = sm(z, -2)
gradient by the probabilities: d = -y / p
softmax passed twice: d = p * (p - y - total(p * (p - y)))
gradient of the probability of the label: d = p * (y - total(p * y))
    d = -p * (y - total(p * y))
sign: d = y - p
gradient scaled: 2 * d / n
    d / n / 2
    d / n / np.log(2)
squared error: d = 2 * p * (p - y - total(p * (p - y)))
label one too small: y = one_hot(t - 1, z.shape[-1], z)
label one too large: y = one_hot((t + 1) % z.shape[-1], z.shape[-1], z)
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
second term alone: d = -y * m / r
another second term: d = (h - m) / r
    d = (h - y * mean(h)) / r
    d = (h - 2 * y * m) / r
grad_output passed on: d = g
gain twice: d = c * (h - y * m) / r
grad_gain of one token: C = flat(k)[0]
    C = flat(k)[-1]
grad_gain divided: k = g * y / c
    k = g * y / r
sums multiplied: C = total(flat(g), 0, keepdims=False) * total(flat(y), 0, keepdims=False)
    k = y
grad_gain summed over the features: C = xp.sum(k) + 0 * c
size taken for a constant: d = h / r
gain forgotten in grad_x: h = g
gain divided: h = g / c
not divided by the size: d = h - y * m
multiplied by the size: d = (h - y * m) * r
divided by the size twice: d = (h - y * m) / r**2
sum for the mean: m = total(h * y)
second term over the tokens: m = mean(h * y, -2)
    m = mean(h * y, None)
sign of the second term: d = (h + y * m) / r
second term with x: d = (h - x * m) / r
second term without the gain: m = mean(g * y)
gain after the second term: d = c * (g - y * mean(g * y)) / r
epsilon of another size: r = root(mean(x * x) + 1e-6)
layer norm for RMS norm: d = (h - mean(h) - y * m) / r
root forgotten: r = mean(x * x) + 1e-5
no epsilon: r = root(mean(x * x))
keepdims forgotten: m = mean(h * y, keepdims=False)
    r = root(mean(x * x, keepdims=False) + 1e-5)
grad_gain not summed: C = k
grad_gain averaged: C = mean(flat(k), 0, keepdims=False)
grad_gain from x: k = g * x
gain in grad_gain: k = g * y * c
grad_gain from grad_output alone: k = g
gradients swapped: out = (C, d)
grad_output ignored: h = xp.ones_like(g) * c; k = y
all gradients negated: out = (-d, -C)
batch not summed: C = total(k, -2, keepdims=False)
    C = total(k, 0, keepdims=False)
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


def counts(i, E, g):
    n = np.bincount(np.asarray(i).reshape(-1), minlength=E.shape[0])
    return array_namespace(g).asarray(n[:, None], dtype=g.dtype)


EMBED_VJP = TABLE.wrong("""
other rows not 0: flat(h).mT @ flat(g) + E * (counts(i, E, g) == 0)
first token lost: h[1:].mT @ g[1:]
repeated token counted once: written(i, E, g)
    written(i, E, g, -1)
repeated token averaged: flat(h).mT @ flat(g) / (counts(i, E, g) + (counts(i, E, g) == 0))
repeated token multiplied: flat(h).mT @ flat(g) * counts(i, E, g)
averaged over the tokens: flat(h).mT @ flat(g) / i.shape[0]
averaged over the vocabulary: flat(h).mT @ flat(g) / E.shape[0]
times √d_model: flat(h).mT @ flat(g) * E.shape[1] ** 0.5
divided by √d_model: flat(h).mT @ flat(g) / E.shape[1] ** 0.5
    flat(h).mT @ flat(g) / E.shape[1]
one gradient for all rows: flat(g).sum(0) + 0 * E
    flat(g).mean(0) + 0 * E
    h.mT @ (0 * g + g[:1])
rows of other tokens: h.mT @ xp.flip(g, axis=-2)
    one_hot(np.sort(np.asarray(i)), E.shape[0], g).mT @ g
    h = one_hot(np.asarray(i)[::-1], E.shape[0], g)
    h[1:].mT @ g[:-1]
    h[:-1].mT @ g[1:]
begun with ones: flat(h).mT @ flat(g) + 1
rows of grad_output returned: g
rows by position: h = one_hot(np.arange(g.shape[-2]) % E.shape[0], E.shape[0], g)
    xp.concat([flat(g), 0 * E])[: E.shape[0]]
rows by rank: h = one_hot(np.unique(np.asarray(i), return_inverse=True)[1], E.shape[0], g)
only the rows that occur: (flat(h).mT @ flat(g))[np.unique(np.asarray(i))]
gathered for scattered: g[i % g.shape[0]]
table added: flat(h).mT @ flat(g) + E
step taken: E - flat(h).mT @ flat(g)
    E - 0.1 * (flat(h).mT @ flat(g))
rows of the table in front: h.mT @ (g * E[i])
last token lost: h[:-1].mT @ g[:-1]
first token lost: h[1:].mT @ g[1:]
last row left out: xp.flip(but_row_0(xp.flip(flat(h).mT @ flat(g), axis=0)), axis=0)
id 0 taken for padding: but_row_0(flat(h).mT @ flat(g))
grad_output ignored: h.mT @ array_namespace(g).ones_like(g)
id one too small: h = one_hot(i - 1, E.shape[0], g)
id one too large: h = one_hot((i + 1) % E.shape[0], E.shape[0], g)
ids counted from the end: h = one_hot(E.shape[0] - 1 - i, E.shape[0], g)
transposed: g.mT @ h
gradient negated: -(flat(h).mT @ flat(g))
batch not summed: h.mT @ g
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
