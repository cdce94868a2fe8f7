"""Wrong ways to decode greedily: with the whole prefix, with a cache, and in a batch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

# What one step does, and how many there are. Each is given the ids so far.


def _whole(model, ids):
    """Return the logits of all positions."""
    return model(np.array(ids, dtype=np.int64))


def argmax_of_last(model, ids, **state):
    return int(np.argmax(_whole(model, ids)[-1]))


def step_by_step(model, ids, feed: Callable = lambda ids: list(enumerate(ids)), pick=np.argmax):
    """Feed (position, token) pairs to a step with a cache and take the last logits."""
    cache, logits = None, np.zeros(1)
    for position, token in feed(ids):
        logits, cache = model(token, position, cache)
    return int(pick(logits))


def _decode(
    model, start, stop, max_length, following: Callable, *, limit=0, until=True, append=None
) -> list[int]:
    """Return all ids, start and stop included."""
    ids = [start]
    while len(ids) <= max_length + limit:
        token = following(model, ids)
        ids = [*ids, token] if append is None else append(ids, token)
        if until and token == stop:
            break
    return ids


def _shown(ids: list[int], stop: int, with_start: bool, with_stop: bool) -> np.ndarray:
    shown = ids if with_start else ids[1:]
    if not with_stop and len(shown) and shown[-1] == stop:
        shown = shown[:-1]
    return np.array(shown, dtype=np.int64)


def sequences_of(
    model, start, stop, max_length, with_start, with_stop, decode: Callable
) -> np.ndarray:
    """Return the ids of one start, or of each start, filled up with `stop`."""
    if not isinstance(start, np.ndarray):
        return _shown(decode(model, start, stop, max_length), stop, with_start, with_stop)
    rows = [decode(model, int(one), stop, max_length) for one in start]
    longest = max(map(len, rows))
    filled = [row + [stop] * (longest - len(row)) for row in rows]
    return np.array(filled, dtype=np.int64)[:, 0 if with_start else 1 :]


def decoding(following: Callable, **options: Any) -> Callable:
    return partial(_decode, following=following, **options)


def _one_more_after_stop(model, start, stop, max_length, following):
    """Look at the token before, so that the stop is noticed one step too late."""
    ids = [start]
    while len(ids) <= max_length and (len(ids) < 3 or ids[-2] != stop):
        ids.append(following(model, ids))
    return ids


STOPS: tuple[tuple[str, str, Callable], ...] = (
    (
        "stop ignored",
        "You go on after the stop token, up to the limit. The sequence ends with it: leave the "
        "loop.",
        lambda following: decoding(following, until=False),
    ),
    (
        "stop noticed late",
        "One more token comes after the stop token: you look for it before you append the next "
        "token, not after.",
        lambda following: partial(_one_more_after_stop, following=following),
    ),
    (
        "one token too few",
        "You end one token before the limit. max_length counts the tokens after the start; the "
        "start token itself is given and does not count.",
        lambda following: decoding(following, limit=-1),
    ),
    (
        "one token too many",
        "You append one token more than max_length allows.",
        lambda following: decoding(following, limit=1),
    ),
)


def _pick_at(where: Callable) -> Callable:
    """Return a step that takes the token `where(logits)` of all positions."""
    return lambda model, ids: int(where(_whole(model, ids)))


WITHOUT_CACHE: tuple[tuple[str, str, tuple[Callable, ...]], ...] = (
    (
        "first position",
        "Every token is what follows the start token. Either you read the logits of the first "
        "position, and those of the last belong to the next token; or you always give the model "
        "the start token alone.",
        (decoding(_pick_at(lambda logits: np.argmax(logits[0]))),),
    ),
    (
        "position before the last",
        "You read the logits of the position before the last: they belong to a token that is there "
        "already.",
        (decoding(_pick_at(lambda logits: np.argmax(logits[-2:][0]))),),
    ),
    (
        "argmax over the positions",
        "Your argmax runs over the positions, so it returns a place and not a token. The words "
        "compete along the last axis.",
        (
            decoding(_pick_at(lambda logits: np.argmax(logits, axis=0)[-1])),
            decoding(_pick_at(lambda logits: np.argmax(logits, axis=0)[0])),
        ),
    ),
    (
        "argmax over everything",
        "Your argmax runs over all positions and words at once, and returns an index of the "
        "flattened array. Take the last row first.",
        (
            decoding(_pick_at(np.argmax)),
            decoding(_pick_at(lambda logits: np.argmax(logits) % logits.shape[-1])),
        ),
    ),
    (
        "logits averaged",
        "You sum or average the logits over the positions. Only the last position predicts the "
        "next token.",
        (decoding(_pick_at(lambda logits: np.argmax(np.sum(logits, axis=0)))),),
    ),
    (
        "smallest logit",
        "You take the token with the smallest logit. The largest is the likeliest.",
        (decoding(_pick_at(lambda logits: np.argmin(logits[-1]))),),
    ),
    (
        "last token alone",
        "You give the model the last token alone. It needs all tokens so far: without a cache it "
        "remembers nothing.",
        (decoding(lambda model, ids: argmax_of_last(model, ids[-1:])),),
    ),
    (
        "start not read",
        "You leave the start token out of what the model is given. It is the first token of the "
        "prefix.",
        (decoding(lambda model, ids: argmax_of_last(model, ids[1:] or ids)),),
    ),
    (
        "read backwards",
        "Each new token is put in front of the others. It is appended at the end, where the model "
        "looks for the next one.",
        (
            decoding(argmax_of_last, append=lambda ids, token: [token, *ids]),
            decoding(lambda model, ids: argmax_of_last(model, ids[::-1])),
        ),
    ),
)


def _fed(feed: Callable) -> tuple[Callable, ...]:
    """Return the decoding whose step has read the pairs of `feed(ids)`."""
    return (decoding(partial(step_by_step, feed=feed)),)


WITH_CACHE: tuple[tuple[str, str, tuple[Callable, ...]], ...] = (
    (
        "position off by one",
        "Your positions are one too large: the start token stands at position 0. A model whose "
        "cached positions differ from those of its training gives other tokens.",
        _fed(lambda ids: [(i + 1, token) for i, token in enumerate(ids)]),
    ),
    (
        "position one behind",
        "From the second token on your position is one too small: two tokens stand at position 0. "
        "The start token has position 0 and the first new token position 1.",
        _fed(lambda ids: [(max(i - 1, 0), token) for i, token in enumerate(ids)]),
    ),
    (
        "position one ahead",
        "From the second token on your position is one too large: position 1 is left out.",
        _fed(lambda ids: [(i + (i > 0), token) for i, token in enumerate(ids)]),
    ),
    (
        "position stays",
        "Every token stands at position 0. The position grows by one with each token.",
        (
            *_fed(lambda ids: [(0, token) for token in ids]),
            *_fed(lambda ids: [(1, token) for token in ids]),
        ),
    ),
    (
        "cache not handed on",
        "You give the step an empty cache each time, so it knows the last token alone. Hand on the "
        "cache that the step before returned.",
        (
            *_fed(lambda ids: [(len(ids) - 1, ids[-1])]),
            *_fed(lambda ids: [(0, ids[-1])]),
        ),
    ),
    (
        "cache of the first step",
        "You keep the cache of the first step and never replace it, so all tokens between are "
        "forgotten. Each step returns a new cache.",
        _fed(
            lambda ids: [(0, ids[0])] if len(ids) == 1 else [(0, ids[0]), (len(ids) - 1, ids[-1])]
        ),
    ),
    (
        "start fed again",
        "You feed the start token in every step. After the first step it is the token just found.",
        (
            *_fed(lambda ids: [(i, ids[0]) for i in range(len(ids))]),
            *_fed(lambda ids: [(0, ids[0]) for _ in ids]),
        ),
    ),
    (
        "token fed twice",
        "The start token is in the cache twice: you read it once before the loop and once inside "
        "it. Each token enters the cache once.",
        (
            *_fed(lambda ids: list(enumerate([ids[0], *ids]))),
            *_fed(lambda ids: [(0, ids[0]), *enumerate(ids)]),
        ),
    ),
    (
        "whole prefix fed again",
        "You feed all tokens so far in each step, on top of a cache that holds them already. With "
        "a cache each step reads the newest token alone.",
        (
            *_fed(lambda ids: [(i, token) for n in range(len(ids)) for i, token in _until(ids, n)]),
            *_fed(
                lambda ids: list(
                    enumerate(token for n in range(len(ids)) for _, token in _until(ids, n))
                )
            ),
        ),
    ),
    (
        "smallest logit",
        "You take the token with the smallest logit. The largest is the likeliest.",
        (decoding(partial(step_by_step, pick=np.argmin)),),
    ),
)


def _until(ids, n):
    return list(enumerate(ids[: n + 1]))


def _rows_go_on(model, start, stop, max_length):
    """Fill rows that are done with what the model says next."""
    longest = max(len(right(model, int(one), stop, max_length)) for one in start)
    go_on = decoding(argmax_of_last, until=False)
    return np.array([go_on(model, int(one), stop, longest - 1) for one in start])


def _ends_at_first_stop(model, start, stop, max_length):
    rows = [right(model, int(one), stop, max_length) for one in start]
    return np.array([row[: min(map(len, rows))] for row in rows])


right = decoding(argmax_of_last)

OF_BATCHES: tuple[tuple[str, str, Callable], ...] = (
    (
        "rows go on after stop",
        "In a batch your rows go on after their stop token, until the last one is done. What "
        "follows a stop means nothing: fill it with `stop`.",
        _rows_go_on,
    ),
    (
        "batch ends at the first stop",
        "Your batch ends when its first row does, so the others are cut off. Go on until every row "
        "has its stop token.",
        _ends_at_first_stop,
    ),
)
