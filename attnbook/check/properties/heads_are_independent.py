"""The check that heads do not mix, and what they look like if they do."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.arrays.arguments import check_floats, check_int
from attnbook.check.engine.calls import Attempt, Finding
from attnbook.check.engine.diagnosis import explain
from attnbook.check.engine.report import FailingCase, Report
from attnbook.check.engine.steps import Case
from attnbook.check.properties.head_mistakes import NAMES, TEXT, Layout, causal, check_of
from attnbook.check.properties.probing import IN_MODE, OTHER_ORDER, SAME_ORDER, Probe, described

SEEDS = (0, 1, 2)


@described
def heads_are_independent(
    f: Callable,
    n_heads: int,
    example: Any,
    *,
    head_axis: int | None = None,
    time_limit: float = 30.0,
) -> Report:
    """Check that each head attends over its own block of features and over nothing else.

    The check changes one block of query, key and value at a time, and compares each block of the
    output with attention over only that block. Differences of less than 2e-4 of the largest output
    count as rounding.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value)`` on projected inputs; it splits them, attends and merges,
        without W_O. It returns the output, or a tuple that begins with it. It may use a causal
        mask.
    n_heads : int
        Number of heads h, at least 2; `f` must use the same number.
    example : array, shape (..., n, h·d), or a tuple of three, for query, key and value
        It determines shapes, dtype and library. The check draws new numbers.
    head_axis : int, optional
        The axis of the heads if they have one in inputs and output: -3 for (..., h, n, d), -2 for
        (..., n, h, d).

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
        if self.agrees(outputs, causal):
            self.probe.remark("each head is causal attention of its block.")
            return self.mixed(outputs[0])
        return self.diagnose(outputs)

    def agrees(self, outputs: list[np.ndarray], hide: Callable) -> bool:
        expected = (self.layout.reference(*arrays, hide=hide) for arrays in self.inputs)
        return all(self.close(o, e) for o, e in zip(outputs, expected, strict=True))

    def diagnose(self, outputs: list[np.ndarray]) -> Finding:
        shape, h = self.layout.shapes[0], self.layout.h
        where = f"With query {shape} and {h} heads{IN_MODE[self.mode]}."
        check, dtype = check_of(self.layout), np.dtype(self.probe.dtype.replace("b", ""))
        attempts = []
        for arrays, output in zip(self.inputs, outputs, strict=True):
            case = Case(dict(zip(NAMES, arrays, strict=True)))
            attempts.append(Attempt(case, (output.astype(dtype),), check.expected(case), None))
        shown = attempts[0].failing
        mistakes = explain(check, attempts)
        if mistakes:
            names = tuple(mistake.name for mistake in mistakes)
            message = " ".join(mistake.message for mistake in mistakes)
            return Finding("; ".join(names), message, where, shown)
        (expected,) = attempts[0].expected
        if outputs[0].shape != expected.shape:
            message = f"Your output must have shape {expected.shape}, got {outputs[0].shape}."
            return Finding("wrong shape", message, where, shown)
        if not all(np.isfinite(output).all() for output in outputs):
            return Finding("NaN", "Your output holds NaN or infinity.", where, shown)
        name = self.projection(outputs)
        if name:
            return Finding(name, TEXT.sentences[name], where, shown)
        return self.mixed(outputs[0]) or Finding(None, TEXT.sentences["unknown"], where, shown)

    def projection(self, outputs: list[np.ndarray]) -> str | None:
        """Tell what one matrix does to the right heads, if it gives the output everywhere."""
        if self.layout.axis is not None:
            return None
        width = outputs[0].shape[-1]
        n = outputs[0].size // width
        inputs = [self.layout.draw(seed) for seed in range(100, 101 + 3 * width // n)]
        heads = np.concatenate([self.layout.reference(*x).reshape(-1, width) for x in inputs])
        output = np.concatenate([self.run(x).reshape(-1, width) for x in inputs])
        if not np.isfinite(output).all():
            return None
        heads = np.column_stack([heads, np.ones(len(heads))])
        matrix = np.linalg.lstsq(heads, output, rcond=None)[0]
        if not self.close(output, heads @ matrix, 1e-3):
            return None
        matrix, bias = matrix[:-1], matrix[-1]
        sources = np.argmax(matrix, axis=0)
        order = np.eye(width)[:, sources]
        permutes = len(set(sources.tolist())) == width and np.allclose(matrix, order, atol=5e-3)
        if permutes and np.abs(bias).max() < 1e-2:
            whole = (np.diff(sources.reshape(self.layout.h, -1), axis=1) == 1).all()
            return f"{'heads' if whole else 'features'} in another order"
        return "output projection"

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
                    return Finding(None, TEXT.sentences["mixed"], detail, case)
        return None
