"""Arrays of any shape as the compiled loops read them: flat, with a place for every head.

Nothing of n_q · n_k numbers is made: a mask or a bias that is broadcast keeps a stride of 0.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from attnbook.arrays.arguments import Array, broadcast_shapes, dtype_name, library
from attnbook.kernels.numba_loops.panels import Work


class Arranged(NamedTuple):
    """What the loops read, the leading axes of the output and its width."""

    work: Work
    leading: tuple[int, ...]
    d_v: int


def arrange(query, key, value, mask, bias, scale, is_causal) -> Arranged:
    """Return what the loops read; copies only what is not float32, or strangely strided.

    Along the leading axes where neither key nor value changes, the queries share their keys: these
    axes are the groups, all others the heads.
    """
    (*_, n_q, d_k), (*_, n_k, d_v) = query.shape, value.shape
    leading = broadcast_shapes(*(tuple(x.shape[:-2]) for x in (query, key, value))) or ()
    q, k, v = _matrices(query), _matrices(key), _matrices(value)
    shared = tuple(
        all(x.ndim < n_axes + 2 or x.shape[-n_axes - 2] == 1 for x in (k, v))
        for n_axes in range(len(leading), 0, -1)
    )
    indices, n_groups = _indices(leading, shared)
    steps = []

    def flat(x, *last):
        """Return the numbers of `x` and the strides of its last two axes, and note the others."""
        numbers, *strides, row, column = _flat(x, (*leading, *last))
        steps.append(strides)
        return numbers, row, column

    q_numbers, q_row, _ = flat(q, n_q, q.shape[-1])
    k_numbers, k_row, _ = flat(k, n_k, k.shape[-1])
    v_numbers, v_row, _ = flat(v, n_k, v.shape[-1])
    hidden = np.zeros((1, 1), np.uint8) if mask is None else _once(mask).view(np.uint8)
    added = np.zeros((1, 1), np.float32) if bias is None else _as_float32(_once(bias))
    mask_numbers, mask_row, mask_column = flat(hidden, n_q, n_k)
    bias_numbers, bias_row, bias_column = flat(added, n_q, n_k)
    rows_of_output = np.cumprod([n_q, *leading[:0:-1]])[::-1]  # between two along each axis
    steps.append(list(rows_of_output[: len(leading)]))
    starts = np.array(steps, np.int64).reshape(6, len(leading)) @ indices
    work = Work(
        query=q_numbers,
        key=k_numbers,
        value=v_numbers,
        mask=mask_numbers,
        bias=bias_numbers,
        starts=_read_only(starts.reshape(6, -1 if n_groups else 0, n_groups)),
        n_q=n_q,
        n_k=n_k,
        d_k=max(d_k, 1),
        d_v=max(d_v, 1),
        query_row=q_row,
        key_row=k_row,
        value_row=v_row,
        mask_row=mask_row,
        mask_column=mask_column,
        bias_row=bias_row,
        bias_column=bias_column,
        has_mask=mask is not None,
        has_bias=bias is not None,
        is_causal=is_causal,
        scale=np.float32(scale),
    )
    return Arranged(work, leading, d_v)


@functools.lru_cache(16)
def _indices(leading, shared):
    """Return the index along every leading axis of each query head, heads first, then groups."""
    axes = sorted(range(len(leading)), key=shared.__getitem__)
    indices = np.indices(leading).transpose(0, *(1 + axis for axis in axes))
    n_groups = math.prod(n for n, is_shared in zip(leading, shared, strict=True) if is_shared)
    return indices.reshape(len(leading), math.prod(leading)), n_groups


def restored(x: np.ndarray, like: Array, exact: bool = False) -> Array:
    """Return `x` in the library of `like` and in its dtype, or in float32 where it is `exact`."""
    if library(like) == "numpy":
        return x if exact else x.astype(like.dtype, copy=False)
    import torch

    tensor = torch.from_numpy(x)
    return tensor if exact else tensor.to(like.dtype)


def _matrices(x):
    """Return `x` in float32 with contiguous rows, of width 1 and all 0 where it has no columns."""
    d = x.shape[-1]
    if d == 0:
        return np.zeros((1, 1), np.float32)
    x = _as_float32(_once(x))
    if x.shape[-1] != d:
        x = np.broadcast_to(x, (*x.shape[:-1], d))
    return x if x.strides[-1] == x.itemsize else np.ascontiguousarray(x)


def _as_float32(x):
    return x.astype(np.float32, copy=False)


def _once(x):
    """Return `x` as an array of NumPy, of size 1 along the axes where it only repeats itself."""
    tensor = library(x) == "torch"
    steps = x.stride() if tensor else x.strides
    if 0 in steps and 0 not in x.shape:
        x = x[tuple(slice(None) if step else slice(0, 1) for step in steps)]
    if not tensor:
        return x
    x = x.detach().resolve_neg()
    return (x.float() if dtype_name(x.dtype) == "bfloat16" else x).numpy()


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
    return _read_only(numbers), *[0] * (n_axes - x.ndim), *strides


def _read_only(x):
    x.flags.writeable = False
    return x
