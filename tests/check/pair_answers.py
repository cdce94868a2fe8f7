"""Answers to the exercises on byte pairs, right and wrong, as readers write them."""

import re
from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import public_answers
from public_answers import merge as right_merge

from attnbook.data import BytePairs

# Merging one pair.


def merge_by_stack(ids, pair, new):
    out, fresh = [], False
    for x in ids:
        if out and fresh and (out[-1], x) == pair:
            out[-1], fresh = new, False
        else:
            out.append(x)
            fresh = True
    return np.array(out, dtype=np.int64)


def merge_by_letters(ids, pair, new):
    text = "".join(map(chr, ids))
    return [ord(x) for x in text.replace(chr(pair[0]) + chr(pair[1]), chr(new))]


def merge_in_a_copy(ids, pair, new):
    ids, i = list(ids), 0
    while i < len(ids) - 1:
        if ids[i] == pair[0] and ids[i + 1] == pair[1]:
            ids[i : i + 2] = [new]
        i += 1
    return tuple(ids)


def merge_marked(ids, pair, new):
    x = np.array(ids, dtype=np.int64)
    begins = (x[:-1] == pair[0]) & (x[1:] == pair[1])
    x[:-1][begins] = new
    return np.delete(x, np.flatnonzero(begins) + 1)


def merge_from_the_right(ids, pair, new):
    ids = list(ids)
    for i in reversed(range(len(ids) - 1)):
        if tuple(ids[i : i + 2]) == pair:
            ids[i : i + 2] = [new]
    return ids


def merge_in_twos(ids, pair, new):
    out = []
    for i in range(0, len(ids), 2):
        two = list(ids[i : i + 2])
        out += [new] if tuple(two) == pair else two
    return out


def merge_either_order(ids, pair, new):
    out = []
    for x in ids:
        if out and {out[-1], x} == set(pair) and (len(set(pair)) == 2 or out[-1] == x):
            out[-1] = new
        else:
            out.append(x)
    return out


def merge_beyond_the_end(ids, pair, new):
    out, i = [], 0
    while i < len(ids):
        is_pair = (ids[i], ids[i + 1]) == pair
        out.append(new if is_pair else ids[i])
        i += 1 + is_pair
    return out


def merge_text(ids, pair, new):
    text = " ".join(str(x) for x in ids)
    return [int(x) for x in text.replace(f"{pair[0]} {pair[1]}", f"{new}").split(" ") if x]


def merge_text_with_borders(ids, pair, new):
    text = " ".join(str(x) for x in ids)
    return [int(x) for x in re.sub(rf"\b{pair[0]} {pair[1]}\b", f"{new}", text).split()]


def merge_in_a_circle(ids, pair, new):
    out, i = [], 0
    while i < len(ids):
        two = (ids[i], ids[i + 1 - len(ids)])
        out.append(new if two == pair else ids[i])
        i += 1 + (two == pair)
    return out[1:] if i == len(ids) + 1 and len(out) > 1 else out


MERGE_WRONG = {
    "round the end": merge_in_a_circle,
    "overlaps merged twice": merge_marked,
    "right to left": merge_from_the_right,
    "either order": merge_either_order,
    "ids as text": merge_text,
    "steps of two": merge_in_twos,
    "beyond the end": merge_beyond_the_end,
}

# Learning.


def learn_by(
    words,
    n_merges,
    pairs=pairwise,
    choose=lambda counts: min(counts, key=lambda pair: (-counts[pair], pair)),
    merge=right_merge,
    first_id=256,
):
    sequences, merges = [list(word.encode()) for word in words], []
    while len(merges) < n_merges:
        counts = Counter(pair for ids in sequences for pair in pairs(ids))
        pair, new = choose(counts) if counts else None, first_id + len(merges)
        if counts[pair] < 2:
            break
        sequences = [merge(ids, pair, new) for ids in sequences]
        merges.append(pair)
    return merges


right_learn = learn_by


def learn_distinct_words(words, n_merges):
    """Count the pairs of each distinct word once, times the number of times it occurs."""
    counts = Counter(words)
    spelled, merges = {word: tuple(word.encode()) for word in counts}, {}
    while len(merges) < n_merges:
        pairs = defaultdict(int)
        for word, ids in spelled.items():
            for i in range(len(ids) - 1):
                pairs[ids[i], ids[i + 1]] += counts[word]
        best = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:1]
        if not best or best[0][1] == 1:
            break
        pair = best[0][0]
        merges[pair] = 256 + len(merges)
        spelled = {word: right_merge(ids, pair, merges[pair]) for word, ids in spelled.items()}
    return merges


def learn_with(**options):
    return lambda words, n_merges: learn_by(words, n_merges, **options)


def learn_apart(words, n_merges):
    def pairs(ids):
        return [
            p for p in set(pairwise(ids)) for _ in range(len(ids) - len(right_merge(ids, p, 0)))
        ]

    return learn_by(words, n_merges, pairs=pairs)


def learn_without_merging(words, n_merges):
    counts = Counter(pair for word in words for pair in pairwise(word.encode()))
    return [pair for pair, _ in counts.most_common(n_merges)]


def names_of(merges):
    names = [bytes([i]) for i in range(256)]
    for x, y in merges:
        names.append(names[x] + names[y])
    return names


