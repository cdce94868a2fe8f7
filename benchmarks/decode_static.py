"""The writer in PyTorch as for `torch.compile`: a cache of fixed size, one token a call."""

from collections.abc import Callable
from typing import Any


class StaticWriter:
    """A decoder such as the writer's that reads one token, with shapes that never change.

    Keys and values stand in one tensor of `context` places for each layer, and a mask hides those
    that are still free. So one compiled function serves every step.
    """

    def __init__(self, weights: Any, context: int):
        import torch

        self.layers, self.table = weights.decoder.layers, weights.target_embedding
        self.final = weights.decoder.final_norm
        heads = self.layers[0].self_attention
        like = {"dtype": self.table.dtype, "device": self.table.device}
        shape = (
            len(self.layers),
            heads.n_kv_heads,
            context,
            heads.W_K.shape[1] // heads.n_kv_heads,
        )
        self.keys, self.values = torch.zeros(shape, **like), torch.zeros(shape, **like)
        width = shape[-1]
        rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        turned = torch.outer(torch.arange(context, dtype=torch.float64), rates)
        self.cosines, self.sines = (f(turned).to(**like) for f in (torch.cos, torch.sin))
        self.places = torch.arange(context, device=self.table.device)

    def log_p(self, token: Any, place: Any) -> Any:
        """Return log p (V,) of the token after `token`, which stands at `place`; shapes (1,)."""
        import torch
        from torch.nn.functional import log_softmax, scaled_dot_product_attention, silu

        visible = (self.places <= place)[None, :]  # (1, context)
        x = self.table[token]  # (1, d_model)
        for i, layer in enumerate(self.layers):
            heads, y = layer.self_attention, _norm(x, layer.self_attention_norm)
            query = self._turned((y @ heads.W_Q).reshape(heads.n_heads, 1, -1), place)
            key = self._turned((y @ heads.W_K).reshape(heads.n_kv_heads, 1, -1), place)
            self.keys[i].index_copy_(1, place, key)
            self.values[i].index_copy_(1, place, (y @ heads.W_V).reshape(heads.n_kv_heads, 1, -1))
            groups = heads.n_heads // heads.n_kv_heads
            k, v = (c[i].repeat_interleave(groups, dim=0) for c in (self.keys, self.values))
            mixed = scaled_dot_product_attention(query, k, v, attn_mask=visible)
            x = x + mixed.reshape(1, -1) @ heads.W_O
            feed, y = layer.feed_forward, _norm(x, layer.feed_forward_norm)
            x = x + (silu(y @ feed.W_gate) * (y @ feed.W_1)) @ feed.W_2
        logits = _norm(x, self.final) @ self.table.T
        return log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)[0]

    def _turned(self, x, place):
        import torch

        a, b = x.chunk(2, dim=-1)
        c, s = self.cosines[place], self.sines[place]
        return torch.cat([a * c - b * s, a * s + b * c], dim=-1)


def given_tokens(weights: Any, context: int, *, compiled: bool) -> Callable[[Any, int], Any]:
    """Return a function of tokens (1, n) and n_prompt: log p of each token after the prompt."""
    import torch

    model = StaticWriter(weights, context)
    step = torch.compile(model.log_p) if compiled else model.log_p

    def read(tokens, n_prompt):
        found, n = [], tokens.shape[1]
        places = torch.arange(n, device=tokens.device)
        with torch.no_grad():
            for i in range(n - 1):  # the prompt too, token by token
                log_p = step(tokens[0, i : i + 1], places[i : i + 1])
                if i >= n_prompt - 1:
                    found.append(log_p[tokens[0, i + 1]])
        return torch.stack(found)[None]

    return read


def _norm(x, weights):
    import torch

    return (
        x / torch.sqrt(torch.mean(x * x, dim=-1, keepdim=True) + weights.epsilon) * (weights.gain)
    )
