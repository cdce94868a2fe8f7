"""Loss against parameters and tokens: five sizes of the writer's architecture, and a law for them.

Three tables. `rates`: the learning rate of each size, found on an eighth of an epoch. `runs`: each
size trained on an eighth of an epoch up to a whole one, the largest up to a half, each run with a
cosine that ends with it; no token is read twice. `fit`: Hoffmann's law through these runs, and how
well it predicts what it has not seen. A run that is finished is kept, and a benchmark that was
interrupted goes on.
"""

import importlib.util
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from attnbook import TransformerWeights, data, models
from benchmarks import scaling_fit
from benchmarks.rivals import pair_ids, texts
from benchmarks.tables import Runs, Step, Tables

DEVICES = ("cpu",)
WHOLE = True  # its tables build on one another, so all are measured
SECONDS = 3600.0  # for one table

KIND: dict[str, Any] = {
    "n_encoder_layers": 0,
    "bias": False,
    "positions": "rotary",
    "scale_embeddings": False,
    "normalization": "rms",
    "gated": True,
    "activation": "silu",
}
SIZES = (
    {"d_model": 48, "n_heads": 3, "n_kv_heads": 1, "d_ff": 128, "n_layers": 1},
    {"d_model": 64, "n_heads": 2, "n_kv_heads": 1, "d_ff": 160, "n_layers": 2},
    {"d_model": 96, "n_heads": 3, "n_kv_heads": 1, "d_ff": 256, "n_layers": 3},
    {"d_model": 128, "n_heads": 4, "n_kv_heads": 2, "d_ff": 352, "n_layers": 4},
    {"d_model": 192, "n_heads": 6, "n_kv_heads": 2, "d_ff": 512, "n_layers": 6},  # the writer
)
EPOCHS = (1 / 8, 1 / 4, 1 / 2, 1)
LONGEST = (1, 1, 1, 1, 1 / 2)  # epochs of each size; a whole one of the largest takes long
TUNED = 1 / 8  # epochs of a run that judges a rate
START = 8e-3  # the first rate that is tried, for the smallest size
SEEDS = (2, 2, 1, 1, 1)  # how many for each size
CONTEXT, BATCH = 256, 4

QUICK: dict[str, Any] = {
    "sizes": (
        {"d_model": 8, "n_heads": 2, "n_kv_heads": 1, "d_ff": 8, "n_layers": 1},
        {"d_model": 16, "n_heads": 2, "n_kv_heads": 1, "d_ff": 16, "n_layers": 1},
    ),
    **{"epochs": (1 / 4, 1 / 2, 1), "longest": (1, 1), "tuned": 1 / 4, "seeds": (2, 1)},
    **{"context": 64, "batch": 16},
}
FULL: dict[str, Any] = {
    **{"sizes": SIZES, "epochs": EPOCHS, "longest": LONGEST, "tuned": TUNED, "seeds": SEEDS},
    **{"context": CONTEXT, "batch": BATCH},
}

METHODS = {
    "recipe": (
        "AdamW, betas 0.9 and 0.98, weight decay 0.1; a tenth of the updates warm up, then a "
        "cosine to a twentieth of the rate, which ends with the run; gradients clipped at 1, no "
        "dropout, products in bfloat16. The windows of the training plays do not overlap, and no "
        "run reads a token twice."
    ),
    "lr": (
        "For each size the best of rates that differ by factors of 2, by the validation plays, in "
        "runs of an eighth of an epoch: from the best rate of the size below, as long as the half "
        "or the double of the best so far is better. It is used for all of its runs."
    ),
    "nats_a_token, validation": (
        "Mean loss over the tokens of the validation plays, in windows that do not overlap, and "
        "the same in bits per byte. A judge whose windows overlap, as of `writer`, finds less."
    ),
    "fit_of_longer_runs": "The same without the runs of an eighth of an epoch.",
    "parameters": "All numbers of the model; the embedding is also the output, and counts once.",
    **scaling_fit.METHODS,
}


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Train all sizes and fit the law; nothing here runs on another device."""
    missing = [name for name in ("torch", "scipy") if importlib.util.find_spec(name) is None]
    if missing:
        tables.log(f"needs {' and '.join(missing)}")
        return
    plan = QUICK if quick else FULL
    plays = Plays(plan, quick, tables)
    tables.add(methods=METHODS, kind=KIND, **plan, **plays.facts())
    kept = Runs(tables.path)
    tuned: dict[int, float] = {}

    def rate(i: int) -> list[dict[str, Any]]:
        rows, tuned[i] = find_rate(
            partial(run, plays, i, epochs=plan["tuned"], kept=kept), tuned.get(i - 1, START)
        )
        return rows

    sizes = range(len(plan["sizes"]))
    work = [plays.work(i) for i in sizes]
    tables.measure("rates", [Step({"size": i}, work[i], partial(rate, i)) for i in sizes])
    steps = [
        Step(
            {"size": i, "epochs": epochs, "seed": seed},
            work[i] * epochs,
            lambda i=i, e=epochs, s=seed: [run(plays, i, tuned[i], epochs=e, seed=s, kept=kept)],
        )
        for epochs in plan["epochs"]
        for i in sizes
        for seed in range(plan["seeds"][i])
        if epochs <= plan["longest"][i]
    ]
    runs = tables.measure("runs", sorted(steps, key=lambda step: step.work))
    done = [row for row in runs if "reason" not in row]
    tables.whole("fit", lambda: scaling_fit.fitted(done, "parameters_without_embedding"))
    tables.whole("fit_of_all_parameters", lambda: scaling_fit.fitted(done, "parameters"))
    longer = [row for row in done if row["tokens"] > min(row["tokens"] for row in done)]
    tables.whole(
        "fit_of_longer_runs", lambda: scaling_fit.fitted(longer, "parameters_without_embedding")
    )
    tables.whole("writer", lambda: shipped(plays, tables.record))
    kept.clear()


class Plays:
    """The plays as windows of the writer's tokens."""

    def __init__(self, plan: dict[str, Any], quick: bool, tables: Tables):
        text = texts(quick, tables)
        tokenizer = models.writer().tokenizer
        ids = pair_ids(tokenizer, text)
        self.plan, self.n_ids = plan, len(tokenizer)
        self.train = data.windows(ids.train, plan["context"], stride=plan["context"])
        self.held_out = data.windows(ids.validation, plan["context"], stride=plan["context"])
        self.bits = len(ids.validation) / len(text.validation.encode()) / math.log(2)

    def facts(self) -> dict[str, Any]:
        """Return what the record says of them."""
        n = self.plan["context"]
        return {
            "vocabulary": self.n_ids,
            "tokens": {"epoch": n * len(self.train), "validation": n * len(self.held_out)},
            "bits_a_byte_of_a_nat_a_token": self.bits,
        }

    def batches(self, seed: int) -> data.Batches:
        """Return the batches of a training."""
        options: dict[str, Any] = {"start": None, "stop": None, "pool": 1}
        return data.Batches(None, self.train, self.plan["batch"], seed, **options)

    def loss(self, model: Any) -> float:
        """Return the nats a token of the validation plays."""
        from attnbook.training import evaluate

        size = min(16, len(self.held_out))
        judge = data.Batches(None, self.held_out, size, start=None, stop=None, pool=1)
        return evaluate(model, [judge(i) for i in range(len(judge))])

    def work(self, i: int) -> float:
        """Return about how much an epoch of size `i` is: every number of the model, twice."""
        shape = self.plan["sizes"][i]
        layer = shape["d_model"] * (3 * shape["d_model"] + 3 * shape["d_ff"])
        return shape["n_layers"] * layer + self.n_ids * shape["d_model"]


