"""Methods that read a share of a layer's cache, and what they read, in bytes for each token."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnbook.hashing.simhash import SimHash
from attnbook.sparse_attention import pool_blocks
from benchmarks.cache_rivals import agreement, chances, meetings
from benchmarks.sparse_attention_indexer import joined
from benchmarks.sparse_attention_reader import Seen

SINKS = 4
NUMBER = 2  # bytes of a number of keys and values, in bfloat16
ENTRY = 4  # bytes of an entry of a bucket


class Asked(NamedTuple):
    """The queries of some tokens of a layer, and all that they see."""

    layer: int
    seen: Seen
    rows: Tensor  # (m,), the places of the tokens
    prompt: int  # tokens that were there before any of them

    @property
    def groups(self) -> int:
        """How many KV heads the layer has."""
        return len(self.seen.key)

    def query(self) -> Tensor:
        """Return the queries, (h, m, d)."""
        return self.seen.query[:, self.rows]

    def visible(self) -> Tensor:
        """Return which keys each query sees, (m, n)."""
        return torch.arange(self.seen.key.shape[1]) <= self.rows[:, None]

    def near(self, window: int) -> Tensor:
        """Return the sinks and the window of each query, (m, n)."""
        place = torch.arange(self.seen.key.shape[1])
        return ((place < SINKS) | (place > self.rows[:, None] - window)) & self.visible()

    def scores(self) -> Tensor:
        """Return the scores of all keys, (h, m, n), -inf for later ones."""
        h, (g, n, d) = len(self.seen.query), self.seen.key.shape
        query = self.query().reshape(g, -1, d)
        scores = (query @ self.seen.key.transpose(1, 2) * d**-0.5).view(h, -1, n)
        return scores.masked_fill(~self.visible(), -math.inf)


class Answer(NamedTuple):
    """The outputs of a method, and what each query read."""

    output: Tensor  # (h, m, d)
    read: float  # bytes of the whole layer, mean over queries
    share: float  # of the bytes of all keys and values that the queries see


def answered(
    asked: Asked,
    scores: Tensor,
    chosen: Tensor,
    beside: Any = 0.0,
    bias: Tensor | None = None,
    tail: tuple[Tensor, Tensor] | None = None,
) -> Answer:
    """Attend to the chosen keys (g or h, m, n), and to a tail of scores (h, m, b) and values.

    A key and a value that several heads of a KV head read count once. `beside` are the bytes that
    are read in addition, of each query or of all.
    """
    g, _, d = asked.seen.key.shape
    h = len(scores)
    each = chosen.repeat_interleave(h // len(chosen), dim=0)
    if bias is not None:
        scores = scores + bias
    scores, value = scores.masked_fill(~each, -math.inf), asked.seen.value
    value = value.repeat_interleave(h // g, dim=0)
    if tail is not None:
        scores = torch.cat([scores, tail[0]], dim=-1)
        value = torch.cat([value, tail[1].repeat_interleave(h // g, dim=0)], dim=1)
    rows = chosen.view(g, -1, *chosen.shape[1:]).any(dim=1).sum(dim=(0, 2))  # (m,)
    read = rows * 2 * d * NUMBER + torch.as_tensor(beside)
    whole = (asked.rows + 1) * g * 2 * d * NUMBER
    output = scores.softmax(dim=-1) @ value
    return Answer(output, float(read.float().mean()), float((read / whole).mean()))


def window(asked: Asked, scores: Tensor, *, keys: int) -> Answer:
    """Read the first and the newest keys."""
    return answered(asked, scores, asked.near(keys - SINKS).expand(asked.groups, -1, -1))


def _best(values: Tensor, near: Tensor, k: int) -> Tensor:
    """Return the k largest of values (g, m, n) that are not near, and those near, as a mask."""
    values = values.masked_fill(near, -math.inf)
    top = values.topk(min(k, values.shape[-1]), dim=-1)
    chosen = torch.zeros(values.shape, dtype=torch.bool)
    chosen.scatter_(-1, top.indices, top.values > -math.inf)
    return chosen | near


def best_keys(asked: Asked, scores: Tensor, *, keys: int) -> Answer:
    """Read the keys of largest weight for each KV head, which only one knows who has read all."""
    g, n, _ = asked.seen.key.shape
    weights = scores.softmax(dim=-1).view(g, -1, *scores.shape[1:]).sum(dim=1)
    weights = weights.masked_fill(~asked.visible(), -math.inf)
    return answered(asked, scores, _best(weights, torch.zeros(1, 1, n, dtype=torch.bool), keys))


def indexed(
    asked: Asked, scores: Tensor, *, width: int, keys: int, window: int, indexers: Any
) -> Answer:
    """Read the keys that an indexer of that width scores highest, for each KV head."""
    indexer = indexers[width][asked.layer]
    query, key = joined(asked.seen.query)[asked.rows], joined(asked.seen.key)
    with torch.no_grad():
        found = indexer(query, key).masked_fill(~asked.visible(), -math.inf)
    chosen = _best(found, asked.near(window), keys - window - SINKS)
    return answered(asked, scores, chosen, (asked.rows + 1) * width)  # a byte for a number


def blocks(
    asked: Asked, scores: Tensor, *, block: int, selected: int, window: int, tail: bool
) -> Answer:
    """Read the blocks whose mean keys get the largest weights; the others' means may be a tail.

    The first block is always read, and the window begins with a block.
    """
    g, n, d = asked.seen.key.shape
    n_blocks = n // block
    key = pool_blocks(asked.seen.key, block)
    means = (asked.query().reshape(g, -1, d) @ key.transpose(1, 2) * d**-0.5).view(
        len(scores), -1, n_blocks
    )
    ends = torch.arange(1, n_blocks + 1) * block - 1
    whole = ends <= asked.rows[:, None]  # (m, n_blocks)
    means = means.masked_fill(~whole, -math.inf)
    weights = means.softmax(dim=-1).view(g, -1, *means.shape[1:]).sum(dim=1)
    start = (asked.rows[:, None] - window + 1).clamp(min=0) // block
    near = (torch.arange(n_blocks) >= start) | (torch.arange(n_blocks) == 0)
    chosen = _best(weights.masked_fill(~whole, -math.inf), near, selected)
    tokens = torch.nn.functional.pad(
        chosen.repeat_interleave(block, dim=-1), (0, n % block), value=True
    )
    bytes_read = whole.sum(dim=1) * g * d * NUMBER * (2 if tail else 1)
    rest = None
    if tail:
        each = chosen.repeat_interleave(len(scores) // g, dim=0)
        rest = (
            means.masked_fill(each, -math.inf) + math.log(block),
            pool_blocks(asked.seen.value, block),
        )
    return answered(asked, scores, tokens & asked.visible(), bytes_read, tail=rest)


def hashed(
    asked: Asked, scores: Tensor, *, tables: int, bits: int, window: int, seed: int
) -> Answer:
    """Read what `HybridCache` reads: sinks, a window, and keys that meet the query in two tables.

    The prompt's keys are in the tables, and every key that has left the window.
    """
    g, _, d = asked.seen.key.shape
    near = asked.near(window)
    far = (asked.visible() & ~near).numpy()
    hash = SimHash.init(seed, d, tables, bits)
    chosen, biases, entries = [], [], np.zeros(len(asked.rows))
    for i, query in enumerate(asked.query().numpy()):
        key = asked.seen.key[i * g // len(scores)].numpy()
        key = key - key[: asked.prompt].mean(axis=0)
        met = meetings(hash, query, key)
        found = (met >= 2) & far
        bias = np.zeros(found.shape, np.float32)
        bias[found] = -np.log(chances(agreement(query, key)[found], tables, bits, 2))
        entries += met.sum(axis=1, where=far)
        chosen.append(torch.tensor(found) | near)
        biases.append(torch.tensor(bias))
    beside = torch.tensor(entries * ENTRY)
    return answered(asked, scores, torch.stack(chosen), beside, torch.stack(biases))


METHODS: dict[str, Callable[..., Answer]] = {
    **{"indexer": indexed, "HybridCache": hashed, "blocks": blocks, "window": window},
    "best keys": best_keys,
}
RANDOM = {"HybridCache", "indexer"}


def grid(name: str, budget: float, n: int) -> list[dict[str, Any]]:
    """Return the settings of a method that are tried for a share of the bytes of n tokens."""
    most = int(budget * n)  # keys and values
    windows = sorted({16, most // 8, most // 4, most // 2})
    if name in ("window", "best keys"):
        return [{"keys": most}]
    if name == "indexer":
        found = [(d, most - n * d // 256) for d in (4, 8, 16)]
        made = [{"width": d, "keys": keys, "window": w} for d, keys in found for w in windows]
        return [x for x in made if x["keys"] > x["window"] + SINKS]
    if name == "HybridCache":
        return [
            {"tables": tables, "bits": bits, "window": w}
            for tables in (8, 16, 32, 64, 128, 256)
            for bits in (6, 8, 10, 12)
            for w in windows[-2:]
        ]
    found = []
    for block in (8, 16, 32, 64):
        for tail in (False, True):
            for w in windows:
                left = most - n // block // (1 if tail else 2) - w - block // 2 - block
                if left >= block:
                    about = {"block": block, "selected": left // block, "window": w}
                    found.append(about | {"tail": tail})
    return found
