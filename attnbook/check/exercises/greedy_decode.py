"""The check of greedy decoding, with the whole prefix or with a cache."""

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
from attnbook.check.shared import continuation
from attnbook.check.shared.toy_models import TooLong, Toy, ToyStep


@documented
def greedy_decode(f: Callable, *, cached: bool = False, time_limit: float = 10.0) -> Report:
    """Check greedy decoding: append the likeliest token until the stop token or a limit.

    Runs `f` on toy models that stop at once, early or never, from a start token that is the stop
    token, for no token at all, and on a batch.
    Their logits depend on every token before them and on its position.

    Parameters
    ----------
    f : callable
        Called as ``f(model, start, stop, max_length)``, by position. ``model(ids)`` takes ids
        (..., n) and returns logits (..., n, V), the last of which belong to the next token; `start`
        and `stop` are token ids, and at most `max_length` tokens follow the start. It returns their
        ids in one array or list. With the start token or without it, and with the stop token or
        without it, are all right, and a remark says which it is. On a batch, where `start` is an
        array (batch,), rows that are done are filled with `stop`.
    cached : bool
        Then `f` is called as ``f(step, start, stop, max_length)``, and ``step(token, position,
        cache)`` returns the logits (V,) of the next token, and the new cache. The cache is None at
        first and the start token stands at position 0.

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
    "with the start token and without the stop token": continuation.without_stop,
    "without the start token and with the stop token": continuation.without_start,
    "without the start token and without the stop token": continuation.without_both,
}


def _check(cached: bool, text: str) -> Check:
    kind, read = (
        (ToyStep, continuation.read_step_by_step) if cached else (Toy, continuation.read_whole)
    )
    steps = {**continuation.TEXT.steps, "shown": _SHOWN[text]}
    batch = Stage((_case(5, 8, np.array([1, 3, 5])),), beyond="a batch of starts")
    batches = not cached and text.endswith("with the stop token")
    return Check(
        name="greedy_decode, cached" if cached else "greedy_decode",
        parameters=("step" if cached else "model", "start", "stop", "max_length"),
        results={"ids": "(n,)"},
        compute=partial(continuation.decode, read),
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
            *(continuation.CACHE_MISTAKES if cached else continuation.PREFIX_MISTAKES),
            *continuation.TOKEN_MISTAKES,
            *(continuation.BATCH_MISTAKES if batches else ()),
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
