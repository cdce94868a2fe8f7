"""The check that heads do not mix, and what they look like if they do."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from attnbook._arrays import check_floats, check_int
from attnbook.check.calls import Attempt, Finding
from attnbook.check.diagnosis import explain
from attnbook.check.probing import IN_MODE, OTHER_ORDER, SAME_ORDER, Probe
from attnbook.check.report import FailingCase, Report
from attnbook.check.sentences import sentences
from attnbook.check.steps import Case, Check, Mistake

NAMES = ("query", "key", "value")
SEEDS = (0, 1, 2)

HEADS = sentences(
    """
    bare reshape: Heads are split and merged by a bare reshape to (h, n, d): each head gets a few
        tokens whole instead of a part of every token. Reshape (n, h·d) to (n, h, d), then swap the
        axes of n and h, and swap them back before you merge.
    bare reshape in the split: Heads are split by a bare reshape to (h, n, d): each head gets a few
        tokens whole instead of a part of every token. Reshape (n, h·d) to (n, h, d), then swap the
        axes of n and h.
    missing transpose in the merge: Heads are merged by a bare reshape from (h, n, d), which puts
        rows of one head side by side. Swap the axes of h and n first, then reshape (n, h, d) to (n,
        h·d).
    attention over the heads: Each token attends over its own heads, and tokens never meet: the axes
        of n and h were not swapped, so the last two axes are (h, d) where they should be (n, d).
    interleaved features: Head i gets every h-th feature: the width is reshaped to (d, h). Here a
        head is a block of neighbouring features: reshape it to (h, d).
    scale by d_model: The scores are divided by √d_model, the width of all heads together. A dot
        product in one head has d_head terms: divide by √d_head.
    no scale: The scores are not scaled. Divide them by √d_head before the softmax.
    scale without the root: The scores are divided by d_head. Divide them by its square root,
        √d_head.
    scale multiplied: The scores are multiplied by √d_head. Divide them by it.
    no softmax: The values are weighed by the scores, or by their exponentials: the weights of a
        query do not sum to one. Take a softmax over the keys.
    softmax over the heads: The softmax runs over the heads, so they share out each key between
        them. It runs over the keys, the last axis of the scores.
    softmax over the queries: The softmax runs over the queries. It runs over the keys, the last
        axis of the scores.
    one head: There is one head over the whole width: the heads are never split, so all features
        share one set of weights.
    heads averaged: The heads are averaged or added up. They are put side by side, (n, h·d): each
        keeps its own features.
    one head for all: The same head, the first or the last, stands in every block of the output.
        Block i is head i.
    key used as value: The output is made of the keys. The keys are for the scores; the values are
        what is added up.
    query used as key: The scores are those of the queries with each other: the key is not used.
    query and key swapped: Query and key have changed places, which shows in their masks and their
        lengths: the rows of the scores belong to the queries, the columns to the keys.
    heads in another order: The right heads are there, but not side by side in their order: block i
        of the output must be head i. Look at how heads are collected and joined.
    features in another order: The right heads are there, but their features are mixed up: block i
        of the output must be head i, with its features in order. Look at the reshape of the merge.
    output scaled: The right heads are there, each number {k:.4g} times as large as it should be.
        The output of a head is softmax(q · k/√d_head) times the values, and nothing else.
    output projection: The right heads are there, but mixed by a matrix: an output projection W_O
        stands behind them. Check the part before it, or with the identity as W_O.
    mixed: The heads mix: one block of the output depends on another block of the inputs. Look at
        how heads are split and merged, and for a projection or a normalisation over the whole
        width.
    unknown: The heads do not mix, but a head is not attention of its block: look at the scale, the
        softmax, and at what else is done to query, key and value.
    """
)


def heads_are_independent(
    f: Callable,
    n_heads: int,
    example: Any,
    *,
    head_axis: int | None = None,
    time_limit: float = 30.0,
) -> Report:
    """Check that each head is attention of its own block of features, and of nothing else.

    Changes one block of query, key and value at a time, and compares each block of the output with
    attention of that block alone.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value)`` on projected inputs; it splits them, attends and merges,
        without W_O. It returns the output, or a tuple that begins with it. A causal mask inside is
        fine.
    n_heads : int
        Number of heads h, at least 2; `f` knows it too.
    example : array, shape (..., n, h·d), or a tuple of three, for query, key and value
        Gives shapes, dtype and library. The numbers are drawn anew.
    head_axis : int, optional
        Where the heads have an axis of their own, in inputs and output: -3 for (..., h, n, d), -2
        for (..., n, h, d).
    time_limit : float
        Seconds of computing for all runs together.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `f` is not callable, `n_heads` or `head_axis` is not such a number, `example` does not
        have that shape, or `time_limit` is not a finite number of at least 0.

    Notes
    -----
    Differences of less than 2e-4 of the largest output count as rounding.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import attention, check, merge_heads, split_heads
    >>> def heads(query, key, value):
    ...     return merge_heads(attention(*(split_heads(x, 3) for x in (query, key, value))))
    >>> print(check.heads_are_independent(heads, 3, np.ones((5, 6))))
    ✓ heads_are_independent: each head is attention of its own block
    >>> def bare(query, key, value):
    ...     query, key, value = (x.reshape(3, 5, 2) for x in (query, key, value))
    ...     return attention(query, key, value).reshape(5, 6)
    >>> check.heads_are_independent(bare, 3, np.ones((5, 6))).mistake
    'bare reshape'
    """
    arrays = tuple(example) if isinstance(example, (tuple, list)) else (example,) * 3
    if len(arrays) != 3:
        raise ValueError(f"example must be one array or three, got {len(arrays)}")
    n_heads = check_int("n_heads", n_heads, at_least=2)
    check_floats(**dict(zip(NAMES, arrays, strict=True)))
    layout = Layout(n_heads, head_axis, [tuple(x.shape) for x in arrays])
    probe = Probe("function", f, arrays[0], time_limit)
    passes = "each head is attention of its own block"
    return probe.report("heads_are_independent", passes, lambda m: _Mode(probe, layout, m).find())


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
            x = x.reshape(*x.shape[:-1], self.h, -1)
        return x if self.axis == -3 else x.swapaxes(-2, -3)

    def merge(self, x: np.ndarray) -> np.ndarray:
        """Take (..., h, n, d) back to where it came from."""
        x = x if self.axis == -3 else x.swapaxes(-2, -3)
        return x.reshape(*x.shape[:-2], -1) if self.axis is None else x

    def reference(self, *arrays: np.ndarray, hide: Callable = lambda scores: scores) -> np.ndarray:
        """Return attention of each block alone."""
        return _attend(SimpleNamespace(**{**STEPS, "hide": hide}), self, *arrays)


def _softmax(scores, axis):
    exponentials = np.exp(scores - np.max(scores, axis=axis, keepdims=True))
    return exponentials / np.sum(exponentials, axis=axis, keepdims=True)


STEPS: dict[str, Any] = {
    "take": lambda query, key, value: (query, key, value),
    "split": lambda layout, x: layout.split(x),
    "factor": lambda layout, d: 1 / math.sqrt(d),
    "hide": lambda scores: scores,
    "normalise": _softmax,
    "axis": -1,
    "merge": lambda layout, heads: layout.merge(heads),
}


def _attend(steps: Any, layout: Layout, *arrays: np.ndarray) -> np.ndarray:
    q, k, v = (steps.split(layout, x) for x in steps.take(*arrays))
    scores = q @ k.swapaxes(-1, -2) * steps.factor(layout, q.shape[-1])
    return steps.merge(layout, steps.normalise(steps.hide(scores), steps.axis) @ v)


def _causal(scores):
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


def _joined(how: Callable) -> Callable:
    """Return the merge that makes one head of all, and repeats it in the place of each."""
    return lambda layout, heads: layout.merge(
        np.repeat(how(heads, axis=-3, keepdims=True), layout.h, axis=-3)
    )


_OVER_HEADS = {
    "split": lambda layout, x: layout.split(x).swapaxes(-2, -3),
    "merge": lambda layout, heads: layout.merge(heads.swapaxes(-2, -3)),
}
_ONE_HEAD = {"split": lambda layout, x: x, "merge": lambda layout, heads: heads}
_OF_THE_WIDTH: dict[str, tuple[dict[str, Any], ...]] = {
    "bare reshape": ({"split": _bare_split, "merge": _bare_merge},),
    "bare reshape in the split": ({"split": _bare_split},),
    "missing transpose in the merge": ({"merge": _bare_merge},),
    "interleaved features": (
        {"split": _interleaved_split},
        {"split": _interleaved_split, "merge": _interleaved_merge},
    ),
    "features in another order": ({"merge": _interleaved_merge},),
    "one head": (_ONE_HEAD,),
}
"""What can go wrong where the heads share the last axis."""
_OF_THE_HEADS: dict[str, tuple[dict[str, Any], ...]] = {
    "attention over the heads": (_OVER_HEADS,),
    "scale by d_model": ({"factor": lambda layout, d: 1 / math.sqrt(layout.h * d)},),
    "no scale": ({"factor": lambda layout, d: 1.0},),
    "scale without the root": ({"factor": lambda layout, d: 1 / d},),
    "scale multiplied": ({"factor": lambda layout, d: math.sqrt(d)},),
    "softmax over the heads": ({"axis": -3},),
    "softmax over the queries": ({"axis": -2},),
    "no softmax": (
        {"normalise": lambda scores, axis: scores},
        {"normalise": lambda scores, axis: np.exp(scores)},
    ),
    "heads averaged": (
        {"merge": _joined(np.mean)},
        {"merge": _joined(np.sum)},
        {"merge": lambda layout, heads: heads.mean(axis=-3)},
        {"merge": lambda layout, heads: heads.sum(axis=-3)},
    ),
    "one head for all": (
        {"merge": lambda layout, heads: layout.merge(0 * heads + heads[..., :1, :, :])},
        {"merge": lambda layout, heads: layout.merge(0 * heads + heads[..., -1:, :, :])},
    ),
    "heads in another order": ({"merge": lambda layout, x: layout.merge(np.flip(x, axis=-3))},),
    "key used as value": ({"take": lambda query, key, value: (query, key, key)},),
    "query used as key": ({"take": lambda query, key, value: (query, query, value)},),
    "query and key swapped": ({"take": lambda query, key, value: (key, query, value)},),
}


def _check_of(layout: Layout) -> Check:
    """Return the computation of the heads in steps, with all the ways to get one wrong."""
    table = {**(_OF_THE_WIDTH if layout.axis is None else {}), **_OF_THE_HEADS}
    return Check(
        name="heads_are_independent",
        parameters=("query", "key", "value"),
        results={"output": "(..., n, h·d)"},
        reference=layout.reference,
        stages=(),
        mistakes=tuple(Mistake(name, HEADS[name], ways) for name, ways in table.items()),
        compute=lambda steps, *arrays: _attend(steps, layout, *arrays),
        steps=STEPS,
        variants=({"hide": _causal},),
    )


class _Mode:
    """The examination of a function in one mode."""

    def __init__(self, probe: Probe, layout: Layout, mode: str):
        self.probe, self.layout, self.mode = probe, layout, mode
        self.inputs = [layout.draw(seed) for seed in SEEDS]

    def run(self, arrays: list[np.ndarray], seed: int = 0) -> np.ndarray:
        named = dict(zip(NAMES, arrays, strict=True))
        return self.probe.run(named, self.mode, (), seed)

    def close(self, got: np.ndarray, expected: np.ndarray, tolerance: float = OTHER_ORDER) -> bool:
        if got.shape != expected.shape:
            return False
        got, expected = got.reshape(1, 1, -1), expected.reshape(1, 1, -1)
        return not self.probe.far(got, expected, tolerance).any()

    def find(self) -> Finding | None:
        first = self.inputs[0]
        again, other = self.run(first), self.run(first, seed=1)
        outputs = [self.run(arrays) for arrays in self.inputs]
        same = self.close(again, outputs[0], SAME_ORDER)
        if not same or not self.close(other, outputs[0], SAME_ORDER):
            if same and self.mode == "train":
                self.probe.leave_out(self.mode)
                return None
            self.probe.fail(
                "not deterministic",
                f"Your function gives two results for one input{IN_MODE[self.mode]}. Look for "
                "random numbers, a dropout that is still on, or a variable outside the function "
                "that it changes.",
            )
        if self.agrees(outputs, lambda scores: scores):
            return self.mixed(outputs[0])
        if self.agrees(outputs, _causal):
            self.probe.remark("each head is causal attention of its block.")
            return self.mixed(outputs[0])
        return self.diagnose(outputs)

    def agrees(self, outputs: list[np.ndarray], hide: Callable) -> bool:
        expected = (self.layout.reference(*arrays, hide=hide) for arrays in self.inputs)
        return all(self.close(o, e) for o, e in zip(outputs, expected, strict=True))

    def diagnose(self, outputs: list[np.ndarray]) -> Finding:
        where = f"With query {self.layout.shapes[0]}"
        where = f"{where} and {self.layout.h} heads{IN_MODE[self.mode]}."
        check, dtype = _check_of(self.layout), np.dtype(self.probe.dtype.replace("b", ""))
        attempts = []
        for arrays, output in zip(self.inputs, outputs, strict=True):
            case = Case(dict(zip(NAMES, arrays, strict=True)))
            attempts.append(Attempt(case, (output.astype(dtype),), check.expected(case), None))
        shown = attempts[0].failing
        mistakes = explain(check, attempts)
        if mistakes:
            names = tuple(mistake.name for mistake in mistakes)
            message = " ".join(mistake.message for mistake in mistakes)
            return Finding("; ".join(names), message, where, shown, names)
        (expected,) = attempts[0].expected
        if outputs[0].shape != expected.shape:
            message = f"Your output must have shape {expected.shape}, got {outputs[0].shape}."
            return Finding("wrong shape", message, where, shown)
        if not all(np.isfinite(output).all() for output in outputs):
            return Finding("NaN", "Your output holds NaN or infinity.", where, shown)
        name, k = self.projection(outputs)
        if name:
            return Finding(name, HEADS[name].format(k=k), where, shown)
        return self.mixed(outputs[0]) or Finding(None, HEADS["unknown"], where, shown)

    def projection(self, outputs: list[np.ndarray]) -> tuple[str | None, float]:
        """Tell what one matrix does to the right heads, if it gives the output everywhere."""
        if self.layout.axis is not None:
            return None, 0.0
        width = outputs[0].shape[-1]
        right, got = [], []
        for seed in range(2 + 4 * width):
            arrays = self.layout.draw(100 + seed)
            right.append(self.layout.reference(*arrays).reshape(-1, width))
            got.append(self.run(arrays).reshape(-1, width))
            if len(right) * len(right[0]) >= 3 * width:
                break
        heads, output = np.concatenate(right), np.concatenate(got)
        if not np.isfinite(output).all():
            return None, 0.0
        heads = np.column_stack([heads, np.ones(len(heads))])  # a bias
        matrix = np.linalg.lstsq(heads, output, rcond=None)[0]
        if not self.close(output, heads @ matrix, 1e-3):
            return None, 0.0
        k = float(matrix[0, 0])
        if np.allclose(matrix[:-1], k * np.eye(width), atol=1e-3) and self.is_small(matrix[-1]):
            return "output scaled", k
        entries = np.round(matrix[:-1], 2)
        permutes = np.isin(entries, (0, 1)).all() and (entries.sum(0) == 1).all()
        if permutes and (entries.sum(1) == 1).all() and self.is_small(matrix[-1]):
            sources = np.argmax(entries, axis=0).reshape(self.layout.h, -1)
            whole = (np.diff(sources, axis=1) == 1).all()
            return f"{'heads' if whole else 'features'} in another order", 0.0
        return "output projection", 0.0

    @staticmethod
    def is_small(bias: np.ndarray) -> bool:
        return bool(np.abs(bias).max() < 1e-2)

    def mixed(self, output: np.ndarray) -> Finding | None:
        """Change one block at a time, and see whether another moves."""
        h, split, merge = self.layout.h, self.layout.split, self.layout.merge
        other = self.layout.draw(50)
        blocks = np.arange(h)[:, np.newaxis, np.newaxis]
        for j in range(h):
            changed = [
                merge(np.where(blocks == j, split(new), split(x)))
                for x, new in zip(self.inputs[0], other, strict=True)
            ]
            result = self.run(changed)
            got, before = (split(x) for x in (result, output))
            for i in range(h):
                if i != j and not self.close(got[..., i, :, :], before[..., i, :, :], SAME_ORDER):
                    detail = (
                        f"Changing block {j} of query, key and value moves block {i} of the "
                        f"output{IN_MODE[self.mode]}."
                    )
                    case = FailingCase(dict(zip(NAMES, changed, strict=True)), {}, result, output)
                    return Finding(None, HEADS["mixed"], detail, case)
        return None
