"""The sampler: draws one token from the model's probabilities, sharpened or cut."""

from collections.abc import Callable

import numpy as np

from attnbook.arrays.arguments import check_int, check_number, generator
from attnbook.arrays.array import Array, array_namespace, dtype_name, library
from attnbook.arrays.lengths import home
from attnbook.arrays.move import move
from attnbook.single_head.softmax import softmax_of


def sampler(
    rng: "np.random.Generator | int",
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Callable[[Array, np.ndarray], Array]:
    r"""Return a `choose` for `stream` that draws tokens.

    .. math:: p_T \propto p^{1/T}, \qquad
              \text{token} = \min\,\Bigl\{j : \sum_{l \le j} p_{T, l} > \xi\Bigr\}

    The tokens stand in the order of falling probability, and ξ is uniform in [0, 1).

    Parameters
    ----------
    rng : numpy.random.Generator or int
        Where ξ comes from; an int is a seed.
    temperature : float
        T, above 0. Below 1 it favours likely tokens, above 1 it evens them out. T → 0 draws among
        the most likely ones, of which `greedy_decode` takes the first.
    top_k : int, optional
        Keep the k most likely tokens, at least 1, and of equal ones the first in the vocabulary. A
        k beyond the vocabulary keeps all.
    top_p : float, optional
        Keep the fewest most likely tokens whose probabilities come to at least this number, which
        is above 0 and at most 1. The most likely token is always kept.

    Returns
    -------
    callable

    Raises
    ------
    TypeError, ValueError
        If a number is not as above. When it draws, ValueError if log p has a row without a finite
        best token.

    Notes
    -----
    Temperature comes first, then top_k, then top_p on what is left, each renormalised.
    Sequence b of a batch takes its u from the b-th child that `rng` spawns, one u for each token.
    So its tokens depend neither on the other sequences nor on where they end, and all libraries
    draw the same. Rounding matters only where u falls on a boundary, where the probabilities come
    to top_p but for rounding, or where two tokens are as good as equal. Each new stream spawns new
    children.
    Cost: O(V log V) a token.

    References
    ----------
    Fan et al. (2018), "Hierarchical neural story generation" (top-k); Holtzman et al. (2020), "The
    curious case of neural text degeneration" (top-p); chapter `decoding`.

    Examples
    --------
    >>> choose = sampler(0, top_k=2)
    >>> log_p = np.log(np.array([[0.1, 0.2, 0.3, 0.4]]))
    >>> sorted({int(choose(log_p, np.zeros(1))[0]) for _ in range(50)})
    [2, 3]
    """
    rng = generator(rng)
    if check_number("temperature", temperature) == 0:
        raise ValueError(
            "temperature must be above 0, got 0; greedy_decode takes the most likely token"
        )
    if top_k is not None:
        top_k = check_int("top_k", top_k, at_least=1)
    if top_p is not None and not 0 < check_number("top_p", top_p) <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
    children: list[np.random.Generator] = []
    drawn: list[np.ndarray] = []  # u of every sequence, one entry for each token made

    def choose(log_p, made):
        _check_possible(log_p)
        if np.max(made) == 0:  # the first step of a stream
            children[:] = rng.spawn(log_p.shape[0])
            drawn.clear()
        while len(drawn) <= np.max(made):
            drawn.append(np.array([child.random() for child in children]))
        numbers = np.array([drawn[int(n)][b] for b, n in enumerate(made)])
        _, device = home(log_p)
        u = move(numbers, library(log_p), device=device, dtype=dtype_name(log_p.dtype))
        return _draw(log_p, u, temperature, top_k, top_p)

    return choose


def _check_possible(log_p):
    xp = array_namespace(log_p)
    if not bool(xp.all(xp.isfinite(xp.max(log_p, axis=-1)))):
        raise ValueError(
            "log_probabilities must be finite for the best token of each row, got NaN or infinity: "
            "no token is possible"
        )


# The mathematics. These may rely on checked arguments.


def _draw(log_p, u, temperature, top_k, top_p):
    xp = array_namespace(log_p)
    order = xp.argsort(-log_p, axis=-1, stable=True)  # stable: equal ones as in the vocabulary
    ranked = xp.take_along_axis(log_p, order, axis=-1)
    # beyond 1e-30 and 1e30, which float32 can hold, nothing changes any more
    p = softmax_of((ranked - ranked[:, :1]) / min(max(temperature, 1e-30), 1e30), axis=-1)
    if top_k is not None:
        p = xp.where(xp.cumulative_sum(xp.ones_like(p), axis=-1) <= top_k, p, xp.zeros_like(p))
        p = p / xp.sum(p, axis=-1, keepdims=True)
    if top_p is not None and top_p < 1:
        total = xp.cumulative_sum(p, axis=-1)
        before = xp.concat([xp.zeros_like(total[:, :1]), total[:, :-1]], axis=-1)
        p = xp.where(before < top_p, p, xp.zeros_like(p))
    total = xp.cumulative_sum(p, axis=-1)
    passed = total <= xp.expand_dims(u, axis=-1) * total[:, -1:]
    # u may have been rounded up to 1, which passes them all
    last = xp.count_nonzero(p, axis=-1) - 1
    rank = xp.minimum(xp.count_nonzero(passed, axis=-1), last)
    return xp.take_along_axis(order, rank[:, None], axis=-1)[:, 0]
