"""Answers that readers might hand in to the checks of this year's variants, right and wrong.

A wrong answer stands under the name of the mistake that its check must find.
"""

import math
from functools import partial

import numpy as np
from answer_programs import Program
from array_api_compat import array_namespace
from attention_answers import exp, sm, top, total  # noqa: F401 (for the programs)

import attnbook as ab
from attnbook.positions import YarnScaling
from attnbook.positions.angles import frequencies

program = partial(Program, globals())


def most(x, axis=-1):
    return array_namespace(x).max(x, axis=axis, keepdims=True)


def least(x, axis=-1):
    return array_namespace(x).min(x, axis=axis, keepdims=True)


def joined(*parts):
    return array_namespace(parts[0]).concat(parts, axis=-1)


# The softmax with a sink.


def as_column(s, sinks):
    """Return one column of sinks for all queries."""
    return 0 * array_namespace(s).ones_like(s[..., :1]) + sinks[:, None, None]


SINK = program("""
s, b
c = as_column(s, b)
rows = joined(s, c)
A = sm(rows)
out = A[..., :-1]
""")
SINK_WRONG = SINK.wrong("""
sink ignored: sm(s)
sink column kept: A
key dropped for the sink: A[..., 1:]
sink added to the weights: sm(s) + c
sink added after normalisation: sm(s) / (1 + exp(c))
one sink for all heads: c = as_column(s, 0 * b + xp.mean(b))
one added: rows = joined(s, 0 * c)
sink subtracted: rows = joined(s, -c)
share of the sink given away: A[..., :-1] + A[..., -1:] / s.shape[-1]
sign of the scores: rows = joined(-s, c)
""")


def sinks_in_a_loop(scores, sinks):
    out = np.empty(scores.shape, dtype=scores.dtype)
    for h, i in np.ndindex(scores.shape[:2]):
        row = [float(x) for x in scores[h, i]]
        highest = max([*row, float(sinks[h])])
        powers = [math.exp(x - highest) for x in row]
        z = math.fsum(powers) + math.exp(float(sinks[h]) - highest)
        out[h, i] = [x / z for x in powers]
    return out


def shifted_by_all(scores, sinks):
    """Return weights for which the largest of all scores is subtracted."""
    xp, sink = array_namespace(scores), sinks[:, None, None]
    highest = xp.maximum(xp.max(scores, axis=-1, keepdims=True), sink)
    e = xp.exp(scores - highest)
    return e / (xp.sum(e, axis=-1, keepdims=True) + xp.exp(sink - highest))


# The router.


def ranks(x, axis=-1):
    xp = array_namespace(x)
    return xp.argsort(xp.argsort(-x, axis=axis, stable=True), axis=axis, stable=True)


ROUTER = program("""
z, k
kept = ranks(z) < k
out = sm(xp.where(kept, z, -xp.inf))
""")
ROUTER_WRONG = ROUTER.wrong("""
not divided again: xp.where(kept, sm(z), 0.0 * z)
all experts: sm(z)
softmax twice: sm(xp.where(kept, sm(z), -xp.inf))
hidden logits are 0: sm(xp.where(kept, z, 0 * z))
equal gates: xp.where(kept, 1 / k + 0 * z, 0 * z)
logits as gates: xp.where(kept, z, 0 * z)
only the best: kept = ranks(z) < 1
worst experts: kept = ranks(-z) < k
more than k of equals: kept = z >= xp.flip(xp.sort(z, axis=-1), axis=-1)[..., k - 1 : k]
softmax over the tokens: xp.where(kept, sm(z, 0), 0 * z)
experts choose tokens: kept = ranks(z, 0) < k
only the chosen returned:
        out = xp.flip(xp.sort(sm(xp.where(kept, z, -xp.inf)), axis=-1), axis=-1)[..., :k]
gates sum to k: k * sm(xp.where(kept, z, -xp.inf))
""")


