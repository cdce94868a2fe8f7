r"""Layer normalisation: every token on the same scale, by itself.

.. math:: \operatorname{LN}(x) = \gamma \odot \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} + b
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from attnbook.arrays.arguments import check_bool, check_float, check_floats, check_int, check_number
from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.arrays.weights import Weights

# The mathematics, of checked arrays.


def layer_norm_of(x: Array, weights: "LayerNormWeights") -> Array:
    xp = array_namespace(x)
    y = x if x.dtype in (xp.float32, xp.float64) else to_accumulate(x)
    y = y - xp.mean(y, axis=-1, keepdims=True)
    y = y / xp.sqrt(xp.mean(y * y, axis=-1, keepdims=True) + weights.epsilon)
    if weights.gain is not None:
        y = y * xp.astype(weights.gain, y.dtype, copy=False)
    if weights.bias is not None:
        y = y + xp.astype(weights.bias, y.dtype, copy=False)
    return xp.astype(y, x.dtype, copy=False)


# The weights, and the function, which checks what it is given.


@dataclass(frozen=True, eq=False)
class LayerNormWeights(Weights):
    """Gain and bias of one layer normalisation.

    Attributes
    ----------
    gain, bias : arrays, shape (d_model,), optional
        If the bias is None, nothing is added; if the gain is None, nothing is multiplied.
    epsilon : float
        Added to the variance under the square root, at least 0.

    Raises
    ------
    TypeError, ValueError
        If the arrays are not of one library, device, real floating dtype and length, or
        `epsilon` is not a number of at least 0.

    Examples
    --------
    >>> LayerNormWeights.init(3).gain
    array([1., 1., 1.])
    """

    token_widths = ("d_model",)

    gain: Annotated[Array, "d_model"] | None = None
    bias: Annotated[Array, "d_model"] | None = None
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        check_number("epsilon", self.epsilon)
        self.check_fields()
        arrays = self.arrays()
        lengths = {tuple(x.shape) for x in arrays.values()}
        for name, x in arrays.items():
            if x.ndim != 1 or len(lengths) > 1:
                got = " and ".join(f"{name} {tuple(x.shape)}" for name, x in arrays.items())
                raise ValueError(f"{name} must have shape (d_model,), got {got}")

    @classmethod
    def init(cls, d_model: int, *, bias: bool = True) -> "LayerNormWeights":
        """Return gains of 1 and biases of 0, as float64 NumPy arrays."""
        d_model = check_int("d_model", d_model, at_least=1)
        check_bool("bias", bias)
        return cls(np.ones(d_model), np.zeros(d_model) if bias else None)


def layer_norm(
    x: Annotated[Array, "... d_model"],
    gain: Annotated[Array, "d_model"] | None = None,
    bias: Annotated[Array, "d_model"] | None = None,
    *,
    epsilon: float = 1e-5,
) -> Annotated[Array, "... d_model"]:
    r"""Give every row mean 0 and variance 1, then scale and shift its features.

    .. math:: x_j' = \gamma_j \frac{x_j - \mu}{\sqrt{\sigma^2 + \varepsilon}} + b_j, \qquad
        \mu = \frac1d \sum_l x_l, \quad \sigma^2 = \frac1d \sum_l (x_l - \mu)^2

    Parameters
    ----------
    x : array, shape (..., d_model), real floating dtype
    gain, bias : arrays γ and b, shape (d_model,), optional
        1 and 0 by default.
    epsilon : float
        ε, at least 0. It keeps a row of equal numbers, whose variance is 0, finite.

    Returns
    -------
    array, shape (..., d_model)
        Has the dtype of `x`. float16 and bfloat16 are computed in float32 and rounded at the end.

    Raises
    ------
    TypeError
        If the inputs are not arrays of one library and one real floating dtype.
    ValueError
        If `x` has no axis or no features, `gain` or `bias` does not have shape (d_model,), or
        `epsilon` is negative, infinite or NaN.

    Notes
    -----
    The variance divides by d, not by d - 1. With epsilon = 0, a constant row becomes NaN or, if
    its mean is rounded, noise.
    Cost: O(d_model) per row.

    References
    ----------
    Ba, Kiros and Hinton (2016), "Layer normalization"; chapter `transformer`.

    Examples
    --------
    >>> import numpy as np
    >>> layer_norm(np.array([[1.0, 3.0], [10.0, 30.0]]), epsilon=0)
    array([[-1.,  1.],
           [-1.,  1.]])
    """
    check_rows(x, gain=gain, bias=bias)
    fields = {"gain": gain, "bias": bias, "epsilon": check_number("epsilon", epsilon)}
    return layer_norm_of(x, LayerNormWeights.unchecked(fields))


def check_rows(x: Array, **vectors: Array | None) -> None:
    """Raise unless the rows of `x` can be normalised, and each vector has a number a feature."""
    check_float("x", x)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have shape (..., d_model), d_model >= 1, got {tuple(x.shape)}")
    given = {name: v for name, v in vectors.items() if v is not None}
    check_floats(x=x, **given)
    for name, v in given.items():
        if tuple(v.shape) != (x.shape[-1],):
            raise ValueError(
                f"{name} must have shape ({x.shape[-1]},) to match x, got {tuple(v.shape)}"
            )
