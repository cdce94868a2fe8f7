"""Training: a step beside torch.nn's, its parts, and recipes against their rate.

Four tables. `rows`: a forward pass, and a whole step (forward, backward, clipping, AdamW) of an
encoder-decoder, ours and of PyTorch's layers with the same weights. `parts`: what a step of ours
spends its time on. `compiled`: ours by `torch.compile`, which takes minutes to compile on a GPU,
beside these layers; on a CPU of the small one. `rates`: the loss after a short training on
reversal, by recipe, norm order and learning rate, on the CPU alone.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from attnbook import TransformerWeights, cross_entropy, data, masking, positions
from attnbook import transformer as whole
from benchmarks import harness, inputs
from benchmarks.tables import Step, Tables

OURS, THEIRS, COMPILED = "nn.Transformer of attnbook", "layers of torch.nn", "ours, torch.compile"
FORMULA = "transformer"  # of attnbook, without PyTorch
BASELINE = {"implementation": THEIRS, "mode": "step"}
DTYPES = {"cpu": ("float32",), "cuda": ("float32", "bfloat16")}
LOSS = {"dtype": "float32"}  # of the mean


@dataclass(frozen=True)
class Size:
    """An encoder-decoder and its batch; layers in each of the two."""

    name: str
    d_model: int
    heads: int
    d_ff: int
    layers: int
    vocabulary: int
    batch: int
    n_source: int
    n_target: int


DATES = Size("dates", 64, 4, 128, 1, 77, 64, 20, 11)
SIZES = {
    "cpu": (DATES, Size("larger", 256, 4, 1024, 3, 1000, 16, 64, 64)),
    "cuda": (DATES, Size("larger", 512, 8, 2048, 6, 16_000, 64, 128, 128)),
}
QUICK_SIZES = (Size("quick", 8, 2, 16, 1, 11, 3, 7, 5),)

RECIPES: dict[str, dict[str, Any]] = {
    "gradient descent": {"optimizer": "sgd"},
    "AdamW": {},
    "AdamW, warm-up, cosine, clip": {"warmup": 25, "schedule": "cosine", "clip": 1.0},
}
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
RATE_STEPS, QUICK_RATE_STEPS = 250, 26


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure steps and recipes on `device` ("cpu" or "cuda")."""
    sizes = QUICK_SIZES if quick else SIZES[device]
    tables.add(
        sizes=[asdict(size) for size in sizes],
        rounds=harness.rounds(quick),
        baseline=BASELINE,
        tolerance=inputs.TOLERANCE,
    )

    def of_sizes(
        measured: Callable[..., list[dict[str, Any]]], sizes: tuple[Size, ...] = sizes
    ) -> list[Step]:
        return [
            Step(
                {"size": size.name, "n": size.n_target, "dtype": dtype},
                size.batch * size.n_target * size.layers * size.d_model**2,
                partial(measured, device, dtype, size, quick=quick),
            )
            for size in sizes
            for dtype in DTYPES[device]
        ]

    told = ("implementation", "mode", "library")
    tables.measure("rows", of_sizes(steps), *told)
    if "torch" not in inputs.libraries(device):
        return
    tables.measure("parts", of_sizes(parts))
    large = () if quick else sizes if device == "cuda" else (DATES,)  # a trial has no compiler
    compiled = partial(steps, names=(THEIRS, COMPILED))
    tables.measure("compiled", of_sizes(compiled, large), *told)
    if device == "cpu":
        tables.whole("rates", partial(rates, quick=quick, log=tables.log))


# Time


def steps(
    device: str,
    dtype: str,
    size: Size,
    *,
    quick: bool,
    names: tuple[str, ...] = (OURS, THEIRS, FORMULA),
) -> list[dict[str, Any]]:
    """Return one row for each implementation of these names, mode and library."""
    weights, batch = _drawn(size)
    expected = whole(batch["source"], batch["inputs"], weights)
    loss = cross_entropy(expected, batch["labels"])
    logits_errors = partial(inputs.errors, expected=expected)
    loss_errors = partial(inputs.errors, expected=loss)
    candidates = []
    for library in inputs.libraries(device):
        if dtype not in inputs.DTYPES[library]:
            continue
        if library == "torch":
            for name, mode, run in _torch_runs(device, dtype, size, names):
                about = {"implementation": name, "mode": mode, "library": library}
                compare = logits_errors if mode == "forward" else loss_errors
                candidates.append(harness.Candidate(about, run, compare))
        elif FORMULA in names:
            placed = inputs.place_weights(weights, library, device, dtype)
            ids = [_to(library, device, batch[name]) for name in ("source", "inputs")]
            about = {"implementation": FORMULA, "mode": "forward", "library": library}
            run = partial(_whole, ids, placed)
            candidates.append(harness.Candidate(about, run, logits_errors))
    tokens = size.batch * (size.n_source + size.n_target)
    shared = {"size": size.name, "dtype": dtype, "n": size.n_source, "tokens": tokens}
    return harness.rows(candidates, device, about=shared, baseline=BASELINE, quick=quick)


def _drawn(size: Size) -> tuple[TransformerWeights, dict[str, np.ndarray]]:
    """Return weights in float64, and ids that fill a batch."""
    rng = np.random.default_rng(size.d_model)
    weights = TransformerWeights.init(
        rng,
        size.vocabulary,
        d_model=size.d_model,
        n_heads=size.heads,
        d_ff=size.d_ff,
        n_layers=size.layers,
    )
    shapes = {"source": size.n_source, "inputs": size.n_target, "labels": size.n_target}
    return weights, {
        name: rng.integers(size.vocabulary, size=(size.batch, n)) for name, n in shapes.items()
    }


