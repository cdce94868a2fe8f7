"""A transformer block without a feed-forward network: attention, then one linear map.

The first of the notes that the book restates defines it in this way. The block adds arrays of three
widths, which must therefore agree (claim 16).
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from attnbook.arrays.arguments import check_floats, check_int, generator
from attnbook.arrays.array import Array, Mask
from attnbook.arrays.projections import check_width, project
from attnbook.arrays.weights import Weights, check_part
from attnbook.kernels import REFERENCE, Impl, check_impl
from attnbook.multi_head.attention import attend, keys_and_values
from attnbook.multi_head.masks import check_head_mask
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.normalization.layer_norm import LayerNormWeights
from attnbook.normalization.normalization import NormWeights
from attnbook.transformers.layer import misfits
from attnbook.transformers.residual import residual

# The mathematics, of checked arrays.


def transformer_block_of(
    x: Array, weights: "TransformerBlockWeights", mask: Mask | None, impl: Impl = REFERENCE
) -> Array:
    def attended(x: Array) -> Array:
        query, key, value = [
            project(x, matrix) for matrix in (weights.W_query, weights.W_key, weights.W_value)
        ]
        heads = keys_and_values(key, value, weights.attention)
        mixed = attend(query, heads, weights.attention, mask, impl=impl)
        return project(mixed, weights.W_attended)

    x = residual(x, attended, weights.attention_norm, "post", None)
    feed = partial(project, matrix=weights.W_output)
    return residual(x, feed, weights.output_norm, "post", None)


# The weights, and the functions, which check what they are given.


@dataclass(frozen=True, eq=False)
class TransformerBlockWeights(Weights):
    """The linear maps, the heads and the two normalisations of the block.

    Attributes
    ----------
    W_query, W_key, W_value : arrays, shape (input_dim, hidden_dim)
        The linear maps whose results the heads receive.
    attention : MultiHeadWeights
        From hidden_dim to hidden_dim.
    W_attended : array, shape (hidden_dim, hidden_dim)
        Applied after the heads; its result is added to the input of the block.
    W_output : array, shape (hidden_dim, output_dim)
        The second sublayer; its result is added to its own input.
    attention_norm, output_norm : LayerNormWeights or RMSNormWeights

    Raises
    ------
    TypeError, ValueError
        If a part does not have the right class, library, device or dtype; ValueError if input_dim,
        hidden_dim and output_dim differ.

    Examples
    --------
    >>> TransformerBlockWeights.init(0, 8, 8, 2, 8).W_output.shape
    (8, 8)
    >>> TransformerBlockWeights.init(0, 8, 6, 2, 8)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: input_dim, hidden_dim and output_dim must agree, ...
    """

    token_widths = ("d_model",)

    W_query: Annotated[Array, "d_model d_model"]
    W_key: Annotated[Array, "d_model d_model"]
    W_value: Annotated[Array, "d_model d_model"]
    attention: MultiHeadWeights
    W_attended: Annotated[Array, "d_model d_model"]
    W_output: Annotated[Array, "d_model d_model"]
    attention_norm: NormWeights
    output_norm: NormWeights

    def __post_init__(self) -> None:
        self.check_fields()
        _check_dims(self.W_query.shape[0], self.W_query.shape[1], self.W_output.shape[1])
        d_model = self.W_query.shape[0]
        if self.attention.W_O is None:
            raise ValueError(f"attention.W_O must have {d_model} columns, got None")
        for name, axis, shape in misfits(self, d_model):
            what = "rows" if axis == 0 and len(shape) == 2 else "columns"
            raise ValueError(f"{name} must have {d_model} {what}, got {shape}")

    @classmethod
    def init(
        cls,
        rng: "np.random.Generator | int",
        input_dim: int,
        hidden_dim: int,
        n_heads: int,
        output_dim: int,
    ) -> "TransformerBlockWeights":
        """Draw Xavier-uniform matrices with NumPy; gains are 1, and biases are 0."""
        rng = generator(rng)
        dims = {"input_dim": input_dim, "hidden_dim": hidden_dim, "output_dim": output_dim}
        for name, dim in dims.items():
            check_int(name, dim, at_least=1)
        _check_dims(input_dim, hidden_dim, output_dim)
        matrices = cls.drawn(rng, bias=False, d_model=input_dim)
        return cls(
            **matrices,
            attention=MultiHeadWeights.init(rng, input_dim, n_heads),
            attention_norm=LayerNormWeights.init(input_dim),
            output_norm=LayerNormWeights.init(input_dim),
        )


def transformer_block(
    x: Annotated[Array, "... n d_model"],
    weights: TransformerBlockWeights,
    mask: Mask | None = None,
    *,
    impl: Impl = REFERENCE,
) -> Annotated[Array, "... n d_model"]:
    r"""Attend, add and normalise; then one linear map, add and normalise.

    .. math:: y = \operatorname{LN}(\operatorname{MultiHead}(xW_q, xW_k, xW_v)\,W_a + x), \qquad
              z = \operatorname{LN}(y W_o + y)

    Parameters
    ----------
    x : array, shape (..., n, d_model)
    weights : TransformerBlockWeights
    mask : boolean array that broadcasts to (..., h, n, n), or a `masking.Rule`, optional
        **True = may attend.**
    impl : str or callable
        The implementation, as in `attention`.

    Returns
    -------
    array, shape (..., n, d_model)

    Raises
    ------
    TypeError, ValueError
        As in `multi_head_attention`.

    Notes
    -----
    The second sublayer is linear, because y W_o + y = y (W_o + I). It lacks the ReLU between two
    matrices that `encoder_layer` has there (claim 16).
    Cost: O(n d_model² + n² d_model) time.

    Examples
    --------
    >>> import numpy as np
    >>> transformer_block(np.eye(5, 8), TransformerBlockWeights.init(0, 8, 8, 2, 8)).shape
    (5, 8)
    """
    check_impl(impl)
    _check(x, weights, mask)
    return transformer_block_of(x, weights, mask, impl)


def _check(x: Array, weights: TransformerBlockWeights, mask: Mask | None) -> None:
    check_part("weights", weights, TransformerBlockWeights)
    check_floats(x=x, weights=weights.W_query)
    check_width("x", x, weights.W_query.shape[0])
    check_head_mask("mask", mask, "x", x, x.shape[:-1], x.shape[:-1], [weights.attention])


def _check_dims(input_dim: int, hidden_dim: int, output_dim: int) -> None:
    if not input_dim == hidden_dim == output_dim:
        raise ValueError(
            "input_dim, hidden_dim and output_dim must agree, since the block adds arrays of "
            f"these widths, got {input_dim}, {hidden_dim} and {output_dim}"
        )
