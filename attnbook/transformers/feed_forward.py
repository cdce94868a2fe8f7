"""The feed-forward sublayer: matrices with a non-linearity between, the same for every token."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np

from attnbook.arrays.arguments import (
    check_bool,
    check_choice,
    check_floats,
    check_int,
    generator,
)
from attnbook.arrays.array import Array
from attnbook.arrays.projections import check_width, project
from attnbook.arrays.weights import Weights, check_part
from attnbook.transformers.activations import ACTIVATIONS

# The mathematics, of checked arrays.


def feed_forward_of(
    x: Array,
    weights: "FeedForwardWeights | GatedFeedForwardWeights",
    drop: Callable[[Array], Array] | None = None,
) -> Array:
    hidden, activate = project(x, weights.W_1, weights.b_1), ACTIVATIONS[weights.activation]
    if isinstance(weights, GatedFeedForwardWeights):
        hidden = activate(project(x, weights.W_gate, weights.b_gate)) * hidden
    else:
        hidden = activate(hidden)  # (..., n, d_ff)
    if drop is not None:
        hidden = drop(hidden)
    return project(hidden, weights.W_2, weights.b_2)


# The weights, and the functions, which check what they are given.


class _Network(Weights):
    """Base of the weights of both kinds."""

    token_widths = ("d_model", "d_out")

    W_1: Annotated[Array, "d_model d_ff"]
    W_2: Annotated[Array, "d_ff d_out"]
    activation: str

    def __post_init__(self) -> None:
        self.check_fields()
        check_choice("activation", self.activation, ACTIVATIONS)
        d_model, (d_ff, d_out) = self.W_1.shape[0], self.W_2.shape
        sizes = {"d_model": d_model, "d_ff": d_ff, "d_out": d_out}
        for name, x in self.arrays().items():
            shape = tuple(sizes[letter] for letter in self.axis_letters[name])
            if tuple(x.shape) != shape:
                raise ValueError(
                    f"{name} must have shape {shape} to match W_2 {(d_ff, d_out)}, "
                    f"got {tuple(x.shape)}"
                )

    @classmethod
    def _made(
        cls,
        rng: "np.random.Generator | int",
        d_model: int,
        d_ff: int,
        activation: str,
        bias: bool,
    ) -> Self:
        rng = generator(rng)
        d_model, d_ff = check_int("d_model", d_model, 1), check_int("d_ff", d_ff, 1)
        sizes = {"d_model": d_model, "d_ff": d_ff, "d_out": d_model}
        made = cls.drawn(rng, bias=check_bool("bias", bias), **sizes)
        return cls(**made, activation=activation)  # type: ignore[call-arg]  # a dataclass of these


@dataclass(frozen=True, eq=False)
class FeedForwardWeights(_Network):
    """The two matrices of a feed-forward network, and the name of the activation between them.

    Attributes
    ----------
    W_1 : array, shape (d_model, d_ff)
    b_1 : array, shape (d_ff,), optional
    W_2 : array, shape (d_ff, d_out)
        d_out is d_model inside a transformer layer.
    b_2 : array, shape (d_out,), optional
    activation : str
        ``"relu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``.

    Raises
    ------
    TypeError, ValueError
        If the arrays are not of one library, device and real floating dtype, their shapes do not
        match, or `activation` is unknown.

    Examples
    --------
    >>> FeedForwardWeights.init(0, d_model=4, d_ff=16).W_1.shape
    (4, 16)
    """

    W_1: Annotated[Array, "d_model d_ff"]
    b_1: Annotated[Array, "d_ff"] | None
    W_2: Annotated[Array, "d_ff d_out"]
    b_2: Annotated[Array, "d_out"] | None
    activation: str = "relu"

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
            The source of the random numbers; an int is a seed.
        d_model, d_ff : int
            Width of the tokens, and width of the hidden layer.
        activation : str
        bias : bool
            Whether there are b_1 and b_2.
        """
        return cls._made(rng, d_model, d_ff, activation, bias)


@dataclass(frozen=True, eq=False)
class GatedFeedForwardWeights(_Network):
    """The three matrices of a gated feed-forward network, and the activation of its gate.

    Attributes
    ----------
    W_gate, W_1 : arrays, shape (d_model, d_ff)
        The activation is applied only to x W_gate; the product with x W_1 is elementwise.
    W_2 : array, shape (d_ff, d_out)
        d_out is d_model inside a transformer layer.
    b_gate, b_1 : arrays, shape (d_ff,), optional
    b_2 : array, shape (d_out,), optional
    activation : str
        ``"silu"`` makes it SwiGLU, ``"gelu"`` or ``"gelu_tanh"`` GEGLU, ``"relu"`` ReGLU.

    Raises
    ------
    TypeError, ValueError
        As in `FeedForwardWeights`.

    Examples
    --------
    >>> GatedFeedForwardWeights.init(0, d_model=4, d_ff=16).W_gate.shape
    (4, 16)
    """

    W_gate: Annotated[Array, "d_model d_ff"]
    W_1: Annotated[Array, "d_model d_ff"]
    W_2: Annotated[Array, "d_ff d_out"]
    b_gate: Annotated[Array, "d_ff"] | None = None
    b_1: Annotated[Array, "d_ff"] | None = None
    b_2: Annotated[Array, "d_out"] | None = None
    activation: str = "silu"

    @classmethod
    def init(
        cls,
        rng: "np.random.Generator | int",
        d_model: int,
        d_ff: int,
        *,
        activation: str = "silu",
        bias: bool = False,
    ) -> "GatedFeedForwardWeights":
        """Draw all three matrices Xavier-uniformly with NumPy; the biases are 0.

        The parameters are those of `FeedForwardWeights.init`, but with different defaults.
        """
        return cls._made(rng, d_model, d_ff, activation, bias)


def feed_forward(
    x: Annotated[Array, "... n d_model"], weights: FeedForwardWeights | GatedFeedForwardWeights
) -> Annotated[Array, "... n d_out"]:
    r"""Apply the same two-layer network to every token: φ(x W_1 + b_1) W_2 + b_2.

    .. math:: \operatorname{act}(x W_1 + b_1)\, W_2 + b_2, \qquad \text{or gated:} \quad
              \bigl(\operatorname{act}(x W_g + b_g) \odot (x W_1 + b_1)\bigr) W_2 + b_2

    Parameters
    ----------
    x : array, shape (..., n, d_model)
    weights : FeedForwardWeights or GatedFeedForwardWeights
        Their class determines which of the two it is.

    Returns
    -------
    array, shape (..., n, d_out)

    Raises
    ------
    TypeError, ValueError
        If `x` and the weights are not of one library, device and dtype, or the width of `x` is not
        the number of rows of W_1.

    Notes
    -----
    Each token is computed on its own. Cost: O(n d_model d_ff) time, O(n d_ff) memory.

    References
    ----------
    Vaswani et al. (2017), "Attention is all you need", section 3.3; Shazeer (2020), "GLU variants
    improve Transformer"; chapter `transformer`.

    Examples
    --------
    >>> import numpy as np
    >>> weights = FeedForwardWeights(np.eye(2), None, np.eye(2), None)
    >>> feed_forward(np.array([[1.0, -2.0]]), weights)
    array([[1., 0.]])
    """
    check_part("weights", weights, FeedForwardWeights, GatedFeedForwardWeights)
    check_floats(x=x, weights=weights.W_1)
    check_width("x", x, weights.W_1.shape[0])
    return feed_forward_of(x, weights)
