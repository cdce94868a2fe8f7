"""An encoder layer: ours beside PyTorch's module, and which of its parts the time goes to.

Three tables. `parity`: errors of the package and of `torch.nn.TransformerEncoderLayer` on small
inputs. `rows`: one layer over n tokens, d_model 512, 8 heads, d_ff 2048, B = 1, forward. `parts`:
its projections, the attention between them, the feed-forward network and the normalisations, each
timed alone.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from attnbook import (
    EncoderLayerWeights,
    attention,
    encoder_layer,
    feed_forward,
    layer_norm,
    masking,
    merge_heads,
    split_heads,
)
from benchmarks import harness, inputs
from benchmarks.multi_head import reference as multi_head_reference
from benchmarks.tables import Tables, steps

D_MODEL, HEADS, D_FF = 512, 8, 2048
SIZES, QUICK_SIZES = (128, 512, 2048), (128,)
OURS, MODULE, FAST = "encoder_layer", "nn.TransformerEncoderLayer", "its fast path"
BASELINE = {"implementation": MODULE, "norm": "pre"}
PARTS_BASELINE = {"part": "projections", "library": "torch"}


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure parity and times of a layer and its parts on `device` ("cpu" or "cuda")."""
    tables.add(
        shape={"batch": 1, "d_model": D_MODEL, "heads": HEADS, "d_ff": D_FF},
        rounds=harness.rounds(quick),
        baseline=BASELINE,
        parts_baseline=PARTS_BASELINE,
        tolerance=inputs.TOLERANCE,
    )
    tables.parity(partial(parity, device))
    sizes, dtypes = QUICK_SIZES if quick else SIZES, inputs.TIMED_DTYPES[device]
    found = steps(layer, device, sizes, dtypes, quick=quick)
    tables.measure("rows", found, "implementation", "norm", "library")
    tables.measure("parts", steps(parts, device, sizes, dtypes, quick=quick), "part", "library")


def reference(
    x: np.ndarray, weights: EncoderLayerWeights, mask: np.ndarray | None = None
) -> np.ndarray:
    """Return an encoder layer in float64 in plain NumPy, written apart from the package."""

    def norm(y, part):
        centred = y - y.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + part.epsilon)
        return scaled * part.gain + part.bias

    def attend(y):
        return multi_head_reference(y, y, y, weights.self_attention, mask)

    def network(y):
        part = weights.feed_forward
        return np.maximum(y @ part.W_1 + part.b_1, 0) @ part.W_2 + part.b_2

    for f, part in (
        (attend, weights.self_attention_norm),
        (network, weights.feed_forward_norm),
    ):
        x = x + f(norm(x, part)) if weights.norm == "pre" else norm(x + f(x), part)
    return x


# Parity


def parity(device: str) -> list[dict[str, Any]]:
    """Return the error of the package, and of PyTorch's module, in each library and dtype."""
    return inputs.parity(device, _cases, _outputs)


def _cases() -> Iterator[tuple[str, dict[str, np.ndarray], EncoderLayerWeights]]:
    rng = np.random.default_rng(40)
    x = {"x": rng.standard_normal((3, 11, 12))}
    for norm in ("pre", "post"):
        drawn = EncoderLayerWeights.init(rng, 12, 4, 20, norm=norm)
        arrays = {
            name: w + rng.normal(size=w.shape) / 10 if w.ndim == 1 else w
            for name, w in drawn.arrays().items()
        }
        weights = drawn.with_arrays(arrays)
        yield f"{norm}-norm", x, weights
        yield f"{norm}-norm, causal mask", x | {"mask": masking.causal(11)}, weights


def _outputs(arrays, weights, library, device, dtype):
    """Yield who computed it, its output and the reference, on the same rounded inputs."""
    weights = inputs.place_weights(weights, library, device, dtype)
    rounded, moved = inputs.place(arrays, library, device, dtype)
    expected = reference(**rounded, weights=weights.to("numpy", dtype="float64"))
    about = {"library": library, "dtype": dtype}
    yield {"implementation": OURS, **about}, encoder_layer(**moved, weights=weights), expected
    if library == "torch":
        yield {"implementation": MODULE, **about}, _module(weights)(**moved), expected


