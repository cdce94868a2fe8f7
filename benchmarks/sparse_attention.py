"""An indexer that is taught what a hash finds by chance: which keys of a long cache to read.

Three tables. `training`: the loss of the indexers. `settings`: what was chosen on a window of the
validation plays. `decoding`: errors and losses on windows of the test plays, at equal bytes.
"""

import importlib.util
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks import harness, real_keys
from benchmarks.tables import Step, Tables

DEVICES = ("cpu",)
WHOLE = True  # its tables build on one another, so all are measured
MODEL, N, M, TUNED_ON = "long_writer", 4096, 512, 32
EVERY = 4  # decoded tokens of which one is judged by its error; the loss has all of them
BUDGETS = (0.1, 0.2, 0.05)  # in the order of their worth
WINDOWS, SEEDS = (1, 7, 14), (0, 1, 2)
TRAIN_WINDOWS, TRAIN_ROWS = tuple(range(5, 370, 23)), 192
WIDTHS, STEPS, LR = (4, 8, 16), 200, 0.01

METHODS = {
    "task": (
        f"The model reads {N - M} tokens of a play exactly and decodes {M} more, whose true tokens "
        "are given. `error`: norm of the difference of the outputs of a head from the exact ones, "
        "divided by the norm of these, over every fourth token, mean over heads, layers and "
        "windows; the inputs of each layer are those of exact attention. `more_loss`: nats a token "
        "of all decoded tokens if all layers attend by the method, whose errors add up, with the "
        "first seed, minus the loss of exact attention; `more_bits_a_byte` the same in bits for a "
        "byte. `loss_error`: the standard error of `more_loss` over tokens, as if neighbours were "
        "independent."
    ),
    "share": (
        "Bytes that a token reads in a layer, of those of all keys and values that it sees, with 2 "
        "bytes for a number. A key and its value count once where several query heads of a KV head "
        "read them. Beside them count the index keys of all visible tokens (1 byte for a number), "
        "the mean keys of all blocks and with `tail` the mean values (2 bytes), and 4 bytes for "
        "each entry of the buckets of a query. Projections of the indexer and directions of a hash "
        "are parameters, and do not count; nor does what a token writes."
    ),
    "products": (
        "Numbers that a token multiplies in a layer to choose its keys, of those of exact "
        "attention, which multiplies every query with all keys and every weight with all values."
    ),
    "indexer": (
        "4 heads of width d, ReLU, weights for each of the 2 KV heads, which select their own "
        "keys; one index key for each token and layer in 8 bits. It is added to a trained "
        "model, so it projects the rotated queries and keys of the layer, keys less their mean "
        "over the training texts, where DeepSeek-V3.2 projects the hidden state and trains the "
        f"model with it. Trained by Adam, {STEPS} updates of 16 queries in each layer, rate {LR}"
        f" with a cosine, on {len(TRAIN_WINDOWS)} windows of the training plays; the loss is the"
        " divergence from the mean weights of the heads of a KV head over keys at least 32 "
        "tokens back. Sinks and a window are read beside. A seed draws first weights and "
        "queries."
    ),
    "blocks": (
        "Mean keys of whole blocks; the blocks with the largest softmax weights, added up over the "
        "heads of a KV head, the first block and a window. With `tail` the means of all other "
        "blocks count in the same softmax as so many keys. Nothing is learned: the gates of native "
        "sparse attention are trained with the model."
    ),
    "HybridCache": (
        "Keys that meet the query in two of the tables or more count by the inverse of their "
        "chance; a seed draws the directions."
    ),
    "window, best keys": (
        "4 sinks and the newest keys; and an oracle, which knows the weights of all keys and reads "
        "for nothing those that are largest for each KV head."
    ),
    "settings": (
        "For each method and budget those of least error on decoded tokens of a validation window "
        "in every second layer, with seed 0, within 1.02 times the budget, of a grid of `tried`."
    ),
}


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Train the indexers and measure all methods; nothing here runs on another device."""
    if importlib.util.find_spec("torch") is None:
        tables.log("needs torch")
        return
    from benchmarks.sparse_attention_indexer import examples, trained
    from benchmarks.sparse_attention_methods import METHODS as RUN
    from benchmarks.sparse_attention_methods import RANDOM
    from benchmarks.sparse_attention_reader import Reader

    name, n, m = ("writer", 256, 16) if quick else (MODEL, N, M)
    windows, seeds = (WINDOWS[:1], SEEDS[:2]) if quick else (WINDOWS, SEEDS)
    budgets = BUDGETS[1:2] if quick else BUDGETS
    about = {"model": name, "n": n, "m": m, "budgets": budgets, "seeds": seeds}
    tables.add(methods=METHODS, **about)
    reader = Reader(real_keys.model(name).weights)
    texts = [real_keys.window(n, "train", i)[:-1] for i in TRAIN_WINDOWS[: 2 if quick else None]]
    given = examples(reader, texts, TRAIN_ROWS, 0)
    steps = 3 if quick else STEPS
    indexers: dict[int, dict[int, Any]] = {seed: {} for seed in seeds}

    def training() -> list[dict[str, Any]]:
        rows = []
        for seed in seeds:
            for d in WIDTHS:
                begin = time.process_time()
                indexers[seed][d], curve = trained(given, d, seed, steps=steps, lr=LR)
                row = {"seed": seed, "width": d, "first": curve[0]}
                row["last"] = float(np.mean(curve[-50:]))
                rows.append(row | {"seconds": round(time.process_time() - begin, 1)})
                harness.log(f"  {rows[-1]}")
        return rows

    tables.whole("training", training)
    validation = real_keys.window(n, "validation", 0)[:-1]
    chosen = tables.whole(
        "settings",
        lambda: [
            tuned(reader, validation, m, name, budget, indexers[seeds[0]])
            for name in RUN
            for budget in budgets
        ],
    )
    tests = [Test(reader, real_keys.window(n, "test", i), m) for i in windows]
    tables.add(exact={"loss": float(np.concatenate([x.exact_losses for x in tests]).mean())})
    steps_of = [
        Step(
            {"method": x["method"], "budget": x["budget"]},
            len(seeds) if x["method"] in RANDOM else 1,
            partial(tested, tests, x, indexers),
        )
        for x in sorted(chosen, key=lambda x: budgets.index(x["budget"]))
        if x["settings"] is not None
    ]
    tables.measure("decoding", steps_of)


def method(name: str, settings: dict[str, Any], seed: int, indexers: Any) -> Callable[..., Any]:
    """Return a method with its settings as a function of what is asked and its scores."""
    from benchmarks.sparse_attention_methods import METHODS as RUN

    more: dict[str, Any] = {"seed": seed} if name == "HybridCache" else {}
    more |= {"indexers": indexers} if name == "indexer" else {}
    return lambda asked, scores: RUN[name](asked, scores, **settings, **more)


def errors(found: Any, exact: Any) -> np.ndarray:
    """Return the relative error of each head."""
    return ((found - exact).flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)).numpy()


def tuned(reader: Any, ids: Any, m: int, name: str, budget: float, indexers: Any) -> dict[str, Any]:
    """Return the settings of least error within a budget."""
    import torch

    from benchmarks.sparse_attention_methods import Asked, grid

    n = len(ids)
    _, layers = reader.read(ids)
    rows = torch.arange(n - m, n, max(m // TUNED_ON, 1))
    asked = [Asked(i, seen, rows, n - m) for i, seen in enumerate(layers)][1::2]
    of_each = [(a, a.scores()) for a in asked]
    exact = [s.softmax(-1) @ values(a) for a, s in of_each]
    within, settings = [], grid(name, budget, n - m // 2)
    for one in settings:
        run, found, shares = method(name, one, 0, indexers), [], []
        for (a, scores), output in zip(of_each, exact, strict=True):
            answer = run(a, scores)
            shares.append(answer.share)
            if answer.share > 1.5 * budget:
                break
            found.append(errors(answer.output, output).mean())
        if np.mean(shares) <= 1.02 * budget and len(found) == len(exact):
            within.append((float(np.mean(found)), float(np.mean(shares)), one))
    row = {"method": name, "budget": budget, "settings": None}
    row |= {"tried": len(settings), "within": len(within)}
    if within:
        error, share, best = min(within, key=lambda x: x[0])
        row |= {"settings": best, "validation_error": error, "validation_share": share}
    harness.log(f"  {row}")
    return row


def values(asked: Any) -> Any:
    """Return the values of each query head, (h, n, d)."""
    return asked.seen.value.repeat_interleave(len(asked.seen.query) // asked.groups, dim=0)


class Test:
    """A window of the test plays: its prompt, and what exact attention makes of the rest."""

    def __init__(self, reader: Any, ids: np.ndarray, m: int):
        import torch

        from benchmarks.sparse_attention_methods import Asked

        self.reader, self.ids, self.m = reader, ids, m
        n = len(ids) - 1
        _, self.prompt = reader.read(ids[: n - m])
        logits, layers = reader.read(ids[n - m : n], self.prompt)
        self.exact_losses = self.losses(logits)
        rows = torch.arange(n - m, n, EVERY)
        self.asked = [Asked(i, seen, rows, n - m) for i, seen in enumerate(layers)]
        text = real_keys.model("writer").tokenizer.decode(ids[n - m + 1 :].tolist())
        self.bytes = len(text.encode())

    def losses(self, logits: Any) -> np.ndarray:
        """Return the nats of each decoded token."""
        import torch

        labels = torch.tensor(self.ids[-self.m :])
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none").numpy()

    def errors(self, run: Callable[..., Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return errors (layers, h), and bytes and shares (layers, 2), by exact inputs."""
        found, read = [], []
        for asked in self.asked:
            scores = asked.scores()
            answer = run(asked, scores)
            found.append(errors(answer.output, scores.softmax(-1) @ values(asked)))
            read.append((answer.read, answer.share))
        return np.array(found), np.array(read)

    def loss(self, run: Callable[..., Any]) -> np.ndarray:
        """Return the nats of each token above those of exact attention."""
        import torch

        from benchmarks.sparse_attention_methods import Asked

        n = len(self.ids) - 1
        rows = torch.arange(n - self.m, n)

        def attend(layer, seen, m):
            asked = Asked(layer, seen, rows, n - m)
            return run(asked, asked.scores()).output

        logits, _ = self.reader.read(self.ids[n - self.m : n], self.prompt, attend)
        return self.losses(logits) - self.exact_losses


