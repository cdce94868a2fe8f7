"""Whole self-attention, approximated: the sketch and its rivals, on real keys and on toys.

Tables: `rivals`, what each way to attend does here. `concentration`, how many keys the heads need.
`settings`, every setting that was tried on validation data. `self_attention`, the chosen ones on
test data, beside exact attention. `crossing`, speeds by length. `heads`, their errors head by head.
`loss`, what a model loses. `estimators`, which estimate to take of the keys that were found.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks import (
    approximate_estimators,
    approximate_keys,
    approximate_model,
    approximate_speed,
    approximate_toys,
    harness,
)
from benchmarks.approximate_keys import TOYS, Case
from benchmarks.approximate_methods import METHODS, Method
from benchmarks.approximate_speed import CROSSING, QUICK_SIZES, SIZES, TARGETS, at_length, of_case
from benchmarks.tables import Tables

DEVICES = ("cpu",)
COLLECTION = 100_000  # tokens of the encoder
SHORT, LONG = 4096, 16_384  # tokens of the writer
UNTIMED = ("concentration", "estimators", "heads", "loss")  # any machine may measure them again

ABOUT = {
    "rivals": "What each way to attend does here, and what is simpler than in its source.",
}


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure all tables."""
    log, about = tables.log, {"quick": quick, "log": tables.log}
    writers = list(_writers(quick))

    def chosen():
        return approximate_speed.choices(tables.record["settings"])

    def of_writers(table, *more):
        ways = chosen()
        return [
            row
            for i, case in enumerate(writers)
            for row in table(case, _fewer(of_case(ways, case.keys, case.n), i), *more)
        ]

    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "concentration": lambda: [
            row for case in _concentrated(quick) for row in approximate_model.concentration(case)
        ],
        "settings": lambda: [
            row
            for case, names in _tuned(quick)
            for row in approximate_speed.tuned(case, log, quick=quick, names=names)
        ],
        "estimators": partial(approximate_estimators.estimators, **about),
        "self_attention": lambda: [
            row
            for case in _cases(quick)
            for row in approximate_speed.compared(case, chosen(), **about)
        ],
        "crossing": lambda: list(approximate_speed.crossing(chosen(), **about)),
        "heads": lambda: of_writers(approximate_model.heads),
        "loss": lambda: of_writers(approximate_model.losses, log, *([()] if quick else [])),
    }
    describe(tables)
    for name, part in parts.items():
        tables.whole(name, part)


def describe(tables: Tables) -> None:
    """Put into the record what is no measurement."""
    about = (approximate_speed, approximate_model, approximate_estimators)
    methods = harness.METHODS | ABOUT
    for module in about:
        methods |= module.ABOUT
    tables.add(
        methods=methods,
        inputs=approximate_toys.KINDS,
        error=approximate_speed.ERROR,
        targets=TARGETS,
    )
    tables.add(rivals=[rival(method) for method in METHODS])


def _writers(quick: bool) -> Iterator[Case]:
    """Yield the keys of a writer, at the length of its training and beyond."""
    for n in QUICK_SIZES if quick else (SHORT, LONG):
        yield at_length(n, quick)


def _cases(quick: bool) -> Iterator[Case]:
    """Yield all keys on which the ways are compared, the short ones first."""
    yield from _writers(quick)
    for kind in ("shared",) if quick else TOYS:
        yield approximate_keys.toy(kind, 512 if quick else 8192)
    if not quick:
        yield approximate_keys.encoder(LONG)


def _tuned(quick: bool) -> Iterator[tuple[Case, Sequence[str] | None]]:
    """Yield keys, and the ways whose settings are tried on them, None for all."""
    yield from ((case, None) for case in _cases(quick))
    for n in () if quick else SIZES:
        if n not in (SHORT, LONG):
            yield at_length(n, quick), CROSSING


def _concentrated(quick: bool) -> Iterator[Case]:
    """Yield the keys of all heads."""
    yield from (case.every() for case in _writers(quick))
    if quick:
        yield approximate_keys.toy("random", 512)
    else:
        yield from (approximate_keys.toy(kind, 8192) for kind in TOYS)
        yield from approximate_keys.encoder_layers(COLLECTION)


def _fewer(ways, place):
    """Return all ways for the first keys, and those that may be fast for the longer ones."""
    return ways if place == 0 else [way for way in ways if way["method"] in CROSSING]


def rival(method: Method) -> dict[str, Any]:
    """Return what a way to attend is."""
    names = ("source", "does", "simplified", "is_random")
    return {"method": method.name} | {name: getattr(method, name) for name in names}
