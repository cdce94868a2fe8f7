"""T5 of the hub in this package: outputs, every layer and what is decoded, against theirs."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tiny_models
from tiny_models import (
    KEEP,
    assert_same,
    bound_of,
    cut_after,
    numbers,
    tokens,
    torch,
    weights_of,
    written,
)

import attnbook
from attnbook import decoding
from attnbook.models import from_transformers
from attnbook.transformers.transformer import encode

T5S = {
    "t5 1.0": tiny_models.t5,
    "t5 1.0, one layer, many tokens": partial(
        tiny_models.t5,
        num_layers=1,
        num_decoder_layers=1,
        relative_attention_num_buckets=32,
        relative_attention_max_distance=128,
        layer_norm_epsilon=0.1,
    ),
    "t5 1.1": partial(
        tiny_models.t5, untied=True, feed_forward_proj="gated-gelu", tie_word_embeddings=False
    ),
    "t5 1.1, tied": partial(
        tiny_models.t5, feed_forward_proj="gated-silu", tie_word_embeddings=False
    ),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", T5S)
def test_t5_gives_their_logits_and_every_layer(name, library, dtype):
    model, many = T5S[name](), "many" in name
    source, target = tokens(n=150 if many else 7), tokens(seed=1, n=140 if many else 5)
    real = np.arange(source.shape[1]) < source.shape[1] - np.array([[0], [2], [5]])
    given = {"input_ids": source, "attention_mask": real, "decoder_input_ids": target}
    given = {name: torch.tensor(x) for name, x in given.items()}
    exact = model(**given, output_hidden_states=True, use_cache=False)
    weights, mask = weights_of(model), library.array(real[:, None, None])
    source, target = library.array(source), library.array(target)
    for n, states in enumerate(exact.encoder_hidden_states):
        layers = weights.encoder.layers[:n]
        norm = weights.encoder.final_norm if n == len(weights.encoder.layers) else None
        cut = replace(weights, encoder=replace(weights.encoder, layers=layers, final_norm=norm))
        got = encode(source, library.place(cut, dtype), mask)
        assert_same(library.numpy(got), states, bound_of(name, dtype))
    ours = [cut_after(weights, n) for n in range(len(exact.decoder_hidden_states))]
    theirs_too = (*exact.decoder_hidden_states, exact.logits)
    for cut, states in zip((*ours, weights), theirs_too, strict=True):
        got = attnbook.transformer(source, target, library.place(cut, dtype), source_mask=mask)
        assert_same(library.numpy(got), states, bound_of(name, dtype))


@pytest.mark.parametrize("name", ["t5 1.0", "t5 1.1"])
def test_t5_with_a_cache_writes_what_theirs_generates(name, library):
    ids, make = tokens(seed=1), partial(T5S[name], num_layers=2, num_decoder_layers=2)
    model, made = written(make, ids, n=9, attention_mask=torch.tensor(KEEP))
    got = decoding.greedy_decode(
        *(library.place(weights_of(model)), library.array(ids)),
        **{"prompt": 0, "source_lengths": KEEP.sum(axis=1), "max_length": 9, "stop": 1},
    )
    got = library.numpy(got.tokens)
    np.testing.assert_array_equal(got, made[:, : got.shape[1]])


@pytest.mark.parametrize("name", ["t5 1.0", "t5 1.1, tied"])
def test_a_file_that_holds_the_embedding_once_is_the_same(name):
    model = T5S[name]()
    state = {n: numbers(x) for n, x in model.state_dict().items()}
    once = {n: x for n, x in state.items() if "embed_tokens" not in n and n != "lm_head.weight"}
    assert len(once) == len(state) - 3
    once["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = np.ones((6, 3))
    weights, ids = from_transformers(once, model.config), tokens()
    assert (weights.output is None) == (name == "t5 1.1, tied")
    got = attnbook.transformer(ids, ids, weights)
    exact = model(input_ids=torch.tensor(ids), decoder_input_ids=torch.tensor(ids), use_cache=False)
    assert_same(got, exact.logits, bound_of(name, "float64"))


def test_an_output_of_its_own_must_be_there():
    model = T5S["t5 1.1"]()
    config = {**model.config.to_dict(), "tie_word_embeddings": False}
    state = {n: x for n, x in model.state_dict().items() if n != "lm_head.weight"}
    with pytest.raises(ValueError, match=r"got lm_head\.weight missing and none unknown$"):
        from_transformers(state, config)
