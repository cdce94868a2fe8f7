"""The check of attention over buckets: a mask made of signatures."""

from collections.abc import Callable

import numpy as np

import attnbook
from attnbook.check.engine import steps
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values
from attnbook.check.engine.symmetries import moved
from attnbook.check.engine.text import Text
from attnbook.check.exercises import attention_weights as w
from attnbook.check.exercises.attention import ATTENTION_MISTAKES, attention_from_steps
from attnbook.check.shared import attention_cases as cases


@documented
def sketch_attention(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check attention over the keys that share a bucket with the query in at least one table.

    Key j is a candidate of query i where query_signatures[i, t] == key_signatures[j, t] in one
    table t or more. The output of a query is softmax(q · k/√d) over its candidates, each counted
    once, times their values; a query without candidates gets zeros. Runs `f` on a square, on one
    query, one key and one table, on sizes that are all different primes, on keys that are found
    in several tables, on queries that find nothing, on scores of ±1000, in float64 and float32,
    and on signatures that need all bits of an int64.

    Parameters
    ----------
    f : callable
        Called as ``f(query, key, value, query_signatures, key_signatures)``, by position, on
        arrays (n_q, d), (n_k, d) and (n_k, d_v) of floats and (n_q, n_tables) and (n_k, n_tables)
        of int64. It returns the output alone, of shape (n_q, d_v).

    Examples
    --------
    >>> from attnbook import attention, check
    >>> def my_sketch(query, key, value, query_signatures, key_signatures):
    ...     meets = query_signatures[:, None, :] == key_signatures[None, :, :]
    ...     return attention(query, key, value, meets.all(axis=-1))
    >>> check.sketch_attention(my_sketch).mistake
    'every table'
    """
    return run(SKETCH_ATTENTION, f, time_limit)


def candidates(query_signatures, key_signatures):
    return np.any(query_signatures[:, np.newaxis] == key_signatures, axis=-1)


def sketch_from_steps(s, query, key, value, query_signatures, key_signatures):
    """Return the output by the steps `s`."""
    meets = s.meets(s.signatures(query_signatures), s.signatures(key_signatures))
    return s.rows(s.combine(s, meets, query, key, value), meets)


def counted(s, meets, *arrays):
    """Count a key once in each table where it is found: t copies of exp(s) are exp(s + log t)."""
    counts = np.sum(meets, axis=-1)
    return attention_from_steps(s, *arrays, mask=counts > 0, bias=np.log(np.maximum(counts, 1)))


def in_each_table(s, meets, *arrays):
    """Return the outputs of one softmax a table, (n_tables, n_q, d_v)."""
    masks = np.moveaxis(meets, -1, 0)
    return np.stack([attention_from_steps(s, *arrays, mask=mask) for mask in masks])


def at_least_1(counts):
    return np.maximum(counts, 1)[:, np.newaxis]


def late(powers, mask, guard):
    """Return the weights of the exponentials of all keys, of which some are hidden afterwards."""
    total = guard(np.sum(powers * mask, axis=-1, keepdims=True))
    return np.where(np.any(mask, axis=-1, keepdims=True), powers * mask / total, 0)


TEXT = Text(globals())

_TEXTS = TEXT.sentences
_NAMES = {
    "mask inverted": "candidates inverted",
    "mask ignored": "buckets ignored",
    "mask multiplies the scores": "score 0 for the others",
    "mask after the softmax": "softmax over all keys",
    "mask after the exponential": "maximum over all keys",
    "maximum of the whole array": "maximum over all keys",
    "maximum over the wrong axis": "maximum over all keys",
    "empty row NaN": "query without candidates",
    "mask with a large negative number": "empty row uniform",
    "empty row uniform": "empty row uniform",
    "empty row sees everything": "empty row sees everything",
    "mean of the values": "mean of the candidates",
    "hard look-up": "best candidate alone",
    "not normalised": "unnormalised",
}
"""What the mistakes of attention with a mask are called where the mask is made of buckets."""

_OF_ATTENTION = steps.renamed(
    steps.without(
        ATTENTION_MISTAKES, "np.dot on a batch", *(mistake.name for mistake in w.BATCH_MISTAKES)
    ),
    {old: (new, _TEXTS[new]) for old, new in _NAMES.items()},
)


_FIRST = ("+∞ or NaN for hidden scores", "query without candidates", "empty row sees everything")
SKETCH_MISTAKES = (
    *TEXT["of tables"],
    *steps.only(_OF_ATTENTION, *_FIRST),  # before those of a maximum, which make NaN of them too
    *steps.without(_OF_ATTENTION, *_FIRST),
    *steps.only(TEXT["texts"], "maximum over all keys"),
)


def _outputs_between_candidates(case: Case, values: Values, again: Callable) -> str | None:
    *_, value, of_queries, of_keys = case.arguments.values()
    for output, found in zip(values[0], candidates(of_queries, of_keys), strict=True):
        there = value[found]
        if len(there) == 0 or output.shape != there.shape[1:]:
            continue
        if np.any(output < there.min(axis=0) - 1e-5) or np.any(output > there.max(axis=0) + 1e-5):
            return (
                "Each output is a weighted mean of the candidates' values and lies between the "
                "smallest and the largest of its column; here one lies outside."
            )
    return None


def _nothing_found_is_zero(case: Case, values: Values, again: Callable) -> str | None:
    *_, of_queries, of_keys = case.arguments.values()
    lost = ~np.any(candidates(of_queries, of_keys), axis=-1)
    if values[0].shape[:1] != lost.shape or not np.any(values[0][lost]):
        return None
    return "A query that shares no bucket with any key must get zeros; here it gets something else."


def _reversed(axis: int, *names: str) -> Callable:
    return lambda given: {name: np.flip(given[name], axis=axis) for name in names}


def _unseen_by_the_first(given: dict) -> dict:
    """Return other keys and values where query 0 does not find them."""
    meets = candidates(given["query_signatures"], given["key_signatures"])
    return {name: given[name] + ~meets[0][:, np.newaxis] for name in ("key", "value")}


_PROPERTIES = (
    _nothing_found_is_zero,
    moved(
        _unseen_by_the_first,
        lambda output, other: np.isclose(output, other)[0],
        "Changing keys that share no bucket with a query must not change its output; here the "
        "output changes.",
    ),
    moved(
        _reversed(0, "key", "value", "key_signatures"),
        np.isclose,
        "Reversing the order of keys, values and their signatures together must change nothing; "
        "here it changes the output.",
    ),
    moved(
        _reversed(1, "query_signatures", "key_signatures"),
        np.isclose,
        "Reversing the order of the tables must change nothing; here it changes the output.",
    ),
    _outputs_between_candidates,
)


def _case(sizes: tuple[int, ...], signatures: tuple[list, list], dtype: str = "float64") -> Case:
    return _signed(cases.arrays(*sizes, dtype=dtype), signatures)


def _signed(arrays: dict, signatures: tuple[list, list]) -> Case:
    names = ("query_signatures", "key_signatures")
    return Case({**arrays, **dict(zip(names, map(np.array, signatures), strict=True))})


# every query finds a key; one in two tables, one in the first alone, one in the last alone
_SQUARE = ([[1, 2, 3], [4, 1, 5], [1, -6, 7]], [[1, 2, 0], [4, 3, 7], [13, -6, 3]])
_WIDE = ([[5, 0], [-3, 2]], [[5, 1], [0, 2], [5, 0], [-3, 5], [2, 2], [-3, 2], [1, 0]])
_TALL = ([[1, 4, 2], [3, 0, 0], [3, 4, 1], [0, 9, 2], [1, 5, 6]], [[1, 4, 2], [3, 5, 2]])
_ONE_TABLE = ([[7], [-1], [3]], [[-1], [7], [3], [7], [-1]])
_EMPTY = ([[1, 2], [8, 9], [3, 4]], [[1, 0], [3, 2], [5, 4], [1, 2], [2, 1]])
_BIG = 2**62
_BITS = (
    [[_BIG, 5], [-_BIG + 1, 2**33 + 7], [2**40 + 3, _BIG - 2]],
    [
        *([_BIG, 7], [_BIG - 1, 2**34 + 5], [-_BIG, 2**33 + 7], [-_BIG + 1, 5]),
        *([3, _BIG - 2], [2**40 + 2, _BIG - 3], [2**41 + 3, 7]),
    ],
)
"""Signatures that are equal in 8, 16, 24, 32 or 53 bits, and not in 64."""

_OF_NOTHING = (ValueError, ZeroDivisionError, IndexError, RuntimeError)
"""What a largest score of no scores, or a division by their sum, raises in one library or other."""

SKETCH_ATTENTION = Check(
    name="sketch_attention",
    parameters=("query", "key", "value", "query_signatures", "key_signatures"),
    results={"output": "(n_q, d_v)"},
    reference=lambda query, key, value, *signatures: attnbook.attention(
        query, key, value, candidates(*signatures)
    ),
    compute=sketch_from_steps,
    steps=TEXT.steps,
    variants=TEXT.variants,
    stages=(
        Stage(
            (
                _case((3, 3, 3, 3), _SQUARE),
                _case((2, 7, 3, 5), _WIDE),
                _case((5, 2, 7, 3), _TALL),
                _case((3, 5, 2, 7), _ONE_TABLE),
                _case((1, 1, 5, 2), ([[4, 2]], [[3, 2]])),
                _case((3, 3, 5, 2), _SQUARE),
            )
        ),
        Stage((_case((3, 3, 3, 3), _SQUARE, "float32"), _case((2, 7, 3, 5), _WIDE, "float32"))),
        Stage(
            (_case((3, 5, 2, 7), _EMPTY), _case((1, 2, 3, 2), ([[1]], [[2], [0]]))),
            errors=dict.fromkeys(_OF_NOTHING, "query without candidates"),
        ),
        Stage((_signed(cases.LARGE, _SQUARE),), errors={OverflowError: "no maximum"}),
        Stage(
            # the candidates are those with the lowest scores
            (_signed(cases.SPREAD, ([[1, 2], [3, 4]], [[0, 4], [3, 2], [1, 2]])),),
            errors={ZeroDivisionError: "maximum over all keys"},
        ),
        Stage((_case((3, 7, 5, 3), _BITS),)),
    ),
    mistakes=SKETCH_MISTAKES,
    properties=_PROPERTIES,
)
