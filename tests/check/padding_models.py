"""Models for the check of padding, right ones and bugs that libraries had."""

import math

import numpy as np
from property_models import WIDTH, Block, W, loop, nn, sdpa, softmax, torch

import attnbook
from attnbook import masking

SIZE = 8
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


UNPADDED = {
    "ours": (lambda x, mask: attnbook.attention(x, x, x, mask), LONG, None),
    "our heads": (
        lambda x, mask: attnbook.multi_head_attention(
            x, x, x, attnbook.MultiHeadWeights.init(0, WIDTH, 3), mask
        ),
        LONG,
        for_heads,
    ),
    "NumPy": (padded_head(lambda s, mask: np.where(mask, s, -np.inf)), LONG, None),
    "SDPA": (lambda x, mask: sdpa(x, attn_mask=mask), LONG_T, None),
    "SDPA with −∞": (
        lambda x, mask: sdpa(x, attn_mask=mask),
        LONG_T,
        lambda lengths, n: masking.to_additive(masking.padding(lengths, n)),
    ),
    "blocks": (Encoder(), LONG, key_padding),
    "blocks without dropout": (Encoder(dropout=0.0), LONG_T, key_padding),
    "tokens": (Encoder(tokens=True), MANY, key_padding),
    "packed": (Packed(), LONG, of_lengths),
    "causal": (lambda x, mask: loop(x), LONG, None),
    "a mean over what is real": (
        lambda x, mask: x + (mask @ x) / mask.sum(-1, keepdims=True),
        LONG,
        None,
    ),
}


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


PADDED = {
    "queries": (masked_on_the_queries, LONG, None, "padding masked on the queries"),
    "queries, −∞": (
        padded_head(lambda s, m: np.where(m.swapaxes(-1, -2), s, -np.inf)),
        LONG,
        None,
        "padding masked on the queries",
    ),
    "repeat": (repeated_in_the_wrong_order, LONG_T, None, "another sequence's padding"),
    "another row": (
        padded_head(lambda s, m: np.where(m[::-1], s, -np.inf)),
        LONG,
        None,
        "another sequence's padding",
    ),
    "flipped": (flipped_for_sdpa, LONG_T, None, "padding mask inverted"),
    "inverted, −1e9": (
        padded_head(lambda s, m: np.where(m, -1e9, s)),
        LONG,
        None,
        "padding mask inverted",
    ),
    "batch of one": (skipped_for_one, LONG_T, None, "batch of one"),
    "not honoured": (not_honoured, LONG_T, None, "padding ignored"),
    "float mask": (
        FloatMask(),
        LONG,
        lambda lengths, n: key_padding(lengths, n).astype(np.float32),
        None,
    ),
    "truncated": (Truncated(), LONG, of_lengths, "wrong shape"),
    "multiplied": (padded_head(lambda s, m: s * m), LONG, None, "hidden score not −∞"),
    "a small number": (
        padded_head(lambda s, m: np.where(m, s, -10.0)),
        LONG,
        None,
        "hidden score not −∞",
    ),
    "after the softmax": (
        padded_head(after=lambda w, m: w * m),
        LONG,
        None,
        "not renormalised",
    ),
    "after the softmax, renormalised": (
        padded_head(after=lambda w, m: w * m / (w * m).sum(-1, keepdims=True)),
        LONG,
        None,
        "mask after the exponential",
    ),
    "0 and 1 added": (padded_head(lambda s, m: s + m), LONG, None, None),
    "zeros": (
        padded_head(before=lambda x, m: x * m.swapaxes(-1, -2)),
        LONG,
        None,
        "padding counted",
    ),
    "a mean over all, added": (
        lambda x, m: attnbook.attention(x, x, x, m) + x.mean(axis=1, keepdims=True),
        LONG,
        None,
        "padding added",
    ),
    "a shift": (
        lambda x, m: attnbook.attention(x, x, x, m) + np.roll(x, -1, axis=1),
        LONG,
        None,
        "neighbours mixed",
    ),
    "one too long": (
        lambda x, m: attnbook.attention(
            x, x, x, m | (np.roll(m, 1, axis=-1) & (np.arange(m.shape[-1]) > 0))
        ),
        LONG,
        None,
        "mask too long",
    ),
    "a mean over all": (lambda x, m: x + (m @ x) / x.shape[1], LONG, None, "padding counted"),
    "-1e4": (padded_head(lambda s, m: np.where(m, s, -1e4)), LONG, None, "large negative number"),
    "added": (padded_head(lambda s, m: s - 1e4 * ~m), LONG, None, "large negative number"),
    "other tokens": (
        lambda x, m: x + x.mean(axis=0),
        LONG,
        None,
        "another sequence leaks in",
    ),
    "nothing is visible": (
        padded_head(lambda s, m: np.where(m & False, s, -np.inf)),
        LONG,
        None,
        "NaN",
    ),
    "one layer of two": (
        lambda x, m: sdpa(sdpa(x, attn_mask=m)),
        LONG_T,
        None,
        None,
    ),
    "a mask in train mode": (
        Block(lambda m: False),
        LONG,
        lambda lengths, n: None,
        "padding ignored",
    ),
}
