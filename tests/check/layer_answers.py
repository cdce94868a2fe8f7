"""Layers and decoders that readers might hand in, right and wrong, by the name of the mistake."""

from dataclasses import replace

import numpy as np
import transformer_answers as transformer
from array_api_compat import array_namespace
from attention_answers import right_attention, right_join, right_split
from transformer_answers import (
    all_sum,
    ff,
    loss,
    mean,
    normed,
    relu,
    right_angle,
    right_norm,
    root,
    spread,
    table,
)

import attnbook as ab

SELF, CROSS, FEED = "self_attention", "cross_attention", "feed_forward"


def norm(x, w):
    return ab.layer_norm(x, w.gain, w.bias, epsilon=w.epsilon)


def pre(x, f, n):
    return x + f(n(x))


def post(x, f, n):
    return n(x + f(x))


def attend(x, y, w, mask=None):
    return ab.multi_head_attention(x, y, y, w, mask)


def around(names, wrong_pre, wrong_post):
    """Return what chooses the residual of a sublayer: a wrong one for those of `names`."""

    def choose(w, name):
        if name in names:
            return wrong_pre if w.norm == "pre" else wrong_post
        return pre if w.norm == "pre" else post

    return choose


EVERY = (SELF, CROSS, FEED)
right_residual = around((), pre, post)


def layer(
    residual=right_residual,
    order=EVERY,
    norms=None,
    normalise=norm,
    feed=ab.feed_forward,
    self_attention=None,
    cross=None,
    see=lambda mask: mask,
):
    """Return an encoder or decoder layer with some pieces replaced."""
    self_attention = self_attention or (lambda y, x, w, mask: attend(y, y, w.self_attention, mask))
    cross = cross or (lambda y, memory, w, mask: attend(y, memory, w.cross_attention, mask))
    norms = norms or {}

    def run(x, memory, w, mask, memory_mask):
        mask = None if mask is None else see(mask)
        memory_mask = None if memory_mask is None else see(memory_mask)
        for name in order:
            before = x
            f = {
                SELF: lambda y, x=before: self_attention(y, x, w, mask),
                CROSS: lambda y: cross(y, memory, w, memory_mask),
                FEED: lambda y: feed(y, w.feed_forward),
            }[name]
            if name == CROSS and memory is None:
                continue
            n = getattr(w, f"{norms.get(name, name)}_norm")
            x = residual(w, name)(x, f, lambda y, n=n: normalise(y, n))
        return x

    def encoder(x, weights, mask=None):
        return run(x, None, weights, mask, None)

    def decoder(x, memory, weights, mask=None, memory_mask=None):
        return run(x, memory, weights, mask, memory_mask)

    return encoder, decoder


def _std_norm(x, w):
    d = x.shape[-1]
    return w.gain * (x - mean(x)) / root(spread(x) * d / (d - 1) + w.epsilon) + w.bias


def _std_norm_outside(x, w):
    d = x.shape[-1]
    return w.gain * (x - mean(x)) / (root(spread(x) * d / (d - 1)) + w.epsilon) + w.bias


def _norm_over_sequence(x, w):
    return w.gain * (x - mean(x, -2)) / root(spread(x, -2) + w.epsilon) + w.bias


def _attention(scaled=True, biased=1, out=True):
    """Return self-attention written out, with a step left out."""

    def attention(y, x, w, mask):
        w = w.self_attention
        q, k, v = (
            right_split(y @ W + biased * b, w.n_heads)
            for W, b in ((w.W_Q, w.b_Q), (w.W_K, w.b_K), (w.W_V, w.b_V))
        )
        q = q if scaled else q * q.shape[-1] ** 0.5
        heads = right_join(right_attention(q, k, v, mask))
        return heads @ w.W_O + biased * w.b_O if out else heads

    return attention


def _no_activation(x, w):
    return (x @ w.W_1 + w.b_1) @ w.W_2 + w.b_2


