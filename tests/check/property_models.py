"""Models for the property checks: causal ones, and leaks that libraries and books had."""

import math
import re

import numpy as np
import pytest
from answer_programs import entries
from attention_answers import sm as softmax

import attnbook
from attnbook import masking

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn, functional = torch.nn, torch.nn.functional
N, WIDTH = 7, 12
X = np.random.default_rng(0).normal(size=(3, N, WIDTH))
T = torch.tensor(X, dtype=torch.float32)
TOKENS = np.random.default_rng(1).integers(0, 23, size=(3, N))
W = np.random.default_rng(2).normal(size=(4, WIDTH, WIDTH)) / 2
PAST = np.tri(N, dtype=bool)
FUTURE_MASK = torch.triu(torch.ones(N, N, dtype=torch.bool), diagonal=1)  # True = ignore


def models(table, names, *usual):
    """Return the models of a table: a name, then `model`, or `model, example` and more.

    What a line leaves out is as in `usual`. A further model of one name is named with a number at
    the end.
    """

    def case(*given):
        return (*given, *usual[len(given) - 1 :])

    names = {**names, "case": case}
    return {name: eval(f"case({text})", names) for name, text in entries(table, " | ")}


def mistake_of(name):
    """Drop the number that tells several models with one mistake apart."""
    name = re.sub(r" \d+$", "", name)
    return None if name == "unknown" else name


def head(hide=lambda s: s, axis=-1, finish=lambda w: w):
    """A learned head of NumPy whose scores go through `hide`."""

    def attend(x):
        scores = (x @ W[0]) @ (x @ W[1]).swapaxes(-1, -2) / math.sqrt(WIDTH)
        return finish(softmax(hide(scores), axis)) @ (x @ W[2])

    return attend


def filled(mask, value=-np.inf):
    return lambda s: np.where(mask, s, value)


def attend(query, key, value, mask=None, scale=None, axis=-1):
    scores = query @ key.swapaxes(-1, -2)
    scores = scores / math.sqrt(query.shape[-1]) if scale is None else scores * scale
    return softmax(scores if mask is None else np.where(mask, scores, -np.inf), axis) @ value


