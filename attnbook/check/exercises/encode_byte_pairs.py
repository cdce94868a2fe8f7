"""Encoding a word by byte pairs in steps, the ways to get each wrong, and the check of it."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values
from attnbook.check.engine.text import Text
from attnbook.check.exercises.merge_pair import MERGE_MISTAKES, listed
from attnbook.check.shared.toy_models import LONGEST, TooLong


@documented
def encode_byte_pairs(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the encoding of a word: its bytes, joined by the merges in the order of their rank.

    Runs `f` on words in which an early merge takes a letter away from a later one, on repeated
    letters, on letters of several bytes, on one letter and on the empty word, and without merges.

    Parameters
    ----------
    f : callable
        Called as ``f(word, merges)``, by position, on a str and a list of pairs of ints in the
        order in which they were learned. The ids 0 to 255 are the bytes, and ``merges[i]`` makes
        the id 256 + i. It returns the ids of the word as a list or an array.

    Examples
    --------
    >>> from attnbook import check
    >>> def my_encode(word, merges):
    ...     ids = []
    ...     for byte in word.encode():
    ...         ids.append(byte)
    ...         while tuple(ids[-2:]) in merges:
    ...             ids[-2:] = [256 + merges.index(tuple(ids[-2:]))]
    ...     return ids
    >>> check.encode_byte_pairs(my_encode).mistake
    'left to right'
    """
    return run(ENCODE_BYTE_PAIRS, f, time_limit)


Pair = tuple[int, int]


def in_turn(s, ids, merges, ranks):
    """Go through the merges of these ranks once, each everywhere."""
    for i in ranks:
        ids = s.merge(s, ids, merges[i], s.new(i))
    return ids


def picked(s, ids, merges, pick):
    """Join the pair that `pick` takes of those there are, again and again."""
    for _ in range(LONGEST):
        pairs = [pair for pair in itertools.pairwise(ids) if pair in merges]
        if not pairs:
            return ids
        pair = pick(pairs)
        ids = s.merge(s, ids, pair, s.new(merges.index(pair)))
    raise TooLong  # two mistakes together may never end


def first_found(s, ids, merges):
    """Join the first neighbours that are a pair of any rank, and look again from the beginning."""
    for _ in range(LONGEST):
        places = [at for at, pair in enumerate(itertools.pairwise(ids)) if pair in merges]
        if not places:
            return ids
        at = places[0]
        ids = [*ids[:at], s.new(merges.index((ids[at], ids[at + 1]))), *ids[at + 2 :]]
    raise TooLong


def one_walk(s, ids, merges):
    """Walk once from left to right and join what is a pair, not looking at what was joined."""
    out, i = [], 0
    while i < len(ids):
        is_pair = tuple(ids[i : i + 2]) in merges
        out.append(s.new(merges.index(tuple(ids[i : i + 2]))) if is_pair else ids[i])
        i += 2 if is_pair else 1
    return out


def swept(s, ids, merges):
    """Join what is a pair of any rank in walks from left to right, until one finds none."""
    for _ in range(LONGEST):
        before, ids = ids, one_walk(s, ids, merges)
        if ids == before:
            return ids
    raise TooLong


def stacked(s, ids, merges):
    """Join each byte to what stands before it for as long as there is a merge."""
    out: list[int] = []
    for x in ids:
        out.append(x)
        while tuple(out[-2:]) in merges:
            out[-2:] = [s.new(merges.index(tuple(out[-2:])))]
    return out


def longest(s, ids, merges):
    """Cut the longest token off, again and again, as WordPiece does."""
    tokens = [(x,) for x in range(256)]
    for x, y in merges:
        tokens.append(tokens[x] + tokens[y])
    known = {token: i for i, token in reversed(list(enumerate(tokens)))}
    out, i = [], 0
    while i < len(ids):
        size = max(n for n in range(1, len(ids) - i + 1) if tuple(ids[i : i + n]) in known)
        token = known[tuple(ids[i : i + size])]
        out.append(token if token < 256 else s.new(token - 256))
        i += size
    return out