def _side_by_side(x, weights, mask=None):
    att = lambda y: attend(y, y, weights.self_attention, mask)  # noqa: E731
    ff = lambda y: ab.feed_forward(y, weights.feed_forward)  # noqa: E731
    n_1, n_2 = weights.self_attention_norm, weights.feed_forward_norm
    if weights.norm == "pre":
        return x + att(norm(x, n_1)) + ff(norm(x, n_2))
    return norm(norm(x + att(x), n_1) + ff(x), n_2)


def _from_start(x, weights, mask=None):
    att = lambda y: attend(y, y, weights.self_attention, mask)  # noqa: E731
    ff = lambda y: ab.feed_forward(y, weights.feed_forward)  # noqa: E731
    n_1, n_2 = weights.self_attention_norm, weights.feed_forward_norm
    if weights.norm == "pre":
        return x + ff(norm(x + att(norm(x, n_1)), n_2))
    return norm(x + ff(norm(x + att(x), n_1)), n_2)


def _lost_pre(x, f, n):
    return f(n(x))


def _lost_post(x, f, n):
    return n(f(x))


def _normalised_added(x, f, n):
    y = n(x)
    return y + f(y)


def _inside(x, f, n):
    return x + n(f(x))


def _twice(x, f, n):
    return n(x + f(n(x)))


def _bare(x, f, n):
    return x + f(x)


COMMON = {
    "no residuals 2": layer(around(EVERY, _lost_pre, post)),
    "no residual around self-attention 2": layer(around((SELF,), _lost_pre, post)),
    "no residual around the feed-forward network 2": layer(around((FEED,), pre, _lost_post)),
    "pre-norm for post-norm": layer(around(EVERY, pre, pre)),
    "post-norm for pre-norm": layer(around(EVERY, post, post)),
    "norm orders mixed up": layer(around(EVERY, post, pre)),
    "no residuals": layer(around(EVERY, _lost_pre, _lost_post)),
    "no residual around self-attention": layer(around((SELF,), _lost_pre, _lost_post)),
    "no residual around the feed-forward network": layer(around((FEED,), _lost_pre, _lost_post)),
    "residual from the normalised input": layer(around(EVERY, _normalised_added, post)),
    "residual from the normalised input 2": layer(around((FEED,), _normalised_added, post)),
    "norm inside the residual": layer(around(EVERY, _inside, _inside)),
    "norm inside the residual 2": layer(around(EVERY, pre, _inside)),
    "normalised twice": layer(around(EVERY, _twice, _twice)),
    "normalised twice 2": layer(around(EVERY, _twice, post)),
    "normalised twice 3": layer(around(EVERY, pre, _twice)),
    "no normalisation": layer(around(EVERY, _bare, _bare)),
    "self-attention not normalised": layer(around((SELF,), _bare, _bare)),
    "feed-forward network not normalised": layer(around((FEED,), _bare, _bare)),
    "feed-forward network first": layer(order=(FEED, SELF, CROSS)),
    "self-attention missing": layer(order=(CROSS, FEED)),
    "feed-forward network missing": layer(order=(SELF, CROSS)),
    "feed-forward network: no activation": layer(feed=_no_activation),
    "feed-forward network: activation after the second matrix": layer(
        feed=lambda x, w: relu(_no_activation(x, w))
    ),
    "feed-forward network: both biases forgotten": layer(feed=lambda x, w: relu(x @ w.W_1) @ w.W_2),
    "feed-forward network: another activation": layer(
        feed=lambda x, w: ab.feed_forward(x, replace(w, activation="gelu"))
    ),
    "layer normalisation: variance with n − 1": layer(normalise=_std_norm),
    "layer normalisation: over the sequence": layer(normalise=_norm_over_sequence),
    "layer normalisation: gain and bias forgotten": layer(normalise=lambda x, w: ab.layer_norm(x)),
    "layer normalisation: variance with n − 1 and epsilon outside": layer(
        normalise=_std_norm_outside
    ),
}


def _one_head(y, x, w, mask):
    single = replace(w.self_attention, n_heads=1, n_kv_heads=1)
    return attend(y, y, single, mask)


