r"""Numbers in a few bits: codes of one group share a smallest number and a step.

.. math:: c = \operatorname{round}\Bigl(\frac{x - z}{s}\Bigr), \qquad \hat x = z + s\,c, \qquad
          z = \min x, \qquad s = \frac{\max x - \min x}{2^b - 1}
"""

import math
from dataclasses import dataclass
from typing import Annotated

from array_api_compat import device

from attnbook.arrays.arguments import check_axis, check_float, check_int
from attnbook.arrays.array import Array, array_namespace, to_accumulate

BITS = (2, 4, 8)
"""The widths of a code, of which whole ones fit into a byte."""


@dataclass(frozen=True)
class Quantized:
    """An array as codes of a few bits, with a smallest number and a step for each group.

    `quantize` makes one, and `dequantize` returns the numbers. The quantised axis comes last in all
    of its arrays, cut into groups.

    Attributes
    ----------
    codes : uint8 array, shape (..., n_groups, bytes)
        The codes of a group, 8 / `bits` in each byte with the first in the lowest bits. Bits after
        the last code are 0.
    step : array, shape (..., n_groups, 1)
        s, in the dtype of the numbers; 0 for a group of equal numbers.
    zero : array, shape (..., n_groups, 1)
        z, the smallest number of the group.
    bits : int
        b, the width of a code.
    axis : int
        The quantised axis of the numbers, negative.
    group : int
        How many numbers make a group.
    """

    codes: Array
    step: Array
    zero: Array
    bits: int
    axis: int
    group: int

    @property
    def nbytes(self) -> int:
        """The memory of codes, steps and zeros in bytes."""
        return sum(map(bytes_of, (self.codes, self.step, self.zero)))


def bytes_of(x: Array) -> int:
    """Return the memory of the numbers of an array."""
    xp = array_namespace(x)
    bits = xp.iinfo(x.dtype).bits if xp.isdtype(x.dtype, "integral") else xp.finfo(x.dtype).bits
    return math.prod(x.shape) * bits // 8


# The mathematics, of checked arguments.


