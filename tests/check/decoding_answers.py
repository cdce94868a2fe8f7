"""Answers that readers might hand in to the checks of decoding, right and wrong.

A wrong answer stands under the name of the mistake that its check must find.
"""

import math
from functools import partial

import numpy as np
from answer_programs import Program
from array_api_compat import array_namespace
from attention_answers import exp, sm, top, total  # noqa: F401 (for the programs)

import attnbook as ab

program = partial(Program, globals())


def falling(p):
    return array_namespace(p).argsort(-p, stable=True)


def sums(x):
    return array_namespace(x).cumulative_sum(x)


def places(order):
    return array_namespace(order).argsort(order, stable=True)


def share(x):
    return x / array_namespace(x).sum(x)


def cut_at(t, r, before, kept):
    xp = array_namespace(r)
    return xp.where(kept, xp.where(before + r > t, t - before, r), xp.zeros_like(r))


TOP_P = program("""
p, t
order = falling(p)
r = p[order]
before = sums(r) - r
kept = before < t - 1e-7
q = xp.where(kept, r, xp.zeros_like(r))[places(order)]
out = share(q)
""")
TOP_P_WRONG = TOP_P.wrong("""
crossing token reduced: q = cut_at(t, r, before, kept)[places(order)]
crossing token dropped: kept = (sums(r) <= t) | (r == r[0])
one token too many: kept = xp.concat([xp.asarray([True]), (before < t - 1e-7)[:-1]])
sum above the threshold: kept = ~(before > t + 1e-7)
equal ones kept: q = xp.where(p >= r[xp.count_nonzero(before < t - 1e-7) - 1], p, xp.zeros_like(p))
min-p: kept = r >= t * r[0] - 1e-7
top-k: kept = xp.arange(r.shape[0]) < math.ceil(t * r.shape[0])
""")

MIN_P = program("""
p, t
kept = p >= t * xp.max(p) - 1e-7
q = xp.where(kept, p, xp.zeros_like(p))
out = share(q)
""")
MIN_P_WRONG = MIN_P.wrong("""
threshold subtracted: q = xp.where(kept, p - t * xp.max(p), xp.zeros_like(p))
order not undone: xp.flip(xp.sort(share(q)))
relative to the mean: kept = p >= t * xp.mean(p)
equal one dropped: kept = p > t * xp.max(p)
top-p: TOP_P.but()(p, t)
tail kept: kept = p <= t * xp.max(p)
""")


def occurred(ids, like):
    xp = array_namespace(like)
    numbers = {int(i) for i in ids}
    return xp.asarray([i in numbers for i in range(like.shape[0])])


PENALTY = program("""
z, ids, c
seen = occurred(ids, z)
less = xp.where(z > 0, z / c, z * c)
out = xp.where(seen, less, z)
""")


def again_and_again(z, ids, c):
    for token in ids:
        z = PENALTY.but()(z, ids[ids == token][:1], c)
    return z


def subtracted_for_each(z, ids, c):
    xp = array_namespace(z)
    numbers = [int(i) for i in ids]
    return z - c * xp.asarray([float(numbers.count(i)) for i in range(z.shape[0])], dtype=z.dtype)


PENALTY_WRONG = PENALTY.wrong("""
token off by one: seen = occurred(ids + 1, z)
every occurrence counts: again_and_again(z, ids, c)
frequency penalty: out = subtracted_for_each(z, ids, c)
presence penalty: less = z - math.log(c)
banned: less = z - math.inf
of log probabilities: PENALTY.but()(ab.log_softmax(z), ids, c)
of probabilities: sm(xp.where(seen, less, z))
""")

