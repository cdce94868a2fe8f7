"""Indexers for the layers of a model, trained on what its heads attend to."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnbook.sparse_attention import indexer_loss, indexer_scores
from benchmarks.sparse_attention_reader import Reader, Seen

HEADS = 4
ROWS = 16  # queries of a step
NEAR = 32  # newest keys that are not learned, since a window reads them anyway


class Example(NamedTuple):
    """What the indexer of a layer learns from: a text and the attention of some of its queries."""

    key: Tensor  # (n, g d), the heads' rotated keys, joined
    query: Tensor  # (r, h d), and their rotated queries
    rows: Tensor  # (r,)
    weights: Tensor  # (g, r, n), in half precision: means over the heads of a KV head


class Indexer(nn.Module):
    """Index keys of width d for all tokens, and scores for each of g KV heads.

    It projects what the heads of the layer already have, their rotated queries and keys, the keys
    less their mean over the training texts. Once it is trained, index keys are kept in 8 bits.
    """

    def __init__(self, from_query: int, from_key: int, d: int, g: int):
        super().__init__()

        def matrix(n: int, width: int) -> nn.Parameter:
            bound = math.sqrt(6 / (n + width))
            return nn.Parameter(torch.empty(n, width).uniform_(-bound, bound))

        self.W_Q, self.W_K = matrix(from_query, HEADS * d), matrix(from_key, d)
        self.W_W, self.b_W = matrix(from_query, g * HEADS), nn.Parameter(torch.ones(g * HEADS))
        self.d, self.g = d, g
        self.middle, self.size = torch.zeros(from_key), torch.ones(2)
        self.step: Tensor | None = None  # of the 8 bits

    def keys(self, key: Tensor) -> Tensor:
        """Return the index keys (n, d) of joined keys (n, g d)."""
        made = (key - self.middle) / self.size[1] @ self.W_K
        if self.step is None:
            return made
        return (made / self.step).round().clamp(-127, 127) * self.step

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the scores (g, r, n) of joined queries (r, h d) and keys (n, g d)."""
        r, query = len(query), query / self.size[0]
        narrow = (query @ self.W_Q).view(r, HEADS, self.d).transpose(0, 1)
        weight = (query @ self.W_W + self.b_W).view(r, self.g, HEADS).permute(1, 2, 0)
        return indexer_scores(narrow, self.keys(key), weight * (HEADS * self.d) ** -0.5)


def joined(x: Tensor) -> Tensor:
    """Return (n, h d) of heads (h, n, d)."""
    return x.transpose(0, 1).flatten(1)


def weights_of(seen: Seen, rows: Tensor) -> Tensor:
    """Return the causal attention (g, r, n) of some queries, the mean over heads of a KV head."""
    g, n, d = seen.key.shape
    query = seen.query[:, rows].view(g, -1, len(rows), d)
    scores = query @ seen.key[:, None].transpose(-1, -2) * d**-0.5
    scores = scores.masked_fill(torch.arange(n) > rows[:, None], -math.inf)
    return scores.softmax(dim=-1).mean(dim=1)


def examples(reader: Reader, texts: list[Any], n_rows: int, seed: int) -> list[list[Example]]:
    """Return for each text an example for each layer."""
    made, generator = [], torch.Generator().manual_seed(seed)
    for ids in texts:
        _, layers = reader.read(ids)
        rows = torch.randperm(len(ids) // 2, generator=generator)[:n_rows] + len(ids) // 2
        rows = rows.sort().values
        made.append(
            [
                Example(
                    joined(seen.key),
                    joined(seen.query)[rows],
                    rows,
                    weights_of(seen, rows).half(),
                )
                for seen in layers
            ]
        )
    return made


def trained(
    given: list[list[Example]], d: int, seed: int, *, steps: int, lr: float
) -> tuple[list[Indexer], list[float]]:
    """Return an indexer for each layer, and the mean divergence of each step."""
    torch.manual_seed(seed)
    first = given[0][0]
    widths = first.query.shape[1], first.key.shape[1], d, len(first.weights)
    made = [Indexer(*widths) for _ in given[0]]
    for i, indexer in enumerate(made):
        key = torch.cat([text[i].key for text in given])
        indexer.middle = key.mean(dim=0)
        sizes = torch.cat([text[i].query for text in given]), key - indexer.middle
        indexer.size = torch.stack([x.square().mean().sqrt() for x in sizes])
    parameters = [p for indexer in made for p in indexer.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=lr, betas=(0.9, 0.98))
    curve = []
    for step in range(steps):
        text = given[int(torch.randint(len(given), ()))]
        part = torch.randperm(len(text[0].rows))[:ROWS]
        optimizer.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.zero_grad()
        total = 0.0
        for indexer, example in zip(made, text, strict=True):
            rows, weights = example.rows[part], example.weights[:, part].float()
            mask = torch.arange(len(example.key)) <= rows[:, None] - NEAR
            weights = weights * mask
            weights = weights / weights.sum(dim=-1, keepdim=True)
            loss = indexer_loss(indexer(example.query[part], example.key), weights, mask).mean()
            loss.backward()
            total += loss.item() / len(made)
        optimizer.step()
        curve.append(total)
    with torch.no_grad():
        for i, indexer in enumerate(made):
            most = torch.stack([indexer.keys(text[i].key).abs().amax(dim=0) for text in given])
            indexer.step = most.amax(dim=0) / 127
    return made, curve
