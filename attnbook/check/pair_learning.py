"""The learning of byte pairs in steps, the ways to get each wrong, and the check of it."""

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.engine import documented, run
from attnbook.check.pair_encoding import BYTE_MISTAKES, ONE_ID, OTHER_IDS, writes_text
from attnbook.check.pair_merging import MERGE_MISTAKES, MERGE_STEPS, listed, merged
from attnbook.check.report import Report
from attnbook.check.sentences import mistakes
from attnbook.check.steps import Case, Check, Stage, Values, Way, each
from attnbook.check.toys import LONGEST, TooLong


@documented
def learn_byte_pairs(f: Callable, *, time_limit: float = 10.0) -> Report:
    """Check the learning of byte pairs: the most frequent pair becomes a token, again and again.

    Runs `f` on words that occur once and several times, with runs of one letter, with letters of
    two bytes and more, with pairs that occur equally often, and with more merges asked for than
    there are pairs that occur twice.

    Parameters
    ----------
    f : callable
        Called as ``f(words, n_merges)``, by position, on a list of str, in which a word stands as
        often as it occurs, and an int. It returns the pairs of ids (x, y) that are merged, in their
        order, as a list or as the keys of a dict. The ids of the bytes are 0 to 255, and merge
        number i makes the id 256 + i. Pairs are counted within the words, "aaa" holds (a, a) twice,
        and of pairs that occur equally often the smaller one comes first. It ends early where no
        pair occurs twice.

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


def _apart(sequences):
    """Count pairs that do not overlap, from left to right."""
    counts: Counter = Counter()
    for ids in sequences:
        for pair in set(itertools.pairwise(ids)):
            counts[pair] += len(ids) - len(merged(ids, pair, -1))
    return counts


def _pick(counts, merges):
    return min(counts, key=lambda pair: (-counts[pair], pair))


def _first_met(counts, merges):
    return max(counts, key=counts.get)


def _last_met(counts, merges):
    return max(reversed(counts), key=counts.get)


def _largest(counts, merges):
    return max(counts, key=lambda pair: (counts[pair], pair))


def _by_spelling(largest: bool) -> Callable:
    """Return what picks of the most frequent pairs the one whose bytes come last, or first."""

    def pick(counts, merges):
        tokens = [bytes([i]) for i in range(256)]
        for x, y in merges:
            tokens.append(tokens[x] + tokens[y])
        top = max(counts.values())
        best = [pair for pair, n in counts.items() if n == top]
        return (max if largest else min)(best, key=lambda pair: [tokens[i] for i in pair])

    return pick


def _fresh(pick: Callable) -> Callable:
    """Return `pick` among the pairs that were not taken before."""

    def picked(counts, merges):
        left = {pair: n for pair, n in counts.items() if pair not in merges}
        return pick(left or counts, merges)

    return picked


def _picked(*picks: Callable) -> tuple[Way, ...]:
    """Return the ways to pick so, with and without an end where a pair occurs once."""
    return tuple({"pick": pick, **end} for pick in picks for end in ({}, {"least": lambda: 1}))


STEPS: dict[str, Callable] = {
    "words": lambda words: words,
    "bytes": lambda word: list(word.encode()),
    "count": count_pairs,
    "pick": _pick,
    **MERGE_STEPS,
    "everywhere": lambda sequences, merge: list(map(merge, sequences)),
    "new": lambda i: 256 + i,
    "most": lambda n_merges: n_merges,
    "least": lambda: 2,  # how often a pair must occur
    "result": lambda merges: merges,
}


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


_MISTAKES = mistakes(
    """
    ties the other way: Of pairs that occur equally often you take the larger one. Any rule would
        do if everybody kept to it; the one here is the smaller pair, as in Hugging Face's
        tokenizers: min(counts, key=lambda pair: (-counts[pair], pair)).
    ties by spelling [the CS336 course]: of pairs that occur equally often you take the one whose
        bytes come last in the alphabet, or first. Here it is the pair with the smaller ids, as in
        Hugging Face's tokenizers; a new token has a larger id than any byte.
    ties by the order of the text: Of pairs that occur equally often you take the one that you met
        first, or last, so the order of the words decides. Take the smaller pair: a rule about the
        pairs alone gives the same tokens whatever the order.
    borders crossed: You count pairs that begin in one word and end in the next one. Merges stay
        within a word; otherwise the end of one word and the beginning of another become a token.
    words counted once: You count each different word once. A word that occurs a hundred times
        holds its pairs a hundred times.
    pairs counted once a word: You count a pair once in each word, however often it occurs there.
    overlaps left out: In "aaa" you count the pair (a, a) once. Here every two neighbours count, so
        "aaa" holds it twice; that is how the usual programs count.
    case lost: You write the words in small letters. Their bytes stay as they are.
    every second pair: You count the pairs at even places alone. Each token but the last one begins
        a pair: zip(ids, ids[1:]).
    least frequent pair: You take the pair that occurs least often. The most frequent one saves
        most tokens.
    largest pair: You take the largest pair of ids, not the most frequent: max(counts) compares the
        keys. Say max(counts, key=counts.get).
    smallest pair: You take the smallest pair of ids, not the most frequent: min(counts) compares
        the keys.
    nothing merged: You count the pairs of bytes and never merge. After each merge the pairs are
        others: count them anew, with the new token in its places.
    merged in one word alone: You put the new token into the first word alone. It goes into each.
    pairs that occur once: You merge pairs that occur once. Such a token saves nothing elsewhere:
        end where no pair occurs twice.
    ends too early: You end while there is a pair that occurs twice.
    one merge alone: You return the first merge or the last one alone. Return all of them.
    one merge too few: You end one merge before n_merges.
    one merge too many: You make one merge more than n_merges.
    n_merges ignored: You never look at n_merges. End after as many merges.
    ids of new tokens: Your new tokens have other ids. Those of the bytes end at 255: merge number
        i, counted from 0, makes the id 256 + i.
    merges in reverse: You return the merges in reverse. The first one learned comes first, since
        encoding must repeat them in this order.
    pair turned around: You return (y, x) for the pair (x, y). x stands first in the text.
    new ids alone: You return the ids of the new tokens. Return for each merge the pair of ids that
        it joins: the place in the list tells the new one.
    new ids returned too: You return three numbers for each merge. The two ids of the pair are
        enough: the place in the list tells the new one.
    bytes for ids: You return the bytes or the letters of the tokens. Return the two ids of each
        pair: several pairs can be written the same.
    no pair left: With no pair left your function raises: the largest of nothing is asked for. A
        word of one token has no pair; end there.
    nothing learned: You return no merges. Is each pair appended to them, and is it the most
        frequent one that must occur twice?
    ties by another rule: Of pairs that occur equally often you do not take the smaller one: that is
        the one with the smaller first id, and of two with the same first id the one with the
        smaller second.
    pairs counted without their order: You sort the two ids of each pair. (x, y) and (y, x) are two
        pairs, and x stands first in the text.
    a pair of each word left out: You leave out the first or the last pair of each word. Each token
        but the last one begins a pair: zip(ids, ids[1:]).
    first pair of the text: You take the first or the last pair that you meet, not the most
        frequent.
    one id for all: All new tokens have the same id. Merge number i, counted from 0, makes the id
        256 + i.
    merges sorted: You sort the merges, or return a set of them. They stay in the order in which
        they were learned, since encoding must repeat them so.
    """,
    {
        "ties the other way": each("pick", _largest),
        "ties by spelling": each("pick", _by_spelling(True), _by_spelling(False)),
        "ties by the order of the text": each("pick", _first_met, _last_met),
        "ties by another rule": each(
            "pick",
            *(
                lambda counts, merges, rule=rule: min(counts, key=lambda p: (-counts[p], rule(*p)))
                for rule in (
                    lambda x, y: (x, -y),
                    lambda x, y: (-x, y),
                    lambda x, y: (y, x),
                    lambda x, y: (-y, -x),
                    lambda x, y: y,
                    lambda x, y: x + y,
                )
            ),
        ),
        "pairs counted without their order": (
            {
                "count": lambda seqs: Counter(
                    tuple(sorted(p)) for i in seqs for p in itertools.pairwise(i)
                )
            },
            {"result": lambda merges: [tuple(sorted(pair)) for pair in merges]},
        ),
        "a pair of each word left out": each(
            "count",
            lambda seqs: count_pairs([ids[1:] for ids in seqs]),
            lambda seqs: count_pairs([ids[:-1] for ids in seqs]),
        ),
        "borders crossed": each("words", lambda words: ["".join(words)])
        + each("count", lambda seqs: count_pairs([[x for ids in seqs for x in ids]]))
        + each("words", lambda words: [" ".join(words)]),
        "words counted once": each("words", lambda words: list(dict.fromkeys(words))),
        "pairs counted once a word": each(
            "count",
            lambda seqs: Counter(p for ids in seqs for p in dict.fromkeys(itertools.pairwise(ids))),
        ),
        "overlaps left out": each("count", _apart),
        "case lost": each("bytes", lambda word: list(word.lower().encode())),
        "every second pair": each(
            "count",
            lambda seqs: Counter(p for i in seqs for p in zip(i[::2], i[1::2], strict=False)),
        ),
        "nothing learned": each("result", lambda merges: []),
        "least frequent pair": _picked(
            lambda counts, merges: min(counts, key=lambda pair: (counts[pair], pair)),
            lambda counts, merges: min(counts, key=counts.get),
            lambda counts, merges: counts.most_common()[-1][0],
        ),
        "first pair of the text": _picked(
            lambda counts, merges: next(iter(counts)), lambda counts, merges: list(counts)[-1]
        )
        + each(
            "pick",
            lambda counts, merges: next((p for p in counts if counts[p] > 1), next(iter(counts))),
        ),
        "largest pair": each("pick", lambda counts, merges: max(counts)),
        "smallest pair": each("pick", lambda counts, merges: min(counts)),
        "nothing merged": (
            {"merge": lambda s, ids, pair, new: ids},
            *(
                {"merge": lambda s, ids, pair, new: ids, "pick": _fresh(pick), "least": least}
                for pick in (_pick, _largest, _first_met)
                for least in (lambda: 2, lambda: 1)
            ),
        ),
        "merged in one word alone": each(
            "everywhere", lambda seqs, merge: [*map(merge, seqs[:1]), *seqs[1:]]
        ),
        "pairs that occur once": each("least", lambda: 1),
        "ends too early": each("least", lambda: 3),
        "one merge too few": each("most", lambda n: n - 1),
        "one merge too many": each("most", lambda n: n + 1),
        "n_merges ignored": each("most", lambda n: 10**6),
        "ids of new tokens": OTHER_IDS,
        "one id for all": ONE_ID,
        "one merge alone": each("result", lambda merges: merges[:1], lambda merges: merges[-1:]),
        "merges sorted": each(
            "result", sorted, lambda merges: sorted(merges)[::-1], lambda merges: list(set(merges))
        ),
        "merges in reverse": each("result", lambda merges: merges[::-1]),
        "pair turned around": each("result", lambda merges: [(y, x) for x, y in merges]),
        "new ids alone": each("result", lambda merges: [256 + i for i in range(len(merges))]),
        "new ids returned too": each(
            "result",
            lambda merges: [(*pair, 256 + i) for i, pair in enumerate(merges)],
            lambda merges: [(256 + i, *pair) for i, pair in enumerate(merges)],
        ),
    },
    {"bytes for ids": writes_text},
)


def takes_the_most_frequent(case: Case, values: Values, again: Callable) -> str | None:
    """Look for the first merge of a pair that occurs less often than another."""
    if values[0].ndim != 2 or values[0].shape[1] != 2:
        return None
    sequences = [list(word.encode()) for word in case.arguments["words"]]
    for i, (x, y) in enumerate(values[0].tolist()):
        counts = count_pairs(sequences)
        best = _pick(counts, []) if counts else None
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
    steps=STEPS,
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
    mistakes=_MISTAKES + MERGE_MISTAKES + BYTE_MISTAKES,
    properties=(takes_the_most_frequent,),
    adapt=lambda function: listed(function, 2),
    kind="integral",
    any_length=True,
)
