"""A softmax writer whose queries, keys and values pass a short convolution, as a module.

It is the convolution of a layer of linear attention: a filter of width four for each feature of
queries, keys and values, which sees no later token, and then SiLU. The rotation comes after it.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import torch

from attnbook import TransformerWeights, kernels, nn
from attnbook.arrays.projections import project
from attnbook.linear_attention.gates import first_filters, mixed_of
from attnbook.multi_head.heads import merge_heads_of, split_heads_of
from attnbook.multi_head.weights import MultiHeadWeights
from attnbook.normalization.normalization import NORMALIZED
from attnbook.positions.rotation import rotation
from attnbook.transformers.networks import NETWORKS
from attnbook.transformers.residual import residual
from benchmarks.linear_models import WIDTH


class Convolved(torch.nn.Module):
    """A language model of softmax layers, with a short convolution in each of them.

    Parameters
    ----------
    drawn : TransformerWeights
        The writer without the convolutions, with rotary positions.
    seed : int, optional
        Of the filters, which are drawn as in a layer of linear attention. Without it there are
        none, and no SiLU, either.
    """

    def __init__(self, drawn: TransformerWeights, seed: int | None):
        super().__init__()
        self.model = nn.Transformer(drawn.to("torch", dtype="float32"))
        self.filters: Any = [None] * len(drawn.decoder.layers)
        if seed is not None:
            rng, channels = np.random.default_rng([seed, 1]), 3 * drawn.target_embedding.shape[1]
            made = [first_filters(rng, WIDTH, channels) for _ in self.filters]
            self.filters = torch.nn.ParameterList(
                torch.nn.Parameter(torch.tensor(x, dtype=torch.float32)) for x in made
            )

    def forward(self, source: None, target: torch.Tensor, **masks: Any) -> torch.Tensor:
        """Return the logits of the next tokens; rows of a batch must have one length."""
        weights, turn = self.model.weights, rotation(0)
        x = weights.target_embedding[target]
        for layer, filters in zip(weights.decoder.layers, self.filters, strict=True):
            own = partial(
                convolved_attention, weights=layer.self_attention, filters=filters, turn=turn
            )
            x = residual(x, own, layer.self_attention_norm, layer.norm, None)
            network = layer.feed_forward
            feed = partial(NETWORKS[type(network)], weights=network, drop=None)
            x = residual(x, feed, layer.feed_forward_norm, layer.norm, None)
        norm = weights.decoder.final_norm
        x = x if norm is None else NORMALIZED[type(norm)](x, norm)
        return x @ weights.target_embedding.mT


def convolved_attention(
    x: torch.Tensor, weights: MultiHeadWeights, filters: torch.Tensor | None, turn: Any
) -> torch.Tensor:
    """Return causal multi-head self-attention; without `filters` there is no SiLU, either."""
    y = torch.cat([project(x, matrix) for matrix in (weights.W_Q, weights.W_K, weights.W_V)], -1)
    if filters is not None:
        y, _ = mixed_of(y, filters, None, None)
    q, k, v = (split_heads_of(part, weights.n_heads) for part in y.chunk(3, dim=-1))
    scale = 1 / math.sqrt(weights.d_k)
    mixed = kernels.attention("packed", turn(q), turn(k), v, None, None, scale, True, None)
    return project(merge_heads_of(mixed), weights.W_O)


def pass_through(model: torch.nn.Module) -> None:
    """Let all filters of a writer begin as the identity: a token meets no token before it."""
    for name, filters in model.named_parameters():
        if "filters" in name:
            with torch.no_grad():
                filters.zero_()
                filters[-1] = 1
