"""The feed-forward networks: what stands in the slot behind the attention of a layer."""

from collections.abc import Callable

from attnbook.arrays.array import Array
from attnbook.transformers.feed_forward import (
    FeedForwardWeights,
    GatedFeedForwardWeights,
    feed_forward_of,
)
from attnbook.transformers.mixture import MixtureWeights, mixture_of

NetworkWeights = FeedForwardWeights | GatedFeedForwardWeights | MixtureWeights
"""The weights that the slot takes."""

NETWORKS: dict[type, Callable[..., Array]] = {
    FeedForwardWeights: feed_forward_of,
    GatedFeedForwardWeights: feed_forward_of,
    MixtureWeights: mixture_of,
}
"""The function of each class of weights: ``NETWORKS[type(weights)](x, weights, drop)``."""
