"""Multi-head attention: fused against a loop over the heads, beside PyTorch's module; the cache.

Three tables. `parity`: errors of the package and of `torch.nn.MultiheadAttention` on small inputs.
`rows`: self-attention of n tokens, d_model 512 and 8 heads, B = 1, forward, with 8, 2 and 1 key
heads. `decoding`: one new query a head attends to a cache of n keys and values, shared likewise.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attnbook import (
    MultiHeadWeights,
    attention,
    masking,
    multi_head_attention,
    single_head_attention,
)
from benchmarks import harness, inputs
from benchmarks.tables import Tables, steps

D_MODEL, HEADS, KV_HEADS = 512, 8, (8, 2, 1)
SIZES, QUICK_SIZES = (128, 256, 512, 1024, 2048), (128, 512)
CACHES, QUICK_CACHES = (1024, 4096, 16384), (1024,)
BATCH = {"cpu": 1, "cuda": 8}  # of decoding: a GPU reads the cache of one sequence in no time
OURS, LOOP = "multi_head_attention", "loop over the heads"
MODULE, WITH_WEIGHTS = "nn.MultiheadAttention", "nn.MultiheadAttention, need_weights"
SDPA, GQA = "scaled_dot_product_attention", "scaled_dot_product_attention, enable_gqa"
BASELINE = {"implementation": MODULE}
DECODING_BASELINE = {"implementation": SDPA, "kv_heads": HEADS}


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure parity, times of a layer and of decoding on `device` ("cpu" or "cuda")."""
    tables.add(
        shape={"batch": 1, "d_model": D_MODEL, "heads": HEADS},
        decoding_shape={"batch": BATCH[device], "heads": HEADS, "width": D_MODEL // HEADS},
        rounds=harness.rounds(quick),
        baseline=BASELINE,
        decoding_baseline=DECODING_BASELINE,
        tolerance=inputs.TOLERANCE,
    )
    tables.parity(partial(parity, device))
    dtypes = inputs.TIMED_DTYPES[device]
    told = ("implementation", "kv_heads", "library")
    sizes = QUICK_SIZES if quick else SIZES
    tables.measure("rows", steps(layer, device, sizes, dtypes, quick=quick), *told)
    caches = QUICK_CACHES if quick else CACHES
    found = steps(decoding, device, caches, dtypes, quick=quick, power=1)
    tables.measure("decoding", found, *told)


def reference(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    weights: MultiHeadWeights,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """Return multi-head attention in float64 in plain NumPy, one head at a time."""
    output: Any = 0.0 if weights.b_O is None else weights.b_O
    W_O: Any = weights.W_O
    for head in range(weights.n_heads):
        kv_head = head * weights.n_kv_heads // weights.n_heads
        q = _project(query, weights.W_Q, weights.b_Q, head, weights.n_heads)
        k = _project(key, weights.W_K, weights.b_K, kv_head, weights.n_kv_heads)
        v = _project(value, weights.W_V, weights.b_V, kv_head, weights.n_kv_heads)
        d_v = v.shape[-1]
        output = output + inputs.reference(q, k, v, mask) @ W_O[head * d_v :][:d_v]
    return output


def _project(x, matrix, bias, head, n_heads):
    width = matrix.shape[1] // n_heads
    own = slice(head * width, (head + 1) * width)
    return x @ matrix[:, own] + (0.0 if bias is None else bias[own])


# Parity


def parity(device: str) -> list[dict[str, Any]]:
    """Return the error of the package, and of PyTorch's module, in each library and dtype."""
    return inputs.parity(device, _cases, _outputs)


def _cases() -> Iterator[tuple[str, dict[str, np.ndarray], MultiHeadWeights]]:
    rng = np.random.default_rng(30)
    normal = rng.standard_normal
    x = {"query": normal((3, 11, 12)), "key": normal((3, 13, 12)), "value": normal((3, 13, 12))}
    narrow = x | {"key": normal((3, 13, 7)), "value": normal((3, 13, 5))}

    def weights(**options):
        drawn = MultiHeadWeights.init(rng, 12, 4, bias=True, **options)
        biases = {name: normal(getattr(drawn, name).shape) for name in ("b_Q", "b_K", "b_V", "b_O")}
        return replace(drawn, **biases)

    yield "no bias", x, MultiHeadWeights.init(rng, 12, 4)
    yield "biases", x, weights()
    yield "causal mask", x | {"mask": masking.causal(11, 13)}, weights()
    yield "padding", x | {"mask": masking.padding([[13], [4], [1]], 13)}, weights()
    yield "other widths of key and value", narrow, weights(d_key=7, d_value=5)
    yield "2 key heads", x, weights(n_kv_heads=2)
    yield "1 key head", x, weights(n_kv_heads=1)


def _outputs(arrays, weights, library, device, dtype):
    """Yield who computed it, its output and the reference, on the same rounded inputs."""
    weights = inputs.place_weights(weights, library, device, dtype)
    rounded, moved = inputs.place(arrays, library, device, dtype)
    if (mask := rounded.get("mask")) is not None and mask.ndim == 4:
        rounded["mask"] = mask[:, 0]  # the reference has no axis for the heads
    expected = reference(**rounded, weights=weights.to("numpy", dtype="float64"))
    about = {"library": library, "dtype": dtype}
    yield (
        {"implementation": OURS, **about},
        multi_head_attention(**moved, weights=weights),
        expected,
    )
    if library == "torch" and weights.n_kv_heads == weights.n_heads:
        output = _module(weights)(**moved)
        yield {"implementation": MODULE, **about}, output, expected


def _module(weights: MultiHeadWeights, need_weights: bool = False) -> Callable[..., Any]:
    """Return `torch.nn.MultiheadAttention` with `weights`, as a function in this book's terms."""
    import torch

    from attnbook.nn import MultiHeadAttention

    module = MultiHeadAttention(weights).to_torch().eval()

    @torch.no_grad()
    def run(query, key, value, mask=None):
        shape = (query.shape[0], weights.n_heads, query.shape[1], key.shape[1])
        theirs = None if mask is None else masking.to_mha(mask, shape)
        return module(query, key, value, attn_mask=theirs, need_weights=need_weights)[0]

    return run


# Time


def layer(device: str, dtype: str, n: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each implementation, number of key heads and library."""
    rng = np.random.default_rng(n)
    drawn = {"x": rng.standard_normal((1, n, D_MODEL), dtype=np.float32)}
    layers = {g: MultiHeadWeights.init(n, D_MODEL, HEADS, n_kv_heads=g) for g in KV_HEADS}
    compare: dict[int, Callable] = {}
    candidates: list[harness.Candidate] = []
    for library, rounded, moved in inputs.everywhere(drawn, device, dtype):
        for kv_heads, unplaced in layers.items():
            weights = inputs.place_weights(unplaced, library, device, dtype)
            if kv_heads not in compare:
                float64 = weights.to("numpy", dtype="float64")
                expected = reference(*(rounded["x"],) * 3, float64)
                compare[kv_heads] = partial(inputs.errors, expected=expected)
            functions: dict[str, Callable[..., Any]] = {
                OURS: partial(multi_head_attention, weights=weights)
            }
            if kv_heads == HEADS:
                functions[LOOP] = partial(_loop, heads=weights.heads())
                if library == "torch":
                    functions[MODULE] = _module(weights)
                    functions[WITH_WEIGHTS] = _module(weights, need_weights=True)
            for name, function in functions.items():
                about = {"implementation": name, "kv_heads": kv_heads, "library": library}
                run = partial(function, *(moved["x"],) * 3)
                candidates.append(harness.Candidate(about, run, compare[kv_heads]))
    size = {"dtype": dtype, "n": n}
    return harness.rows(candidates, device, about=size, baseline=BASELINE, quick=quick)


def _loop(query, key, value, heads):
    outputs = [single_head_attention(query, key, value, head) for head in heads]
    return sum(outputs[1:], start=outputs[0])


def decoding(device: str, dtype: str, n: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each implementation, number of key heads and library."""
    rng = np.random.default_rng(n)
    batch, width = BATCH[device], D_MODEL // HEADS
    candidates: list[harness.Candidate] = []
    for kv_heads in KV_HEADS:
        # the queries of a group are rows of one matrix, so that no key needs to be repeated
        shapes = {"query": (batch, kv_heads, HEADS // kv_heads, width)}
        shapes |= dict.fromkeys(("key", "value"), (batch, kv_heads, n, width))
        drawn = {
            name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()
        }
        compare = None
        for library, rounded, moved in inputs.everywhere(drawn, device, dtype):
            if compare is None:
                compare = partial(inputs.errors, expected=inputs.reference(**rounded))
            functions: dict[str, Callable[..., Any]] = {"attention": attention}
            if library == "torch":
                from torch.nn.functional import scaled_dot_product_attention

                functions |= {SDPA: scaled_dot_product_attention, GQA: _sdpa_gqa}
            cache = sum(moved[name].nbytes for name in ("key", "value"))
            for name, function in functions.items():
                about = {"implementation": name, "kv_heads": kv_heads, "library": library}
                about["cache_bytes"] = cache
                candidates.append(harness.Candidate(about, partial(function, **moved), compare))
    size = {"dtype": dtype, "n": n}
    return harness.rows(candidates, device, about=size, baseline=DECODING_BASELINE, quick=quick)


def _sdpa_gqa(query, key, value):
    from torch.nn.functional import scaled_dot_product_attention

    one_a_head = query.reshape(query.shape[0], -1, 1, query.shape[-1])
    output = scaled_dot_product_attention(one_a_head, key, value, enable_gqa=True)
    return output.reshape(query.shape)
