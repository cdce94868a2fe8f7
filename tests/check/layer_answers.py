"""Layers and decoders that readers might hand in, right and wrong, by the name of the mistake."""

from attention_answers import right_attention
from multi_head_answers import right_join, right_split
from transformer_answers import (
    mean,
    relu,
    right_norm,
    root,
    spread,
)

import attnbook as ab

SELF, CROSS, FEED = "self_attention", "cross_attention", "feed_forward"


def norm(x, w):
    return ab.layer_norm(x, w.gain, w.bias, epsilon=w.epsilon)


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
):
    """Return an encoder or decoder layer with some pieces replaced."""
    self_attention = self_attention or (lambda y, x, w, mask: attend(y, y, w.self_attention, mask))
    cross = cross or (lambda y, memory, w, mask: attend(y, memory, w.cross_attention, mask))
    norms = norms or {}

    def run(x, memory, w, mask, memory_mask):
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


def _unscaled(y, x, w, mask):
    """Return self-attention written out, without its scale."""
    w = w.self_attention
    q, k, v = (
        right_split(y @ W + b, w.n_heads)
        for W, b in ((w.W_Q, w.b_Q), (w.W_K, w.b_K), (w.W_V, w.b_V))
    )
    return right_join(right_attention(q * q.shape[-1] ** 0.5, k, v, mask)) @ w.W_O + w.b_O


def _no_activation(x, w):
    return (x @ w.W_1 + w.b_1) @ w.W_2 + w.b_2


def side_by_side(x, weights, mask=None):
    """Let the feed-forward network read the input of the layer."""
    y, n = layer(order=(SELF,))[0](x, weights, mask), weights.feed_forward_norm
    if weights.norm == "pre":
        return y + ab.feed_forward(norm(x, n), weights.feed_forward)
    return norm(y + ab.feed_forward(x, weights.feed_forward), n)


def _and(mask, other):
    if mask is None or other is None:
        return mask if other is None else other
    return mask & other


def masks_swapped(x, memory, weights, mask=None, memory_mask=None):
    if mask is not None and memory_mask is not None:
        mask, memory_mask = memory_mask, mask
    return ab.decoder_layer(x, memory, weights, mask, memory_mask)


COMMON = {
    "pre-norm for post-norm": layer(around(EVERY, wrong_post="x + f(n(x))")),
    "norm orders mixed up": layer(around(EVERY, "n(x + f(x))", "x + f(n(x))")),
    "layer normalisation: variance with n − 1 and epsilon outside": layer(
        normalise=_std_norm_outside
    ),
}
ENCODER_LAYER = {name: encoder for name, (encoder, _) in COMMON.items()} | {
    "sublayers side by side": side_by_side,
    "multi-head attention: no scale": layer(self_attention=_unscaled)[0],
    "keys and values not normalised": layer(
        self_attention=lambda y, x, w, mask: ab.multi_head_attention(
            y, y, x, w.self_attention, mask
        )
    )[0],
    "causal mask of its own": lambda x, weights, mask=None: ab.encoder_layer(
        x, weights, _and(mask, ab.masking.causal(x.shape[-2], like=x))
    ),
}
DECODER_LAYER = {name: decoder for name, (_, decoder) in COMMON.items()} | {
    "norms swapped": layer(norms={SELF: CROSS, CROSS: FEED, FEED: SELF})[1],
    "memory normalised": layer(
        cross=lambda y, m, w, mask: attend(
            y, norm(m, w.cross_attention_norm) if w.norm == "pre" else m, w.cross_attention, mask
        )
    )[1],
    "cross-attention last": layer(order=(SELF, FEED, CROSS))[1],
    "masks swapped": masks_swapped,
    "mask used for the memory too": lambda x, memory, weights, mask=None, memory_mask=None: (
        ab.decoder_layer(x, memory, weights, mask, _and(mask, memory_mask))
    ),
    "target and memory exchanged": lambda x, memory, weights: ab.decoder_layer(memory, x, weights),
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


WRONG = {
    "encoder_layer": ENCODER_LAYER,
    "decoder_layer": DECODER_LAYER,
}

DOUBLES = {
    "encoder_layer": {
        "no residuals; layer normalisation: variance with n − 1": layer(
            around(EVERY, "f(n(x))", "n(f(x))"), normalise=_std_norm
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
            around((CROSS,), "f(n(x))", "n(f(x))"),
            cross=lambda y, m, w, mask: ab.multi_head_attention(y, y, m, w.cross_attention, mask),
        )[1],
    },
}
RIGHT = {
    "encoder_layer": (
        ab.encoder_layer,
        encoder_written_out,
        layer()[0],
        lambda x, weights, attention_mask: ab.encoder_layer(x, weights, attention_mask),
        lambda x, weights: ab.encoder_layer(x, weights) if x.ndim == 2 else 1 / 0,
        encoder_of_batches,
        EncoderObject,
    ),
    "decoder_layer": (
        ab.decoder_layer,
        layer()[1],
        lambda x, memory, weights, target_mask, source_mask: ab.decoder_layer(
            x, memory, weights, target_mask, source_mask
        ),
        lambda x, memory, weights: ab.decoder_layer(x, memory, weights),
        DecoderObject,
        DecoderWithDefaults,
    ),
}
