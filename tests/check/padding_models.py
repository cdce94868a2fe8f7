"""Models for the check of padding, right ones and bugs that libraries had."""

import math

import numpy as np
from property_models import WIDTH, Block, W, loop, models, nn, sdpa, softmax, torch  # noqa: F401

import attnbook  # noqa: F401 (for the tables)
from attnbook import masking

SIZE = 6
LONG = np.random.default_rng(4).normal(size=(3, SIZE, WIDTH))
LONG_T = torch.tensor(LONG, dtype=torch.float32)
MANY = np.random.default_rng(5).integers(0, 23, size=(2, SIZE))


def key_padding(lengths, n):
    return ~masking.padding(lengths, n)[:, 0]


def of_lengths(lengths, n):
    return lengths


def for_heads(lengths, n):
    return masking.padding(lengths, n)[:, np.newaxis]


def padded_head(hide=lambda s, mask: s, after=lambda w, mask: w, before=lambda x, mask: x):
    def attend(x, mask):
        x = before(x, mask)
        scores = (x @ W[0]) @ (x @ W[1]).swapaxes(-1, -2) / math.sqrt(WIDTH)
        return after(softmax(hide(scores, mask)), mask) @ (x @ W[2])

    return attend


def narrow_head(x, mask):
    """Scores from two features alone, of which those of many keys are seldom all far below 0."""
    scores = (x @ W[0][:, :2]) @ (x @ W[1][:, :2]).swapaxes(-1, -2)
    return softmax(np.where(mask, scores, -1e4)) @ x


def seldom_below_0(x, mask):
    """The score of a token with itself is below 0 for one in six."""
    scores = (x[..., :3] * np.array([-0.4, 1, 1])) @ x[..., :3].swapaxes(-1, -2)
    return softmax(np.where(mask, scores, -1e4)) @ x


class Encoder(nn.Module):
    """Tokens or vectors through two blocks, with a key_padding_mask of PyTorch."""

    def __init__(self, tokens=False, dropout=0.2):
        super().__init__()
        self.token = nn.Embedding(23, WIDTH) if tokens else nn.Identity()
        self.blocks = nn.ModuleList(Block(lambda m: False, dropout=dropout) for _ in range(2))

    def forward(self, x, ignore):
        x = self.token(x)
        for block in self.blocks:
            x = block(x, ignore)
        return x


class Packed(nn.Module):
    """An LSTM in both directions over packed sequences."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 5, batch_first=True, bidirectional=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            x, torch.as_tensor(lengths), batch_first=True, enforce_sorted=False
        )
        output, _ = self.lstm(packed)
        return nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])


UNPADDED = models(
    """
ours | lambda x, mask: attnbook.attention(x, x, x, mask)
our heads | lambda x, mask: attnbook.multi_head_attention(
        x, x, x, attnbook.MultiHeadWeights.init(0, WIDTH, 3), mask), LONG, for_heads
NumPy | padded_head(lambda s, mask: np.where(mask, s, -np.inf))
SDPA | lambda x, mask: sdpa(x, attn_mask=mask), LONG_T
SDPA with −∞ | lambda x, mask: sdpa(x, attn_mask=mask), LONG_T,
        lambda lengths, n: masking.to_additive(masking.padding(lengths, n))
blocks | Encoder(), LONG, key_padding
blocks without dropout | Encoder(dropout=0.0), LONG_T, key_padding
tokens | Encoder(tokens=True), MANY, key_padding
packed | Packed(), LONG, of_lengths
causal | lambda x, mask: loop(x)
a mean over what is real | lambda x, mask: x + (mask @ x) / mask.sum(-1, keepdims=True)
""",
    globals(),
    LONG,
    None,
)


def masked_on_the_queries(x, mask):
    """hyunwoongko/transformer pull request 40: unsqueeze(3) where unsqueeze(2) is meant."""
    return padded_head(lambda s, m: np.where(m.swapaxes(-1, -2), s, -10000))(x, mask)


def repeated_in_the_wrong_order(x, mask):
    """line/lighthouse pull request 77, ArrowLuo/CLIP4Clip issue 22: repeat, not repeat_interleave;
    the same with the axes the other way round in lsdefine/attention-is-all-you-need-keras 36."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    mask = mask.expand(-1, x.shape[1], -1)
    return attention(x, x, x, attn_mask=~mask.repeat(2, 1, 1))[0]


