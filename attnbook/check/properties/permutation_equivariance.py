"""The check that a model does not know the order of its inputs."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.calls import Finding
from attnbook.check.engine.report import FailingCase, Report
from attnbook.check.engine.text import Text
from attnbook.check.properties.dependence import (
    HEADS,
    ORDINARY,
    Dependence,
    bare_reshape,
    changed_case,
    measure,
)
from attnbook.check.properties.examples import Examples
from attnbook.check.properties.probing import IN_MODE, OTHER_ORDER, SequenceProbe, described

TEXT = Text(globals())

ORDER = TEXT.sentences


@described
def permutation_equivariance(model: Callable, example: Any, *, time_limit: float = 30.0) -> Report:
    """Check that permuting the inputs of a model permutes its outputs, and no more: f(Px) = P f(x).

    Attention without positions and without a mask has this property. Each sequence of the batch is
    permuted in its own way, so the check also finds sequences that mix position by position.
    However, it does not find sequences that attend to each other whatever their order. A
    `torch.nn.Module` is checked in train mode and in eval mode (without gradients).

    Differences of less than 2e-4 of the largest output count as rounding, because sums run in
    another order. A mode with dropout is left out, because the entries that it drops depend on the
    position. A softmax over the queries is permutation-equivariant, too, so this check does not
    find it, but `check.attention` does.

    Parameters
    ----------
    model, example
        As in `no_future_leak`.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import attention, check
    >>> x = np.random.default_rng(0).normal(size=(2, 7, 5))
    >>> print(check.permutation_equivariance(lambda x: attention(x, x, x), x))
    ✓ permutation_equivariance: permuting the inputs permutes the outputs
    >>> mask = np.tri(7, dtype=bool)
    >>> check.permutation_equivariance(lambda x: attention(x, x, x, mask), x).mistake
    'causal mask'
    """
    probe = SequenceProbe(model, example, time_limit, Examples(example))
    passes = "permuting the inputs permutes the outputs"
    return probe.report("permutation_equivariance", passes, lambda mode: _find(probe, mode))


def _find(probe: SequenceProbe, mode: str) -> Finding | None:
    if probe.is_random(mode):
        if mode == "train":
            probe.leave_out(mode)
            return None
        probe.fail(
            "not deterministic",
            f"Your model gives two results for one input{IN_MODE[mode]}. Look for a dropout "
            "that is still on: F.dropout wants training=self.training.",
        )
    wrong = _first_difference(probe, mode)
    if wrong is None:
        probe.remark_if_idle(probe.outputs(probe.examples.base(0), mode), mode)
    return None if wrong is None else Finding(*_name(probe, mode), *wrong)


def _orders(batch: int, n: int) -> list[np.ndarray]:
    """Return permutations, one for each sequence of the batch: reversed, shifted and random."""
    rng = np.random.default_rng(n)
    shift = np.roll(np.arange(n), 1)
    return [
        np.array([np.arange(n)[::-1], *(shift for _ in range(batch - 1))]),
        np.array([shift, *(np.arange(n) for _ in range(batch - 1))]),
        *(np.array([rng.permutation(n) for _ in range(batch)]) for _ in range(3)),
    ]


def _permuted(x: np.ndarray, order: np.ndarray) -> np.ndarray:
    return np.stack([sequence[p] for sequence, p in zip(x, order, strict=True)])


def _first_difference(
    probe: SequenceProbe,
    mode: str,
    before: Callable = np.asarray,
    after: Callable = np.asarray,
    moves: Callable = _permuted,
) -> tuple[str, FailingCase] | None:
    """Compare ``after(model(before(x)))`` for an x and for permutations of it."""
    for seed, scale in ORDINARY:
        x = probe.examples.base(seed, scale)
        output = after(probe.outputs(before(x), mode))
        for order in _orders(*x.shape[:2]):
            y = _permuted(x, order)
            got, expected = after(probe.outputs(before(y), mode)), moves(output, order)
            off = probe.far(got, expected, OTHER_ORDER)
            if off.any():
                row, i = np.argwhere(off)[0]
                shown = ", ".join(map(str, order[row][:12])) + (", …" if x.shape[1] > 12 else "")
                return (
                    f"With the inputs of sequence {row} in the order {shown}, its output {i} is "
                    f"not that of input {order[row][i]}{IN_MODE[mode]}.",
                    changed_case(x, y, got[row, i], expected[row, i]),
                )
    return None


def _name(probe: SequenceProbe, mode: str) -> tuple[str, str]:
    found = measure(probe, mode)
    values: dict[str, Any] = {}
    if found.others:
        name = "another sequence leaks in"
    elif not _first_difference(probe, mode, moves=lambda y, order: y):
        name = "order lost"
    elif any(not _first_difference(probe, mode, after=back) for back in _BACK):
        name = "outputs moved"
    elif not found.sees[found.distance != 0].any():
        name = "place"
    elif found.sees[found.distance < 0].any() and not found.sees[found.later].any():
        name = "one input for all" if _reads_one_column(found) else "causal mask"
    elif found.sees[found.later].any() and not found.sees[found.distance < 0].any():
        name = "one input for all" if _reads_one_column(found) else "mask of the past"
    elif found.is_a_window and not found.sees.all():
        name = "window"
    else:
        heads, where = _missing_transpose(probe, mode)
        if not heads:
            heads, where = bare_reshape(found, causal=False), ", or where tokens attend in blocks"
        if heads:
            name, values = "bare reshape", {"k": heads, "where": where}
        elif _equal_inputs_differ(probe, mode):
            name = "equal inputs differ"
        else:
            name = "weights by place"
    return name, ORDER[name].format(**values)


def _reads_one_column(found: Dependence) -> bool:
    """Tell whether, besides its own, each of three or more outputs reads the same input."""
    reads = (found.sees & (found.distance != 0)).sum(axis=0)
    return len(found.sees) > 2 and sorted(reads.tolist())[-2:] == [0, len(found.sees) - 1]


_BACK = (
    lambda y: y[:, ::-1],
    *(lambda y, by=by: np.roll(y, by, axis=1) for by in (-1, 1)),
)
"""What puts outputs back that were moved."""


def _equal_inputs_differ(probe: SequenceProbe, mode: str) -> bool:
    x = probe.examples.base(0)
    output = probe.outputs(np.repeat(x[:, :1], x.shape[1], axis=1), mode)
    first = np.repeat(output[:, :1], output.shape[1], axis=1)
    return bool(probe.far(output, first, OTHER_ORDER).any())


def _missing_transpose(probe: SequenceProbe, mode: str) -> tuple[int | None, str]:
    """Undo a bare reshape at the inputs or at the outputs, and see whether the order still matters.

    That shows one only where no projection stands between the reshape and the outside.
    """
    x = probe.examples.base(0)
    output = probe.outputs(x, mode)
    n, split, merge = x.shape[1], x.ndim == 3 and probe.examples.floats, output.ndim == 3
    for h in HEADS:
        ways = (
            ("merged", merge, output, {"after": lambda y, h=h: _swapped(y, h, n)}),
            ("split", split, x, {"before": lambda x, h=h: _swapped(x, n, h)}),
        )
        for done, there, array, undone in ways:
            fits = there and array.shape[2] % h == 0
            if fits and not _first_difference(probe, mode, **undone):
                return h, f", where heads are {done}"
    return None, ""


def _swapped(x: np.ndarray, first: int, second: int) -> np.ndarray:
    """Cut the rows into (first, second, ...) and swap these axes, which undoes a bare reshape."""
    return x.reshape(len(x), first, second, -1).swapaxes(1, 2).reshape(x.shape)
