"""Attention of heads in steps, and the ways to split, to weigh and to merge them wrongly."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from attnbook.check.engine.steps import Check
from attnbook.check.engine.text import Text

NAMES = ("query", "key", "value")


class Layout:
    """Where the heads are in an array, and the shapes of query, key and value."""

    def __init__(self, h: int, axis: int | None, shapes: list[tuple[int, ...]]):
        self.h, self.axis, self.shapes = h, axis, shapes
        if axis not in (None, -3, -2):
            raise ValueError(f"head_axis must be None, -3 or -2, got {axis!r}")
        letters = {None: f"(..., n, {h}·d)", -3: f"(..., {h}, n, d)", -2: f"(..., n, {h}, d)"}
        for shape in shapes:
            enough = len(shape) >= (2 if axis is None else 3)
            divides = enough and (shape[-1] % h == 0 if axis is None else shape[axis] == h)
            if not divides or 0 in shape:
                raise ValueError(f"example must have shape {letters[axis]}, got {shape}")

    def draw(self, seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng([seed, self.h])
        return [rng.normal(size=shape) for shape in self.shapes]

    def split(self, x: np.ndarray) -> np.ndarray:
        """Return (..., h, n, d)."""
        if self.axis is None:
            x = x.reshape(*x.shape[:-1], self.h, -1)
        return x if self.axis == -3 else x.swapaxes(-2, -3)

    def merge(self, x: np.ndarray) -> np.ndarray:
        """Take (..., h, n, d) back to where it came from."""
        x = x if self.axis == -3 else x.swapaxes(-2, -3)
        return x.reshape(*x.shape[:-2], -1) if self.axis is None else x

    def reference(self, *arrays: np.ndarray, hide: Callable = lambda scores: scores) -> np.ndarray:
        """Return attention of each block alone."""
        return _attend(SimpleNamespace(**{**TEXT.steps, "hide": hide}), self, *arrays)


def _attend(steps: Any, layout: Layout, *arrays: np.ndarray) -> np.ndarray:
    q, k, v = steps.heads(*(steps.split(layout, x) for x in steps.take(*arrays)))
    scores = q @ k.swapaxes(-1, -2) * steps.factor(layout, q.shape[-1])
    return steps.merge(layout, steps.normalise(steps.hide(scores), steps.axis) @ v)


def causal(scores):
    n_q, n_k = scores.shape[-2:]
    return np.where(np.tri(n_q, n_k, n_k - n_q, dtype=bool), scores, -np.inf)


def bare_split(layout, x):
    return x.reshape(*x.shape[:-2], layout.h, x.shape[-2], -1)


def bare_merge(layout, heads):
    *leading, h, n, d = heads.shape
    return heads.reshape(*leading, n, h * d)


def interleaved_split(layout, x):
    return np.moveaxis(x.reshape(*x.shape[:-1], -1, layout.h), -1, -3)


def interleaved_merge(layout, heads):
    *leading, h, n, d = heads.shape
    return np.moveaxis(heads, -3, -1).reshape(*leading, n, h * d)


def first_of(heads):
    return 0 * heads + heads[..., :1, :, :]


def softmax_over(axes, scores):
    """Return the softmax over several axes at once."""
    powers = np.exp(scores - np.max(scores, axis=axes, keepdims=True))
    return powers / np.sum(powers, axis=axes, keepdims=True)


def otherwise(x):
    """Return the heads of a bare reshape of what was split."""
    return x.swapaxes(-2, -3).reshape(x.shape)


def every_hth(x):
    *leading, h, n, d = x.shape
    return np.moveaxis(x.swapaxes(-2, -3).reshape(*leading, n, d, h), -1, -3)


TEXT = Text(globals())


def check_of(layout: Layout) -> Check:
    """Return the computation of the heads in steps, with all the ways to get one wrong."""
    of_the_width = TEXT["of the width"] if layout.axis is None else ()
    return Check(
        name="heads_are_independent",
        parameters=("query", "key", "value"),
        results={"output": "(..., n, h·d)"},
        reference=layout.reference,
        stages=(),
        mistakes=(*of_the_width, *TEXT.mistakes),
        compute=lambda steps, *arrays: _attend(steps, layout, *arrays),
        steps=TEXT.steps,
        variants=TEXT.variants,
    )
