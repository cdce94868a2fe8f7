"""The check that no output depends on a later input, and what a leak looks like."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check._calls import Finding
from attnbook.check._dependence import Dependence, bare_reshape, measure
from attnbook.check._draws import Draws
from attnbook.check._probe import (
    IN_MODE,
    SAME_ORDER,
    SequenceProbe,
    moves_few_numbers,
    probing,
    report,
)
from attnbook.check._property_messages import FUTURE as MESSAGES
from attnbook.check._report import Report

LARGE = (1e2, 1e5, 1e8)
LARGE_SEEDS = (1, 2, 3)


def no_future_leak(model: Callable, example: Any, *, time_limit: float = 30.0) -> Report:
    """Check that no output of a model depends on a later input.

    Changes each input alone, and all inputs after a position together, and sees which outputs
    move; with inputs like the example, and with smaller and much larger ones, so that a mask of
    −1e4 that large scores outbid is found too. A `torch.nn.Module` is checked in train mode and in
    eval mode (without gradients). If there is a leak, the report says what it looks like.

    Parameters
    ----------
    model : callable
        Called as ``model(x)``. It returns an array (batch, n, ...) of floats, or a tuple that
        begins with it. A module, or a function that uses modules, is given back as it was.
    example : array, shape (batch, n, ...) or (n, d) of floats, or (batch, n) or (n,) of integers
        What the model takes, as an array of the library that it works in; a `torch.nn.Module` gets
        it as a tensor of its own dtype, on its device. At least two positions; the mistake is
        easiest to name with six to twelve, and with more positions than heads. Of a batch at most 4
        sequences are used, and of integer tokens those between the smallest and the largest.
    time_limit : float
        Seconds for all runs together.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `model` is not callable, `example` is not such an array, or `time_limit` is not a finite
        number of at least 0.

    Notes
    -----
    PyTorch's random numbers are set to one seed before each run, so a dropout is no leak.
    Changes of less than 5e-6 of the largest output count as rounding; a leak of weight 1e-4 is
    found. A large negative number behind a normalisation or an embedding stays hidden, since no
    input makes the scores large there.
    Cost: in each mode about 15 runs a position, 6 with tokens, of at most 24 positions.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import attention, check
    >>> x = np.random.default_rng(0).normal(size=(2, 7, 5))
    >>> report = check.no_future_leak(lambda x: attention(x, x, x), x)
    >>> report.mistake
    'no causal mask'
    >>> mask = np.tri(7, dtype=bool)
    >>> check.no_future_leak(lambda x: attention(x, x, x, mask), x)
    ✓ no_future_leak: no output depends on a later input
    """
    draws = Draws(example)
    with probing(model, example, time_limit, draws) as probe:
        return report("no_future_leak", probe, lambda: _judge(probe))


def _judge(probe: SequenceProbe) -> Finding | str:
    findings: dict[str, Finding] = {}
    for mode in probe.modes:
        if probe.is_random(mode) and mode != "train":
            probe.remark("its random numbers change the output{mode}: is a dropout on?", mode)
        found = measure(probe, mode)
        finding = _diagnose(probe, found)
        if finding is not None:
            findings[mode] = finding
        elif not found.sees.any():
            return Finding(
                "constant",
                f"No output depends on any input{IN_MODE[mode]}, so there is nothing to check. Are "
                "all weights zero?",
                probe.given,
            )
        else:
            _look_at_the_past(probe, found)
    if not findings:
        return "no output depends on a later input"
    wrong = list(findings)
    finding = findings[wrong[0]]
    where = probe.only_in(wrong)
    if where and finding.mistake == "no causal mask":
        text = MESSAGES["causal mask dropped"].format(mode=f"{IN_MODE[wrong[0]]} only")
        return Finding(f"causal mask dropped{IN_MODE[wrong[0]]}", text, finding.detail)
    return Finding(finding.mistake, finding.message + where, finding.detail)


def _diagnose(probe: SequenceProbe, found: Dependence) -> Finding | None:
    n, mode = len(found.sees), IN_MODE[found.mode]
    if found.others:
        return Finding(
            "another sequence leaks in",
            MESSAGES["another sequence leaks in"],
            f"Changing one sequence of {probe.draws.batch} moves an output of another{mode}.",
        )
    leaks = found.sees & found.later & found.known[:, np.newaxis]
    if leaks.any():
        i, c = np.argwhere(leaks)[0]
        detail = f"Changing input {found.columns[c]} moves output {i}, of 0 to {n - 1}{mode}."
        return Finding(*_name(probe, found), detail)
    if not found.known.all():
        i = int(np.argmin(found.known))
        return Finding(
            "NaN",
            "Your model returns NaN or infinity. A query that may attend to nothing gives NaN, "
            "since its scores are all −∞.",
            f"Output {i}, of 0 to {n - 1}, is not finite{mode}.",
        )
    return _changed_together(probe, found)


def _name(probe: SequenceProbe, found: Dependence) -> tuple[str | None, str]:
    n = len(found.sees)
    full = np.ones((n, n), dtype=bool)
    past = ~found.later & (found.columns != np.arange(n)[:, np.newaxis])
    if found.matches(full):
        few = _moves_few_numbers(probe, found.mode)
        name = "softmax over the queries" if few else "no causal mask"
        return name, MESSAGES[name]
    # the last query sees nothing through an inverted mask, and then often everything
    known = found.known & (np.arange(n) < n - 1)
    if found.sees[found.later & known[:, np.newaxis]].all() and not (
        found.sees[past & known[:, np.newaxis]].any()
    ):
        return "causal mask inverted", MESSAGES["causal mask inverted"]
    distance = found.columns - np.arange(n)[:, np.newaxis]
    ahead = int(distance[found.sees].max())
    heads = bare_reshape(found, causal=True) if ahead > 1 else None
    if heads:
        return "bare reshape", MESSAGES["bare reshape"].format(k=heads)
    if np.array_equal(found.sees & found.later, found.later & (distance <= ahead)):
        k = "token" if ahead == 1 else f"{ahead} tokens"
        return "off by one", MESSAGES["off by one"].format(k=k)
    return None, (
        "An output depends on a later input, and the pattern is not one that this check knows. "
        "Look at how the mask is made, and at everything else that mixes positions: normalisation "
        "over the sequence, convolutions, pooling."
    )


def _moves_few_numbers(probe: SequenceProbe, mode: str) -> bool:
    """Tell whether later inputs move the first output along few directions only."""
    x = probe.draws.base(1)
    changes = []
    for seed in range(24):
        y = x.copy()
        y[0, 1:] = probe.draws.other(x, 100 + seed)[0, 1:]
        changes.append(probe.outputs(y, mode)[0, 0])
    return moves_few_numbers(changes, probe.outputs(x, mode)[0, 0])


def _changed_together(probe: SequenceProbe, found: Dependence) -> Finding | None:
    """Change everything after a position: like the example, and with much larger inputs."""
    sizes = (1.0, *LARGE) if probe.draws.floats else (1.0,)
    for size in sizes:
        for seed in LARGE_SEEDS:
            x = probe.draws.base(seed, size)
            # larger still, for a large negative number that is added to the scores
            new = probe.draws.other(x, 2 * seed + 1, 10 * size if size > 1 else size)
            output = probe.outputs(x, found.mode)
            for j in found.columns[1:]:
                y = x.copy()
                y[:, j:] = new[:, j:]
                moved = probe.far(probe.outputs(y, found.mode), output, SAME_ORDER)
                known = np.isfinite(output.reshape(*output.shape[:2], -1)).all(axis=-1)
                leaks = np.argwhere((moved & known)[:, :j])
                if len(leaks):
                    return _together(int(leaks[0, 1]), int(j), size, IN_MODE[found.mode])
    return None


def _together(i: int, j: int, size: float, mode: str) -> Finding:
    detail = f"Changing all inputs from {j} on moves output {i}{mode}."
    if size > 1:
        name = "large negative number"
        return Finding(name, MESSAGES[name].format(k=size), detail)
    return Finding(
        None,
        "An output depends on later inputs when all of them change, though not when one does. Look "
        "for a maximum, a mean or a norm over the whole sequence.",
        detail,
    )


def _look_at_the_past(probe: SequenceProbe, found: Dependence) -> None:
    distance = found.columns - np.arange(len(found.sees))[:, np.newaxis]
    if not found.sees[distance < 0].any():
        probe.remark(
            "no output depends on an earlier input{mode}: is attention switched off, or a matrix "
            "still zero? Then a mask cannot be seen either.",
            found.mode,
        )
    elif heads := bare_reshape(found, causal=True):
        probe.remark(
            f"what sees what is the pattern of a bare reshape into {heads} heads{{mode}}: no "
            "future, but not all of the past either. check.heads_are_independent tells.",
            found.mode,
        )
    if not found.sees[distance == 0].any():
        probe.remark(
            "no output depends on its own input{mode}, as with a mask without its diagonal.",
            found.mode,
        )
