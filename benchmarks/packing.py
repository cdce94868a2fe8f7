"""Packed against padded batches: tokens per second of a forward pass and of a training step.

The texts have lengths from a log-normal distribution, at most `LENGTH`, and each kind of batch
holds all of them in as many batches. Padded ones have a text in each row, and as many texts in each
batch, in random order or in that of their lengths, which needs the least padding that there can be,
but makes batches of texts that are alike. `tokens` are those of the texts, and `slots` are all
tokens that the model reads, padding included.
"""

from functools import partial
from typing import Any

import numpy as np

from attnbook import TransformerWeights
from attnbook.data import Batches, PackedBatches
from benchmarks import harness
from benchmarks.tables import Tables

DEVICES = ("cpu",)
SIZES = {"d_model": 128, "n_heads": 4, "d_ff": 512, "n_layers": 2}
KNOWN = 512
TEXTS, QUICK_TEXTS = 256, 12
LENGTH, ROWS = 512, 8
IMPLS = ("reference", "packed")
BY_LENGTH = "padded, by length"
MOST = 20.0  # seconds of a candidate


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure on `device`, which is "cpu"."""
    tables.add(
        shape=SIZES | {"length": LENGTH, "texts": QUICK_TEXTS if quick else TEXTS},
        pace=harness.rounds(quick),
    )
    tables.whole("batches", partial(timings, device, quick=quick))


def timings(device: str, *, quick: bool) -> list[dict[str, Any]]:
    """Return a row for each kind of batch, implementation and pass over all texts."""
    import torch

    from attnbook import nn
    from attnbook.training.run import predict

    texts = drawn(QUICK_TEXTS if quick else TEXTS)
    tokens = sum(map(len, texts))
    weights = TransformerWeights.init(
        0, KNOWN, n_encoder_layers=0, positions="sinusoidal", **SIZES
    ).to("torch", dtype="float32")

    def summed(model, batch):
        logits, labels, mask = predict(model, batch, torch.device(device), "float32")
        cross_entropy = torch.nn.functional.cross_entropy
        return cross_entropy(logits[mask], labels[mask], reduction="sum")

    alone = nn.Transformer(weights.to(dtype="float64"))
    with torch.no_grad():
        expected = sum(float(summed(alone, b)) for b in every(texts)[BY_LENGTH])

    def compare(output):
        """Return how far the summed loss is from that of the padded batches in float64."""
        difference = abs(float(output) - expected)
        return {"max_abs": difference, "relative": difference / expected}

    candidates = []
    for kind, batches in every(texts).items():
        slots = sum(batch.inputs.size for batch in batches)
        for impl in IMPLS:
            model = nn.Transformer(weights, impl=impl)

            def forward(model=model, batches=batches):
                with torch.no_grad():
                    return sum(summed(model, batch) for batch in batches)

            def step(model=model, batches=batches):
                total = 0.0
                for batch in batches:
                    loss = summed(model, batch)
                    loss.backward()
                    model.zero_grad()
                    total = total + loss.detach()
                return total

            for name, run in (("forward", forward), ("training step", step)):
                about = {"batch": kind, "implementation": impl, "pass": name, "library": "torch"}
                about |= {"tokens": tokens, "slots": slots}
                candidates.append(harness.Candidate(about, run, compare))
    found = []
    for name in ("forward", "training step"):
        some = [c for c in candidates if c.about["pass"] == name]
        base = {"batch": BY_LENGTH, "implementation": IMPLS[0]}
        about = {"dtype": "float32", "n": LENGTH}
        found += harness.rows(
            some,
            device,
            about=about,
            baseline=base,
            quick=quick,
            pace=harness.Pace(harness.rounds(quick), harness.SLICE_SECONDS[device], most=MOST),
        )
    for row in found:
        if row["seconds"] is not None:
            row["tokens_per_second"] = tokens / row["seconds"]["median"]
    return found


def drawn(n: int) -> list[np.ndarray]:
    """Return `n` texts of random tokens."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(LENGTH / 4), 0.8, n).astype(int), 2, LENGTH + 1)
    return [rng.integers(KNOWN, size=length) for length in lengths]


def every(texts: list[np.ndarray]) -> dict[str, list[Any]]:
    """Return the batches of an epoch of every kind."""
    marks: Any = {"start": None, "stop": None}
    packed = PackedBatches(texts, 1, LENGTH, **marks)
    packed = PackedBatches(texts, min(ROWS, len(packed)), LENGTH, **marks)
    size = -(-len(texts) // len(packed))
    found: dict[str, Any] = {
        "padded, random": Batches(None, texts, size, pool=1, **marks),
        BY_LENGTH: Batches(None, texts, size, pool=len(packed), **marks),
        "packed": packed,
    }
    return {kind: [batches(i) for i in range(len(batches))] for kind, batches in found.items()}
