"""Answers on masks, attention under a mask and merging, right and wrong, by the mistake."""

import math
from functools import partial

import numpy as np
import pytest
from answer_programs import Program
from array_api_compat import array_namespace, device
from attention_answers import (  # noqa: F401 (for the programs)
    as_numbers,
    exp,
    hidden,
    right_attention,
    right_scores,
    safe_softmax,
    shifted,
    sm,
    top,
    total,
)

import attnbook as ab

program = partial(Program, globals())


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


def masked_in_loops(query, key, value, mask):
    output = np.zeros((len(query), value.shape[-1]))
    for i in range(len(query)):
        seen = [j for j in range(len(key)) if mask[i, j]]
        if not seen:
            continue
        scores = [float(key[j] @ query[i]) / math.sqrt(key.shape[-1]) for j in seen]
        powers = [math.exp(s - max(scores)) for s in scores]
        for j, power in zip(seen, powers, strict=True):
            output[i] += power / sum(powers) * np.asarray(value[j])
    return output


def masked_batches_alone(query, key, value, mask):
    batch, n_q, _d_k = query.shape
    xp = array_namespace(query)
    seen = xp.broadcast_to(mask, (batch, n_q, key.shape[1]))
    return right_attention(query, key, value, seen)


def torch_masked(query, key, value, mask):
    torch = pytest.importorskip("torch")
    additive = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, -math.inf)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=additive)


def by_the_package(first, second):
    parts = (ab.RunningSoftmax(*part, part[0].dtype) for part in (first, second))
    merged = next(parts).merge(next(parts))
    return merged.maximum, merged.total, merged.weighted


def in_loops(first, second):
    (m1, z1, u1), (m2, z2, u2) = first, second
    m, z, u = np.empty_like(m1), np.empty_like(z1), np.empty_like(u1)
    for i in range(len(m)):
        a, b = m1[i].item(), m2[i].item()
        m[i] = max(a, b)
        f1 = 0.0 if a == -math.inf else math.exp(a - max(a, b))
        f2 = 0.0 if b == -math.inf else math.exp(b - max(a, b))
        z[i] = f1 * z1[i] + f2 * z2[i]
        u[i] = f1 * u1[i] + f2 * u2[i]
    return [m, z, u]


WRONG = {
    "causal_mask": CAUSAL_MASK,
    "masked_attention": MASKED_ATTENTION,
    "merge_attention": MERGE_ATTENTION,
}

DOUBLES = {
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

RIGHT = {
    "causal_mask": (
        ab.masking.causal,
        right_causal,
        lambda n_q, n_k: np.arange(n_k) <= np.arange(n_q)[:, None] + n_k - n_q,
        lambda rows, columns: ~np.triu(np.ones((rows, columns), dtype=bool), columns - rows + 1),
        lambda n: np.tri(n, dtype=bool),
        lambda n: np.array([[j <= i for j in range(n)] for i in range(n)]).reshape(n, n) == 1,
    ),
    "masked_attention": (
        ab.attention,
        right_attention,
        masked_in_loops,
        lambda q, k, v, mask: safe_softmax(right_scores(q, k) + np.where(mask, 0.0, -np.inf)) @ v,
        masked_batches_alone,
    ),
    "merge_attention": (by_the_package, in_loops),
}

ONLY_TORCH = {
    "causal_mask": lambda n_q, n_k: (
        pytest.importorskip("torch").ones(n_q, n_k).tril(n_k - n_q) == 1
    ),
    "masked_attention": torch_masked,
}
