"""Beam search: follow the best few sequences instead of one."""

import math
from typing import Annotated, Any

import array_api_compat
import numpy as np

from attnbook.arrays.arguments import check_int, check_number
from attnbook.arrays.array import Array, accumulation_dtype, array_namespace, dtype_name
from attnbook.arrays.lengths import placed
from attnbook.arrays.move import numbers_of
from attnbook.decoding.kv_cache import gather
from attnbook.decoding.processors import Prefix
from attnbook.decoding.request import Decoded, request_of
from attnbook.transformers.weights import TransformerWeights


def beam_search(
    weights: TransformerWeights,
    source: Annotated[Array, "batch n_s"] | None = None,
    *,
    n_beams: int,
    length_penalty: float = 0.0,
    **options: Any,
) -> Decoded:
    r"""Keep the `n_beams` best sequences at every step, and return them, best first.

    .. math:: \operatorname{score}(y) = \frac{\log p(y \mid x)}{\operatorname{lp}(y)}, \qquad
              \operatorname{lp}(y) = \Bigl(\frac{5 + |y|}{5 + 1}\Bigr)^{c}

    Parameters
    ----------
    weights, source
        As in `greedy_decode`.
    n_beams : int
        The number of sequences that are kept, at least 1.
    length_penalty : float
        The exponent c, at least 0. y stands for the new tokens, including the stop token. With
        c = 0 the score is the log-probability. Since it falls with every token, short sequences
        win. A larger c favours longer sequences.
    **options
        All other options of `greedy_decode`; `prompt` and `max_length` are required.

    Returns
    -------
    Decoded
        The result with an axis of beams: tokens (batch, n_beams, n), and scores (batch, n_beams)
        in descending order.

    Raises
    ------
    TypeError, ValueError
        As in `greedy_decode`. Also if `n_beams` is not an int of at least 1, or if `length_penalty`
        is not a finite number of at least 0 or makes the penalty of `max_length` overflow.

    Notes
    -----
    Each step scores every continuation of every kept sequence and keeps the best `n_beams`. A
    sequence that has ended (a finished hypothesis) stays as long as its score is among these. An
    unfinished hypothesis is ranked by the penalised score of its tokens so far, whereas Hugging
    Face ranks it by log p and penalises only finished ones. Decoding ends when all have ended. Of
    equal scores the better beam wins, and then the first token in the vocabulary, so that one beam
    is `greedy_decode`.
    With `processors`, log p(y | x) is the sum of the processed log p, which are not renormalised.
    If `n_beams` is at least the number of possible sequences (those cut by `max_length` count),
    nothing is pruned and the result is exact. `n_beams` may be larger; beams without a sequence
    have score −∞ and length 0. More beams are not always better, because a prefix that is dropped
    at one width can be the best at the end.
    Cost: the cost of `greedy_decode` for batch · n_beams sequences, and O(n_beams V log(n_beams V))
    per step. Up to the length of the shortest prompt of a batch, prompts are read once per
    sequence, and the rest of a longer prompt is read once per beam.

    References
    ----------
    Wu et al. (2016), "Google's neural machine translation system", equation 14; chapter
    `decoding`.

    Examples
    --------
    >>> weights = TransformerWeights.init(0, 11, d_model=8, n_heads=2, d_ff=32, n_layers=2)
    >>> best = beam_search(weights, np.array([[3, 1, 4]]), n_beams=3, prompt=1, max_length=5)
    >>> best.tokens.shape
    (1, 3, 5)
    """
    n_beams = check_int("n_beams", n_beams, at_least=1)
    length_penalty = check_number("length_penalty", length_penalty)
    task = request_of("beam_search", weights, source, options).begins("beam_search")
    _check_penalty(length_penalty, task.max_length, weights.target_embedding)
    return _search(task, n_beams, length_penalty)


