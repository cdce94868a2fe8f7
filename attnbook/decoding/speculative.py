"""Speculative decoding: a small model drafts tokens, the large one reads them in one pass.

p is the distribution of the large model (the target), and q is that of the draft model. The
accepted and redrawn tokens have the distribution p.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_int, check_number, generator
from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.lengths import placed
from attnbook.arrays.move import numbers_of
from attnbook.arrays.weights import check_part
from attnbook.decoding.generate import Step, decoded
from attnbook.decoding.processors import longer, top_k
from attnbook.decoding.request import Decoded, Request, request_of
from attnbook.decoding.sampling import chain, check_possible
from attnbook.single_head.softmax import softmax_of
from attnbook.transformers.weights import TransformerWeights


@dataclass(frozen=True, eq=False)
class Speculated(Decoded):
    """The decoded tokens, and how many of them the draft model had proposed.

    Attributes
    ----------
    tokens, lengths, log_probabilities, scores
        As in `Decoded`.
    accepted : integer array, shape (batch,)
        How many drafted tokens each sequence accepted.
    drafted : integer array, shape (batch,)
        How many tokens the draft model proposed for each sequence.
    passes : int
        The number of passes of the large model, including the prefill.
    """

    accepted: Annotated[Array, "batch"]
    drafted: Annotated[Array, "batch"]
    passes: int


def speculative_sample(
    weights: TransformerWeights,
    draft: TransformerWeights,
    source: Annotated[Array, "batch n_s"] | None = None,
    *,
    rng: "np.random.Generator | int",
    lookahead: int = 4,
    temperature: float = 1.0,
    **options: Any,
) -> Speculated:
    r"""Draw as `sample` does, with fewer passes of the large model.

    .. math:: \Pr[\text{keep } d] = \min\Bigl(1, \frac{p(d)}{q(d)}\Bigr), \qquad
              \text{else draw from } \frac{\max(p - q, 0)}{\sum_j \max(p_j - q_j, 0)}

    Parameters
    ----------
    weights : TransformerWeights
        The large model, which yields p.
    draft : TransformerWeights
        A smaller model with the same vocabulary, which yields q. It receives the same source.
    source
        As in `greedy_decode`.
    rng : numpy.random.Generator or int
        The source of the draws; an int is a seed.
    lookahead : int
        How many tokens the draft model proposes before the large model reads them, at least 1.
    temperature : float
        The temperature, at least 0. At 0 both models take their most likely token, and the result
        is that of `greedy_decode`.
    **options
        `top_k`, `top_p`, `min_p` and `repetition_penalty` of `sampler`, and all options of
        `greedy_decode`; `prompt` and `max_length` are required. Processors change both p and q. If
        you pass a `KVCache`, the large model uses it.

    Returns
    -------
    Speculated
        The result with the log-probabilities of the large model itself.

    Raises
    ------
    TypeError, ValueError
        As in `greedy_decode` and `sampler`, for each of the models. Also if the vocabularies
        differ, if only one model has an encoder, or if the prompts of a batch differ in length.

    Notes
    -----
    Each token has the distribution from which `sample` draws: token j is drafted and accepted with
    probability min(p_j, q_j), and drawn after a rejection with probability max(p_j - q_j, 0), and
    these two sum to p_j. On average a drafted token is accepted with probability
    α = Σ_j min(p_j, q_j). If α is the same at each of k positions, one pass of the large model
    yields (1 - α^(k+1)) / (1 - α) tokens. The tokens themselves differ from those of `sample`,
    which uses its draws differently.
    The large model reads lookahead + 1 tokens in one pass. Both caches are then cut back to the
    accepted tokens. A batch proceeds in lockstep, so a round ends with the first rejection in any
    sequence.
    Cost: for each round, lookahead passes of the draft model over one token, one pass of the large
    model over lookahead + 1 tokens, and O(lookahead V log V) on the host.

    References
    ----------
    Leviathan, Kalman and Matias (2023), "Fast inference from transformers via speculative
    decoding"; Chen et al. (2023), "Accelerating large language model decoding with speculative
    sampling"; chapter `decoding`.

    Examples
    --------
    >>> sizes = {"d_model": 8, "n_heads": 2, "d_ff": 32, "n_encoder_layers": 0}
    >>> weights = TransformerWeights.init(0, 11, n_layers=2, **sizes)
    >>> draft = TransformerWeights.init(1, 11, n_layers=1, **sizes)
    >>> result = speculative_sample(weights, draft, rng=0, prompt=1, max_length=20)
    >>> result.tokens.shape, result.passes < 20
    ((1, 20), True)
    """
    given = (weights, draft, source, rng, lookahead, temperature, options)
    task, drafting, rng, lookahead = _tasks("speculative_sample", *given)
    steps = list(_steps(task, drafting, rng, lookahead))
    result, xp = decoded(task, steps), array_namespace(task.prompt)
    kinds: list[Any] = [
        [step.drafted for step in steps],
        [step.made if step.n_drafted else xp.zeros_like(step.made) for step in steps],
    ]
    accepted, rounds = (xp.stack(x, axis=-1) for x in kinds)
    sizes = placed(np.array([step.n_drafted for step in steps]), task.prompt)
    return Speculated(
        **vars(result),
        accepted=xp.count_nonzero(accepted, axis=-1),
        drafted=xp.sum(xp.where(rounds, sizes, xp.zeros_like(sizes)), axis=-1),
        passes=sum(step.n_read > 0 for step in steps),
    )


def speculative_stream(
    weights: TransformerWeights,
    draft: TransformerWeights,
    source: Annotated[Array, "batch n_s"] | None = None,
    *,
    rng: "np.random.Generator | int",
    lookahead: int = 4,
    temperature: float = 1.0,
    **options: Any,
) -> Iterator[Step]:
    """Yield the tokens of `speculative_sample` as soon as they are made.

    It has the parameters of `speculative_sample` and raises the same errors when it is called.

    Yields
    ------
    Step
        A step with `drafted` and `n_drafted`. `n_read` is 0 if the large model had already read the
        token's predecessor in the pass of an earlier step.

    Examples
    --------
    >>> sizes = {"d_model": 8, "n_heads": 2, "d_ff": 32, "n_encoder_layers": 0}
    >>> weights = TransformerWeights.init(0, 11, n_layers=2, **sizes)
    >>> steps = speculative_stream(weights, weights, rng=0, prompt=1, max_length=7, lookahead=4)
    >>> [(step.n_read, bool(step.drafted[0])) for step in steps]
    [(1, False), (5, True), (0, True), (0, True), (0, True), (0, False), (1, False)]
    """
    given = (weights, draft, source, rng, lookahead, temperature, options)
    return _steps(*_tasks("speculative_stream", *given))


def _tasks(caller, weights, draft, source, rng, lookahead, temperature, options):
    """Return the requests to both models, the generator and the lookahead, checked."""
    names = ("top_k", "top_p", "min_p", "repetition_penalty")
    cuts = {name: options[name] for name in names if name in options}
    options = {name: x for name, x in options.items() if name not in names}
    rng, lookahead = generator(rng), check_int("lookahead", lookahead, at_least=1)
    is_greedy = check_number("temperature", temperature) == 0
    chosen = chain(1.0 if is_greedy else temperature, **cuts) + ([top_k(1)] if is_greedy else [])
    task = request_of(caller, weights, source, options).begins(caller)
    if (n := int(task.lengths.min())) < task.lengths.max():
        raise ValueError(
            f"prompt_lengths must be the same for all sequences, got {n} and {task.lengths.max()}: "
            f"{caller} reads no ragged prompts"
        )
    check_part("draft", draft, TransformerWeights)
    if (draft.encoder is None) != (weights.encoder is None):
        raise ValueError("draft must have an encoder if weights have one, and none if they do not")
    ours, table = weights.target_embedding.shape[0], draft.target_embedding
    if table is None or table.shape[0] != ours:
        got = "no embedding" if table is None else table.shape[0]
        raise ValueError(f"draft must have {ours} tokens to match weights, got {got}")
    is_kept = task.decoder.cache is not None
    drafting = request_of(caller, draft, source, options | {"cache": is_kept})
    every = (*task.processors, *chosen)
    return *(replace(one, processors=every) for one in (task, drafting)), rng, lookahead


# The mathematics. These may rely on checked arguments.


def _steps(task, drafting, rng, lookahead):
    """Yield the steps: what both models say is compared on the host, in float64."""
    model, prefixes, n_prompt = task.decoder, task.prefixes(), int(task.lengths[0])
    ids = numbers_of("prompt", task.prompt)[:, :n_prompt]  # (batch, n): with all made
    children, ended = rng.spawn(ids.shape[0]), np.zeros(ids.shape[0], dtype=bool)

    def uniform():
        return np.array([child.random() for child in children])

    drafts: list[Any] = []  # pairs of tokens (batch,) and what they were drawn from, q (batch, V)
    log_p = model.prefill(placed(ids, task.prompt))[:, None, :]  # (batch, 1, V)
    while True:
        n_read = model.n_read
        for i in range(len(drafts) + 1):
            p, made = _distribution(task, log_p[:, i, :], prefixes, ended), ~ended
            if i < len(drafts):
                tokens, q = drafts[i]
                rows = np.arange(len(tokens))
                kept = uniform() * q[rows, tokens] < p[rows, tokens]
                tokens = np.where(kept, tokens, _pick(_rest(p, q), uniform()))
            else:
                tokens, kept = _pick(p, uniform()), np.zeros_like(ended)
            tokens = np.where(made, tokens, task.pad)
            yield _step(task, tokens, made, kept & made, log_p[:, i, :], n_read, len(drafts))
            n_read = 0
            ids = np.concatenate([ids, tokens[:, None]], axis=1)
            prefixes = longer(prefixes, tokens, made)
            ended = ended | (made & np.isin(tokens, task.stop))
            left = n_prompt + task.max_length - ids.shape[1]
            if left == 0 or ended.all() or not kept[made].all():
                break
        n = ids.shape[1] - 1  # the newest token has been read by no model
        model.rewind(min(n, model.n))
        if left == 0 or ended.all():
            return
        drafts = _drafts(drafting, ids, prefixes, ended, uniform, min(lookahead, left - 1))
        block = np.stack([ids[:, -1], *(tokens for tokens, _ in drafts)], axis=1)
        log_p = model.verify(placed(block, task.prompt), placed(ended, task.prompt))


def _drafts(drafting, ids, prefixes, ended, uniform, k):
    """Return up to k pairs: tokens (batch,) of the draft, and what they are drawn from."""
    drafts, small = [], drafting.decoder
    if k and small.n:
        small.rewind(min(ids.shape[1] - 1, small.n))
    unread = ids[:, small.n :]
    for _ in range(k):
        if ended.all():
            break
        log_q = small.prefill(placed(unread, drafting.prompt), placed(ended, drafting.prompt))
        q = _distribution(drafting, log_q, prefixes, ended)
        tokens = _pick(q, uniform())
        drafts.append((tokens, q))
        prefixes = longer(prefixes, tokens, ~ended)
        ended = ended | np.isin(tokens, drafting.stop)
        unread = tokens[:, None]
    return drafts


def _distribution(task: Request, log_p, prefixes, ended):
    """Return what the next token is drawn from, (batch, V) in NumPy and float64."""
    xp = array_namespace(log_p)
    idle = placed(ended, log_p)
    log_p = xp.where(idle[:, None], xp.zeros_like(log_p), log_p)
    check_possible(log_p)
    scores = numbers_of("log_p", task.processed(log_p, prefixes, idle))
    return softmax_of(scores.astype(np.float64), axis=-1)


def _pick(p, u):
    """Return the first token whose sum of p, with all before it, exceeds u."""
    total = np.cumsum(p, axis=-1)
    token = np.count_nonzero(total <= u[:, None] * total[:, -1:], axis=-1)
    last = p.shape[-1] - 1 - np.argmax(p[:, ::-1] > 0, axis=-1)  # where rounding passes them all
    return np.minimum(token, last)


def _rest(p, q):
    """Return what p has beyond q; p itself where rounding leaves nothing."""
    rest = np.maximum(p - q, 0.0)
    return np.where(rest.sum(axis=-1, keepdims=True) > 0, rest, p)


def _step(task, tokens, made, drafted, log_p, n_read, n_drafted):
    xp = array_namespace(log_p)
    tokens, made, drafted = (placed(x, task.prompt) for x in (tokens, made, drafted))
    gains = xp.take_along_axis(log_p, tokens[:, None], axis=-1)[:, 0]
    gains = xp.where(made, gains, xp.zeros_like(gains))
    return Step(tokens, made, gains, n_read, drafted, n_drafted if n_read else 0)
