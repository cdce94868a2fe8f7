"""Learned positions inside attention, as a module."""

import torch

from attnbook.nn.module import WeightsModule
from attnbook.positions.biases import RelativeBias as RelativeBiasWeights


class RelativeBias(WeightsModule, kind=RelativeBiasWeights):
    """Learned biases for distances with the table of `positions.RelativeBias` as a parameter.

    Parameters
    ----------
    weights : positions.RelativeBias
        The initial parameters, of any library and dtype. They are copied.

    Attributes
    ----------
    table : torch.nn.Parameter, shape (n_buckets, h)
    bidirectional : bool
    max_distance : int

    Examples
    --------
    >>> piece = RelativeBiasWeights(torch.zeros(32, 2))
    >>> RelativeBias(piece)(5, 7).shape
    torch.Size([2, 5, 7])
    """

    table: torch.Tensor
    bidirectional: bool
    max_distance: int

    def forward(self, n_q: int, n_k: int) -> torch.Tensor:
        """Return the biases (h, n_q, n_k); the last query is aligned with the last key."""
        return self.weights.bias(self.table.shape[1], n_q, n_k, self.table)
