r"""A Markov source: random sequences whose true distribution is known.

.. math:: P(x_{t+1} \mid x_1, \dots, x_t) = T[x_{t-k+1}, \dots, x_t, x_{t+1}]
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_array, check_int, check_positive, generator
from attnbook.data.ids import ids_of


@dataclass(frozen=True, eq=False)
class Markov:
    r"""A Markov source of order k over V symbols: the last k symbols determine the next one's odds.

    Attributes
    ----------
    transitions : float64 array T, shape (V,) * (k + 1)
        T[a, …, b, c] is the probability that c follows after a, …, b; every row sums to 1.
    stationary : float64 array, shape (V,) * k
        The probability π of every k consecutive symbols, which one step does not change. It is
        computed from `transitions` and not passed.

    Raises
    ------
    TypeError
        If `transitions` is not an array of real floating-point numbers.
    ValueError
        If its axes differ in length, its rows are not distributions, or it has more than one
        stationary distribution, because some symbols never lead back to others.

    Notes
    -----
    Cost: O(V³ᵏ) time to make it, because it solves the linear system π T = π.

    References
    ----------
    Cover and Thomas (2006), "Elements of information theory", chapter 4; chapter `training`.

    Examples
    --------
    >>> source = Markov(np.array([[0.9, 0.1], [0.5, 0.5]]))
    >>> source.stationary.round(4)
    array([0.8333, 0.1667])
    >>> round(source.entropy_rate(), 4)
    0.3864
    """

    transitions: Annotated[np.ndarray, "..."]
    stationary: Annotated[np.ndarray, "..."] = field(init=False)

    def __post_init__(self):
        T = self.transitions
        check_array("transitions", T)
        if not isinstance(T, np.ndarray) or T.dtype.kind != "f":
            raise TypeError(f"transitions must be a NumPy array of floats, got {_kind(T)}")
        if T.ndim < 2 or len(set(T.shape)) > 1 or T.size == 0:
            raise ValueError(
                f"transitions must have 2 axes or more of one length of at least 1, got {T.shape}"
            )
        T = T.astype(np.float64)
        if not ((T >= 0).all() and np.allclose(T.sum(axis=-1), 1, rtol=0, atol=1e-6)):
            raise ValueError("transitions must have rows that are at least 0 and sum to 1")
        object.__setattr__(self, "transitions", T / T.sum(axis=-1, keepdims=True))
        object.__setattr__(self, "stationary", _stationary(self.transitions))

    @property
    def n_symbols(self) -> int:
        """The number V of symbols, which are the ids 0 to V - 1."""
        return self.transitions.shape[-1]

    @property
    def order(self) -> int:
        """The number k of symbols that determine the distribution of the next one."""
        return self.transitions.ndim - 1

    def entropy_rate(self) -> float:
        r"""Return the entropy of the next symbol, given all symbols before it, in nats.

        It is :math:`-\sum \pi(s)\, T(s, c) \log T(s, c)`, the lowest mean cross-entropy that any
        model can reach, even if it sees the whole past.
        """
        log = np.log(np.where(self.transitions > 0, self.transitions, 1.0))  # 0 · log 0 is 0
        return float(-(self.stationary * (self.transitions * log).sum(axis=-1)).sum())

    def sample(
        self, rng: "np.random.Generator | int", n_sequences: int, length: int
    ) -> Annotated[np.ndarray, "n_sequences length"]:
        """Draw sequences that begin in the stationary distribution: int64, (n_sequences, length).

        `rng` is a numpy.random.Generator or a seed. All positions of a sequence have the same
        distribution, so from position k on, the mean cross-entropy of the true conditionals is the
        entropy rate.
        """
        numbers = generator(rng)
        n = check_int("n_sequences", n_sequences)
        length = check_int("length", length)
        steps = max(length, self.order)
        drawn = np.empty((n, steps), dtype=np.int64)
        begins = _draw(numbers, np.broadcast_to(self.stationary.ravel(), (n, self.stationary.size)))
        drawn[:, : self.order] = np.stack(np.unravel_index(begins, self.stationary.shape), axis=-1)
        for t in range(self.order, steps):
            context = tuple(drawn[:, t - self.order : t].T)
            drawn[:, t] = _draw(numbers, self.transitions[context])
        return drawn[:, :length]

    def conditional(self, ids: Annotated[Any, "... n"]) -> Annotated[np.ndarray, "... n v"]:
        """Return the true distribution of the next symbol at each position, shape (..., n, V).

        Row i is the distribution of ``ids[..., i + 1]`` given ``ids[..., : i + 1]``. As long as
        fewer than k symbols are known, the missing ones are averaged out under the stationary
        distribution; if the source never produces this beginning, the row is 0.
        """
        symbols = ids_of("ids", ids, ndim=None)
        if symbols.ndim == 0:
            raise ValueError("ids must have shape (..., n), got ()")
        if (most := symbols.max(initial=0)) >= self.n_symbols:
            raise ValueError(
                f"ids must be below the number of symbols, {self.n_symbols}, got {most}"
            )
        result = np.empty((*symbols.shape, self.n_symbols))
        for i in range(symbols.shape[-1]):
            known = min(i + 1, self.order)
            context = tuple(np.moveaxis(symbols[..., i + 1 - known : i + 1], -1, 0))
            result[..., i, :] = self._given(known)[context]
        return result

    def _given(self, known):
        """Return the distribution of the next symbol given the last `known` ones."""
        if known == self.order:
            return self.transitions
        joint = self.stationary[..., np.newaxis] * self.transitions
        joint = joint.sum(axis=tuple(range(self.order - known)))  # (V,) * (known + 1)
        total = joint.sum(axis=-1, keepdims=True)
        return joint / np.where(total == 0, 1, total)


def markov(
    rng: "np.random.Generator | int", n_symbols: int, *, order: int = 1, concentration: float = 1.0
) -> Markov:
    """Draw a random Markov source: each row of its transitions has a Dirichlet distribution.

    Parameters
    ----------
    rng : numpy.random.Generator or int
        The source of the random numbers; an int is a seed.
    n_symbols : int
        The number V of symbols, at least 1.
    order : int
        The number k of symbols that determine the distribution of the next one, at least 1.
    concentration : float
        The parameter of the symmetric Dirichlet distribution, above 0. At 1, all distributions are
        equally likely. Far below 1, few symbols are likely, so the source is easy to predict; far
        above 1, all symbols are nearly equally likely.

    Returns
    -------
    Markov

    Raises
    ------
    TypeError
        If an argument is not a number of its type.
    ValueError
        If `n_symbols` or `order` is below 1, or `concentration` is not above 0, or so far below 1
        that some symbols never lead back to others (see `Markov`).

    References
    ----------
    Chapter `training`.

    Examples
    --------
    >>> source = markov(0, n_symbols=5, order=2)
    >>> source.transitions.shape, source.stationary.shape
    ((5, 5, 5), (5, 5))
    >>> source.sample(1, n_sequences=3, length=7).shape
    (3, 7)
    """
    numbers = generator(rng)
    n, order = check_int("n_symbols", n_symbols, 1), check_int("order", order, 1)
    weight = check_positive("concentration", concentration)
    return Markov(numbers.dirichlet([weight] * n, size=(n,) * order))


def _stationary(T):
    """Solve π M = π and Σ π = 1, where M leads from k symbols to the next k."""
    *shape, v = T.shape
    n = T.size // v
    M = np.zeros((n, n))
    state = np.arange(n)[:, np.newaxis]
    M[state, state * v % n + np.arange(v)] = T.reshape(n, v)  # the first symbol falls out
    system = np.concatenate([M.T - np.eye(n), np.ones((1, n))])
    solution, _, rank, _ = np.linalg.lstsq(system, np.eye(n + 1)[n], rcond=None)
    if rank < n:
        raise ValueError(
            "transitions must have one stationary distribution, got several: "
            "some symbols never come back to others"
        )
    positive = np.maximum(solution, 0)
    return (positive / positive.sum()).reshape(shape)


def _draw(numbers, probabilities):
    """Draw one index from each row of `probabilities`, shape (n, V), by the inverse of its sum."""
    sums = np.cumsum(probabilities, axis=-1)
    sums /= sums[:, -1:]  # exactly 1 at the end, so that no draw falls beyond it
    return (numbers.random((len(sums), 1)) >= sums).sum(axis=-1)


def _kind(x):
    return str(x.dtype) if isinstance(x, np.ndarray) else type(x).__name__
