"""Whole self-attention, approximated: the sketch and its rivals, on the keys of a trained writer.

Tables: `rivals`, what each way to attend does here. `concentration`, how many keys the heads need.
`settings`, every setting that was tried on validation data. `self_attention`, the chosen ones on
test data, beside exact attention. `crossing`, speeds by length. `heads`, their errors head by head.
`estimators`, which estimate to take of the keys that were found.
"""

from functools import partial
from typing import Any

from benchmarks import (
    approximate_estimators,
    approximate_model,
    approximate_speed,
    approximate_toys,
    harness,
)
from benchmarks.approximate_methods import METHODS, Method
from benchmarks.approximate_speed import CROSSING, QUICK_SIZES, SIZES, TARGETS, at_length
from benchmarks.tables import Tables

DEVICES = ("cpu",)
TRAINED = 4096  # tokens of the writer's training, at which all ways are compared
SHOWN = (*CROSSING, "MagicPIG", "tables")  # whose heads the chapter shows
UNTIMED = ("concentration", "estimators", "heads")  # any machine may measure them again

ABOUT = {
    "rivals": "What each way to attend does here, and what is simpler than in its source.",
}


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure all tables."""
    about = {"quick": quick, "log": tables.log}
    n = QUICK_SIZES[0] if quick else TRAINED
    case = at_length(n, quick)

    def chosen(length=n):
        return approximate_speed.choices(tables.record["settings"], length)

    parts = {
        "concentration": lambda: list(approximate_model.concentration(case.every())),
        "estimators": partial(approximate_estimators.estimators, **about),
        "settings": lambda: [
            row
            for size in (QUICK_SIZES if quick else SIZES)
            for row in approximate_speed.tuned(
                at_length(size, quick), names=None if size == n else CROSSING, **about
            )
        ],
        "self_attention": lambda: approximate_speed.compared(case, chosen(), **about),
        "crossing": lambda: list(approximate_speed.crossing(chosen, **about)),
        "heads": lambda: list(
            approximate_model.heads(
                case,
                [
                    way
                    for way in chosen()
                    if way["method"] in SHOWN and way["target"] == max(TARGETS)
                ],
            )
        ),
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


def rival(method: Method) -> dict[str, Any]:
    """Return what a way to attend is."""
    names = ("source", "does", "simplified", "is_random")
    return {"method": method.name} | {name: getattr(method, name) for name in names}
