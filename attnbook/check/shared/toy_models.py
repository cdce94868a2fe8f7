"""A toy language model whose every logit depends on the whole prefix and on its positions."""

import functools
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from attnbook import move

LONGEST = 32
"""How many tokens a toy reads at most. No case needs as many."""


class TooLong(ValueError):  # noqa: N818
    """A toy was given more tokens than any case needs: a decoder does not stop."""


@dataclass(frozen=True)
class Toy:
    """Called as ``toy(ids)``, it returns logits (..., n, V) in its library.

    It takes ids (..., n) as an array of any library or a list.
    """

    seed: int
    vocabulary: int = 7
    library: str = "numpy"

    def to(self, library: str) -> Self:
        return replace(self, library=library)

    def __call__(self, ids: Any) -> Any:
        given = _as_integers(ids)
        if given.ndim == 0:
            raise ValueError("ids must have shape (..., n), got ()")
        rows = given.reshape(-1, given.shape[-1]).tolist()
        logits = [
            [self.logits(tuple(enumerate(row[: i + 1]))) for i in range(len(row))] for row in rows
        ]
        table = np.array(logits, dtype=float).reshape(*given.shape, self.vocabulary)
        return self.at_home(table)

    def logits(self, read: tuple[tuple[int, int], ...]) -> np.ndarray:
        """Return the logits after tokens that were read as pairs of position and id."""
        if len(read) > LONGEST:
            raise TooLong(f"the model reads at most {LONGEST} tokens, got {len(read)}")
        return _logits(self.seed, self.vocabulary, read)

    def at_home(self, logits: np.ndarray) -> Any:
        """Return a copy in the library of the model."""
        return logits.copy() if self.library == "numpy" else move(logits.copy(), self.library)


@dataclass(frozen=True)
class ToyStep(Toy):
    """Called as ``step(token, position, cache)``, it returns logits (V,) and the new cache.

    The cache is None at first. Fed one token after the other it agrees with `Toy`.
    """

    def __call__(self, token: Any, position: Any, cache: Any) -> Any:  # type: ignore[override]
        given = _as_integers(token)
        if given.size != 1:
            raise ValueError(f"token must be one id, got shape {given.shape}")
        if cache is not None and not isinstance(cache, tuple):
            raise TypeError(f"cache must be None or what step returned, got {type(cache).__name__}")
        read = (*(cache or ()), (int(_as_integers(position)), int(given.reshape(-1)[0])))
        return self.at_home(self.logits(read)), read


@functools.cache
def _logits(seed: int, vocabulary: int, read: tuple[tuple[int, int], ...]) -> np.ndarray:
    seeds = [seed, *(number + 64 for pair in read for number in pair)]
    return np.random.default_rng(seeds).normal(size=vocabulary)


def _as_integers(ids: Any) -> np.ndarray:
    if isinstance(ids, (list, tuple)):
        ids = [_as_integers(x).tolist() for x in ids]
    elif not isinstance(ids, (int, float, np.generic, np.ndarray)):
        ids = move(ids, "numpy")
    given = np.asarray(ids)
    if given.dtype.kind not in "iu":
        raise TypeError(f"ids must be integers, got {given.dtype}")
    return given
