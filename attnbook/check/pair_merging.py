"""The merge of one pair of tokens, the ways to get it wrong, and the check of it."""

import itertools
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.signatures import signed_as
from attnbook.check.steps import Case, Check, Stage, Values, each


@documented
def merge_pair(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the merge of a pair: each x with y behind it becomes one new token.

    Runs `f` on lists with the pair at the beginning, in the middle and at the end, side by side, in
    runs of one token such as "aaa", in the wrong order, and on lists of one token and of none.

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


MERGE_STEPS: dict[str, Any] = {
    "merge": scan,
    "backwards": False,
    "begin": 0,
    "end": 0,
    "behind": 0,  # how many tokens at the end are in no pair
    "most_merges": -1,
    "found": lambda x, y, pair: (x, y) == pair,
    "put": lambda pair, new, ids: [new],
    "go_on": 2,
    "put_out": lambda out: out,
}


def merged(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """Return `ids` with `new` in place of each `pair`, found from left to right."""
    return scan(SimpleNamespace(**MERGE_STEPS), ids, pair, new)


def _marked(ids, pair):
    return [here == tuple(pair) for here in itertools.pairwise(ids)] + [False]


def _all_at_once(s, ids, pair, new, first=True):
    """Put `new` where a pair begins and drop where one ends; `first` says which of the two wins."""
    begins = _marked(ids, pair)
    places = zip(ids, begins, [False, *begins[:-1]], strict=True)
    return [new if begin else x for x, begin, end in places if not end or (begin and first)]


def _by_first_alone(s, ids, pair, new):
    out, i = [], 0
    while i < len(ids):
        out.append(new if ids[i] == pair[0] else ids[i])
        i += 2 if ids[i] == pair[0] else 1
    return out


def _one_by_one(x_becomes: Callable, y_becomes: Callable) -> Callable:
    """Return what replaces every x and every y by one token or none, wherever it stands."""

    def merge(s, ids, pair, new):
        x, y = pair
        put = {y: y_becomes(y, new), x: x_becomes(x, new)}
        return [i for token in ids for i in put.get(token, [token])]

    return merge


def _kept(token, new):
    return [token]


def _gone(token, new):
    return []


def _replaced(token, new):
    return [new]


def _round_the_end(first_goes: bool) -> Callable:
    """Return what merges the last token with the first one as well."""

    def merge(s, ids, pair, new):
        out, i = [], 0
        while i < len(ids):
            found = (ids[i], ids[(i + 1) % len(ids)]) == tuple(pair)
            out.append(new if found else ids[i])
            i += 2 if found else 1
        return out[1:] if first_goes and i > len(ids) and len(out) > 1 else out

    return merge


def _up_to_the_first(s, ids, pair, new):
    """Return the ids up to the first pair and the new token."""
    out = merged(ids, pair, new)
    places = [i for i, found in enumerate(_marked(ids, pair)) if found]
    return out[: places[0] + 1] if places else out


def _as_text(s, ids, pair, new):
    text = " ".join(map(str, ids)).replace(" ".join(map(str, pair)), str(new))
    return [int(number) for number in text.split()]


def _holds_a_pair(returned):
    is_a_list = isinstance(returned, (list, tuple))
    return is_a_list and any(isinstance(x, (list, tuple)) for x in returned)


MERGE_MISTAKES = mistakes(
    """
    overlaps merged twice: In "aaa" you find the pair (a, a) twice, and the token in the middle
        belongs to both. After a merge go on behind the pair: "aaa" becomes (aa, a).
    first pair alone: You merge one pair and leave the others. Each place where x stands before y
        is merged.
    right to left: You merge from the right: "aaa" becomes (a, aa). Everybody else merges from the
        left, (aa, a), and the same text must give the same tokens.
    last pair left: A pair at the very end is not merged. Your loop ends one place too early.
    last token lost: The last token is gone where it belongs to no pair: your loop ends before it.
        The last token has no neighbour to compare with, and is appended all the same.
    second token kept: You put the new token in and keep the second one of the pair: "ab" becomes
        (ab, b). Go on two places further after a merge.
    either order: You merge y before x as well. The tokens "ab" and "ba" are two: order counts.
    first token alone compared: You merge wherever x stands, whatever comes behind it. Both tokens
        must be those of the pair.
    second token alone compared: You merge wherever y comes next, whatever stands before it. Both
        tokens must be those of the pair.
    first pair left: A pair at the very beginning is not merged. Begin at place 0.
    """,
    {
        "overlaps merged twice": each("merge", _all_at_once, partial(_all_at_once, first=False)),
        "first pair alone": {"most_merges": 1},
        "right to left": {"backwards": True},
        "last pair left": {"behind": 1},
        "last token lost": {"end": -1},
        "second token kept": {"go_on": 1},
        "either order": (
            {"found": lambda x, y, p: (x, y) in (p, p[::-1])},
            {"merge": lambda s, i, p, n: merged(merged(i, p, n), p[::-1], n)},
        ),
        "first token alone compared": (
            {"merge": _by_first_alone},
            *each("found", lambda x, y, p: x == p[0], lambda x, y, p: x == p[0] or y == p[1]),
        ),
        "second token alone compared": each("found", lambda x, y, p: y == p[1]),
        "first pair left": {"begin": 1},
    },
)
"""The ways to merge wrongly that learning and encoding can go wrong by as well."""

_MISTAKES = mistakes(
    """
    ids as text: You write the ids as one text and replace in it, so that 12 is found in 112.
        Compare whole ids, or put a border around each.
    first token kept: You keep the first token of the pair before the new one. Both go.
    order lost: Your ids come sorted, in reverse, or each once only. What belongs to no pair stays
        where it is.
    condition reversed: You merge the neighbours that are no pair. Turn the comparison round.
    new token left out: The pair is taken out, and nothing is put in its place.
    new token at the end: You append the new token at the end. It belongs where the pair stood.
    new token twice: You put the new token in for each token of the pair. Two tokens become one.
    skips the token behind: After a merge you leave out the token behind the pair. A merge uses up
        two tokens, not three.
    pair in reverse: You look for y before x. The pair is (x, y), in this order.
    first token replaced alone: You put the new token for each x, and keep what stands behind.
    steps of two: You look at places 0, 2, 4 alone. After what is no pair go on by one.
    own id for the new token: You make up an id for the new token. It is given: `new`.
    last pair alone: You merge the last pair and leave the others. Each is merged.
    pair returned: You return the pair that was merged. Return all the ids.
    nothing merged: You return the ids as they came. Is the result of the merge thrown away?
    pair as one token: Your list holds a tuple, or a list. Put `new` where the pair stood.
    beyond the end: You look at the token behind the last one. The last token has no neighbour.
    pair kept: You put the new token in and keep both tokens of the pair. They go.
    tokens replaced one by one: You replace every y, or every x and every y, or take them out,
        wherever they stand. Only an x with y behind it is replaced, and the two together.
    others left out: You return the new tokens alone, or leave out what stands behind the first
        pair. All other tokens stay.
    round the end: You compare the last token with the first one. The last token has no neighbour.
    old token for the new one: You put a token of the pair where `new` belongs.
    any two of the pair: You merge any two neighbours that both occur in the pair, such as x and x.
        It is x that must stand first, and y behind it.
    pair sorted: You sort the pair, or the two neighbours, before you compare. Which of them stands
        first counts: (x, y) and (y, x) are two pairs.
    """,
    {
        "ids as text": each("merge", _as_text),
        "first token kept": each("put", lambda p, n, i: [p[0], n]),
        "pair kept": each(
            "put",
            lambda p, n, i: [*p, n],
            lambda p, n, i: [n, *p],
            lambda p, n, i: [p[0], n, p[1]],
        ),
        "tokens replaced one by one": each(
            "merge",
            _one_by_one(_replaced, _replaced),
            _one_by_one(_kept, _replaced),
            _one_by_one(_replaced, _gone),
            _one_by_one(_gone, _replaced),
            _one_by_one(_gone, _gone),
        ),
        "order lost": each(
            "put_out",
            sorted,
            lambda ids: ids[::-1],
            lambda ids: list(dict.fromkeys(ids)),
            lambda ids: sorted(set(ids)),
        ),
        "others left out": each(
            "merge", lambda s, i, p, n: [x for x in merged(i, p, n) if x == n], _up_to_the_first
        ),
        "round the end": each("merge", _round_the_end(False), _round_the_end(True)),
        "old token for the new one": each("put", lambda p, n, i: p[:1], lambda p, n, i: p[1:]),
        "any two of the pair": each("found", lambda x, y, p: x in p and y in p),
        "pair sorted": each(
            "found",
            lambda x, y, p: (x, y) == tuple(sorted(p)),
            lambda x, y, p: (min(x, y), max(x, y)) == p,
        ),
        "condition reversed": each("found", lambda x, y, p: (x, y) != p),
        "new token left out": each("put", lambda p, n, i: []),
        "new token at the end": tuple(
            {
                "put": lambda p, n, i: [],
                "merge": lambda s, i, p, n, of=of: scan(s, i, p, n) + [n] * of(i, p, n),
            }
            for of in (
                lambda i, p, n: len(i) - len(merged(i, p, n)),
                lambda i, p, n: any(_marked(i, p)),
            )
        ),
        "new token twice": each("put", lambda p, n, i: [n, n]),
        "skips the token behind": {"go_on": 3},
        "pair in reverse": each("found", lambda x, y, p: (y, x) == p),
        "first token replaced alone": each(
            "merge", lambda s, i, p, n: [n if x == p[0] else x for x in i]
        ),
        "steps of two": each(
            "merge",
            lambda s, i, p, n: [
                x
                for k in range(0, len(i), 2)
                for x in ([n] if tuple(i[k : k + 2]) == tuple(p) else i[k : k + 2])
            ],
        ),
        "own id for the new token": each(
            "put",
            lambda p, n, i: [max(i, default=0) + 1],
            lambda p, n, i: [n + 1],
            lambda p, n, i: [n - 1],
            lambda p, n, i: [256],
            lambda p, n, i: [len(i)],
            lambda p, n, i: [p[0] + p[1]],
        ),
        "last pair alone": {"backwards": True, "most_merges": 1},
        "pair returned": each("merge", lambda s, i, p, n: list(p)),
        "nothing merged": each("merge", lambda s, i, p, n: i),
    },
    {"pair as one token": _holds_a_pair},
)


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
    steps=MERGE_STEPS,
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
    mistakes=MERGE_MISTAKES + _MISTAKES,
    properties=(writes_the_same,),
    adapt=listed,
    kind="integral",
    any_length=True,
)
