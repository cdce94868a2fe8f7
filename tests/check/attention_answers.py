"""Answers that readers might hand in, right and wrong, each written as a reader would.

Most run on NumPy and PyTorch alike, so that one answer can be tested in both. A wrong answer stands
under the name of the mistake that its check must find; several under one name are told apart by a
number, as in "no scale 2".
"""

import inspect
import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
from answer_programs import Program
from array_api_compat import array_namespace, device

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


def own_place(scores):
    xp, at = array_namespace(scores), device(scores)
    n_q, n_k = scores.shape[-2:]
    return xp.eye(n_q, n_k, dtype=scores.dtype, device=at)


def all_but(scores, place):
    n = scores.shape[-1]
    return array_namespace(scores).arange(n, device=device(scores)) != place % n


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


# Softmax.


SOFTMAX_PROGRAM = program("""
x
e = exp(x)
shifted_e = exp(x - top(x))
out = shifted_e / total(shifted_e)
""")
SOFTMAX = SOFTMAX_PROGRAM.wrong("""
wrong axis: sm(x, 0)
    sm(x, -2)
one sum for all: e / xp.sum(e)
not normalised: e
    shifted_e
scores returned: x - top(x)
length instead of sum: shifted_e / total(shifted_e * shifted_e) ** 0.5
    unit(x)
no exponential: x / total(x)
squares or absolute values: x * x / total(x * x)
    abs(x) / total(abs(x))
logarithm returned: x - xp.log(total(e))
base 2: sm(x * math.log(2))
base 10: sm(x * math.log(10))
sign of the scores: sm(-x)
softmax twice: sm(sm(x))
hard maximum: one_hot(x)
sigmoid: e / (1 + e)
keepdims forgotten: shifted_e / total(shifted_e, keepdims=False)
    shifted(x, top(x, keepdims=False))
    exp(x - top(x, keepdims=False)) / total(exp(x - top(x, keepdims=False)), keepdims=False)
    e / total(e, keepdims=False)
no maximum: e / total(e)
maximum of the whole array: shifted(x, xp.max(x))
not the maximum: shifted(x, -top(-x))
    shifted(x, total(x) / x.shape[-1])
    shifted(x, x[..., :1])
    shifted(x, np.median(np.asarray(x), axis=-1, keepdims=True))
axis 1 of a batch: sm(x, 1)
one added to the sum: e / (1 + total(e))
    shifted_e / (total(shifted_e) + 1e-3)
temperature: sm(2 * x)
    sm(x / 10)
scores clipped: sm(xp.clip(x, -1, 1))
    sm(xp.clip(x, max=50))
    sm(xp.tanh(x))
scores normalised: sm(unit(x))
    sm(x / xp.max(x))
divided by another number: e / xp.prod(e, axis=-1, keepdims=True)
one left out of the sum: shifted_e / total(shifted_e[..., :-1])
    shifted_e / total(shifted_e[..., 1:])
""") | SOFTMAX_PROGRAM.taking("axis=-1").wrong("axis ignored: out = sm(x)")


# Weights, which are wrong in attention, in a head, in heads and in a gradient as well.


