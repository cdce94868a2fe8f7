"""What all ways of decoding share: a checked request, and a decoder that reads tokens in turn."""

import contextlib
import importlib
import inspect
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import array_api_compat
import numpy as np

from attnbook.arrays.arguments import (
    Array,
    accumulation_dtype,
    array_namespace,
    check_array,
    check_int,
    library,
)
from attnbook.arrays.lengths import first_keys, lengths_of, placed
from attnbook.arrays.move import move
from attnbook.arrays.weights import check_part
from attnbook.kernels import REFERENCE, check_impl
from attnbook.multi_head.masks import check_head_mask
from attnbook.single_head.softmax import log_softmax_of
from attnbook.transformers.decoder import memory_keys_and_values
from attnbook.transformers.embed import check_ids
from attnbook.transformers.transformer import check_source, decode, encode, mask_for_memory
from attnbook.transformers.weights import TransformerWeights


@dataclass(frozen=True, eq=False)
class Decoded:
    """What was decoded, without the prompt.

    Attributes
    ----------
    tokens : integer array, shape (batch, n), or (batch, n_beams, n) of a beam search
        The new tokens of each sequence from its first on, its stop token included; `pad` after
        them. n is the length of the longest.
    lengths : integer array, shape (batch,) or (batch, n_beams)
        How many of them are real.
    log_probabilities : array, shape of `tokens`
        What the model gave each token, log p(token | what came before); 0 at `pad`.
    scores : array, shape of `lengths`
        Their sum, the log-probability of the sequence; divided by the length penalty in a beam
        search.
    """

    tokens: Annotated[Array, "... n"]
    lengths: Annotated[Array, "..."]
    log_probabilities: Annotated[Array, "... n"]
    scores: Annotated[Array, "..."]


class Reader:
    """A decoder and what it has read so far.

    With a cache it holds the keys and values of every layer and reads each token once; without
    one it holds the tokens and reads all of them again at every step.
    """

    def __init__(self, weights, source, source_mask, cache, impl=REFERENCE):
        self.weights = weights
        self.cache = cache
        self.impl = impl
        self.memory_mask = mask_for_memory(source_mask)
        self.past: Any = None
        self.tokens: Any = None
        self.n = 0
        with _no_graph(weights.target_embedding):
            memory, _ = encode(source, weights, source_mask, impl=impl)
            self.memory = memory_keys_and_values(memory, weights.decoder.layers)

    def allow_beams(self):
        """Let the tokens have an axis of beams after that of the batch, over one memory."""

        def widened(x):
            return array_namespace(x).expand_dims(x, axis=1)

        self.memory = tuple(
            heads if heads is None else tuple(map(widened, heads)) for heads in self.memory
        )
        if self.memory_mask is not None and self.memory_mask.ndim == 4:
            self.memory_mask = widened(self.memory_mask)

    def read(
        self, tokens: Annotated[Array, "... m"], ended: Annotated[Array, "..."] | None = None
    ) -> Annotated[Array, "... V"]:
        """Read `tokens` after those read before; return log p of the token that comes next.

        Where a sequence has `ended` all tokens get the same: what is read there is padding.
        """
        xp = array_namespace(tokens)
        if not self.cache:
            if self.tokens is not None:
                tokens = xp.concat([self.tokens, tokens], axis=-1)
            self.tokens, self.n = tokens, 0
        m = tokens.shape[-1]
        with _no_graph(self.weights.target_embedding):
            logits, (_, _, heads) = decode(
                *(tokens, self.memory, self.weights, None, self.memory_mask),
                past=self.past,
                start=self.n,
                last=True,
                impl=self.impl,
                is_causal=m > 1,  # one token may see all
            )
            logits = logits[..., 0, :]  # (..., V)
            if ended is not None:
                logits = xp.where(ended[..., None], xp.zeros_like(logits), logits)
            if self.cache:
                self.past = heads
            self.n += m
            if not bool(xp.all(xp.isfinite(xp.max(logits, axis=-1)))):
                raise ValueError(
                    f"weights must give finite logits to the best token, got NaN or infinity "
                    f"after {self.n} tokens"
                )
            wide = accumulation_dtype(xp, logits.dtype)
            return log_softmax_of(xp.astype(logits, wide, copy=False), axis=-1)

    def follow(self, parents: Annotated[Array, "batch beams"]) -> None:
        """Go on with these beams of what was read, in this order."""
        if self.cache:
            self.past = tuple(tuple(gather(x, parents) for x in heads) for heads in self.past)
        else:
            self.tokens = gather(self.tokens, parents)


