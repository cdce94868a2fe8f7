"""The request to decode, checked once for every way of decoding, and the result of one."""

import inspect
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

import array_api_compat
import numpy as np

from attnbook.arrays.arguments import (
    check_array,
    check_bool,
    check_float,
    check_ids,
    check_int,
    check_same_home,
)
from attnbook.arrays.array import Array, Mask, array_namespace, broadcast_shapes, to_accumulate
from attnbook.arrays.lengths import first_keys, lengths_of, placed
from attnbook.arrays.move import numbers_of
from attnbook.arrays.weights import check_part
from attnbook.decoding.incremental import IncrementalDecoder
from attnbook.decoding.kv_cache import KVCache, gather
from attnbook.decoding.processors import Prefix, Processor
from attnbook.kernels import REFERENCE, Impl, check_impl
from attnbook.masking.rules import Rule
from attnbook.multi_head.masks import check_head_mask
from attnbook.transformers.self_attention import STATES
from attnbook.transformers.transformer import check_source
from attnbook.transformers.weights import TransformerWeights


@dataclass(frozen=True, eq=False)
class Decoded:
    """The decoded tokens, without the prompt.

    Attributes
    ----------
    tokens : integer array, shape (batch, n), or (batch, n_beams, n) of a beam search
        The new tokens of each sequence, including its stop token, and `pad` after them. n is the
        length of the longest sequence.
    lengths : integer array, shape (batch,) or (batch, n_beams)
        How many of the tokens are real.
    log_probabilities : array, shape of `tokens`
        The model's log-probability of each token, log p(token | prefix), before any processor
        changed it; 0 at `pad`.
    scores : array, shape of `lengths`
        The sum of these, which is the log-probability of the sequence. However, a beam search sums
        the values after the processors, and divides the sum by the length penalty.
    """

    tokens: Annotated[Array, "... n"]
    lengths: Annotated[Array, "..."]
    log_probabilities: Annotated[Array, "... n"]
    scores: Annotated[Array, "..."]


@dataclass(frozen=True, eq=False)
class Request:
    """What is to be decoded, checked."""

    decoder: IncrementalDecoder
    prompt: Array  # (batch, n_p), int64
    lengths: np.ndarray  # (batch,), of the prompts
    max_length: int
    stop: tuple[int, ...]
    pad: int
    processors: tuple[Processor, ...] = ()

    def begins(self, caller: str) -> Self:
        """Return the request itself, or raise if its cache already holds tokens."""
        if n := self.decoder.n:
            raise ValueError(
                f"cache must be empty, since {caller} does not go on from one, "
                f"got one of {n} tokens"
            )
        return self

    def prefixes(self) -> list[Prefix]:
        """Return what every sequence holds before its first token is made."""
        prompts, nothing = numbers_of("prompt", self.prompt), np.empty(0, dtype=np.int64)
        return [Prefix(row[:n], nothing) for row, n in zip(prompts, self.lengths, strict=True)]

    def processed(
        self,
        log_p: Annotated[Array, "... V"],
        prefixes: list[Prefix],
        idle: Annotated[Array, "..."],
    ) -> Annotated[Array, "... V"]:
        """Return what the processors make of `log_p`, but for the sequences that are `idle`.

        What a processor returns in half precision is widened.
        """
        if not self.processors:
            return log_p
        xp = array_namespace(log_p)
        rows = changed = xp.reshape(log_p, (-1, log_p.shape[-1]))
        for process in self.processors:
            changed = process(changed, prefixes)
            check_same_home("what a processor returns", changed, "log_p", rows)
            check_float("what a processor returns", changed)
            if tuple(changed.shape) != tuple(rows.shape):
                shape = tuple(changed.shape)
                raise ValueError(
                    f"a processor must return an array of shape {tuple(rows.shape)}, got {shape}"
                )
            changed = to_accumulate(changed)
        changed = xp.where(idle[..., None], log_p, xp.reshape(changed, tuple(log_p.shape)))
        if not bool(xp.all(xp.isfinite(xp.max(changed, axis=-1)))):
            raise ValueError(
                "processors must leave a token possible in each row, got no finite best one"
            )
        return changed

    def stops(self, tokens: Array) -> Array:
        """Return where `tokens` are stop tokens."""
        xp = array_namespace(tokens)
        found = xp.zeros_like(tokens, dtype=xp.bool)
        for stop in self.stop:
            found = found | (tokens == stop)
        return found

    def decoded(self, tokens: Array, log_p: Array, lengths: Array, scores: Array) -> Decoded:
        """Return the result; `tokens` begin after the shortest prompt, for every sequence."""
        xp = array_namespace(tokens)
        n, longest = tokens.shape[-1], int(xp.max(lengths))
        late = self.lengths - self.lengths.min()
        if np.any(late):
            places = np.minimum(np.arange(longest) + late[:, np.newaxis], n - 1)
            index = placed(places, tokens)  # (batch, longest)
            tokens, log_p = (  # gathered along the second axis, whether or not there are beams
                xp.moveaxis(gather(xp.moveaxis(x, -1, 1), index), 1, -1) for x in (tokens, log_p)
            )
        tokens, log_p = tokens[..., :longest], log_p[..., :longest]
        device = array_api_compat.device(tokens)
        own = xp.arange(longest, device=device) < lengths[..., None]
        tokens = xp.where(own, tokens, xp.full_like(tokens, self.pad))
        return Decoded(tokens, lengths, xp.where(own, log_p, xp.zeros_like(log_p)), scores)


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
    stop: Any = None,
    pad: int = 0,
    prompt_lengths: Any = None,
    source_lengths: Any = None,
    source_mask: Mask | None = None,
    target_mask: Rule | None = None,
    cache: bool | KVCache = True,
    processors: Sequence[Processor] = (),
    impl: Impl = REFERENCE,
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
    kept = _check_cache(cache, batch, len(weights.decoder.layers))
    if weights.target_positions is not None:
        taken = 0 if kept is None else len(kept)
        _check_positions(int(lengths.max()), max_length, weights.target_positions.shape[0] - taken)
    if target_mask is not None:
        read = 0 if kept is None else len(kept)
        read += int(lengths.max()) + max_length - 1  # the last token is not read
        _check_target_mask(target_mask, weights, kept, batch, read)
    if source_lengths is not None:
        source_mask = _check_source_lengths(source_lengths, source, source_mask)
    if source_mask is not None and weights.encoder is not None:
        attentions = [layer.self_attention for layer in weights.encoder.layers]
        check_head_mask("source_mask", source_mask, "source", source, keys, keys, attentions)
    if array_api_compat.is_array_api_obj(stop):
        stop = numbers_of("stop", stop).tolist()
    stop = stop if isinstance(stop, Iterable) else () if stop is None else (stop,)
    stop = tuple(_check_token("stop", token, known) for token in stop)
    pad = _check_token("pad", pad, known)
    decoder = IncrementalDecoder(weights, source, source_mask, kept, impl, target_mask)
    return Request(decoder, prompt, lengths, max_length, stop, pad, _check_processors(processors))


