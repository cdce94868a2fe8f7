"""The normalisations as modules."""

from typing import Any, ClassVar

import torch

from attnbook.arrays.array import Array
from attnbook.nn.torch_module import TorchModule
from attnbook.normalization.layer_norm import LayerNormWeights, layer_norm
from attnbook.normalization.rms_norm import RMSNormWeights, rms_norm


class _Normalization(TorchModule):
    """Base of the normalisations, each with a gain under PyTorch's name `weight`."""

    gain: torch.Tensor | None
    epsilon: float
    _theirs: ClassVar = {"weight": "gain"}

    @classmethod
    def _check_width(cls, module: Any) -> None:
        if len(module.normalized_shape) != 1:
            raise ValueError(
                f"module must normalise the last axis alone, got shape {module.normalized_shape}"
            )

    def _like_torch(self, state: dict[str, torch.Tensor]) -> torch.nn.Module:
        if self.gain is None:
            name = self._torch.__name__
            raise ValueError(f"gain must be an array to fit torch.nn.{name}, got None")
        options = {"bias": "bias" in state} if hasattr(self, "bias") else {}
        home = {"device": self.gain.device, "dtype": self.gain.dtype}
        return self._torch(len(self.gain), self.epsilon, **home, **options)


class LayerNorm(_Normalization, kind=LayerNormWeights):
    """Layer normalisation with the arrays of `LayerNormWeights` as parameters.

    Parameters
    ----------
    weights : LayerNormWeights
        The initial parameters, of any library and dtype. They are copied.

    Attributes
    ----------
    gain, bias : torch.nn.Parameter or None, shape (d_model,)
        The state dict has exactly these names; that of a `torch.nn.LayerNorm` can be loaded, too.
    epsilon : float

    Examples
    --------
    >>> norm = LayerNorm(LayerNormWeights.init(2))
    >>> norm(torch.tensor([[1.0, 3.0]], dtype=torch.float64)).tolist()[0][1] > 0.99
    True
    """

    bias: torch.Tensor | None
    _torch = torch.nn.LayerNorm

    def forward(self, x: Array) -> Array:
        """Return `layer_norm`."""
        return layer_norm(x, self.gain, self.bias, epsilon=self.epsilon)

    @classmethod
    def _weights_of(cls, module: Any) -> LayerNormWeights:
        cls._check_width(module)
        return LayerNormWeights(module.weight, module.bias, module.eps)


class RMSNorm(_Normalization, kind=RMSNormWeights):
    """Root-mean-square normalisation with the gain of `RMSNormWeights` as a parameter.

    Parameters
    ----------
    weights : RMSNormWeights
        The initial parameters, of any library and dtype. They are copied.

    Attributes
    ----------
    gain : torch.nn.Parameter or None, shape (d_model,)
        The state dict has exactly this name; that of a `torch.nn.RMSNorm` can be loaded, too.
    epsilon : float

    Examples
    --------
    >>> norm = RMSNorm(RMSNormWeights.init(2))
    >>> norm(torch.tensor([[3.0, 3.0]], dtype=torch.float64)).tolist()[0][1] > 0.99
    True
    """

    _torch = torch.nn.RMSNorm

    def forward(self, x: Array) -> Array:
        """Return `rms_norm`."""
        return rms_norm(x, self.gain, epsilon=self.epsilon)

    @classmethod
    def _weights_of(cls, module: Any) -> RMSNormWeights:
        cls._check_width(module)
        epsilon = module.eps
        if epsilon is None:  # then PyTorch takes that of the dtype
            if module.weight is None:
                raise ValueError("module must have a weight or an eps, got None for both")
            epsilon = torch.finfo(module.weight.dtype).eps
        return RMSNormWeights(module.weight, epsilon)
