"""The script that measures what the writer loses without each of its heads."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnbook import TransformerWeights
from attnbook.data import BytePairs, plays
from attnbook.models import LanguageModel

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import heads_of_writer

TEXT = plays().texts["Macbeth"][:200]


def small():
    tokenizer = BytePairs.learn(TEXT, 260)
    sizes = {"d_model": 12, "n_heads": 6, "n_kv_heads": 2, "d_ff": 17, "n_layers": 3}
    weights = TransformerWeights.init(
        5, 260, n_encoder_layers=0, bias=False, scale_embeddings=False, positions="rotary", **sizes
    )
    arrays = {name: 3 * x if x.ndim == 2 else x for name, x in weights.arrays().items()}
    return LanguageModel(weights.with_arrays(arrays), tokenizer, 256)


def test_a_head_of_zeros_is_one_without_its_rows_of_the_output_matrix():
    model, layer, head = small(), 1, 4
    impl = heads_of_writer.without(3, {(layer, head): np.zeros(2)})
    attention = model.weights.decoder.layers[layer].self_attention
    rows = attention.W_O.copy()
    rows[2 * head : 2 * head + 2] = 0
    layers = list(model.weights.decoder.layers)
    layers[layer] = replace(layers[layer], self_attention=replace(attention, W_O=rows))
    decoder = replace(model.weights.decoder, layers=tuple(layers))
    expected = replace(model, weights=replace(model.weights, decoder=decoder))
    found = model.logits(TEXT, impl=impl)
    np.testing.assert_allclose(found, expected.logits(TEXT), atol=1e-12)
    assert np.abs(found - model.logits(TEXT)).max() > 1e-3


def test_mean_outputs_are_those_of_every_head_over_all_tokens():
    model, texts = small(), [TEXT[:50], TEXT]
    found = heads_of_writer.mean_outputs(model, texts)
    assert found.shape == (3, 6, 2)
    for layer in range(3):
        outputs = []
        for text in texts:
            A, value = model.attention(text)[layer], model.heads(text, layer)[2]
            outputs.append(A @ value)  # (h, n, d)
        expected = np.concatenate(outputs, axis=1).mean(axis=1)
        np.testing.assert_allclose(found[layer], expected, atol=1e-12)


@pytest.mark.weekly
def test_what_is_measured(monkeypatch):
    monkeypatch.setattr(heads_of_writer, "CHARACTERS", 250)
    model = small()
    found = heads_of_writer.measured(model, 2)
    assert np.shape(found["mean"]) == np.shape(found["zero"]) == (3, 6)
    assert found["removed"][0] == 0
    assert found["least_needed_first"][0] == found["whole"]
    alone = heads_of_writer.passages(plays().validation, 2)
    bits = sum(model.surprisal(text).sum() for text in alone) / sum(map(len, alone))
    np.testing.assert_allclose(found["whole"], bits, rtol=1e-9)
    lasts = {curve[-1] for curve in [found["least_needed_first"], *found["at_random"]]}
    assert max(lasts) - min(lasts) < 1e-9  # without any head the order means nothing
