"""The arrays of a whole transformer: drawing them, counting them, and parts that do not fit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from error_table import error_test

import attnbook
from attnbook import DecoderWeights, EncoderWeights, LayerNormWeights, TransformerWeights
from attnbook.arrays.projections import xavier
from attnbook.positions import Alibi, Rotary

SIZES = {"d_model": 6, "n_heads": 3, "d_ff": 5, "n_layers": 2}


def init(rng=0, *vocabularies, **options):
    return TransformerWeights.init(rng, *(vocabularies or (7,)), **(SIZES | options))


def same(got, expected):
    """Assert that two trees hold equal arrays under equal names."""
    got, expected = got.arrays(), expected.arrays()
    assert list(got) == list(expected)
    for name, x in expected.items():
        assert got[name].dtype == np.float64
        np.testing.assert_array_equal(got[name], x, err_msg=name)


# init


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("vocabularies", [(7,), (7, 11)])
@pytest.mark.parametrize("bias", [False, True])
def test_init_draws_in_a_fixed_order(tied, positions, vocabularies, bias):
    options = {"bias": bias, "norm": "post", "activation": "gelu", "n_kv_heads": 1}
    options |= {"final_norm": True}
    n_positions = 4 if positions == "learned" else None
    weights = init(
        *(np.random.default_rng(3), *vocabularies),
        **(options | {"tied": tied, "positions": positions, "n_positions": n_positions}),
        n_encoder_layers=1,
    )
    rng = np.random.default_rng(3)
    tables = {}
    if positions == "learned":
        tables = {f"{side}_positions": xavier(rng, 4, 6) for side in ("target", "source")}
    if len(vocabularies) == 2:
        tables["source_embedding"] = xavier(rng, 11, 6)
    if not tied:
        tables["output"] = xavier(rng, 6, 7)
        if bias:
            tables["b_out"] = np.zeros(7)
    encoder = EncoderWeights.init(rng, 1, 6, 3, 5, **options)
    decoder = DecoderWeights.init(rng, 2, 6, 3, 5, **options)
    embedding = xavier(rng, 7, 6)
    same(
        weights,
        TransformerWeights(decoder, encoder, embedding, **tables, positions=positions),
    )
    assert weights.positions == positions
    assert weights.scale_embeddings is True
    assert {one.norm for one in (*weights.encoder.layers, *weights.decoder.layers)} == {"post"}
    same(weights, init(3, *vocabularies, **(options | {
        "tied": tied, "positions": positions, "n_positions": n_positions, "n_encoder_layers": 1,
    })))  # fmt: skip


def test_init_of_a_decoder_alone_draws_no_source():
    weights = init(3, n_encoder_layers=0, positions="learned", n_positions=4, tied=False)
    rng = np.random.default_rng(3)
    tables = {"target_positions": xavier(rng, 4, 6), "output": xavier(rng, 6, 7)}
    decoder = DecoderWeights.init(rng, 2, 6, 3, 5, cross=False)
    embedding = xavier(rng, 7, 6)
    same(
        weights,
        TransformerWeights(
            decoder, None, embedding, **tables, b_out=np.zeros(7), positions="learned"
        ),
    )
    assert weights.encoder is None
    assert all(layer.cross_attention is None for layer in weights.decoder.layers)


def test_init_defaults():
    weights = init()
    assert (len(weights.encoder.layers), len(weights.decoder.layers)) == (2, 2)
    assert (weights.positions, weights.scale_embeddings) == ("sinusoidal", True)
    assert init(positions=Alibi()).positions == "none"
    assert init(positions=Rotary()).positions == "rotary"
    assert weights.output is weights.b_out is weights.source_embedding is None
    assert weights.target_positions is weights.source_positions is None
    layer = weights.decoder.layers[0]
    assert (layer.norm, layer.feed_forward.activation) == ("pre", "relu")
    assert layer.self_attention.n_kv_heads == 3
    assert layer.feed_forward.b_1 is not None
    assert weights.encoder.final_norm is not None
    assert init(norm="post").decoder.final_norm is None
    assert init(final_norm=False).decoder.final_norm is None
    assert init(tied=False).b_out is not None
    assert init(tied=False, bias=False).b_out is None
    bare = TransformerWeights(DecoderWeights(()))
    assert (bare.positions, bare.scale_embeddings, bare.arrays()) == ("sinusoidal", True, {})


# The class itself.


def test_embedding_is_shared_unless_there_are_two():
    both, shared = init(0, 7, 11), init()
    assert both.embedding("source") is both.source_embedding
    assert both.embedding("target") is both.target_embedding
    assert shared.embedding("source") is shared.embedding("target") is shared.target_embedding
    assert TransformerWeights(DecoderWeights(())).embedding("source") is None


def test_d_model_is_the_width_of_whatever_is_there():
    nothing, decoder = DecoderWeights(()), init().decoder
    alone = replace(init(n_encoder_layers=0), target_embedding=None)
    assert init().d_model == alone.d_model == 6
    encoder = EncoderWeights.init(0, 1, 4, 2, 3, norm="post")
    assert TransformerWeights(nothing, encoder).d_model == 4
    assert TransformerWeights(nothing, target_embedding=np.ones((7, 2))).d_model == 2
    assert TransformerWeights(DecoderWeights((), LayerNormWeights.init(5))).d_model == 5
    assert TransformerWeights(nothing).d_model is None
    assert TransformerWeights(DecoderWeights((), LayerNormWeights())).d_model is None
    assert TransformerWeights(decoder, EncoderWeights(())).d_model == 6


def test_parts_that_fit_are_taken():
    weights = init(0, 7, 11)
    wide = init(tied=False)
    replace(weights, scale_embeddings=False)
    replace(weights, b_out=np.ones(7))  # a bias beside a tied output
    replace(weights, output=np.ones((6, 7)))
    replace(weights, target_embedding=None, source_embedding=None)
    replace(wide, target_embedding=None, output=np.ones((6, 3)), b_out=np.ones(3))
    odd = {"d_model": 9, "n_heads": 3}
    for positions in ("learned", "none"):
        n_positions = 4 if positions == "learned" else None
        assert init(**odd, positions=positions, n_positions=n_positions).d_model == 9
    sines = replace(init(**odd, positions="none"), target_embedding=None)
    replace(sines, positions="sinusoidal")  # nothing to add them to


# Errors.


def part(**parts):
    return replace(init(0, 7, 11), **parts)


def alone(**parts):
    return replace(init(n_encoder_layers=0), **parts)


def of_features(**parts):
    weights = replace(init(), target_embedding=None)
    return replace(weights, **parts)


OTHER = EncoderWeights.init(0, 1, 4, 2, 3)
ERRORS = """
part(decoder=None)
    TypeError: decoder must be DecoderWeights, got NoneType
