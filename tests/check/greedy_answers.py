"""Greedy decoding, with the ids of start and stop or without, right and wrong."""

import numpy as np
from array_api_compat import array_namespace


def greedy(
    choose=lambda model, ids: int(model(ids)[-1].argmax()),
    limit=0,
    until=True,
    late=False,
    show=lambda ids, stop: ids,
):
    def answer(model, start, stop, max_length):
        ids = [start]
        for _ in range(max_length + limit):
            if late and len(ids) > 1 and ids[-1] == stop:
                ids.append(choose(model, ids))
                break
            ids.append(choose(model, ids))
            if until and not late and ids[-1] == stop:
                break
        return show(ids, stop)

    return answer


def to_the_first(ids, stop):
    return ids[: ids.index(stop) + 1] if stop in ids else ids


def without_start(ids, stop):
    return ids[1:]


def without_stop(ids, stop):
    return ids[:-1] if len(ids) > 1 and ids[-1] == stop else ids


def without_both(ids, stop):
    return without_stop(ids, stop)[1:]


def _prepend(model, start, stop, max_length):
    ids = [start]
    while len(ids) <= max_length:
        ids = [int(model(ids)[-1].argmax()), *ids]
        if ids[0] == stop:
            break
    return ids


def _rows(fill):
    """Decode one start or several; `fill` makes rows of one length of those that are done."""

    def answer(model, start, stop, max_length):
        if isinstance(start, int):
            return greedy()(model, start, stop, max_length)
        xp = array_namespace(start)
        rows = start[:, None]
        done = start != start
        for _ in range(max_length):
            token = xp.argmax(model(rows)[..., -1, :], axis=-1)
            token, done, ends = fill(xp, token, done, stop)
            rows = xp.concat([rows, token[:, None]], axis=1)
            if ends:
                break
        return rows

    return answer


def _go_on(xp, token, done, stop):
    done = done | (token == stop)
    return token, done, bool(xp.all(done))


def _first_ends(xp, token, done, stop):
    done = done | (token == stop)
    return token, done, bool(xp.any(done))


def _filled(xp, token, done, stop):
    token = xp.where(done, xp.full_like(token, stop), token)
    done = done | (token == stop)
    return token, done, bool(xp.all(done))


GREEDY_DECODE = {
    "first position": greedy(lambda model, ids: int(model(ids[:1])[-1].argmax())),
    "argmax over everything": greedy(lambda model, ids: int(model(ids).argmax()) % 7),
    "read backwards": _prepend,
    "start taken for the end": lambda model, start, stop, n: to_the_first(
        greedy(until=False)(model, start, stop, n), stop
    ),
    "stop noticed late": greedy(late=True),
    "rows go on after stop": _rows(_go_on),
    "batch ends at the first stop": _rows(_first_ends),
}


def greedy_of_rows(model, start, stop, max_length):
    return _rows(_filled)(model, start, stop, max_length)


def greedy_in_an_array(model, start, stop, max_length):
    ids = np.array([start])
    while len(ids) <= max_length and not (len(ids) > 1 and ids[-1] == stop):
        logits = np.asarray(model(ids))[-1]
        ids = np.append(ids, max(range(len(logits)), key=lambda token: logits[token]))
    return ids


def torch_greedy(model, start, stop, max_length):
    import torch

    ids = torch.tensor([[start]])
    for _ in range(max_length):
        token = torch.argmax(model(ids)[:, -1], dim=-1, keepdim=True)
        ids = torch.cat([ids, token], dim=1)
        if token.item() == stop:
            break
    return ids[0]


def cached(place=lambda i: i, keep=True, show=lambda ids, stop: ids):
    """Return decoding with a cache; `place` is the position of token i."""

    def answer(step, start, stop, max_length):
        ids, cache = [start], None
        for i in range(max_length):
            logits, new = step(ids[-1], place(i), cache)
            cache = new if keep or cache is None else cache
            ids.append(int(logits.argmax()))
            if ids[-1] == stop:
                break
        return show(ids, stop)

    return answer


def _start_twice(step, start, stop, max_length):
    _, cache = step(start, 0, None)
    ids, position = [start], 1
    while len(ids) <= max_length:
        logits, cache = step(ids[-1], position, cache)
        ids.append(int(logits.argmax()))
        position += 1
        if ids[-1] == stop:
            break
    return ids


def _prefix_again(step, start, stop, max_length):
    ids, cache = [start], None
    while len(ids) <= max_length:
        for position, token in enumerate(ids):
            logits, cache = step(token, position, cache)
        ids.append(int(logits.argmax()))
        if ids[-1] == stop:
            break
    return ids


def _cached_late(step, start, stop, max_length):
    ids = cached()(step, start, stop, max_length)
    if ids[-1] != stop or len(ids) > max_length:
        return ids
    longer = cached()(step, start, -1, max_length)
    return longer[: len(ids) + 1]


GREEDY_DECODE_CACHED = {
    "position one ahead": cached(lambda i: i + 1 if i else 0),
    "position stays": cached(lambda i: 1),
    "cache of the first step": cached(keep=False),
    "token fed twice": _start_twice,
    "whole prefix fed again": _prefix_again,
    "stop noticed late": _cached_late,
}


def torch_cached(step, start, stop, max_length):
    import torch

    token, cache, ids = torch.tensor([start]), None, []
    for position in range(max_length):
        logits, cache = step(token, torch.tensor(position), cache)
        token = torch.argmax(logits, dim=-1, keepdim=True)
        ids.append(token)
        if token.item() == stop:
            break
    return torch.cat(ids)


WRONG = {
    "greedy_decode": GREEDY_DECODE,
    "greedy_decode, cached": GREEDY_DECODE_CACHED,
}

DOUBLES = {
    "greedy_decode": {
        "smallest logit; one token too many": greedy(
            lambda model, ids: int(model(ids)[-1].argmin()), limit=1
        ),
        "stop ignored; first position": greedy(
            lambda model, ids: int(model(ids)[0].argmax()), until=False
        ),
    },
}

RIGHT = {
    "greedy_decode": (
        greedy(),
        greedy(show=without_start),
        greedy(show=without_stop),
        greedy(show=without_both),
        greedy_of_rows,
        greedy_in_an_array,
        lambda *given: np.array(greedy(show=without_both)(*given)),
    ),
    "greedy_decode, cached": (
        cached(),
        cached(show=without_start),
        cached(show=without_both),
    ),
}

ONLY_TORCH = {
    "greedy_decode": torch_greedy,
    "greedy_decode, cached": torch_cached,
}
