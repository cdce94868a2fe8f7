"""The small modules of language models against PyTorch's own, and what PyTorch cannot hold."""

import numpy as np
import pytest
import torch
from cases import shaken
from error_table import error_test

import attnbook as ab
from attnbook import nn, positions

X = torch.tensor(np.random.default_rng(0).standard_normal((2, 5, 8)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("eps", "gain"), [(None, True), (1e-3, True), (1e-3, False)])
def test_rms_norm_goes_there_and_back(dtype, eps, gain):
    theirs = torch.nn.RMSNorm(8, eps, elementwise_affine=gain, dtype=getattr(torch, dtype))
    if gain:
        theirs.weight.data += torch.linspace(-1, 1, 8)
    ours, x = nn.RMSNorm.from_torch(theirs), X.to(getattr(torch, dtype)) * 1e-3
    assert ours.epsilon == (torch.finfo(x.dtype).eps if eps is None else eps)
    torch.testing.assert_close(ours(x), theirs(x))
    if gain:
        assert ours.gain is not theirs.weight
        back = ours.to_torch()
        torch.testing.assert_close(back(x), theirs(x))
        other = nn.RMSNorm(ab.RMSNormWeights(torch.ones(8, dtype=x.dtype), ours.epsilon))
        assert other.load_state_dict(theirs.state_dict()).missing_keys == []
        torch.testing.assert_close(other(x), theirs(x))


def test_a_stack_may_end_in_an_rms_norm_of_pytorch():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 5, batch_first=True, dtype=torch.float64)
    norm = torch.nn.RMSNorm(8, 1e-5, dtype=torch.float64)
    theirs = torch.nn.TransformerEncoder(layer, 1, norm, enable_nested_tensor=False).eval()
    ours = nn.Encoder.from_torch(theirs)
    assert isinstance(ours.final_norm, nn.RMSNorm)
    torch.testing.assert_close(ours(X), theirs(X))
    torch.testing.assert_close(ours.to_torch()(X), theirs(X))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_layers_of_pytorch_keep_their_activation(activation):
    weights = ab.EncoderLayerWeights.init(0, 8, 2, 5, activation=activation)
    ours = nn.EncoderLayer(shaken(weights))
    theirs = ours.to_torch()
    torch.testing.assert_close(theirs(X), ours(X))
    again = nn.EncoderLayer.from_torch(theirs)
    assert again.feed_forward.activation == activation
    torch.testing.assert_close(again(X), ours(X))


def test_relative_bias_is_a_parameter():
    table = np.random.default_rng(0).standard_normal((8, 2))
    piece = positions.RelativeBias(table, max_distance=9)
    module = nn.RelativeBias(piece)
    expected = piece.bias(2, 3, 7, table)
    np.testing.assert_array_equal(module(3, 7).detach(), expected)
    module(3, 7).sum().backward()
    assert module.table.grad.sum() == 2 * 3 * 7
    assert (module.bidirectional, module.max_distance) == (True, 9)


ERRORS = """
nn.RMSNorm.from_torch(torch.nn.LayerNorm(8))
    TypeError: module must be a torch.nn.RMSNorm, got LayerNorm
nn.RMSNorm.from_torch(torch.nn.RMSNorm((3, 8)))
    ValueError: module must normalise the last axis alone, got shape (3, 8)
nn.RMSNorm.from_torch(torch.nn.RMSNorm(8, elementwise_affine=False))
    ValueError: module must have a weight or an eps, got None for both
nn.RMSNorm(ab.RMSNormWeights()).to_torch()
    ValueError: gain must be an array to fit torch.nn.RMSNorm, got None
nn.RMSNorm(ab.LayerNormWeights())
    TypeError: weights must be RMSNormWeights, got LayerNormWeights
nn.Encoder(ab.EncoderWeights.init(0, 1, 8, 2, 5, gated=True)).to_torch()
    ValueError: feed_forward must be FeedForward to fit torch.nn.TransformerEncoderLayer,
    got GatedFeedForward
"""

test_error = error_test(ERRORS, globals())