part(encoder=init().decoder)
    TypeError: encoder must be EncoderWeights, got DecoderWeights
part(positions="sines")
    ValueError: positions must be one of sinusoidal, interleaved, learned, rotary, none, got
    'sines'
part(scale_embeddings=1)
    TypeError: scale_embeddings must be a bool, got int
part(encoder=init().encoder.to(dtype="float32"))
    TypeError: encoder.layers.0.self_attention.W_Q must have the dtype of
    decoder.layers.0.self_attention.W_Q (float64), got float32
part(target_embedding=torch.ones(7, 6, dtype=torch.float64))
    TypeError: target_embedding must be an array of the same library as
    decoder.layers.0.self_attention.W_Q (numpy), got torch
part(encoder=None, source_embedding=None)
    ValueError: decoder must have no cross-attention where there is no encoder
part(decoder=init(n_encoder_layers=0).decoder)
    ValueError: decoder must have a cross-attention where there is an encoder
part(target_embedding=None)
    ValueError: source_embedding must be None where there is no target_embedding
alone(source_embedding=np.ones((11, 6)))
    ValueError: source_embedding must be None where there is no encoder
of_features(target_positions=np.ones((4, 6)))
    ValueError: target_positions must be None where there is no target_embedding
of_features(b_out=np.ones(7))
    ValueError: b_out must be None where there is no output
part(positions="learned")
    ValueError: target_positions must be an array with positions="learned"
