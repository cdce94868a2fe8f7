"""Attention of heads in steps, and the ways to split, to weigh and to merge them wrongly."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from attnbook.check.engine.steps import Check, Mistake, Way, each
from attnbook.check.engine.text import Text
from attnbook.single_head.softmax import softmax

NAMES = ("query", "key", "value")

TEXT = Text(globals())

HEADS = TEXT.sentences


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


def _bare_split(layout, x):
    return x.reshape(*x.shape[:-2], layout.h, x.shape[-2], -1)


def _bare_merge(layout, heads):
    *leading, h, n, d = heads.shape
    return heads.reshape(*leading, n, h * d)


def _interleaved_split(layout, x):
    return np.moveaxis(x.reshape(*x.shape[:-1], -1, layout.h), -1, -3)


def _interleaved_merge(layout, heads):
    *leading, h, n, d = heads.shape
    return np.moveaxis(heads, -3, -1).reshape(*leading, n, h * d)


def _first_of(heads):
    return 0 * heads + heads[..., :1, :, :]


def _repeated(head: Callable) -> Callable:
    """Return the merge that repeats one head, made of all, in the place of each."""
    return lambda layout, heads: layout.merge(0 * heads + head(heads))


def _over(axes: tuple[int, ...]) -> Callable:
    """Return the softmax over several axes at once."""

    def normalise(scores, axis):
        powers = np.exp(scores - np.max(scores, axis=axes, keepdims=True))
        return powers / np.sum(powers, axis=axes, keepdims=True)

    return normalise


def _alike(one: Callable) -> Callable:
    """Return the weights that ``one(weights)`` has in common for all heads."""
    return lambda s, axis: np.broadcast_to(one(np.asarray(softmax(s, axis))), s.shape)


def _otherwise(x):
    """Return the heads of a bare reshape of what was split."""
    return x.swapaxes(-2, -3).reshape(x.shape)


def _every_hth(x):
    *leading, h, n, d = x.shape
    return np.moveaxis(x.swapaxes(-2, -3).reshape(*leading, n, d, h), -1, -3)


def _one_of(change: Callable) -> tuple[Way, ...]:
    """Return the ways that change query, key or value."""
    return each(
        "heads",
        lambda q, k, v: (change(q), k, v),
        lambda q, k, v: (q, change(k), v),
        lambda q, k, v: (q, k, change(v)),
    )


_OF_THE_WIDTH: dict[str, Way | tuple[Way, ...]] = {
    "bare reshape": {"split": _bare_split, "merge": _bare_merge},
    "bare reshape in the split": {"split": _bare_split},
    "missing transpose in the merge": {"merge": _bare_merge},
    "interleaved features": (
        {"split": _interleaved_split},
        {"split": _interleaved_split, "merge": _interleaved_merge},
    ),
    "features in another order": {"merge": _interleaved_merge},
    "number and width swapped": {
        "split": lambda layout, x: x.reshape(*x.shape[:-1], -1, layout.h).swapaxes(-2, -3)
    },
    "one head": {"split": lambda layout, x: x, "merge": lambda layout, heads: heads},
}
"""What can go wrong where the heads share the last axis."""
_OF_THE_HEADS: dict[str, Way | tuple[Way, ...]] = {
    "attention over the heads": {
        "split": lambda layout, x: layout.split(x).swapaxes(-2, -3),
        "merge": lambda layout, heads: layout.merge(heads.swapaxes(-2, -3)),
    },
    "scale by d_model": {"factor": lambda layout, d: 1 / math.sqrt(layout.h * d)},
    "no scale": {"factor": lambda layout, d: 1.0},
    "scale without the root": {"factor": lambda layout, d: 1 / d},
    "scale multiplied": {"factor": lambda layout, d: math.sqrt(d)},
    "scale by another size": each(
        "factor",
        lambda layout, d: 1 / math.sqrt(layout.h),
        lambda layout, d: 1 / (layout.h * d),
    ),
    "softmax over all scores": each("normalise", _over((-2, -1)), _over((-3, -2, -1))),
    "weights transposed": each(
        "normalise", lambda s, axis: np.asarray(softmax(s, axis)).swapaxes(-1, -2)
    ),
    "best key alone": each("normalise", lambda s, axis: 1.0 * (s == np.max(s, -1, keepdims=True))),
    "mean of the values": each("normalise", lambda s, axis: np.full(s.shape, 1 / s.shape[-1])),
    "scores of all heads added": each(
        "normalise",
        lambda s, axis: softmax(np.broadcast_to(np.sum(s, axis=-3, keepdims=True), s.shape), axis),
    ),
    "weights of one head for all": each(
        "normalise",
        _alike(lambda w: w[..., :1, :, :]),
        _alike(lambda w: w[..., -1:, :, :]),
        _alike(lambda w: np.sum(w, axis=-3, keepdims=True)),
    ),
    "one input split otherwise": _one_of(_otherwise) + _one_of(_every_hth),
    "one input in reverse": _one_of(lambda x: np.flip(x, axis=-3)),
    "softmax over the heads": {"axis": -3},
    "softmax over the queries": {"axis": -2},
    "no softmax": each(
        "normalise", lambda scores, axis: scores, lambda scores, axis: np.exp(scores)
    ),
    "heads averaged": each(
        "merge",
        *(_repeated(lambda x, f=f: f(x, axis=-3, keepdims=True)) for f in (np.mean, np.sum)),
        *(lambda layout, heads, f=f: f(heads, axis=-3) for f in (np.mean, np.sum)),
    ),
    "weights averaged": each(
        "normalise",
        _alike(lambda w: np.mean(w, axis=-3, keepdims=True)),
    ),
    "one head left out": each(
        "merge",
        lambda layout, x: layout.merge(x * (np.arange(layout.h) < layout.h - 1)[:, None, None]),
        lambda layout, x: layout.merge(x * (np.arange(layout.h) > 0)[:, None, None]),
    ),
    "first keys or values for all": each(
        "heads",
        lambda q, k, v: (_first_of(q), k, v),
        lambda q, k, v: (q, _first_of(k), v),
        lambda q, k, v: (q, k, _first_of(v)),
        lambda q, k, v: (q, _first_of(k), _first_of(v)),
    ),
    "keys or values of another head": each(
        "heads",
        *(lambda q, k, v, by=by: (q, np.roll(k, by, axis=-3), v) for by in (-1, 1)),
        *(lambda q, k, v, by=by: (q, k, np.roll(v, by, axis=-3)) for by in (-1, 1)),
        *(lambda q, k, v, by=by: (q, *(np.roll(x, by, axis=-3) for x in (k, v))) for by in (-1, 1)),
    ),
    "keys compared with themselves": {"take": lambda query, key, value: (key, key, value)},
    "one head for all": each(
        "merge", _repeated(lambda x: x[..., :1, :, :]), _repeated(lambda x: x[..., -1:, :, :])
    ),
    "heads in another order": {"merge": lambda layout, x: layout.merge(np.flip(x, axis=-3))},
    "key used as value": {"take": lambda query, key, value: (query, key, key)},
    "key and value swapped": {"take": lambda query, key, value: (query, value, key)},
    "value used as key": {"take": lambda query, key, value: (query, value, value)},
    "query used as value": {"take": lambda query, key, value: (query, key, query)},
    "query used as key": {"take": lambda query, key, value: (query, query, value)},
    "query and key swapped": {"take": lambda query, key, value: (key, query, value)},
}


def check_of(layout: Layout) -> Check:
    """Return the computation of the heads in steps, with all the ways to get one wrong."""
    table = {**(_OF_THE_WIDTH if layout.axis is None else {}), **_OF_THE_HEADS}
    return Check(
        name="heads_are_independent",
        parameters=("query", "key", "value"),
        results={"output": "(..., n, h·d)"},
        reference=layout.reference,
        stages=(),
        mistakes=tuple(
            Mistake(name, HEADS[name], ways if isinstance(ways, tuple) else (ways,))
            for name, ways in table.items()
        ),
        compute=lambda steps, *arrays: _attend(steps, layout, *arrays),
        steps=TEXT.steps,
        variants=({"hide": causal},),
    )
