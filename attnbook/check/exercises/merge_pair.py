"""The merge of one pair of tokens, the ways to get it wrong, and the check of it."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.signatures import signed_as
from attnbook.check.engine.steps import Case, Check, Stage, Values
from attnbook.check.engine.text import Text


@documented
def merge_pair(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the merge of a pair: each x that is followed by y becomes one new token with it.

    Runs `f` on lists with the pair at the beginning, in the middle and at the end, several times in
    a row, in repetitions such as "aaa", in the wrong order, and on one token and an empty list.

    Parameters
    ----------
    f : callable
        Called as ``f(ids, pair, new)``, by position, on a list of ints, a tuple (x, y) of ints and
        an int. It returns the ids after the merge as a list or an array. Pairs are found from left
        to right, and no token belongs to two of them.

    Examples
    --------
    >>> from attnbook import check
    >>> def my_merge(ids, pair, new):
    ...     out = []
    ...     for i in range(len(ids)):
    ...         is_pair = tuple(ids[i : i + 2]) == pair
    ...         out.append(new if is_pair else ids[i])
    ...     return out
    >>> check.merge_pair(my_merge).mistake
    'second token kept'
    """
    return run(MERGE_PAIR, f, time_limit)


def scan(s: Any, ids, pair, new):
    """Merge as the steps `s` say, from left to right."""
    if s.backwards:
        ids, pair = ids[::-1], pair[::-1]
    out, i, made = [*ids[: s.begin]], s.begin, 0
    while i < len(ids) + s.end:
        two = ids[i : i + 2]
        fits = len(two) == 2 and i + 2 <= len(ids) - s.behind and made != s.most_merges
        if fits and s.found(*two, tuple(pair)):
            out += s.put(pair, new, ids)
            i += s.go_on
            made += 1
        else:
            out.append(ids[i])
            i += 1
    return s.put_out(out[::-1] if s.backwards else out)


def merged(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """Return `ids` with `new` in place of each `pair`, found from left to right."""
    return scan(SimpleNamespace(**TEXT.steps), ids, pair, new)


def marked(ids, pair):
    return [here == tuple(pair) for here in itertools.pairwise(ids)] + [False]


def all_at_once(ids, pair, new, first):
    """Put `new` where a pair begins and drop where one ends; `first` says which of the two wins."""
    begins = marked(ids, pair)
    tokens = zip(ids, begins, [False, *begins[:-1]], strict=True)
    return [new if begin else x for x, begin, end in tokens if not end or (begin and first)]


def by_first_alone(ids, pair, new):
    out, i = [], 0
    while i < len(ids):
        out.append(new if ids[i] == pair[0] else ids[i])
        i += 2 if ids[i] == pair[0] else 1
    return out


def one_by_one(ids, pair, x_becomes, y_becomes):
    """Replace every x and every y by tokens or none, wherever it stands."""
    x, y = pair
    put = {y: y_becomes, x: x_becomes}
    return [i for token in ids for i in put.get(token, [token])]


def round_the_end(ids, pair, new, first_goes):
    """Merge the last token with the first one as well."""
    out, i = [], 0
    while i < len(ids):
        found = (ids[i], ids[(i + 1) % len(ids)]) == tuple(pair)
        out.append(new if found else ids[i])
        i += 2 if found else 1
    return out[1:] if first_goes and i > len(ids) and len(out) > 1 else out


def up_to_the_first(ids, pair, new):
    """Return the ids up to the first pair and the new token."""
    out = merged(ids, pair, new)
    begins = marked(ids, pair)
    return out[: begins.index(True) + 1] if any(begins) else out


def as_text(ids, pair, new):
    text = " ".join(map(str, ids)).replace(" ".join(map(str, pair)), str(new))
    return [int(number) for number in text.split()]


def holds_a_pair(returned):
    is_a_list = isinstance(returned, (list, tuple))
    return is_a_list and any(isinstance(x, (list, tuple)) for x in returned)


TEXT = Text(globals())

MERGE_MISTAKES = TEXT["merge mistakes"]
"""The ways to merge wrongly that learning and encoding can go wrong by as well."""


def listed(function: Callable, *shape: int) -> Callable:
    """Return `function` with a list of ints, or of tuples of them, as an array (n, *shape).

    The keys of a dict stand for a list of tuples.
    """

    def adapted(*given):
        result = function(*given)
        values = list(result) if shape and isinstance(result, dict) else result
        if not isinstance(values, (list, tuple)):
            return result
        if not values:
            return np.zeros((0, *shape), dtype=np.int64)
        try:
            array = np.array(values)
        except Exception:  # rows of several lengths, or anything else
            return result
        return array if array.dtype.kind in "iu" else result

    return signed_as(function, adapted)


def writes_the_same(case: Case, values: Values, again: Callable) -> str | None:
    """Look whether the ids, the new one written out as the pair, are those that were given."""
    ids, pair, new = case.arguments.values()
    out = [x for i in values[0].tolist() for x in (pair if i == new else [i])]
    if values[0].ndim != 1 or out == ids:
        return None
    return f"With {pair} written for each {new}, your ids must be {ids} again; they are {out}."


def _case(ids: Any, pair: Any, new: int = 256) -> Case:
    return Case({"ids": list(ids), "pair": tuple(pair), "new": new})


MERGE_PAIR = Check(
    name="merge_pair",
    parameters=("ids", "pair", "new"),
    results={"ids": "(n,)"},
    compute=lambda s, ids, pair, new: np.array(s.merge(s, ids, pair, new), dtype=np.int64),
    steps=TEXT.steps,
    stages=(
        Stage(
            (
                _case([5, 7], [5, 7], 300),
                _case([5, 7, 5], [5, 7], 258),
                _case([7, 5, 7, 7, 5, 5, 7, 3], [5, 7]),
                _case([5, 7, 5, 7, 5, 7, 9, 5, 7], [5, 7], 12),
                _case([3, 9, 5, 11, 7, 5], [5, 7]),
                _case(b"the then", b"th"),
            ),
            errors={IndexError: "beyond the end"},
        ),
        Stage(tuple(_case([*[3] * n, 8, *[3] * m], [3, 3]) for n, m in ((2, 1), (3, 4), (5, 2)))),
        Stage((_case([112, 3, 12, 31, 12, 3, 12, 13], [12, 3]),)),
        Stage(
            tuple(_case(ids, [5, 7]) for ids in ([], [5], [7], [3], [7, 3, 5], [7, 5], [7, 5, 5])),
            errors={IndexError: "beyond the end"},
        ),
    ),
    mistakes=MERGE_MISTAKES + TEXT.mistakes,
    properties=(writes_the_same,),
    adapt=listed,
    kind="integral",
    any_length=True,
)
