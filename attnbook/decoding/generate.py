"""Decoding token by token: the stream of steps, greedy decoding and sampling."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_ids
from attnbook.arrays.array import Array, Mask, array_namespace
from attnbook.arrays.lengths import placed
from attnbook.decoding.kv_cache import KVCache
from attnbook.decoding.processors import Prefix, Processor, longer
from attnbook.decoding.request import Decoded, Request, request, request_of
from attnbook.decoding.sampling import sampler
from attnbook.kernels import REFERENCE, Impl
from attnbook.masking.rules import Rule
from attnbook.transformers.weights import TransformerWeights


@dataclass(frozen=True, eq=False)
class Step:
    """One more token for each sequence.

    Attributes
    ----------
    tokens : integer array, shape (batch,)
        The next token of each sequence.
    made : boolean array, shape (batch,)
        False where a sequence still reads its prompt or has ended. Its token then comes from the
        prompt or is `pad`.
    log_probabilities : array, shape (batch,)
        The model's log-probability of each token, and 0 where no token was made.
    n_read : int
        How many tokens of each sequence the model read for this step.
    drafted : boolean array, shape (batch,), optional
        In speculative decoding, True where the draft model had proposed the token.
    n_drafted : int
        How many tokens of each sequence the draft model had proposed for the pass of this step.
    """

    tokens: Annotated[Array, "batch"]
    made: Annotated[Array, "batch"]
    log_probabilities: Annotated[Array, "batch"]
    n_read: int = 0
    drafted: Annotated[Array, "batch"] | None = None
    n_drafted: int = 0


def greedy_decode(
    weights: TransformerWeights,
    source: Annotated[Array, "batch n_s"] | None = None,
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
) -> Decoded:
    r"""Decode greedily: take the most likely token at each step.

    .. math:: y_i = \operatorname*{arg\,max}_j \; p(j \mid y_{<i}, x)

    Parameters
    ----------
    weights : TransformerWeights
        Weights with embeddings. PyTorch records no graph.
    source : integer array, shape (batch, n_s), or None
        Token ids for the encoder, or None for a decoder-only model.
    prompt : integer array, shape (batch, n_p), or int
        The target tokens to continue, at least one. An int is the start token of every sequence;
        a decoder-only model then decodes one sequence.
    max_length : int
        The maximum number of new tokens per sequence, at least 1. The stop token counts, but the
        prompt does not.
    stop : int, sequence of int or integer array, optional
        A sequence ends with the first of these tokens. Without `stop` every sequence gets
        `max_length` tokens.
    pad : int
        A known token that fills sequences after their end.
    prompt_lengths : ints of shape (batch,), optional
        How many tokens of each row of `prompt` are real, at least 1. Padding is on the right.
        Beyond the shortest length, longer prompts are read token by token while the others decode.
    source_lengths : ints of shape (batch,), optional
        How many tokens of each source are real. The rest is hidden.
    source_mask : boolean array or `masking.Rule`, optional
        A mask in place of `source_lengths`, as in `transformer`: **True = may attend**.
    target_mask : masking.Rule, optional
        What the target may attend to, in addition to the causal mask, at every step. A rule grows
        with the text, which an array does not. Positions count from the first token in the cache.
    cache : bool or KVCache
        Whether to keep the keys and values of every layer, so that each token is read once. If you
        pass a `KVCache`, it is filled, and you can use it afterwards. If it already holds tokens,
        `prompt` follows them, so that a conversation goes on, or a long prompt is read only once.
        Without a cache the whole prefix is read again at every step.
    processors : sequence of callables
        Logits processors, ``(log_p, prefixes) -> log_p``, such as `constrain` or
        `repetition_penalty`. They change the scores of the next token, in this order, before a
        token is chosen.
    impl : str or callable
        The implementation of attention, as in `attention`.

    Returns
    -------
    Decoded

    Raises
    ------
    TypeError
        If `weights` has the wrong class, ids are not integers, libraries differ, or a number or a
        flag has the wrong type.
    ValueError
        If an id is unknown, a shape does not fit, the prompt is empty, a length is out of range,
        there are too few learned positions, the cache holds other layers or another number of
        sequences, or `source` is given without an
        encoder or missing with one. Also if the best logit of a step is NaN or infinite for a
        sequence that has not ended, or if a processor returns an array of the wrong shape or bans
        all tokens.

    Notes
    -----
    Each sequence gets the tokens that it would get without the others. The results with and without
    a cache differ only by rounding, so the tokens can differ if two are almost equally likely. Of
    equally likely tokens the first in the vocabulary is taken, whereas a draw with T → 0 takes each
    of them equally often (`sampler`). Decoding ends early when every sequence has ended. The most
    likely token at each step need not begin the most likely sequence.
    The last token that was decoded has not been read, so it is not in the cache. Therefore a prompt
    that goes on from a filled cache begins with this token. To go on from an earlier point, cut the
    cache with `KVCache.truncate`. Processors see only the new prompt. In a batch whose sequences
    ended at different steps, the cache also holds what was read after the end of the shorter ones;
    decode such sequences with caches of their own.
    Cost: to decode n tokens after a prompt of n_p, the model reads n + n_p - 1 tokens with the
    cache, and n (n_p + (n - 1)/2) tokens without it. The cache holds 2 h_kv d_k numbers per token
    and layer.

    References
    ----------
    Chapter `decoding`.

    Examples
    --------
    >>> weights = TransformerWeights.init(0, 11, d_model=8, n_heads=2, d_ff=32, n_layers=2)
    >>> result = greedy_decode(weights, np.array([[3, 1, 4]]), prompt=1, max_length=5)
    >>> result.tokens.shape, result.lengths
    ((1, 5), array([5]))

    A language model reads a prompt, and then goes on from its cache:

    >>> weights = TransformerWeights.init(
    ...     0, 11, d_model=8, n_heads=2, d_ff=32, n_layers=2, n_encoder_layers=0
    ... )
    >>> cache = KVCache()
    >>> first = greedy_decode(weights, prompt=np.array([[3, 1, 4]]), max_length=2, cache=cache)
    >>> more = np.concatenate([first.tokens[:, -1:], np.array([[5, 9]])], axis=1)
    >>> then = greedy_decode(weights, prompt=more, max_length=2, cache=cache)
    >>> len(cache)
    8
    """
    task = request(
        *(weights, source),
        prompt=prompt,
        max_length=max_length,
        stop=stop,
        pad=pad,
        prompt_lengths=prompt_lengths,
        source_lengths=source_lengths,
        source_mask=source_mask,
        target_mask=target_mask,
        cache=cache,
        processors=processors,
        impl=impl,
    )
    return decoded(task, steps_of(task, _most_likely))


def sample(
    weights: TransformerWeights,
    source: Annotated[Array, "batch n_s"] | None = None,
    *,
    rng: "np.random.Generator | int",
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    **options: Any,
) -> Decoded:
    """Draw each token from the model's distribution, changed as in `sampler`.

    Parameters
    ----------
    weights, source
        As in `greedy_decode`.
    rng, temperature, top_k, top_p, min_p, repetition_penalty
        As in `sampler`. They act after the `processors`.
    **options
        All other options of `greedy_decode`; `prompt` and `max_length` are required.

    Returns
    -------
    Decoded
        The result with the log-probabilities of the model itself, at temperature 1 and without a
        cut.

    Raises
    ------
    TypeError, ValueError
        As in `greedy_decode` and `sampler`.

    Examples
    --------
    >>> weights = TransformerWeights.init(0, 11, d_model=8, n_heads=2, d_ff=32, n_layers=2)
    >>> source = np.array([[3, 1, 4]])
    >>> drawn = sample(weights, source, rng=0, prompt=1, max_length=4, top_k=3)
    >>> again = sample(weights, source, rng=0, prompt=1, max_length=4, top_k=3)
    >>> bool(np.all(drawn.tokens == again.tokens))
    True
    """
    choose = sampler(
        rng,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
    )
    task = request_of("sample", weights, source, options)
    return decoded(task, steps_of(task, choose))


def stream(
    weights: TransformerWeights,
    source: Annotated[Array, "batch n_s"] | None = None,
    *,
    choose: Callable[[Array, list[Prefix]], Array] | None = None,
    **options: Any,
) -> Iterator[Step]:
    """Yield the tokens of each step as soon as they are made.

    Parameters
    ----------
    weights, source
        As in `greedy_decode`.
    choose : callable, optional
        A function that is called as ``choose(log_p, prefixes)``. `log_p`, of shape (batch, V),
        holds the model's log p of every next token after all processors, and `prefixes` holds the
        `Prefix` of each sequence. The function returns integers of shape (batch,) in the library of
        `log_p`. By default it takes the most likely tokens; `sampler` returns a function that
        draws. Its result is ignored for a sequence that still reads its prompt or has ended. For a
        sequence that has ended, all tokens have the same log p.
    **options
        All other options of `greedy_decode`; `prompt` and `max_length` are required.

    Yields
    ------
    Step

    Raises
    ------
    TypeError, ValueError
        As in `greedy_decode`, when the function is called. If `choose` returns a wrong result, the
        error is raised at that step.

    Examples
    --------
    >>> weights = TransformerWeights.init(
    ...     0, 11, d_model=8, n_heads=2, d_ff=32, n_layers=2, n_encoder_layers=0
    ... )
    >>> for step in stream(weights, prompt=np.array([[3, 1, 4]]), max_length=2):
    ...     print(step.tokens.shape)
    (1,)
    (1,)
    """
    if choose is not None and not callable(choose):
        raise TypeError(f"choose must be callable, got {type(choose).__name__}")
    checked = _most_likely if choose is None else functools.partial(_checked, choose)
    return steps_of(request_of("stream", weights, source, options), checked)


# The mathematics. These may rely on checked arguments.


def steps_of(task: Request, choose: Callable[[Array, list[Prefix]], Array]) -> Iterator[Step]:
    """Yield the steps of a checked request."""
    xp = array_namespace(task.prompt)
    n, longest = int(task.lengths.min()), int(task.lengths.max())
    lengths = n if n == longest else placed(task.lengths, task.prompt)
    is_watched = choose is not _most_likely or task.processors  # by somebody who needs prefixes
    prefixes = task.prefixes() if is_watched else []
    log_p = task.decoder.prefill(task.prompt[:, :n])  # every prompt has these: read in one pass
    ended = xp.zeros_like(task.prompt[:, 0], dtype=xp.bool)
    pad = xp.full_like(task.prompt[:, 0], task.pad)
    while True:
        idle = ended if n >= longest else ended | (lengths > n)  # some still read their prompts
        tokens = choose(task.processed(log_p, prefixes, idle), prefixes)
        if n < longest:
            tokens = xp.where(lengths > n, task.prompt[:, n], tokens)
        tokens, new = xp.where(ended, pad, tokens), ~idle
        gains = xp.take_along_axis(log_p, tokens[:, None], axis=-1)[:, 0]
        gains = xp.where(new, gains, xp.zeros_like(gains))
        yield Step(tokens, new, gains, task.decoder.n_read)
        n += 1
        ended = ended | (new & task.stops(tokens)) | (lengths + task.max_length <= n)
        if bool(xp.all(ended)):
            return
        prefixes = longer(prefixes, tokens, new) if is_watched else []
        log_p = task.decoder.step(tokens, ended)


def _checked(choose, log_p, prefixes):
    """Return the tokens that a caller chose as int64, or raise."""
    tokens = choose(log_p, prefixes)
    check_ids("choose(…)", tokens, log_p.shape[-1], "log_probabilities", log_p)
    if tuple(tokens.shape) != tuple(log_p.shape[:-1]):
        raise ValueError(
            f"choose must return an array of shape {tuple(log_p.shape[:-1])}, "
            f"got {tuple(tokens.shape)}"
        )
    xp = array_namespace(tokens)
    return xp.astype(tokens, xp.int64, copy=False)


def decoded(task: Request, steps: Iterable[Step]) -> Decoded:
    """Return all steps as one result."""
    xp = array_namespace(task.prompt)
    tokens, made, log_p = [], [], []
    for step in steps:
        tokens.append(step.tokens)
        made.append(step.made)
        log_p.append(step.log_probabilities)
    tokens, made, log_p = [xp.stack(x, axis=-1) for x in (tokens, made, log_p)]
    lengths = xp.count_nonzero(made, axis=-1)
    return task.decoded(tokens, log_p, lengths, xp.sum(log_p, axis=-1))


def _most_likely(log_p, prefixes):
    return array_namespace(log_p).argmax(log_p, axis=-1)
