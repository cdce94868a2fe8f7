"""The check of greedy decoding, with the whole prefix or with a cache."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attnbook.arrays.move import move
from attnbook.check._calls import signature_of
from attnbook.check._either import either
from attnbook.check._greedy_mistakes import (
    OF_BATCHES,
    STOPS,
    WITH_CACHE,
    WITHOUT_CACHE,
    argmax_of_last,
    decoding,
    right,
    sequences_of,
    step_by_step,
)
from attnbook.check._model import Case, Check, Mistake, Stage, Values
from attnbook.check._report import Report
from attnbook.check._toy import Toy, ToyStep


def greedy_decode(f: Callable, *, cached: bool = False, time_limit: float = 10.0) -> Report:
    """Check greedy decoding: append the likeliest token until the stop token or a limit.

    Runs `f` on toy models whose logits depend on every token before them and on its position; on
    one that stops early, one that stops at once and one that never stops, and on a batch.

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
    time_limit : float
        Seconds for all calls together, in each convention.

    Returns
    -------
    Report

    Raises
    ------
    TypeError, ValueError
        If `f` is not callable, or `time_limit` is not a finite number of at least 0.

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
    report = either(_CACHED if cached else _WHOLE, f, time_limit)
    if report.mistake != "not deterministic":
        return report
    return replace(
        report,
        mistake="sampled",
        message="Your function gives two results for one model: it draws tokens at random. Greedy "
        "decoding takes the token with the largest logit, always the same.",
    )


def _adapt(function: Callable) -> Callable:
    """Return `function` with lists of ids as arrays of the model's library."""

    def decode(model, start, stop, max_length):
        ids = function(model, start, stop, max_length)
        if not isinstance(ids, (list, tuple)):
            return ids
        try:
            row = np.array([int(token) for token in ids], dtype=np.int64)
        except Exception:  # rows of a batch, or anything else
            return ids
        return row if model.library == "numpy" else move(row, model.library)

    try:
        decode.__signature__ = signature_of(function)  # type: ignore[attr-defined]
    except Exception:  # some functions do not tell
        return function
    return decode


def each_is_the_likeliest(case: Case, values: Values, again: Callable) -> str | None:
    """Look for the first token that is not the likeliest after those before it."""
    start, ids = case.arguments["start"], values[0].tolist()
    model = Toy(next(iter(case.arguments.values())).seed)
    if values[0].ndim != 1 or isinstance(start, np.ndarray):
        return None
    read = [start]
    for i, token in enumerate(ids[1:] if ids[:1] == [start] else ids):
        likeliest = argmax_of_last(model, read)
        if token != likeliest:
            return (
                f"Your token {i + 1} is {token}, and after {read} the largest logit is that of "
                f"{likeliest}."
            )
        read.append(token)
    return None


def _case(seed: int, max_length: int, start: Any = 1, kind: type[Toy] = Toy) -> Case:
    name = "step" if kind is ToyStep else "model"
    return Case({name: kind(seed), "start": start, "stop": 2, "max_length": max_length})


_SEEDS = ((0, 5), (48, 6), (39, 9), (17, 2), (20, 4), (0, 1), (9, 7))
"""Seed and max_length: never, soon, late, at the very end, at once, one token, never."""


def _check(cached: bool, with_start: bool, with_stop: bool) -> Check:
    kind, step = (ToyStep, step_by_step) if cached else (Toy, argmax_of_last)

    def sequences(decode: Callable) -> Callable:
        return partial(sequences_of, with_start=with_start, with_stop=with_stop, decode=decode)

    def of_batches(wrong: Callable) -> Callable:
        def model(model, start, *limits):
            if isinstance(start, np.ndarray):
                return wrong(model, start, *limits)[:, 0 if with_start else 1 :]
            return sequences(right)(model, start, *limits)

        return model

    def axis_kept(*given):
        return sequences(decoding(step))(*given)[np.newaxis]

    own = WITH_CACHE if cached else WITHOUT_CACHE
    batches = with_stop and not cached
    return Check(
        name="greedy_decode, cached" if cached else "greedy_decode",
        parameters=("step" if cached else "model", "start", "stop", "max_length"),
        results={"ids": "(n,)"},
        reference=sequences(decoding(step)),
        stages=(
            Stage(tuple(_case(*sizes, kind=kind) for sizes in _SEEDS)),
            *(
                (Stage((_case(5, 8, np.array([1, 3, 5])),), beyond="a batch of starts"),)
                if batches
                else ()
            ),
        ),
        mistakes=(
            *(
                Mistake(name, message, tuple(map(sequences, decodes)))
                for name, message, decodes in own
            ),
            *(Mistake(name, text, (sequences(wrong(step)),)) for name, text, wrong in STOPS),
            Mistake(
                "batch axis kept",
                "You return a batch of one sequence, (1, n). For one start return (n,): ids[0].",
                (axis_kept,),
            ),
            *(
                Mistake(name, message, (of_batches(wrong),))
                for name, message, wrong in (OF_BATCHES if batches else ())
            ),
        ),
        properties=(each_is_the_likeliest,),
        options=(),
        remarked_options=(),
        adapt=_adapt,
        kind="integral",
        any_length=True,
    )


def _conventions(cached: bool) -> dict[str, Check]:
    said = {True: "with", False: "without"}
    return {
        f"you return the ids {said[start]} the start token and {said[stop]} the stop token.": (
            _check(cached, start, stop)
        )
        for start in (True, False)
        for stop in (True, False)
    }


_WHOLE, _CACHED = _conventions(cached=False), _conventions(cached=True)
GREEDY_DECODE, GREEDY_DECODE_CACHED = (
    next(iter(conventions.values())) for conventions in (_WHOLE, _CACHED)
)
