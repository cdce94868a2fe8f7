"""Every entry of the configs: it is read, and changes the weights here, or is harmless there."""

from copy import deepcopy
from dataclasses import fields

import pytest
import tiny_models
from cases import every_day
from tiny_decoders import DYNAMIC, LONG, THETA
from tiny_models import decoder, numbers, tokens, torch

from attnbook.models import from_transformers

errors = pytest.importorskip("huggingface_hub.errors", reason="transformers is not installed")

SCALED = {"rope_parameters": THETA | DYNAMIC, "max_position_embeddings": 5}
NESTED = {"full_attention": THETA | DYNAMIC, "sliding_attention": THETA}
UPPER = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1, **SCALED}

EVERYTHING = {
    **{"Llama": SCALED, "Mistral": SCALED, "Mixtral": SCALED | {"sliding_window": 3}},
    **{"Qwen2": UPPER, "Qwen3": UPPER, "GptOss": SCALED},
    "Qwen3Next": SCALED,
    "Qwen3Moe": SCALED | {"use_sliding_window": True, "sliding_window": 3},
    **{"Gemma2": SCALED, "Gemma3": {"max_position_embeddings": 5, "rope_parameters": NESTED}},
    "Phi3": {
        **{"hidden_size": 24, "num_attention_heads": 3, "head_dim": 8, "rope_parameters": LONG},
        **{"max_position_embeddings": 40, "original_max_position_embeddings": 5},
    },
    "DeepseekV2": SCALED | {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2},
    "DeepseekV3": SCALED,
}
"""For each kind of model, options with which it uses all that its config has."""

HARMLESS = {
    # names, and what the file was made with
    *("_name_or_path", "architectures", "transformers_version", "dtype"),
    *("id2label", "label2id", "problem_type"),
    # what is returned beside the logits
    *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict"),
    # training
    *("attention_dropout", "embd_pdrop", "resid_pdrop", "initializer_range"),
    *("router_aux_loss_coef", "router_jitter_noise"),
    # generation
    *("bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "is_encoder_decoder"),
    # the same computation in pieces
    *("chunk_size_feed_forward", "pretraining_tp"),
    # made of other entries
    *("qk_head_dim", "_sliding_window_pattern"),
}
"""Entries that change no logits."""

OLDER = {
    "gpt2": {
        *("attn_pdrop", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout"),
        *("summary_proj_to_labels", "summary_type", "summary_use_proj"),
    },
    "bert": {
        *("attention_probs_dropout_prob", "classifier_dropout", "hidden_dropout_prob"),
        "tie_word_embeddings",  # of a head that is left out
    },
    "t5": {
        *("classifier_dropout", "decoder_start_token_id", "dropout_rate", "initializer_factor"),
        *("dense_act_fn", "is_gated_act", "is_decoder"),  # made of other entries
    },
}
"""What is harmless in the models that are no relatives of Llama."""

UNUSED = {
    "model_type",
    "head_dim of DeepseekV2",  # made of other entries
    "head_dim of DeepseekV3",
    "num_nextn_predict_layers of DeepseekV3",  # which tensors may be there
    "max_window_layers of Qwen2",  # where layer_types say it
    "max_window_layers of Qwen3",
    "sliding_window_pattern of Gemma3",
}
"""What is read, but has no effect on the weights."""


class Watched(dict):
    """A config that knows for which entries it was asked."""

    def __init__(self, entries):
        super().__init__(entries)
        self.asked = set()

    def __contains__(self, name):
        self.asked.add(name)
        return super().__contains__(name)


def read(model):
    """Return the entries of the config of a model that are read."""
    config = Watched(model.config.to_dict())
    from_transformers(model.state_dict(), config)
    return config.asked


@pytest.mark.parametrize("kind", EVERYTHING)
def test_every_entry_is_read_or_harmless(kind):
    model = decoder(kind, **EVERYTHING[kind])
    entries, asked = set(model.config.to_dict()), read(model)
    assert entries - asked == entries & HARMLESS
    assert not asked & HARMLESS
    assert {x.name for x in fields(model.config)} - set(model.config.attribute_map) <= entries


@pytest.mark.parametrize("kind", OLDER)
def test_every_entry_of_other_models_is_read_or_harmless(kind):
    model = getattr(tiny_models, kind)()
    entries = set(model.config.to_dict())
    assert entries - read(model) == entries & (HARMLESS | OLDER[kind])


def others(name, value):
    """Return other values of an entry."""
    if name == "model_type":
        return []
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, float):
        return [0.5, 2 * value]
    if isinstance(value, int):
        return [value + 1, max(value - 1, 1), 2 * value]
    if isinstance(value, str):
        return ["gelu", "greedy", "mish"]
    if isinstance(value, list):
        return [value[::-1], ["full_attention"] * len(value), [0]]
    if isinstance(value, dict):
        return [{"rope_type": "default", "rope_theta": 7.0}]
    return [2, True, "bfloat16"]


@pytest.mark.parametrize("kind", EVERYTHING)
def test_every_entry_that_is_read_matters(kind):
    model = decoder(kind, **EVERYTHING[kind])
    state, config = model.state_dict(), model.config.to_dict()
    own = repr(from_transformers(state, config))
    for name in sorted(config.keys() & read(model)):
        matters = False
        for value in others(name, config[name]):
            try:
                matters |= repr(from_transformers(state, config | {name: value})) != own
            except (ValueError, TypeError):
                matters = True
        assert matters or UNUSED & {name, f"{name} of {kind}"}, name


def outcome(state, config):
    """Return the weights as text, or what is wrong with the config."""
    try:
        return repr(from_transformers(state, config))
    except (ValueError, TypeError) as error:
        return str(error)


@pytest.mark.parametrize("kind", EVERYTHING)
def test_an_absent_entry_has_their_default_or_is_missed(kind):
    model = decoder(kind, **EVERYTHING[kind])
    state, config = model.state_dict(), model.config.to_dict()
    defaults = {x.name: x.default for x in fields(model.config)}
    for name in sorted(defaults.keys() & read(model) - {*model.config.attribute_map}):
        got = outcome(state, {other: x for other, x in config.items() if other != name})
        if f"must have an entry '{name}', got none" not in got:
            assert got == outcome(state, config | {name: defaults[name]}), name


@pytest.mark.parametrize("kind", every_day(["GptOss", "Llama"], EVERYTHING))
def test_a_harmless_entry_changes_nothing_there(kind):
    model, ids = decoder(kind, **EVERYTHING[kind]), torch.tensor(tokens())
    state, exact = model.state_dict(), numbers(model(ids).logits)
    entries = model.config.to_dict()
    for name in sorted(entries.keys() & HARMLESS - {"dtype", "return_dict"}):
        for value in others(name, entries[name])[:1]:
            changed = deepcopy(model.config)
            try:
                setattr(changed, name, value)
                other = type(model)(changed).double().eval()
            except (ValueError, TypeError, errors.StrictDataclassError):  # theirs does not allow it
                continue
            other.load_state_dict(state)
            assert (numbers(other(ids).logits) == exact).all(), name
