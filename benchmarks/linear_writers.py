"""Writers with a state in place of a cache: softmax, linear, gated delta and a hybrid, compared.

Four tables. `rates`: the learning rate of each architecture, found on the validation plays. `runs`:
each trained with three seeds on as many tokens, its loss on the test plays by position, far beyond
the length of training. `recall`: small models of the same layers that look pairs up. `decoding`:
time and memory per token after a context of each length. A run that is finished is kept, and a
benchmark that was interrupted goes on.
"""

import importlib.util
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from attnbook import data
from benchmarks import linear_decoding, linear_models, linear_recall
from benchmarks.linear_models import ARCHITECTURES, kinds_of, settings, writer_of
from benchmarks.rivals import Text, texts
from benchmarks.scaling import find_rate
from benchmarks.tables import Runs, Step, Tables

DEVICES = ("cpu",)
WHOLE = True  # its tables build on one another, so all are measured
SECONDS = 3600.0  # for one table

ModelOf = Callable[[str, int, int, int, dict[str, Any]], tuple[Any, dict[str, Any]]]
"""As `model_of`, a function that makes writers by name, with what the record says of them."""

FULL: dict[str, Any] = {
    "sizes": {"d_model": 64, "n_heads": 4, "n_states": 2, "d_ff": 176},
    **{"n_layers": 4, "vocabulary": 512, "context": 512, "batch": 4},
    **{"steps": 300, "tuned": 100, "start": 8e-3, "seeds": 3},
    **{"longest": 4096, "edges": (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)},
    "recall": linear_recall.FULL,
    "decoding": linear_decoding.FULL,
}
QUICK: dict[str, Any] = {
    "sizes": {"d_model": 8, "n_heads": 2, "n_states": 2, "d_ff": 16},
    **{"n_layers": 4, "vocabulary": 300, "context": 32, "batch": 2},
    **{"steps": 2, "tuned": 2, "start": 8e-3, "seeds": 1},
    **{"longest": 64, "edges": (0, 16, 32, 64)},
    "recall": linear_recall.QUICK,
    "decoding": linear_decoding.QUICK,
}

METHODS = {
    "recipe": (
        "AdamW, betas 0.9 and 0.98, weight decay 0.1 of the matrices; a tenth of the updates warm "
        "up, then a cosine to a twentieth of the rate; gradients clipped at 1, no dropout, "
        "float32. The windows of the training plays do not overlap, and no run reads a token "
        "twice. All architectures read the same windows in the same order."
    ),
    "lr": (
        "For each architecture the best of rates that differ by factors of 2, by the validation "
        "plays, in shorter runs with seed 0: from `start`, as long as the half or the double of "
        "the best so far is better."
    ),
    "validation": (
        "Mean loss in nats a token over every fourth window of the validation plays, of the length "
        "of training."
    ),
    "by_position": (
        "Mean loss in nats a token of the test plays, in windows of `longest` tokens that do not "
        "overlap, over the tokens that follow at least edges[i] and fewer than edges[i + 1] tokens "
        "of their window. A writer was trained on windows of `context` tokens."
    ),
    "test": "The same over positions below `context`, the length of training.",
    "parameters": "All numbers of the model; the embedding is also the output, and counts once.",
    **linear_models.METHODS,
    **linear_recall.METHODS,
    **linear_decoding.METHODS,
}


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Train all architectures, and measure what they recall and cost."""
    if importlib.util.find_spec("torch") is None:
        tables.log("needs torch")
        return
    plan = QUICK if quick else FULL
    starts = dict.fromkeys(ARCHITECTURES, plan["start"])
    kept = compared(plan, starts, model_of, quick=quick, tables=tables, methods=METHODS)
    recalled: Callable[..., Any] = partial(linear_recall.rows, plan["recall"], kept=kept)
    steps = [
        Step({"architecture": name}, 1, partial(recalled, name)) for name in linear_recall.LAYERS
    ]
    tables.measure("recall_runs", steps)
    tables.whole("decoding_rows", lambda: linear_decoding.rows(plan))
    kept.clear()


def model_of(
    name: str, seed: int, vocabulary: int, n_layers: int, sizes: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return a writer as a module, with what the record says of it."""
    return writer_of(kinds_of(name, n_layers), seed, vocabulary, sizes)


