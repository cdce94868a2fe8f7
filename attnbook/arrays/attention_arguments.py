"""The arguments of attention: arrays that fit together, a mask, a bias, a scale, causality."""

import math

import array_api_compat

from attnbook.arrays.arguments import (
    check_array,
    check_bool,
    check_floats,
    check_number,
    check_same_home,
)
from attnbook.arrays.array import array_namespace, broadcast_shapes, dtype_name
from attnbook.arrays.intervals import Intervals


def check_leading_axes(arrays):
    """Raise ValueError unless the axes before the last two of all `arrays` broadcast."""
    leading: tuple[int, ...] = ()
    for name, x in arrays.items():
        own = tuple(x.shape[:-2])
        both = own if own == leading or not leading else broadcast_shapes(leading, own)
        if both is None:
            raise ValueError(
                f"{name} must have leading axes that broadcast with {leading}, "
                f"got shape {tuple(x.shape)}"
            )
        leading = both


def is_rule(mask):
    """Return whether a mask is a `masking.Rule`, whose room lies above this one."""
    return hasattr(mask, "intervals")


def visible(mask, n_q, n_k, is_causal, n_leading=0):
    """Return a mask and `is_causal` with `Intervals` in the place of a rule; arrays stay.

    The leading axes of a rule are the first of the `n_leading` axes before those of the scores.
    """
    if not hasattr(mask, "intervals"):  # as `is_rule`
        return mask, is_causal
    if mask.is_causal:
        return None, True
    seen = _among(mask.intervals(n_q, n_k), n_leading)
    if is_causal:  # kept, so that what kernels derive from it is made once a shape
        whole = seen
        seen = whole.made("causal", lambda: whole & Intervals.causal(n_q, n_k))
    return seen, False


def _among(seen, n_leading):
    """Return intervals whose leading axes are the first of so many, with axes of 1 after them."""
    missing = n_leading - (seen.ndim - 2)
    if seen.ndim == 2 or missing <= 0:
        return seen
    return seen.made(("among", missing), lambda: seen.with_axes(*[1] * missing))


def array_of(mask, n_q, n_k, like):
    """Return the array that a rule stands for, like `like`; arrays and None stay."""
    if not is_rule(mask):
        return mask
    made = mask.dense(n_q, n_k, like=like)
    missing = like.ndim - made.ndim
    if made.ndim == 2 or missing <= 0:
        return made
    return made[(..., *[None] * missing, slice(None), slice(None))]


def dense(mask, like):
    """Return the array that `Intervals` stand for; arrays and None stay."""
    return mask.dense(like) if isinstance(mask, Intervals) else mask


def and_causal(mask, query, key):
    """Return `mask`, if any, where a key comes no later than its query."""
    n_q, n_k = query.shape[-2], key.shape[-2]
    causal = causal_mask(query, slice(0, n_q), slice(0, n_k), n_k - n_q)
    return causal if mask is None else mask & causal


def causal_mask(like, rows, keys, offset):
    """Return which keys are no later than each query; query i stands at key i + `offset`."""
    xp, device = array_namespace(like), array_api_compat.device(like)
    own = xp.arange(rows.start + offset, rows.stop + offset, device=device)
    return xp.arange(keys.start, keys.stop, device=device) <= own[:, None]


def check_attention(arrays, mask, bias, scale, is_causal=False):
    """Return the scale of attention between `arrays`, or raise if anything does not fit."""
    check_floats(**arrays)
    for name, x in arrays.items():
        if x.ndim < 2:
            axes = {"query": "n_q, d_k", "key": "n_k, d_k", "value": "n_k, d_v"}[name]
            raise ValueError(f"{name} must have shape (..., {axes}), got {tuple(x.shape)}")
    query, key = arrays["query"], arrays["key"]
    (n_q, d_k), n_k = query.shape[-2:], key.shape[-2]
    if key.shape[-1] != d_k:
        raise ValueError(
            f"key must have shape (..., n_k, {d_k}) to match query, got {tuple(key.shape)}"
        )
    if "value" in arrays and arrays["value"].shape[-2] != n_k:
        raise ValueError(
            f"value must have shape (..., {n_k}, d_v) to match key, "
            f"got {tuple(arrays['value'].shape)}"
        )
    check_leading_axes(arrays)
    if mask is not None or bias is not None:
        scores_leading = broadcast_shapes(tuple(query.shape[:-2]), tuple(key.shape[:-2])) or ()
        scores_shape = (*scores_leading, n_q, n_k)
        if mask is not None:
            check_mask(mask, query, scores_shape)
        if bias is not None:
            check_bias(bias, query, scores_shape)
    if scale is not None:
        scale = check_number("scale", scale)
    elif d_k == 0:
        raise ValueError("query must have d_k of at least 1 for the default scale 1/√d_k, got 0")
    else:
        scale = 1 / math.sqrt(d_k)  # a Python float: np.sqrt would turn float32 into float64
    check_bool("is_causal", is_causal)
    return scale


def check_mask(mask, query, scores_shape, name="mask", query_name="query"):
    """Raise unless `mask` is boolean, lives where `query` does and broadcasts to the scores."""
    if hasattr(mask, "intervals"):
        mask = _among(mask.intervals(*scores_shape[-2:]), len(scores_shape) - 2)
    else:
        check_same_home(name, mask, query_name, query)
        check_boolean(mask, name)
    _check_broadcast(name, mask, scores_shape)


def check_boolean(mask, name="mask"):
    """Raise TypeError unless `mask` is a boolean array; say what it looks like instead."""
    if hasattr(mask, "intervals"):  # as `is_rule`
        raise TypeError(
            f"{name} must be a boolean array, since this function reads no rule: pass "
            f"rule.dense(n_q, n_k), got {mask}"
        )
    check_array(name, mask)
    if not array_namespace(mask).isdtype(mask.dtype, "bool"):
        raise TypeError(
            f"{name} must be boolean, True = may attend, "
            f"got {dtype_name(mask.dtype)}; {_mask_hint(mask)}"
        )


def _mask_hint(mask):
    xp = array_namespace(mask)
    try:
        if bool(xp.all((mask == 0) | (mask == 1))):
            return "it looks like a boolean mask stored as numbers: pass mask == 1"
        if xp.isdtype(mask.dtype, ("integral", "real floating")) and float(xp.min(mask)) < -1000:
            return "it looks like an additive mask: pass mask == 0, which is True where it allows"
    except Exception:  # numbers that cannot be read here: inside vmap, on the meta device
        pass
    return "numbers that are added to the scores go in bias="


def check_bias(bias, query, scores_shape=None, name="bias", query_name="query"):
    """Raise unless `bias` is an array like `query` that broadcasts to the scores."""
    check_array(name, bias)
    if array_namespace(bias).isdtype(bias.dtype, "bool"):
        raise TypeError(
            f"{name} must have the dtype of {query_name}, got bool; a mask of what may be attended "
            f"to goes in mask="
        )
    check_floats(**{query_name: query, name: bias})
    if scores_shape is not None:
        _check_broadcast(name, bias, scores_shape)


def _check_broadcast(name, x, scores_shape):
    if broadcast_shapes(tuple(x.shape), scores_shape) != scores_shape:
        raise ValueError(
            f"{name} must broadcast to the shape of the scores (..., n_q, n_k) = {scores_shape}, "
            f"got {tuple(x.shape)}"
        )
