r"""The feed-forward sublayer: two matrices with a non-linearity between, the same for every token.

.. math:: \operatorname{FF}(x) = \phi(x W_1 + b_1)\, W_2 + b_2
"""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from attnbook.arrays.arguments import (
    check_bool,
    check_choice,
    check_float,
    check_floats,
    check_int,
    generator,
)
from attnbook.arrays.array import Array, accumulation_dtype, array_namespace
from attnbook.arrays.erf import erf
from attnbook.arrays.projections import check_width, project
from attnbook.arrays.weights import Weights, check_part

ACTIVATIONS = ("relu", "gelu")


# The mathematics, of checked arrays.


def feed_forward_of(x, weights, drop=None):
    """Return the output, and None: there is nothing else, such as attention weights."""
    hidden = project(x, weights.W_1, weights.b_1)  # (..., n, d_ff)
    hidden = relu_of(hidden) if weights.activation == "relu" else gelu_of(hidden)
    if drop is not None:
        hidden = drop(hidden)
    return project(hidden, weights.W_2, weights.b_2), None


def relu_of(x):
    xp = array_namespace(x)
    return xp.where(x <= 0, xp.zeros_like(x), x)  # maximum would have the gradient 1/2 at 0


def gelu_of(x):
    xp = array_namespace(x)
    wide = xp.astype(x, accumulation_dtype(xp, x.dtype), copy=False)
    y = wide * (0.5 * (1 + erf(wide / math.sqrt(2))))
    return xp.astype(y, x.dtype, copy=False)


# The weights, and the functions, which check what they are given.


@dataclass(frozen=True, eq=False)
class FeedForwardWeights(Weights):
    """The two matrices of the feed-forward sublayer, and the name of what stands between them.

    Attributes
    ----------
    W_1 : array, shape (d_model, d_ff)
    b_1 : array, shape (d_ff,), optional
    W_2 : array, shape (d_ff, d_out)
        d_out is d_model inside a transformer layer.
    b_2 : array, shape (d_out,), optional
    activation : str
        ``"relu"`` or ``"gelu"``.

    Raises
    ------
    TypeError, ValueError
        If the arrays are not of one library, device and real floating dtype, their shapes do not
        fit together, or `activation` is unknown.

    Examples
    --------
    >>> FeedForwardWeights.init(0, d_model=4, d_ff=16).W_1.shape
    (4, 16)
    """

    token_widths = ("d_model", "d_out")

    W_1: Annotated[Array, "d_model d_ff"]
    b_1: Annotated[Array, "d_ff"] | None
    W_2: Annotated[Array, "d_ff d_out"]
    b_2: Annotated[Array, "d_out"] | None
    activation: str = "relu"

    def __post_init__(self):
        self.check_fields()
        check_choice("activation", self.activation, ACTIVATIONS)
        arrays = self.arrays()
        d_ff, d_out = self.W_2.shape
        expected = {"W_1": (self.W_1.shape[0], d_ff), "b_1": (d_ff,), "b_2": (d_out,)}
        for name, shape in expected.items():
            if name in arrays and tuple(arrays[name].shape) != shape:
                raise ValueError(
                    f"{name} must have shape {shape} to match W_2 {(d_ff, d_out)}, "
                    f"got {tuple(arrays[name].shape)}"
                )

    @classmethod
    def init(
        cls,
        rng: "np.random.Generator | int",
        d_model: int,
        d_ff: int,
        *,
        activation: str = "relu",
        bias: bool = True,
    ) -> "FeedForwardWeights":
        """Draw both matrices Xavier-uniformly with NumPy; the biases are 0.

        Parameters
        ----------
        rng : numpy.random.Generator or int
            Where the numbers come from; an int is a seed.
        d_model, d_ff : int
            Width of the tokens, and of the hidden layer.
        activation : str
        bias : bool
            Without it there are no b_1 and b_2.
        """
        rng = generator(rng)
        d_model, d_ff = check_int("d_model", d_model, 1), check_int("d_ff", d_ff, 1)
        sizes = {"d_model": d_model, "d_ff": d_ff, "d_out": d_model}
        return cls(**cls.drawn(rng, bias=check_bool("bias", bias), **sizes), activation=activation)


def feed_forward(
    x: Annotated[Array, "... n d_model"], weights: FeedForwardWeights
) -> Annotated[Array, "... n d_out"]:
    r"""Apply the same two-layer network to every token: φ(x W_1 + b_1) W_2 + b_2.

    Parameters
    ----------
    x : array, shape (..., n, d_model)
    weights : FeedForwardWeights

    Returns
    -------
    array, shape (..., n, d_out)

    Raises
    ------
    TypeError, ValueError
        If `x` and the weights are not of one library, device and dtype, or `x` is not as wide as
        W_1 is high.

    Notes
    -----
    No token sees another. Cost: O(n d_model d_ff) time, O(n d_ff) memory.

    References
    ----------
    Vaswani et al. (2017), "Attention is all you need", section 3.3; chapter `transformer`.

    Examples
    --------
    >>> import numpy as np
    >>> weights = FeedForwardWeights(np.eye(2), None, np.eye(2), None)
    >>> feed_forward(np.array([[1.0, -2.0]]), weights)
    array([[1., 0.]])
    """
    check_part("weights", weights, FeedForwardWeights)
    check_floats(x=x, weights=weights.W_1)
    check_width("x", x, weights.W_1.shape[0])
    return feed_forward_of(x, weights)[0]


def relu(x: Annotated[Array, "..."]) -> Annotated[Array, "..."]:
    """Return max(x, 0), number by number.

    Parameters
    ----------
    x : array, any shape, real floating dtype

    Returns
    -------
    array of the shape and dtype of `x`
        NaN stays NaN. The gradient at 0 is 0.

    Raises
    ------
    TypeError
        If `x` is not such an array.

    Examples
    --------
    >>> import numpy as np
    >>> relu(np.array([-1.0, 2.0]))
    array([0., 2.])
    """
    check_float("x", x)
    return relu_of(x)


def gelu(x: Annotated[Array, "..."]) -> Annotated[Array, "..."]:
    r"""Return x·Φ(x), number by number, where Φ is the normal distribution function.

    .. math:: \operatorname{gelu}(x) = \tfrac12\, x \bigl(1 + \operatorname{erf}(x/\sqrt2)\bigr)

    Parameters
    ----------
    x : array, any shape, real floating dtype

    Returns
    -------
    array of the shape and dtype of `x`
        Half precision is computed in float32 and rounded at the end.

    Raises
    ------
    TypeError
        If `x` is not such an array.

    Notes
    -----
    The exact form, PyTorch's default, not the approximation by tanh. NumPy has no erf: there it is
    taken number by number in Python, which is slow.

    References
    ----------
    Hendrycks and Gimpel (2016), "Gaussian error linear units".

    Examples
    --------
    >>> import numpy as np
    >>> gelu(np.array([-1.0, 0.0, 1.0])).round(4)
    array([-0.1587,  0.    ,  0.8413])
    """
    check_float("x", x)
    return gelu_of(x)