@dataclass(frozen=True, eq=False)
class Request:
    """What is to be decoded, checked."""

    reader: Reader
    prompt: Array  # (batch, n_p), int64
    lengths: np.ndarray  # (batch,), of the prompts
    max_length: int
    stop: tuple[int, ...]
    pad: int

    def stops(self, tokens: Array) -> Array:
        """Return where `tokens` are stop tokens."""
        xp = array_namespace(tokens)
        found = xp.zeros_like(tokens, dtype=xp.bool)
        for stop in self.stop:
            found = found | (tokens == stop)
        return found

    def decoded(self, tokens, log_p, lengths, scores):
        """Return the result; `tokens` begin after the shortest prompt, for every sequence."""
        xp = array_namespace(tokens)
        n, longest = tokens.shape[-1], int(xp.max(lengths))
        places = np.arange(longest) + (self.lengths - self.lengths.min())[:, np.newaxis]
        index = placed(np.minimum(places, n - 1), tokens)  # (batch, longest)
        device = array_api_compat.device(tokens)
        own = xp.arange(longest, device=device) < xp.expand_dims(lengths, axis=-1)

        def aligned(x, fill):
            ordered = xp.moveaxis(x, -1, 1)  # (batch, n, …), whether or not there are beams
            x = xp.moveaxis(gather(ordered, index), 1, -1)
            return xp.where(own, x, xp.full_like(x, fill))

        return Decoded(aligned(tokens, self.pad), lengths, aligned(log_p, 0.0), scores)


def request_of(
    caller: str,
    weights: TransformerWeights,
    source: Array | None,
    options: dict[str, Any],
) -> Request:
    """Return the `request` with these options, or raise in the name of the function called."""
    try:
        inspect.signature(request).bind(weights, source, **options)
    except TypeError as error:
        raise TypeError(f"{caller}() {error}") from None
    return request(weights, source, **options)


def request(
    weights: TransformerWeights,
    source: Array | None,
    *,
    prompt: Any,
    max_length: int,
    stop: int | Sequence[int] | None = None,
    pad: int = 0,
    prompt_lengths: Any = None,
    source_lengths: Any = None,
    source_mask: Array | None = None,
    cache: bool = True,
    impl: str = REFERENCE,
) -> Request:
    """Check what `greedy_decode` describes, and read the source."""
    check_part("weights", weights, TransformerWeights)
    check_impl(impl)
    table = weights.target_embedding
    if table is None:
        raise ValueError("weights must have a target_embedding to decode tokens, got None")
    known = table.shape[0]
    if source is not None:
        check_array("source", source)
        if source.ndim != 2 or source.shape[0] == 0:
            raise ValueError(
                f"source must have shape (batch, n_s) with batch >= 1, got {tuple(source.shape)}"
            )
    keys = check_source(source, weights, source_mask, None)
    prompt = _check_prompt(prompt, table, None if keys is None else keys[0])
    batch, n = prompt.shape
    lengths = _check_lengths("prompt_lengths", prompt_lengths, batch, n, least=1)
    max_length = check_int("max_length", max_length, at_least=1)
    if weights.target_positions is not None:
        _check_positions(int(lengths.max()), max_length, weights.target_positions.shape[0])
    if source_lengths is not None:
        source_mask = _check_source_lengths(source_lengths, source, source_mask)
    if source_mask is not None and weights.encoder is not None:
        attentions = [layer.self_attention for layer in weights.encoder.layers]
        check_head_mask("source_mask", source_mask, "source", source, keys, keys, attentions)
    if not isinstance(cache, bool):
        raise TypeError(f"cache must be a bool, got {type(cache).__name__}")
    given = _plain("stop", stop)
    given = given if isinstance(given, Iterable) else () if given is None else (given,)
    return Request(
        reader=Reader(weights, source, source_mask, cache, impl),
        prompt=prompt,
        lengths=lengths,
        max_length=max_length,
        stop=tuple(_check_id("stop", token, known) for token in given),
        pad=_check_id("pad", pad, known),
    )


