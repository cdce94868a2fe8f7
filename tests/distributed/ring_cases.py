"""The calls that several processes make together, and the arrays of all of them."""

import zlib

import numpy as np
import torch
from error_table import error_rows

SIZE = 3
"""Processes of the first launch: neither a power of two nor a ring whose two directions meet."""

PLAIN = {
    **{"leading": (), "heads": (4, 2), "m": 10, "d_k": 3, "d_v": 7, "dtype": "float64"},
    **{"layout": "zigzag", "is_causal": True, "impl": "tiled", "scale": None, "size": 1.0},
}

RING = {
    "causal zigzag": {},
    "causal striped": {"layout": "striped", "heads": (3, 3)},
    "causal contiguous": {"layout": "contiguous", "m": 3},
    "not causal": {"is_causal": False, "layout": "contiguous", "heads": (6, 1), "m": 7},
    "one head without an axis": {"heads": None, "scale": 0.3, "m": 2},
    "packed": {"impl": "packed", "dtype": "float32", "m": 142, "d_k": 16},
    "a batch in float32": {"dtype": "float32", "leading": (2, 1)},
    "bfloat16": {"dtype": "bfloat16", "impl": "packed", "m": 34},
    "float16": {"dtype": "float16"},
    "one token a run": {"m": 2},
    "large scores": {"size": 60.0, "dtype": "float32", "impl": "packed"},
    "large scores tiled": {"size": 60.0, "dtype": "float32", "is_causal": False},
}
"""Each with what differs from `PLAIN`."""

PLAIN_RING = [name for name, given in RING.items() if "impl" not in given]
"""Those that wait for no compiler."""

DECODE = {
    "one token": {"n_q": 1},
    "few tokens": {"n_q": 3, "impl": "packed", "dtype": "float32", "heads": (6, 2)},
    "one token, compiled": {"n_q": 1, "impl": "packed", "dtype": "float32", "mask": True},
    "no keys on one process": {"n_q": 2, "cuts": (0, 0, 4, 30)},
    "no keys, compiled": {"n_q": 2, "cuts": (0, 0, 4, 30), "impl": "packed", "dtype": "float32"},
    "a mask": {"n_q": 2, "mask": True},
    "nothing to see": {"n_q": 2, "mask": False},
}


def of(given):
    return {**PLAIN, **given}


def drawn(name, case, size):
    """Return query, key, value and the gradient of the output of all processes, m tokens each."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    n = case["m"] * size
    n_q = case.get("n_q", n)
    h, h_kv = case["heads"] or (None, None)
    sizes = ((h, n_q, "d_k"), (h_kv, n, "d_k"), (h_kv, n, "d_v"), (h, n_q, "d_v"))
    arrays = []
    for heads, rows, d in sizes:
        shape = (*case["leading"], *((heads,) if heads else ()), rows, case[d])
        x = torch.tensor(rng.standard_normal(shape)).to(getattr(torch, case["dtype"]))
        arrays.append(x)
    arrays[0] = arrays[0] * case["size"]
    return arrays


def cuts_of(case, size):
    """Return where the keys of each process begin, of unequal shards, and where the last end."""
    n = case["m"] * size
    return case.get("cuts") or (0, *(n * (r + 1) ** 2 // size**2 for r in range(size)))


def mask_of(case, size):
    """Return a mask (n_q, n) that hides every third key, or all of them."""
    if "mask" not in case:
        return None
    return (torch.arange(case["m"] * size) % 3 > 0).expand(case["n_q"], -1) & case["mask"]


COUNTED = {
    "every label": slice(None),
    "no label of a prompt": slice(7, None),
    "labels of one shard alone": [0, 1, 22, 23],
}
"""Which of 24 labels count, for zigzag shards of one to four processes."""


def model(size=5, n=24):
    """Return the parameters of a model of two layers, and a text whose labels are shifted by one.

    The text is cut after the shift: the label of a shard's last token lies in another shard.
    """
    rng = np.random.default_rng(11)
    shapes = {"tokens": (7, size), "positions": (n, size)}
    shapes |= {f"{x}{i}": (size, size) for i in range(2) for x in "qkvo"}
    weights = {
        x: torch.tensor(0.5 * rng.normal(size=s), requires_grad=True) for x, s in shapes.items()
    }
    text = torch.tensor(rng.integers(7, size=n + 1))
    return weights, text[:-1], text[1:]


def losses_of(weights, ids, labels, positions, attend):
    """Return the loss of each token, by `attend(query, key, value)` in every layer."""
    x = weights["tokens"][ids] + weights["positions"][positions]
    for i in range(2):
        q, k, v = (x @ weights[f"{name}{i}"] for name in "qkv")
        x = x + attend(q, k, v) @ weights[f"o{i}"]
    logits = x @ weights["tokens"].T
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


SKETCHES = {
    "union": {"estimator": "union", "library": "torch", "dtype": "float64"},
    "importance": {"estimator": "importance", "library": "numpy", "dtype": "float64"},
    "compiled": {"estimator": "union", "library": "numpy", "impl": "numba", "dtype": "float32"},
    "far queries": {"estimator": "union", "library": "torch", "dtype": "float64", "far": True},
}


def sketched(name, case):
    """Return queries, keys and values of all processes, in NumPy."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    query, key, value = (rng.standard_normal(s) for s in ((13, 6), (97, 6), (97, 5)))
    if case.get("far"):
        key = np.abs(key)
        query[:5] = -np.abs(query[:5])
    return [x.astype(case["dtype"]) for x in (query, key, value)]