WEIGHTS_PROGRAM = program("""
q, k
d = q.shape[-1]
s = q @ k.mT / d**0.5
w = sm(s)
""")
WEIGHT_MISTAKES = """
no scale: s = q @ k.mT
scale by d_k: s = q @ k.mT / d
scale multiplied: s = q @ k.mT * d**0.5
scale by √n_k: s = q @ k.mT / len(k) ** 0.5
scale by √n_q: s = q @ k.mT / len(q) ** 0.5
scale after the softmax: w = sm(q @ k.mT) / d**0.5
softmax over the query axis: w = sm(s, 0)
    w = sm(s) / total(sm(s), -2)
no softmax: w = s
key not transposed: s = q @ k / d**0.5
cosine similarity: s = unit(q) @ unit(k).mT
    s = unit(q) @ unit(k).mT / d**0.5
not normalised: w = exp(s)
    w = exp(s - top(s))
no exponential: w = s / total(s)
one sum for all: w = exp(s) / array_namespace(s).sum(exp(s))
sign of the scores: w = sm(-s)
softmax twice: w = sm(sm(s))
logarithm returned: w = array_namespace(s).log(sm(s))
sigmoid: w = 1 / (1 + exp(-s))
hard maximum: w = one_hot(s)
scores ignored: w = sm(s * 0)
keepdims forgotten: w = SOFTMAX["keepdims forgotten"](s)
    w = SOFTMAX["keepdims forgotten 2"](s)
    w = SOFTMAX["keepdims forgotten 3"](s)
    w = SOFTMAX["keepdims forgotten 4"](s)
no maximum: w = exp(s) / total(exp(s))
maximum of the whole array: w = shifted(s, array_namespace(s).max(s))
not the maximum: w = shifted(s, -top(-s))
    w = shifted(s, total(s) / s.shape[-1])
temperature: w = sm(s / 2)
scores clipped: w = sm(array_namespace(s).clip(s, -10, 10))
scores normalised: w = sm(s / array_namespace(s).max(s))
another power of d_k: s = q @ k.mT / (d + 1) ** 0.5
own place hidden: w = sm(s) * (own_place(s) == 0)
one key left out: w = sm(s) * as_numbers(all_but(s, -1), s)
    w = sm(hidden(s, all_but(s, 0))) if s.shape[-1] > 1 else sm(s)
all axes reversed: s = q @ k.T / d**0.5
    s = q @ k.T / q.shape[1] ** 0.5
    w = sm(q @ k.T / k.shape[1] ** 0.5, 1)
    s = q @ k.T / k.shape[1] ** 0.5
softmax over axis 1 of a batch: w = sm(s, 1)
    w = sm(q @ k.mT / q.shape[1] ** 0.5, 1)
width from shape[1]: s = q @ k.mT / k.shape[1] ** 0.5
    s = q @ k.mT / q.shape[1] ** 0.5
"""
MASK_MISTAKES = """
mask inverted: safe_softmax(hidden(s, mask == 0))
mask ignored: sm(s)
mask multiplies the scores: sm(s * mask)
mask added to the scores: sm(s + as_numbers(mask, s))
mask transposed: safe_softmax(hidden(s, mask.mT))
mask after the softmax: sm(s) * mask
mask after the exponential: sm(s) * mask / total(sm(s) * as_numbers(mask, s))
mask with a large negative number: sm(hidden(s, mask, -1e9))
    sm(hidden(s, mask, -10000))
    sm(s - 1e9 * (1 - as_numbers(mask, s)))
    sm(s - 1e6 * (1 - as_numbers(mask, s)))
    sm(s - 1e4 * (1 - as_numbers(mask, s)))
hidden scores not low enough: sm(hidden(s, mask, -3.0))
    sm(s - 2 * (1 - as_numbers(mask, s)))
mask in another order: safe_softmax(hidden(s, array_namespace(mask).roll(mask, 1, axis=-1)))
own place always visible: safe_softmax(hidden(s, mask | (own_place(s) == 1)))
empty row NaN: sm(hidden(s, mask))
empty row uniform: sm(hidden(s, mask, array_namespace(s).finfo(s.dtype).min))
    sm(hidden(s, mask, -1e20))
"""
OPTION_MISTAKES = {
    "scale=None": """
scale ignored: w = sm(s)
scale on top of 1/√d_k: w = sm(s if scale is None else s * scale)
scale divides: s = q @ k.mT / (scale or d**0.5)
""",
    "bias=None": """
bias ignored: w = sm(s)
bias before the scale: s = (q @ k.mT + (0 if bias is None else bias)) / d**0.5
bias subtracted: w = sm(s if bias is None else s - bias)
bias multiplies the scores: w = sm(s if bias is None else s * bias)
bias after the softmax: w = sm(s) + (0 if bias is None else bias)
""",
}
HIDE = "w = sm(s) if mask is None else …"


def with_weights(program, options=True):
    """Return the answers with wrong weights of a program that has the lines of the weights."""
    found = program.wrong(WEIGHT_MISTAKES) | program.taking("mask=None", HIDE).wrong(MASK_MISTAKES)
    for option, mistakes in OPTION_MISTAKES.items() if options else ():
        found |= program.taking(option).wrong(mistakes)
    return found


WEIGHTS = with_weights(WEIGHTS_PROGRAM) | WEIGHTS_PROGRAM.wrong("""
np.dot on a batch: w = sm(dot(q, k.mT) / d**0.5)
transposed: w = right_weights(k, q)
    w = right_weights(q, k).mT
""")

ATTENTION_PROGRAM = program(f"q, k, v{WEIGHTS_PROGRAM.lines}out = w @ v")
RENAMED = {"scores ignored": "mean of the values", "hard maximum": "hard look-up"}
ATTENTION = {
    RENAMED.get(name, name): answer for name, answer in with_weights(ATTENTION_PROGRAM).items()
} | ATTENTION_PROGRAM.wrong("""
np.dot on a batch: out = dot(w, v)
    w = sm(dot(q, k.mT) / d**0.5)
    out = dot(sm(dot(q, k.mT) / d**0.5), v)
weights returned: out = w
values not mixed: out = v * 1
query and key swapped: w = right_weights(k, q)
weights transposed: out = w.mT @ v
elementwise product: out = w * v
values transposed: out = w @ v.mT
value used as key: w = right_weights(q, v)
key used as value: out = w @ k
query compared with itself: w = right_weights(q, q)
scale by √d_v: s = q @ k.mT / v.shape[-1] ** 0.5
values in another order: out = w @ xp.flip(v, axis=-2)
    out = w @ xp.roll(v, 1, axis=-2)
values not weighed: out = 0 * (w @ v) + total(v, -2)
    out = 0 * (w @ v) + top(v, -2)
""")


