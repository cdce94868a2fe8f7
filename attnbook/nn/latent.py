"""Latent attention as a module."""

from typing import Any

import torch

from attnbook.arrays.array import Array, Mask
from attnbook.multi_head.latent import latent_attention
from attnbook.multi_head.latent_weights import LatentWeights
from attnbook.nn.module import AttendingModule
from attnbook.nn.normalization import RMSNorm
from attnbook.positions.rotation import Rotary


class LatentAttention(AttendingModule, kind=LatentWeights):
    """Multi-head latent attention with the arrays of `LatentWeights` as parameters.

    Parameters
    ----------
    weights : LatentWeights
        The initial parameters, of any library and dtype. They are copied.
    impl : str or callable
        The implementation, as in `attention`.

    Attributes
    ----------
    W_UQ, W_DKV, W_UK, W_UV, W_KR, W_O, W_DQ : torch.nn.Parameter or None
        Have the shapes in `LatentWeights`; W_DQ is None where `weights` has none. The state dict
        has exactly these names, and those of the norms, such as ``kv_norm.gain``.
    q_norm, kv_norm : RMSNorm or None
    n_heads : int
    scale : float or None
    impl : str or callable

    Examples
    --------
    >>> weights = LatentWeights.init(0, 8, 2, rank=3).to(dtype="float32")
    >>> LatentAttention(weights)(torch.ones(2, 5, 8), is_causal=True).shape
    torch.Size([2, 5, 8])
    """

    W_UQ: torch.Tensor
    W_DKV: torch.Tensor
    W_UK: torch.Tensor
    W_UV: torch.Tensor
    W_KR: torch.Tensor
    W_O: torch.Tensor
    W_DQ: torch.Tensor | None
    q_norm: RMSNorm | None
    kv_norm: RMSNorm | None
    n_heads: int
    scale: float | None
    _function = staticmethod(latent_attention)

    def forward(
        self,
        x: Array,
        mask: Mask | None = None,
        *,
        rotary: Rotary | None = None,
        bias: Array | None = None,
        is_causal: bool = False,
    ) -> Array:
        """Return `latent_attention` in its full form."""
        options: Any = {"rotary": rotary, "bias": bias, "is_causal": is_causal}
        return self._function(x, self.weights, mask, **options, **self._how())
