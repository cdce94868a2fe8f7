"""The check that no output depends on a later input, and what a leak looks like."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attnbook.check.engine.calls import Finding, Found
from attnbook.check.engine.report import Report
from attnbook.check.engine.text import Text
from attnbook.check.properties.dependence import Dependence, bare_reshape, changed_case, measure
from attnbook.check.properties.examples import Examples
from attnbook.check.properties.probing import (
    IN_MODE,
    LARGE,
    SAME_ORDER,
    SequenceProbe,
    described,
    directions,
    finite_rows,
)

DRAWS = 24
"""How many futures are compared where a mistake is to be named."""

TEXT = Text(globals())

FUTURE = TEXT.sentences


@described
def no_future_leak(model: Callable, example: Any, *, time_limit: float = 30.0) -> Report:
    """Check that no output of a model depends on a later input.

    The check changes each input separately, and all inputs after a position together, and observes
    which outputs change. It does so with inputs like the example, with smaller and with much larger
    ones, so that it also finds a mask of −1e4, which large scores can exceed. A `torch.nn.Module`
    is checked in train mode and in eval mode (without gradients). If there is a leak, the report
    says what kind of leak it is.
    Cost: in each mode about 15 runs per position, or 6 with tokens, for at most 24 positions.

    PyTorch's random generator gets the same seed before each run, so dropout does not count as a
    leak. Changes of less than 5e-6 of the largest output count as rounding (in half precision, less
    than a few units in the last place); a leak with weight 1e-4 is found. However, the check can
    miss a leak through a single one of many tokens, and a large negative number behind a
    normalisation or an embedding.

    Parameters
    ----------
    model : callable
        Called as ``model(x)``. It returns an array (batch, n, ...) of floats, or a tuple that
        begins with it. The check does not change a module, or the modules that a function uses.
    example : array, shape (batch, n, ...) or (n, d) of floats, or (batch, n) or (n,) of integers
        An input of the model, as an array of the library in which it works; a `torch.nn.Module`
        gets a tensor of its own dtype, on its device. It needs at least two positions; the mistake
        is easiest to name with six to twelve, and with more positions than heads. At most 4
        sequences of a batch are used, and only integer tokens between the smallest and the largest.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import attention, check
    >>> x = np.random.default_rng(0).normal(size=(2, 7, 5))
    >>> report = check.no_future_leak(lambda x: attention(x, x, x), x)
    >>> report.mistake
    'no causal mask'
    >>> mask = np.tri(7, dtype=bool)
    >>> print(check.no_future_leak(lambda x: attention(x, x, x, mask), x))
    ✓ no_future_leak: no output depends on a later input
    """
    probe = SequenceProbe(model, example, time_limit, Examples(example))

    def only(finding: Finding, mode: str) -> Finding:
        if finding.mistake != "no causal mask":
            return finding
        text = FUTURE["causal mask dropped"].format(mode=f"{IN_MODE[mode]} only")
        return replace(finding, mistake=f"causal mask dropped{IN_MODE[mode]}", message=text)

    passes = "no output depends on a later input"
    return probe.report("no_future_leak", passes, lambda mode: _find(probe, mode), only)


def _find(probe: SequenceProbe, mode: str) -> Finding | None:
    if probe.is_random(mode) and mode != "train":
        probe.remark("its random numbers change the output{mode}: is a dropout on?", mode)
    found = measure(probe, mode)
    finding = _diagnose(probe, found)
    if finding is not None:
        _one_row_a_position(probe, mode)
    elif not found.sees.any():
        probe.fail(
            "constant",
            f"No output depends on any input{IN_MODE[mode]}, so there is nothing to check. Are all "
            "weights zero?",
        )
    else:
        _look_at_the_past(probe, found)
    return finding


def _diagnose(probe: SequenceProbe, found: Dependence) -> Finding | None:
    n, mode = len(found.sees), IN_MODE[found.mode]
    if found.others:
        return Finding(
            "another sequence leaks in",
            FUTURE["another sequence leaks in"],
            f"Changing one sequence of {probe.examples.batch} moves an output of another{mode}.",
        )
    leaks = found.sees & found.later & found.known[:, np.newaxis]
    if leaks.any():
        i, c = map(int, np.argwhere(leaks)[0])
        detail = f"Changing input {found.columns[c]} moves output {i}, of 0 to {n - 1}{mode}."
        name, k = _name(probe, found)
        return Finding(name, FUTURE[name or "unknown"].format(k=k), detail, found.shown.get((i, c)))
    if not found.known.all():
        i = int(np.argmin(found.known))
        detail = f"Output {i}, of 0 to {n - 1}, is not finite{mode}."
        return Finding("NaN", FUTURE["NaN"], detail)
    return _changed_together(probe, found)


def _name(probe: SequenceProbe, found: Dependence) -> tuple[str | None, Any]:
    """Return the name of the mistake that the leaks look like, and the number in its sentence."""
    n = len(found.sees)
    if found.matches(np.ones((n, n), dtype=bool)):
        return _name_full(probe, found.mode), None
    # the last query sees nothing through an inverted mask, and then often everything
    rows = (found.known & (np.arange(n) < n - 1))[:, np.newaxis]
    if found.sees[found.later & rows].all() and not found.sees[(found.distance < 0) & rows].any():
        return "causal mask inverted", None
    ahead = int(found.distance[found.sees].max())
    narrow = found.is_a_window and not found.sees[found.distance < 0].all()
    places = np.arange(n)
    for k in range(2, n):
        if found.matches(places // k <= places[:, np.newaxis] // k):
            return "blocks", k
        if found.matches((places < k) | (places <= places[:, np.newaxis])):
            return "prefix", k
    if n > 2 and {*found.distance[found.sees].tolist()} <= {1, 1 - n}:  # with a roll the first
        return "next input alone", None
    heads = bare_reshape(found, causal=True) if ahead > 1 and not narrow else None
    if heads:
        return "bare reshape", heads
    if narrow and 0 < ahead <= -found.distance[found.sees].min():
        return "window ahead", ahead
    if np.array_equal(found.sees & found.later, found.later & (found.distance <= ahead)):
        return "off by one", "token" if ahead == 1 else f"{ahead} tokens"
    return None, None


def _name_full(probe: SequenceProbe, mode: str) -> str:
    """Name what lets every input reach every output, by what later inputs can do to a row."""
    last = (probe.examples.n - 1) // 2  # of the rows looked at
    ranks = []
    for size in (
        (1.0, 0.1) if probe.examples.floats else (1.0,)
    ):  # saturated weights move too little
        x = probe.examples.base(1, size)
        output = probe.outputs(x, mode)[0, [0, last]].reshape(2, -1)
        after = [_with_other_future(probe, x, last + 1, s, mode, size) for s in range(DRAWS)]
        changes = np.array(after)[:, [0, last]].reshape(DRAWS, 2, -1) - output
        largest = np.abs(changes).max(axis=(0, 2))
        changes = changes / largest[:, np.newaxis]
        epsilon = 2.0**-52 if probe.dtype == "float64" else probe.epsilon
        rounding = float(np.max(8 * epsilon * np.abs(output).max(axis=1) / largest))
        tables = (changes[:, 0], changes[:, 1], changes.reshape(DRAWS, -1))
        ranks.append([directions(table, max(1e-3, rounding)) for table in tables])
    first, middle, both = np.max(ranks, axis=0)
    if not 0 < 4 * first <= min(DRAWS, changes.shape[-1]):
        return "no causal mask"
    # a sum over the keys scales what a head gives, in each row by another number; sums over the
    # queries weigh each value anew, in a later row more of them; a norm does the same to all rows
    if first < both and 0 < middle < 2 * first:
        return "mask after the softmax"
    return "softmax over the queries"


def _with_other_future(
    probe: SequenceProbe, x: np.ndarray, j: int, seed: int, mode: str, scale: float = 1.0
) -> np.ndarray:
    """Return the outputs of the first sequence when its inputs from `j` on are others."""
    y = x.copy()
    y[0, j:] = probe.examples.other(x, 100 + seed, scale)[0, j:]
    return probe.outputs(y, mode)[0]


def _changed_together(probe: SequenceProbe, found: Dependence) -> Finding | None:
    """Change everything after a position: like the example, and with much larger inputs."""
    for size in (1.0, *LARGE) if probe.examples.floats else (1.0,):
        for seed in (1, 2, 3):
            x = probe.examples.base(seed, size)
            # larger still, for a large negative number that is added to the scores
            new = probe.examples.other(x, 2 * seed + 1, 10 * size if size > 1 else size)
            output = probe.outputs(x, found.mode)
            for j in found.columns[1:]:
                y = x.copy()
                y[:, j:] = new[:, j:]
                got = probe.outputs(y, found.mode)
                moved = probe.far(got, output, SAME_ORDER) & finite_rows(output)
                leaks = np.argwhere(moved[:, :j])
                if len(leaks):
                    row, i = leaks[0].tolist()
                    case = changed_case(x.copy(), y, got[row, i], output[row, i])
                    name = "large negative number" if size > 1 else None
                    x[0] = x[row]
                    if size > 1 and _is_lost(probe, x, i, int(j), size, found.mode):
                        name = "mask after the exponential"
                    detail = f"Changing all inputs from {j} on moves output {i}"
                    detail += f"{IN_MODE[found.mode]}."
                    message = FUTURE[name or "together"].format(k=size)
                    return Finding(name, message, detail, case)
    return None


def _is_lost(probe: SequenceProbe, x: np.ndarray, i: int, j: int, size: float, mode: str) -> bool:
    """Tell whether output i is NaN, or the same few numbers, in whatever future moves it.

    Hidden values that are mixed in make it another one each time.
    """
    outputs = np.array(
        [probe.outputs(x, mode)[0]]
        + [_with_other_future(probe, x, j, seed, mode, 10 * size) for seed in range(DRAWS)]
    )[:, i].reshape(1 + DRAWS, -1)
    if not np.isfinite(outputs).all():
        return True
    outputs = np.round(outputs / np.abs(outputs).max(), 4)
    moved = outputs[(outputs != outputs[0]).any(axis=-1)]
    return 0 < 2 * len(np.unique(moved, axis=0)) <= len(moved)


def _one_row_a_position(probe: SequenceProbe, mode: str) -> None:
    """Fail if the output has no row for each position, which a width of n by chance can hide."""
    x, n = probe.examples.base(0), probe.examples.n
    may_hide = probe.outputs(x, mode).ndim == 2 or n in x.shape[2:]
    if n == 2 or not may_hide:  # a model may squeeze the axis of a single position
        return
    try:
        probe.outputs(x[:, :-1], mode)
    except Found as found:
        if found.finding.mistake != "wrong shape":  # it takes n positions and no others
            return
        message = f"{found.finding.message} Return one output for each position, in their order."
        probe.fail("wrong shape", message, found.finding.detail)


def _look_at_the_past(probe: SequenceProbe, found: Dependence) -> None:
    if not found.sees[found.distance < 0].any():
        probe.remark(
            "no output depends on an earlier input{mode}: is attention switched off, or a matrix "
            "still zero? Then a mask cannot be seen either.",
            found.mode,
        )
    elif not found.is_a_window and (heads := bare_reshape(found, causal=True)):
        probe.remark(
            f"what sees what is the pattern of a bare reshape into {heads} heads{{mode}}, or of "
            "packed documents: no future, but not all of the past either. "
            "check.heads_are_independent tells.",
            found.mode,
        )
    if not found.sees[found.distance == 0].any():
        probe.remark(
            "no output depends on its own input{mode}, as with a mask without its diagonal.",
            found.mode,
        )
