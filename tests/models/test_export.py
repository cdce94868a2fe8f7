"""Models that go to `transformers` compute the same there, and come back the same."""

from dataclasses import replace

import numpy as np
import pytest
from error_table import error_test
from tiny_models import SPECIAL, theirs, tokens, torch

import attnbook as ab
from attnbook.data import HubTokenizer
from attnbook.models import (
    LanguageModel,
    from_transformers,
    save_for_transformers,
    to_transformers,
    writer,
)
from attnbook.positions import Rotary

LLAMA = {
    **{"d_model": 12, "n_heads": 6, "n_kv_heads": 2, "d_ff": 17, "n_layers": 3},
    **{"n_encoder_layers": 0, "normalization": "rms", "gated": True, "activation": "silu"},
    **{"positions": "rotary", "scale_embeddings": False},
}
GPT2 = {
    **{"d_model": 12, "n_heads": 3, "d_ff": 17, "n_layers": 2, "n_encoder_layers": 0},
    **{"activation": "gelu_tanh", "positions": "learned", "n_positions": 13},
    **{"scale_embeddings": False},
}
MODELS = {
    "writer": lambda: writer().weights,
    "llama": lambda: random(**LLAMA, bias=False),
    "llama with biases, untied": lambda: random(**LLAMA, tied=False, bias=True, b_out=None),
    "llama of another base": lambda: random(**LLAMA | {"positions": Rotary(500.0)}, bias=False),
    "gpt2": lambda: random(**GPT2),
    "gpt2 untied": lambda: random(**GPT2, tied=False, b_out=None),
}


def random(b_out="kept", **options):
    """Return weights with every number random."""
    weights = ab.TransformerWeights.init(0, 29, **options)
    if b_out is None:
        weights = replace(weights, b_out=None)
    rng = np.random.default_rng(1)
    arrays = weights.arrays().items()
    return weights.with_arrays({name: x + rng.normal(0, 0.3, x.shape) for name, x in arrays})


@pytest.mark.parametrize("name", MODELS)
def test_transformers_computes_the_same_logits(name, library):
    weights = MODELS[name]().to(dtype="float64")
    state_dict, config = to_transformers(library.place(weights), context=99)
    state_dict = {key: torch.tensor(library.numpy(x)) for key, x in state_dict.items()}
    config = theirs.AutoConfig.for_model(**SPECIAL | config)
    judge = theirs.AutoModelForCausalLM.from_config(config).double().eval()
    missing = judge.load_state_dict(state_dict, strict=False)
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    assert not missing.unexpected_keys
    judge.tie_weights()
    ids = tokens()
    with torch.no_grad():
        expected = judge(torch.tensor(ids)).logits.numpy()
    got = ab.transformer(None, ids, weights)
    # their rotations and normalisations are computed in float32
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", MODELS)
def test_it_comes_back_the_same(name):
    weights = MODELS[name]()
    again = from_transformers(*to_transformers(weights))
    for key, x in weights.arrays().items():
        np.testing.assert_array_equal(again.arrays()[key], x)
    np.testing.assert_allclose(
        ab.transformer(None, tokens(), again), ab.transformer(None, tokens(), weights), rtol=1e-6
    )


@pytest.mark.parametrize("kind", ["bytes", "hub"])
def test_a_saved_model_writes_the_same_there(tmp_path, kind):
    model = writer()
    if kind == "hub":
        hub = HubTokenizer.from_byte_pairs(model.tokenizer)
        model = LanguageModel(model.weights, hub, model.context)
    folder = tmp_path / "new" / "writer"
    save_for_transformers(model, folder)
    judge = theirs.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = theirs.AutoTokenizer.from_pretrained(folder)
    assert judge.config.max_position_embeddings == model.context
    prompt = "HAMLET:\nTo be, or not to be"
    ids = tokenizer(prompt, add_special_tokens=False).input_ids
    assert ids == model.ids(prompt).tolist()
    ids = torch.tensor([[model.tokenizer.stop, *ids]])
    made = judge.generate(ids, max_new_tokens=20, do_sample=False)[0, ids.shape[1] :]
    assert tokenizer.decode(made) == model.write(prompt, 20, temperature=1e-4)


ERRORS = """
to_transformers(3)
    TypeError: weights must be TransformerWeights, got int
to_transformers(random(**LLAMA, bias=False), context=0)
    ValueError: context must be at least 1, got 0
to_transformers(random(**LLAMA | {"n_layers": 0}, bias=False))
    ValueError: weights must have at least 1 layer to be described, got 0
to_transformers(random(**LLAMA | {"n_encoder_layers": 1}))
    ValueError: weights must be a decoder alone, with an embedding
to_transformers(random(**LLAMA | {"scale_embeddings": True}, bias=False))
    ValueError: weights.scale_embeddings must be False to fit llama, got True
to_transformers(random(**LLAMA | {"positions": "sinusoidal"}, bias=False))
    ValueError: weights.positions must be 'rotary' to fit llama, got 'sinusoidal'
to_transformers(random(**LLAMA | {"positions": Rotary(width=2)}, bias=False))
    ValueError: weights.decoder.positions.width must be None to fit llama, got 2
to_transformers(random(**LLAMA | {"normalization": "layer"}, bias=False))
    ValueError: weights.decoder.layers[0].self_attention_norm must be
    RMSNormWeights to fit llama, got LayerNormWeights
to_transformers(random(**LLAMA | {"gated": False}, bias=False))
    ValueError: weights must have the 29 arrays of llama, got
    ['decoder.layers.0.feed_forward.W_gate', 'decoder.layers.1.feed_forward.W_gate',
    'decoder.layers.2.feed_forward.W_gate'] missing and [] that it lacks
save_for_transformers(writer().weights, "x")
    TypeError: model must be LanguageModel, got TransformerWeights
save_for_transformers(writer(), 3)
    TypeError: folder must be a path or a str, got int
"""

test_refused = error_test(ERRORS, globals())
