"""Small models of `transformers` with random numbers in every weight: the judges of ours."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
theirs = pytest.importorskip("transformers", reason="transformers is not installed")

SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
V, SEQUENCE = 29, 7


def shaken(model: Any, spread: float = 1.0, seed: int = 0) -> Any:
    """Return the model in float64 with random numbers in every weight, drawn by NumPy.

    With a larger `spread` of the matrices the tokens that it writes differ more.
    """
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, x in model.named_parameters():
            numbers = rng.standard_normal(tuple(x.shape))
            if x.ndim == 2:
                numbers *= spread / np.sqrt(x.shape[-1])
            else:
                numbers = numbers / 4 + name.endswith("weight")  # gains are near 1
            x.copy_(torch.tensor(numbers))
    return model.double().eval()


def gpt2(spread: float = 1.0, **options: Any) -> Any:
    sizes = {"vocab_size": V, "n_positions": 13, "n_embd": 14, "n_head": 2, "n_inner": 19}
    config = theirs.GPT2Config(**SPECIAL, **{**sizes, "n_layer": 3, **options})
    return shaken(theirs.GPT2LMHeadModel(config), spread)


def llama(spread: float = 1.0, **options: Any) -> Any:
    sizes = {"vocab_size": V, "hidden_size": 18, "intermediate_size": 23, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10}
    config = theirs.LlamaConfig(**SPECIAL, **{**sizes, **heads, **options})
    return shaken(theirs.LlamaForCausalLM(config), spread)


def bert(spread: float = 1.0, **options: Any) -> Any:
    sizes = {"vocab_size": V, "hidden_size": 14, "intermediate_size": 19, "num_hidden_layers": 3}
    more = {"num_attention_heads": 2, "max_position_embeddings": 13, "type_vocab_size": 3}
    config = theirs.BertConfig(**{**sizes, **more, **options})
    return shaken(theirs.BertModel(config), spread)


def t5(spread: float = 1.0, **options: Any) -> Any:
    sizes = {"vocab_size": V, "d_model": 14, "d_kv": 5, "d_ff": 19, "num_heads": 3}
    layers = {"num_layers": 2, "num_decoder_layers": 3, "decoder_start_token_id": 0}
    buckets = {"relative_attention_num_buckets": 6, "relative_attention_max_distance": 5}
    config = theirs.T5Config(**{**sizes, **layers, **buckets, **options})
    return shaken(theirs.T5ForConditionalGeneration(config), spread)


def tokens(seed: int = 0, n: int = SEQUENCE, batch: int = 3) -> np.ndarray:
    """Return ids (batch, n) without the special ones."""
    return np.random.default_rng(seed).integers(3, V, (batch, n))


KEEP = np.arange(SEQUENCE) < np.array([[7], [5], [2]])
"""Which tokens of each sequence are real."""
