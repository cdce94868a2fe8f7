r"""What a layer with a state does beside the state: gates, decays, a short convolution, a norm.

.. math:: \sigma(x) = \frac{1}{1 + e^{-x}}, \qquad \operatorname{silu}(x) = x\,\sigma(x), \qquad
          \operatorname{softplus}(x) = \log(1 + e^x)
"""

import math
from typing import Annotated, NamedTuple

import numpy as np
from array_api_compat import device

from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.linear_attention.convolution import short_convolution


class LayerState(NamedTuple):
    """What a layer with a state has read: all that it needs to go on.

    Attributes
    ----------
    state : array, shape (..., h, d_k, d_v)
        The state of every head, of the dtype to compute in.
    inputs : array, shape (..., width - 1, channels)
        The last inputs of the convolution; of length 0 for a layer without one.
    """

    state: Annotated[Array, "... h d_k d_v"]
    inputs: Annotated[Array, "... m channels"]


def sigmoid_of(x: Array) -> Array:
    """Return σ(x), by tanh, since e⁻ˣ would overflow."""
    return 0.5 + 0.5 * array_namespace(x).tanh(0.5 * x)


def silu_of(x: Array) -> Array:
    """Return x σ(x)."""
    return x * sigmoid_of(x)


def softplus_of(x: Array) -> Array:
    """Return log(1 + eˣ), which never overflows."""
    xp = array_namespace(x)
    above = xp.where(x > 0, x, xp.zeros_like(x))
    return above + xp.log1p(xp.exp(-xp.abs(x)))


def unit_of(x: Array) -> Array:
    """Return rows of length 1, which keep their direction; a row of zeros stays one."""
    xp = array_namespace(x)
    wide = to_accumulate(x)
    wide = wide / xp.sqrt(xp.sum(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return xp.astype(wide, x.dtype, copy=False)


def root_mean_square_of(x: Array, epsilon: float) -> Array:
    """Return rows divided by the root of their mean square."""
    xp = array_namespace(x)
    return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + epsilon)


def only_shown(x: Array, shown: Array | None) -> Array:
    """Return `x` (..., n, d) with zeros at the tokens that the mask `shown` (..., n) hides."""
    if shown is None:
        return x
    xp = array_namespace(x)
    return xp.where(shown[..., None], x, xp.zeros_like(x))


def mixed_of(
    x: Array, filters: Array | None, bias: Array | None, before: Array | None
) -> tuple[Array, Array]:
    """Return what the convolution and SiLU make of `x`, and the inputs to go on from.

    Without filters nothing is mixed, and no input is kept.
    """
    if filters is None:
        return silu_of(x), x[..., :0, :]
    xp, width = array_namespace(x), filters.shape[0]
    shape = (*x.shape[:-2], width - 1, x.shape[-1])
    if before is None:
        before = xp.zeros(shape, dtype=x.dtype, device=device(x))
    y = short_convolution(x, filters, before=before)
    joined = xp.concat([before, x], axis=-2)
    last = joined[..., joined.shape[-2] - width + 1 :, :]
    return silu_of(y if bias is None else y + bias), last


def first_decays(rng: "np.random.Generator", n_heads: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw A_log and dt_bias as Mamba-2 does: A from 1 to 16, and Δ from 0.001 to 0.1."""
    step = np.exp(rng.uniform(math.log(1e-3), math.log(0.1), n_heads))
    return np.log(rng.uniform(1, 16, n_heads)), step + np.log(-np.expm1(-step))


def first_filters(rng: "np.random.Generator", width: int, channels: int) -> np.ndarray:
    """Draw filters uniform in ±1/√width, as PyTorch draws those of a convolution."""
    return rng.uniform(-1, 1, (width, channels)) / math.sqrt(width)
