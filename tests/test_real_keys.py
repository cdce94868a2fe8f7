"""Queries, keys and values that benchmarks take from trained models."""

import math

import numpy as np
import pytest
import torch

from attnbook import attention, transformer
from attnbook.data import plays
from attnbook.models import writer
from benchmarks import real_keys


def test_heads_are_those_of_the_writer():
    heads = real_keys.layers(40)[2].repeated()
    model = writer()
    seen = []

    def attend(query, key, value, mask, bias, scale, is_causal):
        seen.append((query, key, value))
        return attention(query, key, value, mask, scale=scale, is_causal=is_causal)

    transformer(None, real_keys.text()[:40], model.weights, impl=attend)
    for got, expected in zip(heads, seen[2], strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-4)


def test_the_text_is_that_of_the_plays():
    data, model = plays(), writer()
    first = data.titles["test"][0]
    ids = real_keys.text("test")
    assert ids[0] == model.tokenizer.stop
    assert data.texts[first].startswith(model.tokenizer.decode(ids[1:200].tolist()))


def test_the_loss_is_the_cross_entropy_of_pytorch():
    ids = torch.tensor(real_keys.window(50, "test"))
    logits = transformer(None, ids[:-1], writer().to("torch").weights)
    expected = float(torch.nn.functional.cross_entropy(logits, ids[1:]))
    found = real_keys.losses("reference", 50, part="test").mean()
    assert math.isclose(found, expected, rel_tol=1e-5)


def test_a_worse_attention_has_a_larger_loss():
    def blind(query, key, value, *how):
        return np.zeros_like(value)

    assert real_keys.losses(blind, 100).mean() > real_keys.losses("reference", 100).mean()


def test_a_window_past_the_end():
    with pytest.raises(ValueError, match="i must leave n"):
        real_keys.window(4096, i=1000)


def test_tokens_of_the_encoder_attend_within_their_line():
    try:
        (heads,) = real_keys.encoder_layers((0,), 300)
    except (ImportError, FileNotFoundError) as error:
        pytest.skip(str(error))
    assert [x.shape for x in heads] == [(12, 300, 32)] * 3
    # the first token of each line, [CLS], has one vector in layer 0, wherever it stands
    assert len(np.unique(heads.key[0].round(4), axis=0)) < 300