RULE = program("""
p, q
kept = xp.where(p < q, p / q, xp.ones_like(p))
rest = xp.where(p > q, p - q, xp.zeros_like(p))
instead = share(rest)
out = (kept, instead)
""")
RULE_WRONG = RULE.wrong("""
kept by the draft alone: kept = p * q
difference for the ratio: kept = 1 - xp.abs(p - q)
drawn evenly: instead = xp.ones_like(p) / p.shape[0]
ratio for the difference: instead = share(p / q)
kept too seldom: kept = xp.ones_like(p) * xp.sum(xp.where(p < q, p, q))
not in proportion: instead = xp.astype(p - q == xp.max(p - q), p.dtype)
""")


def longer(past, new):
    return array_namespace(new).concat([past, new], axis=1)


def scored(query, keys, m):
    xp = array_namespace(query)
    scores = query @ keys.mT / query.shape[-1] ** 0.5
    return xp.where(m, scores, -xp.inf)


def unmasked(query, keys):
    return scored(query, keys, corner(query, keys) | True)


def corner(query, keys, above=0):
    xp, n = array_namespace(query), keys.shape[1]
    i = xp.arange(query.shape[1])[:, None] + n - query.shape[1] + above
    return xp.arange(n)[None, :] <= i


def earlier(query, keys):
    """Return whether a key is in the cache or that of the token itself."""
    xp, n, m = array_namespace(query), keys.shape[1], query.shape[1]
    i, j = xp.arange(m)[:, None] + n - m, xp.arange(n)[None, :]
    return (j < n - m) | (j == i)


STEP = program("""
q, k, v, past_k, past_v
keys = longer(past_k, k)
values = longer(past_v, v)
mask = corner(q, keys)
A = sm(scored(q, keys, mask))
out = (A @ values, keys, values)
""")
STEP_WRONG = STEP.wrong("""
values of one part: A[..., past_k.shape[1] :] @ v, keys, values
mask inverted: A = sm(xp.where(mask, -1e9 + 0 * unmasked(q, keys), unmasked(q, keys)))
softmax over more than the keys: A = exp(scored(q, keys, mask)) / xp.sum(exp(scored(q, keys, mask)))
cache not seen: ab.attention(q, k, v, is_causal=True), keys, values
put in front: keys = longer(k, past_k); values = longer(v, past_v)
aligned to the first key: mask = xp.arange(keys.shape[1])[None, :] <= xp.arange(q.shape[1])[:, None]
""")


BEAM = program("""
t, log_p, k
scores = t[:, None] + log_p
n = log_p.shape[1]
best = xp.argsort(-xp.reshape(scores, (-1,)), stable=True)[:k]
out = (best // n, best % n)
""")


def one_each(scores, k):
    scores = np.asarray(scores)
    rows = sorted(range(len(scores)), key=lambda i: -scores[i].max())
    rows = [rows[i % len(rows)] for i in range(k)]
    return np.array(rows), np.array([scores[i].argmax() for i in rows])


def once_each_token(scores, k):
    scores = np.asarray(scores)
    tokens = sorted(range(scores.shape[1]), key=lambda j: -scores[:, j].max())[:k]
    return np.array([scores[:, j].argmax() for j in tokens]), np.array(tokens)


def taken_in_turn(scores, k):
    """Take the best k times, and hide what is taken: in the end all is hidden, and 0 the best."""
    scores, taken = np.array(scores), []
    for _ in range(k):
        taken.append(int(scores.argmax()))
        scores.flat[taken[-1]] = -math.inf
    return np.array(taken) // scores.shape[1], np.array(taken) % scores.shape[1]


def best_of_row(log_p, i, k):
    tokens = np.argsort(-np.asarray(log_p[i]), kind="stable")[:k]
    return np.full(len(tokens), i), tokens


BEAM_WRONG = BEAM.wrong("""
read by columns: best = xp.argsort(-xp.reshape(scores.mT, (-1,)), stable=True)[:k]
not sorted: best = xp.sort(xp.argsort(-xp.reshape(scores, (-1,)), stable=True)[:k])
probabilities added: scores = exp(t)[:, None] + exp(log_p)
""") | {
    "one continuation twice": lambda t, log_p, k: taken_in_turn(t[:, None] + log_p, k),
    "one of each": lambda t, log_p, k: one_each(t[:, None] + log_p, k),
    "each token once": lambda t, log_p, k: once_each_token(t[:, None] + log_p, k),
    "best hypothesis alone": lambda t, log_p, k: best_of_row(log_p, int(t.argmax()), k),
}