SKETCH_CUTS = (0, 40, 40, 97)
"""One process has no key."""


ERRORS = [
    row.values
    for row in error_rows("""
ring_attention(x, x[[0, 0, 0]], x[[0, 0, 0]])
    ValueError: key must have the leading axes (2,) of query, or a number of heads that divides the
    last of them, got (3,)
ring_attention(x, x, x[:1])
    ValueError: value must have the leading axes (2,) of key, got (1,)
ring_attention(x, x[..., :2], x)
    ValueError: key must have shape (..., n_k, 3) to match query, got (4, 2)
ring_attention(x, x, x[:, :2])
    ValueError: value must have shape (..., 4, d_v) to match key, got (2, 3)
ring_attention(x[:, :2], x, x, is_causal=True)
    ValueError: key must have as many tokens as query (2) for is_causal=True, got 4
ring_attention(x[:, :3], x[:, :3], x[:, :3], is_causal=True)
    ValueError: query must have an even number of tokens for zigzag shards, got 3
ring_attention(x, x, x, layout="spiral")
    ValueError: layout must be one of contiguous, striped, zigzag, got 'spiral'
ring_attention(x, x, x, impl="naive")
    ValueError: impl must be one of tiled, packed, triton, got 'naive'
ring_attention(x, x.double(), x)
    TypeError: key must have the dtype of query (float32), got float64
ring_attention(x.numpy(), x, x)
    TypeError: query must be a tensor of PyTorch, got ndarray
ring_attention(x, x, x, group="all")
    TypeError: group must be a ProcessGroup of torch.distributed or None, got str
ring_attention(x, x, x, timeout=0)
    ValueError: timeout must be from 0.001 to 2147483647 seconds, got 0
ring_attention(x, x, x, timeout=1e-4)
    ValueError: timeout must be from 0.001 to 2147483647 seconds, got 0.0001
ring_attention(x, x, x, timeout=1e300)
    ValueError: timeout must be from 0.001 to 2147483647 seconds, got 1e+300
ring_attention(x, x, x, is_causal=1)
    TypeError: is_causal must be a bool, got int
ring_attention(x[0, 0], x, x)
    ValueError: query must have shape (..., n_q, d_k), got (3,)
ring_attention(x[:0], x[:0], x[:0])
    ValueError: query must have at least 1 head, got shape (0, 4, 3)
decode_attention(x, x, x, mask=torch.ones(4, 5) > 0)
    ValueError: mask must broadcast to the shape of the scores (..., n_q, n_k) = (4, 4), got (4, 5)
decode_attention(x, x, x, mask=Causal() & Chunks(4))
    TypeError: mask must be a tensor, since each process has some of the keys, got
    (Causal() & Chunks(4))
ShardedSketch(SketchAttention(hash, estimator="duplicates"))
    ValueError: sketch must have estimator 'union' or 'importance' to be sharded, got 'duplicates'
ShardedSketch(x)
    TypeError: sketch must be SketchAttention, got Tensor
""")
]
"""What all processes refuse alike, with the tensor `x` of shape (2, 4, 3) and a `hash`."""
