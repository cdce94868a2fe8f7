"""Normalisation: what stands in the normalisation slots of a layer and of a stack."""

from typing import Any

from attnbook.arrays.arguments import check_choice
from attnbook.transformers.layer_norm import LayerNormWeights, layer_norm_of
from attnbook.transformers.rms_norm import RMSNormWeights, rms_norm_of

NormWeights = LayerNormWeights | RMSNormWeights
"""The weights that a slot takes."""

NORMALIZATIONS = ("layer", "rms")
"""The names that ``normalization=`` takes."""


def normalized(x, weights):
    """Return `layer_norm` or `rms_norm` of a checked array, as the class of `weights` says."""
    if isinstance(weights, RMSNormWeights):
        return rms_norm_of(x, weights.gain, weights.epsilon)
    return layer_norm_of(x, weights.gain, weights.bias, weights.epsilon)


def first_norm(kind: str, d_model: int, *, bias: bool = True) -> Any:
    """Return gains of 1, and biases of 0 for the ``"layer"`` norm with `bias`."""
    check_choice("normalization", kind, NORMALIZATIONS)
    if kind == "rms":
        return RMSNormWeights.init(d_model)
    return LayerNormWeights.init(d_model, bias=bias)
