"""Models of this package as models of `transformers`: the way back of `from_transformers`."""

import json
import os
from dataclasses import fields, is_dataclass
from typing import Any

from attnbook.arrays.arguments import check_int, check_path
from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.move import how_to_install, move
from attnbook.arrays.weights import check_part
from attnbook.data.byte_pairs import BytePairs
from attnbook.data.hub_tokenizer import HubTokenizer
from attnbook.models.architecture import Config
from attnbook.models.hugging_face import ARCHITECTURES, ROW, from_transformers
from attnbook.models.language_model import LanguageModel
from attnbook.positions.rotation import Rotary
from attnbook.transformers.weights import TransformerWeights

THEIRS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}
"""Names of activations here: there."""


def to_transformers(
    weights: TransformerWeights, *, context: int = 2048
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the tensors and the config with which `transformers` makes the same language model.

    Parameters
    ----------
    weights : TransformerWeights
        A decoder-only model of the form of Llama (RMSNorm, rotary positions, gated feed-forward)
        or of GPT-2 (learned positions, layer normalisation and all biases).
    context : int
        The longest text that the model is meant for, which the config of a Llama states. GPT-2 has
        its number of positions instead.

    Returns
    -------
    state_dict : dict of str to array
        For the ``load_state_dict`` of a ``LlamaForCausalLM`` or ``GPT2LMHeadModel``, in the library
        and dtype of `weights`. A tied output is not in it.
    config : dict
        The content of config.json.

    Raises
    ------
    TypeError
        If `weights` have the wrong class, or `context` is not an int.
    ValueError
        If the model computes what neither architecture does; the message names the field.

    Notes
    -----
    ``from_transformers(*to_transformers(weights))`` is the same model again.
    Cost: a copy of every matrix that has another layout there.

    References
    ----------
    Wolf et al. (2020), "Transformers: state-of-the-art natural language processing".

    Examples
    --------
    >>> from attnbook.models import writer
    >>> state_dict, config = to_transformers(writer().weights, context=256)
    >>> config["model_type"], state_dict["model.layers.0.self_attn.k_proj.weight"].shape
    ('llama', (64, 192))
    """
    check_part("weights", weights, TransformerWeights)
    check_int("context", context, at_least=1)
    if weights.encoder is not None or weights.target_embedding is None:
        raise ValueError("weights must be a decoder alone, with an embedding")
    if not weights.decoder.layers:
        raise ValueError("weights must have at least 1 layer to be described, got 0")
    config = _gpt2(weights) if weights.positions == "learned" else _llama(weights, context)
    state_dict = _tensors(weights, config)
    try:
        again = from_transformers(state_dict, config)
    except ValueError as error:
        raise ValueError(f"weights must fit {config['model_type']}, got {error}") from error
    _check_same("weights", weights, again, config["model_type"])
    return state_dict, config


def save_for_transformers(model: LanguageModel, folder: "str | os.PathLike") -> None:
    """Write the files with which ``AutoModelForCausalLM.from_pretrained(folder)`` makes `model`.

    The files are config.json, model.safetensors, tokenizer.json and tokenizer_config.json. The
    folder is made if it is not there, and files with these names are replaced.

    Parameters
    ----------
    model : LanguageModel
        A model of the form that `to_transformers` describes.
    folder : str or path

    Raises
    ------
    TypeError, ValueError
        As in `to_transformers`.
    ImportError
        If `safetensors` or `tokenizers` is missing; the message says how to install it.

    Examples
    --------
    >>> from attnbook.models import writer
    >>> save_for_transformers(writer(), "writer")  # doctest: +SKIP
    """
    check_part("model", model, LanguageModel)
    folder = check_path("folder", folder)
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise ImportError(
            f"save_for_transformers needs safetensors: {how_to_install('safetensors')}"
        ) from error
    state_dict, config = to_transformers(model.weights, context=model.context)
    tokenizer: Any = model.tokenizer
    if isinstance(tokenizer, BytePairs):
        tokenizer = HubTokenizer.from_byte_pairs(tokenizer)
    config |= {"bos_token_id": tokenizer.stop, "eos_token_id": tokenizer.stop}
    tensors = {name: move(x, "numpy").copy(order="C") for name, x in state_dict.items()}
    config["dtype"] = str(next(iter(tensors.values())).dtype)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokenizer.stop_token}
    names |= {"bos_token": tokenizer.stop_token, "model_max_length": model.context}
    for name, content in (("config.json", config), ("tokenizer_config.json", names)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _sizes(weights):
    """Return the first layer, its attention and its feed-forward network."""
    layer = weights.decoder.layers[0]
    return layer, layer.self_attention, layer.feed_forward


def _gpt2(weights: TransformerWeights) -> dict[str, Any]:
    layer, heads, network = _sizes(weights)
    table: Any = weights.target_embedding
    places: Any = weights.target_positions
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": table.shape[0],
        "n_positions": places.shape[0],
        "n_embd": table.shape[1],
        "n_layer": len(weights.decoder.layers),
        "n_head": heads.n_heads,
        "n_inner": network.W_1.shape[1],
        "activation_function": THEIRS[network.activation],
        "layer_norm_epsilon": layer.self_attention_norm.epsilon,
        "tie_word_embeddings": weights.output is None,
    }


def _llama(weights: TransformerWeights, context: int) -> dict[str, Any]:
    layer, heads, network = _sizes(weights)
    table: Any = weights.target_embedding
    positions = weights.decoder.positions
    base = positions.base if isinstance(positions, Rotary) else 10000.0
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": table.shape[0],
        "max_position_embeddings": context,
        "hidden_size": table.shape[1],
        "intermediate_size": network.W_1.shape[1],
        "num_hidden_layers": len(weights.decoder.layers),
        "num_attention_heads": heads.n_heads,
        "num_key_value_heads": heads.n_kv_heads,
        "head_dim": heads.d_k,
        "hidden_act": THEIRS[network.activation],
        "rms_norm_eps": layer.self_attention_norm.epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": base},
        "attention_bias": heads.b_Q is not None,
        "mlp_bias": network.b_1 is not None,
        "tie_word_embeddings": weights.output is None,
    }


def _tensors(weights, config):
    """Return the arrays by their names there, each in its layout there."""
    architecture = ARCHITECTURES[config["model_type"]](Config(config))
    rows = architecture.rows()
    arrays = weights.arrays()
    missing, unknown = sorted(rows.keys() - arrays.keys()), sorted(arrays.keys() - rows.keys())
    if missing or unknown:
        kind = config["model_type"]
        raise ValueError(
            f"weights must have the {len(rows)} arrays of {kind}, "
            f"got {missing[:3]} missing and {unknown[:3]} that it lacks"
        )
    parts: dict[str, list[Any]] = {}
    for ours, row in rows.items():
        found: Any = ROW.fullmatch(row)
        x = arrays[ours]
        if found["transposed"]:
            x = array_namespace(x).matrix_transpose(x)
        parts.setdefault(found["name"], []).append(x)
    return {
        f"{'' if name.startswith('lm_head') else architecture.prefix}{name}": xs[0]
        if len(xs) == 1
        else array_namespace(xs[0]).concat(xs, axis=-1)
        for name, xs in parts.items()
    }


def _check_same(name, ours, again, kind):
    """Raise unless `ours` computes what `again` does; the arrays are known to be the same."""
    if isinstance(again, Rotary) and ours is None:
        ours = Rotary()  # what a model with rotary positions has without a piece of its own
    if is_dataclass(again) and type(ours) is type(again):
        for field in fields(again):
            theirs = getattr(again, field.name)
            _check_same(f"{name}.{field.name}", getattr(ours, field.name), theirs, kind)
    elif isinstance(again, tuple) and isinstance(ours, tuple) and len(ours) == len(again):
        for i, (own, other) in enumerate(zip(ours, again, strict=True)):
            _check_same(f"{name}[{i}]", own, other, kind)
    elif is_dataclass(again):
        wanted, got = type(again).__name__, type(ours).__name__
        raise ValueError(f"{name} must be {wanted} to fit {kind}, got {got}")
    elif not hasattr(again, "shape") and ours != again:
        raise ValueError(f"{name} must be {again!r} to fit {kind}, got {ours!r}")