def find_rate(
    tried: Callable[[float], dict[str, Any]], start: float
) -> tuple[list[dict[str, Any]], float]:
    """Return the rows of all rates that were tried, and the best: no neighbour is better."""
    rows: dict[float, dict[str, Any]] = {}
    best = start
    while True:
        for lr in (best, best / 2, best * 2):
            if lr not in rows:
                rows[lr] = tried(lr)
        better = min(rows, key=lambda lr: rows[lr]["validation"])
        if better == best:
            return [rows[lr] for lr in sorted(rows)], best
        best = better


def run(
    plays: Plays, i: int, lr: float, *, epochs: float, kept: Runs, seed: int = 0
) -> dict[str, Any]:
    """Return the row of a training of size `i`."""
    steps = round(epochs * len(plays.batches(seed)))
    key = json.dumps([plays.plan["sizes"][i], plays.facts(), plays.plan["batch"], lr, steps, seed])
    return kept.get(key, lambda: trained(plays, i, lr, steps, seed))


def trained(plays: Plays, i: int, lr: float, steps: int, seed: int) -> dict[str, Any]:
    """Train a model of size `i`, and return its row."""
    from attnbook import nn
    from attnbook.training import Settings, train

    begin = time.perf_counter()
    drawn = TransformerWeights.init(seed, plays.n_ids, **KIND, **plays.plan["sizes"][i])
    model = nn.Transformer(drawn.to("torch", dtype="float32"), impl="packed")
    settings = Settings(
        steps,
        lr=lr,
        betas=(0.9, 0.98),
        weight_decay=0.1,
        warmup=max(1, steps // 10),
        schedule="cosine",
        final_lr=lr / 20,
        clip=1.0,
        precision="bfloat16",
        seed=seed,
    )
    train(model, plays.batches(seed), settings)
    loss = plays.loss(model)
    return {
        "size": i,
        **counted(drawn),
        "tokens": steps * plays.plan["batch"] * plays.plan["context"],
        "steps": steps,
        "lr": lr,
        "seed": seed,
        "nats_a_token": loss,
        "validation": loss * plays.bits,
        "seconds": round(time.perf_counter() - begin, 2),
    }


def counted(weights: TransformerWeights) -> dict[str, int]:
    """Return how many numbers a model has, with and without its embedding."""
    total = sum(math.prod(x.shape) for x in weights.arrays().values())
    without = total - math.prod(weights.target_embedding.shape)
    return {"parameters": total, "parameters_without_embedding": without}


def shipped(plays: Plays, record: dict[str, Any]) -> dict[str, Any]:
    """Return what the shipped writer reaches, beside what the law says of its size.

    It was trained for more epochs than one, which the law does not know, and with dropout.
    """
    from attnbook import nn

    writer = models.writer()
    model = nn.Transformer(writer.weights.to("torch", dtype="float32"), impl="packed")
    path = Path(__file__).parents[1] / "book/data/writer_training.cpu.json"
    recipe = json.loads(path.read_text("utf-8"))["recipe"]
    seen = recipe["steps"] * recipe["batch"] * recipe["context"]
    epoch = plays.facts()["tokens"]["epoch"]
    count = counted(writer.weights)
    n = count["parameters_without_embedding"]
    law = record["fit"]
    return {
        **count,
        "tokens": seen,
        "epochs": seen / epoch,
        "validation": plays.loss(model) * plays.bits,
        "predicted": scaling_fit.predicted(law, n, seen),
        "predicted_of_one_epoch": scaling_fit.predicted(law, n, epoch),
    }
