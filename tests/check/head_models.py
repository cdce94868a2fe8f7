"""Models for the checks of order and of heads, right ones and bugs that libraries had."""

import numpy as np
from property_models import (
    TOKENS,
    WIDTH,
    Block,
    CausalConvolution,
    Language,
    N,
    T,
    W,
    X,
    attend,
    functional,
    head,
    heads,
    loop,
    merge,
    nn,
    projected,
    sdpa,
    sequence_first,
    softmax,
    split,
    torch,
)

import attnbook

EQUIVARIANT = {
    "ours": (lambda x: attnbook.attention(x, x, x), X),
    "heads": (projected(heads(3)), X),
    "float32": (lambda x: sdpa(x), T),
    "one sequence": (projected(heads(3)), X[0]),
    "a layer": (nn.TransformerEncoderLayer(WIDTH, 3, 16, batch_first=True, dropout=0.0), X),
    "a layer with dropout": (nn.TransformerEncoderLayer(WIDTH, 3, 16, batch_first=True), X),
    "tokens": (nn.Sequential(nn.Embedding(23, WIDTH), Block(lambda m: False)), TOKENS),
    "each token alone": (lambda x: x * 2, X),
    "softmax over the queries": (head(axis=-2), X),
    "batch normalisation": (CausalConvolution(nn.BatchNorm1d(WIDTH), left=0), X),
}


IN_ORDER = {
    "causal": (lambda x: loop(x), X, "causal mask"),
    "LSTM": (nn.LSTM(WIDTH, 5, batch_first=True), X, "causal mask"),
    "positions": (
        lambda x: attnbook.attention(*3 * (x + 0.3 * np.arange(N)[:, None],)),
        X,
        "equal inputs differ",
    ),
    "learned positions": (
        lambda x: Language(lambda m: False).blocks[0].eval()(x + 0.02 * torch.randn(N, WIDTH)),
        T,
        "equal inputs differ",
    ),
    "rotary positions": (
        lambda x: attnbook.attention(*2 * (attnbook.positions.rotary(x),), x),
        X[..., :8],
        "weights by place",
    ),
    "mixer": (lambda x: np.cos(np.arange(N * N)).reshape(N, N) @ x, X, "equal inputs differ"),
    "the mask of the past": (
        lambda x: attnbook.attention(x, x, x, ~np.tri(N, k=-1, dtype=bool)),
        X,
        "mask of the past",
    ),
    "reversed": (lambda x: attnbook.attention(x, x, x)[:, ::-1], X, "outputs moved"),
    "shifted": (lambda x: np.roll(attnbook.attention(x, x, x), 1, axis=1), X, "outputs moved"),
    # reczoo/FuxiCTR issue 30, 649453932/Chinese-Text-Classification-Pytorch issue 10
    "bare": (projected(heads(3, bare_split=True, bare_merge=True)), X, "bare reshape"),
    "bare split": (lambda x: heads(4, bare_split=True)(x, x, x), X, "bare reshape"),
    "bare merge": (lambda x: heads(3, bare_merge=True)(x, x, x), X, "bare reshape"),
    "bare merge, then a projection": (
        projected(heads(3, bare_merge=True)),
        X,
        "equal inputs differ",
    ),
    "sequence first": (sequence_first, T, "another sequence leaks in"),
    "dropout": (lambda x: functional.dropout(x), T, "not deterministic"),
    "positions alone": (lambda x: x + np.arange(N)[:, None], X[..., :8], "place"),
    "convolution": (CausalConvolution(left=1, right=1), X[..., :6].repeat(2, -1), "window"),
    "sorted": (lambda x: np.sort(x, axis=1), X, "order lost"),
}


H = 3


def interleaved(merge_interleaved):
    def run(query, key, value):
        q, k, v = (
            np.moveaxis(x.reshape(*x.shape[:-1], -1, H), -1, -3) for x in (query, key, value)
        )
        output = attend(q, k, v)
        if merge_interleaved:
            return np.moveaxis(output, -3, -1).reshape(query.shape)
        return merge(output)

    return run


def without_swap(query, key, value):
    q, k, v = (x.reshape(*x.shape[:-1], H, -1) for x in (query, key, value))
    return attend(q, k, v).reshape(query.shape)