def _whole(ids, weights):
    source, target = ids
    return whole(source, target, weights)


def _to(library, device, ids):
    from attnbook import move

    return move(ids, library, device=device if library == "torch" else None)


def _torch_runs(device, dtype, size, names) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Yield name, mode and function of what PyTorch runs, of these names."""
    import torch

    from attnbook.nn import Transformer

    weights, batch = _drawn(size)
    ids = {name: torch.tensor(x, device=device) for name, x in batch.items()}
    models: dict[str, Callable[[], Any]] = {
        OURS: lambda: Transformer(weights.to(dtype="float32")).to(device),
        THEIRS: lambda: _theirs(weights).to(device),
        COMPILED: lambda: torch.compile(models[OURS]()),
    }
    for name in (name for name in models if name in names):
        model = models[name]().train()
        given = ids["source"], ids["inputs"]
        yield name, "forward", partial(_forward, model, given, device, dtype)
        yield name, "step", _step(model, given, ids["labels"], device, dtype)


def _forward(model, given, device, dtype):
    import torch

    with torch.no_grad(), _half(device, dtype):
        return model(*given)


def _half(device, dtype):
    import torch

    if dtype == "float32":
        return nullcontext()
    return torch.autocast(device, dtype=getattr(torch, dtype))


def _step(model, given, labels, device, dtype):
    import torch

    # a rate of 0 does all of the work and leaves the parameters as they are
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.98))

    def run():
        optimizer.zero_grad()
        with _half(device, dtype):
            logits = model(*given)
        loss = cross_entropy(logits.float(), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return run


def _theirs(weights):
    """Return PyTorch's encoder and decoder with `weights`, and the same embedding and output."""
    import torch

    from attnbook.nn import Decoder, Encoder

    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            narrow = weights.to(dtype="float32")
            self.encoder = Encoder(narrow.encoder).to_torch()
            self.decoder = Decoder(narrow.decoder).to_torch()
            self.table = torch.nn.Parameter(torch.tensor(narrow.target_embedding))

        def embed(self, ids):
            x = self.table[ids] * math.sqrt(self.table.shape[1])
            return x + positions.sinusoidal(*x.shape[-2:], like=x)

        def forward(self, source, target):
            n = target.shape[-1]
            hidden = ~masking.causal(n, like=target)  # there True = ignore
            memory = self.encoder(self.embed(source))
            x = self.decoder(self.embed(target), memory, tgt_mask=hidden, tgt_is_causal=True)
            return x @ self.table.mT

    return Theirs()


def parts(device: str, dtype: str, size: Size, *, quick: bool) -> list[dict[str, Any]]:
    """Return the seconds of each part of a step of ours, in the order in which they run."""
    import torch

    from attnbook.nn import Transformer

    weights, batch = _drawn(size)
    model = Transformer(weights.to(dtype="float32")).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    samples: dict[str, list[float]] = {}
    start = 0.0

    def lap(name):
        nonlocal start
        wait()
        now = time.perf_counter()
        samples.setdefault(name, []).append(now - start)
        start = now

    for _ in range(3 if quick else 25):
        optimizer.zero_grad()
        wait()
        start = time.perf_counter()
        ids = {name: torch.tensor(x, device=device) for name, x in batch.items()}
        lap("batch")
        with _half(device, dtype):
            logits = model(ids["source"], ids["inputs"])
        lap("forward")
        loss = cross_entropy(logits.float(), ids["labels"])
        lap("loss")
        loss.backward()
        lap("backward")
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        lap("clip")
        optimizer.step()
        lap("AdamW")
    warm = 0 if quick else 5
    return [
        {"size": size.name, "dtype": dtype, "part": name, "seconds": harness.spread(found[warm:])}
        for name, found in samples.items()
    ]


# Training


def rates(*, quick: bool, log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return the loss after a short training by recipe, norm order, learning rate and seed."""
    from attnbook.nn import Transformer
    from attnbook.training import Settings, train

    n_steps = QUICK_RATE_STEPS if quick else RATE_STEPS
    batches = data.Batches(*data.reversal(0, 20_000 if not quick else 100, length=6), batch_size=32)
    found = []
    for norm in ("pre", "post"):
        for name, options in RECIPES.items():
            for rate in RATES[3:4] if quick else RATES:
                for seed in (0,) if quick else (0, 1):
                    weights = TransformerWeights.init(
                        seed, 13, d_model=32, n_heads=1, d_ff=64, n_layers=1, norm=norm
                    )
                    model = Transformer(weights.to(dtype="float32"))
                    settings = Settings(n_steps, rate, **options)
                    try:
                        loss = float(np.mean(train(model, batches, settings).losses[-25:]))
                    except FloatingPointError:
                        loss = math.inf  # null in the record
                    about = {"recipe": name, "norm": norm, "lr": rate, "seed": seed}
                    found.append(about | {"steps": n_steps, "loss": loss})
            own = [row["loss"] for row in found if (row["recipe"], row["norm"]) == (name, norm)]
            log(f"rates: {norm}-norm, {name}: best {min(own):.4f}")
    return found
