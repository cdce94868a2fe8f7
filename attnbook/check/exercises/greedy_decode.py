"""Greedy decoding in steps, with the whole prefix or with a cache, and the check of it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attnbook import move
from attnbook.check.engine.report import Report
from attnbook.check.engine.run import documented, either
from attnbook.check.engine.signatures import signed_as
from attnbook.check.engine.steps import Case, Check, Stage, Values
from attnbook.check.engine.text import Text
from attnbook.check.shared.toy_models import LONGEST, TooLong, Toy, ToyStep


@documented
def greedy_decode(f: Callable, *, cached: bool = False, time_limit: float = 10.0) -> Report:
    """Check greedy decoding: append the most likely token until the stop token or a limit.

    Runs `f` on toy models that stop at once, early or never, with a start token that is also the
    stop token, with a limit of 0, and on a batch. The logits of these models depend on every token
    so far and on its position.

    Parameters
    ----------
    f : callable
        Called as ``f(model, start, stop, max_length)``, by position. ``model(ids)`` takes ids
        (..., n) and returns logits (..., n, V), the last of which belong to the next token; `start`
        and `stop` are token ids, and at most `max_length` tokens follow the start. It returns their
        ids in one array or list. The result may or may not contain the start token and the stop
        token, and a remark says what yours does. On a batch, where `start` is an array (batch,),
        rows that are done are padded with `stop`.
    cached : bool
        If True, `f` is called as ``f(step, start, stop, max_length)``, where ``step(token,
        position, cache)`` returns the logits (V,) of the next token and the new cache. The first
        cache is None, and the start token has position 0.

    Examples
    --------
    >>> from attnbook import check
    >>> def my_decode(model, start, stop, max_length):
    ...     ids = [start]
    ...     for _ in range(max_length):
    ...         ids.append(int(model(ids)[0].argmax()))
    ...         if ids[-1] == stop:
    ...             break
    ...     return ids
    >>> check.greedy_decode(my_decode).mistake
    'first position'
    """
    report = either(CACHED if cached else WHOLE, f, time_limit)
    if report.mistake != "not deterministic":
        return report
    return replace(
        report,
        mistake="sampled",
        message="Your function gives two results for one model: it draws tokens at random, or it "
        "keeps a list from one call to the next. Greedy decoding takes the token with the largest "
        "logit, always the same, and begins each call anew.",
    )


def filled_up(rows, filler):
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
    return ids[:-1] if len(ids) > 1 and ids[-1] == stop else ids


def without_both(ids, stop):
    return without_stop(ids, stop)[1:]


def barred(logits, ids):
    """Return the logits, or rows of them, without a chance for `ids`."""
    logits = logits.copy()
    logits[..., [token for token in ids if token < logits.shape[-1]]] = -np.inf
    return logits


def prefixes(pairs):
    return [pair for n in range(len(pairs)) for pair in pairs[: n + 1]]


def anew(pairs):
    """Count the places of all that is read from 0 to the end."""
    return [(i, token) for i, (_, token) in enumerate(pairs)]


TEXT = Text(globals())


def _adapt(function: Callable) -> Callable:
    """Return `function` with lists of ids as arrays of the model's library."""

    def decode(model, start, stop, max_length):
        ids = function(model, start, stop, max_length)
        if getattr(ids, "shape", None) == (0,):  # whose dtype says nothing
            ids = []
        if not isinstance(ids, (list, tuple)):
            return ids
        try:
            row = np.array([int(token) for token in ids], dtype=np.int64)
        except Exception:  # rows of a batch, or anything else
            return ids
        return row if model.library == "numpy" else move(row, model.library)

    return signed_as(function, decode)


def each_is_the_likeliest(case: Case, values: Values, again: Callable) -> str | None:
    """Look for the first token that is not the likeliest after those before it."""
    start, ids = case.arguments["start"], values[0].tolist()
    model = Toy(next(iter(case.arguments.values())).seed)
    if values[0].ndim != 1 or isinstance(start, np.ndarray):
        return None
    read = [start]
    for i, token in enumerate(ids[1:] if ids[:1] == [start] else ids):
        likeliest = int(np.argmax(model(read)[-1]))
        if token != likeliest:
            best = f"after {read} the largest logit is that of {likeliest}."
            return f"Your token {i + 1} is {token}, and {best}"
        read.append(token)
    return None


def _case(seed: int, max_length: int, start: Any = 1, kind: type[Toy] = Toy) -> Case:
    name = "step" if kind is ToyStep else "model"
    return Case({name: kind(seed), "start": start, "stop": 2, "max_length": max_length})


_SEEDS = ((0, 5), (48, 6), (39, 9), (17, 2), (20, 4), (0, 1), (9, 7))
"""Seed and max_length: never, soon, late, at the very end, at once, one token, never."""
_SHOWN = {
    "with the start token and with the stop token": lambda ids, stop: ids,
    "with the start token and without the stop token": without_stop,
    "without the start token and with the stop token": without_start,
    "without the start token and without the stop token": without_both,
}


def _check(cached: bool, text: str) -> Check:
    kind, read = (ToyStep, read_step_by_step) if cached else (Toy, read_whole)
    steps = {**TEXT.steps, "shown": _SHOWN[text]}
    batch = Stage((_case(5, 8, np.array([1, 3, 5])),), beyond="a batch of starts")
    batches = not cached and text.endswith("with the stop token")
    return Check(
        name="greedy_decode, cached" if cached else "greedy_decode",
        parameters=("step" if cached else "model", "start", "stop", "max_length"),
        results={"ids": "(n,)"},
        compute=partial(decode, read),
        steps=steps,
        stages=(
            Stage(
                tuple(_case(*sizes, kind=kind) for sizes in _SEEDS),
                errors={TooLong: "neither stop nor limit"},
            ),
            Stage(tuple(_case(*sizes, start=2, kind=kind) for sizes in _SEEDS[:3])),
            Stage((_case(0, 0, kind=kind),), may_raise="max_length = 0"),
            *((batch,) if batches else ()),
        ),
        mistakes=(
            *(TEXT["cache mistakes"] if cached else TEXT["prefix mistakes"]),
            *TEXT["token mistakes"],
            *(TEXT["batch mistakes"] if batches else ()),
        ),
        properties=(each_is_the_likeliest,),
        adapt=_adapt,
        kind="integral",
        any_length=True,
    )


WHOLE, CACHED = (
    {f"you return the ids {text}.": _check(cached, text) for text in _SHOWN}
    for cached in (False, True)
)
