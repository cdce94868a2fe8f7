"""The sampler: draws tokens from the model's distribution after temperature and cuts."""

from collections.abc import Callable

import numpy as np

from attnbook.arrays.arguments import generator
from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.lengths import placed
from attnbook.decoding import processors
from attnbook.decoding.processors import Prefix, Processor, widened
from attnbook.single_head.softmax import softmax_of


def sampler(
    rng: "np.random.Generator | int",
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
) -> Callable[[Array, list[Prefix]], Array]:
    r"""Return a `choose` for `stream` that draws tokens.

    .. math:: p_T \propto p^{1/T}, \qquad
              \text{token} = \min\,\Bigl\{j : \sum_{l \le j} p_{T, l} > \xi\Bigr\}

    The tokens are sorted by descending probability, and ξ is uniform in [0, 1).

    Parameters
    ----------
    rng : numpy.random.Generator or int
        The source of ξ; an int is a seed.
    temperature : float
        The temperature T, above 0. A value below 1 favours likely tokens, and a value above 1
        flattens the distribution. T → 0 draws among the most likely tokens, of which
        `greedy_decode` takes the first.
    top_k : int, optional
        Keep the k most likely tokens, as `attnbook.decoding.top_k` does.
    top_p, min_p : float, optional
        Keep the nucleus, or the tokens that are likely enough compared with the most likely one, as
        `attnbook.decoding.top_p` and `attnbook.decoding.min_p` do.
    repetition_penalty : float
        The factor θ, above 0, which multiplies log p of all tokens of the prefix, including the
        prompt.

    Returns
    -------
    callable

    Raises
    ------
    TypeError, ValueError
        If a number is out of the range above. When the function draws, it raises a ValueError if a
        row of log p has no finite maximum.

    Notes
    -----
    The processors of the same names act in the order of Hugging Face's `generate`: repetition
    penalty, temperature, top_k, top_p, min_p. Each acts on the renormalised result of the one
    before.
    Sequence b of a batch takes its ξ from the b-th child that `rng` spawns, one ξ per token. So its
    tokens depend neither on the other sequences nor on where these end, and all libraries draw the
    same tokens. Scores in half precision are widened to float32 first. Rounding matters only if ξ
    falls on a boundary, or if two tokens are almost equally likely. Each new stream spawns new
    children.
    Cost: O(V log V) per token.

    References
    ----------
    Those of `temperature`, `top_k`, `top_p`, `min_p` and `repetition_penalty`; chapter `decoding`.

    Examples
    --------
    >>> choose = sampler(0, top_k=2)
    >>> log_p = np.log(np.array([[0.1, 0.2, 0.3, 0.4]]))
    >>> start = [Prefix(np.array([0]), np.array([], dtype=int))]
    >>> sorted({int(choose(log_p, start)[0]) for _ in range(50)})
    [2, 3]
    """
    rng = generator(rng)
    chosen = chain(temperature, top_k, top_p, min_p, repetition_penalty)
    children: list[np.random.Generator] = []
    drawn: list[np.ndarray] = []  # ξ of every sequence, one entry for each token made

    def choose(log_p, prefixes):
        log_p = widened(log_p)
        check_possible(log_p)
        made = [len(prefix.made) for prefix in prefixes]
        if max(made) == 0:  # the first step of a stream
            children[:] = rng.spawn(log_p.shape[0])
            drawn.clear()
        while len(drawn) <= max(made):
            drawn.append(np.array([child.random() for child in children]))
        numbers = np.array([drawn[n][b] for b, n in enumerate(made)])
        u = array_namespace(log_p).astype(placed(numbers, log_p), log_p.dtype, copy=False)
        for process in chosen:
            log_p = process(log_p, prefixes)
        return _draw(log_p, u)

    return choose


def chain(
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
) -> list[Processor]:
    """Return the processors that `sampler` applies, one after the other, or raise."""
    penalize, sharpen = (
        processors.repetition_penalty(repetition_penalty),
        processors.temperature(temperature),
    )
    made = [sharpen] if repetition_penalty == 1 else [penalize, sharpen]
    if top_k is not None:
        made.append(processors.top_k(top_k))
    if top_p is not None:
        made.append(processors.top_p(top_p))
    if min_p is not None:
        made.append(processors.min_p(min_p))
    return made


def check_possible(log_p: Array) -> None:
    """Raise unless every row has a finite best token."""
    xp = array_namespace(log_p)
    if not bool(xp.all(xp.isfinite(xp.max(log_p, axis=-1)))):
        raise ValueError(
            "log_probabilities must be finite for the best token of each row, got NaN or infinity: "
            "no token is possible"
        )


# The mathematics. These may rely on checked arguments.


def _draw(log_p, u):
    xp = array_namespace(log_p)
    order = xp.argsort(-log_p, axis=-1, stable=True)  # stable: equal ones as in the vocabulary
    p = softmax_of(xp.take_along_axis(log_p, order, axis=-1), axis=-1)
    total = xp.cumulative_sum(p, axis=-1)
    passed = total <= xp.expand_dims(u, axis=-1) * total[:, -1:]
    # u may have been rounded up to 1, which passes them all
    last = xp.count_nonzero(p, axis=-1) - 1
    rank = xp.minimum(xp.count_nonzero(passed, axis=-1), last)
    return xp.take_along_axis(order, rank[:, None], axis=-1)[:, 0]