def encode(s: Any, word: str, merges: list[Pair]) -> np.ndarray:
    """Return the ids that the steps `s` make of `word`."""
    return np.array(s.result(s.join(s, s.bytes(word), merges), word), dtype=np.int64)


def writes_text(returned: Any) -> bool:
    """Tell whether tokens were returned as bytes or letters, alone or in pairs."""
    rows = returned if isinstance(returned, (list, tuple, dict)) else []
    parts = (x for row in rows for x in (row if isinstance(row, (list, tuple)) else [row]))
    return any(isinstance(x, (str, bytes)) for x in parts)


TEXT = Text(globals())

BYTE_MISTAKES = TEXT["byte mistakes"]


def spells_the_word(case: Case, values: Values, again: Callable) -> str | None:
    """Look whether the bytes of the tokens, one after the other, are those of the word."""
    word, merges = case.arguments["word"], case.arguments["merges"]
    tokens = [bytes([i]) for i in range(256)]
    for x, y in merges:
        tokens.append(tokens[x] + tokens[y])
    ids = values[0]
    if ids.ndim != 1:
        return None
    if ids.size and (ids.min() < 0 or ids.max() >= len(tokens)):
        return f"The ids must be from 0 to {len(tokens) - 1}; one of yours is {max(ids, key=abs)}."
    spelled = b"".join(tokens[i] for i in ids)
    if spelled == word.encode():
        return None
    return f"Your tokens spell {spelled!r}; the word is {word.encode()!r}."


def _pairs(*names: str) -> list[Pair]:
    """Return merges of tokens written as "th e"; each is a byte or was made before."""
    ids = {chr(i): i for i in range(128)}
    pairs = []
    for i, name in enumerate(names):
        x, y = name.split()
        pairs.append((ids[x], ids[y]))
        ids[x + y] = 256 + i
    return pairs


_THE = _pairs("t h", "h e", "th e", "e n", "the n", "i n", "o t", "the r", "e r")
_NA = _pairs("n a", "a n", "na na", "an a", "b an", "a a", "aa a")
_CROSSED = _pairs("c d", "b c", "a b", "d e", "ab cd", "a bc", "cd e")
_TWO_BYTES = [(195, 169), (110, 256), (101, 256), (240, 159), (259, 152), (260, 128), (233, 233)]


def _cases(merges: list[Pair], words: str) -> tuple[Case, ...]:
    return tuple(Case({"word": word, "merges": merges}) for word in words.split())


_AT_THE_END = (
    *_cases(_THE, "the then hto"),
    *_cases(_TWO_BYTES, "é né 😀"),
    Case({"word": "xyz", "merges": _THE}),
    Case({"word": "the", "merges": []}),
    Case({"word": "t", "merges": _THE}),
    Case({"word": "", "merges": _THE}),
)

ENCODE_BYTE_PAIRS = Check(
    name="encode_byte_pairs",
    parameters=("word", "merges"),
    results={"ids": "(n,)"},
    compute=encode,
    steps=TEXT.steps,
    stages=(
        Stage(
            _cases(_THE, "Then THE thy other hen thin thethe within lathe thens")
            + _cases(_CROSSED, "bcd abca abcde babcd abcabcd cdbcde abab")
        ),
        Stage(_cases(_NA, "banana nanab ananas aaaa aaab aaaaa anaanan bananaana")),
        Stage(_cases(_TWO_BYTES, "née éa été 😀a éé e😀é")),
        Stage(
            _AT_THE_END,
            errors=dict.fromkeys((ValueError, IndexError, KeyError, TypeError), "no pair left"),
        ),
    ),
    mistakes=TEXT.mistakes + MERGE_MISTAKES + BYTE_MISTAKES,
    properties=(spells_the_word,),
    adapt=listed,
    kind="integral",
    any_length=True,
)