ENCODER_LAYER = {name: pair[0] for name, pair in COMMON.items()} | {
    "sublayers side by side": _side_by_side,
    "residual from the input of the layer": _from_start,
    "norms swapped": layer(norms={SELF: FEED, FEED: SELF})[0],
    "one norm for both": layer(norms={FEED: SELF})[0],
    "one norm for both 2": layer(norms={SELF: FEED})[0],
    "multi-head attention: one big head": layer(self_attention=_one_head)[0],
    "multi-head attention: biases forgotten": layer(self_attention=_attention(biased=0))[0],
    "multi-head attention: W_O forgotten": layer(self_attention=_attention(out=False))[0],
    "multi-head attention: no scale": layer(self_attention=_attention(scaled=False))[0],
    "keys and values not normalised": layer(
        self_attention=lambda y, x, w, mask: attend(y, x, w.self_attention, mask)
    )[0],
    "keys and values not normalised 2": layer(
        self_attention=lambda y, x, w, mask: ab.multi_head_attention(
            y, y, x, w.self_attention, mask
        )
    )[0],
    "causal mask of its own": layer(
        self_attention=lambda y, x, w, mask: attend(
            y, y, w.self_attention, _and(mask, ab.masking.causal(y.shape[-2], like=y))
        )
    )[0],
    "mask ignored": layer(see=lambda mask: None)[0],
    "mask inverted": layer(see=lambda mask: ~mask)[0],
    "mask transposed": layer(see=lambda mask: mask.mT)[0],
}


def _all_attentions_wrong(wrong):
    """Return the decoder whose attentions both are `wrong(x, y, weights, mask)`."""
    return layer(
        self_attention=lambda y, x, w, mask: wrong(y, y, w.self_attention, mask),
        cross=lambda y, memory, w, mask: wrong(y, memory, w.cross_attention, mask),
    )[1]


def _single(x, y, w, mask):
    return attend(x, y, replace(w, n_heads=1, n_kv_heads=1), mask)


def _decoder_side_by_side(x, memory, weights):
    y = layer(order=(SELF, CROSS))[1](x, memory, weights)
    n = weights.feed_forward_norm
    if weights.norm == "pre":
        return y + ab.feed_forward(norm(x, n), weights.feed_forward)
    return norm(y + ab.feed_forward(x, weights.feed_forward), n)


def _decoder_from_start(x, memory, weights):
    y = layer(order=(SELF, CROSS))[1](x, memory, weights)
    n = weights.feed_forward_norm
    if weights.norm == "pre":
        return x + ab.feed_forward(norm(y, n), weights.feed_forward)
    return norm(x + ab.feed_forward(y, weights.feed_forward), n)


def _cross(query, key, value, attention=CROSS):
    """Return a decoder whose cross-attention chooses its inputs from (x, memory)."""

    def cross(y, memory, w, mask):
        given = (y, memory)
        return ab.multi_head_attention(
            given[query], given[key], given[value], getattr(w, attention), mask
        )

    return layer(cross=cross)[1]


def _self_by_cross(y, x, w, mask):
    return attend(y, y, w.cross_attention, mask)


def _masks(choose, choose_memory):
    def decoder(x, memory, weights, mask=None, memory_mask=None):
        inner = layer()[1]
        mine, other = choose(mask, memory_mask), choose_memory(mask, memory_mask)
        return inner(x, memory, weights, mine, other)

    return decoder


def _and(mask, other):
    if mask is None or other is None:
        return mask if other is None else other
    return mask & other


def _own_causal(x, memory, weights, mask=None, memory_mask=None):
    causal = ab.masking.causal(x.shape[-2], like=x)
    return layer()[1](x, memory, weights, _and(mask, causal), memory_mask)


def _memory_normalised(y, memory, w, mask):
    if w.norm == "pre":
        memory = norm(memory, w.cross_attention_norm)
    return attend(y, memory, w.cross_attention, mask)