def _check_prompt(prompt, table, batch):
    """Return the prompt as an int64 array (batch, n_p), or raise."""
    xp = array_namespace(table)
    if isinstance(prompt, numbers.Integral):
        start = _check_token("prompt", prompt, table.shape[0])
        device = array_api_compat.device(table)
        return xp.full((batch or 1, 1), start, dtype=xp.int64, device=device)
    check_array("prompt", prompt)
    if prompt.ndim != 2 or 0 in prompt.shape or (batch or prompt.shape[0]) != prompt.shape[0]:
        wanted = "(batch, n_p) with batch >= 1" if batch is None else f"({batch}, n_p)"
        raise ValueError(f"prompt must have shape {wanted}, n_p >= 1, got {tuple(prompt.shape)}")
    check_ids("prompt", prompt, table.shape[0], "target_embedding", table)
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
            f"prompt must have at most {places} tokens, as many as learned positions are free, "
            f"got {n}"
        )
    if n + max_length - 1 > places:  # the last token is not read again
        raise ValueError(
            f"max_length must be at most {places - n + 1} after a prompt of {n} tokens with "
            f"{places} free learned positions, got {max_length}"
        )


def _check_target_mask(rule, weights, cache, batch, n):
    """Raise unless the rule says what a decoder may attend to in each sequence of n tokens."""
    if not isinstance(rule, Rule):
        raise TypeError(
            f"target_mask must be a masking.Rule, because the target grows, "
            f"got {type(rule).__name__}"
        )
    if cache is not None and not cache.takes_masks:
        raise ValueError(
            f"target_mask must be None for a {type(cache).__name__}, which itself chooses the keys "
            f"to read, got {rule}"
        )
    if broadcast_shapes(rule.leading, (batch,)) != (batch,):
        raise ValueError(
            f"target_mask must have leading axes that broadcast to ({batch},), got {rule.leading}"
        )
    rule.check_keys(n)
    for i, layer in enumerate(weights.decoder.layers):
        if type(layer.self_attention) in STATES:
            raise ValueError(f"target_mask must be None, since layer {i} keeps a state")


def _check_source_lengths(lengths, source, source_mask):
    if source is None:
        raise ValueError("source_lengths must be None, since there is no source")
    if source_mask is not None:
        raise ValueError("source_lengths must be None where source_mask is given")
    batch, n = source.shape
    counts = _check_lengths("source_lengths", lengths, batch, n)
    return first_keys("source_lengths", counts[:, np.newaxis], n, source)  # (batch, 1, 1, n)


def _check_cache(cache, batch, n_layers):
    """Return the cache to write into, or None, or raise."""
    if not isinstance(cache, KVCache):
        return KVCache() if check_bool("cache", cache) else None
    if cache.n_layers:
        found = cache.n_layers, cache.keys(0).shape[0]
        if found != (n_layers, batch):
            raise ValueError(
                f"cache must hold {n_layers} layers of {batch} sequences to go on with this "
                f"prompt, got {found[0]} of {found[1]}"
            )
    return cache


def _check_processors(processors):
    kind = type(processors).__name__
    try:
        processors = None if callable(processors) else tuple(processors)
    except (TypeError, RuntimeError):  # None, an array without axes, or a nested tensor
        processors = None
    if processors is None:
        raise TypeError(f"processors must be a sequence of callables, got {kind}")
    for i, process in enumerate(processors):
        if not callable(process):
            raise TypeError(f"processors[{i}] must be callable, got {type(process).__name__}")
    return processors


def _check_token(name, token, known):
    if not 0 <= (number := check_int(name, token, at_most=2**63 - 1)) < known:
        raise ValueError(f"{name} must be from 0 to {known - 1}, a known token, got {number}")
    return number