def router_in_a_loop(logits, k):
    gates = np.zeros(logits.shape, dtype=logits.dtype)
    for i, row in enumerate(logits):
        best = sorted(range(len(row)), key=lambda j: -float(row[j]))[:k]
        gates[i, best] = sm(np.array([float(row[j]) for j in best]))
    return gates


def last_of_equals(logits, k):
    """Choose the last of equal logits, and divide the softmax over all experts again."""
    xp = array_namespace(logits)
    kept = xp.flip(ranks(xp.flip(logits, axis=-1)), axis=-1) < k
    z = logits - most(logits)
    e = xp.where(kept, xp.exp(z), 0 * z)
    return e / xp.sum(e, axis=-1, keepdims=True)


# Quantised rows.


def safe(step):
    xp = array_namespace(step)
    return xp.where(step == 0, xp.ones_like(step), step)


ROWS = program("""
x, bits
low = least(x)
high = most(x)
levels = 2**bits - 1
step = safe((high - low) / levels)
codes = xp.round((x - low) / step)
out = low + step * codes
""")
ROWS_WRONG = ROWS.wrong("""
one step for all: low = xp.min(x); high = xp.max(x)
step for each column: low = least(x, 0); high = most(x, 0)
rounding down: codes = xp.floor((x - low) / step)
rounding up: codes = xp.ceil((x - low) / step)
one level too many: levels = 2**bits
bits taken for levels: levels = bits
zero point not added: step * codes
zero point not subtracted: codes = xp.round(x / step)
maximum for the range: step = safe(high / levels)
codes returned: codes
division by a step of 0: step = (high - low) / levels
codes cut at the signed maximum: codes = xp.clip(xp.round((x - low) / step), 0, 2 ** (bits - 1) - 1)
""")


def rows_in_a_loop(x, bits):
    out = np.array(x)
    for i, row in enumerate(x):
        low, high = float(min(row)), float(max(row))
        if high > low:
            step = (high - low) / (2**bits - 1)
            out[i] = [low + step * math.floor((float(y) - low) / step + 0.5) for y in row]
    return out


# The frequencies of YaRN.


YARN = program("""
w, b, f, n, fast, slow
l = np.arange(w // 2)
omega = b ** (-2.0 * l / w)
place = lambda beta: w * math.log(n / (2 * math.pi * beta)) / (2 * math.log(b))
first = place(fast)
last = place(slow)
ramp = np.clip((l - first) / (last - first), 0, 1)
mixed = omega * (1 - ramp) + omega / f * ramp
alpha = 0.1 * math.log(f) + 1
out = (mixed, alpha)
""")
YARN_WRONG = YARN.wrong("""
ramp inverted: ramp = 1 - np.clip((l - first) / (last - first), 0, 1)
    first = place(slow); last = place(fast)
ramp not limited: ramp = (l - first) / (last - first)
all divided: mixed = omega / f
none divided: mixed = omega
attention factor forgotten: alpha = 1.0
attention factor without 1: alpha = 0.1 * math.log(f)
attention factor with misplaced brackets: alpha = 0.1 * math.log(f + 1)
brackets in the index: place = lambda beta: w * math.log(n / 2 * math.pi * beta) / (2 * math.log(b))
attention factor of the scores: alpha = (0.1 * math.log(f) + 1) ** 2
bounds rounded: first = math.floor(place(fast)); last = math.ceil(place(slow))
2π forgotten: place = lambda beta: w * math.log(n / beta) / (2 * math.log(b))
index of a feature: place = lambda beta: w * math.log(n / (2 * math.pi * beta)) / math.log(b)
wavelengths mixed: mixed = 1 / ((1 - ramp) / omega + ramp * f / omega)
results exchanged: alpha, mixed
""")


def yarn_of_the_package(width, base, factor, n_positions, beta_fast, beta_slow):
    scaling = YarnScaling(factor, n_positions, beta_fast, beta_slow, truncate=False)
    return scaling.scaled(frequencies(width, base)), scaling.amplitude


