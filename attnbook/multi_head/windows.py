"""Sliding windows and sinks: the keys that a query does not see, and one more that it does.

A mask, a bias and one more key express both, so every implementation of attention has them.
"""

import functools
from typing import Any, NamedTuple

import array_api_compat

from attnbook.arrays.array import Array, array_namespace, broadcast_shapes
from attnbook.arrays.attention_arguments import causal_mask
from attnbook.arrays.intervals import Intervals


class Keys(NamedTuple):
    """What the queries of all heads attend to, and how they see it."""

    key: Array  # (..., h_kv, n_k, d_k)
    value: Array  # (..., h_kv, n_k, d_v)
    mask: Any  # an array, intervals or None
    bias: Array | None
    is_causal: bool


def in_window(keys: Keys, n_q: int, window: int, *, as_ranges: bool) -> Keys:
    """Return the keys that a query may see, if it sees its own and the `window` - 1 before it.

    Where there is no mask yet it is made of intervals, if the kernel reads these (`as_ranges`).

    The last query is aligned with the last key. Keys that no query sees are left out, so one query
    reads at most `window` keys. A cache may have forgotten them already, so a mask or a bias may
    have more columns than there are keys: the last ones count.
    """
    key, value, mask, bias, is_causal = keys
    n_k = min(key.shape[-2], n_q + window - 1)
    key, value = (x[..., x.shape[-2] - n_k :, :] for x in (key, value))
    mask, bias = (_last_columns(x, n_k) for x in (mask, bias))
    if n_q == 1:  # it sees all that are left
        return Keys(key, value, mask, bias, is_causal)
    if n_k > window:
        if isinstance(mask, Intervals):
            seen = mask.made(("window", window), lambda: mask & _window(n_q, n_k, window))
            return Keys(key, value, seen, bias, False)
        if mask is None and as_ranges:
            return Keys(key, value, _window(n_q, n_k, window), bias, False)
        rows, columns = slice(0, n_q), slice(0, n_k)
        near = ~causal_mask(key, rows, columns, n_k - n_q - window)
        mask = near if mask is None else mask & near
    return Keys(key, value, mask, bias, True)


_window = functools.lru_cache(16)(Intervals.window)  # of one shape for all layers and steps


def _last_columns(x: Any, n: int) -> Any:
    """Return what a mask or a bias says about the last `n` keys."""
    if isinstance(x, Intervals):
        return x.made(("last", n), lambda: x.last_keys(n))
    return x if x is None or x.ndim == 0 or x.shape[-1] == 1 else x[..., x.shape[-1] - n :]


def with_sinks(keys: Keys, sinks: Array) -> Keys:
    """Return the keys with one more in front, whose score is the sink of the head.

    Its key and its value are zeros: it takes a share of the attention and gives nothing. With
    `is_causal`, a query that stands before all keys may not see it either; it gets zeros anyway.
    """
    key, value, mask, bias, is_causal = keys
    xp, n_k, n_heads = array_namespace(key), key.shape[-2], sinks.shape[0]
    home = {"device": array_api_compat.device(key)}
    key, value = (
        xp.concat([xp.zeros((*x.shape[:-2], 1, x.shape[-1]), dtype=x.dtype, **home), x], axis=-2)
        for x in (key, value)
    )
    if isinstance(mask, Intervals):
        mask = mask.made("first", mask.with_first_key)
    elif mask is not None:
        mask = xp.broadcast_to(mask, (*mask.shape[:-1], n_k))
        ones = xp.ones((*mask.shape[:-1], 1), dtype=mask.dtype, **home)
        mask = xp.concat([ones, mask], axis=-1)
    if bias is None:
        bias = xp.zeros((n_heads, 1, n_k), dtype=sinks.dtype, **home)
    shape = broadcast_shapes(tuple(bias.shape), (n_heads, 1, n_k))
    assert shape is not None  # as has been checked
    first = xp.broadcast_to(sinks[:, None, None], (*shape[:-1], 1))
    bias = xp.concat([first, xp.broadcast_to(bias, shape)], axis=-1)  # (..., h, n_q or 1, 1 + n_k)
    return Keys(key, value, mask, bias, is_causal)
