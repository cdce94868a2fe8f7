"""Masks: which query may attend to which key. Boolean everywhere, **True = may attend**.

The makers return plain boolean arrays, so masks combine with ``&`` (both allow it), ``|`` (one of
them does) and ``~`` (the rest). Query i stands at place i + n_k - n_q of the sequence of keys: the
last query beside the last key, so that with cached keys one new query (n_q = 1) is the last token.
A mask costs O(n_q n_k) time and a byte a pair; making a window takes three for a moment.

`to_…` and `from_…` translate to and from what other libraries expect.
"""

from attnbook.masking.conventions import (
    from_additive,
    from_valid_lengths,
    to_additive,
    to_mha,
    to_sdpa,
)
from attnbook.masking.masks import (
    block_diagonal,
    causal,
    draw,
    padding,
    prefix,
    sliding_window,
    strided,
)

__all__ = [
    "block_diagonal",
    "causal",
    "draw",
    "from_additive",
    "from_valid_lengths",
    "padding",
    "prefix",
    "sliding_window",
    "strided",
    "to_additive",
    "to_mha",
    "to_sdpa",
]
