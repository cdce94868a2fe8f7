"""The writers that `linear_writers` compares: one block, and four kinds of self-attention in it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnbook import TransformerWeights
from attnbook.linear_attention import LinearAttentionWeights
from benchmarks.scaling import KIND

WIDTH = 4  # of the short convolution
UNMIXED = "linear without convolution"

ARCHITECTURES: dict[str, Sequence[str]] = {
    "softmax": ("softmax",),
    "linear": ("linear",),
    "gated delta": ("gated delta",),
    "hybrid": ("gated delta", "gated delta", "gated delta", "softmax"),
}
"""The self-attentions of the layers from the first on, again and again."""

METHODS = {
    "softmax": "Heads with rotary positions.",
    "linear": (
        "A state for each head that fades and adds: the decay depends on the token; short "
        "convolution, gate and normalisation as with the gated delta rule."
    ),
    "gated delta": (
        "The layer of Qwen3-Next: the same, and what the state holds for a key is overwritten. All "
        "states share queries and keys."
    ),
    "hybrid": "Three layers with the gated delta rule, and the fourth with softmax.",
    "d_ff": "Narrower in layers with a state, so that all layers have about as many parameters.",
}


def kinds_of(architecture: str, n_layers: int) -> list[str]:
    """Return what attends in each layer."""
    kinds = ARCHITECTURES[architecture]
    return [kinds[i % len(kinds)] for i in range(n_layers)]


def weights_of(
    kinds: Sequence[str],
    seed: int,
    vocabulary: int,
    *,
    d_model: int,
    n_heads: int,
    n_states: int,
    d_ff: int,
) -> TransformerWeights:
    """Draw a language model whose layers have these `kinds` of self-attention."""
    rng = np.random.default_rng(seed)
    sizes: dict[str, Any] = {"d_model": d_model, "n_heads": n_heads}
    shape = {"n_key_heads": 1, "d_k": d_model // n_states, "d_v": d_model // n_states}
    layers = []
    for kind in kinds:
        own = None
        if kind != "softmax":
            delta, width = kind == "gated delta", None if kind == UNMIXED else WIDTH
            own = LinearAttentionWeights.init(
                *(rng, d_model, n_states), **shape, delta=delta, width=width
            )
        more = 0 if own is None else counted(own) - 4 * d_model**2
        inner = d_ff - round(more / (3 * d_model))
        drawn = TransformerWeights.init(rng, vocabulary, **KIND, **sizes, d_ff=inner, n_layers=1)
        (layer,) = drawn.decoder.layers
        layers.append(layer if own is None else replace(layer, self_attention=own))
    return replace(drawn, decoder=replace(drawn.decoder, layers=tuple(layers)))


def writer_of(
    kinds: Sequence[str], seed: int, vocabulary: int, sizes: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return a language model as a module, with what the record says of it."""
    from attnbook import nn

    drawn = weights_of(kinds, seed, vocabulary, **sizes)
    model = nn.Transformer(drawn.to("torch", dtype="float32"), impl="packed")
    return model, about_of(kinds, drawn)


def about_of(kinds: Sequence[str], drawn: TransformerWeights, added: int = 0) -> dict[str, Any]:
    """Return the layers and the parameters of a model, to which others were `added`."""
    widths = [layer.feed_forward.W_1.shape[1] for layer in drawn.decoder.layers]
    return {"layers": list(kinds), "d_ff": widths, "parameters": counted(drawn) + added}


def counted(weights: Any) -> int:
    """Return how many numbers `weights` hold."""
    return sum(math.prod(x.shape) for x in weights.arrays().values())


def settings(steps: int, lr: float, seed: int) -> Any:
    """Return how everything here is trained."""
    from attnbook.training import Settings

    return Settings(
        steps,
        lr=lr,
        betas=(0.9, 0.98),
        weight_decay=0.1,
        warmup=steps // 10,
        schedule="cosine",
        final_lr=lr / 20,
        clip=1.0,
        seed=seed,
    )