DECODER_LAYER = {name: pair[1] for name, pair in COMMON.items()} | {
    "target and memory exchanged": lambda x, memory, weights: layer()[1](memory, x, weights),
    "sublayers side by side": _decoder_side_by_side,
    "residual from the input of the layer": _decoder_from_start,
    "no residual around the cross-attention": layer(around((CROSS,), _lost_pre, _lost_post))[1],
    "residual around the cross-attention from the normalised input": layer(
        around((CROSS,), _normalised_added, post)
    )[1],
    "cross-attention not normalised": layer(around((CROSS,), _bare, _bare))[1],
    "norms swapped": layer(norms={SELF: CROSS, CROSS: SELF})[1],
    "norms swapped 2": layer(norms={FEED: CROSS, CROSS: FEED})[1],
    "norms swapped 3": layer(norms={FEED: SELF, SELF: FEED})[1],
    "norms swapped 4": layer(norms={SELF: CROSS, CROSS: FEED, FEED: SELF})[1],
    "norms swapped 5": layer(norms={SELF: FEED, CROSS: SELF, FEED: CROSS})[1],
    "one norm for several sublayers": layer(norms=dict.fromkeys(EVERY, SELF))[1],
    "one norm for several sublayers 2": layer(norms={CROSS: SELF})[1],
    "one norm for several sublayers 3": layer(norms={FEED: CROSS})[1],
    "memory ignored": layer(cross=lambda y, m, w, mask: attend(y, y, w.cross_attention))[1],
    "queries from the memory": _cross(1, 0, 0),
    "values from the target": _cross(0, 1, 0),
    "keys from the target": _cross(0, 0, 1),
    "everything from the memory": _cross(1, 1, 1),
    "self-attention's weights for the memory": _cross(0, 1, 1, SELF),
    "cross-attention's weights for the target": layer(self_attention=_self_by_cross)[1],
    "weights of the attentions swapped": layer(
        self_attention=_self_by_cross,
        cross=lambda y, memory, w, mask: attend(y, memory, w.self_attention, mask),
    )[1],
    "memory normalised": layer(cross=_memory_normalised)[1],
    "memory normalised 2": layer(
        cross=lambda y, memory, w, mask: attend(
            y, norm(memory, w.cross_attention_norm), w.cross_attention, mask
        )
    )[1],
    "cross-attention before self-attention": layer(order=(CROSS, SELF, FEED))[1],
    "cross-attention last": layer(order=(SELF, FEED, CROSS))[1],
    "cross-attention missing": layer(order=(SELF, FEED))[1],
    "multi-head attention: one big head": _all_attentions_wrong(_single),
    "causal mask of its own": _own_causal,
    "mask ignored": _masks(lambda mine, memory: None, lambda mine, memory: memory),
    "memory_mask ignored": _masks(lambda mine, memory: mine, lambda mine, memory: None),
    "masks swapped": _masks(lambda mine, memory: memory, lambda mine, memory: mine),
    "mask used for the memory too": _masks(lambda mine, memory: mine, _and),
    "mask used for the memory too 2": _masks(lambda mine, memory: mine, lambda mine, memory: mine),
    "memory_mask used for the target too": _masks(_and, lambda mine, memory: memory),
    "masks inverted": layer(see=lambda mask: ~mask)[1],
}


# Right layers in other styles.


def encoder_written_out(x, weights, mask=None):
    w, f = weights.self_attention, weights.feed_forward
    n_1, n_2 = weights.self_attention_norm, weights.feed_forward_norm
    y = right_norm(x, n_1.gain, n_1.bias) if weights.norm == "pre" else x
    q, k, v = (
        right_split(y @ W + b, w.n_heads)
        for W, b in ((w.W_Q, w.b_Q), (w.W_K, w.b_K), (w.W_V, w.b_V))
    )
    x = x + right_join(right_attention(q, k, v, mask)) @ w.W_O + w.b_O
    x = x if weights.norm == "pre" else right_norm(x, n_1.gain, n_1.bias)
    y = right_norm(x, n_2.gain, n_2.bias) if weights.norm == "pre" else x
    x = x + relu(y @ f.W_1 + f.b_1) @ f.W_2 + f.b_2
    return x if weights.norm == "pre" else right_norm(x, n_2.gain, n_2.bias)


