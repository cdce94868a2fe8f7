"""The gradient of an embedding in steps: every token adds its row to that of its id."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.embedding import table_stages
from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Values, draw, each


@documented
def embed_vjp(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the gradient of an embedding, table[ids], with respect to the table.

    Runs `f` on tables of several sizes, on one token, on a token that comes twice, in float64 and
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


def _last(ids, table, g):
    grad = np.zeros(table.shape, dtype=g.dtype)
    grad[ids] = g
    return grad


def _first(ids, table, g):
    return _last(ids.reshape(-1)[::-1], table, g.reshape(-1, g.shape[-1])[::-1])


def _by_place(ids, table, g):
    grad, rows = np.zeros(table.shape, dtype=g.dtype), g.reshape(-1, g.shape[-1])[: len(table)]
    grad[: len(rows)] = rows
    return grad


def _counts(ids, table):
    return np.bincount(ids.reshape(-1), minlength=len(table))[:, None]


STEPS: dict[str, Callable] = {
    "incoming": lambda g, ids, table: g,
    "numbers": lambda ids, table: ids,
    "scatter": scattered,
    "leave": lambda grad, ids, table: grad,
}


def embedding_gradient(s: Any, ids, table, grad_output):
    """Return the gradient of the table from its steps."""
    g = s.incoming(grad_output, ids, table)
    return s.leave(s.scatter(s.numbers(ids, table), table, g), ids, table)


MISTAKES = mistakes(
    """
    repeated token counted once: Where a token comes twice you keep one of its rows. In NumPy
        grad[ids] += … writes each place once, with the last value. Use np.add.at, or a one-hot
        matrix.
    repeated token averaged: You divide by how often a token comes. Its row was used that often, and
        its gradients add up.
    repeated token multiplied: You multiply by how often a token comes. The rows are already added
        once for each time.
    averaged over the tokens: You divide by the number of tokens. A mean stands in the loss, and so
        in grad_output.
    averaged over the vocabulary: You divide by V. Nothing is averaged.
    times √d_model: You multiply by √d_model. Here the rows were taken as they are.
    divided by √d_model: You divide by √d_model, or by d_model. Here the rows were taken as they
        are.
    rows of grad_output returned: You return grad_output. The gradient has a row for each known
        token, (V, d_model), as the table has.
    rows by position: Row i of grad_output goes to row i of the table. It goes to the row of token
        i.
    rows by rank: You number the tokens of each sequence anew. The id itself is the row.
    only the rows that occur: You return rows for the tokens that occur. The others have a gradient
        of 0: return (V, d_model).
    gathered for scattered: You look up rows of grad_output by ids. That is the way forward; on the
        way back each token adds its row to the row of its id.
    table added: You add the table to its gradient. Weight decay belongs to the optimizer.
    step taken: You return the table less its gradient, or less a part of it. Return the gradient
        alone.
    rows of the table in front: You multiply each row of grad_output by the row that was looked up.
        Nothing was multiplied forward: add the rows of grad_output as they are.
    last token lost: The row of the last token is added nowhere: the loop ends too early.
    id 0 taken for padding: The row of the token 0 gets no gradient. Here 0 is a token as any other.
    grad_output ignored: You count how often each token comes. Add the rows of grad_output.
    id one too small: Rows go one above the right one. Ids count from 0, as rows do.
    id one too large: Rows go one below the right one. Ids count from 0, as rows do.
    transposed: Your result is (d_model, V). A gradient has the shape of what it belongs to.
    gradient negated: Your gradient has the wrong sign. The minus belongs to the step.
    batch not summed: For a batch you return a table for each sequence. They all read one table: add
        them up.
    batch averaged: For a batch you take the mean over the sequences. The gradients of one table add
        up.
    one gradient for all rows: Rows of the table get the sum or the mean of grad_output, or all get
        one row of it. A row gets those of its own token alone.
    rows of other tokens: Your tokens and the rows of grad_output do not belong together: one of the
        two is sorted, turned round or moved by a place. Row i of grad_output is that of token i.
    begun with ones: You add the rows to a table of ones. Begin with zeros.
    other rows not 0: The rows of the tokens that do not occur have ones or the rows of the table.
        Their gradient is 0.
    first token lost: The row of the first token is added nowhere. Begin at place 0.
    last row left out: The last row of the table gets no gradient: the loop over the ids ends too
        early.
    ids counted from the end: Rows go to V − 1 − id, or to −id. The row of a token is its id.
    """,
    {
        "repeated token counted once": each("scatter", _last, _first),
        "repeated token averaged": each("leave", lambda d, i, E: d / np.maximum(_counts(i, E), 1)),
        "repeated token multiplied": each("leave", lambda d, i, E: d * _counts(i, E)),
        "averaged over the tokens": each(
            "leave", lambda d, i, E: d / i.size, lambda d, i, E: d / i.shape[-1]
        ),
        "averaged over the vocabulary": each("leave", lambda d, i, E: d / len(E)),
        "times √d_model": each("incoming", lambda g, i, E: g * math.sqrt(E.shape[1])),
        "divided by √d_model": each(
            "incoming",
            lambda g, i, E: g / math.sqrt(E.shape[1]),
            lambda g, i, E: g / E.shape[1],
        ),
        "rows of grad_output returned": each("scatter", lambda i, E, g: g),
        "rows by position": each(
            "numbers",
            lambda i, E: np.broadcast_to(np.arange(i.shape[-1]), i.shape),
            lambda i, E: np.broadcast_to(np.arange(i.shape[-1]) % len(E), i.shape),
        )
        + each("scatter", _by_place),
        "rows by rank": each(
            "numbers", lambda i, E: np.unique(i, return_inverse=True)[1].reshape(i.shape)
        ),
        "only the rows that occur": each("leave", lambda d, i, E: d[np.unique(i)]),
        "gathered for scattered": each(
            "scatter",
            lambda i, E, g: g[i],
            lambda i, E, g: g[i % g.shape[-2]],
        ),
        "one gradient for all rows": (
            *each(
                "scatter",
                *(
                    lambda i, E, g, f=f: np.tile(f(g.reshape(-1, g.shape[-1]), axis=0), (len(E), 1))
                    for f in (np.sum, np.mean)
                ),
            ),
            *each("leave", lambda d, i, E: np.sum(d, axis=0) * (_counts(i, E) > 0)),
            *each(
                "incoming",
                lambda g, i, E: 0 * g + g[..., :1, :],
                lambda g, i, E: 0 * g + g[..., -1:, :],
            ),
        ),
        "rows of other tokens": (
            *each(
                "numbers",
                lambda i, E: i[..., ::-1],
                lambda i, E: np.sort(i, axis=-1),
                *(lambda i, E, by=by: np.roll(i, by, axis=-1) for by in (-1, 1)),
            ),
            *each(
                "scatter",
                lambda i, E, g: scattered(i[..., 1:], E, g[..., :-1, :]),
                lambda i, E, g: scattered(i[..., :-1], E, g[..., 1:, :]),
            ),
        ),
        "begun with ones": each("leave", lambda d, i, E: d + 1),
        "table added": each("leave", lambda d, i, E: d + E),
        "step taken": each(
            "leave", *(lambda d, i, E, rate=rate: E - rate * d for rate in (1, 0.1, 0.01, 0.001))
        ),
        "rows of the table in front": each("incoming", lambda g, i, E: g * E[i]),
        "other rows not 0": each(
            "leave",
            lambda d, i, E: np.where(_counts(i, E) > 0, d, 1),
            lambda d, i, E: np.where(_counts(i, E) > 0, d, E),
        ),
        "first token lost": each(
            "scatter", lambda i, E, g: scattered(i[..., 1:], E, g[..., 1:, :])
        ),
        "last token lost": each(
            "scatter", lambda i, E, g: scattered(i[..., :-1], E, g[..., :-1, :])
        ),
        "last row left out": each(
            "leave", lambda d, i, E: d * (np.arange(len(E)) < len(E) - 1)[:, np.newaxis]
        ),
        "id 0 taken for padding": each(
            "leave", lambda d, i, E: d * (np.arange(len(E)) > 0)[:, np.newaxis]
        ),
        "grad_output ignored": each("incoming", lambda g, i, E: np.ones_like(g)),
        "id one too small": each("numbers", lambda i, E: i - 1),
        "id one too large": each("numbers", lambda i, E: (i + 1) % len(E)),
        "ids counted from the end": each("numbers", lambda i, E: len(E) - 1 - i, lambda i, E: -i),
        "transposed": each("leave", lambda d, i, E: d.T),
        "gradient negated": each("leave", lambda d, i, E: -d),
        "batch not summed": each(
            "scatter",
            lambda i, E, g: np.swapaxes(np.eye(len(E), dtype=g.dtype)[i], -1, -2) @ g,
        ),
        "batch averaged": each("leave", lambda d, i, E: d * i.shape[-1] / i.size),
    },
)


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
    steps=STEPS,
    stages=table_stages(_case),
    mistakes=MISTAKES,
    properties=(columns_keep_their_sums,),
    legible=True,
)