def split(x, h, bare=False):
    *lead, n, width = x.shape
    if bare:
        return x.reshape(*lead, h, n, width // h)
    return x.reshape(*lead, n, h, width // h).swapaxes(-2, -3)


def merge(x, bare=False):
    *lead, h, n, d = x.shape
    return (x if bare else x.swapaxes(-2, -3)).reshape(*lead, n, h * d)


def heads(h, mask=None, bare_split=False, bare_merge=False, **options):
    def run(query, key, value):
        q, k, v = (split(x, h, bare_split) for x in (query, key, value))
        return merge(attend(q, k, v, mask, **options), bare_merge)

    return run


def projected(run):
    return lambda x: run(x @ W[0], x @ W[1], x @ W[2]) @ W[3]


class Block(nn.Module):
    """A pre-norm transformer block with dropout; `causal(module)`: is the future hidden?"""

    def __init__(self, causal=lambda module: True, width=WIDTH, dropout=0.2, **options):
        super().__init__()
        torch.manual_seed(0)
        options = {"batch_first": True, **options}
        self.attention = nn.MultiheadAttention(width, 3, dropout=dropout, **options)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.dropout, self.causal = nn.Dropout(dropout), causal

    def forward(self, x, ignore=None):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        h = self.norm1(x)
        h, _ = self.attention(
            h, h, h, key_padding_mask=ignore, attn_mask=mask if self.causal(self) else None
        )
        x = x + self.dropout(h)
        return x + self.dropout(self.wide(self.norm2(x)))


class Language(nn.Module):
    """Tokens to logits: embeddings, positions, two blocks."""

    def __init__(self, causal=lambda module: True):
        super().__init__()
        torch.manual_seed(1)
        self.token, self.place = nn.Embedding(23, WIDTH), nn.Embedding(50, WIDTH)
        self.blocks = nn.Sequential(Block(causal), Block())
        self.out = nn.Linear(WIDTH, 23)

    def forward(self, x):
        return self.out(self.blocks(self.token(x) + self.place(torch.arange(x.shape[1]))))


class CausalConvolution(nn.Module):
    def __init__(self, *layers, left=2, right=0):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv1d(WIDTH, WIDTH, left + right + 1)
        self.layers, self.pad = nn.Sequential(*layers), (left, right)

    def forward(self, x):
        padded = functional.pad(x.transpose(1, 2), self.pad)
        return self.layers(self.convolution(padded)).transpose(1, 2)


def loop(x):
    output = np.empty_like(x)
    for b, sequence in enumerate(x):
        for i, query in enumerate(sequence):
            weights = softmax(sequence[: i + 1] @ query / math.sqrt(len(query)))
            output[b, i] = weights @ sequence[: i + 1]
    return output


def convolution_by_fourier(x):
    n = x.shape[1]
    kernel = np.random.default_rng(3).normal(size=(n, x.shape[2]))
    spectrum = np.fft.rfft(x, 2 * n, axis=1) * np.fft.rfft(kernel, 2 * n, axis=0)
    return np.fft.irfft(spectrum, 2 * n, axis=1)[:, :n]


def torch_fourier(x):
    spectrum = torch.fft.rfft(x, 2 * N, dim=1) * torch.fft.rfft(torch.ones(N, 1), 2 * N, dim=0)
    return torch.fft.irfft(spectrum, 2 * N, dim=1)[:, :N]


def mean_of_the_past(x):
    return x.cumsum(1) / np.arange(1, x.shape[1] + 1)[:, None]


def sdpa(x, **options):
    return functional.scaled_dot_product_attention(x, x, x, **options)


CAUSAL = models(
    """
ours | lambda x: attnbook.attention(x, x, x, masking.causal(x.shape[1]))
our heads | lambda x: attnbook.multi_head_attention(
        x, x, x, attnbook.MultiHeadWeights.init(0, WIDTH, 3), masking.causal(x.shape[1]))
a loop | loop
one sequence | head(filled(PAST)), X[0]
a mean of the past | mean_of_the_past
in float32 | head(filled(PAST)), X.astype(np.float32)
Fourier transform | convolution_by_fourier
Fourier transform in float32 | torch_fourier, T
SDPA | lambda x: sdpa(x, is_causal=True), T
SDPA in half precision | lambda x: sdpa(x, is_causal=True), T.to(torch.bfloat16)
float16 | lambda x: sdpa(x, is_causal=True), T.to(torch.float16)
a block | Block()
two blocks | nn.Sequential(Block(), Block()), T
a language model | Language(), TOKENS
one line of tokens | lambda x: Language().eval()(x[None])[0], torch.tensor(TOKENS[0])
LSTM | nn.LSTM(WIDTH, 5, num_layers=2, dropout=0.3, batch_first=True)
GRU | nn.GRU(WIDTH, 5, batch_first=True)
convolution | CausalConvolution(nn.GELU())
a long sequence | lambda x: np.cumsum(x, axis=1), np.ones((1, 90, 2))
two tokens | lambda x: np.cumsum(x, axis=1), X[:, :2]
""",
    globals(),
    X,
)


class MaskInTraining(nn.Module):
    """The decoder of d2l-ai/d2l-en makes dec_valid_lens `if self.training`; shiyu-coder/Kronos
    issue 199: is_causal = self.training."""

    def __init__(self, keep=lambda training: training):
        super().__init__()
        self.keep = keep

    def forward(self, x):
        lengths = torch.arange(1, x.shape[1] + 1) if self.keep(self.training) else None
        mask = None if lengths is None else torch.arange(x.shape[1]) < lengths[:, None]
        return sdpa(x, attn_mask=mask)


def causal_unless_weights(x, need_weights=True):
    """pytorch/pytorch issue 99282: is_causal is ignored if need_weights is True, the default."""
    if need_weights:
        return torch.softmax(x @ x.mT / WIDTH**0.5, dim=-1) @ x
    return sdpa(x, is_causal=True)


class DroppedOffTheFusedPath(nn.Module):
    """keras-team/keras issue 23038: no causal mask where dropout rules out the fused path."""

    def __init__(self, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        if self.dropout.p == 0:
            return sdpa(x, is_causal=True)
        return self.dropout(torch.softmax(x @ x.mT / WIDTH**0.5, dim=-1)) @ x


def with_a_float_mask(x):
    """pytorch/pytorch issue 21518: tril(ones) as a float mask is added, and hides nothing."""
    return sdpa(x, attn_mask=torch.tril(torch.ones(x.shape[1], x.shape[1])))


def gpt2(x):
    """huggingface/transformers issues 3181 and 15199, karpathy/minGPT issue 75: −1e4."""
    return head(filled(PAST, -1e4))(x)


def gpt2_added(x):
    """The same value, added: w * b - 1e4 * (1 - b), as in huggingface/transformers issue 3181."""
    return head(lambda s: s * PAST - 1e4 * ~PAST)(x)


def min_gpt(x):
    """karpathy/minGPT issue 132: softmax over dim -2."""
    return head(filled(PAST), axis=-2)(x)


def greedy_decoding(x):
    """hkproj/pytorch-transformer issue 19: triu(ones, 1) where mask == 0 is hidden, with −1e9."""
    return head(filled(np.triu(np.ones((N, N)), 1) != 0, -1e9))(x)


def sink_at_the_end(x):
    """A key at the end and a mask aligned to the last key, as in flash-attention and MLX; PyTorch
    aligns to the first (pytorch/pytorch issue 108108, ml-explore/mlx pull request 2836)."""
    keys = np.concatenate([x, np.zeros_like(x[:, :1])], axis=1)
    return attnbook.attention(x, keys, keys, masking.causal(N, N + 1))


def merged_without_transpose(h):
    """jsbaan/transformer-from-scratch pull request 6, meta-pytorch/opacus pull request 825."""
    return projected(heads(h, PAST, bare_merge=True))


def sequence_first(x):
    """DaoyuanLi2816/Molecule-Generator pull request 22, IBM/TabFormer pull request 14: batch_first
    is False by default."""
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(WIDTH, 3, 16, dropout=0.0)(x)


def late(h, divide=lambda total: 1, start=lambda x: 0):
    """Heads whose hidden weights are zeroed after the softmax, and then divided by `divide`."""

    def run(x):
        q = split(x, h)
        weights = softmax(q @ q.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) * PAST
        return start(x) + merge(weights / divide(weights.sum(axis=-1, keepdims=True)) @ q)

    return run


def guarded(total):
    return np.where(total == 0, 1, total)


def normalized(x):
    """Causal attention, and then one length for the whole sequence."""
    y = attend(x, x, x, PAST)
    return y / np.sqrt((y**2).sum(axis=(-1, -2), keepdims=True))


def of_any_length(x, row=slice(None)):
    return attend(x, x, x)[..., row, :]


SQUARE = np.random.default_rng(5).normal(size=(3, N, N))


LEAKS = models(
    """
causal mask dropped in eval mode | MaskInTraining()
    Block(lambda m: m.training)
    Language(lambda m: m.training), TOKENS
causal mask dropped in train mode | MaskInTraining(lambda training: not training)
no causal mask | MaskInTraining(lambda training: False)
    causal_unless_weights, T
    DroppedOffTheFusedPath(0.1)
    with_a_float_mask, T
    head()
    head(), X[0]
    head(), X[:, :2]
    of_any_length, SQUARE
    lambda x: of_any_length(x + 0 * SQUARE[0]), SQUARE
    lambda x: of_any_length(x)[..., 0]
    lambda x: of_any_length(x)[..., 0].squeeze(), X[:1, :2, :2]
blocks | lambda x: attnbook.attention(x, x, x, np.arange(N) // 3 <= np.arange(N)[:, None] // 3)
prefix | lambda x: attnbook.attention(x, x, x, np.tri(N, dtype=bool) | (np.arange(N) < 2))
window ahead | lambda x: attnbook.attention(
        x, x, x, np.tri(N, k=2, dtype=bool) & ~np.tri(N, k=-3, dtype=bool))
    CausalConvolution(left=1, right=1)
next input alone | lambda x: np.roll(x, -1, axis=1)
    lambda x: np.concat([x[:, 1:], 0 * x[:, :1]], axis=1)
large negative number | gpt2
    gpt2_added
    head(filled(PAST, -1e9))
    head(filled(PAST, -1e9)), X.astype(np.float32)
softmax over the queries | min_gpt
    projected(heads(2, PAST, axis=-2))
    min_gpt, 3 * X
    normalized
mask after the softmax | late(1), 10 * X
    late(1)
    late(1), X[0]
    late(1), X.astype(np.float32) / 10
    late(3, start=lambda x: x)
    head(finish=lambda w: w * PAST)
    lambda x: late(1)(np.random.default_rng(4).normal(size=(23, WIDTH))[x]), TOKENS
mask after the exponential | late(1, lambda total: total)
    late(1, guarded)
    late(3, guarded, start=lambda x: x)
wrong shape | lambda x: of_any_length(x, -1), SQUARE
    lambda x: of_any_length(x, -1), SQUARE[0]
    lambda x: of_any_length(x, -1)[:, :N]
    lambda x: of_any_length(x).swapaxes(-1, -2), SQUARE
causal mask inverted | head(filled(~PAST))
    greedy_decoding
    head(filled(PAST.T))
    lambda x: attnbook.attention(x, x, x, FUTURE_MASK), T
off by one | head(filled(np.tri(N, k=1, dtype=bool)))
    sink_at_the_end
    CausalConvolution(left=1, right=2)
    lambda x: np.cumsum(x, 1) + 2 * np.roll(x, -1, 1), np.ones((1, 90, 2))
bare reshape | projected(heads(3, PAST, bare_split=True))
    merged_without_transpose(3)
    lambda x: x + merged_without_transpose(4)(x)
another sequence leaks in | sequence_first, T
    head(filled(PAST, -1e30), axis=0)
    CausalConvolution(nn.BatchNorm1d(WIDTH))
NaN | head(filled(np.tri(N, k=-1, dtype=bool)))
constant | lambda x: np.ones_like(x)
unknown | head(filled(abs(np.arange(N)[:, None] - np.arange(N) - 1) % 3 == 0))
    lambda x: x / abs(x).max(), X[0]
""",
    globals(),
    X,
)