def yarn_in_a_loop(width, base, factor, n_positions, beta_fast, beta_slow):
    found = []
    fast, slow = (math.log(n_positions / (2 * math.pi * b), base) for b in (beta_fast, beta_slow))
    for pair in range(width // 2):
        exponent = 2 * pair / width
        r = min(max((exponent - fast) / (slow - fast), 0), 1)
        found.append((1 - r) / base**exponent + r / (factor * base**exponent))
    return [np.array(found), np.float64(0.1 * math.log(factor) + 1)]


# Latent attention.


LATENT = program("""
q, q_r, c, k_r, W_K, W_V
content = q @ W_K.mT @ c.mT
rotated = q_r @ k_r.mT
width = q.shape[-1] + q_r.shape[-1]
A = sm((content + rotated) / width**0.5)
out = A @ c @ W_V
""")
LATENT_WRONG = LATENT.wrong("""
scale of the latents: width = c.shape[-1] + q_r.shape[-1]
scale without the rotated part: width = q.shape[-1]
no scale: width = 1
W_UK not transposed: content = q @ W_K @ c.mT
matrices exchanged: content = q @ W_V.mT @ c.mT; out = A @ c @ W_K
values from W_UK: A @ c @ W_K
latents returned: A @ c
rotated part forgotten: rotated = 0.0
only the rotated part: content = 0.0
each part scaled by its own width: content = q @ W_K.mT @ c.mT / q.shape[-1] ** 0.5;
        rotated = q_r @ k_r.mT / q_r.shape[-1] ** 0.5; width = 1
two softmaxes: A = (sm(content / width**0.5) + sm(rotated / width**0.5)) / 2
one matrix for all heads: A @ c @ W_V[:1, ...]
softmax over the queries: A = sm((content + rotated) / width**0.5, -2)
heads summed: xp.sum(A @ c @ W_V, axis=0)
""")


def keys_of_each_head(query, query_rope, latents, key_rope, W_UK, W_UV):
    """Return the outputs with full keys and values, which are not absorbed."""
    xp = array_namespace(query)
    own = latents @ W_UK
    shared = xp.broadcast_to(key_rope, (*own.shape[:-1], key_rope.shape[-1]))
    return ab.attention(joined(query, query_rope), joined(own, shared), latents @ W_UV)


WRONG = {
    "sink_softmax": SINK_WRONG,
    "top_k_router": ROUTER_WRONG,
    "quantize_rows": ROWS_WRONG,
    "yarn_frequencies": {n: f for n, f in YARN_WRONG.items() if not n.endswith(" 2")},
    "latent_attention": LATENT_WRONG,
}
RIGHT = {
    "sink_softmax": [shifted_by_all, SINK.but(), sinks_in_a_loop],
    "top_k_router": [ROUTER.but(), router_in_a_loop, last_of_equals],
    "quantize_rows": [ROWS.but(), rows_in_a_loop],
    "yarn_frequencies": [yarn_of_the_package, YARN.but(), yarn_in_a_loop],
    "latent_attention": [LATENT.but(), keys_of_each_head],
}
DOUBLES = {
    "sink_softmax": SINK.wrong("""
sink column kept; sink subtracted: rows = joined(s, -c); out = A
"""),
    "top_k_router": ROUTER.wrong("""
not divided again; worst experts: kept = ranks(-z) < k; out = xp.where(kept, sm(z), 0.0 * z)
"""),
    "quantize_rows": ROWS.wrong("""
one step for all; rounding down: low = xp.min(x); high = xp.max(x);
        codes = xp.floor((x - low) / step)
"""),
    "yarn_frequencies": YARN.wrong("""
ramp inverted; attention factor forgotten: alpha = 1.0; first = place(slow); last = place(fast)
"""),
    "latent_attention": LATENT.wrong("""
scale of the latents; rotated part forgotten: rotated = 0.0; width = c.shape[-1] + q_r.shape[-1]
"""),
}
ONLY_NUMPY = {"yarn_frequencies"}
