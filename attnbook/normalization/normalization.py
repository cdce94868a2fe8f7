"""Normalisation: what stands in the normalisation slots of a layer and of a stack."""

from collections.abc import Callable
from typing import Any

from attnbook.arrays.arguments import check_choice
from attnbook.arrays.array import Array
from attnbook.normalization.layer_norm import LayerNormWeights, layer_norm_of
from attnbook.normalization.rms_norm import RMSNormWeights, rms_norm_of

NormWeights = LayerNormWeights | RMSNormWeights
"""The weights that a slot takes."""

NORMALIZATIONS = ("layer", "rms")
"""The names that ``normalization=`` takes."""


NORMALIZED: dict[type, Callable[[Array, Any], Array]] = {
    LayerNormWeights: layer_norm_of,
    RMSNormWeights: rms_norm_of,
}
"""The function of each class of weights: ``NORMALIZED[type(weights)](x, weights)``."""


def first_norm(kind: str, d_model: int, *, bias: bool = True) -> Any:
    """Return gains of 1, and biases of 0 for the ``"layer"`` norm with `bias`."""
    check_choice("normalization", kind, NORMALIZATIONS)
    if kind == "rms":
        return RMSNormWeights.init(d_model)
    return LayerNormWeights.init(d_model, bias=bias)