WRONG = {
    "top_p": TOP_P_WRONG,
    "min_p": MIN_P_WRONG,
    "repetition_penalty": PENALTY_WRONG,
    "speculative_rule": RULE_WRONG,
    "cached_attention": STEP_WRONG,
    "beam_step": BEAM_WRONG,
}


# Right answers in other styles.


def top_p_in_a_loop(p, threshold):
    kept, held = [], 0.0
    for i in sorted(range(len(p)), key=lambda i: -p[i]):
        if held >= threshold - 1e-7:
            break
        kept.append(i)
        held += p[i]
    q = np.zeros(len(p), dtype=p.dtype)
    q[kept] = p[kept] / p[kept].sum()
    return q


def penalty_in_a_loop(logits, ids, penalty):
    z = [float(x) for x in logits]
    for token in {int(i) for i in ids}:
        z[token] = z[token] / penalty if z[token] > 0 else z[token] * penalty
    return np.array(z, dtype=logits.dtype)


def rule_in_a_loop(p, p_draft):
    kept = [min(1.0, a / b) for a, b in zip(p, p_draft, strict=True)]
    rest = [max(a - b, 0.0) for a, b in zip(p, p_draft, strict=True)]
    return [np.array(kept, p.dtype), np.array([x / math.fsum(rest) for x in rest], p.dtype)]


def step_by_the_package(query, key, value, past_key, past_value):
    keys, values = longer(past_key, key), longer(past_value, value)
    return ab.attention(query, keys, values, is_causal=True), keys, values


def beams_in_a_loop(totals, log_p, n_beams):
    every = [
        (float(totals[i] + log_p[i, j]), i, j)
        for i in range(log_p.shape[0])
        for j in range(log_p.shape[1])
    ]
    best = sorted(every, key=lambda found: -found[0])[:n_beams]
    return np.array([i for _, i, _ in best]), np.array([j for _, _, j in best])


RIGHT = {
    "top_p": [TOP_P.but(), top_p_in_a_loop],
    "min_p": [MIN_P.but()],
    "repetition_penalty": [PENALTY.but(), penalty_in_a_loop],
    "speculative_rule": [RULE.but(), rule_in_a_loop],
    "cached_attention": [STEP.but(), step_by_the_package],
    "beam_step": [BEAM.but(), beams_in_a_loop],
}
DOUBLES = {
    "cached_attention": STEP.wrong("""
no mask; no scale: mask = corner(q, keys) | True; A = sm(scored(q, keys, mask) * q.shape[-1] ** 0.5)
next place visible; put in front: mask = corner(q, keys, 1); keys = longer(k, past_k);
        values = longer(v, past_v)
earlier new tokens not seen; not normalised: mask = corner(q, keys) & earlier(q, keys);
        A = exp(scored(q, keys, mask))
mask inverted; scale by d_k: mask = ~corner(q, keys);
        A = sm(scored(q / q.shape[-1] ** 0.5, keys, mask))
"""),
    "min_p": {"nothing cut; equal shares": lambda p, t: 0 * p + 1 / len(p)},
    "top_p": {
        "nothing cut; equal shares": lambda p, t: 0 * p + 1 / len(p),
        "crossing token dropped; not renormalised": TOP_P.but("kept = sums(r) <= t; out = q"),
    },
    "speculative_rule": {
        "ratio not cut off; drawn from the model": RULE.but("kept = p / q; instead = p")
    },
    "beam_step": {
        "totals forgotten; parents and tokens exchanged": BEAM.but(
            "scores = log_p; out = best % n, best // n"
        )
    },
}
