r"""The encoder: layers of self-attention and feed-forward, each added to what it was given.

.. math:: \text{pre-norm: } x + f(\operatorname{LN}(x)), \qquad
          \text{post-norm: } \operatorname{LN}(x + f(x))
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from attnbook.arrays.arguments import Array
from attnbook.arrays.projections import generator
from attnbook.arrays.weights import Weights, check_part
from attnbook.kernels import REFERENCE, check_impl
from attnbook.multi_head.heads import multi_head_attention_of
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.transformers.feed_forward import FeedForwardWeights, feed_forward_of
from attnbook.transformers.layer_norm import LayerNormWeights, _norm
from attnbook.transformers.layers import (
    Stack,
    check_layer,
    check_stack,
    check_stack_inputs,
    keep,
    residual,
    turn_by,
)


@dataclass(frozen=True, eq=False)
class EncoderLayerWeights(Weights):
    """The weights of one encoder layer, and where it normalises.

    Attributes
    ----------
    self_attention : MultiHeadWeights
        From d_model to d_model.
    feed_forward : FeedForwardWeights
        From d_model to d_model.
    self_attention_norm, feed_forward_norm : LayerNormWeights
    norm : str
        ``"pre"``: x + f(LN(x)), or ``"post"``: LN(x + f(x)).

    Raises
    ------
    TypeError, ValueError
        If a part is of another class or width, the arrays are not of one library, device and
        dtype, or `norm` is unknown.

    Examples
    --------
    >>> weights = EncoderLayerWeights.init(0, d_model=8, n_heads=2, d_ff=32)
    >>> len(weights.arrays()), weights.norm
    (16, 'pre')
    """

    self_attention: MultiHeadWeights
    feed_forward: FeedForwardWeights
    self_attention_norm: LayerNormWeights
    feed_forward_norm: LayerNormWeights
    norm: str = "pre"

    def __post_init__(self):
        check_layer(self)

    @classmethod
    def init(
        cls,
        rng: "np.random.Generator | int",
        d_model: int,
        n_heads: int,
        d_ff: int,
        *,
        norm: str = "pre",
        activation: str = "relu",
        bias: bool = True,
        n_kv_heads: int | None = None,
    ) -> "EncoderLayerWeights":
        """Draw Xavier-uniform matrices with NumPy; gains are 1, biases 0.

        Parameters
        ----------
        rng : numpy.random.Generator or int
            Where the numbers come from; an int is a seed.
        d_model, n_heads, d_ff : int
            Width of the tokens, number of heads, width of the hidden layer.
        norm, activation : str
        bias : bool
            Without it no matrix and no normalisation has one.
        n_kv_heads : int, optional
            As in `MultiHeadWeights`.
        """
        rng = generator(rng)
        return cls(
            MultiHeadWeights.init(rng, d_model, n_heads, n_kv_heads=n_kv_heads, bias=bias),
            FeedForwardWeights.init(rng, d_model, d_ff, activation=activation, bias=bias),
            LayerNormWeights.init(d_model, bias=bias),
            LayerNormWeights.init(d_model, bias=bias),
            norm,
        )


@dataclass(frozen=True, eq=False)
class EncoderWeights(Stack):
    """The weights of a stack of encoder layers, and of a normalisation after the last.

    Attributes
    ----------
    layers : tuple of EncoderLayerWeights
        May be empty.
    final_norm : LayerNormWeights, optional
        Pre-norm layers need it: nothing else normalises their sum.

    Examples
    --------
    >>> EncoderWeights.init(0, 6, d_model=8, n_heads=2, d_ff=32).final_norm.gain.shape
    (8,)
    """

    _layer = EncoderLayerWeights

    layers: tuple[EncoderLayerWeights, ...]
    final_norm: LayerNormWeights | None = None

    def __post_init__(self):
        check_stack(self, EncoderLayerWeights)


def encoder_layer(
    x: Annotated[Array, "... n d_model"],
    weights: EncoderLayerWeights,
    mask: Annotated[Array, "..."] | None = None,
    *,
    drop: Callable[[Array], Array] | None = None,
    rotate: bool = False,
    impl: str = REFERENCE,
    return_weights: bool = False,
) -> Any:
    r"""Let the tokens attend to each other, then pass each through the feed-forward network.

    .. math:: y = x + \operatorname{MultiHead}(\operatorname{LN}_1(x)), \qquad
              z = y + \operatorname{FF}(\operatorname{LN}_2(y)) \qquad \text{(pre-norm)}

    .. math:: y = \operatorname{LN}_1(x + \operatorname{MultiHead}(x)), \qquad
              z = \operatorname{LN}_2(y + \operatorname{FF}(y)) \qquad \text{(post-norm)}

    Parameters
    ----------
    x : array, shape (..., n, d_model)
    weights : EncoderLayerWeights
        They say which of the two it is.
    mask : boolean array that broadcasts to (..., h, n, n), optional
        **True = may attend**, as in `multi_head_attention`.
    drop : callable, optional
        Applied to the output of both sublayers before it is added, and to the hidden units of the
        feed-forward network; such as ``functools.partial(dropout, rate=0.1, rng=rng)``.
    rotate : bool
        Rotate queries and keys by their positions, as `positions.rotary` does.
    impl : str
        Who attends, as in `attention`.
    return_weights : bool
        Also return the attention weights of every head, which the reference alone keeps.

    Returns
    -------
    array, shape (..., n, d_model)
        And with `return_weights` a pair of it and the weights (..., h, n, n).

    Raises
    ------
    TypeError, ValueError
        As in `multi_head_attention`; ValueError if a head has odd width and `rotate` is set.

    Notes
    -----
    A token that may see no key gets b_O, or 0, from its attention, and the residual keeps it.
    Cost: O(n d_model (d_model + d_ff) + n² d_model) time, O(h n² + n d_ff) memory.

    References
    ----------
    Vaswani et al. (2017), "Attention is all you need", section 3.1; Xiong et al. (2020), "On
    layer normalization in the transformer architecture"; chapter `transformer`.

    Examples
    --------
    >>> import numpy as np
    >>> weights = EncoderLayerWeights.init(0, d_model=8, n_heads=2, d_ff=32, norm="post")
    >>> encoder_layer(np.eye(5, 8), weights).shape
    (5, 8)
    """
    check_part("weights", weights, EncoderLayerWeights)
    check_impl(impl, return_weights)
    check_stack_inputs(x, weights, mask, rotate)
    output, shares = encoder_layer_of(x, weights, mask, drop or keep, turn_by(rotate), impl)
    return (output, shares) if return_weights else output


def encoder(
    x: Annotated[Array, "... n d_model"],
    weights: EncoderWeights,
    mask: Annotated[Array, "..."] | None = None,
    *,
    drop: Callable[[Array], Array] | None = None,
    rotate: bool = False,
    impl: str = REFERENCE,
    return_weights: bool = False,
) -> Any:
    """Apply every layer in turn, then the final normalisation if there is one.

    Parameters
    ----------
    x : array, shape (..., n, d_model)
    weights : EncoderWeights
    mask, drop, rotate, impl, return_weights
        As in `encoder_layer`; the mask holds in every layer.

    Returns
    -------
    array, shape (..., n, d_model)
        And with `return_weights` a pair of it and a tuple of weights (..., h, n, n), one a layer.

    Raises
    ------
    TypeError, ValueError
        As in `encoder_layer`.

    Notes
    -----
    Cost: that of each layer, and O(n d_model) for the final normalisation.

    References
    ----------
    Vaswani et al. (2017), "Attention is all you need", section 3.1; chapter `transformer`.

    Examples
    --------
    >>> import numpy as np
    >>> weights = EncoderWeights.init(0, 3, d_model=8, n_heads=2, d_ff=32)
    >>> output, shares = encoder(np.eye(5, 8), weights, return_weights=True)
    >>> output.shape, len(shares)
    ((5, 8), 3)
    """
    check_part("weights", weights, EncoderWeights)
    check_impl(impl, return_weights)
    check_stack_inputs(x, weights, mask, rotate)
    output, shares = encoder_of(x, weights, mask, drop or keep, turn_by(rotate), impl)
    return (output, shares) if return_weights else output


# The mathematics. These may rely on checked arrays.


def encoder_of(x, weights, mask, drop, turn=None, impl=REFERENCE):
    shares = []
    for layer in weights.layers:
        x, share = encoder_layer_of(x, layer, mask, drop, turn, impl)
        shares.append(share)
    if weights.final_norm is not None:
        x = _norm(x, weights.final_norm)
    return x, tuple(shares)


def encoder_layer_of(x, weights, mask, drop, turn=None, impl=REFERENCE):
    x, shares = residual(
        x,
        lambda y: multi_head_attention_of(y, y, y, weights.self_attention, mask, turn, impl),
        *(weights.self_attention_norm, weights.norm, drop),
    )
    x, _ = residual(
        x,
        lambda y: (feed_forward_of(y, weights.feed_forward, drop), None),
        *(weights.feed_forward_norm, weights.norm, drop),
    )
    return x, shares
