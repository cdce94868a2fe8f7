"""Answers to the check of a decoder-only block: RMSNorm, rotary attention, a gate, residuals.

A wrong answer stands under the name of the mistake that its check must find.
"""

from functools import partial

import numpy as np
import pytest
from answer_programs import Program
from array_api_compat import array_namespace
from multi_head_answers import right_join, right_split  # noqa: F401 (for the programs)

import attnbook as ab
from attnbook.positions import rotary

program = partial(Program, globals())


def rms(x, w):
    return ab.rms_norm(x, w.gain, epsilon=w.epsilon)


def turned_back(x):
    half = x.shape[-1] // 2
    signs = array_namespace(x).asarray([1.0] * half + [-1.0] * half, dtype=x.dtype)
    return signs * rotary(signs * x)


def shared(x, heads, tiled=False):
    """Return the key heads as often as queries need them."""
    n, times = heads.n_kv_heads, heads.n_heads // heads.n_kv_heads
    order = [*range(n)] * times if tiled else [i for i in range(n) for _ in range(times)]
    return x[..., order, :, :]


def feed(x, w, act=ab.silu):
    return (act(x @ w.W_gate) * (x @ w.W_1)) @ w.W_2


def seen(x, above=0):
    n = x.shape[-2]
    late = ab.masking.causal(n, n + above, like=x)  # aligned to the last key
    return late[:, :n]


BLOCK = program("""
x, w
h = w.self_attention
net = w.feed_forward
first = w.self_attention_norm
second = w.feed_forward_norm
y = rms(x, first)
q = rotary(right_split(y @ h.W_Q, h.n_heads))
k = rotary(right_split(y @ h.W_K, h.n_kv_heads))
v = right_split(y @ h.W_V, h.n_kv_heads)
a = ab.attention(q, shared(k, h), shared(v, h), is_causal=True)
joined = right_join(a)
made = joined @ h.W_O
z = x + made
e = rms(z, second)
thought = feed(e, net)
out = z + thought
""")

WRONG = {
    "decoder_only_block": BLOCK.wrong("""
norms swapped: first = w.feed_forward_norm; second = w.self_attention_norm
rotated by the head: q = rotary(right_split(y @ h.W_Q, h.n_heads).swapaxes(-3, -2)).swapaxes(
        -3, -2); k = rotary(right_split(y @ h.W_K, h.n_kv_heads).swapaxes(-3, -2)).swapaxes(-3, -2)
heads tiled: a = ab.attention(q, shared(k, h, True), shared(v, h, True), is_causal=True)
keys turned back: k = turned_back(right_split(y @ h.W_K, h.n_kv_heads))
mask inverted: a = ab.attention(q, shared(k, h), shared(v, h), seen(x).mT)
no residual around the feed-forward network: thought
residual from the normalised input: e + thought
sublayers side by side: e = rms(x, second)
""")
}

DOUBLES = {
    "decoder_only_block": BLOCK.wrong("""
no causal mask; no residual around the feed-forward network: a = ab.attention(q, shared(k, h),
        shared(v, h)); thought
no positions; another activation: q = right_split(y @ h.W_Q, h.n_heads); k = right_split(y @ h.W_K,
        h.n_kv_heads); thought = feed(e, net, ab.relu)
""")
}


def by_the_package(x, weights):
    mask = ab.masking.causal(x.shape[-2], like=x)
    return ab.decoder_layer(x, None, weights, mask, rotate=True)


def in_loops(x, weights):
    """As the definition says it, one query and one head at a time, for one sequence."""
    heads, net = weights.self_attention, weights.feed_forward
    n, d_k = len(x), heads.W_Q.shape[1] // heads.n_heads

    def norm(row, w):
        return row / np.sqrt(np.mean(row**2) + w.epsilon) * w.gain

    def turned(row, place):
        out = row.copy()
        for pair in range(d_k // 2):
            angle = place * 10000.0 ** (-2 * pair / d_k)
            a, b = row[pair], row[pair + d_k // 2]
            out[pair] = a * np.cos(angle) - b * np.sin(angle)
            out[pair + d_k // 2] = a * np.sin(angle) + b * np.cos(angle)
        return out

    y = [norm(row, weights.self_attention_norm) for row in x]
    out = []
    for i in range(n):
        joined = []
        for head in range(heads.n_heads):
            other = head // (heads.n_heads // heads.n_kv_heads)
            mine, theirs = (slice(at * d_k, (at + 1) * d_k) for at in (head, other))
            q = turned(y[i] @ heads.W_Q[:, mine], i)
            keys = [turned(y[j] @ heads.W_K[:, theirs], j) for j in range(i + 1)]
            e = np.exp([q @ key / np.sqrt(d_k) for key in keys])
            values = [y[j] @ heads.W_V[:, theirs] for j in range(i + 1)]
            joined.extend(sum(w * v for w, v in zip(e / e.sum(), values, strict=True)))
        z = x[i] + np.array(joined) @ heads.W_O
        g = norm(z, weights.feed_forward_norm)
        gate = g @ net.W_gate
        out.append(z + (gate / (1 + np.exp(-gate)) * (g @ net.W_1)) @ net.W_2)
    return np.array(out, dtype=x.dtype)


def torch_block(x, w):
    functional = pytest.importorskip("torch").nn.functional

    def norm(y, n):
        return functional.rms_norm(y, n.gain.shape, n.gain, n.epsilon)

    def split(y, n):
        return y.unflatten(-1, (n, -1)).transpose(-3, -2)

    h, net = w.self_attention, w.feed_forward
    y = norm(x, w.self_attention_norm)
    q, k = rotary(split(y @ h.W_Q, h.n_heads)), rotary(split(y @ h.W_K, h.n_kv_heads))
    v = split(y @ h.W_V, h.n_kv_heads)
    times = h.n_heads // h.n_kv_heads
    k, v = k.repeat_interleave(times, -3), v.repeat_interleave(times, -3)
    made = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + made.transpose(-3, -2).flatten(-2) @ h.W_O
    y = norm(x, w.feed_forward_norm)
    return x + (functional.silu(y @ net.W_gate) * (y @ net.W_1)) @ net.W_2


RIGHT = {"decoder_only_block": (by_the_package, BLOCK.but(), in_loops)}
ONLY_TORCH = {"decoder_only_block": torch_block}
