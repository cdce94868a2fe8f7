"""The check of the embedding: rows of a table, times √d_model."""

import math
from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check._engine import run
from attnbook.check._model import Case, Check, Mistake, Stage, draw
from attnbook.check._report import Report


def embed(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check an embedding: the row of each token, times √d_model.

    Runs `f` on a square table and on sizes that are all different primes, on one token, on a token
    that comes twice, in float64 and float32, and on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(ids, table)``, by position, on integers (n,) from 0 to V - 1 and an array
        (V, d_model). It returns an array (n, d_model). It may be written for one sequence, without
        leading axes, or for batches alone.
    time_limit : float
        Seconds for all calls together.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `f` is not callable, or `time_limit` is not a finite number of at least 0.

    Examples
    --------
    >>> from attnbook import check
    >>> check.embed(lambda ids, table: table[ids]).mistake
    'no √d_model'
    """
    return run(EMBED, f, time_limit)


def _times(factor: Callable) -> Callable:
    """Return the rows of the tokens times `factor(ids, table)`."""
    return lambda ids, table: table[ids] * factor(ids, table)


def _rows(choose: Callable) -> Callable:
    """Return what `choose(ids, table)` takes from the table, times √d_model."""
    return lambda ids, table: choose(ids, table) * math.sqrt(table.shape[1])


def _both(choose: Callable) -> tuple[Callable, Callable]:
    """Return the same with √d_model and without: the second mistake is heard of later."""
    return _rows(choose), choose


def _by_rank(ids, table):
    return table[np.unique(ids, return_inverse=True)[1].reshape(ids.shape)]


_MISTAKES = (
    Mistake(
        "no √d_model",
        "You return the rows as they are. They are multiplied by √d_model, so that they are not "
        "drowned by the positions that are added to them: rows are drawn with entries of size "
        "1/√d_model, sines have size 1.",
        (_times(lambda ids, table: 1.0),),
    ),
    Mistake(
        "divided by √d_model",
        "You divide by √d_model, as the scores of attention are. An embedding is multiplied by it.",
        (_times(lambda ids, table: table.shape[1] ** -0.5),),
    ),
    Mistake(
        "times d_model",
        "You multiply by d_model. Multiply by its root.",
        (_times(lambda ids, table: float(table.shape[1])),),
    ),
    Mistake(
        "root of the vocabulary",
        "Your factor comes from the number of rows, V. It is the root of the width: "
        "table.shape[-1].",
        (
            _times(lambda ids, table: math.sqrt(table.shape[0])),
            _times(lambda ids, table: table.shape[0] ** -0.5),
        ),
    ),
    Mistake(
        "root of the length",
        "Your factor is √n, from the length of the sequence. It is the root of the width: "
        "table.shape[-1].",
        (_times(lambda ids, table: math.sqrt(ids.shape[-1])),),
    ),
    Mistake(
        "id one too small",
        "You take the row before that of the token: token 0 gets the last row. Ids count from 0, "
        "as rows do.",
        _both(lambda ids, table: table[ids - 1]),
    ),
    Mistake(
        "id one too large",
        "You take the row after that of the token. Ids count from 0, as rows do.",
        _both(lambda ids, table: table[(ids + 1) % len(table)]),
    ),
    Mistake(
        "columns for rows",
        "You take columns of the table. A token has a row: the table is (V, d_model).",
        (
            *_both(lambda ids, table: table.T[ids]),
            *_both(lambda ids, table: table[:, ids]),
        ),
    ),
    Mistake(
        "transposed",
        "Your result is (d_model, n). A row for each token, (n, d_model), as in the table.",
        _both(lambda ids, table: table[ids].swapaxes(-1, -2)),
    ),
    Mistake(
        "rows by position",
        "Token i gets row i, whatever it is: the ids are not used. That is a table of positions.",
        _both(
            lambda ids, table: np.broadcast_to(
                table[np.arange(ids.shape[-1]) % len(table)], (*ids.shape, table.shape[1])
            )
        ),
    ),
    Mistake(
        "rows by rank",
        "You number the tokens of each sequence anew, so a token gets another row in another "
        "sequence. The id itself is the row.",
        _both(_by_rank),
    ),
    Mistake(
        "one-hot over the wrong axis",
        "Your one-hot matrix has a column for each token, so the product mixes up tokens and "
        "words. Row i of it has its 1 at the id of token i: (n, V) times (V, d_model).",
        _both(lambda ids, table: np.swapaxes(np.eye(len(table))[ids], -1, -2) @ table),
    ),
    Mistake(
        "summed over the tokens",
        "Your result is the sum, or the mean, of the rows of all tokens. Each token keeps its own.",
        (
            *_both(lambda ids, table: table[ids].sum(axis=-2)),
            *_both(lambda ids, table: table[ids].mean(axis=-2)),
        ),
    ),
)


def _case(n_known: int, d_model: int, ids: list, dtype: str = "float64") -> Case:
    table = draw(24, n_known, d_model).astype(dtype)
    return Case({"ids": np.array(ids, dtype=np.int64), "table": table})


_BATCH = [[4, 0, 3], [1, 1, 2]]

EMBED = Check(
    name="embed",
    parameters=("ids", "table"),
    results={"embedding": "(..., n, d_model)"},
    reference=attnbook.embed,
    stages=(
        Stage(
            (
                _case(3, 3, [1, 0, 0]),
                _case(5, 3, [4, 0, 3, 3, 1, 4, 2]),
                _case(7, 2, [6, 1, 6]),
                _case(2, 5, [1]),
                _case(5, 11, [3, 2]),
            )
        ),
        Stage((_case(5, 3, [4, 0, 3, 3, 1, 4, 2], "float32"),)),
        Stage((_case(5, 7, _BATCH), _case(5, 2, _BATCH)), beyond="a batch (leading axes)"),
    ),
    mistakes=_MISTAKES,
    properties=(),
    options=(),
    remarked_options=(),
    sequences=("ids",),
    sequence_axes=1,
)
