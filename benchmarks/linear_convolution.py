"""Linear attention without its short convolution, and softmax with one: two more small writers.

They complete `linear_writers`, whose softmax has no convolution and whose layers with a state all
have one. Three tables, as there: `rates`, `runs` and `recall_runs`, with its data, sizes, steps and
seeds. A run that is finished is kept, and a benchmark that was interrupted goes on.
"""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import linear_recall, linear_writers
from benchmarks.linear_models import UNMIXED, WIDTH, about_of, weights_of, writer_of
from benchmarks.linear_writers import compared
from benchmarks.tables import Runs, Step, Tables

DEVICES = ("cpu",)
WHOLE = True  # its tables build on one another, so all are measured
SECONDS = 1800.0  # for one table

CONVOLVED = "softmax with convolution"
FROM_IDENTITY = {
    "linear from identity": "linear",
    "softmax with convolution from identity": CONVOLVED,
}
"""Writers of `linear_filters`, whose filters pass each token alone before training."""

STARTS = {UNMIXED: 3.2e-2, CONVOLVED: 1.6e-2}
"""The writers, and the first rate of each: the best of `linear` and of `softmax`."""

METHODS = {
    UNMIXED: (
        "The layer `linear` of `linear_writers` without the filters; queries, keys and values "
        "still pass SiLU, and gate and normalisation stay. The feed-forward networks are wider by "
        "as many parameters."
    ),
    CONVOLVED: (
        "The heads `softmax` of `linear_writers` whose queries, keys and values pass causal "
        f"filters of width {WIDTH}, one for each feature, and SiLU, as in the layer `linear`, and "
        "are rotated after it; no gate and no normalisation of the heads. The feed-forward "
        "networks are narrower by as many parameters."
    ),
    "lr": (
        "As in `linear_writers`, but from `starts`, the rates that were best there for `linear` "
        "and for `softmax`."
    ),
    **{
        name: linear_writers.METHODS[name]
        for name in ("recipe", "validation", "by_position", "test", "parameters")
    },
    "recall_runs": f"{linear_recall.METHODS['recall_runs'].rpartition(' The hybrid')[0]}",
}


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Train both writers with all seeds, and measure what they recall."""
    if importlib.util.find_spec("torch") is None:
        tables.log("needs torch")
        return
    plan = plan_of(quick) | {"starts": STARTS}
    kept = compared(plan, STARTS, model_of, quick=quick, tables=tables, methods=METHODS)
    recalled: Callable[..., Any] = partial(recall, plan["recall"], kept=kept)
    steps = [
        Step({"architecture": name, "seed": seed}, 1, partial(recalled, name, seed))
        for name in reversed(STARTS)
        for seed in range(plan["recall"]["seeds"])
    ]
    tables.measure("recall_runs", steps)
    kept.clear()


def plan_of(quick: bool) -> dict[str, Any]:
    """Return the settings of `linear_writers` that hold here, too."""
    plan = linear_writers.QUICK if quick else linear_writers.FULL
    return {name: x for name, x in plan.items() if name not in ("start", "decoding")}


def model_of(
    name: str, seed: int, vocabulary: int, n_layers: int, sizes: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return a writer as a module, with what the record says of it."""
    from benchmarks.linear_convolved import Convolved, pass_through

    kind = FROM_IDENTITY.get(name, name)
    kinds = [kind] * n_layers
    if kind == CONVOLVED:
        # Filters of WIDTH · 3 d_model parameters stand for WIDTH of the hidden units.
        narrower = {**sizes, "d_ff": sizes["d_ff"] - WIDTH}
        drawn = weights_of(["softmax"] * n_layers, seed, vocabulary, **narrower)
        model: Any = Convolved(drawn, seed)
        about = about_of(kinds, drawn, sum(x.numel() for x in model.filters))
    else:
        model, about = writer_of(kinds, seed, vocabulary, sizes)
    if name in FROM_IDENTITY:
        pass_through(model)
    return model, about


def recall(plan: dict[str, Any], name: str, seed: int, *, kept: Runs) -> list[dict[str, Any]]:
    """Return the row of a model of two layers that looks pairs up."""
    make = partial(model_of, name, seed, linear_recall.VOCABULARY, 2, plan["sizes"])
    return [linear_recall.run(plan, name, seed, make, kept)]