def compared(
    plan: dict[str, Any],
    starts: dict[str, float],
    model_of: ModelOf,
    *,
    quick: bool,
    tables: Tables,
    methods: dict[str, str],
) -> Runs:
    """Find the rates of these writers, train them with all seeds, and return the runs so far."""
    plays = Plays(plan, texts(quick, tables))
    about = described(plan, starts, model_of)
    tables.add(methods=methods, **plan, architectures=about, tokens=plays.tokens)
    kept, tuned = Runs(tables.path), dict[str, float]()

    def rate(name: str) -> list[dict[str, Any]]:
        tried = partial(run, plays, model_of, name, steps=plan["tuned"], seed=0, kept=kept)
        rows, tuned[name] = find_rate(tried, starts[name])
        return rows

    def trained(name: str, seed: int) -> list[dict[str, Any]]:
        options = {"steps": plan["steps"], "seed": seed, "kept": kept, "far": True}
        return [run(plays, model_of, name, tuned[name], **options)]

    steps = [Step({"architecture": name}, 1, partial(rate, name)) for name in starts]
    tables.measure("rates", steps)
    steps = [
        Step({"architecture": name, "seed": seed}, 1, partial(trained, name, seed))
        for seed in range(plan["seeds"])
        for name in starts
    ]
    tables.measure("runs", steps)
    return kept


def described(plan: dict[str, Any], names: Iterable[str], model_of: ModelOf) -> dict[str, Any]:
    """Return the layers and parameters of each architecture."""
    shape = (0, plan["vocabulary"], plan["n_layers"], plan["sizes"])
    return {name: model_of(name, *shape)[1] for name in names}


class Plays:
    """The plays as windows of the tokens of a small tokenizer."""

    def __init__(self, plan: dict[str, Any], text: Text):
        tokenizer = data.BytePairs.learn([text.train], plan["vocabulary"])
        ids = {part: tokenizer.encode(x) for part, x in text._asdict().items()}
        n, far = plan["context"], min(plan["longest"], len(ids["test"]) - 1)
        self.plan = plan
        self.train = data.windows(ids["train"], n, stride=n)
        self.held_out = data.windows(ids["validation"], n, stride=n)[::4]
        self.far = data.windows(ids["test"], far, stride=far)
        self.tokens = {part: len(x) for part, x in ids.items()}

    def batches(self, seed: int) -> data.Batches:
        """Return the batches of a training."""
        return data.Batches(
            None, self.train, self.plan["batch"], seed, start=None, stop=None, pool=1
        )

    def loss(self, model: Any) -> float:
        """Return the nats a token of the validation windows."""
        from attnbook.training import evaluate

        judge = data.Batches(None, self.held_out, 1, start=None, stop=None, pool=1)
        return evaluate(model, [judge(i) for i in range(len(judge))])

    def by_position(self, model: Any) -> list[float | None]:
        """Return the nats a token of the test windows between all edges of positions."""
        import torch

        losses = []
        for window in self.far:
            ids = torch.tensor(np.asarray(window, np.int64))[None]
            with torch.no_grad():
                logits = model(None, ids[:, :-1])
            lost = torch.nn.functional.cross_entropy(logits[0], ids[0, 1:], reduction="none")
            losses.append(lost.double().numpy())
        mean, edges = np.mean(losses, axis=0), self.plan["edges"]
        parts = [mean[a:b] for a, b in itertools.pairwise(edges)]
        return [float(np.mean(part)) if len(part) else None for part in parts]


def run(
    plays: Plays,
    model_of: ModelOf,
    name: str,
    lr: float,
    *,
    steps: int,
    seed: int,
    kept: Runs,
    far: bool = False,
) -> dict[str, Any]:
    """Return the row of a training."""
    plan = plays.plan

    def trained() -> dict[str, Any]:
        model, _ = model_of(name, seed, plan["vocabulary"], plan["n_layers"], plan["sizes"])
        return {"architecture": name} | row_of(plays, model, lr, steps, seed, far)

    about = [name, lr, steps, seed, far, plan["sizes"], plan["context"]]
    return kept.get(json.dumps(about), trained)


def row_of(plays: Plays, model: Any, lr: float, steps: int, seed: int, far: bool) -> dict[str, Any]:
    """Train this writer, and return what its row says of the training."""
    from attnbook.training import train

    begin, plan = time.perf_counter(), plays.plan
    train(model, plays.batches(seed), settings(steps, lr, seed))
    seconds = time.perf_counter() - begin
    row: dict[str, Any] = {
        "lr": lr,
        "seed": seed,
        "steps": steps,
        "tokens": steps * plan["batch"] * plan["context"],
        "validation": plays.loss(model),
    }
    if far:
        row["by_position"] = plays.by_position(model)
        row["test"] = within(plan, row["by_position"])
    return row | {"seconds": round(seconds, 1)}


def within(plan: dict[str, Any], by_position: list[float | None]) -> float:
    """Return the mean loss over the positions below the length of training."""
    edges = plan["edges"]
    pairs = list(zip(edges[:-1], edges[1:], by_position, strict=True))
    known = [(b - a, x) for a, b, x in pairs if b <= plan["context"] and x is not None]
    return math.fsum(n * x for n, x in known) / sum(n for n, _ in known)
