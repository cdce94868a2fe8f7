"""The embedding in steps: which row of the table a token gets, and the factor √d_model."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import attnbook
from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, draw, each


@documented
def embed(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check an embedding: the row of each token, times √d_model.

    Runs `f` on tables of several sizes, on one token, on a token that comes twice, in float32, and
    on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(ids, table)``, by position, on integers (n,) from 0 to V - 1 and an array
        (V, d_model). It returns an array (n, d_model). It may be written for one sequence, without
        leading axes, or for batches alone.

    Examples
    --------
    >>> from attnbook import check
    >>> check.embed(lambda ids, table: table[ids]).mistake
    'no √d_model'
    """
    return run(EMBED, f, time_limit)


_STEPS: dict[str, Callable] = {
    "numbers": lambda ids, table: ids,
    "look_up": lambda ids, table: table[ids],
    "factor": lambda ids, table: math.sqrt(table.shape[-1]),
    "multiply": np.multiply,
    "leave": lambda rows: rows,
}


def _embed(steps: Any, ids, table):
    rows = steps.look_up(steps.numbers(ids, table), table)
    return steps.leave(steps.multiply(rows, steps.factor(ids, table)))


def _by_position(ids, table):
    return np.broadcast_to(np.arange(ids.shape[-1]) % len(table), ids.shape)


def _placed(rows, interleaved):
    n, d = rows.shape[-2:]
    waves = attnbook.positions.sinusoidal(n, d + d % 2, interleaved=interleaved)
    return rows + waves[:, :d]


def _one_hot(ids, table):
    return np.eye(len(table))[ids]


