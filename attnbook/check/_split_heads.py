"""The check of the split into heads, and the wrong splits and joins that others build upon."""

from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check import _recipes as r
from attnbook.check._model import Case, Check, Mistake, Stage, Values, draw


def heads_of(x, n_heads):
    *leading, n, width = x.shape
    return np.swapaxes(x.reshape(*leading, n, n_heads, width // n_heads), -2, -3)


def joined(heads):
    *leading, h, n, d = heads.shape
    return np.swapaxes(heads, -2, -3).reshape(*leading, n, h * d)


# Wrong ways to split: each takes (..., n, h·d) and the number of heads.


def bare_reshape(x, n_heads):
    *leading, n, width = x.shape
    return x.reshape(*leading, n_heads, n, width // n_heads)


def not_swapped(x, n_heads):
    return np.swapaxes(heads_of(x, n_heads), -2, -3)


def interleaved(x, n_heads):
    *leading, n, width = x.shape
    return np.moveaxis(x.reshape(*leading, n, width // n_heads, n_heads), -1, -3)


def swapped_from_the_front(x, n_heads):
    return np.swapaxes(not_swapped(x, n_heads), 0, 1)


def _batch_in_sequence(x, n_heads):
    return heads_of(x.reshape(-1, x.shape[-1]), n_heads)


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


BARE_RESHAPE = (
    "You reshape to (h, n, d) at once. The shape is right and the numbers are not: the array is "
    "read row by row, so the first head gets the first tokens whole, instead of its piece of every "
    "token. Reshape to (n, h, d), which cuts each row, and then exchange the axes of tokens and "
    "heads."
)
INTERLEAVED = (
    "Head i gets the features i, i + h, i + 2h, …: the last axis is read as (d, h). Head i is a "
    "piece in one run, the columns i·d to (i + 1)·d − 1. The last axis is (h, d), heads first."
)


def numbers_are_kept(case: Case, values: Values, again: Callable) -> str | None:
    before, after = (np.sort(x, axis=None) for x in (case.arrays["x"], values[0]))
    if before.shape == after.shape and np.allclose(before, after):
        return None
    return "A split only moves numbers; here some are changed, lost or there twice."


_MISTAKES = (
    Mistake(
        "list of heads",
        "You return the heads one by one, in a list or a tuple. Stack them into one array, along a "
        "new axis in front of the tokens: (..., h, n, d).",
        (),
        told_by=lambda returned: isinstance(returned, (list, tuple)) and len(returned) > 0,
    ),
    Mistake("bare reshape", BARE_RESHAPE, (bare_reshape,)),
    Mistake(
        "axes not exchanged",
        "You stop at (n, h, d). Attention treats the last two axes as tokens and features, so it "
        "would run between the heads of one token. Exchange the axes of tokens and heads: (h, n, "
        "d).",
        (not_swapped,),
    ),
    Mistake(
        "interleaved features",
        INTERLEAVED,
        (
            interleaved,
            lambda x, h: np.swapaxes(interleaved(x, h), -2, -3),
            lambda x, h: np.moveaxis(interleaved(x, h), -3, -1),
        ),
    ),
    Mistake(
        "features before tokens",
        "Each head comes out transposed, (h, d, n). Tokens stay rows: (h, n, d). Exchange the axes "
        "of tokens and heads only.",
        (lambda x, h: r.transposed(heads_of(x, h)),),
    ),
    Mistake(
        "heads last",
        "The heads are the last axis: (n, d, h). Tokens and features are the last two of each "
        "head, so the axis of the heads comes before both: (h, n, d).",
        (lambda x, h: np.moveaxis(heads_of(x, h), -3, -1),),
    ),
    Mistake(
        "axes reversed",
        ".T reverses all axes, so the features come first: (d, h, n). Exchange the axes of tokens "
        "and heads only.",
        (lambda x, h: not_swapped(x, h).T,),
    ),
    Mistake(
        "heads in reverse",
        "The heads come out in reverse order: the first gets the last columns. Head i gets the "
        "columns i·d to (i + 1)·d − 1.",
        (lambda x, h: reversed_heads(heads_of(x, h)),),
    ),
    Mistake(
        "cut along the sequence",
        "You cut the tokens into n_heads groups, and each head gets a few tokens whole. Every head "
        "sees every token: cut the last axis, the features.",
        (along_the_sequence,),
    ),
    Mistake(
        "number and width swapped",
        "You take n_heads for the width of a head and get d heads of width h. There are n_heads "
        "heads, each of width h·d / n_heads.",
        (lambda x, h: heads_of(x, x.shape[-1] // h),),
    ),
    Mistake(
        "not split",
        "Your function gives back what it got, and does not cut the rows.",
        (lambda x, h: x, lambda x, h: np.expand_dims(x, -3)),
    ),
    Mistake(
        "axes counted from the front",
        "You exchange the axes 0 and 1. For a matrix these are tokens and heads, for a batch they "
        "are not. Count from the end: after the reshape, tokens and heads are axes −3 and −2 of "
        "any array.",
        (swapped_from_the_front,),
    ),
    Mistake(
        "batch in the sequence",
        "You reshape a batch as if it were one long sequence: its axis is gone. Keep the leading "
        "axes, x.shape[:-2], in each reshape.",
        (_batch_in_sequence,),
    ),
)


def _cases(*sizes: tuple[int, ...], dtype: str = "float64") -> tuple[Case, ...]:
    """Return a case for each of (..., n, h, d)."""
    return tuple(
        Case({"x": draw(13, *leading, n, h * d).astype(dtype), "n_heads": h})
        for *leading, n, h, d in sizes
    )


SPLIT_HEADS = Check(
    name="split_heads",
    parameters=("x", "n_heads"),
    results={"heads": "(..., h, n, d)"},
    reference=attnbook.split_heads,
    stages=(
        # a square; primes; as many tokens as heads; one token; one head; heads of width one
        Stage(
            _cases(
                (4, 2, 2),
                (3, 2, 5),
                (5, 3, 2),
                (3, 3, 2),
                (2, 2, 2),
                (1, 2, 3),
                (5, 1, 3),
                (2, 3, 1),
            )
        ),
        Stage(_cases((4, 2, 2), (3, 2, 5), dtype="float32")),
        Stage(_cases((2, 3, 2, 5), (4, 4, 2, 2), (2, 2, 2, 2)), beyond="a batch (leading axes)"),
    ),
    mistakes=_MISTAKES,
    properties=(numbers_are_kept,),
    options=(),
    remarked_options=(),
    sequences=("x",),
)
