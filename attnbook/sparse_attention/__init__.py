"""Learned sparse attention: cheap scores say which keys a query reads, and it reads only those.

`indexer_scores` scores all keys with few narrow heads, `top_keys` picks the best, and
`selected_attention` attends to them. `block_sparse_attention` picks blocks of keys by their means.
"""

from attnbook.sparse_attention.blocks import block_sparse_attention, pool_blocks
from attnbook.sparse_attention.indexer import indexer_loss, indexer_scores
from attnbook.sparse_attention.selection import selected_attention, top_keys

__all__ = [
    "block_sparse_attention",
    "indexer_loss",
    "indexer_scores",
    "pool_blocks",
    "selected_attention",
    "top_keys",
]
