"""Greedy decoding in steps: what the model reads, which token is taken, and when to stop."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnbook.check.sentences import mistakes
from attnbook.check.steps import each
from attnbook.check.toys import LONGEST, TooLong

# The steps. `ids` are those of one sequence so far, the start first.


def _last_is_stop(ids, stop):
    return len(ids) > 1 and ids[-1] == stop


def _filled(rows, filler):
    return [row + [filler] * (max(map(len, rows)) - len(row)) for row in rows]


def read_whole(s, model, ids):
    """Return what is taken from the logits of a model that reads the whole prefix."""
    logits = model(np.array(s.prefix(ids), dtype=np.int64))
    return int(s.pick(s.bar(s.row(logits), ids)))


def read_step_by_step(s, model, ids):
    """Return what is taken from the last logits of a step with a cache."""
    cache, logits = None, np.zeros(1)
    for i, token in s.feed(list(enumerate(ids))):
        logits, cache = model(token, s.place(i), cache)
    return int(s.pick(s.bar(logits, ids)))


DECODE_STEPS: dict[str, Callable] = {
    "prefix": lambda ids: ids,
    "row": lambda logits: logits[-1],
    "feed": lambda pairs: pairs,  # what the cache has read: the place and the id of each token
    "place": lambda i: i,
    "bar": lambda logits, ids: logits,
    "pick": np.argmax,
    "append": lambda ids, token: [*ids, token],
    "count": lambda max_length: max_length,
    "ends": _last_is_stop,
    "shown": lambda ids, stop: ids,
    "result": lambda ids, stop, most: ids,
    "rows": lambda rows, decode, stop: _filled(rows, stop),
}


def decode(read: Callable, s: Any, model, start, stop, max_length):
    """Return the ids of one start, or of each start, filled up with `stop`."""

    def one_sequence(one, count, ends):
        ids = [one]
        while len(ids) <= count and not ends(ids, stop):
            if len(ids) > LONGEST:  # two mistakes together may never end
                raise TooLong
            ids = s.append(ids, read(s, model, ids))
        return ids

    count = s.count(max_length)
    if not isinstance(start, np.ndarray):
        ids = np.array(s.shown(one_sequence(start, count, s.ends), stop), dtype=np.int64)
        return s.result(ids, stop, max_length + len(s.shown([start], stop)))
    rows = [one_sequence(int(one), count, s.ends) for one in start]
    filled = s.rows(rows, lambda one, count: one_sequence(one, count, lambda *given: False), stop)
    first = 1 - len(s.shown([0], stop))  # 1 if the start is not shown
    return np.array(filled, dtype=np.int64)[:, first:]


def without_start(ids, stop):
    return ids[1:]


def without_stop(ids, stop):
    return ids[:-1] if _last_is_stop(ids, stop) else ids


def without_both(ids, stop):
    return without_stop(ids, stop)[1:]


def _barred(logits, ids):
    """Return the logits, or rows of them, without a chance for `ids`."""
    logits = logits.copy()
    logits[..., [token for token in ids if token < logits.shape[-1]]] = -np.inf
    return logits


PREFIX_MISTAKES = mistakes(
    """
    first position: Every token is what follows the start token. You give the model the start token
        alone, or read the logits of the first position: those of the last belong to the next.
    position before the last: You read the logits before the last: they belong to a token that is
        there.
    argmax over the positions: Your argmax returns a place. The words compete along the last axis.
    argmax over everything: Your argmax runs over all positions at once. Take the last row first.
    logits averaged: You sum or average over the positions. Only the last predicts the next token.
    last token alone: You give the model the last token alone, or the last few. It needs all tokens
        so far: without a cache it remembers nothing.
    start not read: You leave the start token out of what the model is given. It reads it first.
    read backwards: Each new token is put in front of the others. It is appended at the end, where
        the model looks for the next one.
    last token not read: The model is not given the newest token.
    something else read: The model is given more than the tokens so far: a filler behind them or the
        start token twice.
    """,
    {
        "first position": each("row", lambda z: z[0]),
        "position before the last": each("row", lambda z: z[-2:][0]),
        "argmax over the positions": (
            {"row": lambda z: z, "pick": lambda z: np.argmax(z, axis=0)[-1]},
            {"row": lambda z: z, "pick": lambda z: np.argmax(z, axis=0)[0]},
        ),
        "argmax over everything": (
            {"row": lambda z: z.reshape(-1)},
            {"row": lambda z: z, "pick": lambda z: np.argmax(z) % z.shape[-1]},
        ),
        "logits averaged": each("row", lambda z: np.sum(z, axis=0), lambda z: np.max(z, axis=0)),
        "last token alone": each("prefix", lambda i: i[-1:], lambda i: i[-2:], lambda i: i[-3:])
        + each("prefix", lambda i: i[-4:], lambda i: i[-5:]),
        "something else read": each("prefix", lambda i: [*i, 0], lambda i: [i[0], *i]),
        "start not read": each("prefix", lambda i: i[1:] or i),
        "read backwards": (
            {
                "append": lambda i, token: [token, *i],
                "ends": lambda i, stop: len(i) > 1 and i[0] == stop,
            },
            {"prefix": lambda i: i[::-1]},
        ),
        "last token not read": each("prefix", lambda i: i[:-1] or i),
    },
)


def _prefixes(pairs):
    return [pair for n in range(len(pairs)) for pair in pairs[: n + 1]]


def _anew(pairs):
    """Count the places of all that is read from 0 to the end."""
    return [(i, token) for i, (_, token) in enumerate(pairs)]


CACHE_MISTAKES = mistakes(
    """
    position off by one: Your positions are one too large: the start token stands at position 0. A
        model whose cached positions differ from those of its training gives other tokens.
    position one behind: From the second token on your position is one too small: two tokens stand
        at position 0. The start token has position 0 and the first new token position 1.
    position one ahead: From the second token on your position is too large: 1 is left out.
    position stays: Every token stands at one position. It grows by one with each token.
    positions by twos: Your position grows by two, or runs backwards. It grows by one.
    cache not handed on: You give the step an empty cache each time, so it knows the last token
        alone. Hand on the cache that the step before returned.
    cache of the first step: You keep the cache of the first step and never replace it, so all
        tokens between are forgotten. Each step returns a new cache.
    start fed again: You feed the start token each time. Feed the token just found.
    token fed twice: The start token is in the cache twice: you read it once before the loop and
        once inside it. Each token enters the cache once.
    whole prefix fed again: You feed all tokens so far in each step, on top of a cache that holds
        them already. With a cache each step reads the newest token alone.
    one token behind: You feed the token before the newest one, so the start token is read twice.
    """,
    {
        "position off by one": each("place", lambda i: i + 1),
        "position one behind": each("place", lambda i: max(i - 1, 0)),
        "position one ahead": each("place", lambda i: i + (i > 0)),
        "position stays": each("place", lambda i: 0, lambda i: 1),
        "positions by twos": each("place", lambda i: 2 * i, lambda i: -i),
        "cache not handed on": each("feed", lambda p: p[-1:], lambda p: [(0, p[-1][1])]),
        "cache of the first step": each("feed", lambda p: [*p[:1], *p[max(len(p) - 1, 1) :]]),
        "start fed again": each("feed", lambda p: [(i, p[0][1]) for i, _ in p]),
        "token fed twice": each("feed", lambda p: _anew([p[0], *p]), lambda p: [p[0], *p]),
        "whole prefix fed again": each("feed", _prefixes, lambda p: _anew(_prefixes(p))),
        "one token behind": each("feed", lambda p: _anew([p[0], *p[:-1]])),
    },
)

TOKEN_MISTAKES = mistakes(
    """
    smallest logit: You take the token with the smallest logit. The largest is the likeliest.
    second best token: You take the second largest logit. The largest is the likeliest.
    largest size of a logit: You take the logit farthest from 0. The largest is the likeliest.
    token off by one: You add 1 to the index of the largest logit, or subtract it. Ids count from 0.
    repeats avoided: You never take a token twice. Greedy decoding does if it is the likeliest.
    stop ignored: You go on after the stop token. Leave the loop there.
    stop noticed late: A token comes after the stop token: look for it before you append the next.
    one token too few: You end one token before the limit. max_length counts the tokens after the
        start; the start token itself is given and does not count.
    one token too many: You append one token more than max_length allows.
    a token where none is allowed: With max_length 0 nothing may follow the start token, and you
        append a token. Look at the limit before you ask the model, not after.
    max_length ignored: You never look at max_length. Stop there if no stop token comes.
    start taken for the end: Where the start token is the stop token itself, as with the
        <|endoftext|> of GPT-2, your loop ends before it begins. Look for the stop token among the
        tokens that come after the start.
    ends too early: You end at another token than `stop`. Go on until the newest is `stop`.
    neither stop nor limit: Your loop ends neither at the stop token nor at max_length.
    last token alone returned: You return the newest token alone. Collect them all.
    order lost: Your ids come sorted, or each once only. They come in the order in which they were
        found.
    returned backwards: Your ids come in reverse. The first token comes first.
    batch axis kept: You return (1, n). For one start return (n,): ids[0].
    filled up: You fill one sequence up to max_length. It ends with its stop token.
    another limit: You end at another number of tokens than max_length.
    stop added: You append the stop token yourself. It comes where the model gives it.
    """,
    {
        "smallest logit": each("pick", np.argmin),
        "second best token": each("pick", lambda z: np.argsort(z)[-2]),
        "largest size of a logit": each("pick", lambda z: np.argmax(np.abs(z))),
        "token off by one": each(
            "pick",
            lambda z: np.argmax(z) + 1,
            lambda z: np.argmax(z) - 1,
            lambda z: (np.argmax(z) + 1) % len(z),
        ),
        "repeats avoided": each("bar", _barred, lambda z, i: _barred(z, i[-1:])),
        "stop ignored": each("ends", lambda i, stop: False),
        "stop noticed late": each("ends", lambda i, stop: len(i) > 2 and i[-2] == stop),
        "another limit": each("count", lambda n: n // 2, lambda n: 10, lambda n: 20, lambda n: 5),
        "one token too few": each("count", lambda count: count - 1),
        "one token too many": each("count", lambda count: count + 1),
        "a token where none is allowed": each("count", lambda count: max(count, 1)),
        "max_length ignored": each("count", lambda count: 10**6),
        "start taken for the end": each(
            "ends", lambda i, stop: i[-1] == stop, lambda i, stop: i[0] == stop or i[-1] == stop
        ),
        "ends too early": each(
            "ends",
            lambda i, stop: len(i) > 1 and i[-1] == i[0],
            lambda i, stop: len(i) > 1 and i[-1] == 0,
            lambda i, stop: len(i) > 1,
            lambda i, stop: len(i) > 1 and i[-1] != stop,
            lambda i, stop: len(i) > 1 and i[-1] >= stop,
            lambda i, stop: len(i) > 1 and i[-1] <= stop,
        ),
        "last token alone returned": each("result", lambda i, *_: i[-1:], lambda i, *_: i[-1]),
        "order lost": each(
            "result",
            lambda i, *_: np.sort(i),
            lambda i, *_: np.array(list(dict.fromkeys(i.tolist())), dtype=np.int64),
        ),
        "stop added": each(
            "result",
            lambda i, stop, most: np.append(i, stop),
            lambda i, stop, most: i if stop in i[-1:] else np.append(i, stop),
        ),
        "returned backwards": each("result", lambda i, *_: i[::-1]),
        "batch axis kept": each("result", lambda i, *_: i[np.newaxis]),
        "filled up": each(
            "result",
            lambda i, stop, most: np.pad(i, (0, most - len(i)), constant_values=stop),
            lambda i, stop, most: np.pad(i, (0, most - len(i))),
        ),
    },
)


BATCH_MISTAKES = mistakes(
    """
    rows go on after stop: In a batch your rows go on after their stop token, until the last one is
        done. What follows a stop means nothing: fill it with `stop`.
    batch ends at the first stop: Your batch ends when its first row does, so the others are cut
        off. Go on until every row has its stop token.
    filled with another token: You fill rows that are done with another token than `stop`.
    """,
    {
        "rows go on after stop": each(
            "rows", lambda r, decode, stop: [decode(row[0], max(map(len, r)) - 1) for row in r]
        ),
        "batch ends at the first stop": each(
            "rows", lambda r, decode, stop: [row[: min(map(len, r))] for row in r]
        ),
        "filled with another token": each(
            "rows", lambda r, decode, stop: _filled(r, 0), lambda r, decode, stop: _filled(r, -1)
        ),
    },
)