def repeated_in_the_right_order(x, mask):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    mask = mask.expand(-1, x.shape[1], -1)
    return attention(x, x, x, attn_mask=~mask.repeat_interleave(2, 0))[0]


def flipped_for_sdpa(x, mask):
    """lucidrains/x-transformers issue 160: a mask where True means hide, given to SDPA."""
    return sdpa(x, attn_mask=~mask)


def skipped_for_one(x, mask):
    """huggingface/transformers pull request 46773: the mask is left out at batch size 1."""
    return sdpa(x, attn_mask=mask if len(x) > 1 else None)


def not_honoured(x, mask):
    """AI4Bharat/IndicBERT issue 20: attention_mask does not arrive."""
    return sdpa(x)


class FloatMask(nn.Module):
    """pytorch/pytorch issues 86120 and 147209: a mask of numbers is added on the slow path, and
    taken for a boolean one on the fast path of eval mode."""

    def forward(self, x, ignore):
        visible = ~ignore.bool()[:, None]
        return sdpa(x, attn_mask=ignore[:, None] if self.training else visible)


class Truncated(nn.Module):
    """pytorch/pytorch issue 97111: in eval mode the output ends with the longest sequence."""

    def forward(self, x, lengths):
        longest = x.shape[1] if self.training else int(max(lengths))
        mask = torch.arange(x.shape[1]) < torch.as_tensor(lengths)[:, None, None]
        return sdpa(x, attn_mask=mask)[:, :longest]


PADDED = models(
    """
padding masked on the queries | masked_on_the_queries
    padded_head(lambda s, m: np.where(m.swapaxes(-1, -2), s, -np.inf))
another sequence's padding | repeated_in_the_wrong_order, LONG_T
    padded_head(lambda s, m: np.where(m[::-1], s, -np.inf))
padding mask inverted | flipped_for_sdpa, LONG_T
    padded_head(lambda s, m: np.where(m, -1e9, s))
batch of one | skipped_for_one, LONG_T
padding ignored | not_honoured, LONG_T
    Block(lambda m: False), LONG, lambda lengths, n: None
wrong shape | Truncated(), LONG, of_lengths
hidden score not −∞ | padded_head(lambda s, m: s * m)
    padded_head(lambda s, m: np.where(m, s, -10.0))
not renormalised | padded_head(after=lambda w, m: w * m)
mask after the exponential | padded_head(after=lambda w, m: w * m / (w * m).sum(-1, keepdims=True))
padding counted | padded_head(before=lambda x, m: x * m.swapaxes(-1, -2))
    lambda x, m: x + (m @ x) / x.shape[1]
    lambda x, m: x + np.arange(x.shape[1])[::-1, None]
padding added | lambda x, m: attnbook.attention(x, x, x, m) + x.mean(axis=1, keepdims=True)
neighbours mixed | lambda x, m: attnbook.attention(x, x, x, m) + np.roll(x, -1, axis=1)
mask too long | lambda x, m: attnbook.attention(
        x, x, x, m | (np.roll(m, 1, axis=-1) & (np.arange(m.shape[-1]) > 0)))
large negative number | padded_head(lambda s, m: np.where(m, s, -1e4))
    padded_head(lambda s, m: s - 1e4 * ~m)
    narrow_head
    seldom_below_0
another sequence leaks in | lambda x, m: x + x.mean(axis=0)
NaN | padded_head(lambda s, m: np.where(m & False, s, -np.inf))
unknown | FloatMask(), LONG, lambda lengths, n: key_padding(lengths, n).astype(np.float32)
    padded_head(lambda s, m: s + m)
    padded_head(lambda s, m: np.where(m, -1e9, s), before=lambda x, m: x - x.mean(1, keepdims=True))
    lambda x, m: sdpa(sdpa(x, attn_mask=m)), LONG_T
""",
    globals(),
    LONG,
    None,
)