def encoder_with_mask_by_place(x, weights, attention_mask):
    return ab.encoder_layer(x, weights, attention_mask)


def encoder_of_one_sequence(x, weights):
    _n, _d_model = x.shape
    return ab.encoder_layer(x, weights)


def encoder_of_batches(x, weights, *, mask=None):
    _batch, _n, _d_model = x.shape
    return ab.encoder_layer(x, weights, mask)


class EncoderObject:
    """A layer built from its weights, with no module of PyTorch in it."""

    def __init__(self, weights):
        self.weights = weights

    def __call__(self, x, mask=None):
        return ab.encoder_layer(x, self.weights, mask)


class DecoderObject(EncoderObject):
    def __call__(self, x, memory, mask=None, memory_mask=None):
        return ab.decoder_layer(x, memory, self.weights, mask, memory_mask)


class DecoderWithDefaults(EncoderObject):
    def __call__(self, x, memory=None, mask=None, memory_mask=None):
        return ab.decoder_layer(x, memory, self.weights, mask, memory_mask)


def decoder_by_place(x, memory, weights, target_mask, source_mask):
    return ab.decoder_layer(x, memory, weights, target_mask, source_mask)


def decoder_without_masks(x, memory, weights):
    return ab.decoder_layer(x, memory, weights)


# Greedy decoding, with the ids of start and stop or without.


def greedy(
    choose=lambda model, ids: int(model(ids)[-1].argmax()),
    limit=0,
    until=True,
    late=False,
    show=lambda ids, stop: ids,
):
    def answer(model, start, stop, max_length):
        ids = [start]
        for _ in range(max_length + limit):
            if late and len(ids) > 1 and ids[-1] == stop:
                ids.append(choose(model, ids))
                break
            ids.append(choose(model, ids))
            if until and not late and ids[-1] == stop:
                break
        return show(ids, stop)

    return answer


def without_start(ids, stop):
    return ids[1:]


def without_stop(ids, stop):
    return ids[:-1] if len(ids) > 1 and ids[-1] == stop else ids


def without_both(ids, stop):
    return without_stop(ids, stop)[1:]


def _prepend(model, start, stop, max_length):
    ids = [start]
    while len(ids) <= max_length:
        ids = [int(model(ids)[-1].argmax()), *ids]
        if ids[0] == stop:
            break
    return ids


def _rows(fill):
    """Decode one start or several; `fill` makes rows of one length of those that are done."""

    def answer(model, start, stop, max_length):
        if isinstance(start, int):
            return greedy()(model, start, stop, max_length)
        xp = array_namespace(start)
        rows = start[:, None]
        done = start != start
        for _ in range(max_length):
            token = xp.argmax(model(rows)[..., -1, :], axis=-1)
            token, done, ends = fill(xp, token, done, stop)
            rows = xp.concat([rows, token[:, None]], axis=1)
            if ends:
                break
        return rows

    return answer


def _go_on(xp, token, done, stop):
    done = done | (token == stop)
    return token, done, bool(xp.all(done))


def _first_ends(xp, token, done, stop):
    done = done | (token == stop)
    return token, done, bool(xp.any(done))


def _filled(xp, token, done, stop):
    token = xp.where(done, xp.full_like(token, stop), token)
    done = done | (token == stop)
    return token, done, bool(xp.all(done))