# Learned heads, one or many.


PROJECTIONS = """
xa = x @ A
yb = y @ B
zc = z @ C
"""
PROJECTION_MISTAKES = """
values not projected: zc = z
keys not projected: yb = y
queries not projected: xa = x
nothing projected: xa = x; yb = y; zc = z
W transposed: xa = x @ A.T; yb = y @ B.T; zc = z @ C.T
W_Q used for the keys: yb = y @ A
W_K used for the queries: xa = x @ B
W_Q and W_K swapped: xa = x @ B; yb = y @ A
W_K used for the values: zc = z @ B
self-attention only: yb = x @ B; zc = x @ C
    yb = x @ B
values from the key: zc = y @ C
key and value exchanged: yb = z @ B; zc = y @ C
queries from the key: xa = y @ A
"""
HEAD_PROGRAM = program(
    f"x, y, z, A, B, C{PROJECTIONS}q = xa\nk = yb\nv = zc{ATTENTION_PROGRAM.lines}"
)
right_head = HEAD_PROGRAM.but()
SINGLE_HEAD = (
    with_weights(HEAD_PROGRAM, options=False)
    | HEAD_PROGRAM.wrong(f"""{PROJECTION_MISTAKES}self-attention only: zc = x @ C
W transposed: xa = x @ A.T
    yb = y @ B.T
    zc = z @ C.T
scale by d_model: s = q @ k.mT / x.shape[-1] ** 0.5
    s = q @ k.mT / y.shape[-1] ** 0.5
scale by √d_v: s = q @ k.mT / v.shape[-1] ** 0.5
""")
    | HEAD_PROGRAM.taking("W_O=None").wrong("""
W_O forgotten: out = w @ v
W_O transposed: out = w @ v if W_O is None else w @ v @ W_O.T
""")
)


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


def stack(xs, axis):
    return array_namespace(xs[0]).stack(xs, axis=axis)


def columns(x, h, i):
    d = x.shape[-1] // h
    return x[..., i * d : (i + 1) * d]


SPLIT_HEADS = program("x, h\nheads = [columns(x, h, i) for i in range(h)]\nout = heads").wrong("""
list of heads: heads
    tuple(heads)
bare reshape: x.reshape(*x.shape[:-2], h, x.shape[-2], x.shape[-1] // h)
heads shifted by one: stack([*heads[1:], heads[0]], -3)
    stack([heads[-1], *heads[:-1]], -3)
one head left out: stack([*heads[:-1], 0 * heads[-1]], -3)
    stack([0 * heads[0], *heads[1:]], -3)
axes not exchanged: x.reshape(*x.shape[:-1], h, -1)
    stack(heads, -2)
interleaved features: cut_in_bands(x, h)
    stack([x[..., i::h] for i in range(h)], -3)
    x.reshape(*x.shape[:-1], -1, h).swapaxes(-1, -2)
    x.reshape(*x.shape[:-1], -1, h)
heads last: stack(heads, -1)
features before tokens: right_split(x, h).mT
axes reversed: x.reshape(*x.shape[:-1], h, x.shape[-1] // h).T
heads in reverse: stack(heads[::-1], -3)
cut along the sequence: x.reshape(h, len(x) // h, x.shape[-1])
    stack([x[..., i * x.shape[-2] // h : (i + 1) * x.shape[-2] // h, :] for i in range(h)], -3)
number and width swapped: x.reshape(*x.shape[:-1], -1, h).swapaxes(-2, -3)
    stack([x[..., i : i + h] for i in range(0, x.shape[-1], h)], -3)
not split: x
    x[..., None, :, :]
axes counted from the front: x.reshape(*x.shape[:-1], h, -1).swapaxes(0, 1)
batch in the sequence: x.reshape(-1, h, x.shape[-1] // h).swapaxes(0, 1)
column by column: np.asarray(x).reshape((h, len(x), -1), order="F")
full width kept: stack([x] * h, -3)
heads below each other: array_namespace(x).concat(heads, axis=-2)
heads missing: heads[0]
    stack(heads, -3)[..., :-1, :, :]
""")

HEADS_PROGRAM = program(f"""
x, y, z, A, B, C, W, h
{PROJECTIONS}
split = right_split
q = split(xa, h)
k = split(yb, h)
v = split(zc, h)
{WEIGHTS_PROGRAM.lines}
a = w @ v
join = right_join
joined = join(a)
out = joined @ W
""")
right_heads = HEADS_PROGRAM.taking("mask=None").but("w = right_weights(q, k, mask)")