def _check_penalty(alpha, max_length, like):
    xp = array_namespace(like)
    wide = accumulation_dtype(xp, like.dtype)
    if alpha * math.log((5 + max_length) / 6) >= math.log(xp.finfo(wide).max):
        raise ValueError(
            f"length_penalty must leave ((5 + {max_length}) / 6)^length_penalty, the penalty of "
            f"max_length, finite in {dtype_name(wide)}, got {alpha}"
        )


# The mathematics. These may rely on checked arguments.


def _search(task, n_beams, alpha):
    xp = array_namespace(task.prompt)
    batch, n = task.prompt.shape[0], int(task.lengths.min())
    task.decoder.allow_beams()
    log_p = task.decoder.prefill(xp.expand_dims(task.prompt[:, :n], axis=1))  # (batch, 1, V)
    n_known = log_p.shape[-1]
    first = placed(np.zeros((batch, n_beams), dtype=np.int64), log_p)
    own = placed(np.tile(np.arange(n_beams), (batch, 1)), log_p)
    task.decoder.follow(first)
    log_p = gather(log_p, first)  # (batch, n_beams, V)
    vocabulary = xp.arange(n_known, device=array_api_compat.device(log_p))
    only_pad = xp.where(vocabulary == task.pad, xp.zeros_like(log_p), -xp.inf)
    # all beams are the prompt: one of them is enough
    totals = xp.where(own == 0, xp.zeros_like(log_p[..., 0]), -xp.inf)
    lengths, ended = xp.zeros_like(first), xp.zeros_like(first, dtype=xp.bool)
    tokens, gains = [xp.astype(log_p[..., :0], x.dtype) for x in (first, log_p)]
    while not bool(xp.all(settled := ended | (totals == -xp.inf))):
        if tokens.shape[-1]:
            log_p = task.decoder.step(tokens[..., -1], settled)
        made = n - task.lengths  # below 0 while a sequence reads its prompt
        reading = placed((made < 0)[:, np.newaxis], totals)
        changed = log_p
        if task.processors:
            prefixes = _prefixes(task, tokens, made)
            changed = task.processed(log_p, prefixes, settled | reading)
        own_log_p, step = (xp.where(ended[..., None], only_pad, x) for x in (log_p, changed))
        counts = lengths + xp.astype(~ended, lengths.dtype)
        scores = (totals[..., None] + step) / _penalty(counts, alpha, step)[..., None]
        ranked = xp.argsort(-xp.reshape(scores, (batch, -1)), axis=-1, stable=True)
        best = ranked[:, :n_beams]
        parents, token = best // n_known, best % n_known
        gain, own_gain = (gather(xp.reshape(x, (batch, -1)), best) for x in (step, own_log_p))
        if np.any(made < 0):
            parents = xp.where(reading, own, parents)
            token = xp.where(reading, task.prompt[:, n][:, None], token)
            gain, own_gain = (xp.where(reading, 0.0, x) for x in (gain, own_gain))
            counts = xp.where(reading, lengths, counts)
        task.decoder.follow(parents)
        totals = gather(totals, parents) + gain
        lengths = gather(counts, parents)
        full = placed((made + 1 >= task.max_length)[:, np.newaxis], best)
        ended = gather(ended, parents) | (~reading & task.stops(token)) | full
        tokens = xp.concat([gather(tokens, parents), token[..., None]], axis=-1)
        gains = xp.concat([gather(gains, parents), own_gain[..., None]], axis=-1)
        n += 1
    scores = totals / _penalty(lengths, alpha, totals)
    lengths = xp.where(totals == -xp.inf, 0, lengths)
    return task.decoded(tokens, gains, lengths, scores)


def _prefixes(task, tokens, made):
    """Return what every beam holds, those of the first sequence first."""
    ids, late = numbers_of("tokens", tokens), task.lengths - task.lengths.min()
    return [
        Prefix(prefix.prompt, beam[late[b] : late[b] + max(int(made[b]), 0)])
        for b, prefix in enumerate(task.prefixes())
        for beam in ids[b]
    ]


def _penalty(lengths, alpha, like):
    xp = array_namespace(lengths)
    return ((5 + xp.astype(lengths, like.dtype)) / 6) ** alpha