GREEDY_DECODE = {
    "first position": greedy(lambda model, ids: int(model(ids)[0].argmax())),
    "first position 2": greedy(lambda model, ids: int(model(ids[:1])[-1].argmax())),
    "position before the last": greedy(
        lambda model, ids: int(model(ids)[max(len(ids) - 2, 0)].argmax())
    ),
    "argmax over the positions": greedy(lambda model, ids: int(model(ids).argmax(0)[-1])),
    "argmax over the positions 2": greedy(lambda model, ids: int(model(ids).argmax(0)[0])),
    "argmax over everything": greedy(lambda model, ids: int(model(ids).argmax())),
    "argmax over everything 2": greedy(lambda model, ids: int(model(ids).argmax()) % 7),
    "logits averaged": greedy(lambda model, ids: int(mean(model(ids), 0)[0].argmax())),
    "smallest logit": greedy(lambda model, ids: int(model(ids)[-1].argmin())),
    "last token alone": greedy(lambda model, ids: int(model(ids[-1:])[-1].argmax())),
    "start not read": greedy(lambda model, ids: int(model(ids[1:] or ids)[-1].argmax())),
    "read backwards": _prepend,
    "read backwards 2": greedy(lambda model, ids: int(model(ids[::-1])[-1].argmax())),
    "stop ignored": greedy(until=False),
    "stop ignored 2": greedy(until=False, show=without_start),
    "stop noticed late": greedy(late=True),
    "one token too few": greedy(limit=-1),
    "one token too few 2": greedy(limit=-1, show=without_both),
    "one token too many": greedy(limit=1),
    "one token too many 2": greedy(limit=1, show=without_stop),
    "batch axis kept": greedy(show=lambda ids, stop: np.array([ids])),
    "rows go on after stop": _rows(_go_on),
    "batch ends at the first stop": _rows(_first_ends),
}


def greedy_of_rows(model, start, stop, max_length):
    return _rows(_filled)(model, start, stop, max_length)


def greedy_in_an_array(model, start, stop, max_length):
    ids = np.array([start])
    while len(ids) <= max_length and not (len(ids) > 1 and ids[-1] == stop):
        logits = np.asarray(model(ids))[-1]
        ids = np.append(ids, max(range(len(logits)), key=lambda token: logits[token]))
    return ids


def torch_greedy(model, start, stop, max_length):
    import torch

    ids = torch.tensor([[start]])
    for _ in range(max_length):
        token = torch.argmax(model(ids)[:, -1], dim=-1, keepdim=True)
        ids = torch.cat([ids, token], dim=1)
        if token.item() == stop:
            break
    return ids[0]


def cached(place=lambda i: i, keep=True, feed=lambda ids: ids[-1], pick=np.argmax, show=None):
    """Return decoding with a cache; `place` is the position of token i."""

    def answer(step, start, stop, max_length):
        ids, cache = [start], None
        for i in range(max_length):
            logits, new = step(feed(ids), place(i), cache)
            cache = new if keep is True or (keep == "first" and cache is None) else cache
            ids.append(int(pick(np.asarray(logits))))
            if ids[-1] == stop:
                break
        return show(ids, stop) if show else ids

    return answer


def _start_twice(step, start, stop, max_length):
    _, cache = step(start, 0, None)
    ids, position = [start], 1
    while len(ids) <= max_length:
        logits, cache = step(ids[-1], position, cache)
        ids.append(int(logits.argmax()))
        position += 1
        if ids[-1] == stop:
            break
    return ids


def _prefix_again(step, start, stop, max_length):
    ids, cache = [start], None
    while len(ids) <= max_length:
        for position, token in enumerate(ids):
            logits, cache = step(token, position, cache)
        ids.append(int(logits.argmax()))
        if ids[-1] == stop:
            break
    return ids


def _cached_limit(limit=0, until=True):
    def answer(step, start, stop, max_length):
        return cached()(step, start, stop if until else -1, max_length + limit)

    return answer


def _cached_late(step, start, stop, max_length):
    ids = cached()(step, start, stop, max_length)
    if ids[-1] != stop or len(ids) > max_length:
        return ids
    longer = cached()(step, start, -1, max_length)
    return longer[: len(ids) + 1]