def sequence_first(x, y, z, *others):
    if x.ndim == 2:
        raise ValueError("expected (n, batch, width)")
    turned = (a.swapaxes(0, 1) for a in (x, y, z))
    return right_heads(*turned, *others).swapaxes(0, 1)


def averaged_through_blocks(x, W):
    h = x.shape[-3]
    return sum(x[..., i, :, :] @ W.reshape(h, -1, W.shape[-1])[i] for i in range(h)) / h


def one_head_masked(scores, mask):
    xp = array_namespace(scores)
    rest = [safe_softmax(scores[..., i, :, :]) for i in range(1, scores.shape[-3])]
    shape = scores[..., 0, :, :].shape
    first = xp.broadcast_to(mask, shape) if mask.ndim == 2 else mask[..., 0, :, :]
    return xp.stack([safe_softmax(hidden(scores[..., 0, :, :], first)), *rest], axis=-3)


MULTI_HEAD_ATTENTION = (
    {
        name: answer
        for name, answer in with_weights(HEADS_PROGRAM, options=False).items()
        if not re.match("all axes|softmax over|width from|scale by √n", name)
    }
    | HEADS_PROGRAM.wrong(f"""{PROJECTION_MISTAKES}
scale by √n_k: s = q @ k.mT / y.shape[-2] ** 0.5
scale by √n_q: s = q @ k.mT / x.shape[-2] ** 0.5
softmax over the query axis: w = sm(s, -2)
softmax over the heads: w = sm(s, 0)
softmax over axis 2 of a batch: w = sm(s, 2)
bare reshape in the split: split = reshaped_split
    q = reshaped_split(xa, h); k = reshaped_split(yb, h)
    v = reshaped_split(zc, h)
bare reshape in the join: join = reshaped_join
bare reshape in both: split = reshaped_split; join = reshaped_join
attention between heads: split = lambda x, h: x.reshape(*x.shape[:-1], h, -1);
        join = lambda x: x.reshape(*x.shape[:-2], -1)
cut along the sequence: split = lambda x, h: x.reshape(
        *x.shape[:-2], h, x.shape[-2] // h, x.shape[-1]); joined = a.reshape(*x.shape[:-1], -1)
sequence before batch: out = sequence_first(x, y, z, A, B, C, W, h)
    out = (sequence_first if x.ndim > 2 else right_heads)(x, y, z, A, B, C, W, h)
interleaved features: split = cut_in_bands; join = join_bands
    split = cut_in_bands
    join = join_bands
heads joined in reverse: joined = right_join(xp.flip(a, axis=-3))
one big head: out = right_attention(xa, yb, zc) @ W
    out = sm(xa @ yb.mT / (A.shape[1] / h) ** 0.5) @ zc @ W
one head alone: out = a[..., 0, :, :]
    out = a[..., -1, :, :]
    out = a[..., 0, :, :] @ W[: a.shape[-1]]
    out = a[..., -1, :, :] @ W[-a.shape[-1] :]
one head for all: joined = xp.concat([a[..., 0, :, :]] * h, axis=-1)
heads averaged: out = xp.mean(a, axis=-3)
    out = averaged_through_blocks(a, W)
    out = xp.mean(a, axis=-3) @ W[: a.shape[-1]]
    out = right_join(a * 0 + xp.mean(a, axis=-3)[..., None, :, :]) @ W
heads summed: out = total(a, -3, keepdims=False)
    out = total(a, -3, keepdims=False) @ W[: a.shape[-1]]
    out = right_join(a * 0 + total(a, -3)) @ W
weights averaged over the heads: out = xp.mean(w, axis=-3) @ zc @ W
scale by √d_model: s = q @ k.mT / A.shape[1] ** 0.5
    s = q @ k.mT / x.shape[-1] ** 0.5
scale by √h: s = q @ k.mT / h**0.5
scale from the width of the input: s = q @ k.mT / (x.shape[-1] / h) ** 0.5
    s = q @ k.mT / (x.shape[-1] // h) ** 0.5
scale by √d_v: s = q @ k.mT / (C.shape[1] // h) ** 0.5
W_O forgotten: out = joined
W_O transposed: out = joined @ W.T
one head left out: joined = right_join(stack([a[..., i, :, :] * (i > 0) for i in range(h)], -3))
keys or values of another head: v = xp.roll(split(zc, h), 1, axis=-3)
number and width swapped: split = lambda x, h: right_split(x, x.shape[-1] // h)
axes counted from the front: split = lambda x, h: x.reshape(*x.shape[:-1], h, -1).swapaxes(0, 1);
        join = lambda x: x.swapaxes(0, 1).reshape(*x.swapaxes(0, 1).shape[:-2], -1)
""")
    | HEADS_PROGRAM.taking("mask=None", HIDE).wrong("mask on one head: one_head_masked(s, mask)")
    | HEADS_PROGRAM.taking("mask=None", HIDE.replace("…", "safe_softmax(hidden(s, …))")).wrong("""
mask broadcast over the wrong axis: mask[:, None]
    mask[:, 0] if mask.ndim == 4 else mask
    mask[..., None, :]
mask of the first sequence: mask[0] if mask.ndim == 4 else mask
""")
)


