"""Queries, keys and values of trained models, and the loss of a model whose attention is another's.

Two models write: the `writer` of the package, trained on 256 tokens, and the `long_writer` of the
book, trained on from it on 4,096. What they read are the plays of the validation or of the test
part, one after the other. The sentence encoder reads single lines of the plays, whose tokens are
pooled: a set of vectors without an order.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from attnbook import kernels, log_softmax, transformer
from attnbook.data import plays
from attnbook.models import LanguageModel, bert, sentence_encoder, writer
from attnbook.positions import Rotary
from benchmarks.provenance import ROOT

LONG = ROOT / "book/data/long_writer.npz"
EXACT = "packed"
Attend = str | Callable[..., Any]


class Heads(NamedTuple):
    """What a layer attends with, after positions: query head i reads key head i // (h / g).

    `query` has the shape (h, n, d), `key` and `value` (g, n, d), all in float32.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray

    def repeated(self) -> "Heads":
        """Return a key head for each query head."""
        times = self.query.shape[0] // self.key.shape[0]
        key, value = (np.repeat(x, times, axis=0) for x in (self.key, self.value))
        return Heads(self.query, key, value)


@cache
def model(name: str = "writer") -> LanguageModel:
    """Return the model of that name."""
    if name == "writer":
        return writer()
    with np.load(LONG) as stored:
        content = json.loads(str(stored["content"]))
        arrays = {name: stored[name].astype(np.float32) for name in stored if name != "content"}
    weights = writer().weights
    slower = replace(weights.decoder, positions=Rotary(base=content["rotary_base"]))
    weights = replace(weights, decoder=slower).with_arrays(arrays)
    return LanguageModel(weights, writer().tokenizer, content["context"])


@cache
def text(part: str = "validation") -> np.ndarray:
    """Return the tokens of the plays of a part, each play after an end of text."""
    data, tokenizer = plays(), writer().tokenizer
    titles = data.titles[part]
    return np.concatenate(
        [[tokenizer.stop, *tokenizer.encode(data.texts[title])] for title in titles]
    )


def window(n: int, part: str = "validation", i: int = 0) -> np.ndarray:
    """Return window `i` of n + 1 tokens: the last one is to be predicted alone."""
    ids = text(part)
    if (i + 1) * n >= len(ids):
        raise ValueError(f"i must leave n + 1 of {len(ids)} tokens, got i = {i} with n = {n}")
    return ids[i * n : (i + 1) * n + 1]


@cache
def layers(
    n: int, *, part: str = "validation", name: str = "writer", i: int = 0
) -> tuple[Heads, ...]:
    """Return the heads of every layer over window `i` of the plays, from one exact run."""
    weights, found = model(name).weights, []
    groups = weights.decoder.layers[0].self_attention
    every = groups.n_heads // groups.n_kv_heads

    def attend(query, key, value, *how):
        copies = [np.ascontiguousarray(x) for x in (query, key[::every], value[::every])]
        found.append(Heads(*copies))
        return kernels.attention(EXACT, query, key, value, *how)

    transformer(None, window(n, part, i)[:-1], weights, impl=attend)
    return tuple(found)


def losses(
    attend: Attend, n: int, *, part: str = "validation", name: str = "writer", i: int = 0
) -> np.ndarray:
    """Return the nats of each of n tokens of window `i`, by a model that attends with `attend`.

    `attend` is what ``impl=`` takes. Token j is predicted from the j + 1 tokens before it.
    """
    ids = window(n, part, i)
    logits = transformer(None, ids[:-1], model(name).weights, impl=attend)
    return -np.take_along_axis(log_softmax(logits), ids[1:, None], -1)[:, 0]


def encoder_layers(
    layers: Sequence[int], n: int = 10**5, *, part: str = "test", heads: Sequence[int] | None = None
) -> list[Heads]:
    """Return heads of some layers of the sentence encoder at `n` tokens of lines of the plays.

    Lines of one length are read together, so that there is no padding. The lines of the parts
    "validation" and "test" differ. `heads` are those that are kept, by default all.
    """
    encoder, rng = sentence_encoder(), np.random.default_rng(0)
    lines = sorted({line for line in "\n".join(plays().texts.values()).split("\n") if line})
    order, rows, count = rng.permutation(len(lines)), {}, 0
    for j in order if part == "test" else order[::-1]:
        ids = encoder.tokenizer.encode(lines[j], encoder.longest)
        rows.setdefault(len(ids), []).append(ids)
        count += len(ids)
        if count >= n:
            break
    stack = encoder.weights.encoder
    first_layers = replace(stack, layers=stack.layers[: max(layers) + 1])
    weights = replace(encoder.weights, encoder=first_layers)
    found: list[list[Any]] = [[] for _ in stack.layers]
    kept = slice(None) if heads is None else list(heads)

    def attend(query, key, value, *how):
        of_heads = (np.moveaxis(x, -3, 0)[kept] for x in (query, key, value))
        found[next(depth)].append([x.reshape(x.shape[0], -1, x.shape[-1]) for x in of_heads])
        return kernels.attention(EXACT, query, key, value, *how)

    for ids in rows.values():
        for first in range(0, len(ids), 64):
            depth = iter(range(len(stack.layers)))
            bert(np.array(ids[first : first + 64]), weights, impl=attend)
    return [
        Heads(*(np.concatenate(x, axis=1)[:, :n] for x in zip(*found[layer], strict=True)))
        for layer in layers
    ]