def packed(codes: Array, bits: int) -> Array:
    """Return uint8 codes (..., n) in bytes (..., ⌈n · bits / 8⌉), the first in the lowest bits."""
    xp, per = array_namespace(codes), 8 // bits
    *lead, n = codes.shape
    if missing := -n % per:
        rest = xp.zeros((*lead, missing), dtype=codes.dtype, device=device(codes))
        codes = xp.concat([codes, rest], axis=-1)
    parts = xp.reshape(codes, (*lead, -(-n // per), per))
    whole = parts[..., 0]
    for i in range(1, per):
        whole = whole | (parts[..., i] << (i * bits))
    return whole


def unpacked(whole: Array, bits: int, n: int) -> Array:
    """Return the first n codes of the bytes that `packed` made."""
    xp, per = array_namespace(whole), 8 // bits
    if per == 1:
        return whole
    parts = [(whole >> (i * bits)) & (2**bits - 1) for i in range(per)]
    return xp.reshape(xp.stack(parts, axis=-1), (*whole.shape[:-1], whole.shape[-1] * per))[..., :n]


def quantized(x: Array, bits: int, axis: int, group: int) -> Quantized:
    """Return the codes of finite numbers; `axis` is negative, and `group` divides its length."""
    xp, dtype, top = array_namespace(x), x.dtype, 2**bits - 1
    x = xp.moveaxis(to_accumulate(x), (axis,), (-1,))
    x = xp.reshape(x, (*x.shape[:-1], x.shape[-1] // group, group))
    low, high = (reduce(x, axis=-1, keepdims=True) for reduce in (xp.min, xp.max))
    step = xp.astype((high - low) / top, dtype)  # codes are for the step that is kept
    divisor = xp.astype(step, x.dtype)
    codes = (x - low) / xp.where(divisor == 0, xp.ones_like(divisor), divisor)
    codes = xp.astype(xp.clip(xp.round(codes), 0, top), xp.uint8)
    return Quantized(packed(codes, bits), step, xp.astype(low, dtype), bits, axis, group)


def dequantized(q: Quantized) -> Array:
    """Return the numbers that the codes stand for."""
    xp = array_namespace(q.codes)
    step, zero = to_accumulate(q.step), to_accumulate(q.zero)
    codes = xp.astype(unpacked(q.codes, q.bits, q.group), step.dtype)
    x = xp.astype(zero + step * codes, q.step.dtype, copy=False)
    x = xp.reshape(x, (*x.shape[:-2], x.shape[-2] * q.group))
    return xp.moveaxis(x, (-1,), (q.axis,))


# The functions, which check what they are given.


def quantize(
    x: Annotated[Array, "..."], bits: int, *, axis: int = -1, group: int | None = None
) -> Quantized:
    r"""Quantise an array: a code of a few bits for each number, and two numbers for each group.

    .. math:: c = \operatorname{round}\Bigl(\frac{x - z}{s}\Bigr), \qquad
              z = \min x, \qquad s = \frac{\max x - \min x}{2^b - 1}

    with the minimum and the maximum over a group of numbers that follow one another along `axis`.

    Parameters
    ----------
    x : array, shape (...), real floating dtype
        Finite numbers; `axis` has at least one.
    bits : int
        b: 2, 4 or 8.
    axis : int
        The axis along which numbers share a step. For keys (..., n, d_k), ``axis=-2`` gives each
        channel steps of its own, and for values ``axis=-1`` gives each token a step of its own.
    group : int, optional
        How many numbers share a step, a divisor of the length of `axis`; by default all of them.

    Returns
    -------
    Quantized

    Raises
    ------
    TypeError
        If `x` is not such an array, or a number is not an int.
    ValueError
        If `bits` is not one of the above, `axis` is out of range or empty, `group` does not divide
        its length, or a number is NaN or infinite.

    Notes
    -----
    This is **asymmetric** quantisation: z makes use of all codes where the numbers of a group lie
    on one side of 0. The error of a number is at most half a step, up to rounding and as long as
    max x - min x and the step are normal numbers of the dtype. A group of equal numbers has no
    error. Quantising the result of `dequantize` again gives the same codes.
    Keys have a few channels of large numbers, which would spoil the step of a whole token, so
    channels get steps of their own; values have none.
    Cost: a few passes over `x`. Memory: b bits for each number, and two numbers for each group.

    References
    ----------
    Liu et al. (2024), "KIVI: A tuning-free asymmetric 2bit quantization for KV cache"; chapter
    `variants`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[-1.0, 0.2, 2.0], [5.0, 5.0, 5.0]])
    >>> q = quantize(x, 4)
    >>> q.step[:, 0, 0], q.zero[:, 0, 0], q.codes.shape
    (array([0.2, 0. ]), array([-1.,  5.]), (2, 1, 2))
    >>> dequantize(q).round(3)
    array([[-1. ,  0.2,  2. ],
           [ 5. ,  5. ,  5. ]])
    """
    check_float("x", x)
    check_bits(bits)
    axis = check_axis(axis, x.ndim) - x.ndim
    n = x.shape[axis]
    if n == 0:
        raise ValueError(f"x must have at least one number along axis {axis}, got {tuple(x.shape)}")
    group = n if group is None else check_int("group", group, at_least=1)
    if n % group:
        raise ValueError(f"group must divide the length {n} of axis {axis}, got {group}")
    check_finite("x", x)
    return quantized(x, int(bits), axis, group)


def dequantize(q: Quantized) -> Annotated[Array, "..."]:
    r"""Return the numbers that the codes of an array stand for.

    .. math:: \hat x = z + s\,c

    Parameters
    ----------
    q : Quantized
        What `quantize` returned.

    Returns
    -------
    array of the shape and dtype of what was quantised

    Raises
    ------
    TypeError
        If `q` is not a `Quantized`.

    Notes
    -----
    Half precision is computed in float32. Cost: a few passes.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(0.0, 1.0, 7)
    >>> float(np.max(np.abs(dequantize(quantize(x, 8)) - x))) <= 0.5 / 255
    True
    """
    if not isinstance(q, Quantized):
        raise TypeError(f"q must be a Quantized, got {type(q).__name__}")
    return dequantized(q)


def check_bits(bits: int) -> int:
    """Return `bits`, or raise unless it is a width of codes."""
    if check_int("bits", bits) not in BITS:
        raise ValueError(f"bits must be 2, 4 or 8, got {bits}")
    return int(bits)


def check_finite(name: str, x: Array) -> None:
    """Raise ValueError if a number of `x` is NaN or infinite."""
    xp = array_namespace(x)
    if not bool(xp.all(xp.isfinite(x))):
        raise ValueError(f"{name} must be finite to be quantised, got NaN or infinity")
