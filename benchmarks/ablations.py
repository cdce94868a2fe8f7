"""What each choice is worth: small writers of plays, each choice at its own best rate.

Eleven tables: orders of normalisation, positions, schedules and others. A row is a choice: its
loss on the validation plays by rate and seed, and at the rate that is best there also on the test
plays. The runs are kept beside the record until it is whole: an interrupted benchmark goes on.
"""

from dataclasses import replace
from typing import Any

from attnbook import data, positions
from benchmarks.ablations_runs import (
    MODEL,
    MOST_RATES,
    RATES,
    SEEDS,
    SETTINGS,
    Choice,
    Make,
    Text,
    kept,
    row,
    run,
)
from benchmarks.tables import Runs, Step, Tables

DEVICES = ("cpu",)
WHOLE = True  # its tables build on one another, so all are measured
VOCABULARY, CONTEXT, JUDGED = 512, 64, 6  # of the judged text each sixth window counts
SHARE, SHARE_STEPS = 20_000, 400  # tokens and updates of the runs with dropout
LONG_STEPS = 800

ORDER_RATES = (0.002, 0.006, 0.01, 0.018, 0.032, 0.054)
DEEP_RATES = (0.00025, 0.0007, 0.002, 0.006, 0.018)
SMALL_RATES = LONG_RATES = (0.004, 0.008, 0.016)
OPTIMIZER_RATES = {
    "SGD": (0.5, 1.0, 2.0),
    "SGD, momentum 0.9": (0.05, 0.1, 0.2),
    "Adam": RATES,
    "AdamW": RATES,
}
TOO_HIGH = {"AdamW": 0.128, "SGD": 8.0}
DEEP = {"d_model": 32, "n_heads": 2, "d_ff": 88, "n_layers": 9}
LAYER_NORM = {"normalization": "layer", "bias": True}
PLAIN = {"gated": False, "d_ff": 192}  # two matrices of this width have the numbers of three of 128
QUICK = {"d_model": 6, "n_heads": 1, "d_ff": 8, "n_layers": 1}, {"steps": 3, "warmup": 1}

