"""Layers and decoders that readers might hand in, right and wrong, by the name of the mistake."""

import numpy as np
import transformer_answers as transformer
from answer_programs import entries
from array_api_compat import array_namespace
from attention_answers import right_attention, right_join, right_split
from transformer_answers import (
    mean,
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


def pieces(form, table):
    """Return the answers of a table whose texts stand for … in an expression."""
    return {name: eval(form.replace("…", text), globals()) for name, text in entries(table, " | ")}


def attend(x, y, w, mask=None):
    return ab.multi_head_attention(x, y, y, w, mask)


def around(names, wrong_pre="x + f(n(x))", wrong_post="n(x + f(x))"):
    """Return what chooses the residual of a sublayer: a wrong one for those of `names`."""

    def choose(w, name):
        right = "x + f(n(x))" if w.norm == "pre" else "n(x + f(x))"
        text = (wrong_pre if w.norm == "pre" else wrong_post) if name in names else right
        return eval(f"lambda x, f, n: {text}")

    return choose


EVERY = (SELF, CROSS, FEED)


RIGHT = around(())


def layer(
    residual=RIGHT,
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


def feed_last(side_by_side, order=(SELF,)):
    """Return a layer whose last sublayer reads its input, or adds to it."""

    def answer(x, weights, memory=None, mask=None):
        y = layer(order=order)[1](x, memory, weights, mask)
        read, base = (x, y) if side_by_side else (y, x)
        n = weights.feed_forward_norm
        if weights.norm == "pre":
            return base + ab.feed_forward(norm(read, n), weights.feed_forward)
        return norm(base + ab.feed_forward(read, weights.feed_forward), n)

    if order == (SELF,):
        return lambda x, weights, mask=None: answer(x, weights, None, mask)
    return lambda x, memory, weights: answer(x, weights, memory)


COMMON = pieces(
    "layer(…)",
    """
pre-norm for post-norm | around(EVERY, wrong_post="x + f(n(x))")
norm orders mixed up | around(EVERY, "n(x + f(x))", "x + f(n(x))")
layer normalisation: variance with n − 1 and epsilon outside | normalise=_std_norm_outside
""",
)


def _cross(query, key, value, attention=CROSS):
    """Return a cross-attention that chooses its inputs from (x, memory)."""

    def cross(y, memory, w, mask):
        given = (y, memory)
        return ab.multi_head_attention(
            given[query], given[key], given[value], getattr(w, attention), mask
        )

    return cross


def _and(mask, other):
    if mask is None or other is None:
        return mask if other is None else other
    return mask & other


def _causal(x, mask):
    return _and(mask, ab.masking.causal(x.shape[-2], like=x))


def _masks(choose, choose_memory):
    def decoder(x, memory, weights, mask=None, memory_mask=None):
        mine, other = choose(mask, memory_mask), choose_memory(mask, memory_mask)
        return layer()[1](x, memory, weights, mine, other)

    return decoder


ENCODER_LAYER = (
    {name: pair[0] for name, pair in COMMON.items()}
    | pieces(
        "layer(self_attention=lambda y, x, w, mask: …)[0]",
        """
multi-head attention: no scale | _attention(scaled=False)(y, x, w, mask)
keys and values not normalised | ab.multi_head_attention(y, y, x, w.self_attention, mask)
causal mask of its own | attend(y, y, w.self_attention, _causal(y, mask))
""",
    )
    | pieces(
        "…",
        """
sublayers side by side | feed_last(True)
""",
    )
)

DECODER_LAYER = (
    {name: pair[1] for name, pair in COMMON.items()}
    | pieces(
        "layer(…)[1]",
        """
norms swapped | norms={SELF: CROSS, CROSS: FEED, FEED: SELF}
memory normalised | cross=lambda y, m, w, mask: attend(
        y, norm(m, w.cross_attention_norm) if w.norm == "pre" else m, w.cross_attention, mask)
cross-attention last | order=(SELF, FEED, CROSS)
""",
    )
    | pieces(
        "_masks(lambda mine, memory: …)",
        """
masks swapped | mine if memory is None or mine is None else memory, lambda mine, memory: (
        memory if memory is None or mine is None else mine)
mask used for the memory too | mine, _and
""",
    )
    | pieces(
        "lambda x, memory, weights: …",
        """
target and memory exchanged | layer()[1](memory, x, weights)
""",
    )
    | {}
)


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


def to_the_first(ids, stop):
    return ids[: ids.index(stop) + 1] if stop in ids else ids


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


GREEDY_DECODE = pieces(
    "greedy(lambda model, ids: int(…))",
    """
first position | model(ids[:1])[-1].argmax()
argmax over everything | model(ids).argmax() % 7
""",
) | pieces(
    "…",
    """
read backwards | _prepend
start taken for the end | lambda model, start, stop, n: to_the_first(
        greedy(until=False)(model, start, stop, n), stop)
stop noticed late | greedy(late=True)
rows go on after stop | _rows(_go_on)
batch ends at the first stop | _rows(_first_ends)
""",
)


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


def _cached_late(step, start, stop, max_length):
    ids = cached()(step, start, stop, max_length)
    if ids[-1] != stop or len(ids) > max_length:
        return ids
    longer = cached()(step, start, -1, max_length)
    return longer[: len(ids) + 1]


GREEDY_DECODE_CACHED = {
    "position one ahead": cached(lambda i: i + 1 if i else 0),
    "position stays": cached(lambda i: 1),
    "cache of the first step": cached(keep="first"),
    "token fed twice": _start_twice,
    "whole prefix fed again": _prefix_again,
    "stop noticed late": _cached_late,
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
    "layer_norm": transformer.NORM.wrong("""
epsilon of another library; bias forgotten: c / root(var + 1e-3) * g
over the sequence; gain forgotten: normed(axis=-2)(x, 1, b)
"""),
    "feed_forward": transformer.FEED.wrong("""
another activation; b_2 forgotten: ab.gelu(h) @ B
no activation; residual inside: x + h @ B + b
another activation; b_1 after the activation: (xp.tanh(x @ A) + a) @ B + b
"""),
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
    "cross_entropy": transformer.LOSS.wrong("""
sign; sum for mean: -xp.sum(losses)
softmax over the tokens; sum for mean: -xp.sum(taken(ab.log_softmax(z, axis=0), t))
softmax over the tokens; logarithm of 0: rows = log(sm(z, 0))
one softmax for all; exp overflows: rows = z - log(xp.sum(exp(z)))
sign; base 2: rows = ab.log_softmax(z) / -math.log(2)
"""),
    "teacher_forcing": {"too little read; start among the labels": lambda t: (t[..., :-2], t)},
    "greedy_decode": {
        "smallest logit; one token too many": greedy(
            lambda model, ids: int(model(ids)[-1].argmin()), limit=1
        ),
        "stop ignored; first position": greedy(
            lambda model, ids: int(model(ids)[0].argmax()), until=False
        ),
    },
    "encoder_layer": pieces(
        "layer(…)[0]",
        """
no residuals; layer normalisation: variance with n − 1 | around(EVERY, "f(n(x))", "n(f(x))"),
        normalise=_std_norm
one norm for both; feed-forward network: no activation | norms={FEED: SELF}, feed=_no_activation
""",
    ),
    "decoder_layer": pieces(
        "layer(…)[1]",
        """
cross-attention last; norms swapped | order=(SELF, FEED, CROSS), norms={SELF: CROSS, CROSS: SELF}
no residual around the cross-attention; keys from the target | around(
        (CROSS,), "f(n(x))", "n(f(x))"), cross=_cross(0, 0, 1)
""",
    ),
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
