"""Small writers whose short convolution begins as the identity, in place of random filters.

They complete `linear_convolution`, which has the same writers with random filters or with none. Two
tables, as there: `rates` and `runs`. A run that is finished is kept, and a benchmark that was
interrupted goes on.
"""

import importlib.util
from typing import Any

from benchmarks import linear_convolution
from benchmarks.linear_convolution import FROM_IDENTITY, model_of
from benchmarks.linear_writers import compared
from benchmarks.tables import Tables

DEVICES = ("cpu",)
WHOLE = True  # its tables build on one another, so all are measured
SECONDS = 1800.0  # for one table

STARTS = dict(zip(FROM_IDENTITY, (1.6e-2, 8e-3), strict=True))
"""The first rates: the best of linear without convolution, and of softmax with random filters."""

METHODS = {
    **{
        name: (
            f"The writer `{other}`, but before training each filter has a 1 for the token itself "
            "and zeros for the tokens before it, in place of numbers drawn from -1/2 to 1/2."
        )
        for name, other in FROM_IDENTITY.items()
    },
    "lr": (
        "As in `linear_convolution`, but from `starts`, the rates that were best there for linear "
        "without convolution and for softmax with random filters."
    ),
    **{
        name: linear_convolution.METHODS[name]
        for name in ("recipe", "validation", "by_position", "test", "parameters")
    },
}


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Train both writers with all seeds."""
    if importlib.util.find_spec("torch") is None:
        tables.log("needs torch")
        return
    plan: dict[str, Any] = linear_convolution.plan_of(quick) | {"starts": STARTS}
    plan.pop("recall")
    compared(plan, STARTS, model_of, quick=quick, tables=tables, methods=METHODS).clear()
