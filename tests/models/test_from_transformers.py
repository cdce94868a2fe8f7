"""Models of the hub in this package: outputs, every layer and what is decoded, against theirs."""

import json

import numpy as np
import pytest
import tiny_models
from error_table import error_test
from tiny_decoders import DECODERS, SCALING, WRITERS
from tiny_models import (
    KEEP,
    assert_same,
    bound_of,
    cut_after,
    numbers,
    theirs,
    tokens,
    torch,
    weights_of,
    written,
)

import attnbook
from attnbook import decoding, nn
from attnbook.models import from_transformers
from attnbook.positions import Llama3Scaling, Rotary

WIDE = np.arange(7) < np.array([[7], [6], [5]])
"""As `KEEP`, but each query sees a real token within 3; theirs are NaN where one sees none."""


def window_of(layer):
    return getattr(layer.self_attention, "window", None)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", DECODERS)
def test_decoder_gives_their_logits_and_every_layer(name, library, dtype):
    model, ids = DECODERS[name](), tokens()
    weights, own = weights_of(model), library.array(ids)
    keep = WIDE if any(map(window_of, weights.decoder.layers)) else KEEP
    mask = library.array(keep[:, None, None])
    keep = torch.tensor(keep)
    exact = model(torch.tensor(ids), attention_mask=keep, output_hidden_states=True)
    ours = [cut_after(weights, n) for n in range(len(exact.hidden_states))]
    for cut, states in zip((*ours, weights), (*exact.hidden_states, exact.logits), strict=True):
        got = attnbook.transformer(None, own, library.place(cut, dtype), target_mask=mask)
        assert_same(library.numpy(got), states, bound_of(name, dtype))


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("name", WRITERS)
def test_decoder_writes_what_theirs_generates(name, cache, library):
    if name == "phi3, short" and cache:
        pytest.skip("theirs reads everything again when the text gets long")
    ids = tokens(seed=1, n=3)
    model, made = written(DECODERS[name], ids, n=9)
    weights, prompt = library.place(weights_of(model)), library.array(ids)
    got = decoding.greedy_decode(weights, prompt=prompt, max_length=9, stop=2, cache=cache)
    got = library.numpy(got.tokens)
    np.testing.assert_array_equal(got, made[:, : got.shape[1]])


@pytest.mark.parametrize("name", WRITERS)
def test_the_module_for_pytorch_takes_the_weights(name):
    model, ids = DECODERS[name](), torch.tensor(tokens())
    weights = from_transformers(model.state_dict(), model.config)
    got = nn.Transformer(weights)(None, ids)
    assert_same(numbers(got), model(ids).logits, bound_of(name, "float64"))


def test_the_arrays_are_views_of_those_given(library):
    state = {name: library.array(x) for name, x in gpt2_state().items()}
    weights = from_transformers(state, GPT2)
    attention = weights.decoder.layers[0].self_attention
    fused = library.numpy(state["h.0.attn.c_attn.weight"])
    for i, W in enumerate((attention.W_Q, attention.W_K, attention.W_V)):
        assert library.same_kind(W, state["wte.weight"])
        np.testing.assert_array_equal(library.numpy(W), fused[:, 4 * i : 4 * i + 4])
        assert library.name != "numpy" or np.shares_memory(W, state["h.0.attn.c_attn.weight"])


def test_config_may_be_what_config_json_says():
    model = DECODERS["llama 3.1"]()
    written = json.loads(model.config.to_json_string(use_diff=False))
    older = {"rope_parameters": None, "rope_theta": 500.0, "rope_scaling": SCALING}
    for config in (model.config, written, written | older):
        got = from_transformers(model.state_dict(), config)
        assert got.decoder.positions == Rotary(500.0, scaling=Llama3Scaling(4.0, 0.5, 2.0, 13))
        assert got.decoder.layers[0].self_attention.n_kv_heads == 3
    # the one of the two entries that transformers reads
    scaling = {"rope_scaling": {"rope_type": "default", "rope_theta": 7.0}}
    for rope in (None, {"rope_type": "default", "rope_theta": 50.0}):
        config = written | scaling | {"rope_parameters": rope}
        assert from_transformers(model.state_dict(), config).decoder.positions == Rotary(7.0)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "t5"])