part(positions="learned", target_positions=np.ones((4, 6)))
    ValueError: source_positions must be an array with positions="learned"
part(target_positions=np.ones((4, 6)))
    ValueError: target_positions must be None with positions="sinusoidal"
alone(positions="learned", target_positions=np.ones((4, 6)), source_positions=np.ones((4, 6)))
    ValueError: source_positions must be None with positions="learned"
part(target_embedding=np.ones((7, 8)))
    ValueError: all parts must have one width d_model, got target_embedding 8, source_embedding
    6, decoder 6, decoder.final_norm.gain 6, decoder.final_norm.bias 6, encoder 6,
    encoder.final_norm.gain 6, encoder.final_norm.bias 6, the decoder's memory 6
TransformerWeights(DecoderWeights.init(0, 1, 6, 3, 5, norm="post"), OTHER)
    ValueError: all parts must have one width d_model, got decoder 6, encoder 4,
    encoder.final_norm.gain 4, encoder.final_norm.bias 4, the decoder's memory 6
TransformerWeights(DecoderWeights((), LayerNormWeights(np.ones(4))),
target_embedding=np.ones((7, 6)))
    ValueError: all parts must have one width d_model, got target_embedding 6,
    decoder.final_norm.gain 4
TransformerWeights(DecoderWeights((replace(attnbook.DecoderLayerWeights.init(0, 6, 3, 5),
cross_attention=MultiHeadWeights.init(0, 6, 3, d_key=8)),)), EncoderWeights.init(0, 1, 6, 3, 5,
norm="post"))
    ValueError: all parts must have one width d_model, got decoder 6, encoder 6, the decoder's
    memory 8
part(target_embedding=np.ones(6))
    ValueError: target_embedding must have 2 axes, got shape (6,)
part(b_out=np.ones((1, 7)))
    ValueError: b_out must have 1 axis, got shape (1, 7)
part(output=np.ones((6, 11)))
    ValueError: output must have 7 entries on its last axis, one for each token of the target,
    got shape (6, 11)
part(b_out=np.ones(11))
    ValueError: b_out must have 7 entries on its last axis, one for each token of the target,
    got shape (11,)
of_features(output=np.ones((6, 3)), b_out=np.ones(4))
    ValueError: b_out must have 3 entries on its last axis, one for each token of the target,
    got shape (4,)
init(d_model=9, positions="rotary")
    ValueError: d_k must be even with positions="rotary", got 3
replace(init(n_heads=3, positions="rotary"), decoder=DecoderWeights.init(0, 1, 6, 2, 5))
    ValueError: d_k must be even with positions="rotary", got 3
replace(init(n_heads=3, positions="rotary"), encoder=EncoderWeights.init(0, 1, 6, 2, 5))
    ValueError: d_k must be even with positions="rotary", got 3
init(d_model=9)
    ValueError: d_model must be even with positions="sinusoidal", got 9
init(d_model=9, positions="interleaved")
    ValueError: d_model must be even with positions="interleaved", got 9
init(0, 0)
    ValueError: target_vocabulary must be at least 1, got 0
init(0, 7, 0)
    ValueError: source_vocabulary must be at least 1, got 0
init(d_model=0, n_layers=0, final_norm=False)
    ValueError: d_model must be at least 1, got 0
init(0, 7, 11, n_encoder_layers=0)
    ValueError: source_vocabulary must be None where there is no encoder, got 11
init(n_layers=-1)
    ValueError: n_layers must be at least 0, got -1
init(n_encoder_layers=-1)
    ValueError: n_encoder_layers must be at least 0, got -1
init(n_positions=4)
    ValueError: n_positions must be given with positions="learned" and only then, got 4 with
    'sinusoidal'
init(positions="learned")
    ValueError: n_positions must be given with positions="learned" and only then, got None with
    'learned'
init(positions="learned", n_positions=0)
    ValueError: n_positions must be at least 1, got 0
init(tied="no")
    TypeError: tied must be a bool, got str
init(bias=1)
    TypeError: bias must be a bool, got int
"""

test_error = error_test(ERRORS, vars(attnbook) | globals() | {"torch": torch})
