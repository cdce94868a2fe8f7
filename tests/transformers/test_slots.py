"""The slots of a layer: the class of the weights in a slot says which function is called."""

from dataclasses import dataclass, replace

import numpy as np

import attnbook
from attnbook import (
    DecoderLayerWeights,
    EncoderLayerWeights,
    FeedForwardWeights,
    MultiHeadWeights,
)
from attnbook.transformers.feed_forward import feed_forward_of
from attnbook.transformers.networks import NETWORKS
from attnbook.transformers.self_attention import (
    SELF_ATTENTIONS,
    multi_head_self_attention_of,
)


@dataclass(frozen=True, eq=False)
class TwiceWeights(MultiHeadWeights):
    """Weights of another class, whose function doubles what the heads make."""


@dataclass(frozen=True, eq=False)
class NegatedWeights(FeedForwardWeights):
    """Weights of another class, whose function negates what the network makes."""


def test_the_class_of_the_weights_says_which_function_a_sublayer_calls(monkeypatch):
    plain = DecoderLayerWeights.init(0, 8, 2, 5, cross=False)
    own, network = plain.self_attention, plain.feed_forward

    def twice(x, weights, options, keep=None):
        return 2 * multi_head_self_attention_of(x, weights, options, keep)

    def negated(x, weights, drop):
        return -feed_forward_of(x, weights, drop)

    monkeypatch.setitem(SELF_ATTENTIONS, TwiceWeights, twice)
    monkeypatch.setitem(NETWORKS, NegatedWeights, negated)
    other = replace(
        plain,
        self_attention=TwiceWeights.unchecked(vars(own)),
        feed_forward=NegatedWeights.unchecked(vars(network)),
    )
    same = replace(
        plain,
        self_attention=replace(own, W_O=2 * own.W_O, b_O=2 * own.b_O),
        feed_forward=replace(network, W_2=-network.W_2, b_2=-network.b_2),
    )
    x = np.random.default_rng(1).normal(size=(3, 5, 8))
    want = attnbook.decoder_layer(x, None, same)
    np.testing.assert_allclose(attnbook.decoder_layer(x, None, other), want, atol=1e-12)
    as_encoder = [
        EncoderLayerWeights(
            layer.self_attention,
            layer.feed_forward,
            layer.self_attention_norm,
            layer.feed_forward_norm,
        )
        for layer in (same, other)
    ]
    want, got = [attnbook.encoder_layer(x, layer) for layer in as_encoder]
    np.testing.assert_allclose(got, want, atol=1e-12)
