"""A small writer with the choices of today's models: one attention with options, in PyTorch.

`Shape` says what a writer is made of. `Writer` reads whole sequences, which is how it is trained,
and decodes token by token from a cache, in which each layer stores what its `Shape` says.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, silu

EPS = 1e-5
BALANCE = 0.01  # factor of the loss that keeps the load of the experts equal


@dataclass(frozen=True)
class Shape:
    """The sizes and choices of a writer; the defaults are the baseline."""

    vocabulary: int = 512
    d_model: int = 64
    n_layers: int = 4
    n_heads: int = 4
    n_kv_heads: int = 4
    d_k: int = 16
    d_ff: int = 168
    latent: int | None = None  # width of the latent; keys have `rotary` features of their own
    rotary: int = 8
    qk_norm: bool = False
    cap: float | None = None  # of scores
    logit_cap: float | None = None
    sinks: bool = False
    gate: bool = False
    window: int | None = None  # of local layers; the last of `every` layers is global
    every: int = 4
    shared: int = 1  # so many layers in a row use one cache
    experts: int | None = None
    chosen: int = 2  # experts of each token

    def window_of(self, layer: int) -> int | None:
        """Return the window of a layer, None for a global one."""
        return None if layer % self.every == self.every - 1 else self.window

    def stores(self, layer: int) -> bool:
        """Return whether a layer has a cache of its own."""
        return layer % self.shared == 0

    def cached_numbers(self, n: int) -> int:
        """Return how many numbers all layers keep for n tokens."""
        each = 2 * self.n_kv_heads * self.d_k
        each = each if self.latent is None else self.latent + self.rotary
        layers = [i for i in range(self.n_layers) if self.stores(i)]
        return each * sum(min(n, self.window_of(i) or n) for i in layers)


def matrix(*shape: int) -> nn.Parameter:
    """Return a Xavier-uniform matrix, or a stack of them."""
    bound = math.sqrt(6 / (shape[-2] + shape[-1]))
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


class Norm(nn.Module):
    """RMS normalization."""

    def __init__(self, d: int):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        """Return x over its root mean square, times γ."""
        return nn.functional.rms_norm(x, (x.shape[-1],), self.gamma, EPS)


def rotated(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the pairs of x (..., n, d), which stand half of d apart, by angles of (n, d / 2)."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    mask: Tensor | None,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return attention (b, h, m, d_v) of queries (b, h, m, d) over KV heads (b, g, n, …).

    `mask` (m, n) is True where a query may look; `sinks` (h,) is one more score of each head, whose
    value is 0.
    """
    b, h, m, d = query.shape
    g = key.shape[1]
    scores = (query * scale).reshape(b, g, h // g * m, d) @ key.transpose(-1, -2)
    scores = scores.view(b, h, m, -1)
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    if sinks is not None:
        more = sinks[:, None, None].expand(b, h, m, 1)
        weights = torch.cat([scores, more], dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights = scores.softmax(dim=-1)
    weights = weights.reshape(b, g, h // g * m, -1)
    return (weights @ value).view(b, h, m, -1)


class Attention(nn.Module):
    """Self-attention of one layer; `cached` are the tensors that a cache keeps of its tokens."""

    def __init__(self, shape: Shape, layer: int):
        super().__init__()
        s = self.shape = shape
        self.stores, self.window = s.stores(layer), s.window_of(layer)
        width = s.d_k + (s.rotary if s.latent else 0)
        self.scale = width**-0.5
        self.W_Q = matrix(s.d_model, s.n_heads * width)
        self.W_O = matrix(s.n_heads * s.d_k, s.d_model)
        if s.latent:
            self.W_D = matrix(s.d_model, s.latent + s.rotary)
            self.W_UK = matrix(s.latent, s.n_heads * s.d_k)
            self.W_UV = matrix(s.latent, s.n_heads * s.d_k)
            self.latent_norm = Norm(s.latent)
        elif self.stores:
            self.W_K = matrix(s.d_model, s.n_kv_heads * s.d_k)
            self.W_V = matrix(s.d_model, s.n_kv_heads * s.d_k)
        if s.qk_norm:
            self.q_norm, self.k_norm = Norm(s.d_k), Norm(s.d_k)
        self.sinks = nn.Parameter(torch.zeros(s.n_heads)) if s.sinks else None
        if s.gate:
            self.W_gate = matrix(s.d_model, s.n_heads * s.d_k)

    def heads(self, x: Tensor, n_heads: int) -> Tensor:
        """Split the last axis of x (b, n, …) into heads (b, n_heads, n, …)."""
        return x.view(*x.shape[:2], n_heads, -1).transpose(1, 2)

    def cached(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Return what the cache stores for tokens x (b, n, d_model), tensors (b, g, n, …)."""
        s = self.shape
        if s.latent:
            c, r = (x @ self.W_D).split([s.latent, s.rotary], dim=-1)
            return self.latent_norm(c)[:, None], rotated(r[:, None], angles)
        key, value = (self.heads(x @ W, s.n_kv_heads) for W in (self.W_K, self.W_V))
        return rotated(self.k_norm(key) if s.qk_norm else key, angles), value

    def forward(
        self,
        x: Tensor,
        cached: tuple[Tensor, ...],
        angles: tuple[Tensor, Tensor],
        mask: Tensor | None,
        absorbed: bool,
    ) -> Tensor:
        """Return the output of tokens x (b, m, d_model) that look at what is cached."""
        s = self.shape
        query = self.heads(x @ self.W_Q, s.n_heads)
        if s.latent:
            output = self.of_latents(query, *cached, angles, mask, absorbed)
        else:
            query = rotated(self.q_norm(query) if s.qk_norm else query, angles)
            output = attend(query, *cached, self.scale, mask, s.cap, self.sinks)
        joined = output.transpose(1, 2).reshape(*x.shape[:2], -1)
        if s.gate:
            joined = joined * torch.sigmoid(x @ self.W_gate)
        return joined @ self.W_O

    def of_latents(self, query, c, r, angles, mask, absorbed):
        """Return the heads' outputs from latents, with keys and values or, absorbed, without."""
        s = self.shape
        plain, turned = query.split([s.d_k, s.rotary], dim=-1)
        turned = rotated(turned, angles)
        up_k, up_v = (W.view(s.latent, s.n_heads, s.d_k).transpose(0, 1) for W in self.ups())
        if absorbed:
            query = torch.cat([plain @ up_k.transpose(-1, -2), turned], dim=-1)
            return attend(query, torch.cat([c, r], -1), c, self.scale, mask) @ up_v
        key = torch.cat([c @ up_k, r.expand(-1, s.n_heads, -1, -1)], dim=-1)
        return attend(torch.cat([plain, turned], -1), key, c @ up_v, self.scale, mask)

    def ups(self) -> tuple[Tensor, Tensor]:
        """Return the projections from latents to keys and values."""
        return self.W_UK, self.W_UV


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.W_gate, self.W_1 = matrix(d_model, d_ff), matrix(d_model, d_ff)
        self.W_2 = matrix(d_ff, d_model)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | float]:
        """Return the output, and no further loss."""
        return (silu(x @ self.W_gate) * (x @ self.W_1)) @ self.W_2, 0.0


class Mixture(nn.Module):
    """Experts, of which a softmax over the best scores of a router mixes a few for each token."""

    def __init__(self, d_model: int, d_ff: int, experts: int, chosen: int):
        super().__init__()
        self.chosen = chosen
        self.W_R = matrix(d_model, experts)
        self.W_gate, self.W_1 = matrix(experts, d_model, d_ff), matrix(experts, d_model, d_ff)
        self.W_2 = matrix(experts, d_ff, d_model)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | float]:
        """Return the output, and the loss of unequal load (Fedus et al. 2022)."""
        flat = x.reshape(-1, x.shape[-1])
        scores = flat @ self.W_R
        best, experts = scores.topk(self.chosen, dim=-1)
        weights = best.softmax(dim=-1)
        output = torch.zeros_like(flat)
        for e in range(scores.shape[1]):
            rows, column = (experts == e).nonzero(as_tuple=True)
            if len(rows) == 0:
                continue
            y = flat[rows]
            y = (silu(y @ self.W_gate[e]) * (y @ self.W_1[e])) @ self.W_2[e]
            output = output.index_add(0, rows, y * weights[rows, column, None])
        load = one_hot(experts, scores.shape[1]).to(x.dtype).mean(dim=(0, 1))
        balance = scores.shape[1] * (load * scores.softmax(dim=-1).mean(dim=0)).sum()
        return output.view(x.shape), BALANCE * balance


class Layer(nn.Module):
    """A pre-norm layer."""

    def __init__(self, shape: Shape, layer: int):
        super().__init__()
        self.attention_norm, self.feed_norm = Norm(shape.d_model), Norm(shape.d_model)
        self.attention = Attention(shape, layer)
        sizes = shape.d_model, shape.d_ff
        mixed = shape.experts is not None
        self.feed: Any = (
            Mixture(*sizes, shape.experts or 0, shape.chosen) if mixed else FeedForward(*sizes)
        )


class Writer(nn.Module):
    """A decoder of the given shape, whose embedding also makes the logits."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.embedding = matrix(shape.vocabulary, shape.d_model)
        self.layers: Any = nn.ModuleList(Layer(shape, i) for i in range(shape.n_layers))
        self.final_norm = Norm(shape.d_model)

    def angles(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of the places start … stop, (n, d / 2)."""
        d = self.shape.rotary if self.shape.latent else self.shape.d_k
        rates = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        turned = torch.outer(torch.arange(start, stop, dtype=torch.float64), rates)
        return turned.cos().to(self.embedding.dtype), turned.sin().to(self.embedding.dtype)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor | float]:
        """Return the logits (b, n, V) of ids (b, n), and the loss of the routers."""
        n = ids.shape[1]
        angles, place = self.angles(0, n), torch.arange(n)
        causal = place <= place[:, None]
        x, more, cached = self.embedded(ids), 0.0, ()
        for layer in self.layers:
            y, window = layer.attention_norm(x), layer.attention.window
            mask = causal if window is None else causal & (place > place[:, None] - window)
            if layer.attention.stores:
                cached = layer.attention.cached(y, angles)
            x = x + layer.attention(y, cached, angles, mask, False)
            y, balance = layer.feed(layer.feed_norm(x))
            x, more = x + y, more + balance
        return self.logits(x), more

    def embedded(self, ids: Tensor) -> Tensor:
        """Return the embeddings of ids, times the root of d_model."""
        return self.embedding[ids] * self.shape.d_model**0.5

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of tokens x."""
        logits, cap = self.final_norm(x) @ self.embedding.T, self.shape.logit_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def room(self, batch: int, n: int) -> list[list[Tensor]]:
        """Return an empty cache with room for n tokens: a list of tensors for each layer."""
        probe, angles = torch.zeros(batch, 1, self.shape.d_model), self.angles(0, 1)
        made = []
        for layer in self.layers:
            if layer.attention.stores:
                one = layer.attention.cached(probe.to(self.embedding.dtype), angles)
                room = [torch.zeros(batch, x.shape[1], n, x.shape[-1], dtype=x.dtype) for x in one]
            made.append(room)
        return made

    def step(self, ids: Tensor, room: list[list[Tensor]], place: int) -> Tensor:
        """Return the logits (b, V) after tokens ids (b, 1) at a place, and store them in `room`."""
        angles, x = self.angles(place, place + 1), self.embedded(ids)
        for layer, stored in zip(self.layers, room, strict=True):
            y, window = layer.attention_norm(x), layer.attention.window
            if layer.attention.stores:
                for whole, new in zip(stored, layer.attention.cached(y, angles), strict=True):
                    whole[:, :, place : place + 1] = new
            start = 0 if window is None else max(place + 1 - window, 0)
            seen = tuple(whole[:, :, start : place + 1] for whole in stored)
            x = x + layer.attention(y, seen, angles, None, True)
            x = x + layer.feed(layer.feed_norm(x))[0]
        return self.logits(x)[:, -1]


def counted(shape: Shape) -> dict[str, int]:
    """Return the numbers of parameters: those that a token uses, and all."""
    with torch.device("meta"):
        model = Writer(shape)
    total = sum(p.numel() for p in model.parameters())
    idle = 0
    if shape.experts is not None:
        each = 3 * shape.d_model * shape.d_ff
        idle = shape.n_layers * (shape.experts - shape.chosen) * each
    return {"parameters": total - idle, "all_parameters": total}


def fitted(shape: Shape, parameters: int) -> Shape:
    """Return a shape whose d_ff brings the parameters that a token uses nearest to a number."""
    few, more = (counted(replace(shape, d_ff=d_ff))["parameters"] for d_ff in (1, 2))
    return replace(shape, d_ff=max(1, round((parameters - few) / (more - few)) + 1))