# Gradients.


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
no scale in the gradients: ds = w * (dw - total(w * dw))
    dq = ds @ k / c
    dk = ds.mT @ q / c
no scale: c = 1
scale forgotten in the weights: s = q @ k.mT
scale twice: ds = w * (dw - total(w * dw)) * c * c
    dq = ds @ k * c
    dk = ds.mT @ q * c
second term of the softmax Jacobian: ds = w * dw * c
first term of the softmax Jacobian: ds = -w * total(w * dw) * c
weights in the place of their gradient: ds = w * c
grad_output left out: dw = (g * 0 + 1) @ v.mT
grad_value averaged: dv = w.mT @ g / g.shape[-2]
weights left out of grad_value: dv = total(g, -2) + 0 * v
diagonal of the softmax Jacobian: ds = (w * dw - w * w * dw) * c
softmax skipped: ds = dw * c
sum over the wrong axis: ds = w * (dw - total(w * dw, 0)) * c
    ds = w * (dw - xp.sum(w * dw)) * c
keepdims forgotten: ds = w * (dw - total(w * dw, keepdims=False)) * c
sum without the weights: ds = w * (dw - total(dw)) * c
    ds = w * (dw - total(dw) / dw.shape[-1]) * c
sign: ds = w * (total(w * dw) - dw) * c
sign of the second term: ds = w * (dw + total(w * dw)) * c
grad_query and grad_key swapped: out = (dk, dq, dv)
order of the gradients: out = (dv, dk, dq)
    out = (dv, dq, dk)
    out = (dq, dv, dk)
    out = (dk, dv, dq)
weights not transposed in grad_value: dv = w @ g
scores not transposed in grad_key: dk = ds @ q
scores transposed in grad_query: dq = ds.mT @ k
grad_query from the wrong factor: dq = ds @ v
    dq = ds @ q
grad_key from the wrong factor: dk = ds.mT @ k
    dk = ds.mT @ v
value not transposed: dw = g @ v
grad_output ignored: dw = (g * 0 + 1) @ v.mT; dv = w.mT @ (g * 0 + 1)
scale by d_k: c = 1 / d
softmax over the query axis: w = sm(s, 0)
softmax twice: w = sm(sm(s))
key not transposed: s = q @ k * c
no maximum: w = exp(s) / total(exp(s))
maximum of the whole array: w = shifted(s, xp.max(s))
not the maximum: w = shifted(s, -top(-s))
all axes reversed: s = q @ k.T * c; dw = g @ v.T; dk = ds.T @ q; dv = w.T @ g
    s = q @ k.T / q.shape[1] ** 0.5; dw = g @ v.T; dk = ds.T @ q; dv = w.T @ g
    dw = g @ v.T; dk = ds.T @ q; dv = w.T @ g
width from shape[1]: c = k.shape[1] ** -0.5
softmax over axis 1 of a batch: w = sm(s, 1)
""")
    | {
        name: answer
        for name, answer in VJP_PROGRAM.taking("mask=None", HIDE).wrong(MASK_MISTAKES).items()
        if re.fullmatch(r"mask ignored|mask inverted|.* negative number|empty row \w+", name)
    }
    | VJP_PROGRAM.taking("scale=None").wrong("scale ignored: w = sm(s)")
    | VJP_PROGRAM.taking("bias=None").wrong("bias ignored: w = sm(s)")
)


# Masks.


def right_causal(n_q, n_k):
    return np.tri(n_q, n_k, n_k - n_q, dtype=bool)


CAUSAL_PROGRAM = program("""
n_q, n_k
s = n_k - n_q
i = np.arange(n_q)[:, None]
j = np.arange(n_k)
right = right_causal(n_q, n_k)
out = right
""")
CAUSAL_MASK = CAUSAL_PROGRAM.wrong("""
additive mask: np.where(right, 0, -np.inf)
    np.triu(np.full((n_q, n_k), -1e9), 1)
numbers for booleans: np.tri(n_q, n_k, n_k - n_q)
    np.tri(n_q, n_k, dtype=int)
inverted: ~right
upper triangle: i + s <= j
own place hidden: j < i + s
next place visible: j <= i + s + 1
everything visible: np.ones((n_q, n_k), dtype=bool)
diagonal two places off: j <= i + s + 2
neighbour alone: j == i + s - 1
short window: (j <= i + s) & (j > i + s - 3)
diagonal alone: np.eye(n_q, n_k, n_k - n_q, dtype=bool)
aligned to the first key: np.tri(n_q, n_k, dtype=bool)
    ~(j > i)
