"""The decoder that continues from what it has read, with or without a cache."""

import contextlib
import importlib
from typing import Annotated, Any

from attnbook.arrays.array import Array, Mask, array_namespace, library, to_accumulate
from attnbook.arrays.attention_arguments import is_rule
from attnbook.decoding.kv_cache import KVCache, gather
from attnbook.kernels import Impl
from attnbook.masking.ranges import Causal
from attnbook.masking.rules import Rule
from attnbook.multi_head.masks import array_for_heads
from attnbook.single_head.softmax import log_softmax_of
from attnbook.transformers.decoder import memory_keys_and_values
from attnbook.transformers.transformer import decode, encode, mask_for_memory
from attnbook.transformers.weights import TransformerWeights


class IncrementalDecoder:
    """A decoder and what it has read so far.

    With a cache it keeps the keys and values of every layer and reads each token once; it goes on
    after the tokens that the cache already holds. Without a cache it keeps the tokens and reads all
    of them again at every step.
    """

    def __init__(
        self,
        weights: TransformerWeights,
        source: Array | None,
        source_mask: Mask | None,
        cache: KVCache | None,
        impl: Impl,
        target_mask: Rule | None = None,
    ):
        self.weights, self.cache, self.impl = weights, cache, impl
        self.rule = None if target_mask is None else target_mask & Causal()
        self.has_beams = False
        if cache is not None:
            cache.check_weights(weights)
        self.memory_mask = mask_for_memory(source_mask)
        self.tokens: Any = None
        self.n = 0 if cache is None else len(cache)  # tokens so far
        self.n_read = 0  # tokens of the last pass
        self.no_graph: Any = contextlib.nullcontext
        like = weights.any_array()
        if like is not None and library(like) == "torch":
            self.no_graph = importlib.import_module("torch").no_grad
        with self.no_graph():
            memory = encode(source, weights, source_mask, impl=impl)
            self.memory = memory_keys_and_values(memory, weights.decoder.layers)

    def allow_beams(self) -> None:
        """Allow tokens with an axis of beams after the batch axis, with one memory for all."""
        self.memory = tuple(
            None if heads is None else tuple(x[:, None, ...] for x in heads)
            for heads in self.memory
        )
        self.has_beams = True
        heads: Any = self.memory[0] if self.memory else None
        if heads is not None and is_rule(self.memory_mask):
            self.memory_mask = array_for_heads(self.memory_mask, 1, heads[0].shape[-2], heads[0])
        if self.memory_mask is not None and self.memory_mask.ndim == 4:
            self.memory_mask = self.memory_mask[:, None, ...]

    def prefill(
        self, prompt: Annotated[Array, "... m"], ended: Annotated[Array, "..."] | None = None
    ) -> Annotated[Array, "... V"]:
        """Read m tokens in one pass and return log p of the token after the last one.

        For a sequence that has `ended`, whose tokens are padding, all tokens get the same log p.
        """
        return self._read(prompt, ended)[..., 0, :]

    def step(
        self, tokens: Annotated[Array, "..."], ended: Annotated[Array, "..."] | None = None
    ) -> Annotated[Array, "... V"]:
        """Read one token of each sequence and return log p of the next one, as `prefill` does."""
        return self._read(tokens[..., None], ended)[..., 0, :]

    def verify(
        self, tokens: Annotated[Array, "... m"], ended: Annotated[Array, "..."] | None = None
    ) -> Annotated[Array, "... m V"]:
        """Read m tokens in one pass and return log p of the token that follows each of them.

        Some of the m tokens may come after the end of a sequence. If the best logit of a row is NaN
        or infinite, the whole row is NaN.
        """
        return self._read(tokens, ended, n_rows=tokens.shape[-1])

    def rewind(self, n: int) -> None:
        """Forget all but the first n tokens."""
        if self.cache is None:
            self.tokens = self.tokens[..., :n]
        else:
            self.cache.truncate(min(n, len(self.cache)))  # 0 without layers
        self.n = n

    def _read(self, tokens, ended=None, n_rows=1):
        """Return log p (..., n_rows, V) of what follows the last `n_rows` tokens."""
        xp = array_namespace(tokens)
        if self.cache is None:
            if self.tokens is not None:
                tokens = xp.concat([self.tokens, tokens], axis=-1)
            self.tokens, self.n = tokens, 0
        self.n_read = m = tokens.shape[-1]
        with self.no_graph():
            seen = self._seen(m)
            logits = decode(
                *(tokens, self.memory, self.weights, seen, self.memory_mask),
                past=self.cache,
                start=self.n,
                last=n_rows == 1,
                impl=self.impl,
                is_causal=m > 1 and seen is None,  # one token may see all
            )
            logits = logits[..., -n_rows:, :]
            if ended is not None:
                logits = xp.where(ended[..., None, None], xp.zeros_like(logits), logits)
            self.n += m
            possible = xp.isfinite(xp.max(logits, axis=-1, keepdims=True))
            if not bool(xp.all(possible)):
                if n_rows == 1:
                    raise ValueError(
                        f"weights must give finite logits to the best token, got NaN or infinity "
                        f"after {self.n} tokens"
                    )
                logits = xp.where(possible, logits, xp.nan)
            return log_softmax_of(to_accumulate(logits), axis=-1)

    def _seen(self, m):
        """Return what the rule and the causal order show the newest m tokens of all keys read.

        A cache may have forgotten some of these keys.
        """
        if self.rule is None:
            return None
        seen = self.rule.intervals(m, self.n + m)
        return seen.with_axes(1) if self.has_beams and seen.ndim > 2 else seen

    def follow(self, parents: Annotated[Array, "batch beams"]) -> None:
        """Continue with these beams, in this order."""
        if self.cache is None:
            self.tokens = gather(self.tokens, parents)
        else:
            self.cache.reorder(parents)
