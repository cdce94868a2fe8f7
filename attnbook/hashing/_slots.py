"""How many slots a table needs, what stands in free ones, and how far keys may be from home."""

import math
import numbers
from typing import Annotated

import numpy as np

from attnbook.arrays.arguments import Array

KEY, VALUE, DISPLACEMENT = 0, 1, 2  # the columns of the slots
EMPTY = -1  # the displacement of a free slot
MOST_SLOTS = 2**32  # as many as 31 bits of a hash times n_slots, an int64, allow


def free_slots(n_slots: int) -> Annotated[Array, "n_slots 3"]:
    """Return slots that are all free, or raise if they are more than `home_slot` can name."""
    if n_slots > MOST_SLOTS:
        raise ValueError(f"n_slots must be at most 2**32, got {n_slots}")
    return np.tile(np.array([0, 0, EMPTY], dtype=np.int64), (n_slots, 1))


def draw_mixer(random: np.random.Generator) -> Annotated[Array, "8 256"]:
    """Draw the random numbers of `home_slot`; below 2⁶², so that no hash is negative."""
    return random.integers(0, 2**62, size=(8, 256), dtype=np.int64)


def max_entries(n_slots: int, load_factor: float) -> int:
    """Return how many entries `n_slots` take: at least one stays free, where searches end."""
    return math.floor(load_factor * n_slots)


def slots_for(n: int, load_factor: float) -> int:
    """Return the least number of slots that takes `n` entries at this load factor."""
    n_slots = max(1, int(n / load_factor))
    while max_entries(n_slots, load_factor) < n:
        n_slots += 1
    return n_slots


def displacement_limit(n_slots: int, load_factor: float) -> int:
    """Return the displacement t that a share of n_slots·exp(−2(1 − load_factor) t) = e⁻⁴⁰ exceeds.

    The share is the tail of the waiting times of a queue; it bounds how often random keys get here.
    """
    return math.ceil((40 + math.log(n_slots)) / (2 * (1 - load_factor)))


def check_load_factor(load_factor: float) -> float:
    """Return `load_factor` as a float from 1/64 to below 1, or raise."""
    if isinstance(load_factor, bool) or not isinstance(load_factor, numbers.Real):
        raise TypeError(f"load_factor must be a real number, got {type(load_factor).__name__}")
    if not 1 / 64 <= float(load_factor) < 1:  # less would fill the memory with free slots
        raise ValueError(f"load_factor must be from 1/64 to below 1, got {load_factor}")
    return float(load_factor)