def test_an_epsilon_that_config_lacks_is_theirs(kind):
    model = getattr(tiny_models, kind)()
    config = model.config.to_dict()
    names = {"layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps"} & config.keys()
    (epsilon,) = {config.pop(name) for name in names}
    weights = from_transformers(model.state_dict(), config)
    stack = weights.encoder if kind == "bert" else weights.decoder
    assert {layer.feed_forward_norm.epsilon for layer in stack.layers} == {epsilon}


def test_bert_with_heads_and_former_names_is_the_same():
    model = tiny_models.shaken(theirs.BertForPreTraining(tiny_models.bert().config), 1.0, 0)
    state = model.state_dict()
    ends = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    former = {name.replace(*ends[0]).replace(*ends[1]): x for name, x in state.items()}
    former["bert.embeddings.position_ids"] = torch.arange(13)[None]
    assert former.keys() != state.keys()
    expected = from_transformers(model.bert.state_dict(), model.config).arrays()
    got = from_transformers(former, model.config).arrays()
    assert got.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_array_equal(numbers(got[name]), numbers(x))


# What is wrong with a state dict or a config, and what is harmless.

GPT2 = {
    **{"model_type": "gpt2", "vocab_size": 5, "n_positions": 7, "n_embd": 4, "n_head": 2},
    **{"n_layer": 1, "n_inner": 3},
}

LLAMA = {
    **{"model_type": "llama", "vocab_size": 5, "hidden_size": 4, "intermediate_size": 3},
    **{"num_hidden_layers": 1, "num_attention_heads": 2},
}
BERT = {**LLAMA, "model_type": "bert", "max_position_embeddings": 7, "type_vocab_size": 2}
T5 = {"model_type": "t5", "vocab_size": 5, "d_model": 4, "d_kv": 3, "d_ff": 3, "num_heads": 2}
GPT_OSS = LLAMA | {"model_type": "gpt_oss"}
DEEPSEEK = LLAMA | {"model_type": "deepseek_v2", "num_experts_per_tok": 2}
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_key_value_heads": 2}
UNTIED = GPT2 | {"tie_word_embeddings": False}


def gpt2_state(prefix="", **changes):
    """Return tensors that fit `GPT2`; a change to None leaves one out."""
    block = {
        **{"ln_1.weight": (4,), "ln_1.bias": (4,), "ln_2.weight": (4,), "ln_2.bias": (4,)},
        **{"attn.c_attn.weight": (4, 12), "attn.c_attn.bias": (12,)},
        **{"attn.c_proj.weight": (4, 4), "attn.c_proj.bias": (4,)},
        **{"mlp.c_fc.weight": (4, 3), "mlp.c_fc.bias": (3,)},
        **{"mlp.c_proj.weight": (3, 4), "mlp.c_proj.bias": (4,)},
    }
    shapes = {f"h.0.{name}": shape for name, shape in block.items()} | {
        **{"wte.weight": (5, 4), "wpe.weight": (7, 4), "ln_f.weight": (4,), "ln_f.bias": (4,)},
    }
    rng = np.random.default_rng(0)
    state = {prefix + name: rng.normal(size=shape) for name, shape in shapes.items()}
    changes = {prefix + name.replace("__", "."): x for name, x in changes.items()}
    return {name: x for name, x in (state | changes).items() if x is not None}


