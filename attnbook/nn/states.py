"""Layers that keep a state in place of keys and values, as modules."""

import torch

from attnbook.arrays.array import Array
from attnbook.linear_attention.gates import LayerState
from attnbook.linear_attention.layers import LinearAttentionWeights, linear_attention_layer
from attnbook.linear_attention.mamba import Mamba2Weights, mamba2_layer
from attnbook.nn.module import WeightsModule


class LinearAttention(WeightsModule, kind=LinearAttentionWeights):
    """A layer of linear attention with the arrays of `LinearAttentionWeights` as parameters.

    Parameters
    ----------
    weights : LinearAttentionWeights
        The initial parameters, of any library and dtype. They are copied.

    Attributes
    ----------
    W_Q, W_K, W_V, W_O : torch.nn.Parameter
    W_gate, W_beta, W_decay, A_log, dt_bias, filters, norm_gain : torch.nn.Parameter or None
        Have the shapes in `LinearAttentionWeights`. The state dict has exactly these names.
    n_heads, n_key_heads : int
    unit : bool
    epsilon : float

    Examples
    --------
    >>> weights = LinearAttentionWeights.init(0, d_model=8, n_heads=2)
    >>> output, past = LinearAttention(weights.to(dtype="float32"))(torch.ones(3, 5, 8))
    >>> output.shape, past.state.shape
    (torch.Size([3, 5, 8]), torch.Size([3, 2, 4, 4]))
    """

    W_Q: torch.Tensor
    W_K: torch.Tensor
    W_V: torch.Tensor
    W_O: torch.Tensor
    W_gate: torch.Tensor | None
    W_beta: torch.Tensor | None
    W_decay: torch.Tensor | None
    A_log: torch.Tensor | None
    dt_bias: torch.Tensor | None
    filters: torch.Tensor | None
    norm_gain: torch.Tensor | None

    def forward(self, x: Array, past: LayerState | None = None) -> tuple[Array, LayerState]:
        """Return `linear_attention_layer`, in chunks."""
        return linear_attention_layer(x, self.weights, past)


class Mamba2(WeightsModule, kind=Mamba2Weights):
    """A Mamba-2 layer with the arrays of `Mamba2Weights` as parameters.

    Parameters
    ----------
    weights : Mamba2Weights
        The initial parameters, of any library and dtype. They are copied.

    Attributes
    ----------
    W_Q, W_K, W_V, W_O, W_gate, W_step : torch.nn.Parameter
    A_log, dt_bias, skip, filters, norm_gain : torch.nn.Parameter
    filter_bias : torch.nn.Parameter or None
        Have the shapes in `Mamba2Weights`. The state dict has exactly these names.
    n_heads, n_key_heads : int
    epsilon : float

    Examples
    --------
    >>> weights = Mamba2Weights.init(0, d_model=8, n_heads=2, d_k=4)
    >>> output, past = Mamba2(weights.to(dtype="float32"))(torch.ones(3, 5, 8))
    >>> output.shape, past.state.shape
    (torch.Size([3, 5, 8]), torch.Size([3, 2, 4, 8]))
    """

    def forward(self, x: Array, past: LayerState | None = None) -> tuple[Array, LayerState]:
        """Return `mamba2_layer`, in chunks."""
        return mamba2_layer(x, self.weights, past)
