"""Arrays of any shape as the compiled loops read them: flat, with a place for every head.

Nothing of n_q · n_k numbers is made: a mask or a bias that is broadcast keeps a stride of 0, and
the ranges of keys that a rule lets queries see remain ranges.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from attnbook.arrays.array import Array, broadcast_shapes, dtype_name
from attnbook.arrays.intervals import Intervals

_NO_RANGES = (np.zeros((1, 1), np.int32), np.zeros((1, 1), np.int32))

QUERY, KEY, VALUE, MASK, BIAS, RANGES, OUTPUT = range(7)
"""The places of `Work.starts` along its first axis."""


class Work(NamedTuple):
    """What the loops read: flat arrays, where the rows of each head start in them, and strides."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: np.ndarray
    bias: np.ndarray
    range_starts: np.ndarray  # of the `Intervals`, int32, and their stops
    range_stops: np.ndarray
    starts: np.ndarray  # (7, heads, groups): of each of these, and of the rows of the output
    n_q: int
    n_k: int
    d_k: int
    d_v: int
    query_row: int
    key_row: int
    value_row: int
    mask_row: int
    bias_row: int
    mask_column: int
    bias_column: int
    n_ranges: int  # of a query: its row of them
    has_mask: bool
    has_bias: bool
    has_ranges: bool
    is_causal: bool
    scale: np.float32
    unit: np.float32  # of scores: 1, or what is left of the scale where queries are bfloat16


class Arranged(NamedTuple):
    """What the loops read, and the leading axes of the output and of the key heads."""

    work: Work
    leading: tuple[int, ...]
    of_keys: tuple[int, ...]


def arrange(query, key, value, mask, bias, scale, is_causal, repeats_are_shared=True, pairs=False):
    """Return the `Arranged` arrays; copies only what is not float32, or strangely strided.

    With `pairs`, query, key and value are the bits of bfloat16 numbers, and queries are scaled by
    a power of two alone, so that they remain such numbers. `mask` may be `Intervals`.

    Along the leading axes where neither key nor value changes, the queries share their keys: these
    axes are the groups, all others the heads. Keys that strides of 0 repeat along an axis are not
    shared if `repeats_are_shared` is False: each of them gets a gradient of its own.
    """
    (*_, n_q, d_k), (*_, n_k, d_v) = query.shape, value.shape
    leading = broadcast_shapes(*(tuple(x.shape[:-2]) for x in (query, key, value))) or ()
    vectors = [_rows(x, pairs) for x in (query, key, value)]
    deciding = vectors[1:] if repeats_are_shared else (key, value)
    shared = tuple(
        all(x.ndim < n_axes + 2 or x.shape[-n_axes - 2] == 1 for x in deciding)
        for n_axes in range(len(leading), 0, -1)
    )
    ranges = _NO_RANGES
    if isinstance(mask, Intervals):
        ranges, mask = (mask.starts, mask.stops), None
    hidden = np.zeros((1, 1), np.uint8) if mask is None else _once(mask).view(np.uint8)
    added = np.zeros((1, 1), np.float32) if bias is None else float32(_once(bias))
    d_k, d_v = max(d_k, 1), max(d_v, 1)
    n_ranges = ranges[0].shape[-1]
    matrices = ((n_q, d_k), (n_k, d_k), (n_k, d_v), (n_q, n_k), (n_q, n_k), (n_q, n_ranges))
    numbers, strides = zip(
        *(
            _flat(x, (*leading, *matrix))
            for x, matrix in zip((*vectors, hidden, added, ranges[0]), matrices, strict=True)
        ),
        strict=True,
    )
    starts = _starts(leading, shared, n_q, tuple(tuple(of[:-2]) for of in strides))
    unit = math.frexp(abs(scale))[0] if pairs and math.isfinite(scale) and scale else 1
    rows, columns = zip(*(of[-2:] for of in strides), strict=True)
    work = Work._make(
        (
            *(*numbers, _read_only(ranges[1].reshape(-1).view()), starts),
            *(n_q, n_k, d_k, d_v, *rows[:RANGES], columns[MASK], columns[BIAS], n_ranges),
            *(mask is not None, bias is not None, ranges is not _NO_RANGES, is_causal),
            *(np.float32(scale / unit), np.float32(unit)),
        )
    )
    of_keys = tuple(1 if both else n for n, both in zip(leading, shared, strict=True))
    return Arranged(work, leading, of_keys)