offset never negative: np.tri(n_q, n_k, max(s, 0), dtype=bool)
    j <= i + abs(s) / 2 + s / 2
offset with the wrong sign: np.tri(n_q, n_k, -s, dtype=bool)
shape transposed: right_causal(n_k, n_q)
    right.T
    np.tri(n_k, n_q, dtype=bool)
square only: np.tri(n_k, dtype=bool)
    np.tri(n_q, dtype=bool)
    np.tri(max(n_q, n_k), dtype=bool)
""") | {
    "additive mask 3": lambda n: np.where(np.tri(n) == 0, np.finfo(np.float32).min, 0),
    "inverted 2": lambda n: np.triu(np.ones((n, n), dtype=bool), 1),
}


def guarded(e, guard=1):
    return e / (total(e) + (total(e) == 0) * guard)


def shifted_by_all(s, seen, mask, guard=0):
    """Multiply exponentials by the mask, after the maximum of all keys."""
    return guarded(exp(seen - top(seen)) * as_numbers(mask, s), guard)


def least_visible(s):
    xp = array_namespace(s)
    low = -top(-xp.where(s == -math.inf, xp.full_like(s, math.inf), s))
    return xp.where(low == math.inf, xp.zeros_like(low), low)


def causal_like(s, aligned):
    """Return a causal mask, aligned to the first key (0) or to the last (1)."""
    xp, (n_q, n_k) = array_namespace(s), s.shape[-2:]
    places = xp.arange(n_q, device=device(s))[:, None] + aligned * (n_k - n_q)
    return xp.arange(n_k, device=device(s)) <= places


def column(mask):
    return mask[:, None] if mask.ndim == 1 else mask.mT


def one_row(mask):
    return mask.ndim == 1 or mask.shape[-2] == 1


MASKED_PROGRAM = program("""
q, k, v, mask
d = q.shape[-1]
s = q @ k.mT / d**0.5
seen = mask
h = hidden(s, seen)
w = safe_softmax(h)
out = w @ v
""")
MASKED_ATTENTION = {
    name: answer
    for name, answer in replace(MASKED_PROGRAM, form="w = …").wrong(MASK_MISTAKES).items()
    if not re.fullmatch("mask with a large negative number [25]", name)
} | MASKED_PROGRAM.wrong("""
np.dot on a batch: out = dot(w, v)
no scale: s = q @ k.mT
scale by d_k: s = q @ k.mT / d
scale multiplied: s = q @ k.mT * d**0.5
softmax over the query axis: w = sm(h, -2)
key not transposed: s = q @ k / d**0.5
softmax twice: w = sm(safe_softmax(h))
sign of the scores: s = q @ k.mT / -(d**0.5)
hard look-up: w = one_hot(h)
no maximum: w = exp(h) / total(exp(h))
maximum of the whole array: w = shifted(h, xp.max(h))
not the maximum: w = guarded(exp(h - h[..., :1] * 0 - least_visible(h)))
all axes reversed: s = q @ k.T / d**0.5
width from shape[1]: s = q @ k.mT / k.shape[1] ** 0.5
softmax over axis 1 of a batch: w = safe_softmax(h, 1)
weights returned: out = w
key used as value: out = w @ k
mean of the visible values: s = 0 * (q @ k.mT)
one row made of the mask: seen = mask[..., -1:, :] if mask.ndim > 1 else mask
temperature: s = q @ k.mT / d**0.5 / 2
values in another order: out = w @ xp.flip(v, axis=-2)
one key left out: w = safe_softmax(hidden(h, all_but(h, -1)))
first visible key alone: w = one_hot(as_numbers(mask, s))
rows with a hidden key NaN: w = safe_softmax(hidden(s, mask, math.nan))
    w = sm(hidden(s, mask, math.inf))
    w = shifted(h, xp.mean(h, axis=-1, keepdims=True))
score 0 taken for hidden: seen = s * mask != 0
another mask: seen = xp.tril(xp.ones_like(mask))
    seen = causal_like(s, 0)
    seen = causal_like(s, 1)
empty row sees everything: seen = mask | (as_numbers(mask, v).sum(-1)[..., None] == 0)
0 times infinity: w = sm(s + (1 - as_numbers(mask, s)) * -math.inf)
mask with −10⁴: w = sm(hidden(s, mask, -1e4))
    w = sm(s - 1e4 * (1 - as_numbers(mask, s)))
    w = sm(hidden(s, mask, -1000.0))
