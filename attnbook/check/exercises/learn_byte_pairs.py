"""The learning of byte pairs in steps, the ways to get each wrong, and the check of it."""

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, run
from attnbook.check.engine.steps import Case, Check, Stage, Values
from attnbook.check.engine.text import Text
from attnbook.check.exercises.encode_byte_pairs import BYTE_MISTAKES
from attnbook.check.exercises.merge_pair import MERGE_MISTAKES, listed, merged
from attnbook.check.shared.toy_models import LONGEST, TooLong


@documented
def learn_byte_pairs(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the learning of byte pairs: in each step, the most frequent pair becomes a token.

    Runs `f` on words that occur once and several times, with repeated letters, with letters of two
    or more bytes, with pairs that occur equally often, and with a larger number of merges than
    there are pairs that occur twice.

    Parameters
    ----------
    f : callable
        Called as ``f(words, n_merges)``, by position, on a list of str, which contains a word as
        often as it occurs, and an int. It returns the pairs of ids (x, y) that are merged, in their
        order, as a list or as the keys of a dict. The ids of the bytes are 0 to 255, and merge i
        makes the id 256 + i. Pairs are counted within words, "aaa" contains (a, a) twice, and if
        pairs occur equally often, the smaller one comes first. There are fewer merges if no pair
        occurs twice.

    Examples
    --------
    >>> from collections import Counter
    >>> from itertools import pairwise
    >>> from attnbook import check
    >>> def my_learn(words, n_merges):
    ...     pairs = Counter(pair for word in words for pair in pairwise(word.encode()))
    ...     return [pair for pair, _ in pairs.most_common(n_merges)]
    >>> check.learn_byte_pairs(my_learn).mistake
    'nothing merged'
    """
    return run(LEARN_BYTE_PAIRS, f, time_limit)


def count_pairs(sequences: list[list[int]]) -> Counter:
    """Return how often each pair of neighbours occurs, overlaps included."""
    return Counter(pair for ids in sequences for pair in itertools.pairwise(ids))


def count_apart(sequences):
    """Count pairs that do not overlap, from left to right."""
    counts: Counter = Counter()
    for ids in sequences:
        for pair in set(itertools.pairwise(ids)):
            counts[pair] += len(ids) - len(merged(ids, pair, -1))
    return counts


def most_frequent(counts, merges):
    return min(counts, key=lambda pair: (-counts[pair], pair))


def by_spelling(counts, merges, choose):
    """Return of the most frequent pairs the one whose bytes come last, or first."""
    tokens = [bytes([i]) for i in range(256)]
    for x, y in merges:
        tokens.append(tokens[x] + tokens[y])
    top = max(counts.values())
    best = [pair for pair, n in counts.items() if n == top]
    return choose(best, key=lambda pair: [tokens[i] for i in pair])


def fresh(counts, merges):
    """Return the counts of the pairs that were not taken before."""
    return {pair: n for pair, n in counts.items() if pair not in merges} or counts


def learn(s: Any, words: list[str], n_merges: int) -> np.ndarray:
    """Return the merges that the steps `s` learn, shape (m, 2)."""
    sequences = [s.bytes(word) for word in s.words(words)]
    merges: list[tuple[int, int]] = []
    while len(merges) < s.most(n_merges) and (counts := s.count(sequences)):
        pair = s.pick(counts, merges)
        if counts[pair] < s.least():
            break
        if len(merges) > LONGEST:  # two mistakes together may never end
            raise TooLong
        new = s.new(len(merges))
        merge = functools.partial(s.merge, s, pair=pair, new=new)
        sequences = s.everywhere(sequences, merge)
        merges.append(pair)
    rows = s.result(merges)
    return np.array(rows, dtype=np.int64) if rows else np.zeros((0, 2), dtype=np.int64)


TEXT = Text(globals())


def takes_the_most_frequent(case: Case, values: Values, again: Callable) -> str | None:
    """Look for the first merge of a pair that occurs less often than another."""
    if values[0].ndim != 2 or values[0].shape[1] != 2:
        return None
    sequences = [list(word.encode()) for word in case.arguments["words"]]
    for i, (x, y) in enumerate(values[0].tolist()):
        counts = count_pairs(sequences)
        best = most_frequent(counts, []) if counts else None
        if best is None or counts[x, y] < counts[best]:
            there = f"and {best} {counts[best]} times" if best else "and no pair is left"
            return f"Your pair {i}, {(x, y)}, occurs {counts[x, y]} times there, {there}."
        sequences = [merged(ids, (x, y), 256 + i) for ids in sequences]
    return None


def _case(text: str, n_merges: int) -> Case:
    return Case({"words": text.split(), "n_merges": n_merges})


LEARN_BYTE_PAIRS = Check(
    name="learn_byte_pairs",
    parameters=("words", "n_merges"),
    results={"merges": "(m, 2)"},
    compute=learn,
    steps=TEXT.steps,
    stages=(
        Stage(
            (
                _case("cat bat", 2),
                _case("low low low lower new new", 2),
                _case("the then the they other", 4),
                _case("The the THE The then", 3),
                _case("ba ab dc cd ba ab dc cd", 3),
                _case("hello yellow mellow fellow ellow low", 6),
                _case("ab ab ab abz abz qr qr", 2),
            )
        ),
        Stage(
            (
                _case("aaa bc bc", 3),
                _case("aaa baaaab aaaaa aab", 3),
                _case("nananana banana ananas ana", 4),
            )
        ),
        Stage((_case("é née été fée né", 3), _case("😀😀 😁 x😀 x😁", 5))),
        Stage(
            (
                _case("ab cd ab", 5),
                _case("the thin thing then this", 9),
                _case("aa", 3),
                _case("a b", 2),
                _case("", 3),
                _case("ab ab", 0),
                _case("axb ayb", 2),
            ),
            errors=dict.fromkeys((ValueError, IndexError, KeyError, TypeError), "no pair left"),
        ),
    ),
    mistakes=TEXT.mistakes + MERGE_MISTAKES + BYTE_MISTAKES,
    properties=(takes_the_most_frequent,),
    adapt=lambda function: listed(function, 2),
    kind="integral",
    any_length=True,
)
