"""The embedding in steps: which row of the table a token gets, and the factor √d_model."""

from collections.abc import Callable
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, draw
from attnbook.check.engine.text import Text


@documented
def embed(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check an embedding: the row of each token, times √d_model.

    Runs `f` on tables of several sizes, on one token, on a token that occurs twice, in float32, and
    on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(ids, table)``, by position, on integers (n,) from 0 to V - 1 and an array
        (V, d_model). It returns an array (n, d_model). It may be written only for one sequence,
        without leading axes, or only for batches.

    Examples
    --------
    >>> from attnbook import check
    >>> check.embed(lambda ids, table: table[ids]).mistake
    'no √d_model'
    """
    return run(EMBED, f, time_limit)


def _embed(steps: Any, ids, table):
    rows = steps.look_up(steps.numbers(ids, table), table)
    return steps.leave(steps.multiply(rows, steps.factor(ids, table)))


def placed(rows, interleaved):
    n, d = rows.shape[-2:]
    waves = attnbook.positions.sinusoidal(n, d + d % 2, interleaved=interleaved)
    return rows + waves[:, :d]


TEXT = Text(globals())


def _case(n_known: int, d_model: int, ids: list, dtype: str = "float64") -> Case:
    table = draw(24, n_known, d_model).astype(dtype)
    return Case({"ids": np.array(ids, dtype=np.int64), "table": table})


def table_stages(case: Callable) -> tuple[Stage, ...]:
    """Return the stages of what reads a table of known tokens, d_model: sizes, float32, batches."""
    long, batch = [4, 0, 3, 3, 1, 4, 2], [[4, 0, 3], [1, 1, 4]]
    sizes = ((3, 3, [1, 0, 0]), (5, 3, long), (7, 2, [6, 1, 6]), (2, 5, [1]), (5, 11, [3, 2]))
    return (
        Stage(tuple(case(*size) for size in sizes)),
        Stage((case(5, 3, long, "float32"),)),
        Stage((case(5, 7, batch), case(5, 2, batch)), may_raise="a batch (leading axes)"),
    )


EMBED = Check(
    name="embed",
    parameters=("ids", "table"),
    results={"embedding": "(..., n, d_model)"},
    reference=attnbook.embed,
    compute=_embed,
    steps=TEXT.steps,
    stages=table_stages(_case),
    mistakes=TEXT.mistakes,
    legible=True,
)