_MISTAKES = mistakes(
    """
    no √d_model: You return the rows as they are. Their entries are of size 1/√d_model; times
        √d_model they are not drowned by the positions that are added to them, which have size 1.
    divided by √d_model: You divide by √d_model. An embedding is multiplied by it.
    times d_model: You multiply by d_model. Multiply by its root.
    root rounded: You round √d_model to an integer. Keep its fraction: math.sqrt(d_model).
    root added: You add √d_model to the rows. They are multiplied by it.
    root of the vocabulary: Your factor comes from the rows, V. It is √d_model, of the columns.
    root of the length: Your factor is √n, or 1/√n. It is the root of the width, √d_model.
    another factor: Your factor is another function of d_model. It is its square root.
    id one too small: You take the row before that of the token. Ids count from 0, as rows do.
    id one too large: You take the row after that of the token. Ids count from 0, as rows do.
    columns for rows: You take columns of the table. A token has a row: the table is (V, d_model).
    transposed: Your result is (d_model, n). Return a row for each token, (n, d_model).
    rows by position: Token i gets row i, whatever its id. That is a table of positions.
    rows by rank: You number the tokens of each sequence anew, so a token gets another row in
        another sequence. The id itself is the row.
    order lost: Your rows come in another order than the tokens, sorted or reversed, or each once
        only. Row i of the result belongs to token i.
    first token alone: You look up one token for all. Each has its own row.
    one-hot over the wrong axis: Your one-hot matrix has a column for each token. Row i of it has
        its 1 at the id of token i: (n, V) times (V, d_model).
    one-hot returned: You return the one-hot rows, (n, V), and never multiply them by the table.
    rows normalised: You normalise the rows. They are taken as they are, times √d_model.
    last token lost: The last token has no row in your result, or the first: the loop or the slice
        ends too early, or begins too late.
    id 0 taken for padding: The token 0 gets zeros. Here 0 is a token as any other.
    summed over the tokens: You sum or average the rows of all tokens. Each keeps its own.
    rows counted from the end: Token i gets row V − 1 − i. Row i belongs to it.
    positions added: You add positions to the rows. That is a step of its own; the embedding is the
        rows times √d_model, and nothing else.
    """,
    {
        "no √d_model": each("factor", lambda i, E: 1.0),
        "divided by √d_model": each(
            "multiply", lambda rows, factor: rows / math.sqrt(rows.shape[-1])
        ),
        "times d_model": each("factor", lambda i, E: float(E.shape[1])),
        "root rounded": each(
            "factor", *(lambda i, E, to=to: to(E.shape[1] ** 0.5) for to in (int, round, math.ceil))
        ),
        "root added": each("multiply", np.add),
        "root of the vocabulary": each(
            "factor",
            lambda i, E: math.sqrt(E.shape[0]),
            lambda i, E: E.shape[0] ** -0.5,
            lambda i, E: E.shape[0],
        ),
        "root of the length": each(
            "factor", lambda i, E: math.sqrt(i.shape[-1]), lambda i, E: i.shape[-1] ** -0.5
        ),
        "another factor": each(
            "factor",
            lambda i, E: math.log(E.shape[1]),
            lambda i, E: E.shape[1] ** 2,
            lambda i, E: E.shape[1] / 2,
            lambda i, E: E.shape[1] ** 0.25,
            lambda i, E: 2.0,
        ),
        "id one too small": each("numbers", lambda i, E: i - 1, lambda i, E: np.maximum(i - 1, 0)),
        "id one too large": each(
            "numbers", lambda i, E: (i + 1) % len(E), lambda i, E: np.minimum(i + 1, len(E) - 1)
        ),
        "columns for rows": each(
            "look_up",
            lambda i, E: np.moveaxis(E[:, i], 0, -1),
            lambda i, E: np.moveaxis(E[:, np.minimum(i, E.shape[1] - 1)], 0, -1),
            lambda i, E: np.moveaxis(E[:, i % E.shape[1]], 0, -1),
            lambda i, E: E[:, i],
            lambda i, E: E[:, np.minimum(i, E.shape[1] - 1)],
            lambda i, E: E[:, i % E.shape[1]],
        ),
        "transposed": each("leave", lambda r: r.swapaxes(-1, -2)),
        "rows by position": each("numbers", _by_position),
        "rows by rank": each(
            "numbers",
            lambda i, E: np.unique(i, return_inverse=True)[1].reshape(i.shape),
            lambda i, E: np.argsort(i, axis=-1, stable=True),
        ),
        "order lost": each(
            "numbers",
            lambda i, E: i[..., ::-1],
            lambda i, E: np.sort(i, axis=-1),
            lambda i, E: np.unique(i),
        ),
        "first token alone": each(
            "numbers",
            lambda i, E: i[..., 0],
            lambda i, E: i[..., :1],
            lambda i, E: np.broadcast_to(i[..., :1], i.shape),
        ),
        "one-hot over the wrong axis": each(
            "look_up", lambda i, E: np.swapaxes(_one_hot(i, E), -1, -2) @ E
        ),
        "one-hot returned": each("look_up", _one_hot),
        "rows normalised": each(
            "look_up",
            lambda i, E: E[i] / np.linalg.norm(E[i], axis=-1, keepdims=True),
            lambda i, E: attnbook.layer_norm(E[i], epsilon=0),
            lambda i, E: attnbook.softmax(E[i]),
        ),
        "last token lost": each(
            "leave",
            lambda r: r[..., :-1, :],
            lambda r: r[..., 1:, :],
            lambda r: r * (np.arange(r.shape[-2]) < r.shape[-2] - 1)[:, np.newaxis],
        ),
        "rows counted from the end": each("numbers", lambda i, E: len(E) - 1 - i),
        "positions added": each(
            "leave",
            *(partial(_placed, interleaved=interleaved) for interleaved in (False, True)),
            lambda r: r + np.arange(r.shape[-2])[:, np.newaxis],
        ),
        "id 0 taken for padding": each("look_up", lambda i, E: E[i] * (i != 0)[..., np.newaxis]),
        "summed over the tokens": each(
            "leave", *(partial(reduce, axis=-2) for reduce in (np.sum, np.mean, np.cumsum))
        ),
    },
)


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
    steps=_STEPS,
    stages=table_stages(_case),
    mistakes=_MISTAKES,
    legible=True,
)
