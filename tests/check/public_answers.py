"""Answers as public code and forum threads have them, each in two spellings where it can be."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np

import attnbook as ab

# Learning rates, of a step that counts from 0.


def half_cosine(part):
    return 0.5 * (1 + math.cos(math.pi * part))


def nanogpt(least=0.1):
    """Return the schedule of nanoGPT, which ends at a share of the peak."""

    def rate(it, steps, warmup, peak):
        if it < warmup:
            return peak * (it + 1) / (warmup + 1)
        part = half_cosine((it - warmup) / (steps - warmup))
        return least * peak + part * (peak - least * peak)

    return rate


def litgpt(least=0.1):
    def rate(it, steps, warmup, peak):
        if it < warmup:
            return peak * it / warmup
        part = half_cosine((it - warmup) / (steps - warmup))
        return least * peak + part * (peak - least * peak)

    return rate


def of_transformers(step, steps, warmup, peak):
    if step < warmup:
        return peak * float(step) / float(max(1, warmup))
    progress = float(step - warmup) / float(max(1, steps - warmup))
    return peak * max(0.0, 0.5 * (1.0 + math.cos(math.pi * 0.5 * 2.0 * progress)))


def llmc(it, steps, warmup, peak):
    if it < warmup:
        return peak * (it + 1) / warmup
    return half_cosine((it - warmup) / (steps - warmup)) * peak


def uva(epoch, steps, warmup, peak):
    factor = 0.5 * (1 + np.cos(np.pi * epoch / steps))
    return peak * (factor * epoch / warmup if epoch <= warmup else factor)


def mingpt(step, steps, warmup, peak):
    tokens = step + 1
    if tokens < warmup:
        return peak * tokens / warmup
    return peak * max(0.1, half_cosine((tokens - warmup) / (steps - warmup)))


# Cuts and penalties.


def of_meta(p, threshold):
    order = np.argsort(-p)
    ranked = p[order]
    ranked[np.cumsum(ranked) - ranked > threshold] = 0.0
    q = np.zeros_like(p)
    q[order] = ranked / ranked.sum()
    return q


def down_to_the_cut(p, threshold):
    ranked = np.sort(p)[::-1]
    place = min(int(np.searchsorted(np.cumsum(ranked), threshold - 1e-12)), len(p) - 1)
    return np.where(p >= ranked[place], p, 0) / np.sum(p[p >= ranked[place]])


def last_of_equals(p, threshold):
    order = np.argsort(p)[::-1]
    kept = order[np.cumsum(p[order]) - p[order] < threshold - 1e-9]
    q = np.zeros_like(p)
    q[kept] = p[kept] / p[kept].sum()
    return q


def counted(logits, ids, penalty):
    return logits - penalty * np.bincount(ids, minlength=len(logits))


def counted_in_a_loop(logits, ids, penalty):
    logits = logits.copy()
    for token in ids:
        logits[token] -= penalty
    return logits


# Byte pairs.


def in_sweeps(word, merges):
    ids, known = list(word.encode()), {pair: 256 + i for i, pair in enumerate(merges)}
    goes_on = True
    while goes_on:
        goes_on, new, i = False, [], 0
        while i < len(ids):
            token = known.get(tuple(ids[i : i + 2]))
            new.append(ids[i] if token is None else token)
            goes_on |= token is not None
            i += 1 if token is None else 2
        ids = new
    return ids


def in_sweeps_again(word, merges):
    ids = list(word.encode())
    while True:
        new = []
        for x in ids:
            pair = (new[-1][1], x) if new and not new[-1][0] else None
            if pair in merges:
                new[-1] = (True, 256 + merges.index(pair))
            else:
                new.append((False, x))
        if [x for _, x in new] == ids:
            return ids
        ids = [x for _, x in new]


def learned(pick, show=lambda merges, tokens: merges):
    def learn(words, n_merges):
        sequences, merges = [list(word.encode()) for word in words], []
        tokens = [bytes([i]) for i in range(256)]
        while len(merges) < n_merges:
            counts = Counter(pair for ids in sequences for pair in itertools.pairwise(ids))
            if not counts or max(counts.values()) < 2:
                break
            best = [pair for pair in counts if counts[pair] == max(counts.values())]
            pair = pick(best, tokens)
            merges.append(pair)
            tokens.append(tokens[pair[0]] + tokens[pair[1]])
            sequences = [merge(ids, pair, 255 + len(merges)) for ids in sequences]
        return show(merges, tokens)

    return learn


def merge(ids, pair, new):
    out, i = [], 0
    while i < len(ids):
        found = tuple(ids[i : i + 2]) == pair
        out.append(new if found else ids[i])
        i += 1 + found
    return out


def smallest(best, tokens):
    return min(best)


def spelled_last(best, tokens):
    return max(best, key=lambda pair: (tokens[pair[0]], tokens[pair[1]]))


def spelled_first(best, tokens):
    return min(best, key=lambda pair: tokens[pair[0]] + tokens[pair[1]])


# Attention and layers.


def packed(own, mask_of=lambda mask: mask):
    """Return heads that read query, key and value out of one run of columns for each head."""

    def heads(query, key, value, W_Q, W_K, W_V, W_O, n_heads, mask=None):
        W = np.concatenate([W_Q, W_K, W_V], axis=1)
        found = []
        for i, x in enumerate((query, key, value) if own else (query,) * 3):
            y = (x @ W).reshape(*x.shape[:-1], n_heads, -1).swapaxes(-2, -3)
            found.append(np.array_split(y, 3, axis=-1)[i])
        output = ab.attention(*found, mask).swapaxes(-2, -3)
        return output.reshape(*query.shape[:-1], -1) @ W_O

    return heads


def norm(x, w):
    return ab.layer_norm(x, w.gain, w.bias, epsilon=w.epsilon)


def decoder(query="y", value="memory"):
    """Return a decoder layer whose second attention reads other arrays."""

    def layer(x, memory, w, mask=None, memory_mask=None):
        def sublayer(x, n, f):
            return x + f(norm(x, n)) if w.norm == "pre" else norm(x + f(x), n)

        def self_attention(y):
            return ab.multi_head_attention(y, y, y, w.self_attention, mask)

        def cross_attention(y):
            arrays = {"y": y, "memory": memory, "start": start, "before": before}
            return ab.multi_head_attention(
                arrays[query], memory, arrays[value], w.cross_attention, memory_mask
            )

        start = x
        before = x = sublayer(x, w.self_attention_norm, self_attention)
        x = sublayer(x, w.cross_attention_norm, cross_attention)
        return sublayer(x, w.feed_forward_norm, lambda y: ab.feed_forward(y, w.feed_forward))

    return layer


def exchanged_if_both(x, memory, weights, mask=None, memory_mask=None):
    if mask is not None and memory_mask is not None and mask.shape == memory_mask.shape:
        mask, memory_mask = memory_mask, mask
    return ab.decoder_layer(x, memory, weights, mask, memory_mask)


def final_norm(x, weights, mask=None):
    y = ab.encoder_layer(x, weights, mask)
    return norm(y, weights.feed_forward_norm) if weights.norm == "pre" else y


def norm_at_the_end_alone(x, weights, mask=None):
    x = x + ab.multi_head_attention(x, x, x, weights.self_attention, mask)
    return norm(x + ab.feed_forward(x, weights.feed_forward), weights.feed_forward_norm)


def with_epsilon(epsilon):
    def block(x, w):
        first, second = (
            replace(n, epsilon=epsilon) for n in (w.self_attention_norm, w.feed_forward_norm)
        )
        w = replace(w, self_attention_norm=first, feed_forward_norm=second)
        return ab.decoder_layer(x, None, w, np.tri(x.shape[-2], dtype=bool), rotate=True)

    return block


def in_one_matrix(hide):
    """Return causal attention whose mask is `hide(query places, key places)`."""

    def attention(query, key, value):
        place = np.arange(query.shape[-2])
        key, value = (np.repeat(x, len(query) // len(x), axis=0) for x in (key, value))
        mask = ~hide(place[:, None], place)
        return ab.attention(query, key, value, mask).astype(query.dtype)

    return attention


def on_the_diagonal(i, j):
    return (i // 16 == j // 16) & (j > i)


def filled(number):
    def attention(query, key, value, mask=None):
        scores = query @ key.mT / query.shape[-1] ** 0.5
        return ab.softmax(scores if mask is None else np.where(mask, scores, number)) @ value

    return attention


def with_cache(mask):
    def step(query, key, value, past_key, past_value):
        keys, values = (
            np.concatenate(both, axis=1) for both in ((past_key, key), (past_value, value))
        )
        allowed = mask(query.shape[1], keys.shape[1])
        return ab.attention(query, keys, values, allowed), keys, values

    return step


def over_the_first_columns(m, n):
    mask = np.ones((m, n), dtype=bool)
    mask[:, : min(m, n)] = np.tri(m, min(m, n), dtype=bool)
    return mask


def ring(query, key, value):
    outputs = []
    for r in range(len(query)):
        total, weighted = 0, 0
        for i in range(len(query)):
            p = np.exp(query[r] @ key[(r - i) % len(key)].T / math.sqrt(query.shape[-1]))
            total, weighted = (
                total + p.sum(-1, keepdims=True),
                weighted + p @ value[(r - i) % len(key)],
            )
        outputs.append(weighted / total)
    return np.stack(outputs)


def vjp(**products):
    """Return the gradients of attention, of which a product is another one."""

    def gradients(query, key, value, grad_output):
        scale = query.shape[-1] ** -0.5
        A = ab.softmax(query @ key.mT * scale)
        dA = products.get("weights", lambda g, v: g @ v.mT)(grad_output, value)
        d = A * (dA - (A * dA).sum(-1, keepdims=True))
        return (
            products.get("query", lambda d, k: d @ k)(d, key) * scale,
            products.get("key", lambda d, q: d.mT @ q)(d, query) * scale,
            products.get("value", lambda A, g: A.mT @ g)(A, grad_output),
        )

    return gradients


# Positions and precision.


def flax(n, d_model, width=np.float64):
    w = np.exp(np.arange(d_model // 2) * (-np.log(10000.0) / width(d_model // 2 - 1)))
    angles = np.arange(n)[:, None] * w
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def rotary_of(table, angle=np.asarray):
    """Return a rotation whose sines and cosines, or angles, go through a dtype."""

    def rotate(x):
        n, d = x.shape[-2:]
        angles = angle(np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d))
        c, s = (np.asarray(f(angles), dtype=table).astype(x.dtype) for f in (np.cos, np.sin))
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * c - b * s, a * s + b * c], axis=-1)

    return rotate