def _module(weights: EncoderLayerWeights, fast: bool = False) -> Callable[..., Any]:
    """Return `torch.nn.TransformerEncoderLayer` with `weights`; its fast path only if `fast`."""
    import torch

    from attnbook.nn import EncoderLayer

    module = EncoderLayer(weights).to_torch()
    # the fast path is that of eval mode; dropout is 0, so train mode computes the same
    module = module.eval() if fast else module.train()

    @torch.no_grad()
    def run(x, mask=None):
        return module(x, src_mask=None if mask is None else ~mask)

    return run


# Time


def layer(device: str, dtype: str, n: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each implementation, norm order and library."""
    rng = np.random.default_rng(n)
    drawn = {"x": rng.standard_normal((1, n, D_MODEL), dtype=np.float32)}
    candidates: list[harness.Candidate] = []
    for norm in ("pre", "post"):
        unplaced = EncoderLayerWeights.init(n, D_MODEL, HEADS, D_FF, norm=norm)
        compare = None
        for library, rounded, moved in inputs.everywhere(drawn, device, dtype):
            weights = inputs.place_weights(unplaced, library, device, dtype)
            if compare is None:
                expected = reference(rounded["x"], weights.to("numpy", dtype="float64"))
                compare = partial(inputs.errors, expected=expected)
            functions: dict[str, Callable[..., Any]] = {
                OURS: partial(encoder_layer, weights=weights)
            }
            if library == "torch":
                functions |= {MODULE: _module(weights), FAST: _module(weights, fast=True)}
            for name, function in functions.items():
                about = {"implementation": name, "norm": norm, "library": library}
                run = partial(function, moved["x"])
                candidates.append(harness.Candidate(about, run, compare))
    size = {"dtype": dtype, "n": n}
    return harness.rows(candidates, device, about=size, baseline=BASELINE, quick=quick)


def parts(device: str, dtype: str, n: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return one row for each part of a pre-norm layer and each library."""
    rng = np.random.default_rng(n)
    drawn = {"x": rng.standard_normal((1, n, D_MODEL), dtype=np.float32)}
    unplaced = EncoderLayerWeights.init(n, D_MODEL, HEADS, D_FF)
    candidates: list[harness.Candidate] = []
    for library, rounded, moved in inputs.everywhere(drawn, device, dtype):
        weights = inputs.place_weights(unplaced, library, device, dtype)
        float64 = weights.to("numpy", dtype="float64")
        for name, function in PARTS.items():
            expected = function(rounded["x"], float64)
            compare = partial(inputs.errors, expected=expected)
            about = {"part": name, "library": library}
            run = partial(function, moved["x"], weights)
            candidates.append(harness.Candidate(about, run, compare))
    size = {"dtype": dtype, "n": n}
    return harness.rows(candidates, device, about=size, baseline=PARTS_BASELINE, quick=quick)


def _projections(x, weights):
    """Four products with d_model × d_model matrices, as a layer has them."""
    part = weights.self_attention
    for W, b in (
        (part.W_Q, part.b_Q),
        (part.W_K, part.b_K),
        (part.W_V, part.b_V),
        (part.W_O, part.b_O),
    ):
        y = x @ W + b
    return y


def _attention(x, weights):
    heads = split_heads(x, weights.self_attention.n_heads)
    return merge_heads(attention(heads, heads, heads))


def _network(x, weights):
    return feed_forward(x, weights.feed_forward)


def _norms(x, weights):
    for part in (weights.self_attention_norm, weights.feed_forward_norm):
        x = layer_norm(x, part.gain, part.bias)
    return x


PARTS = {
    "projections": _projections,
    "attention": _attention,
    "feed-forward": _network,
    "normalisations": _norms,
}
