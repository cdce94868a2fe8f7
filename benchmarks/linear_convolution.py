"""Linear attention without its short convolution, and softmax with one: two more small writers.

They complete `linear_writers`, whose softmax has no convolution and whose layers with a state all
have one. Three tables, as there: `rates`, `runs` and `recall_runs`, with its data, sizes, steps and
seeds. A run that is finished is kept, and a benchmark that was interrupted goes on.
"""

import importlib.util
import json
from collections.abc import Iterable
from functools import partial
from typing import Any

from benchmarks import linear_recall, linear_writers
from benchmarks.linear_models import UNMIXED, WIDTH, counted, weights_of
from benchmarks.linear_writers import Plays
from benchmarks.rivals import texts
from benchmarks.scaling import find_rate
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
    plan = plan_of(quick)
    kept = compared(plan, STARTS, quick=quick, tables=tables, methods=METHODS)
    steps = [
        Step(
            {"architecture": name, "seed": seed},
            1,
            lambda name=name, seed=seed: [recalled(plan["recall"], name, seed, kept)],
        )
        for name in reversed(STARTS)
        for seed in range(plan["recall"]["seeds"])
    ]
    tables.measure("recall_runs", steps)
    kept.clear()


def plan_of(quick: bool) -> dict[str, Any]:
    """Return the settings of `linear_writers` that hold here, too."""
    plan = linear_writers.QUICK if quick else linear_writers.FULL
    return {name: x for name, x in plan.items() if name not in ("start", "decoding")}


def compared(
    plan: dict[str, Any],
    starts: dict[str, float],
    *,
    quick: bool,
    tables: Tables,
    methods: dict[str, str],
) -> Runs:
    """Find the rates of these writers, train them with all seeds, and return the runs so far."""
    plays = Plays(plan, texts(quick, tables))
    about = {"starts": starts, "architectures": described(plan, starts), "tokens": plays.tokens}
    tables.add(methods=methods, **plan, **about)
    kept, tuned = Runs(tables.path), dict[str, float]()

    def rate(name: str) -> list[dict[str, Any]]:
        tried = partial(run, plays, name, steps=plan["tuned"], seed=0, kept=kept)
        rows, tuned[name] = find_rate(tried, starts[name])
        return rows

    steps = [Step({"architecture": name}, 1, partial(rate, name)) for name in starts]
    tables.measure("rates", steps)
    steps = [
        Step(
            {"architecture": name, "seed": seed},
            1,
            lambda name=name, seed=seed: [
                run(plays, name, tuned[name], steps=plan["steps"], seed=seed, kept=kept, far=True)
            ],
        )
        for seed in range(plan["seeds"])
        for name in starts
    ]
    tables.measure("runs", steps)
    return kept


def model_of(
    name: str, seed: int, vocabulary: int, n_layers: int, sizes: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return a writer as a module, with what the record says of it."""
    from attnbook import nn
    from benchmarks.linear_convolved import Convolved, pass_through

    model: Any
    kind = FROM_IDENTITY.get(name, name)
    if kind == CONVOLVED:
        # Filters of WIDTH · 3 d_model parameters stand for WIDTH of the hidden units.
        narrower = {**sizes, "d_ff": sizes["d_ff"] - WIDTH}
        drawn = weights_of(["softmax"] * n_layers, seed, vocabulary, **narrower)
        model = Convolved(drawn, seed)
        added = sum(x.numel() for x in model.filters)
    else:
        drawn, added = weights_of([kind] * n_layers, seed, vocabulary, **sizes), 0
        model = nn.Transformer(drawn.to("torch", dtype="float32"), impl="packed")
    if name in FROM_IDENTITY:
        pass_through(model)
    widths = [layer.feed_forward.W_1.shape[1] for layer in drawn.decoder.layers]
    about = {"layers": [kind] * n_layers, "d_ff": widths, "parameters": counted(drawn) + added}
    return model, about


def described(plan: dict[str, Any], names: Iterable[str] = STARTS) -> dict[str, Any]:
    """Return the layers and parameters of each architecture."""
    shape = (0, plan["vocabulary"], plan["n_layers"], plan["sizes"])
    return {name: model_of(name, *shape)[1] for name in names}


def run(
    plays: Plays, name: str, lr: float, *, steps: int, seed: int, kept: Runs, far: bool = False
) -> dict[str, Any]:
    """Return the row of a training."""
    plan = plays.plan

    def trained() -> dict[str, Any]:
        model, _ = model_of(name, seed, plan["vocabulary"], plan["n_layers"], plan["sizes"])
        row = linear_writers.row_of(plays, model, lr, steps, seed, far)
        return {"architecture": name} | row

    about = [name, lr, steps, seed, far, plan["sizes"], plan["context"]]
    return kept.get(json.dumps(about), trained)


def recalled(plan: dict[str, Any], name: str, seed: int, kept: Runs) -> dict[str, Any]:
    """Return the row of a model of two layers that looks pairs up."""

    def trained() -> dict[str, Any]:
        model, about = model_of(name, seed, linear_recall.VOCABULARY, 2, plan["sizes"])
        row = {"architecture": name, "layers": about["layers"], "seed": seed}
        row["parameters"] = about["parameters"]
        return row | linear_recall.row_of(plan, model, seed)

    return kept.get(json.dumps(["recall", plan, name, seed]), trained)
