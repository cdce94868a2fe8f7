"""Tokens or updates? The shortest runs of `scaling` again, with four times the updates.

In `scaling` a batch has one size, so that more tokens are more updates. Batches of a fourth of that
size tell them apart, for the smallest model: one table, with a row for each run.
"""

import importlib.util
from functools import partial
from typing import Any

from benchmarks import scaling
from benchmarks.tables import Runs, Step, Tables

DEVICES = ("cpu",)
SECONDS = 3600.0  # for its table
SEEDS = 2
SHARES = (1, 1 / 4)  # of the batch of `scaling`

METHODS = {
    "recipe": scaling.METHODS["recipe"],
    "lr": (
        "For each batch the best of rates that differ by factors of 2, by the validation "
        "plays, with seed 0; seed 1 has this rate alone."
    ),
    "batch": "Windows of 256 tokens in a batch.",
    "nats_a_token, validation": scaling.METHODS["nats_a_token, validation"],
}


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Train one size in batches of two sizes; nothing here runs on another device."""
    if importlib.util.find_spec("torch") is None:
        tables.log("needs torch")
        return
    plan = scaling.QUICK if quick else scaling.FULL
    plays = scaling.Plays(plan, quick, tables)
    tables.add(methods=METHODS, kind=scaling.KIND, size=plan["sizes"][0], **plays.facts())
    kept = Runs(tables.path)
    steps = []
    for share in SHARES:
        about = {"batch": round(share * plan["batch"])}
        steps.append(Step(about, 1, partial(runs, plays, kept=kept, **about)))
    tables.measure("runs", steps)
    kept.clear()


def runs(plays: scaling.Plays, batch: int, kept: Runs) -> list[dict[str, Any]]:
    """Return the rows of all rates with seed 0, and of the best one with the other seeds."""
    plays.plan = plays.plan | {"batch": batch}
    run = partial(scaling.run, plays, 0, epochs=scaling.TUNED, kept=kept)
    rows, best = scaling.find_rate(run, 2 * scaling.START)
    rows += [run(best, seed=seed) for seed in range(1, SEEDS)]
    return [{"batch": batch, **row} for row in rows]