hidden keys in the maximum: w = shifted_by_all(s, s * as_numbers(mask, s), mask)
    w = shifted_by_all(s, hidden(s, mask, 0.0), mask, guard=1)
    w = shifted_by_all(s, hidden(s, mask, -1e4), mask)
    w = shifted_by_all(s, hidden(s, mask, -1e4), mask, guard=1)
    w = shifted_by_all(s, hidden(s, mask, -1e9), mask)
    w = shifted_by_all(s, hidden(s, mask, -1e9), mask, guard=1)
padding on the query side: seen = column(mask) if one_row(mask) else mask
    out = sm(s) @ v * column(mask) if one_row(mask) else w @ v
    w = sm(hidden(s, column(mask))) if one_row(mask) else safe_softmax(h)
outputs of padding zeroed: out = w @ v * (column(mask) if one_row(mask) else 1)
mask of the first sequence: seen = mask[0] if mask.ndim == 3 else mask
mask broadcast over the wrong axis: seen = mask[:, 0] if mask.ndim == 3 and mask.shape[1] == 1
        else mask
""")
MASKED_ATTENTION["mask after the exponential 2"] = MASKED_PROGRAM.but(
    "w = shifted_by_all(s, s, mask)"
)


# Merges.


MERGE_PROGRAM = program("""
first, second
xp = array_namespace(first[0])
m1 = first[0]
z1 = first[1]
u1 = first[2]
m2 = second[0]
z2 = second[1]
u2 = second[2]
m = xp.maximum(m1, m2)
safe = xp.where(m == -xp.inf, xp.zeros_like(m), m)
f1 = xp.exp(m1 - safe)
f2 = xp.exp(m2 - safe)
z = f1 * z1 + f2 * z2
u = f1 * u1 + f2 * u2
out = (m, z, u)
""")
MERGE_ATTENTION = MERGE_PROGRAM.wrong("""
no rescaling: z = z1 + z2; u = u1 + u2
total not rescaled: z = z1 + z2
weighted not rescaled: u = u1 + u2
one part rescaled: f2 = xp.ones_like(m2)
    f1 = xp.ones_like(m1)
    z = f1 * z1 + z2
    u = u1 + f2 * u2
factors exchanged: f1 = xp.exp(m2 - safe); f2 = xp.exp(m1 - safe)
    z = f2 * z1 + f1 * z2
    u = f2 * u1 + f1 * u2
factors divided by their sum: f1 = 1 / (1 + xp.exp(m2 - m1)); f2 = 1 / (1 + xp.exp(m1 - m2))
smooth maximum: m = xp.log(xp.exp(m1) + xp.exp(m2))
    out = (xp.log(xp.exp(m1) + xp.exp(m2)), z, u)
    out = (m + xp.log(z), z, u)
maximum from 0: m = xp.maximum(xp.maximum(m1, m2), 0 * z1)
sign of the exponent: f1 = xp.exp(m - m1); f2 = xp.exp(m - m2)
minimum: m = xp.minimum(m1, m2)
    f1 = xp.exp(m1 - xp.minimum(m1, m2)); f2 = xp.exp(m2 - xp.minimum(m1, m2))
one part's maximum for both: m = m2; f2 = 1
    m = m1; f1 = 1; f2 = xp.exp(m2 - m1)
    f1 = xp.exp(m1 - m2); f2 = 1
sum or mean of the maxima: m = (m1 + m2) / 2
    m = m1 + m2
one maximum for all rows: m = xp.max(xp.maximum(m1, m2)) + xp.zeros_like(m1)
maximum not updated: out = (m1, z, u)
    out = (m2, z, u)
no maximum: f1 = xp.exp(m1); f2 = xp.exp(m2)
    f1 = xp.exp(-m1); f2 = xp.exp(-m2)
    m = xp.zeros_like(m1); f1 = xp.exp(m1); f2 = xp.exp(m2)
    f1 = xp.exp(m1) / xp.exp(m); f2 = xp.exp(m2) / xp.exp(m)
one part dropped: out = (m1, z1, u1)
    out = (m2, z2, u2)
    out = tuple(xp.where(m1 > m2, a, b) for a, b in ((m1, m2), (z1, z2), (u1, u2)))
outputs added: u = u1 / z1 + u2 / z2
    u = (u1 / z1 + u2 / z2) / 2
    u = f1 * u1 / z1 + f2 * u2 / z2
divided already: u = (f1 * u1 + f2 * u2) / (f1 * z1 + f2 * z2)
    u = (f1 * u1 + f2 * u2) / (f1 * z1 + f2 * z2); out = (m, xp.ones_like(z), u)
log-sum-exp for the maximum: out = (m + xp.log(z), xp.ones_like(z), u / z)
weighted taken for an output: u = f1 * z1 * u1 + f2 * z2 * u2
    u = (f1 * z1 * u1 + f2 * z2 * u2) / (f1 * z1 + f2 * z2)
