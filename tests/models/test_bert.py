"""BERT against `transformers`: every layer, the attention weights, padding, half precision."""

from dataclasses import replace

import numpy as np
import pytest
import tiny_models
import torch
from cases import EPSILON, need, recorded
from error_table import assert_raises, error_rows

from attnbook import EncoderWeights, LayerNormWeights, masking
from attnbook.models import BertWeights, bert

IDS = np.random.default_rng(0).integers(1, 29, (5, 11))
LENGTHS = np.array([11, 1, 7, 3, 11])
TYPES = np.arange(11) // 4 + np.zeros((5, 1), int)
REAL = np.arange(11) < LENGTHS[:, None]
MASK = masking.padding(LENGTHS[:, None], 11)


@pytest.fixture(scope="module")
def judge():
    return tiny_models.bert(attn_implementation="eager")


@pytest.fixture(scope="module")
def weights(judge):
    return tiny_models.weights_of(judge)


def judged(model, types):
    """Return what `model` makes of the batch: hidden states, from embeddings to last, and A."""
    given = {"input_ids": IDS, "attention_mask": REAL, "token_type_ids": types}
    given = {name: torch.tensor(x) for name, x in given.items() if x is not None}
    with torch.no_grad():
        got = model(**given, output_hidden_states=True, output_attentions=True)
    return [x.numpy() for x in got.hidden_states], [x.numpy() for x in got.attentions]


def first_layers(weights, n):
    return replace(weights, encoder=EncoderWeights(weights.encoder.layers[:n]))


@pytest.mark.parametrize("types", [None, TYPES], ids=["one part", "three parts"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_layer_is_that_of_transformers(library, judge, weights, dtype, types):
    weights = library.place(weights, dtype)
    ids, mask = library.array(IDS), library.array(MASK)
    parts = None if types is None else library.array(types)
    hidden, attentions = judged(judge, types)
    bound = 1e-5 if dtype == "float32" else 1e-12
    for n, expected in enumerate(hidden):
        got = bert(ids, first_layers(weights, n), mask, token_types=parts)
        assert library.same_kind(got, weights.token_embedding)
        np.testing.assert_allclose(library.numpy(got)[REAL], expected[REAL], rtol=0, atol=bound)
    same, A = recorded(bert, ids, weights, mask, token_types=parts)
    np.testing.assert_array_equal(library.numpy(same), library.numpy(got))
    assert len(A) == 3
    for ours, theirs in zip(A, attentions, strict=True):
        drift = np.abs(library.numpy(ours) - theirs).max(axis=(1, 3))
        assert drift[REAL].max() < bound


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_drifts_no_more_than_that_of_transformers(library, judge, weights, dtype):
    need(library, dtype)
    given = library.array(IDS), library.place(weights, dtype), library.array(MASK)
    exact = judged(judge, None)[0][-1]
    half = tiny_models.bert(attn_implementation="eager").to(getattr(torch, dtype))
    theirs = half(torch.tensor(IDS), torch.tensor(REAL)).last_hidden_state.double().detach().numpy()
    allowed = 2 * np.abs(theirs - exact)[REAL].max() + 8 * EPSILON[dtype]
    assert np.abs(library.numpy(bert(*given)) - exact)[REAL].max() < allowed


def test_every_implementation_agrees(weights):
    for impl in ("naive", "in_place", "tiled"):
        got = bert(IDS, weights, MASK, impl=impl)[REAL]
        np.testing.assert_allclose(got, bert(IDS, weights, MASK)[REAL], atol=1e-12)


@pytest.mark.parametrize("impl", ["reference", "tiled"])
def test_a_rule_hides_what_its_mask_hides(weights, impl):
    got = bert(IDS, weights, masking.FirstKeys(LENGTHS), impl=impl)[REAL]
    np.testing.assert_allclose(got, bert(IDS, weights, MASK)[REAL], atol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "gelu_new"])
def test_options_of_the_config_are_heard(activation):
    model = tiny_models.bert(hidden_act=activation, layer_norm_eps=0.1)
    got = bert(IDS, tiny_models.weights_of(model), MASK)[REAL]
    np.testing.assert_allclose(got, judged(model, None)[0][-1][REAL], atol=1e-12)


def test_no_token_and_no_layer(weights):
    assert bert(IDS[:, :0], weights).shape == (5, 0, 14)
    assert recorded(bert, IDS, first_layers(weights, 0))[1] == []


TABLE = np.ones((7, 14))
MADE = BertWeights
NORM, NARROW = LayerNormWeights.init(14), LayerNormWeights.init(3)
ENCODER = EncoderWeights.init(0, 3, 14, 2, 19)
ERRORS = """
bert(IDS + 0.0, weights)
    TypeError: ids must be an array of integers, got float64
bert(IDS + 1, weights)
    ValueError: ids must be from 0 to 28 to be known to token_embedding, got 29
bert(np.ones((1, 14), int), weights)
    ValueError: ids must have at most 13 tokens, as many as positions, got 14
bert(IDS, ENCODER)
    TypeError: weights must be BertWeights, got EncoderWeights
bert(IDS, weights, token_types=TYPES + 1)
    ValueError: token_types must be from 0 to 2 to be known to token_type_embedding, got 3
bert(IDS, weights, token_types=TYPES[0])
    ValueError: token_types must have the shape of ids, (5, 11), got (11,)
bert(IDS, weights, REAL)
    ValueError: mask must broadcast to (..., h, n_q, n_k) = (5, 2, 11, 11), got (5, 11);
    one row of keys per sequence is mask[:, None, None]
bert(IDS, weights, masking.FirstKeys([1, 2]))
    ValueError: mask must be a rule whose leading axes broadcast to those of the sequences (5,),
    got (2,)
MADE(TABLE, TABLE[:0], TABLE, NORM, ENCODER)
    ValueError: position_embedding must have at least 1 row, got shape (0, 14)
MADE(TABLE, TABLE, TABLE[:, :5], NORM, ENCODER)
    ValueError: all parts must have one width d_model, got token_embedding 14,
    position_embedding 14, token_type_embedding 5, embedding_norm.gain 14,
    embedding_norm.bias 14, encoder 14
MADE(TABLE, TABLE, TABLE, NARROW, ENCODER)
    ValueError: all parts must have one width d_model, got token_embedding 14,
    position_embedding 14, token_type_embedding 14, embedding_norm.gain 3,
    embedding_norm.bias 3, encoder 14
"""


@pytest.mark.parametrize(("call", "kind", "message"), error_rows(ERRORS))
def test_error(weights, call, kind, message):
    assert_raises(call, kind, message, {**globals(), "weights": weights})


def test_an_unknown_implementation_is_refused(weights):
    with pytest.raises(ValueError, match=r"^impl must be one of .*, got 'quick'$"):
        bert(IDS, weights, impl="quick")