ERRORS = """
from_transformers([1], GPT2)
    TypeError: state_dict must be a mapping of names to arrays, got list
from_transformers(gpt2_state(), "gpt2")
    TypeError: config must be a dict or a config of transformers, got str
from_transformers(gpt2_state(), {})
    ValueError: config must have an entry 'model_type', got none
from_transformers(gpt2_state(), {"model_type": "falcon"})
    ValueError: config['model_type'] must be one of bert, gpt2, t5, llama, mistral, mixtral, phi3,
    qwen2, qwen3, qwen3_moe, qwen3_next, gemma2, gemma3_text, gpt_oss, deepseek_v2, deepseek_v3,
    got 'falcon'
from_transformers(gpt2_state(), GPT2 | {"n_head": None})
    ValueError: config must have an entry 'n_head', got none
from_transformers(gpt2_state(), GPT2 | {"n_layer": 1.5})
    TypeError: config['n_layer'] must be an int, got float
from_transformers(gpt2_state(), GPT2 | {"n_embd": 0})
    ValueError: config['n_embd'] must be at least 1, got 0
from_transformers(gpt2_state(), GPT2 | {"tie_word_embeddings": "no"})
    TypeError: config['tie_word_embeddings'] must be a bool, got str
from_transformers(gpt2_state(), GPT2 | {"layer_norm_epsilon": -1.0})
    ValueError: config['layer_norm_epsilon'] must be finite and at least 0, got -1.0
from_transformers(gpt2_state(), GPT2 | {"scale_attn_by_inverse_layer_idx": True})
    ValueError: config['scale_attn_by_inverse_layer_idx'] must be False, the only one that
    attnbook has, got True
from_transformers(gpt2_state(), GPT2 | {"activation_function": "mish"})
    ValueError: config['activation_function'] must be one of gelu, gelu_fast, gelu_new,
    gelu_pytorch_tanh, relu, silu, swish, got 'mish'
from_transformers(gpt2_state(wpe__weight=None, ln_f__bias=None), GPT2)
    ValueError: state_dict must have the 16 tensors that config describes, got wpe.weight, ln_f.bias
    missing and none unknown
from_transformers(gpt2_state(score__weight=np.ones((2, 4))), GPT2)
    ValueError: state_dict must have the 16 tensors that config describes, got none missing and
    score.weight unknown
from_transformers(gpt2_state() | {"transformer.wte.weight": np.ones((5, 4))}, GPT2)
    ValueError: state_dict must have the 16 tensors that config describes, got none missing and
    transformer.wte.weight unknown
from_transformers(gpt2_state(), GPT2 | {"n_layer": 2})
    ValueError: state_dict must have the 28 tensors that config describes, got h.1.ln_1.weight,
    h.1.ln_1.bias, h.1.attn.c_attn.weight and 9 more missing and none unknown
from_transformers(gpt2_state(wpe__weight=[1.0]), GPT2)
    TypeError: state_dict['wpe.weight'] must be an array of NumPy, CuPy, PyTorch or another Array
    API library, got
    list
from_transformers(gpt2_state(wpe__weight=np.ones((7, 4), "float32")), GPT2)
    TypeError: state_dict['wpe.weight'] must have the dtype of state_dict['wte.weight'] (float64),
    got float32
from_transformers(gpt2_state(h__0__mlp__c_fc__weight=np.ones((3, 4))), GPT2)
    ValueError: state_dict['h.0.mlp.c_fc.weight'] must have shape (4, 3) to match config, got (3, 4)
from_transformers(gpt2_state(h__0__attn__c_attn__weight=np.ones((4, 4))), GPT2)
    ValueError: state_dict['h.0.attn.c_attn.weight'] must have shape (4, 12) to match config, got
    (4, 4)
from_transformers(gpt2_state(lm_head__weight=np.ones((4, 5))), UNTIED)
    ValueError: state_dict['lm_head.weight'] must have shape (5, 4) to match config, got (4, 5)
from_transformers(gpt2_state(lm_head__weight=np.ones((5, 4))), GPT2)
    ValueError: state_dict['lm_head.weight'] must hold the numbers of 'wte.weight', since config
    ties them, got others
from_transformers({}, LLAMA)
    ValueError: state_dict must have the 12 tensors that config describes, got embed_tokens.weight,
    layers.0.input_layernorm.weight, layers.0.self_attn.q_proj.weight and 9 more missing and none
    unknown
from_transformers({}, LLAMA | {"sliding_window": 4096})
    ValueError: config['sliding_window'] must be None, the only one that attnbook has, got 4096
from_transformers({}, LLAMA | {"rope_scaling": {"type": "proportional", "factor": 2.0}})
    ValueError: config['rope_scaling']['rope_type'] must be one of default, linear, dynamic, llama3,
    yarn, longrope, got 'proportional'
from_transformers({}, LLAMA | {"rope_parameters": {"full_attention": {"rope_theta": 2.0}}})
    ValueError: config['rope_parameters']['full_attention'] must be None, the only one that attnbook
    has, got {'rope_theta': 2.0}
from_transformers({}, LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}})
    ValueError: config['rope_scaling'] must have an entry 'original_max_position_embeddings', got
    none
from_transformers({}, LLAMA | {"rope_scaling": {"rope_type": "longrope"},
"original_max_position_embeddings": 3, "max_position_embeddings": 4})
    ValueError: config['rope_scaling'] must have an entry 'short_factor', got none
from_transformers({}, LLAMA | {"rope_parameters": {"rope_type": "llama3"}})
    ValueError: config['rope_parameters'] must have an entry 'factor', got none
from_transformers({}, LLAMA | {"rope_parameters": {"partial_rotary_factor": 0.5}})
    ValueError: config['rope_parameters']['partial_rotary_factor'] must be 1.0, the only one that
    attnbook has, got 0.5
from_transformers({}, GPT_OSS | {"quantization_config": {"quant_method": "mxfp4"}})
    ValueError: config['quantization_config'] must be None, because attnbook reads no quantised
    tensors; load the model dequantised in transformers and save it, got 'mxfp4'
from_transformers({}, GPT_OSS | {"swiglu_limit": 9.0})
    ValueError: config['swiglu_limit'] must be 7.0, the only one that attnbook has, got 9.0
from_transformers({}, GPT_OSS | {"layer_types": "full_attention"})
    TypeError: config['layer_types'] must be a list, got str
from_transformers({}, GPT_OSS | {"layer_types": ["full_attention", "full_attention"]})
    ValueError: config['layer_types'] must have 1 entries, got 2
from_transformers({}, GPT_OSS | {"layer_types": ["chunked_attention"]})
    ValueError: config['layer_types'][0] must be one of full_attention, sliding_attention, got
    'chunked_attention'
from_transformers({}, GPT_OSS | {"sliding_window": None})
    ValueError: config must have a sliding window for the layers of type 'sliding_attention', got
    none
from_transformers({}, LLAMA | {"model_type": "mistral", "layer_types": ["full_attention"]})
    ValueError: config['layer_types'] must be None, the only one that attnbook has, got
    ['full_attention']
from_transformers({}, LLAMA | {"model_type": "gemma2", "use_bidirectional_attention": True})
    ValueError: config['use_bidirectional_attention'] must be False, the only one that attnbook has,
    got True
from_transformers({}, LLAMA | {"model_type": "gemma3_text", "attn_logit_softcapping": 50.0})
    ValueError: config['attn_logit_softcapping'] must be None, the only one that attnbook has, got
    50.0
from_transformers({}, DEEPSEEK | {"topk_method": "random"})
    ValueError: config['topk_method'] must be one of greedy, group_limited_greedy, got 'random'
from_transformers({}, DEEPSEEK | {"norm_topk_prob": True})
    ValueError: config['norm_topk_prob'] must be False, the only one that attnbook has, got True
from_transformers({}, DEEPSEEK | {"attention_bias": True})
    ValueError: config['attention_bias'] must be False, the only one that attnbook has, got True
from_transformers({}, DEEPSEEK | {"model_type": "deepseek_v3", "scoring_func": "softmax"})
    ValueError: config['scoring_func'] must be 'sigmoid', the only one that attnbook has, got
    'softmax'
from_transformers({}, MIXTRAL)
    ValueError: state_dict must have the 12 tensors that config describes, got embed_tokens.weight,
    layers.0.input_layernorm.weight, layers.0.self_attn.q_proj.weight and 9 more missing and none
    unknown
from_transformers({}, BERT | {"position_embedding_type": "relative_key"})
    ValueError: config['position_embedding_type'] must be 'absolute', the only one that attnbook
    has, got 'relative_key'
from_transformers({}, BERT | {"is_decoder": True})
    ValueError: config['is_decoder'] must be False, the only one that attnbook has, got True
from_transformers({}, T5 | {"num_layers": 1, "feed_forward_proj": "gated-mish"})
    ValueError: config['feed_forward_proj'] must be one of gated-gelu, gated-relu, gated-silu,
    gelu, gelu_new, relu, silu, got 'gated-mish'
"""

test_errors_say_what_was_expected_and_what_came = error_test(ERRORS, globals())


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_names_may_have_a_prefix_and_known_buffers_beside_them(prefix):
    buffers = {"h__0__attn__bias": np.ones((1, 1, 7, 7)), "h__0__attn__masked_bias": np.ones(())}
    bare = from_transformers(gpt2_state(), GPT2).arrays()
    more = from_transformers(gpt2_state(prefix, **buffers), GPT2).arrays()
    assert bare.keys() == more.keys()
    for name, x in bare.items():
        np.testing.assert_array_equal(x, more[name])


def test_a_tied_output_may_be_there_again():
    state = gpt2_state()
    weights = from_transformers(state | {"lm_head.weight": state["wte.weight"].copy()}, GPT2)
    assert weights.output is None
