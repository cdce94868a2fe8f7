"""A transformer block without a feed-forward network: attention, then one linear map.

Source A of the book defines it so. Its residual additions need three widths to agree (claim 16).
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from attnbook.arrays.arguments import Array, check_floats, check_int
from attnbook.arrays.projections import check_matrices, generator, project, xavier
from attnbook.arrays.weights import Weights, check_part
from attnbook.kernels import REFERENCE, check_impl
from attnbook.multi_head.heads import multi_head_attention_of
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.transformers.layer_norm import LayerNormWeights, _norm
from attnbook.transformers.layers import check_layer_mask


@dataclass(frozen=True, eq=False)
class TransformerBlockWeights(Weights):
    """The linear maps, the heads and the two normalisations of the block.

    Attributes
    ----------
    W_query, W_key, W_value : arrays, shape (input_dim, hidden_dim)
        The linear maps to what the heads are given.
    attention : MultiHeadWeights
        From hidden_dim to hidden_dim.
    W_attended : array, shape (hidden_dim, hidden_dim)
        After the heads; its result is added to the input.
    W_output : array, shape (hidden_dim, output_dim)
        The second sublayer; its result is added to what it was made of.
    attention_norm, output_norm : LayerNormWeights

    Raises
    ------
    TypeError, ValueError
        If a part is of another class, library, device or dtype; ValueError unless input_dim,
        hidden_dim and output_dim agree.

    Examples
    --------
    >>> TransformerBlockWeights.init(0, 8, 8, 2, 8).W_output.shape
    (8, 8)
    >>> TransformerBlockWeights.init(0, 8, 6, 2, 8)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: input_dim, hidden_dim and output_dim must agree, ...
    """

    W_query: Annotated[Array, "d_model d_model"]
    W_key: Annotated[Array, "d_model d_model"]
    W_value: Annotated[Array, "d_model d_model"]
    attention: MultiHeadWeights
    W_attended: Annotated[Array, "d_model d_model"]
    W_output: Annotated[Array, "d_model d_model"]
    attention_norm: LayerNormWeights
    output_norm: LayerNormWeights

    def __post_init__(self):
        check_part("attention", self.attention, MultiHeadWeights)
        for name in ("attention_norm", "output_norm"):
            check_part(name, getattr(self, name), LayerNormWeights)
        names = ("W_query", "W_key", "W_value", "W_attended", "W_output")
        matrices = {name: getattr(self, name) for name in names}
        check_floats(**(matrices | self.arrays()))
        check_matrices(**matrices)
        _check_dims(self.W_query.shape[0], self.W_query.shape[1], self.W_output.shape[1])
        d_model = self.W_query.shape[0]
        if self.attention.W_O is None:
            raise ValueError(f"attention.W_O must have {d_model} columns, got None")
        for name, x in self.arrays().items():
            letters = name.split(".")[-1]
            if x.ndim == 2 and letters != "W_O" and x.shape[0] != d_model:
                raise ValueError(f"{name} must have {d_model} rows, got {tuple(x.shape)}")
            of_heads = letters in ("W_Q", "W_K", "W_V", "b_Q", "b_K", "b_V")
            if not of_heads and x.shape[-1] != d_model:
                raise ValueError(f"{name} must have {d_model} columns, got {tuple(x.shape)}")

    @classmethod
    def init(
        cls,
        rng: "np.random.Generator | int",
        input_dim: int,
        hidden_dim: int,
        n_heads: int,
        output_dim: int,
    ) -> "TransformerBlockWeights":
        """Draw Xavier-uniform matrices with NumPy; gains are 1, biases 0."""
        rng = generator(rng)
        dims = {"input_dim": input_dim, "hidden_dim": hidden_dim, "output_dim": output_dim}
        for name, dim in dims.items():
            check_int(name, dim, at_least=1)
        _check_dims(input_dim, hidden_dim, output_dim)
        W_query, W_key, W_value, W_attended, W_output = (
            xavier(rng, input_dim, input_dim) for _ in range(5)
        )
        return cls(
            *(W_query, W_key, W_value, MultiHeadWeights.init(rng, input_dim, n_heads)),
            *(W_attended, W_output),
            *(LayerNormWeights.init(input_dim), LayerNormWeights.init(input_dim)),
        )


def transformer_block(
    x: Annotated[Array, "... n d_model"],
    weights: TransformerBlockWeights,
    mask: Annotated[Array, "..."] | None = None,
    *,
    impl: str = REFERENCE,
) -> Annotated[Array, "... n d_model"]:
    r"""Attend, add and normalise; then one linear map, add and normalise.

    .. math:: y = \operatorname{LN}(\operatorname{MultiHead}(xW_q, xW_k, xW_v)\,W_a + x), \qquad
              z = \operatorname{LN}(y W_o + y)

    Parameters
    ----------
    x : array, shape (..., n, d_model)
    weights : TransformerBlockWeights
    mask : boolean array that broadcasts to (..., h, n, n), optional
        **True = may attend.**
    impl : str
        Who attends, as in `attention`.

    Returns
    -------
    array, shape (..., n, d_model)

    Raises
    ------
    TypeError, ValueError
        As in `multi_head_attention`.

    Notes
    -----
    The second sublayer is linear: y W_o + y = y (W_o + I). The ReLU between two matrices that
    `encoder_layer` has there is what it lacks (claim 16).
    Cost: O(n d_model² + n² d_model) time.

    Examples
    --------
    >>> import numpy as np
    >>> transformer_block(np.eye(5, 8), TransformerBlockWeights.init(0, 8, 8, 2, 8)).shape
    (5, 8)
    """
    check_part("weights", weights, TransformerBlockWeights)
    check_impl(impl)
    check_floats(x=x, weights=weights.W_query)
    d_model = weights.W_query.shape[0]
    if x.ndim < 2 or x.shape[-1] != d_model:
        raise ValueError(
            f"x must have shape (..., n, {d_model}) to match the weights, got {tuple(x.shape)}"
        )
    check_layer_mask("mask", mask, "x", x, x.shape[:-1], x.shape[:-1], [weights.attention])
    return transformer_block_of(x, weights, mask, impl)


def _check_dims(input_dim, hidden_dim, output_dim):
    if not input_dim == hidden_dim == output_dim:
        raise ValueError(
            "input_dim, hidden_dim and output_dim must agree, since the block adds arrays of "
            f"these widths, got {input_dim}, {hidden_dim} and {output_dim}"
        )


# The mathematics. These may rely on checked arrays.


def transformer_block_of(x, weights, mask, impl=REFERENCE):
    query, key, value = (
        project(x, matrix) for matrix in (weights.W_query, weights.W_key, weights.W_value)
    )
    heads = weights.attention
    attended, _ = multi_head_attention_of(query, key, value, heads, mask, impl=impl)
    y = _norm(project(attended, weights.W_attended) + x, weights.attention_norm)
    return _norm(project(y, weights.W_output) + y, weights.output_norm)
