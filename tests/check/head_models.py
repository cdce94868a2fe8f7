"""Models for the checks of order and of heads, right ones and bugs that libraries had."""

import numpy as np
from property_models import (  # noqa: F401 (for the tables)
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
    models,
    nn,
    projected,
    sdpa,
    sequence_first,
    softmax,
    split,
    torch,
)

import attnbook

EQUIVARIANT = models(
    """
ours | lambda x: attnbook.attention(x, x, x)
heads | projected(heads(3))
float32 | sdpa, T
one sequence | projected(heads(3)), X[0]
a layer | nn.TransformerEncoderLayer(WIDTH, 3, 16, batch_first=True, dropout=0.0)
a layer with dropout | nn.TransformerEncoderLayer(WIDTH, 3, 16, batch_first=True)
tokens | nn.Sequential(nn.Embedding(23, WIDTH), Block(lambda m: False)), TOKENS
each token alone | lambda x: x * 2
softmax over the queries | head(axis=-2)
batch normalisation | CausalConvolution(nn.BatchNorm1d(WIDTH), left=0)
""",
    globals(),
    X,
)


def learned_positions(x):
    return Language(lambda m: False).blocks[0].eval()(x + 0.02 * torch.randn(N, WIDTH))


# bare reshape: reczoo/FuxiCTR issue 30, 649453932/Chinese-Text-Classification-Pytorch issue 10
IN_ORDER = models(
    """
one input for all | lambda x: x + x[:, :1]
    lambda x: x + x[:, -1:]
causal mask | loop
    nn.LSTM(WIDTH, 5, batch_first=True)
equal inputs differ | lambda x: attnbook.attention(*3 * (x + 0.3 * np.arange(N)[:, None],))
    learned_positions, T
    lambda x: np.cos(np.arange(N * N)).reshape(N, N) @ x
    projected(heads(3, bare_merge=True))
weights by place | lambda x: attnbook.attention(*2 * (attnbook.positions.rotary(x),), x), X[..., :8]
mask of the past | lambda x: attnbook.attention(x, x, x, ~np.tri(N, k=-1, dtype=bool))
outputs moved | lambda x: attnbook.attention(x, x, x)[:, ::-1]
    lambda x: np.roll(attnbook.attention(x, x, x), 1, axis=1)
bare reshape | projected(heads(3, bare_split=True, bare_merge=True))
    lambda x: heads(4, bare_split=True)(x, x, x)
    lambda x: heads(3, bare_merge=True)(x, x, x)
another sequence leaks in | sequence_first, T
not deterministic | functional.dropout, T
place | lambda x: x + np.arange(N)[:, None], X[..., :8]
window | CausalConvolution(left=1, right=1), X[..., :6].repeat(2, -1)
order lost | lambda x: np.sort(x, axis=1)
""",
    globals(),
    X,
)


H = 3


def interleaved(*arrays):
    q, k, v = (np.moveaxis(x.reshape(*x.shape[:-1], -1, H), -1, -3) for x in arrays)
    return merge(attend(q, k, v))


def without_swap(query, key, value):
    q, k, v = (x.reshape(*x.shape[:-1], H, -1) for x in (query, key, value))
    return attend(q, k, v).reshape(query.shape)


def fuxi(query, key, value):
    """reczoo/FuxiCTR issue 30: view(batch * heads, -1, d), there and back."""
    q, k, v = (x.reshape(len(x) * H, -1, x.shape[-1] // H) for x in (query, key, value))
    return attend(q, k, v).reshape(query.shape)


def averaged(*arrays):
    return attend(*(split(x, H) for x in arrays)).mean(axis=-3)


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


def our_heads(query, key, value):
    given = (attnbook.split_heads(x, H) for x in (query, key, value))
    return attnbook.merge_heads(attnbook.attention(*given))


def heads_last(*arrays):
    return attend(*(x.swapaxes(-2, -3) for x in arrays)).swapaxes(-2, -3)


INDEPENDENT = models(
    """
ours | our_heads
NumPy | heads(H)
a loop | loop_of_heads
one sequence | heads(H), X[0]
rectangular | heads(H), (np.ones((5, 6)), np.ones((7, 6)), np.ones((7, 9)))
SDPA | fast_heads, T
a module | Heads()
float16 | fast_heads, T.half()
heads first | attend, np.ones((2, H, 5, 4)), -3
heads last | heads_last, np.ones((5, H, 4)), -2
""",
    globals(),
    X,
    None,
)


def of_scores(weigh, factor=2.0, order=slice(None)):
    """Return heads of width 4 whose weights are `weigh(scores)`, joined in some order."""

    def run(query, key, value):
        q, k, v = (split(x, H) for x in (query, key, value))
        return merge((weigh(q @ k.swapaxes(-1, -2) / factor) @ v)[..., order, :, :])

    return run


BACKWARDS = slice(None, None, -1)
# missing transpose in the merge: jsbaan/transformer-from-scratch pull request 6,
# ajhalthor/Transformer-Neural-Network 4
MIXED = models(
    """
features in another order | lambda *arrays: np.moveaxis(
        attend(*(split(x, H) for x in arrays)), -3, -1).reshape(arrays[0].shape)
result scaled | lambda *arrays: 2 * heads(H)(*arrays)
bare reshape in the split; no scale | heads(H, bare_split=True, scale=1.0)
missing transpose in the merge; scale by d_model | heads(H, bare_merge=True, scale=WIDTH**-0.5)
no scale; heads in another order | of_scores(softmax, 1.0, BACKWARDS)
bare reshape | fuxi
attention over the heads | without_swap
interleaved features | interleaved
softmax over all scores | of_scores(
        lambda s: softmax(s.reshape(*s.shape[:-2], -1)).reshape(s.shape))
one input split otherwise | lambda q, k, v: heads(H)(
        q, k, v.reshape(*v.shape[:-1], -1, H).swapaxes(-1, -2).reshape(v.shape))
heads averaged | averaged
output projection | lambda *arrays: heads(H)(*arrays) @ W[3] + 5
unknown | heads(2)
    heads(H, scale=0.1)
    lambda q, k, v: heads(H)(q, k, v) / abs(q).max(-1, keepdims=True)
    lambda q, k, v: heads(H)(q, k, v) + 1e-4 * np.roll(v, 4, -1)
NaN | lambda q, k, v: q * np.nan
wrong shape | lambda q, k, v: heads(H)(q, k, v)[..., :1]
not deterministic | lambda q, k, v: np.random.default_rng().normal(size=q.shape)
""",
    globals(),
    X,
    None,
)