def _check_prompt(prompt, table, batch):
    """Return the prompt as an int64 array (batch, n_p), or raise."""
    if isinstance(prompt, numbers.Integral):
        start = _check_id("prompt", prompt, table.shape[0])
        return placed(np.full((batch or 1, 1), start), table)
    check_array("prompt", prompt)
    if prompt.ndim != 2 or 0 in prompt.shape or (batch or prompt.shape[0]) != prompt.shape[0]:
        wanted = "(batch, n_p) with batch >= 1" if batch is None else f"({batch}, n_p)"
        raise ValueError(f"prompt must have shape {wanted}, n_p >= 1, got {tuple(prompt.shape)}")
    check_ids("prompt", prompt, table.shape[0], "target_embedding", table)
    xp = array_namespace(prompt)
    return xp.astype(prompt, xp.int64, copy=False)


def _check_lengths(name, lengths, batch, most, least=0):
    if lengths is None:
        return np.full(batch, most)
    counts = lengths_of(name, lengths)
    if counts.shape != (batch,):
        raise ValueError(f"{name} must have shape ({batch},), got {counts.shape}")
    if counts.min() < least or counts.max() > most:
        got = counts.min() if counts.min() < least else counts.max()
        raise ValueError(f"{name} must be from {least} to {most}, got {got}")
    return counts


def _check_positions(n, max_length, places):
    if n > places:
        raise ValueError(
            f"prompt must have at most {places} tokens, as many as learned positions, got {n}"
        )
    if n + max_length - 1 > places:  # the last token is not read again
        raise ValueError(
            f"max_length must be at most {places - n + 1} after a prompt of {n} tokens with "
            f"{places} learned positions, got {max_length}"
        )


def _check_source_lengths(lengths, source, source_mask):
    if source is None:
        raise ValueError("source_lengths must be None, since there is no source")
    if source_mask is not None:
        raise ValueError("source_lengths must be None where source_mask is given")
    batch, n = source.shape
    counts = _check_lengths("source_lengths", lengths, batch, n)
    return first_keys("source_lengths", counts[:, np.newaxis], n, source)  # (batch, 1, 1, n)


def _plain(name, ids):
    """Return an array of any library as nested lists, or as a number if it is one."""
    if not array_api_compat.is_array_api_obj(ids):
        return ids
    check_array(name, ids)
    return move(ids, "numpy").tolist()


def _check_id(name, token, known):
    if not 0 <= (number := check_int(name, token)) < known:
        raise ValueError(f"{name} must be from 0 to {known - 1}, a known token, got {number}")
    return number


# The mathematics. These may rely on checked arguments.


def gather(
    x: Annotated[Array, "batch n ..."], index: Annotated[Array, "batch m"]
) -> Annotated[Array, "batch m ..."]:
    """Return x[b, index[b, i]] at [b, i]."""
    xp = array_namespace(x)
    batch, n, *rest = x.shape
    rows = xp.expand_dims(xp.arange(batch, device=array_api_compat.device(x)) * n, axis=1)
    flat = xp.reshape(x, (batch * n, *rest))
    picked = xp.take(flat, xp.reshape(rows + index, (-1,)), axis=0)
    return xp.reshape(picked, (batch, index.shape[1], *rest))


def _no_graph(array):
    """Return a context in which PyTorch records no graph; other libraries never do."""
    if library(array) == "torch":
        return importlib.import_module("torch").no_grad()
    return contextlib.nullcontext()