METHODS = {
    "loss": (
        "Mean cross-entropy in nats a token, over windows of the context from all over the two "
        "validation plays, or the two test plays; null where a loss or gradient was not finite."
    ),
    "rates": (
        "For each learning rate the validation losses by seed, in the order of `seeds`. The rates "
        "lie at most a factor 3 apart; while the best is the lowest or highest, the next beyond, a "
        "factor 2 away, is tried too. Where one seed alone was run at most rates, it chose. Runs "
        "that several tables share were made once."
    ),
    "lr": "The rate with the lowest mean validation loss over the seeds that all rates have.",
    "validation, test": "The losses at `lr` by seed. No other test loss is kept in the record.",
    "at_edge": "Whether the best rate is still the lowest or the highest that was tried.",
    "seeds": "A seed draws the first weights, the order of the windows and what dropout drops.",
    "model, settings": (
        "What a row does not say otherwise: the arguments of `TransformerWeights.init` and of "
        "`Settings`. Matrices alone decay. Embeddings are tied and multiplied by √d. A batch has "
        "16 windows."
    ),
    "orders, deep_orders": (
        "With layer normalisation and biases, without clipping. `none` is pre-norm whose "
        "normalisations do nothing. The deep ones have 9 layers, d_model 32, 2 heads and d_ff 88."
    ),
    "positions": "`embedding`: how the table of tokens is drawn first; 1/√d is the deviation.",
    "blocks": "d_ff is 128 for SwiGLU and 192 for the others: as many numbers in the matrices.",
    "optimizers": "Adam is AdamW without decay. All are clipped, with warm-up and cosine.",
    "long_schedules": f"{LONG_STEPS} updates in the place of 200.",
    "clipping": "A last rate, chosen too high before any run, has all seeds too.",
    "dropout": (
        f"Learned from the first {SHARE:,} tokens, in {SHARE_STEPS} updates. `train`: the loss on "
        "these tokens at the end, without dropout. `curve`: both losses by the number of updates."
    ),
    "initialization": (
        "`Xavier`: the matrices of the layers times a factor; embeddings stay. `normal 0.02`: all "
        "matrices, embeddings too; `outputs / √(2 layers)`: W_O and W_2 are smaller by that factor."
    ),
    "seconds": (
        "CPU seconds of all runs of a row, evaluations included. `table_seconds` are without the "
        "runs that an earlier, interrupted go had made."
    ),
}


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Train the models of all tables; nothing here runs on another device."""
    text, facts = texts(quick)
    shape, settings = QUICK if quick else ({}, {})
    tables.add(methods=METHODS, model=MODEL, settings=SETTINGS, seeds=SEEDS, **facts)

    def make(choice: Choice, rate: float, seed: int) -> dict[str, Any]:
        model, how = choice.model | shape, choice.settings | settings
        return run(replace(choice, model=model, settings=how), rate, seed, text, facts)

    runs = Runs(tables.path)
    made = kept(runs, make)
    for table, rows in choices().items():
        tables.measure(
            table, [step(choice, made, quick) for choice in rows[: 2 if quick else None]]
        )
    runs.clear()


def step(choice: Choice, made: Make, quick: bool) -> Step:
    """Return the step that measures a row; a quick one has no further rates and fewer seeds."""
    seeds, most = (SEEDS[:2], 0) if quick else (SEEDS, MOST_RATES)
    n_runs = len(choice.rates) * (len(seeds) if choice.thorough else 1) + len(seeds)
    updates = (SETTINGS | choice.settings)["steps"]
    work = n_runs * updates * (MODEL | choice.model)["n_layers"]
    return Step(choice.about, work, lambda: [row(choice, made, seeds, most)])


def texts(quick: bool) -> tuple[Text, dict[str, Any]]:
    """Return the windows of the plays, and what the record says of them."""
    plays = data.plays()
    parts = {name: getattr(plays, name) for name in ("train", "validation", "test")}
    if quick:
        parts = {name: text[:6000] for name, text in parts.items()}
    tokenizer = data.BytePairs.learn(parts["train"], 260 if quick else VOCABULARY)
    ids = {name: tokenizer.encode(text) for name, text in parts.items()}
    facts = {
        "vocabulary": len(tokenizer),
        "context": CONTEXT,
        "bytes": {name: len(text.encode()) for name, text in parts.items()},
        "tokens": {name: len(x) for name, x in ids.items()},
    }
    train = data.windows(ids["train"], CONTEXT, stride=CONTEXT)
    judged = [data.windows(ids[x], CONTEXT, stride=JUDGED * CONTEXT) for x in Text._fields[2:]]
    return Text(train, train[: SHARE // CONTEXT], *judged), facts


def choices() -> dict[str, list[Choice]]:
    """Return the rows of each table."""
    kinds: dict[str, dict[str, Any]] = {
        "none": {"positions": "none"},
        "sines": {"positions": "sinusoidal"},
        "learned": {"positions": "learned", "n_positions": CONTEXT},
        "rotary, halves": {},
        "rotary, interleaved": {"positions": positions.Rotary(interleaved=True)},
        "ALiBi": {"positions": positions.Alibi()},
    }
    networks: dict[str, dict[str, Any]] = {
        "ReLU": {**PLAIN, "activation": "relu"},
        "GELU": {**PLAIN, "activation": "gelu"},
        "SwiGLU": {},
    }
    schedules: dict[str, dict[str, Any]] = {
        "constant": {"schedule": "constant", "warmup": 0},
        "warm-up, constant": {"schedule": "constant"},
        "warm-up, inverse square root": {"schedule": "inverse_sqrt"},
        "cosine": {"warmup": 0},
        "warm-up, cosine": {},
    }
    draws: dict[str, tuple[str, float] | None] = {
        "0.3 × Xavier": ("scaled", 0.3),
        "Xavier": None,
        "3 × Xavier": ("scaled", 3.0),
        "normal 0.02": ("normal", 1.0),
        "normal 0.02, outputs / √(2 layers)": ("normal", (2 * MODEL["n_layers"]) ** -0.5),
    }
    placed = [
        Choice({"positions": name, "embedding": how}, kinds[name], first=first)
        for how, first, names in (
            ("Xavier", None, kinds),
            ("normal 1/√d", ("embedding", 1.0), ("none", "sines", "learned", "rotary, halves")),
        )
        for name in names
    ]
    blocks = [
        Choice({"normalization": norm, "network": name}, {"normalization": norm, **network})
        for norm in ("layer", "rms")
        for name, network in networks.items()
    ]
    steppers: dict[str, dict[str, Any]] = {
        x: {"optimizer": x, "rates": rates} for x, rates in OPTIMIZER_RATES.items()
    }
    clipping = [
        Choice(
            {"optimizer": x, "clip": y}, {}, {"clip": y}, thorough=True, too=(high,), **steppers[x]
        )
        for x, high in TOO_HIGH.items()
        for y in (None, 1.0)
    ]
    small: dict[str, Any] = {"settings": {"steps": SHARE_STEPS}, "small": True}
    small["rates"] = SMALL_RATES
    return {
        "orders": orders({}, ORDER_RATES),
        "positions": placed,
        "blocks": blocks,
        "optimizers": [Choice({"optimizer": x}, **how) for x, how in steppers.items()],
        "schedules": [Choice({"schedule": x}, settings=how) for x, how in schedules.items()],
        "clipping": clipping,
        "dropout": [Choice({"dropout": x}, dropout=x, **small) for x in (0.0, 0.1, 0.2, 0.3)],
        "initialization": [Choice({"first": x}, first=draw) for x, draw in draws.items()],
        "embeddings": [Choice({"tied": True}), Choice({"tied": False}, {"tied": False})],
        "long_schedules": [
            Choice({"schedule": x}, settings=schedules[x] | {"steps": LONG_STEPS}, rates=LONG_RATES)
            for x in ("warm-up, constant", "warm-up, cosine")
        ],
        "deep_orders": orders(DEEP, DEEP_RATES),
    }


def orders(shape: dict[str, Any], rates: tuple[float, ...]) -> list[Choice]:
    """Return the rows of the orders of normalisation, by warm-up; without one, if not deep."""
    found = []
    for norm in ("pre", "post") if shape else ("pre", "post", "none"):
        model = shape | LAYER_NORM | {"norm": "pre" if norm == "none" else norm}
        known: dict[str, Any] = {"normalizes": norm != "none", "thorough": not shape}
        for warmup in (0, 50):
            settings = {"warmup": warmup, "clip": None}
            found.append(
                Choice({"norm": norm, "warmup": warmup}, model, settings, rates=rates, **known)
            )
    return found