GREEDY_DECODE_CACHED = {
    "position off by one": cached(lambda i: i + 1),
    "position one behind": cached(lambda i: max(i - 1, 0)),
    "position one ahead": cached(lambda i: i + 1 if i else 0),
    "position stays": cached(lambda i: 0),
    "position stays 2": cached(lambda i: 1),
    "cache not handed on": cached(keep=False),
    "cache not handed on 2": cached(lambda i: 0, keep=False),
    "cache of the first step": cached(keep="first"),
    "start fed again": cached(feed=lambda ids: ids[0]),
    "token fed twice": _start_twice,
    "whole prefix fed again": _prefix_again,
    "smallest logit": cached(pick=np.argmin),
    "stop ignored": _cached_limit(until=False),
    "stop noticed late": _cached_late,
    "one token too few": _cached_limit(-1),
    "one token too many": _cached_limit(1),
    "batch axis kept": cached(show=lambda ids, stop: np.array([ids])),
}


def torch_cached(step, start, stop, max_length):
    import torch

    token, cache, ids = torch.tensor([start]), None, []
    for position in range(max_length):
        logits, cache = step(token, torch.tensor(position), cache)
        token = torch.argmax(logits, dim=-1, keepdim=True)
        ids.append(token)
        if token.item() == stop:
            break
    return torch.cat(ids)


# Two mistakes at once.


DOUBLES = {
    "layer_norm": {
        "epsilon of another size; bias forgotten": lambda x, g, b: normed(epsilon=1e-3)(x, g, 0),
        "over the sequence; gain forgotten": lambda x, g, b: normed(axis=-2)(x, 1, b),
    },
    "feed_forward": {
        "another activation; b_2 forgotten": lambda x, A, a, B, b: ff(ab.gelu)(x, A, a, B, 0),
        "no activation; residual inside": lambda x, *w: x + ff(lambda h: h)(x, *w),
    },
    "embed": {
        "no √d_model; id one too small": lambda ids, E: E[ids - 1],
        "no √d_model; columns for rows": lambda ids, E: E[:, ids],
        "no √d_model; summed over the tokens": lambda ids, E: E[ids].mean(-2),
    },
    "positional_encoding": {
        "sin and cos swapped; positions from 1": table(
            lambda p, i, d: right_angle(p + 1, i, d), np.cos, np.sin
        )
    },
    "cross_entropy": {
        "sign; sum for mean": loss(lambda z: -ab.log_softmax(z), reduce=all_sum),
        "softmax over the tokens; sum for mean": loss(
            lambda z: ab.log_softmax(z, axis=0), reduce=all_sum
        ),
    },
    "teacher_forcing": {"too little read; start among the labels": lambda t: (t[..., :-2], t)},
    "greedy_decode": {
        "smallest logit; one token too many": greedy(
            lambda model, ids: int(model(ids)[-1].argmin()), limit=1
        ),
        "stop ignored; first position": greedy(
            lambda model, ids: int(model(ids)[0].argmax()), until=False
        ),
    },
    "encoder_layer": {
        "no residuals; layer normalisation: variance with n − 1": layer(
            around(EVERY, _lost_pre, _lost_post), normalise=_std_norm
        )[0],
        "one norm for both; feed-forward network: no activation": layer(
            norms={FEED: SELF}, feed=_no_activation
        )[0],
    },
    "decoder_layer": {
        "cross-attention last; norms swapped": layer(
            order=(SELF, FEED, CROSS), norms={SELF: CROSS, CROSS: SELF}
        )[1],
        "no residual around the cross-attention; keys from the target": layer(
            around((CROSS,), _lost_pre, _lost_post),
            cross=lambda y, memory, w, mask: ab.multi_head_attention(
                y, y, memory, w.cross_attention, mask
            ),
        )[1],
    },
}


WRONG = {
    "layer_norm": transformer.LAYER_NORM,
    "positional_encoding": transformer.positions_wrong(False),
    "positional_encoding, interleaved": transformer.positions_wrong(True),
    "embed": transformer.EMBED,
    "feed_forward": transformer.FEED_FORWARD,
    "encoder_layer": ENCODER_LAYER,
    "decoder_layer": DECODER_LAYER,
    "teacher_forcing": transformer.TEACHER_FORCING,
    "cross_entropy": transformer.CROSS_ENTROPY,
    "greedy_decode": GREEDY_DECODE,
    "greedy_decode, cached": GREEDY_DECODE_CACHED,
}