def tested(tests: list[Test], chosen: dict[str, Any], indexers: Any) -> list[dict[str, Any]]:
    """Return the row of a method at a budget, with all seeds."""
    from benchmarks.sparse_attention_methods import RANDOM

    name = chosen["method"]
    seeds = list(indexers) if name in RANDOM else [0]
    found, read = [], []
    for seed in seeds:
        run = method(name, chosen["settings"], seed, indexers[seed])
        each = [test.errors(run) for test in tests]
        found.append(np.mean([x for x, _ in each], axis=0))
        read.append(np.mean([x for _, x in each], axis=(0, 1)))
    first = method(name, chosen["settings"], seeds[0], indexers[seeds[0]])
    of_tokens = np.concatenate([test.loss(first) for test in tests])
    to_bits = of_tokens.size / sum(test.bytes for test in tests) / math.log(2)
    about = {x: chosen[x] for x in ("method", "budget", "settings", "tried", "within")}
    bytes_read, share = np.mean(read, axis=0)
    row = {
        **about,
        "bytes": float(bytes_read),
        "share": float(share),
        "products": products(name, chosen["settings"], tests[0]),
        "error": float(np.mean(found)),
        "error_of_each_layer": np.mean(found, axis=(0, 2)).tolist(),
        "error_of_each_seed": [float(x.mean()) for x in found],
        "more_loss": float(of_tokens.mean()),
        "more_bits_a_byte": float(of_tokens.mean() * to_bits),
        "loss_error": float(of_tokens.std(ddof=1) / len(of_tokens) ** 0.5),
        "tokens": of_tokens.size,
        "seeds": seeds,
    }
    harness.log(f"  {row}")
    return [row]


def products(name: str, settings: dict[str, Any], test: Test) -> float:
    """Return the products that choosing takes, of those of exact attention."""
    from benchmarks.sparse_attention_indexer import HEADS

    seen = test.asked[0].seen
    h, n, d = seen.query.shape
    seen_keys = n - test.m / 2
    exact = 2 * h * d * seen_keys
    if name == "indexer":
        width = settings["width"]
        made = HEADS * (width + len(seen.key)) * seen_keys
        made += h * d * HEADS * (width + len(seen.key)) + len(seen.key) * d * width
        return made / exact
    if name == "HybridCache":
        return h * d * settings["tables"] * settings["bits"] / exact
    return h * d * seen_keys / settings["block"] / exact if name == "blocks" else 0.0
