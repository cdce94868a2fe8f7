"""Attention over keys that outgrow one machine, on the process groups of `torch.distributed`.

Each process holds a shard of the keys and values. `ring_attention` passes the shards round a ring,
for training and for long prompts; `global_mean` and `sum_gradients` make a training step of it.
`decode_attention` merges one state of each process, for a cache that is sharded, and
`ShardedSketch` does the same with hash tables. `shard_sequence` says which tokens each process
holds. PyTorch is imported when the first of the functions that need it is asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from attnbook.distributed.shards import shard_sequence, unshard_sequence

if TYPE_CHECKING:
    from attnbook.distributed.reductions import global_mean, sum_gradients
    from attnbook.distributed.ring import ring_attention
    from attnbook.distributed.sharded_sketch import ShardedSketch
    from attnbook.distributed.split_decoding import decode_attention

__all__ = [
    "ShardedSketch",
    "decode_attention",
    "global_mean",
    "ring_attention",
    "shard_sequence",
    "sum_gradients",
    "unshard_sequence",
]

_HOMES = {
    "ShardedSketch": "sharded_sketch",
    "decode_attention": "split_decoding",
    "global_mean": "reductions",
    "ring_attention": "ring",
    "sum_gradients": "reductions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    except ImportError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"attnbook.distributed.{name} needs PyTorch: pip install torch"
        ) from error
    return getattr(module, name)
