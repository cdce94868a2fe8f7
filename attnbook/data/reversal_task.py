"""Sequences and their reversal: the task whose ideal attention is known."""

from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import check_int, generator
from attnbook.data.vocabulary import Vocabulary


def reversal(
    rng: "np.random.Generator | int",
    n_pairs: int,
    *,
    length: int | tuple[int, int] = (3, 12),
    n_symbols: int = 10,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Draw random sequences, and return them with their reversals.

    Parameters
    ----------
    rng : numpy.random.Generator or int
        The source of the random numbers; an int is a seed.
    n_pairs : int
    length : int or pair of ints
        The number of symbols of every sequence, at least 1; or the smallest and the largest number,
        in which case all lengths between them are equally likely.
    n_symbols : int
        The ids are 3, …, n_symbols + 2, all equally likely, because 0, 1 and 2 are pad, start and
        stop, as in `Vocabulary`. A model for the task needs a vocabulary of n_symbols + 3.

    Returns
    -------
    pair of lists of n_pairs int64 arrays
        The sequences and their reversals, which are sources and targets for `Batches`.

    Raises
    ------
    TypeError
        If a number is not an int.
    ValueError
        If a number is below 1 (below 0 for `n_pairs`), or the smallest length is above the largest.

    Notes
    -----
    Short sequences repeat, because there are only n_symbols**length different ones.
    Cost: O(n_pairs · length) time and memory.

    References
    ----------
    Chapter `training`.

    Examples
    --------
    >>> sources, targets = reversal(0, 2, length=(3, 5))
    >>> sources
    [array([8, 5, 6, 3, 3]), array([ 3,  4, 11,  9])]
    >>> targets[1]
    array([ 9, 11,  4,  3])
    """
    numbers = generator(rng)
    n_pairs, n_symbols = check_int("n_pairs", n_pairs), check_int("n_symbols", n_symbols, 1)
    least, most = _bounds(length)
    first = Vocabulary.stop + 1
    sources = [
        numbers.integers(first, first + n_symbols, size=n)
        for n in numbers.integers(least, most, size=n_pairs, endpoint=True)
    ]
    return sources, [source[::-1].copy() for source in sources]


def _bounds(length: Any) -> tuple[int, int]:
    if not isinstance(length, tuple):
        n = check_int("length", length, at_least=1)
        return n, n
    if len(length) != 2:
        raise ValueError(f"length must be an int or a pair of ints, got {length}")
    least, most = check_int("length[0]", length[0], 1), check_int("length[1]", length[1], 1)
    if least > most:
        raise ValueError(f"length must be (least, greatest), got {length}")
    return least, most


def reversal_attention(n: int) -> Annotated[np.ndarray, "n n"]:
    """Return the attention that reverses n symbols: each step attends to the one that it writes.

    Parameters
    ----------
    n : int
        The number of symbols of the sequence.

    Returns
    -------
    float64 array, shape (n, n)
        1 on the anti-diagonal and 0 elsewhere: row i, the step that writes symbol i of the target,
        attends to column n - 1 - i of the source. This is the ideal cross-attention of a decoder
        if the memory at each position represents the symbol of that position. The step that writes
        the stop token comes after these; it may attend anywhere, so it has no row.

    Raises
    ------
    TypeError, ValueError
        If `n` is not an int of at least 0.

    Examples
    --------
    >>> reversal_attention(3)
    array([[0., 0., 1.],
           [0., 1., 0.],
           [1., 0., 0.]])
    """
    return np.eye(check_int("n", n))[::-1].copy()
