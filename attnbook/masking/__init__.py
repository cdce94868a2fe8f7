"""Masks: which query may attend to which key. Boolean everywhere, **True = may attend**.

The mask constructors return plain boolean arrays. A `Rule`, such as `Causal`, says the same without
an array. You can combine masks with masks, and rules with rules, by ``&`` (both allow it), ``|``
(at least one allows it) and ``~`` (the complement). Query i has position i + n_k - n_q in the
sequence of keys. In other words, the last query is aligned with the last key, so with cached keys
one new query (n_q = 1) is the last token.

A mask costs O(n_q n_k) time and one byte per pair of query and key; a sliding window needs three
bytes per pair while it is made. A rule goes wherever a mask goes, as ``attention(…, mask=rule)``.
The reference makes the mask of it, whereas the kernels in `kernels.READ_RANGES` hold no array of
n_q n_k numbers and skip what the rule hides.

`to_…` and `from_…` convert to and from what other libraries expect.
"""

from attnbook.masking.conventions import (
    from_additive,
    from_valid_lengths,
    to_additive,
    to_mha,
    to_sdpa,
)
from attnbook.masking.documents import Documents
from attnbook.masking.masks import (
    block_diagonal,
    causal,
    draw,
    padding,
    prefix,
    sliding_window,
    strided,
)
from attnbook.masking.ranges import Causal, Chunks, FirstKeys, SlidingWindow
from attnbook.masking.rules import Rule

__all__ = [
    "Causal",
    "Chunks",
    "Documents",
    "FirstKeys",
    "Rule",
    "SlidingWindow",
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
