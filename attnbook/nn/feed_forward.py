"""The feed-forward networks as modules."""

from typing import ClassVar

import torch

from attnbook.arrays.array import Array
from attnbook.nn.module import WeightsModule
from attnbook.transformers.feed_forward import (
    FeedForwardWeights,
    GatedFeedForwardWeights,
    feed_forward,
)


class FeedForward(WeightsModule, kind=FeedForwardWeights):
    """The feed-forward network with the arrays of `FeedForwardWeights` as parameters.

    Parameters
    ----------
    weights : FeedForwardWeights
        The initial parameters, of any library and dtype. They are copied.

    Attributes
    ----------
    W_1, W_2 : torch.nn.Parameter, shapes (d_model, d_ff) and (d_ff, d_out)
    b_1, b_2 : torch.nn.Parameter or None, shapes (d_ff,) and (d_out,)
        The state dict has exactly these names.
    activation : str

    Examples
    --------
    >>> network = FeedForward(FeedForwardWeights.init(0, d_model=4, d_ff=16).to(dtype="float32"))
    >>> network(torch.ones(2, 5, 4)).shape
    torch.Size([2, 5, 4])
    """

    W_1: torch.Tensor
    b_1: torch.Tensor | None
    W_2: torch.Tensor
    b_2: torch.Tensor | None
    activation: str
    _theirs: ClassVar = {
        "linear1.weight": "W_1",
        "linear1.bias": "b_1",
        "linear2.weight": "W_2",
        "linear2.bias": "b_2",
    }

    def forward(self, x: Array) -> Array:
        """Return `feed_forward`."""
        return feed_forward(x, self.weights)


class GatedFeedForward(WeightsModule, kind=GatedFeedForwardWeights):
    """The gated feed-forward network with the arrays of `GatedFeedForwardWeights` as parameters.

    Parameters
    ----------
    weights : GatedFeedForwardWeights
        The initial parameters, of any library and dtype. They are copied.

    Attributes
    ----------
    W_gate, W_1 : torch.nn.Parameter, shape (d_model, d_ff)
    W_2 : torch.nn.Parameter, shape (d_ff, d_out)
    b_gate, b_1, b_2 : torch.nn.Parameter or None, shapes (d_ff,), (d_ff,) and (d_out,)
        The state dict has exactly these names.
    activation : str

    Examples
    --------
    >>> weights = GatedFeedForwardWeights.init(0, d_model=4, d_ff=16)
    >>> GatedFeedForward(weights.to(dtype="float32"))(torch.ones(2, 5, 4)).shape
    torch.Size([2, 5, 4])
    """

    W_gate: torch.Tensor
    W_1: torch.Tensor
    W_2: torch.Tensor
    b_gate: torch.Tensor | None
    b_1: torch.Tensor | None
    b_2: torch.Tensor | None
    activation: str

    def forward(self, x: Array) -> Array:
        """Return `feed_forward`."""
        return feed_forward(x, self.weights)
