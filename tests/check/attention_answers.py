"""Answers that readers might hand in, right and wrong, each written as a reader would.

Most run on NumPy and PyTorch alike, so that one answer can be tested in both. A wrong answer stands
under the name of the mistake that its check must find; several under one name are told apart by a
number, as in "no scale 2".
"""

import inspect
import math
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
wrong axis: sm(x, -2)
not normalised: shifted_e
length instead of sum: unit(x)
logarithm returned: x - xp.log(total(e))
no maximum: e / total(e)
not the maximum: shifted(x, np.median(np.asarray(x), axis=-1, keepdims=True))
axis 1 of a batch: sm(x, 1)
""") | SOFTMAX_PROGRAM.taking("axis=-1").wrong("axis ignored: out = sm(x)")


# Weights, which are wrong in attention, in a head, in heads and in a gradient as well.


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


# Learned heads, one or many.


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


def right_split(x, h):
    return x.reshape(*x.shape[:-1], h, x.shape[-1] // h).swapaxes(-2, -3)


def right_join(x):
    return x.swapaxes(-2, -3).reshape(*x.shape[:-3], x.shape[-2], -1)


def reshaped_join(x):
    return x.reshape(*x.shape[:-3], x.shape[-2], -1)


def stack(xs, axis):
    return array_namespace(xs[0]).stack(xs, axis=axis)


def columns(x, h, i):
    d = x.shape[-1] // h
    return x[..., i * d : (i + 1) * d]


SPLIT_HEADS = program("x, h\nheads = [columns(x, h, i) for i in range(h)]\nout = heads").wrong("""
list of heads: tuple(heads)
interleaved features: stack([x[..., i::h] for i in range(h)], -3)
cut along the sequence: x.reshape(h, len(x) // h, x.shape[-1])
number and width swapped: stack([x[..., i : i + h] for i in range(0, x.shape[-1], h)], -3)
axes counted from the front: x.reshape(*x.shape[:-1], h, -1).swapaxes(0, 1)
batch in the sequence: x.reshape(-1, h, x.shape[-1] // h).swapaxes(0, 1)
column by column: np.asarray(x).reshape((h, len(x), -1), order="F")
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


MULTI_HEAD_ATTENTION = HEADS_PROGRAM.wrong("""
softmax over axis 2 of a batch: w = sm(s, 2)
sequence before batch: out = (sequence_first if x.ndim > 2 else right_heads)(x, y, z, A, B, C, W, h)
one big head: out = sm(xa @ yb.mT / (A.shape[1] / h) ** 0.5) @ zc @ W
heads averaged: out = averaged_through_blocks(a, W)
weights averaged over the heads: out = xp.mean(w, axis=-3) @ zc @ W
scale from the width of the input: s = q @ k.mT / (x.shape[-1] // h) ** 0.5
""") | HEADS_PROGRAM.taking("mask=None", HIDE).wrong("""
mask on one head: one_head_masked(s, mask)
mask of the first sequence: safe_softmax(hidden(s, mask[0] if mask.ndim == 4 else mask))
""")


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
neighbour alone: j == i + s - 1
aligned to the first key: ~(j > i)
offset never negative: j <= i + abs(s) / 2 + s / 2
shape transposed: np.tri(n_k, n_q, dtype=bool)
""") | {
    "additive mask": lambda n: np.where(np.tri(n) == 0, np.finfo(np.float32).min, 0),
    "inverted": lambda n: np.triu(np.ones((n, n), dtype=bool), 1),
}


def guarded(e, guard=1):
    return e / (total(e) + (total(e) == 0) * guard)


def shifted_by_all(s, seen, mask, guard=0):
    """Multiply exponentials by the mask, after the maximum of all keys."""
    return guarded(exp(seen - top(seen)) * as_numbers(mask, s), guard)


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
MASKED_ATTENTION = MASKED_PROGRAM.wrong("""
rows with a hidden key NaN: w = shifted(h, xp.mean(h, axis=-1, keepdims=True))
another mask: seen = causal_like(s, 0)
0 times infinity: w = sm(s + (1 - as_numbers(mask, s)) * -math.inf)
hidden keys in the maximum: w = shifted_by_all(s, hidden(s, mask, -1e4), mask, guard=1)
padding on the query side: out = sm(s) @ v * column(mask) if one_row(mask) else w @ v
mask of the first sequence: seen = mask[0] if mask.ndim == 3 else mask
mask broadcast over the wrong axis: seen = mask[:, 0] if mask.ndim == 3 and mask.shape[1] == 1
        else mask
mask after the exponential: w = shifted_by_all(s, s, mask)
""")


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
no maximum: m = xp.zeros_like(m1); f1 = xp.exp(m1); f2 = xp.exp(m2)
one part dropped: out = tuple(xp.where(m1 > m2, a, b) for a, b in ((m1, m2), (z1, z2), (u1, u2)))
outputs added: u = f1 * u1 / z1 + f2 * u2 / z2
weighted taken for an output: u = (f1 * z1 * u1 + f2 * z2 * u2) / (f1 * z1 + f2 * z2)
empty parts NaN: f1 = xp.exp(xp.minimum(m1 - m2, 0 * z1)); f2 = xp.exp(xp.minimum(m2 - m1, 0 * z1))
logarithm of the total: z = xp.log(xp.exp(z1) + xp.exp(z2))
one empty row for all: out = second if xp.any(m1 == -xp.inf) else (m, z, u)
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
