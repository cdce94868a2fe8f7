"""Answers on heads that are split and joined, right and wrong, by the name of the mistake."""

from functools import partial

import numpy as np
from answer_programs import Program
from array_api_compat import array_namespace
from attention_answers import (  # noqa: F401 (for the programs)
    HIDE,
    PROJECTIONS,
    WEIGHTS_PROGRAM,
    hidden,
    right_attention,
    right_weights,
    safe_softmax,
    sm,
    torch_attention,
)

import attnbook as ab

program = partial(Program, globals())


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


def split_in_loops(x, n_heads):
    n, width = x.shape
    d = width // n_heads
    out = np.zeros((n_heads, n, d))
    for i in range(n_heads):
        for t in range(n):
            for c in range(d):
                out[i, t, c] = float(x[t, i * d + c])
    return out


def split_batches_alone(x, n_heads):
    batch, n, width = x.shape
    return x.reshape(batch, n, n_heads, width // n_heads).swapaxes(1, 2)


def heads_as_a_sum(query, key, value, W_Q, W_K, W_V, W_O, n_heads, *, mask=None):
    """Add up what each head writes through its own rows of W_O."""
    if mask is not None and mask.ndim == 4:
        mask = mask[:, 0]
    return sum(
        right_attention(
            query @ columns(W_Q, n_heads, i),
            key @ columns(W_K, n_heads, i),
            value @ columns(W_V, n_heads, i),
            mask,
        )
        @ columns(W_O.mT, n_heads, i).mT
        for i in range(n_heads)
    )


def heads_of_batches_alone(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    batch, n_q, d_model = query.shape
    q, k, v = (
        (x @ W).reshape(batch, -1, n_heads, d_model // n_heads).swapaxes(1, 2)
        for x, W in ((query, W_Q), (key, W_K), (value, W_V))
    )
    heads = right_attention(q, k, v, mask)
    return heads.swapaxes(1, 2).reshape(batch, n_q, d_model) @ W_O


def torch_heads(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    q, k, v = (
        (x @ W).unflatten(-1, (n_heads, -1)).transpose(-3, -2)
        for x, W in ((query, W_Q), (key, W_K), (value, W_V))
    )
    return torch_attention(q, k, v, mask).transpose(-3, -2).flatten(-2) @ W_O


WRONG = {
    "split_heads": SPLIT_HEADS,
    "multi_head_attention": MULTI_HEAD_ATTENTION,
}

DOUBLES = {
    "multi_head_attention": HEADS_PROGRAM.wrong("""
scale by √d_model; W_O forgotten: s = q @ k.mT / x.shape[-1] ** 0.5; out = joined
bare reshape in the join; no scale: s = q @ k.mT; join = reshaped_join
"""),
}

RIGHT = {
    "split_heads": (
        ab.split_heads,
        right_split,
        lambda x, n_heads: np.stack(np.split(np.asarray(x), n_heads, axis=-1), axis=-3),
        split_in_loops,
        split_batches_alone,
    ),
    "multi_head_attention": (
        ab.multi_head_attention,
        right_heads,
        heads_as_a_sum,
        heads_of_batches_alone,
        lambda x, y, z, weights: ab.multi_head_attention(x, y, z, weights),
        lambda x, y, z, parameters, mask=None: ab.multi_head_attention(x, y, z, parameters, mask),
        lambda x, y, z, W_Q, W_K, W_V, W_O, mask=None, *, n_heads: right_heads(
            x, y, z, W_Q, W_K, W_V, W_O, n_heads, mask
        ),
        lambda x, y, z, W_Q, W_K, W_V, W_O, mask=None, n_heads=8: right_heads(
            x, y, z, W_Q, W_K, W_V, W_O, n_heads, mask
        ),
    ),
}

ONLY_TORCH = {
    "split_heads": lambda x, n_heads: x.unflatten(-1, (n_heads, -1)).transpose(-3, -2),
    "multi_head_attention": torch_heads,
}
