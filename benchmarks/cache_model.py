"""A model that decodes the last tokens of a long text with another attention over its cache."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook import log_softmax
from attnbook.decoding import KVCache
from attnbook.kernels import attention
from attnbook.transformers.transformer import decode
from benchmarks.cache_past import Past, Prompt, Read, answer

REST = (None, None)  # neither mask nor bias


class LongText:
    """A text of n tokens: a model reads the first n - m exactly, then decodes m.

    Parameters
    ----------
    model : LanguageModel
    ids : int array, shape (n + 1,)
        The last one is what follows the text.
    m : int
        How many tokens are decoded.

    Attributes
    ----------
    heads : list of lists of Past
        For each layer and head what it receives if all attention is exact.
    exact_loss : array, shape (m,)
        Nats of each decoded token then.
    """

    def __init__(self, model: Any, ids: np.ndarray, m: int):
        self.model, self.ids, self.m, self.first = model, ids, m, len(ids) - 1 - m
        self.cache, seen = KVCache(), []

        def keep(query, key, value, mask, bias, scale, is_causal):
            seen.append((query, key, value))
            return attention("in_place", query, key, value, mask, bias, scale, is_causal)

        self._run(slice(0, self.first), keep)
        self.prompts = [[Prompt(*arrays) for arrays in zip(*layer, strict=True)] for layer in seen]
        seen.clear()
        self.exact_loss = self._loss(keep)
        self.heads = [
            [self._past(*pair, 0) for pair in zip(prompts, zip(*layer, strict=True), strict=True)]
            for prompts, layer in zip(self.prompts, seen, strict=True)
        ]

    def loss(self, method: Callable[..., Read], seed: int = 0, **settings: Any) -> np.ndarray:
        """Return nats of each decoded token if every layer attends to its past by `method`."""
        layers = iter(self.prompts)

        def attend(query, key, value, *rest):
            pairs = zip(next(layers), zip(query, key, value, strict=True), strict=True)
            pasts = [self._past(*pair, seed) for pair in pairs]
            outputs = [answer(past, method(past, **settings)) for past in pasts]
            return np.stack(outputs).astype(query.dtype)

        return self._loss(attend)

    def _past(self, prompt, arrays, seed):
        query, key, value = arrays
        return Past(prompt, query, key[self.first :], value[self.first :], seed)

    def _loss(self, attend):
        logits = self._run(slice(self.first, len(self.ids) - 1), attend)
        self.cache.truncate(self.first)
        log_p = log_softmax(logits.astype(np.float64))
        return -log_p[np.arange(self.m), self.ids[self.first + 1 :]]

    def _run(self, part, attend):
        weights, tokens = self.model.weights, self.ids[part]
        memory = [None] * len(weights.decoder.layers)
        return decode(
            *(tokens, memory, weights, *REST),
            past=self.cache,
            start=part.start,
            impl=attend,
            is_causal=True,
        )
