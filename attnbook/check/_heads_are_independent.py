"""The check that heads do not mix, and what they look like if they do."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.arrays.arguments import check_floats, check_int
from attnbook.check._calls import Finding
from attnbook.check._head_mistakes import MESSAGES, Layout, head_mistakes
from attnbook.check._lend import lent
from attnbook.check._probe import (
    IN_MODE,
    OTHER_ORDER,
    SAME_ORDER,
    Probe,
    check_seconds,
    report,
)
from attnbook.check._report import Report

SEEDS = (0, 1, 2)


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
        Seconds for all runs together.

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
    >>> check.heads_are_independent(heads, 3, np.ones((5, 6)))
    ✓ heads_are_independent: each head is attention of its own block
    >>> def bare(query, key, value):
    ...     query, key, value = (x.reshape(3, 5, 2) for x in (query, key, value))
    ...     return attention(query, key, value).reshape(5, 6)
    >>> check.heads_are_independent(bare, 3, np.ones((5, 6))).mistake
    'bare reshape'
    """
    seconds = check_seconds(f, "f", time_limit)
    n_heads = check_int("n_heads", n_heads, at_least=2)
    arrays = tuple(example) if isinstance(example, (tuple, list)) else (example,) * 3
    if len(arrays) != 3:
        raise ValueError(f"example must be one array or three, got {len(arrays)}")
    check_floats(**dict(zip(("query", "key", "value"), arrays, strict=True)))
    shapes = [tuple(x.shape) for x in arrays]
    layout = Layout(n_heads, head_axis, shapes)
    with lent(f, time.monotonic() + seconds) as borrowed:
        probe = Probe("function", borrowed, arrays[0], seconds)
        return report("heads_are_independent", probe, lambda: _judge(probe, layout))


def _judge(probe: Probe, layout: Layout) -> Finding | str:
    findings: dict[str, Finding] = {}
    for mode in probe.modes:
        finding = _Mode(probe, layout, mode).finding()
        if finding is not None:
            findings[mode] = finding
    if not findings:
        return "each head is attention of its own block"
    wrong = list(findings)
    finding = findings[wrong[0]]
    return Finding(finding.mistake, finding.message + probe.only_in(wrong), finding.detail)


class _Mode:
    """The examination of a function in one mode."""

    def __init__(self, probe: Probe, layout: Layout, mode: str):
        self.probe, self.layout, self.mode = probe, layout, mode
        self.inputs = [layout.draw(seed) for seed in SEEDS]

    def run(self, arrays: list[np.ndarray], seed: int = 0) -> np.ndarray:
        named = dict(zip(("query", "key", "value"), arrays, strict=True))
        return self.probe.run(named, self.mode, (), seed)

    def close(self, got: np.ndarray, expected: np.ndarray, tolerance: float = OTHER_ORDER) -> bool:
        if got.shape != expected.shape:
            return False
        got, expected = got.reshape(1, 1, -1), expected.reshape(1, 1, -1)
        return not self.probe.far(got, expected, tolerance).any()

    def finding(self) -> Finding | None:
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
        if self.agrees(outputs, None):
            return self.mixed(outputs[0])
        n_q, n_k = (self.layout.split(x).shape[-2] for x in first[:2])
        if self.agrees(outputs, np.tri(n_q, n_k, n_k - n_q, dtype=bool)):
            self.probe.remark("each head is causal attention of its block.")
            return self.mixed(outputs[0])
        return self.diagnose(outputs)

    def agrees(self, outputs: list[np.ndarray], mask: np.ndarray | None) -> bool:
        expected = (self.layout.reference(arrays, mask) for arrays in self.inputs)
        return all(self.close(o, e) for o, e in zip(outputs, expected, strict=True))

    def diagnose(self, outputs: list[np.ndarray]) -> Finding:
        where = f"With query {self.layout.shapes[0]}"
        where = f"{where} and {self.layout.h} heads{IN_MODE[self.mode]}"
        models = [list(head_mistakes(self.layout, arrays)) for arrays in self.inputs]
        for mistakes in zip(*models, strict=True):
            name = mistakes[0][0]
            if all(
                self.close(output, _try(model), OTHER_ORDER)
                for output, (_, model) in zip(outputs, mistakes, strict=True)
            ):
                return Finding(name, MESSAGES[name], f"{where}.")
        expected = self.layout.reference(self.inputs[0])
        if outputs[0].shape != expected.shape:
            message = f"Your output must have shape {expected.shape}, got {outputs[0].shape}."
            return Finding("wrong shape", message, f"{where}.")
        if not all(np.isfinite(output).all() for output in outputs):
            return Finding("NaN", "Your output holds NaN or infinity.", f"{where}.")
        if self.is_projected(outputs):
            return Finding("output projection", MESSAGES["output projection"], f"{where}.")
        mixed = self.mixed(outputs[0])
        if mixed is not None:
            return mixed
        return Finding(
            None,
            "The heads do not mix, but a head is not attention of its block: look at the scale, "
            "the softmax, and at what else is done to query, key and value.",
            f"{where}.",
        )

    def is_projected(self, outputs: list[np.ndarray]) -> bool:
        """Tell whether one matrix takes the right heads to the output, at every position."""
        if self.layout.axis is not None:
            return False
        width = outputs[0].shape[-1]
        right, got = [], []
        for seed in range(2 + 4 * width):
            arrays = self.layout.draw(100 + seed)
            heads = self.layout.reference(arrays)
            right.append(heads.reshape(-1, width))
            got.append(self.run(arrays).reshape(-1, width))
            if len(right) * len(right[0]) >= 3 * width:
                break
        heads, output = np.concatenate(right), np.concatenate(got)
        if not np.isfinite(output).all():
            return False
        heads = np.column_stack([heads, np.ones(len(heads))])  # a bias
        matrix = np.linalg.lstsq(heads, output, rcond=None)[0]
        return self.close(output, heads @ matrix, 1e-3)

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
            got, before = (split(x) for x in (self.run(changed), output))
            for i in range(h):
                if i != j and not self.close(got[..., i, :, :], before[..., i, :, :], SAME_ORDER):
                    return Finding(
                        None,
                        "The heads mix: one block of the output depends on another block of the "
                        "inputs. Look at how heads are split and merged, and for a projection or a "
                        "normalisation over the whole width.",
                        f"Changing block {j} of query, key and value moves block {i} of the "
                        f"output{IN_MODE[self.mode]}.",
                    )
        return None


def _try(model: Callable) -> np.ndarray:
    try:
        return model()
    except ValueError:  # the mistake does not fit these shapes
        return np.empty(0)