LEARN_WRONG = {
    "ties by spelling": public_answers.learned(public_answers.spelled_last),
    "ties by the order of the text": learn_with(choose=lambda c: c.most_common(1)[0][0]),
    "borders crossed": lambda words, n: right_learn(["".join(words)], n),
    "overlaps left out": learn_apart,
    "nothing merged": learn_without_merging,
    "case lost": lambda words, n: right_learn([word.lower() for word in words], n),
    "right to left": learn_with(merge=merge_from_the_right),
}

# Encoding.


def right_encode(word, merges, spell=str.encode):
    ids = list(spell(word))
    for i, pair in enumerate(merges):
        ids = right_merge(ids, pair, 256 + i)
    return ids


def encode_by_rank(word, merges):
    ids, ranks = list(word.encode()), {pair: i for i, pair in enumerate(merges)}
    while len(ids) > 1:
        pair = min(pairwise(ids), key=lambda pair: ranks.get(pair, float("inf")))
        if pair not in ranks:
            break
        ids = right_merge(ids, pair, 256 + ranks[pair])
    return np.array(ids, dtype=np.int32)


def encode_one_place_at_a_time(word, merges):
    ids = list(word.encode())
    while True:
        found = [(merges.index(p), i) for i, p in enumerate(pairwise(ids)) if p in merges]
        if not found:
            return tuple(ids)
        rank, i = min(found)
        ids = [*ids[:i], 256 + rank, *ids[i + 2 :]]


def encode_as_found(word, merges):
    ids, i = list(word.encode()), 0
    while i < len(ids) - 1:
        pair = (ids[i], ids[i + 1])
        if pair in merges:
            ids[i : i + 2] = [256 + merges.index(pair)]
            i = 0
        else:
            i += 1
    return ids


def encode_last_merge_first(word, merges):
    ids = list(word.encode())
    while found := [pair for pair in pairwise(ids) if pair in merges]:
        pair = max(found, key=merges.index)
        ids = right_merge(ids, pair, 256 + merges.index(pair))
    return ids


def encode_longest(word, merges):
    ids = {name: i for i, name in enumerate(names_of(merges))}
    rest, out = word.encode(), []
    while rest:
        size = max(n for n in range(1, len(rest) + 1) if rest[:n] in ids)
        out.append(ids[rest[:size]])
        rest = rest[size:]
    return out


def encode_in_one_walk(word, merges):
    ids, out = list(word.encode()), []
    while ids:
        pair = tuple(ids[:2])
        n = 2 if pair in merges else 1
        out.append(256 + merges.index(pair) if n == 2 else ids[0])
        ids = ids[n:]
    return out


def encode_unguarded(word, merges):
    ids = list(word.encode())
    while True:
        pair = min(pairwise(ids), key=lambda p: merges.index(p) if p in merges else 10**6)
        if pair not in merges:
            return ids
        ids = right_merge(ids, pair, 256 + merges.index(pair))


def encode_falsy(word, merges):
    ranks, ids = {pair: i for i, pair in enumerate(merges)}, list(word.encode())
    while found := [ranks[p] for p in pairwise(ids) if ranks.get(p)]:
        ids = right_merge(ids, merges[min(found)], 256 + min(found))
    return ids


ENCODE_WRONG = {
    "left to right": encode_as_found,
    "longest token": encode_longest,
    "last merge first": encode_last_merge_first,
    "one walk": encode_in_one_walk,
    "first merge left out": encode_falsy,
    "no pair left": encode_unguarded,
    "another encoding": lambda word, merges: right_encode(
        word, merges, lambda text: text.encode("latin-1", "replace")
    ),
}


def package_learn(words, n_merges):
    """Learn as the package does; a space would join two words, so letters must be none."""
    return BytePairs.learn(words, 257 + n_merges).merges


WRONG = {
    "merge_pair": MERGE_WRONG,
    "learn_byte_pairs": LEARN_WRONG,
    "encode_byte_pairs": ENCODE_WRONG,
}
RIGHT = {
    "merge_pair": [
        *(right_merge, merge_by_stack, merge_by_letters, merge_in_a_copy, merge_text_with_borders),
    ],
    "learn_byte_pairs": [package_learn, right_learn, learn_distinct_words],
    "encode_byte_pairs": [
        lambda word, merges: BytePairs(merges).encode(word),
        *(right_encode, encode_by_rank, encode_one_place_at_a_time),
    ],
}
DOUBLES = {
    "merge_pair": {
        "first pair alone; second token kept": lambda ids, pair, new: next(
            ([*ids[:i], new, *ids[i + 1 :]] for i, p in enumerate(pairwise(ids)) if p == pair), ids
        ),
        "either order; new token twice": lambda ids, pair, new: [
            token
            for token in merge_either_order(ids, pair, new)
            for _ in range(2 if token == new else 1)
        ],
    },
    "learn_byte_pairs": {
        "ids of new tokens; ties the other way": learn_with(
            first_id=257, choose=lambda c: max(c, key=lambda pair: (c[pair], pair))
        )
    },
    "encode_byte_pairs": {
        "longest token; returned backwards": lambda word, merges: ENCODE_WRONG["longest token"](
            word, merges
        )[::-1]
    },
}
