"""The writer of long texts in PyTorch: it reads a prompt exactly, then decodes many tokens at once.

What a decoded token attends to is left to a function, so that the loss of any method can be had in
one pass: no token needs a later one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu


class Seen(NamedTuple):
    """What a layer has of n tokens: its normalized inputs, and queries, keys and values."""

    x: Tensor  # (n, d_model)
    query: Tensor  # (h, n, d), rotated
    key: Tensor  # (g, n, d), rotated
    value: Tensor  # (g, n, d)

    def then(self, more: "Seen") -> "Seen":
        """Return what the layer has after more tokens."""
        parts = (torch.cat([a, b], dim=-2) for a, b in zip(self, more, strict=True))
        return Seen(*parts)


Attend = Callable[[int, Seen, int], Tensor]
"""From a layer, all it has seen and the number m of decoded tokens to outputs (h, m, d)."""


def exact(layer: int, seen: Seen, m: int) -> Tensor:
    """Attend to all keys."""
    h, n, _ = seen.query.shape
    groups = h // len(seen.key)
    key, value = (x.repeat_interleave(groups, dim=0)[None] for x in (seen.key, seen.value))
    query = seen.query[None, :, n - m :]
    if m == n:
        return scaled_dot_product_attention(query, key, value, is_causal=True)[0]
    mask = torch.arange(n) <= torch.arange(n - m, n)[:, None]
    return scaled_dot_product_attention(query, key, value, attn_mask=mask)[0]


class Reader:
    """A model such as the writer, with the package's weights."""

    def __init__(self, weights: Any):
        weights = weights.to("torch", dtype="float32")
        self.table, self.layers = weights.target_embedding, weights.decoder.layers
        self.final, positions = weights.decoder.final_norm, weights.decoder.positions
        self.base = 10000.0 if positions is None else positions.base

    def read(self, ids: Any, prompt: list[Seen] | None = None, attend: Attend = exact) -> Any:
        """Return the logits (m, V) of the next tokens ids (m,), and what each layer has then."""
        start, m = 0 if prompt is None else len(prompt[0].x), len(ids)
        x, found = self.table[torch.as_tensor(ids)], []
        with torch.no_grad():
            for i, layer in enumerate(self.layers):
                new = self.seen(layer, _norm(x, layer.self_attention_norm), start)
                found.append(new if prompt is None else prompt[i].then(new))
                joined = attend(i, found[-1], m).transpose(0, 1).reshape(m, -1)
                x = x + joined @ layer.self_attention.W_O
                y, feed = _norm(x, layer.feed_forward_norm), layer.feed_forward
                x = x + (silu(y @ feed.W_gate) * (y @ feed.W_1)) @ feed.W_2
            return _norm(x, self.final) @ self.table.T, found

    def seen(self, layer: Any, x: Tensor, start: int) -> Seen:
        """Return inputs, queries, keys and values of tokens from place `start` on."""
        w = layer.self_attention

        def heads(W, n_heads):
            return (x @ W).view(len(x), n_heads, -1).transpose(0, 1)

        query, key = heads(w.W_Q, w.n_heads), heads(w.W_K, w.n_kv_heads)
        d = key.shape[-1]
        rates = self.base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        turned = torch.outer(torch.arange(start, start + len(x), dtype=torch.float64), rates)
        cos, sin = turned.cos().to(x.dtype), turned.sin().to(x.dtype)

        def rotated(x):
            a, b = x.chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

        return Seen(x, rotated(query), rotated(key), heads(w.W_V, w.n_kv_heads))


def _norm(x: Tensor, weights: Any) -> Tensor:
    return rms_norm(x, (x.shape[-1],), weights.gain, weights.epsilon)