@functools.lru_cache(64)
def _starts(leading, shared, n_q, steps):
    """Return where the rows of each query head start, heads first, then groups: `Work.starts`."""
    axes = sorted(range(len(leading)), key=shared.__getitem__)
    indices = np.indices(leading).transpose(0, *(1 + axis for axis in axes))
    n_groups = math.prod(n for n, is_shared in zip(leading, shared, strict=True) if is_shared)
    rows_of_output = np.cumprod([n_q, *leading[:0:-1]])[::-1]  # between two along each axis
    steps = np.array([*steps, rows_of_output[: len(leading)]], np.int64)
    starts = steps.reshape(7, len(leading)) @ indices.reshape(len(leading), math.prod(leading))
    return _read_only(starts.reshape(7, -1 if n_groups else 0, n_groups))


def restored(x: np.ndarray, like: Array, exact: bool = False) -> Array:
    """Return `x` in the library of `like` and in its dtype, or in its own where it is `exact`.

    uint16 are the bits of bfloat16 numbers.
    """
    if isinstance(like, np.ndarray):
        return np.ascontiguousarray(x, None if exact else like.dtype)
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(x))
    if x.dtype == np.uint16:
        return tensor.view(torch.bfloat16)
    return tensor if exact else tensor.to(like.dtype)


def plain(x: Array) -> np.ndarray:
    """Return `x` as an array of NumPy, in a dtype that it has."""
    if isinstance(x, np.ndarray):
        return x
    tensor: Any = x  # of PyTorch
    tensor = tensor.detach().resolve_neg()
    return (tensor.float() if dtype_name(x.dtype) == "bfloat16" else tensor).numpy()


def float32(x: np.ndarray) -> np.ndarray:
    """Return `x` in float32, a copy only if it must be one."""
    return x.astype(np.float32, copy=False)


def _rows(x, bits=False):
    """Return `x` in float32 with contiguous rows, of width 1 and all 0 where it has no columns.

    Or return the bits of its bfloat16 numbers.
    """
    d = x.shape[-1]
    if d == 0:
        return np.zeros((1, 1), np.uint16 if bits else np.float32)
    x = _bits(x) if bits else float32(_once(x))
    if x.shape[-1] != d:
        x = np.broadcast_to(x, (*x.shape[:-1], d))
    return x if x.strides[-1] == x.itemsize else np.ascontiguousarray(x)


def _bits(x):
    """Return the bits of a bfloat16 tensor."""
    import torch

    return _once(x.detach().resolve_neg().view(torch.int16)).view(np.uint16)


def _once(x):
    """Return `x` as an array of NumPy, of size 1 along the axes where it only repeats itself."""
    steps = x.strides if isinstance(x, np.ndarray) else x.stride()
    if 0 in steps and 0 not in x.shape:
        x = x[tuple(slice(None) if step else slice(0, 1) for step in steps)]
    return plain(x)


def _flat(x, shape):
    """Return `x` as one row of numbers, and its strides, in numbers, as an array of `shape`."""
    size, n_axes = x.itemsize, len(shape)
    if not x.flags.aligned or any(step < 0 or step % size for step in x.strides):
        x = np.ascontiguousarray(x)
    strides = [step // size if n > 1 else 0 for step, n in zip(x.strides, x.shape, strict=True)]
    if x.flags.c_contiguous:
        numbers = x.reshape(-1).view()
    else:
        last = sum(step * (n - 1) for step, n in zip(strides, x.shape, strict=True))
        extent = last + 1 if x.size else 0
        numbers = np.lib.stride_tricks.as_strided(x, (extent,), (size,))
    return _read_only(numbers), [0] * (n_axes - x.ndim) + strides


def _read_only(x):
    x.flags.writeable = False
    return x
