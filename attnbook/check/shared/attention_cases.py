"""The cases of attention: sizes, masks, and scores that are large, spread or outbid."""

from collections.abc import Callable

import numpy as np

from attnbook.check.engine.steps import Case, Stage, draw, sized
from attnbook.check.exercises import softmax as soft

SIZES = sized(
    (3, 3, 3, 3),
    (2, 5, 3, 7),
    (5, 2, 7, 3),
    (1, 1, 3, 2),
    (1, 5, 2, 3),
    (5, 1, 3, 2),
    (3, 3, 5, 2),
    (2, 3, 5, 5),
    (1, 2, 3, 1),
)
"""n_q, n_k, d_k, d_v: a square, primes in both orders, one token, query or key, a small one."""

CAUSAL = np.tril(np.ones((5, 5), dtype=bool))
RAGGED = np.array([[True, False, True], [False, True, True]])
FLIPPED = np.array([[False, False, True], [True, False, False], [False, True, True]])
EMPTY = np.array([[True, False, True], [False, False, False]])
NOTHING = np.zeros((2, 3), dtype=bool)
"""Masks: none is its own transpose; the last two have rows that hide every key."""

# visible scores are −4e9, hidden ones +4e9; every product is exact
OUTBID_MASK = np.array([[True, True, False], [False, False, True]])
OUTBID = {
    "query": np.array([[2.0**33, 0.0, 0.0, 0.0], [-(2.0**33), 0.0, 0.0, 0.0]]),
    "key": np.array([[-1.0, 1.0, 2.0, 0.0], [-1.0, 0.0, 1.0, 3.0], [1.0, 5.0, 1.0, 1.0]]),
    "value": draw(4, 3, 2),
}
# scores near 1024, −1024 and 1; every product is exact, also in float32
LARGE = {
    "query": np.array([[2048.0, 0.0, 0.0, 0.0], [-2048.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]]),
    "key": np.array([[1024, 0, 3072, 512], [1025, 1024, 2048, 0], [1023, 2048, 512, 4096]]) / 1024,
    "value": draw(4, 3, 2),
}
# scores 1024, 0 and −1024, in both orders
SPREAD = {
    "query": np.array([[2048.0, 0.0, 0.0, 0.0], [0.0, 2048.0, 0.0, 0.0]]),
    "key": np.array([[1.0, -1.0, 3.0, 2.0], [0.0, 0.0, 1.0, 5.0], [-1.0, 1.0, 2.0, 0.0]]),
    "value": draw(4, 3, 2),
}


def arrays(n_q, n_k, d_k, d_v, *, leading=(), dtype="float64"):
    """Return query, key and value of these sizes, the same ones every time."""
    return {
        "query": draw(2, *leading, n_q, d_k).astype(dtype),
        "key": draw(3, *leading, n_k, d_k).astype(dtype),
        "value": draw(4, *leading, n_k, d_v).astype(dtype),
    }


def attention_stages(
    make: Callable, through: Callable, sizes: tuple, batches: tuple, *masked: tuple
) -> tuple[Stage, ...]:
    """Return the stages of any attention, whose arguments ``make(*sizes, leading, dtype)`` draws.

    `through` makes them of given query, key and value. Each batch is sizes and leading axes, each
    of `masked` a mask and sizes, of which the first are those of `RAGGED`.
    """
    hidden = tuple(Case(make(*sizes), {"mask": mask}) for mask, sizes in masked)
    return (
        Stage(tuple(Case(make(*some)) for some in sizes)),
        Stage(tuple(Case(make(*some, dtype="float32")) for some in sizes[:2])),
        Stage((Case(through(LARGE)),), errors=soft.LARGE_ERRORS),
        Stage((Case(through(SPREAD)),), errors=soft.SPREAD_ERRORS),
        Stage(
            tuple(Case(make(*some, leading=leading)) for some, leading in batches),
            may_raise="a batch (leading axes)",
        ),
        Stage(hidden, option="mask"),
        Stage((Case(through(OUTBID), {"mask": OUTBID_MASK}),), option="mask"),
        Stage((Case(hidden[0].arguments, {"mask": EMPTY}),), option="mask"),
        Stage((Case(hidden[0].arguments, {"mask": NOTHING}),), option="mask"),
    )


def option_stages(make: Callable) -> tuple[Stage, ...]:
    """Return the stages for a scale and a bias."""
    options = {"scale": 0.25, "bias": draw(5, 2, 3)}
    stages = tuple(Stage((Case(make(2, 3, 5, 7), {o: x}),), option=o) for o, x in options.items())
    return (*stages, Stage((Case(make(2, 3, 5, 7), {"scale": 0.0}),), option="scale"))


# in the last two batches .T fits by chance
BATCHES = (((2, 3, 5, 7), (11,)), ((3, 3, 3, 3), (3,)), ((5, 3, 3, 3), (3,)))
MASKED = ((RAGGED, (2, 3, 5, 7)), (FLIPPED, (3, 3, 2, 1)), (CAUSAL, (5, 5, 3, 2)))


def stages_of(make: Callable, through: Callable) -> tuple[Stage, ...]:
    """Return the stages of plain attention, and of its weights."""
    return (
        *attention_stages(make, through, SIZES, BATCHES, *MASKED),
        *option_stages(make),
        Stage(
            (Case(make(2, 3, 5, 7, leading=(11,)), {"mask": RAGGED}),),
            option="mask",
            may_raise="a batch (leading axes) with a mask",
        ),
    )
