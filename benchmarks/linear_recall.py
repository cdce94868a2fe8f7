"""The recall task of `linear_writers`: pairs of key and value, then each key asks for its value.

A sequence holds p pairs with different keys, and then all p keys again in another order, each
followed by its value. Only these values are predicted, so a loss of 0 needs p pairs in memory.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnbook.data.batch import Batch
from benchmarks.linear_models import settings, writer_of
from benchmarks.tables import Runs

KEYS, VALUES = 64, 32
VOCABULARY = KEYS + VALUES

FULL: dict[str, Any] = {
    "sizes": {"d_model": 64, "n_heads": 2, "n_states": 2, "d_ff": 128},
    **{"pairs": (2, 4, 8, 16, 32), "tested": (2, 4, 8, 16, 32, 64), "batch": 16, "steps": 1200},
    **{"lr": 1e-2, "seeds": 2, "n_tested": 128},
}
QUICK: dict[str, Any] = {
    "sizes": {"d_model": 8, "n_heads": 2, "n_states": 2, "d_ff": 16},
    **{"pairs": (2, 4), "tested": (2, 8), "batch": 4, "steps": 2, "lr": 1e-2, "seeds": 1},
    **{"n_tested": 8},
}
LAYERS = {
    "softmax": ("softmax", "softmax"),
    "linear": ("linear", "linear"),
    "gated delta": ("gated delta", "gated delta"),
    "hybrid": ("gated delta", "softmax"),
}
"""The layers of each model: two are enough, so half of the hybrid's are softmax."""

METHODS = {
    "recall_runs": (
        "Models of two layers read p pairs of a key and a value, then all p keys in another order, "
        "and are trained to predict the value after each, with each number in `pairs` in turn. "
        "`accuracy` is the share of values that are the most likely token, on new sequences, for "
        "each number in `tested`; `curve` has the mean loss of each tenth of the training. There "
        f"are {KEYS} keys and {VALUES} values, and one learning rate for all. The hybrid has one "
        "layer of each kind."
    ),
}


def sequences(rng: "np.random.Generator", batch: int, pairs: int) -> np.ndarray:
    """Draw `batch` sequences of 4·pairs tokens; keys are the ids below `KEYS`."""
    keys = np.argsort(rng.random((batch, KEYS)), axis=1)[:, :pairs]
    values = KEYS + rng.integers(0, VALUES, (batch, pairs))
    order = np.argsort(rng.random((batch, pairs)), axis=1)
    asked, told = (np.take_along_axis(x, order, axis=1) for x in (keys, values))
    both = [np.stack(x, axis=-1).reshape(batch, -1) for x in ((keys, values), (asked, told))]
    return np.concatenate(both, axis=1)


def answers(n: int) -> slice:
    """Return which of the n = 4·pairs - 1 rows of logits predict an answer."""
    return slice((n + 1) // 2, None, 2)


class Questions:
    """The batches of a training: each has one number of pairs, in turn."""

    def __init__(self, pairs: tuple[int, ...], batch: int, seed: int):
        self.pairs, self.batch, self.seed = pairs, batch, seed

    def __call__(self, step: int) -> Batch:
        """Return the batch of `step`."""
        rng = np.random.default_rng([self.seed, step])
        target = sequences(rng, self.batch, self.pairs[step % len(self.pairs)])
        return Batch(None, target, None, np.full(len(target), target.shape[1]))


def answers_loss(logits: Any, labels: Any, mask: Any) -> Any:
    """Return the mean cross-entropy of the answers."""
    from attnbook.training.loss import cross_entropy

    rows = answers(logits.shape[1])
    return cross_entropy(logits[:, rows], labels[:, rows], mask[:, rows])


def accuracy(model: Any, pairs: int, batch: int, seed: int) -> float:
    """Return the share of the answers that are the most likely token, on new sequences."""
    import torch

    target = torch.tensor(sequences(np.random.default_rng([seed, 2**31]), batch, pairs))
    with torch.no_grad():
        logits = model(None, target[:, :-1])
    rows = answers(logits.shape[1])
    right = logits[:, rows].argmax(-1) == target[:, 1:][:, rows]
    return float(right.double().mean())


def rows(plan: dict[str, Any], name: str, *, kept: Runs) -> list[dict[str, Any]]:
    """Return a row for each seed of an architecture."""
    found = []
    for seed in range(plan["seeds"]):
        make = partial(writer_of, LAYERS[name], seed, VOCABULARY, plan["sizes"])
        found.append(run(plan, name, seed, make, kept))
    return found


def run(
    plan: dict[str, Any],
    name: str,
    seed: int,
    make: Callable[[], tuple[Any, dict[str, Any]]],
    kept: Runs,
) -> dict[str, Any]:
    """Return the row of the small model that `make` makes, trained on questions."""

    def trained() -> dict[str, Any]:
        model, about = make()
        row = {"architecture": name, "layers": about["layers"], "seed": seed}
        return row | {"parameters": about["parameters"]} | row_of(plan, model, seed)

    return kept.get(json.dumps(["recall", plan, name, seed]), trained)


def row_of(plan: dict[str, Any], model: Any, seed: int) -> dict[str, Any]:
    """Train this model on questions, and return what its row says of the training."""
    from attnbook.training import train

    begin = time.perf_counter()
    questions = Questions(plan["pairs"], plan["batch"], seed)
    chosen = settings(plan["steps"], plan["lr"], seed)
    history = train(model, questions, chosen, loss=answers_loss)
    tenths = np.array_split(np.array(history.losses), min(10, plan["steps"]))
    return {
        "curve": [float(np.mean(part)) for part in tenths],
        "accuracy": [accuracy(model, pairs, plan["n_tested"], seed) for pairs in plan["tested"]],
        "seconds": round(time.perf_counter() - begin, 1),
    }
