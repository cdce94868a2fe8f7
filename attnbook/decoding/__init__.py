r"""Decoding: from a model of the next token to sequences of tokens.

.. math:: p(y_1 \dots y_n \mid x) = \prod_i p(y_i \mid y_{<i}, x)

The model computes the factors, and a strategy chooses the tokens. `stream` chooses one token after
the other, and `greedy_decode` and `sample` are based on it, whereas `beam_search` follows several
sequences. `speculative_sample` lets a smaller model guess ahead. Logits processors such as `top_p`
change the factors before a token is chosen, and `constrain` allows only what an `Automaton`
accepts. A `KVCache` holds the keys and values of all tokens read so far. A `WindowCache` forgets
those that no later token sees, a `HybridCache` reads only a part of them, a `QuantizedCache`
holds them in a few bits per number, and a `PagedCache` shares pages of them between sequences.
`paged_attention` reads such pages.
"""

from attnbook.decoding.automaton import Automaton
from attnbook.decoding.beams import beam_search
from attnbook.decoding.constraint import constrain
from attnbook.decoding.generate import Step, greedy_decode, sample, stream
from attnbook.decoding.hybrid_cache import HybridCache
from attnbook.decoding.kv_cache import KVCache
from attnbook.decoding.paged import paged_attention
from attnbook.decoding.paged_cache import PagedCache
from attnbook.decoding.processors import (
    Prefix,
    min_p,
    repetition_penalty,
    temperature,
    top_k,
    top_p,
)
from attnbook.decoding.quantization import Quantized, dequantize, quantize
from attnbook.decoding.quantized_cache import QuantizedCache
from attnbook.decoding.request import Decoded
from attnbook.decoding.sampling import sampler
from attnbook.decoding.speculative import Speculated, speculative_sample, speculative_stream
from attnbook.decoding.window_cache import WindowCache

__all__ = [
    "Automaton",
    "Decoded",
    "HybridCache",
    "KVCache",
    "PagedCache",
    "Prefix",
    "Quantized",
    "QuantizedCache",
    "Speculated",
    "Step",
    "WindowCache",
    "beam_search",
    "constrain",
    "dequantize",
    "greedy_decode",
    "min_p",
    "paged_attention",
    "quantize",
    "repetition_penalty",
    "sample",
    "sampler",
    "speculative_sample",
    "speculative_stream",
    "stream",
    "temperature",
    "top_k",
    "top_p",
]
