r"""Root-mean-square normalisation: every token at the same length, by itself.

.. math:: \operatorname{RMSNorm}(x) =
          \gamma \odot \frac{x}{\sqrt{\tfrac1d \sum_j x_j^2 + \varepsilon}}
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from attnbook.arrays.arguments import check_int, check_number
from attnbook.arrays.array import Array, array_namespace, to_accumulate
from attnbook.arrays.weights import Weights
from attnbook.normalization.layer_norm import check_rows

# The mathematics, of checked arrays.


def rms_norm_of(x: Array, weights: "RMSNormWeights") -> Array:
    xp = array_namespace(x)
    y = x if x.dtype in (xp.float32, xp.float64) else to_accumulate(x)
    y = y / xp.sqrt(xp.mean(y * y, axis=-1, keepdims=True) + weights.epsilon)
    if weights.gain is not None:
        y = y * xp.astype(weights.gain, y.dtype, copy=False)
    return xp.astype(y, x.dtype, copy=False)


# The weights, and the function, which checks what it is given.


@dataclass(frozen=True, eq=False)
class RMSNormWeights(Weights):
    """Gain of one root-mean-square normalisation.

    Attributes
    ----------
    gain : array, shape (d_model,), optional
        If it is None, nothing is multiplied.
    epsilon : float
        Added to the mean of the squares under the square root, at least 0.

    Raises
    ------
    TypeError, ValueError
        If the gain is not an array of a real floating dtype with one axis, or `epsilon` is not a
        number of at least 0.

    Examples
    --------
    >>> RMSNormWeights.init(3).gain
    array([1., 1., 1.])
    """

    token_widths = ("d_model",)

    gain: Annotated[Array, "d_model"] | None = None
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        check_number("epsilon", self.epsilon)
        self.check_fields()
        if self.gain is not None and self.gain.ndim != 1:
            raise ValueError(f"gain must have shape (d_model,), got {tuple(self.gain.shape)}")

    @classmethod
    def init(cls, d_model: int) -> "RMSNormWeights":
        """Return gains of 1, as a float64 NumPy array."""
        return cls(np.ones(check_int("d_model", d_model, at_least=1)))


def rms_norm(
    x: Annotated[Array, "... d_model"],
    gain: Annotated[Array, "d_model"] | None = None,
    *,
    epsilon: float = 1e-5,
) -> Annotated[Array, "... d_model"]:
    r"""Divide every row by its root mean square, then scale its features.

    .. math:: x_j' = \gamma_j \frac{x_j}{\sqrt{\frac1d \sum_l x_l^2 + \varepsilon}}

    Parameters
    ----------
    x : array, shape (..., d_model), real floating dtype
    gain : array γ, shape (d_model,), optional
        1 by default.
    epsilon : float
        ε, at least 0. It keeps a row of zeros finite.

    Returns
    -------
    array, shape (..., d_model)
        Has the dtype of `x`. float16 and bfloat16 are computed in float32 and rounded at the end.

    Raises
    ------
    TypeError
        If the inputs are not arrays of one library and one real floating dtype.
    ValueError
        If `x` has no axis or no features, `gain` does not have shape (d_model,), or `epsilon` is
        negative, infinite or NaN.

    Notes
    -----
    RMSNorm keeps the division of `layer_norm` but leaves out the mean and the bias, so a row whose
    mean is 0 is normalised in the same way by both. With epsilon = 0, a row of zeros becomes NaN.
    The default epsilon of ``torch.nn.RMSNorm`` is different: it is the distance from 1 to the next
    number of the dtype.
    Cost: O(d_model) per row.

    References
    ----------
    Zhang and Sennrich (2019), "Root mean square layer normalization".

    Examples
    --------
    >>> import numpy as np
    >>> rms_norm(np.array([[3.0, 4.0, 0.0, 0.0], [0.3, 0.4, 0.0, 0.0]]), epsilon=0)
    array([[1.2, 1.6, 0. , 0. ],
           [1.2, 1.6, 0. , 0. ]])
    """
    check_rows(x, gain=gain)
    fields = {"gain": gain, "epsilon": check_number("epsilon", epsilon)}
    return rms_norm_of(x, RMSNormWeights.unchecked(fields))
