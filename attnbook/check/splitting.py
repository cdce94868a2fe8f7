"""Splits of the features into heads and joins of heads, right and wrong; the check of a split."""

from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.scores import transposed
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Values, each, sized


@documented
def split_heads(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the split of the features into heads.

    Runs `f` on sizes that are all different primes, on a square, on one token, one head and heads
    of width one, in float64 and float32, and on batches.

    Parameters
    ----------
    f : callable
        Called as ``f(x, n_heads)``, by position, on an array (n, h·d) and an int. It returns one
        array (h, n, d), in which head i holds the columns i·d to (i + 1)·d - 1. It may be written
        for one sequence, without leading axes, or for batches alone.

    Examples
    --------
    >>> from attnbook import check
    >>> def my_split(x, n_heads):
    ...     n, d_model = x.shape
    ...     return x.reshape(n_heads, n, d_model // n_heads)
    >>> check.split_heads(my_split).mistake
    'bare reshape'
    """
    return run(SPLIT_HEADS, f, time_limit)


def heads_of(x, n_heads):
    """Return (..., h, n, d)."""
    return np.swapaxes(not_swapped(x, n_heads), -2, -3)


def joined(heads):
    """Return (..., n, h·d)."""
    *leading, h, n, d = heads.shape
    return np.swapaxes(heads, -2, -3).reshape(*leading, n, h * d)


# Wrong ways to split: each takes (..., n, h·d) and the number of heads.


def not_swapped(x, n_heads):
    *leading, n, width = x.shape
    return x.reshape(*leading, n, n_heads, width // n_heads)


def bare_reshape(x, n_heads):
    *leading, n, width = x.shape
    return x.reshape(*leading, n_heads, n, width // n_heads)


def interleaved(x, n_heads):
    *leading, n, width = x.shape
    return np.moveaxis(x.reshape(*leading, n, width // n_heads, n_heads), -1, -3)


def swapped_from_the_front(x, n_heads):
    return np.swapaxes(not_swapped(x, n_heads), 0, 1)


def overlapping(x, n_heads):
    d = x.shape[-1] // n_heads
    return np.stack([x[..., i : i + d] for i in range(n_heads)], axis=-3)


def _turned(x):
    """Return the numbers of the transposed x in the shape of x."""
    return transposed(x).reshape(x.shape)


def along_the_sequence(x, n_heads):
    return np.stack(np.split(x, n_heads, axis=-2), axis=-3)


# Wrong ways to join: each takes (..., h, n, d).


def bare_join(heads):
    *leading, h, n, d = heads.shape
    return heads.reshape(*leading, n, h * d)


def interleaved_join(heads):
    *leading, h, n, d = heads.shape
    return np.moveaxis(heads, -3, -1).reshape(*leading, n, d * h)


def reversed_heads(heads):
    return np.flip(heads, axis=-3)


_STEPS: dict[str, Callable] = {
    "count": lambda x, h: h,
    "cut": not_swapped,
    "arrange": lambda pieces: np.swapaxes(pieces, -2, -3),
    "order": lambda heads: heads,
}


def _from_steps(s, x, n_heads):
    return s.order(s.arrange(s.cut(x, s.count(x, n_heads))))


def _whole(cut: Callable) -> dict[str, Callable]:
    """Return the way whose cut leaves the axes where they belong."""
    return {"cut": cut, "arrange": lambda heads: heads}


_MISTAKES = mistakes(
    """
    list of heads: You return the heads one by one, in a list or a tuple. Stack them into one array,
        along a new axis in front of the tokens: (..., h, n, d).
    bare reshape: You reshape to (h, n, d) at once. The shape is right and the numbers are not: read
        row by row, the first head gets the first tokens whole, not its piece of every token.
        Reshape to (n, h, d), which cuts each row, and then exchange the axes of tokens and heads.
    transposed and reshaped: You transpose x and reshape it then. After .T a row is one feature of
        all tokens, so the reshape mixes tokens and features. Reshape to (n, h, d) first, and then
        exchange the axes of tokens and heads.
    axes not exchanged: You stop at (n, h, d). Attention treats the last two axes as tokens and
        features, so it would run between the heads of one token. Exchange tokens and heads: (h, n,
        d).
    interleaved features: Head i gets the features i, i + h, i + 2h, …: the last axis is read as (d,
        h). Head i is a piece in one run, the columns i·d to (i + 1)·d − 1. Read it as (h, d).
    features before tokens: Each head comes out transposed, (h, d, n). Tokens stay rows: (h, n, d).
        Exchange tokens and heads only.
    heads last: The heads are the last axis: (n, d, h). Tokens and features are the last two of each
        head, so the axis of the heads comes before both: (h, n, d).
    axes reversed: .T reverses all axes, so the features come first: (d, h, n). Exchange tokens and
        heads only.
    features before heads: The features come first, (d, n, h). The order is heads, tokens, features.
    heads in reverse: The first head gets the last columns. Head i gets the columns i·d to (i + 1)·d
        − 1.
    one head for all: All heads are the same one: each holds the same columns. Head i gets the
        columns i·d to (i + 1)·d − 1; look at where the slice begins.
    columns shifted by one: Head i begins one column too late or too early, or the heads overlap.
        Head i gets the columns i·d to (i + 1)·d − 1, and the next begins right after.
    cut along the sequence: You cut the tokens into n_heads groups, and each head gets a few tokens
        whole. Every head sees every token: cut the last axis, the features.
    number and width swapped: You take n_heads for the width of a head and get d heads of width h.
        There are n_heads heads, each of width h·d / n_heads.
    not split: Your function gives back what it got, and does not cut the rows.
    axes counted from the front: You exchange the axes 0 and 1. For a matrix these are tokens and
        heads, for a batch they are not. Count from the end: tokens and heads are axes −3 and −2.
    batch in the sequence: You reshape a batch as if it were one long sequence: its axis is gone.
        Keep the leading axes, x.shape[:-2], in each reshape.
    heads shifted by one: Head i gets the columns of its neighbour, of head i + 1 or i − 1. Count
        from 0: head 0 begins with column 0.
    one head left out: The first or the last head holds zeros: the loop over the heads begins too
        late or ends too early.
    column by column: You reshape in the order of Fortran, order="F", which reads x column by column
        and fills the result so. Reshape in the usual order, to (n, h, d), and then exchange the
        axes of tokens and heads.
    full width kept: Each of your heads has the full width h·d: x is repeated, or the columns of the
        other heads are set to 0. A head has its own d columns and no others.
    heads below each other: Your result has no axis for the heads: the rows of one stand below those
        of another, (h·n, d). Stack them along an axis of their own: (h, n, d).
    heads missing: Your result does not hold all heads: the first one alone, all but one, or their
        mean. There are n_heads of them, (h, n, d).
    """,
    {
        "bare reshape": _whole(bare_reshape),
        "transposed and reshaped": _whole(lambda x, h: bare_reshape(_turned(x), h)),
        "axes not exchanged": {"arrange": lambda pieces: pieces},
        "interleaved features": (
            {"cut": lambda x, h: np.swapaxes(interleaved(x, h), -2, -3)},
            _whole(lambda x, h: np.swapaxes(interleaved(x, h), -2, -3)),
            _whole(lambda x, h: np.moveaxis(interleaved(x, h), -3, -1)),
        ),
        "features before tokens": {"arrange": lambda pieces: np.moveaxis(pieces, -3, -1)},
        "heads last": {"arrange": transposed},
        "axes reversed": {"arrange": lambda pieces: pieces.T},
        "features before heads": {"arrange": lambda pieces: np.moveaxis(pieces, -1, -3)},
        "heads in reverse": {"order": reversed_heads},
        "heads shifted by one": each(
            "order", *(lambda heads, by=by: np.roll(heads, by, axis=-3) for by in (-1, 1))
        ),
        "one head left out": each(
            "order",
            lambda heads: heads * (np.arange(heads.shape[-3]) > 0)[:, None, None],
            lambda heads: heads * (np.arange(heads.shape[-3])[::-1] > 0)[:, None, None],
        ),
        "one head for all": tuple(
            {"order": lambda heads, i=i: np.broadcast_to(heads[..., [i], :, :], heads.shape)}
            for i in (0, -1)
        ),
        "columns shifted by one": (
            {"cut": lambda x, h: not_swapped(np.roll(x, -1, axis=-1), h)},
            {"cut": lambda x, h: not_swapped(np.roll(x, 1, axis=-1), h)},
            _whole(overlapping),
        ),
        "cut along the sequence": _whole(along_the_sequence),
        "number and width swapped": {"count": lambda x, h: x.shape[-1] // h},
        "not split": (_whole(lambda x, h: x), _whole(lambda x, h: np.expand_dims(x, -3))),
        "column by column": (
            _whole(
                lambda x, h: np.moveaxis(
                    np.reshape(
                        np.moveaxis(x, (-2, -1), (0, 1)),
                        (h, x.shape[-2], -1, *x.shape[:-2]),
                        order="F",
                    ),
                    (0, 1, 2),
                    (-3, -2, -1),
                )
            ),
        ),
        "full width kept": (
            _whole(lambda x, h: np.stack([x] * h, axis=-3)),
            _whole(
                lambda x, h: x[..., None, :, :] * np.repeat(np.eye(h), x.shape[-1] // h, 1)[:, None]
            ),
        ),
        "heads below each other": {
            "order": lambda heads: heads.reshape(*heads.shape[:-3], -1, heads.shape[-1])
        },
        "heads missing": tuple(
            {"order": order}
            for order in (
                lambda heads: heads[..., 0, :, :],
                lambda heads: heads[..., :1, :, :],
                lambda heads: heads[..., :-1, :, :],
                lambda heads: np.mean(heads, axis=-3),
            )
        ),
        "axes counted from the front": {"arrange": lambda pieces: np.swapaxes(pieces, 0, 1)},
        "batch in the sequence": {"cut": lambda x, h: not_swapped(x.reshape(-1, x.shape[-1]), h)},
    },
    {"list of heads": lambda returned: isinstance(returned, (list, tuple)) and len(returned) > 0},
)


def numbers_are_kept(case: Case, values: Values, again: Callable) -> str | None:
    before, after = (np.sort(x, axis=None) for x in (case.arrays["x"], values[0]))
    if before.shape == after.shape and np.allclose(before, after):
        return None
    return "A split only moves numbers; here some are changed, lost or there twice."


def _cases(*sizes: tuple[int, ...], dtype: str = "float64") -> tuple[Case, ...]:
    """Return a case for each of (..., n, h, d), with numbers that tell their places."""
    cases = []
    for *leading, n, h, d in sizes:
        count = int(np.prod([*leading, n, h, d]))
        x = np.arange(1, count + 1, dtype=dtype).reshape(*leading, n, h * d)
        cases.append(Case({"x": x, "n_heads": h}))
    return tuple(cases)


# a square; primes; as many tokens as heads; one token; one head; heads of width one
_SIZES = sized(
    *((4, 2, 2), (3, 2, 5), (5, 3, 2), (3, 3, 2), (2, 2, 2), (1, 2, 3), (5, 1, 3), (2, 3, 1))
)

SPLIT_HEADS = Check(
    name="split_heads",
    parameters=("x", "n_heads"),
    results={"heads": "(..., h, n, d)"},
    reference=attnbook.split_heads,
    compute=_from_steps,
    steps=_STEPS,
    stages=(
        Stage(_cases(*_SIZES)),
        Stage(_cases(*_SIZES[:2], dtype="float32")),
        Stage(_cases((2, 3, 2, 5), (4, 4, 2, 2), (2, 2, 2, 2)), may_raise="a batch (leading axes)"),
    ),
    mistakes=_MISTAKES,
    properties=(numbers_are_kept,),
)
