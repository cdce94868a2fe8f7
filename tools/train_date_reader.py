"""Train the reader of dates of the chapter `training`: `python tools/train_date_reader.py`.

An encoder and a decoder of one layer each learn to write dates by ISO 8601. Days are split three
ways: every rate and seed learns the training days, the validation days choose the rate, and the
test days are read once, by the model that was chosen. Writes `book/data/date_reader.npz`, the
weights in half precision, and `book/data/dates.cpu.json`. It takes some ten minutes on one core.
"""

import argparse
import json
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnbook import TransformerWeights, data
from attnbook.decoding import greedy_decode
from attnbook.nn import Transformer
from attnbook.training import Settings, evaluate, train
from benchmarks import provenance

FOLDER = Path(__file__).parents[1] / "book/data"
SIZES: dict[str, Any] = {"d_model": 64, "n_heads": 2, "d_ff": 128, "n_layers": 1}
RATES, SEEDS = (0.001, 0.002, 0.005, 0.01), (0, 1, 2)
BATCH, STEPS, AVERAGED = 64, 1200, 25
N_TRAIN, N_TEST, ONE_DAY_IN = 44_000, 2_000, 10

Pairs = list[tuple[str, str]]


def parts(seed: int = 0) -> tuple[dict[str, Pairs], data.Vocabulary]:
    """Return the pairs for training, validation and test, no day in two of them, and the ids."""
    drawn = data.dates(seed, N_TRAIN, N_TEST)
    days = sorted({iso for _, iso in drawn.train})
    held = set(days[::ONE_DAY_IN])
    train = [pair for pair in drawn.train if pair[1] not in held]
    validation = [pair for pair in drawn.train if pair[1] in held]
    return {"train": train, "validation": validation, "test": list(drawn.test)}, drawn.vocabulary


def encoded(pairs: Pairs, vocabulary: data.Vocabulary) -> tuple[list, list]:
    """Return the ids of the texts and of the dates."""
    texts, dates = zip(*pairs, strict=True)
    return [vocabulary.encode(x) for x in texts], [vocabulary.encode(x) for x in dates]


def read(weights: TransformerWeights, texts: list[str], vocabulary: data.Vocabulary) -> list[str]:
    """Return the dates that a model in NumPy writes, character after character."""
    source, lengths = data.pad([vocabulary.encode(text) for text in texts])
    found = greedy_decode(
        weights,
        source,
        prompt=vocabulary.start,
        stop=vocabulary.stop,
        max_length=12,
        source_lengths=lengths,
    )
    return [vocabulary.decode(row) for row in found.tokens]


def mistakes(weights: TransformerWeights, pairs: Pairs, vocabulary: data.Vocabulary) -> list:
    """Return text, answer and right answer of every pair that is read wrong."""
    texts, dates = zip(*pairs, strict=True)
    answers = read(weights, list(texts), vocabulary)
    return [row for row in zip(texts, answers, dates, strict=True) if row[1] != row[2]]


def trained(
    rate: float, seed: int, steps: int, pairs: Pairs, vocabulary: data.Vocabulary
) -> tuple[Transformer, Settings, list[float]]:
    """Return a model that has learned `pairs`, how it was trained, and its losses."""
    weights = TransformerWeights.init(seed, len(vocabulary), **SIZES)
    model = Transformer(weights.to("torch", dtype="float32"))
    batches = data.Batches(*encoded(pairs, vocabulary), BATCH, seed, pool=2)
    settings = Settings(
        steps,
        lr=rate,
        warmup=steps // 12,
        schedule="cosine",
        clip=1.0,
        weight_decay=0.01,
        seed=seed,
    )
    return model, settings, train(model, batches, settings).losses


def main() -> None:
    """Train with every rate and seed, choose on validation, read the test once, and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=FOLDER)
    given = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.perf_counter()
    origin = provenance.describe("cpu", "python tools/train_date_reader.py")  # of what runs now
    pairs, vocabulary = parts()
    judge = data.Batches(*encoded(pairs["validation"], vocabulary), 500, pool=1)
    runs, found = [], {}
    for rate in RATES:
        for seed in SEEDS:
            model, settings, losses = trained(rate, seed, given.steps, pairs["train"], vocabulary)
            kept = rounded(model)
            wrong = mistakes(kept, pairs["validation"], vocabulary)
            runs.append(
                {
                    "lr": rate,
                    "seed": seed,
                    "training": np.reshape(losses, (-1, AVERAGED)).mean(axis=1).round(5).tolist(),
                    "validation": evaluate(model, [judge(i) for i in range(len(judge))]),
                    "wrong": len(wrong),
                }
            )
            found[rate, seed] = kept, wrong
            print(rate, seed, runs[-1]["validation"], len(wrong), flush=True)
    wrong_at = {r: sum(x["wrong"] for x in runs if x["lr"] == r) for r in RATES}
    best = min(RATES, key=wrong_at.__getitem__)
    chosen, _ = found[best, 0]
    record = {
        "benchmark": "dates",
        "provenance": origin,
        "recipe": asdict(settings) | {"lr": best, "seed": 0, "batch": BATCH},
        "sizes": SIZES,
        "parameters": sum(math.prod(x.shape) for x in chosen.arrays().values()),
        "steps_a_point": AVERAGED,
        "pairs": {part: len(pairs[part]) for part in pairs},
        "days": {part: len({iso for _, iso in pairs[part]}) for part in pairs},
        "seconds": time.perf_counter() - begin,
        "runs": runs,
        "validation_mistakes": [found[best, seed][1] for seed in SEEDS],
        "test_mistakes": mistakes(chosen, pairs["test"], vocabulary),
    }
    arrays: dict[str, Any] = chosen.to(dtype="float16").arrays()
    np.savez(given.out / "date_reader.npz", **arrays)
    (given.out / "dates.cpu.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def rounded(model: Transformer) -> TransformerWeights:
    """Return the weights of a model as they are stored: in half precision."""
    return model.weights.to("numpy", dtype="float16").to(dtype="float32")


if __name__ == "__main__":
    main()
