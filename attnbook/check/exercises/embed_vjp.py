"""The gradient of an embedding in steps: every token adds its row to that of its id."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Values, draw
from attnbook.check.engine.text import Text
from attnbook.check.exercises.embed import table_stages


@documented
def embed_vjp(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the gradient of an embedding, table[ids], with respect to the table.

    Runs `f` on tables of several sizes, on one token, on a token that occurs twice, in float64 and
    float32, and on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(ids, table, grad_output)``, by position, on integers (n,) from 0 to V - 1, and
        arrays (V, d_model) and (n, d_model); grad_output is ∂L/∂table[ids], without a factor
        √d_model. It returns an array (V, d_model). It may be written for one sequence, without
        leading axes.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook import check
    >>> def my_vjp(ids, table, grad_output):
    ...     grad = np.zeros_like(table)
    ...     grad[ids] += grad_output
    ...     return grad
    >>> check.embed_vjp(my_vjp).mistake
    'repeated token counted once'
    """
    return run(EMBED_VJP, f, time_limit)


def scattered(ids, table, g):
    """Return the table of gradients: each row of `g` is added to the row of its id."""
    grad = np.zeros(table.shape, dtype=g.dtype)
    np.add.at(grad, ids, g)
    return grad


def last_kept(ids, table, g):
    grad = np.zeros(table.shape, dtype=g.dtype)
    grad[ids] = g
    return grad


def first_kept(ids, table, g):
    return last_kept(ids.reshape(-1)[::-1], table, g.reshape(-1, g.shape[-1])[::-1])


def by_place(table, g):
    grad, rows = np.zeros(table.shape, dtype=g.dtype), g.reshape(-1, g.shape[-1])[: len(table)]
    grad[: len(rows)] = rows
    return grad


def counts(ids, table):
    return np.bincount(ids.reshape(-1), minlength=len(table))[:, None]


def embedding_gradient(s: Any, ids, table, grad_output):
    """Return the gradient of the table from its steps."""
    g = s.incoming(grad_output, ids, table)
    return s.leave(s.scatter(s.numbers(ids, table), table, g), ids, table)


TEXT = Text(globals())


def columns_keep_their_sums(case: Case, values: Values, again: Callable) -> str | None:
    """Say whether every column has the sum that it has in grad_output."""
    g = case.arrays["grad_output"]
    if values[0].shape[-1:] != g.shape[-1:] or values[0].ndim != 2:
        return None
    if np.allclose(values[0].sum(axis=0), g.reshape(-1, g.shape[-1]).sum(axis=0), atol=1e-5):
        return None
    return (
        "Every row of grad_output is added to one row of the table, so a column of the result sums "
        "to the same as that column of grad_output; here one does not."
    )


def _case(n_known: int, d_model: int, ids: list, dtype: str = "float64") -> Case:
    tokens = np.array(ids, dtype=np.int64)
    g = draw(48, *tokens.shape, d_model)
    table = draw(47, n_known, d_model)
    return Case({"ids": tokens, "table": table.astype(dtype), "grad_output": g.astype(dtype)})


EMBED_VJP = Check(
    name="embed_vjp",
    parameters=("ids", "table", "grad_output"),
    results={"grad_table": "(V, d_model)"},
    compute=embedding_gradient,
    steps=TEXT.steps,
    stages=table_stages(_case),
    mistakes=TEXT.mistakes,
    properties=(columns_keep_their_sums,),
    legible=True,
)
