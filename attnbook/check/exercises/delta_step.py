"""A step of the gated delta rule, and the ways to get each part wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values, draw
from attnbook.check.engine.text import Text


@documented
def delta_step(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check a step of the gated delta rule: the state fades, and one key is overwritten.

    Runs `f` on square states and others, on keys of length 1 and of other lengths, with and without
    decay, and in float64 and float32.

    Parameters
    ----------
    f : callable
        Called as ``f(state, key, value, beta, decay)``, by position, on (d_k, d_v), (d_k,), (d_v,)
        and two floats from 0 to 1. It returns the new state: the old one times `decay`, plus
        `beta` times the outer product of the key and the error, which is the value minus what the
        faded state returns for the key.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> def my_step(state, key, value, beta, decay):
    ...     return decay * state + beta * np.outer(key, value - key @ state)
    >>> check.delta_step(my_step).mistake
    'asked before the decay'
    """
    return run(DELTA_STEP, f, time_limit)


def _step(s: Any, state, key, value, beta, decay):
    faded = s.faded(state, decay)
    returned = s.returned(s.asked(state, faded), key, value)
    error = s.error(value, returned, beta)
    written = s.strength(beta, key) * s.written(key, error)
    return s.result(s.kept(state, faded, beta), written, decay)


def a_key_of_length_one_returns_its_value(
    case: Case, values: Values, again: Callable
) -> str | None:
    """Say whether the key returns the new value where beta is 1 and the key has length 1."""
    key, value = case.arrays["key"], case.arrays["value"]
    applies = case.arguments["beta"] == 1 and np.isclose(key @ key, 1)
    if not applies or values[0].shape != case.arrays["state"].shape:
        return None
    if np.allclose(key @ values[0], value, atol=1e-4):
        return None
    return "With beta = 1 and a key of length 1, the new state must return the value for the key."


def _case(
    d_k: int, d_v: int, beta: float, decay: float, unit: bool = False, dtype: str = "float64"
) -> Case:
    state, key, value = draw(84, d_k, d_v), draw(85, d_k), draw(86, d_v)
    if unit:
        key = key / np.sqrt(key @ key)
    arrays = {"state": state, "key": key, "value": value}
    arguments = {name: x.astype(dtype) for name, x in arrays.items()}
    return Case(arguments | {"beta": beta, "decay": decay})


TEXT = Text(globals())

DELTA_STEP = Check(
    name="delta_step",
    parameters=("state", "key", "value", "beta", "decay"),
    results={"state": "(d_k, d_v)"},
    compute=_step,
    steps=TEXT.steps,
    stages=(
        Stage((_case(3, 3, 0.75, 0.5), _case(4, 4, 0.5, 0.75), _case(2, 2, 1.0, 0.75, unit=True))),
        Stage(
            (
                *(_case(2, 3, 0.5, 0.75), _case(5, 3, 0.25, 0.875), _case(3, 3, 0.25, 0.875)),
                *(_case(3, 2, 1.0, 0.75, unit=True), _case(5, 7, 0.5, 1.0)),
            )
        ),
        Stage((_case(5, 3, 0.5, 0.75, dtype="float32"),)),
    ),
    mistakes=TEXT.mistakes,
    properties=(a_key_of_length_one_returns_its_value,),
)
