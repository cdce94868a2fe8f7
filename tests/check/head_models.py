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
heads in another order | of_scores(softmax, order=[1, 2, 0])
    of_scores(softmax, order=BACKWARDS)
one head for all | of_scores(softmax, order=[0, 0, 0])
features in another order | lambda *arrays: np.moveaxis(
        attend(*(split(x, H) for x in arrays)), -3, -1).reshape(arrays[0].shape)
result scaled | lambda *arrays: 2 * heads(H)(*arrays)
scale without the root | of_scores(softmax, 4.0)
scale multiplied | of_scores(softmax, 0.5)
no softmax | of_scores(np.exp)
key used as value | lambda q, k, v: heads(H)(q, k, k)
query used as key | lambda q, k, v: heads(H)(q, q, v)
query and key swapped | lambda q, k, v: heads(H)(k, q, v)
bare reshape in the split; no scale | heads(H, bare_split=True, scale=1.0)
missing transpose in the merge; scale by d_model | heads(H, bare_merge=True, scale=WIDTH**-0.5)
no scale; heads in another order | of_scores(softmax, 1.0, BACKWARDS)
no scale | heads(H, np.tri(N, dtype=bool), scale=1.0)
    heads(H, scale=1.0)
bare reshape | heads(H, bare_split=True, bare_merge=True)
    fuxi
bare reshape in the split | heads(H, bare_split=True)
missing transpose in the merge | heads(H, bare_merge=True)
attention over the heads | without_swap
interleaved features | interleaved(True)
    interleaved(False)
scale by d_model | heads(H, scale=WIDTH**-0.5)
scale by another size | heads(H, scale=H**-0.5)
softmax over all scores | of_scores(
        lambda s: softmax(s.reshape(*s.shape[:-2], -1)).reshape(s.shape))
weights transposed | of_scores(lambda s: softmax(s).swapaxes(-1, -2))
best key alone | of_scores(lambda s: 1.0 * (s == s.max(-1, keepdims=True)))
mean of the values | of_scores(lambda s: softmax(0 * s))
one input split otherwise | lambda *arrays: merge(
        attend(*(split(x, H, bare) for x, bare in zip(arrays, (False, True, False)))))
    lambda q, k, v: heads(H)(
        q, k, v.reshape(*v.shape[:-1], -1, H).swapaxes(-1, -2).reshape(v.shape))
one input in reverse | lambda q, k, v: merge(
        attend(split(q, H), split(k, H)[..., ::-1, :, :], split(v, H)))
scores of all heads added | of_scores(lambda s: softmax(0 * s + s.sum(axis=-3, keepdims=True)))
weights of one head for all | of_scores(lambda s: 0 * s + softmax(s)[..., :1, :, :])
    of_scores(lambda s: 0 * s + softmax(s).sum(axis=-3, keepdims=True))
key and value swapped | lambda q, k, v: heads(H)(q, v, k)
value used as key | lambda q, k, v: heads(H)(q, v, v)
query used as value | lambda q, k, v: heads(H)(q, k, q)
softmax over the heads | heads(H, axis=-3)
softmax over the queries | heads(H, axis=-2)
one head | attend
weights averaged | of_scores(lambda s: 0 * s + softmax(s).mean(axis=-3, keepdims=True))
one head left out | lambda *arrays: heads(H)(*arrays) * (np.arange(WIDTH) < WIDTH - WIDTH // H)
first keys or values for all | lambda q, k, v: heads(H)(q, k, np.tile(v[..., : WIDTH // H], H))
    lambda q, k, v: heads(H)(np.tile(q[..., : WIDTH // H], H), k, v)
keys or values of another head | lambda q, k, v: heads(H)(q, np.roll(k, -(WIDTH // H), axis=-1), v)
    lambda q, k, v: heads(H)(q, *(np.roll(x, WIDTH // H, axis=-1) for x in (k, v)))
keys compared with themselves | lambda q, k, v: heads(H)(k, k, v)
heads averaged | averaged(np.mean, True)
    averaged(np.mean, False)
    averaged(np.sum, True)
output projection | lambda *arrays: heads(H)(*arrays) @ W[3]
    lambda *arrays: heads(H)(*arrays) @ W[3] + 5
number and width swapped | heads(4)
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
