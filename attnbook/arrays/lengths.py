"""From lengths of sequences to masks, and where a new mask is to live."""

import array_api_compat
import numpy as np

from attnbook.arrays.arguments import check_array
from attnbook.arrays.array import array_namespace, library
from attnbook.arrays.move import move, numbers_of


def home(like):
    """Return the library of `like`, or NumPy, and the device."""
    if like is None:
        return array_api_compat.array_namespace(np.empty(0)), None
    check_array("like", like)
    return array_namespace(like), array_api_compat.device(like)


def first_keys(name, lengths, n, like):
    """Return True for the first `lengths` of `n` keys, shape (..., 1, n)."""
    counts = lengths_of(name, lengths)
    if (most := counts.max(initial=0)) > n:
        raise ValueError(f"{name} must be at most the number of keys, {n}, got {most}")
    if like is None and array_api_compat.is_array_api_obj(lengths):
        like = lengths
    return placed(np.arange(n) < counts[..., np.newaxis, np.newaxis], like)


def lengths_of(name, lengths):
    """Return `lengths` as a NumPy array of ints of at least 0, or raise."""
    counts = ints_of(name, lengths)
    if (least := counts.min(initial=0)) < 0:
        raise ValueError(f"{name} must be at least 0, got {least}")
    return counts


def ints_of(name, numbers):
    """Return `numbers` as a NumPy array of int64, or raise."""
    if array_api_compat.is_array_api_obj(numbers):
        ints = numbers_of(name, numbers)
    else:
        try:
            ints = np.asarray(numbers)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{name} must be ints in rows of one length, got others") from error
    if ints.size and ints.dtype.kind not in "iu":
        raise TypeError(f"{name} must be ints, got {ints.dtype}")
    if (most := ints.max(initial=0)) > np.iinfo(np.int64).max:  # an unsigned one, which would wrap
        raise ValueError(f"{name} must be at most 2**63 - 1, got {most}")
    return ints.astype(np.int64, copy=False)


def placed(x, like):
    """Return the NumPy array `x` in the library and on the device of `like`."""
    if like is None or isinstance(like, np.ndarray):
        return x
    _, device = home(like)
    return move(x, library(like), device=device)