def fuxi(query, key, value):
    """reczoo/FuxiCTR issue 30: view(batch * heads, -1, d), there and back."""
    q, k, v = (x.reshape(len(x) * H, -1, x.shape[-1] // H) for x in (query, key, value))
    return attend(q, k, v).reshape(query.shape)


def averaged(how, keep):
    def run(query, key, value):
        output = how(attend(*(split(x, H) for x in (query, key, value))), axis=-3, keepdims=keep)
        return merge(np.repeat(output, H, axis=-3)) if keep else output

    return run


def fast_heads(query, key, value):
    q, k, v = (x.unflatten(-1, (H, -1)).transpose(-2, -3) for x in (query, key, value))
    return functional.scaled_dot_product_attention(q, k, v).transpose(-2, -3).flatten(-2)


def fast_causal_heads(query, key, value):
    q, k, v = (x.unflatten(-1, (H, -1)).transpose(-2, -3) for x in (query, key, value))
    output = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return output.transpose(-2, -3).flatten(-2)


def loop_of_heads(query, key, value):
    blocks = (np.split(x, H, axis=-1) for x in (query, key, value))
    return np.concatenate([attend(*block) for block in zip(*blocks, strict=True)], axis=-1)


class Heads(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value):
        return self.dropout(fast_heads(query, key, value)), None


INDEPENDENT = {
    "ours": (
        lambda q, k, v: attnbook.merge_heads(
            attnbook.attention(*(attnbook.split_heads(x, H) for x in (q, k, v)))
        ),
        X,
        None,
    ),
    "NumPy": (heads(H), X, None),
    "a loop": (loop_of_heads, X, None),
    "one sequence": (heads(H), X[0], None),
    "rectangular": (heads(H), (np.ones((5, 6)), np.ones((7, 6)), np.ones((7, 9))), None),
    "SDPA": (fast_heads, T, None),
    "a module": (Heads(), X, None),
    "float16": (fast_heads, T.half(), None),
    "heads first": (attend, np.ones((2, H, 5, 4)), -3),
    "heads last": (
        lambda *arrays: attend(*(x.swapaxes(-2, -3) for x in arrays)).swapaxes(-2, -3),
        np.ones((5, H, 4)),
        -2,
    ),
}


def of_scores(weigh, factor=2.0, order=slice(None)):
    """Return heads of width 4 whose weights are `weigh(scores)`, joined in some order."""

    def run(query, key, value):
        q, k, v = (split(x, H) for x in (query, key, value))
        return merge((weigh(q @ k.swapaxes(-1, -2) / factor) @ v)[..., order, :, :])

    return run


BACKWARDS = slice(None, None, -1)
MIXED = {
    "backwards": (of_scores(softmax, order=BACKWARDS), "heads in another order"),
    "rolled": (of_scores(softmax, order=[1, 2, 0]), "heads in another order"),
    "first head": (of_scores(softmax, order=[0, 0, 0]), "one head for all"),
    "merged in between": (
        lambda *arrays: np.moveaxis(attend(*(split(x, H) for x in arrays)), -3, -1).reshape(
            arrays[0].shape
        ),
        "features in another order",
    ),
    "doubled": (lambda *arrays: 2 * heads(H)(*arrays), "output scaled"),
    "divided by 4": (of_scores(softmax, 4.0), "scale without the root"),
    "multiplied": (of_scores(softmax, 0.5), "scale multiplied"),
    "exponentials": (of_scores(np.exp), "no softmax"),
    "key as value": (lambda q, k, v: heads(H)(q, k, k), "key used as value"),
    "query as key": (lambda q, k, v: heads(H)(q, q, v), "query used as key"),
    "swapped": (lambda q, k, v: heads(H)(k, q, v), "query and key swapped"),
    "bare split, no scale": (
        heads(H, bare_split=True, scale=1.0),
        "bare reshape in the split; no scale",
    ),
    "bare merge, √d_model": (
        heads(H, bare_merge=True, scale=WIDTH**-0.5),
        "missing transpose in the merge; scale by d_model",
    ),
    "backwards, no scale": (
        of_scores(softmax, 1.0, BACKWARDS),
        "no scale; heads in another order",
    ),
    "causal, no scale": (heads(H, np.tri(N, dtype=bool), scale=1.0), "no scale"),
    "bare": (heads(H, bare_split=True, bare_merge=True), "bare reshape"),
    "FuxiCTR": (fuxi, "bare reshape"),
    "bare split": (heads(H, bare_split=True), "bare reshape in the split"),
    # jsbaan/transformer-from-scratch pull request 6, ajhalthor/Transformer-Neural-Network 4
    "bare merge": (heads(H, bare_merge=True), "missing transpose in the merge"),
    "without swap": (without_swap, "attention over the heads"),
    "interleaved": (interleaved(True), "interleaved features"),
    "interleaved, merged side by side": (interleaved(False), "interleaved features"),
    "scale": (heads(H, scale=WIDTH**-0.5), "scale by d_model"),
    "no scale": (heads(H, scale=1.0), "no scale"),
    "softmax over the heads": (heads(H, axis=-3), "softmax over the heads"),
    "softmax over the queries": (heads(H, axis=-2), "softmax over the queries"),
    "one head": (attend, "one head"),
    "mean of the weights": (
        of_scores(lambda s: 0 * s + softmax(s).mean(axis=-3, keepdims=True)),
        "weights averaged",
    ),
    "last head missing": (
        lambda *arrays: heads(H)(*arrays) * (np.arange(arrays[2].shape[-1]) < WIDTH - WIDTH // H),
        "one head left out",
    ),
    "first values": (
        lambda q, k, v: heads(H)(q, k, np.tile(v[..., : v.shape[-1] // H], H)),
        "first keys or values for all",
    ),
    "next keys": (
        lambda q, k, v: heads(H)(q, np.roll(k, -(k.shape[-1] // H), axis=-1), v),
        "keys or values of another head",
    ),
    "keys for queries": (lambda q, k, v: heads(H)(k, k, v), "keys compared with themselves"),
    "mean": (averaged(np.mean, True), "heads averaged"),
    "narrow mean": (averaged(np.mean, False), "heads averaged"),
    "sum": (averaged(np.sum, True), "heads averaged"),
    "W_O": (lambda *arrays: heads(H)(*arrays) @ W[3], "output projection"),
    "W_O and b_O": (lambda *arrays: heads(H)(*arrays) @ W[3] + 5, "output projection"),
    "four heads": (heads(4), None),
    "normalised": (lambda q, k, v: heads(H)(q, k, v) / abs(q).max(-1, keepdims=True), None),
    "a small leak": (lambda q, k, v: heads(H)(q, k, v) + 1e-4 * np.roll(v, 4, -1), None),
    "another temperature": (heads(H, scale=0.1), None),
    "NaN": (lambda q, k, v: q * np.nan, "NaN"),
    "narrow": (lambda q, k, v: heads(H)(q, k, v)[..., :1], "wrong shape"),
    "random": (lambda q, k, v: np.random.default_rng().normal(size=q.shape), "not deterministic"),
}
