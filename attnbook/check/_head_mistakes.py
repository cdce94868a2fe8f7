"""Ways to split, attend and merge heads, right and wrong."""

import math
from collections.abc import Callable, Iterator

import numpy as np

from attnbook.check._recipes import softmax, transposed
from attnbook.check._split_heads import (
    bare_join,
    bare_reshape,
    heads_of,
    interleaved,
    interleaved_join,
    joined,
)

MESSAGES = {
    "bare reshape": (
        "Heads are split and merged by a bare reshape to (h, n, d): each head gets a few tokens "
        "whole instead of a part of every token. Reshape (n, h·d) to (n, h, d), then swap the axes "
        "of n and h, and swap them back before you merge."
    ),
    "bare reshape in the split": (
        "Heads are split by a bare reshape to (h, n, d): each head gets a few tokens whole instead "
        "of a part of every token. Reshape (n, h·d) to (n, h, d), then swap the axes of n and h."
    ),
    "missing transpose in the merge": (
        "Heads are merged by a bare reshape from (h, n, d), which puts rows of one head side by "
        "side. Swap the axes of h and n first, then reshape (n, h, d) to (n, h·d)."
    ),
    "attention over the heads": (
        "Each token attends over its own heads, and tokens never meet: the axes of n and h were "
        "not swapped, so the last two axes are (h, d) where they should be (n, d)."
    ),
    "interleaved features": (
        "Head i gets every h-th feature: the width is reshaped to (d, h). Here a head is a block "
        "of neighbouring features: reshape it to (h, d)."
    ),
    "scale by d_model": (
        "The scores are divided by √d_model, the width of all heads together. A dot product in one "
        "head has d_head terms: divide by √d_head."
    ),
    "no scale": "The scores are not scaled. Divide them by √d_head before the softmax.",
    "softmax over the heads": (
        "The softmax runs over the heads, so they share out each key between them. It runs over "
        "the keys, the last axis of the scores."
    ),
    "softmax over the queries": (
        "The softmax runs over the queries. It runs over the keys, the last axis of the scores."
    ),
    "one head": (
        "There is one head over the whole width: the heads are never split, so all features share "
        "one set of weights."
    ),
    "heads averaged": (
        "The heads are averaged or added up. They are put side by side, (n, h·d): each keeps its "
        "own features."
    ),
    "output projection": (
        "The right heads are there, but mixed by a matrix: an output projection W_O stands behind "
        "them. Check the part before it, or with the identity as W_O."
    ),
}


class Layout:
    """Where the heads are in an array, and the shapes of query, key and value."""

    def __init__(self, h: int, axis: int | None, shapes: list[tuple[int, ...]]):
        self.h, self.axis, self.shapes = h, axis, shapes
        if axis not in (None, -3, -2):
            raise ValueError(f"head_axis must be None, -3 or -2, got {axis!r}")
        where = -1 if axis is None else axis
        letters = {None: f"(..., n, {h}·d)", -3: f"(..., {h}, n, d)", -2: f"(..., n, {h}, d)"}
        for shape in shapes:
            enough = len(shape) >= -(-2 if axis is None else -3)
            divides = enough and (shape[-1] % h == 0 if axis is None else shape[where] == h)
            if not divides or 0 in shape:
                raise ValueError(f"example must have shape {letters[axis]}, got {shape}")

    def draw(self, seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng([seed, self.h])
        return [rng.normal(size=shape) for shape in self.shapes]

    def split(self, x: np.ndarray) -> np.ndarray:
        """Return (..., h, n, d)."""
        if self.axis is None:
            return heads_of(x, self.h)
        return x if self.axis == -3 else x.swapaxes(-2, -3)

    def merge(self, x: np.ndarray) -> np.ndarray:
        """Take (..., h, n, d) back to where it came from."""
        if self.axis is None:
            return joined(x)
        return x if self.axis == -3 else x.swapaxes(-2, -3)

    def reference(self, arrays: list[np.ndarray], mask: np.ndarray | None = None) -> np.ndarray:
        """Return attention of each block alone."""
        q, k, v = (self.split(x) for x in arrays)
        return self.merge(attend(q, k, v, mask=mask))


def attend(q, k, v, scale=None, axis=-1, mask=None):
    scores = q @ transposed(k) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    return softmax(scores if mask is None else np.where(mask, scores, -np.inf), axis) @ v


def head_mistakes(layout: Layout, arrays: list[np.ndarray]) -> Iterator[tuple[str, Callable]]:
    """Yield each mistake with a function that makes it, the more plausible first."""
    h, split, merge = layout.h, layout.split, layout.merge
    q, k, v = (split(x) for x in arrays)
    if layout.axis is None:
        bare = [bare_reshape(x, h) for x in arrays]
        yield "bare reshape", lambda: bare_join(attend(*bare))
        yield "bare reshape in the split", lambda: merge(attend(*bare))
        yield "missing transpose in the merge", lambda: bare_join(attend(q, k, v))
        every = [interleaved(x, h) for x in arrays]
        yield "interleaved features", lambda: merge(attend(*every))
        yield "interleaved features", lambda: interleaved_join(attend(*every))
        yield "one head", lambda: attend(*arrays)
    swapped = [x.swapaxes(-2, -3) for x in (q, k, v)]  # (..., n, h, d)
    yield "attention over the heads", lambda: merge(attend(*swapped).swapaxes(-2, -3))
    yield "scale by d_model", lambda: merge(attend(q, k, v, 1 / math.sqrt(h * q.shape[-1])))
    yield "no scale", lambda: merge(attend(q, k, v, 1.0))
    yield "softmax over the heads", lambda: merge(attend(q, k, v, axis=-3))
    yield "softmax over the queries", lambda: merge(attend(q, k, v, axis=-2))
    heads = attend(q, k, v)
    for mix in (heads.mean(-3, keepdims=True), heads.sum(-3, keepdims=True)):
        yield "heads averaged", lambda mix=mix: merge(np.repeat(mix, h, axis=-3))
        yield "heads averaged", lambda mix=mix: mix.squeeze(-3)