rescaled twice: f1 = xp.exp(m1 - safe) ** 2; f2 = xp.exp(m2 - safe) ** 2
    u = f1 * f1 * u1 + f2 * f2 * u2
base 2: f1 = 2 ** (m1 - safe); f2 = 2 ** (m2 - safe)
no exponential: f1 = m1 - m; f2 = m2 - m
    f1 = m1 / m; f2 = m2 / m
maximum and total exchanged: out = (z, m, u)
empty parts NaN: safe = m
    f1 = xp.exp(xp.minimum(m1 - m2, 0 * z1)); f2 = xp.exp(xp.minimum(m2 - m1, 0 * z1))
total of nothing: out = (m, xp.where(z == 0, xp.ones_like(z), z), u)
logarithm of the total: out = (m, xp.log(z), u)
    z = xp.log(xp.exp(z1) + xp.exp(z2))
one empty row for all: out = second if xp.any(m1 == -xp.inf) else (m, z, u)
maximum of nothing: out = (safe, z, u)
    out = (xp.where(m == -xp.inf, xp.full_like(m, -1e9), m), z, u)
""")

WRONG = {
    "softmax": SOFTMAX,
    "attention_weights": WEIGHTS,
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
    "attention": ATTENTION_PROGRAM.wrong("""
no scale; no softmax: out = q @ k.mT @ v
no scale; softmax over the query axis: w = sm(q @ k.mT, 0)
scale by d_k; softmax twice: w = sm(sm(q @ k.mT / d))
scale by √n_k; key used as value: out = sm(q @ k.mT / len(k) ** 0.5) @ k
no scale; no maximum: s = q @ k.mT; w = exp(s) / total(exp(s))
"""),
    "attention_weights": WEIGHTS_PROGRAM.taking("mask=None").wrong("""
scale by d_k; mask inverted: s = q @ k.mT / d; w = sm(s if mask is None else hidden(s, ~mask))
no scale; mask after the softmax: s = q @ k.mT; w = sm(s) * (1 if mask is None else mask)
"""),
    "softmax": SOFTMAX_PROGRAM.wrong("""
wrong axis; base 2: out = 2**x / total(2**x, 0)
sign of the scores; logarithm returned: out = xp.log(sm(-x))
wrong axis; no maximum: out = exp(x) / total(exp(x), -2)
base 2; no maximum: out = 2**x / total(2**x)
divided by another number; no maximum: out = e / top(-e) * -1
"""),
    "multi_head_attention": HEADS_PROGRAM.wrong("""
scale by √d_model; W_O forgotten: s = q @ k.mT / x.shape[-1] ** 0.5; out = joined
bare reshape in the join; no scale: s = q @ k.mT; join = reshaped_join
"""),
    "single_head": HEAD_PROGRAM.wrong("no scale; values not projected: s = q @ k.mT; zc = z"),
    "attention_vjp": VJP_PROGRAM.wrong(
        "scale in grad_value; second term of the softmax Jacobian: ds = w * dw * c; "
        "dv = w.mT @ g * c"
    ),
    "causal_mask": CAUSAL_PROGRAM.wrong("""
inverted; aligned to the first key: j > i
upper triangle; aligned to the first key: np.triu(np.ones((n_q, n_k), dtype=bool))
upper triangle; offset with the wrong sign: np.triu(np.ones((n_q, n_k), dtype=bool), n_q - n_k)
shape transposed; aligned to the first key: np.tri(n_q, n_k, dtype=bool).T
own place hidden; aligned to the first key: np.tri(n_q, n_k, -1, dtype=bool)
next place visible; aligned to the first key: np.tri(n_q, n_k, 1, dtype=bool)
diagonal alone; aligned to the first key: np.eye(n_q, n_k, dtype=bool)
""")
    | {"next place visible; inverted": lambda n: ~np.tri(n, n, 1, dtype=bool)},
    "merge_attention": MERGE_PROGRAM.wrong("""
total not rescaled; maximum not updated: z = z1 + z2; out = (m1, z, u)
factors exchanged; empty parts NaN: f1 = xp.exp(m2 - m); f2 = xp.exp(m1 - m)
one part rescaled; sum or mean of the maxima: f2 = xp.ones_like(m2); out = (m1 + m2, z, u)
"""),
}


def in_float32(answer):
    """Return the answer of a reader who turns everything into float32."""

    def narrow(*arrays, **options):
        options = {name: _narrowed(x) for name, x in options.items()}
        return answer(*map(_narrowed, arrays), **options)

    narrow.__signature__ = inspect.signature(answer)
    return narrow


def _narrowed(x):
    if isinstance(x, float | int):
        return x
    if isinstance(x, tuple):
        return tuple(map(_narrowed, x))
    xp = array_namespace(x)
    return x if x.dtype == xp.bool else xp.astype(x, xp.float32)


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
