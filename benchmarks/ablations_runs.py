"""The small writers of `ablations`: one trained at one rate, and a choice over its rates."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from attnbook import TransformerWeights, data
from attnbook.transformers.layer_norm import LayerNormWeights
from attnbook.transformers.normalization import NORMALIZED
from benchmarks.tables import Runs

SEEDS, RATES, MOST_RATES = (0, 1, 2), (0.008, 0.016, 0.032), 9
BATCH, EVERY = 16, 50  # windows of a batch; updates between two points of a curve

MODEL: dict[str, Any] = {
    **{"d_model": 48, "n_heads": 3, "d_ff": 128, "n_layers": 3, "bias": False},
    **{"normalization": "rms", "gated": True, "activation": "silu", "positions": "rotary"},
}
SETTINGS: dict[str, Any] = {
    **{"steps": 200, "warmup": 20, "schedule": "cosine", "clip": 1.0},
    **{"betas": (0.9, 0.98), "weight_decay": 0.1},
}


@dataclass(frozen=True)
class Choice:
    """A row of a table: what is chosen, and how it differs from the model and settings above."""

    about: dict[str, Any]
    model: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "AdamW"
    first: tuple[str, float] | None = None  # how the first weights are drawn again
    dropout: float = 0.0
    small: bool = False  # learns from a small share of the text
    normalizes: bool = True
    rates: tuple[float, ...] = RATES
    thorough: bool = False  # all seeds at all rates
    too: tuple[float, ...] = ()  # where all seeds are run beside the best rate


Make = Callable[[Choice, float, int], dict[str, Any]]  # a run, of a rate and a seed


class Text(NamedTuple):
    """Windows of tokens."""

    train: np.ndarray
    small: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def fused(query, key, value, mask, bias, scale, is_causal):
    """Attend by PyTorch's fused kernel: the attention of the package, in less time."""
    import torch

    if bias is not None:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        bias, is_causal = torch.where(seen, bias, -torch.inf), False
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query, key, value, attn_mask=bias, scale=scale, is_causal=is_causal)


def run(choice: Choice, rate: float, seed: int, text: Text, facts: dict) -> dict[str, Any]:
    """Train one model and return its losses."""
    import torch

    from attnbook.nn import Transformer
    from attnbook.training import Settings, evaluate

    weights = TransformerWeights.init(
        seed, facts["vocabulary"], n_encoder_layers=0, **MODEL | choice.model
    )
    if choice.first is not None:
        weights = redrawn(weights, seed, *choice.first)
    model = Transformer(weights.to(dtype="float32"), choice.dropout, impl=fused)
    batches = of_windows(text.small if choice.small else text.train, BATCH, seed)
    judges = {"validation": text.validation, "test": text.test}
    judges |= {"train": text.small} if choice.small else {}

    def judge(*names: str) -> dict[str, float]:
        found = {x: round(evaluate(model, [of_windows(judges[x])(0)]), 5) for x in names}
        model.train()
        return found

    curve = []
    torch.manual_seed(seed)
    identity = {LayerNormWeights: lambda x, weights: x}
    with nullcontext() if choice.normalizes else mock.patch.dict(NORMALIZED, identity):
        settings = Settings(**SETTINGS | choice.settings, lr=rate)
        for step in updates(model, batches, settings, choice.optimizer):
            if choice.small and step % EVERY == 0:
                curve.append([step, judge("validation", "train")])
        found: dict[str, Any] = judge(*judges)
    ended = step == settings.steps and all(math.isfinite(x) for x in found.values())
    found = found if ended else dict.fromkeys(found)
    return found | ({"curve": curve} if choice.small else {})


def redrawn(weights: TransformerWeights, seed: int, how: str, factor: float) -> Any:
    """Return other first weights.

    `scaled` are the matrices of the layers larger by `factor`. `normal` are matrices with a
    deviation of 0.02, those that end a sublayer with `factor` of it. `embedding` is the table of
    tokens with the deviation `factor` / √d.
    """
    arrays, rng = weights.arrays(), np.random.default_rng(seed)
    for name, x in arrays.items():
        if how == "scaled" and ".W_" in name:
            arrays[name] = x * factor
        if how == "normal" and x.ndim == 2:
            part = factor if name.endswith((".W_O", ".W_2")) else 1.0
            arrays[name] = rng.normal(0, 0.02 * part, x.shape)
        if how == "embedding" and name == "target_embedding":
            arrays[name] = rng.normal(0, factor * x.shape[1] ** -0.5, x.shape)
    return weights.with_arrays(arrays)


def of_windows(windows: np.ndarray, size: int | None = None, seed: int = 0) -> data.Batches:
    """Return batches of windows, all in one unless a size is given."""
    size = len(windows) if size is None else min(size, len(windows))
    return data.Batches(None, windows, size, seed, start=None, stop=None, pool=1)


def updates(model: Any, batches: data.Batches, settings: Any, optimizer: str) -> Iterator[int]:
    """Train as `attnbook.training.train` does, by other optimizers too; give each update's number.

    It ends before an update whose loss or gradient is not finite.
    """
    import torch

    from attnbook.training import learning_rate

    decay = 0.0 if optimizer == "Adam" else settings.weight_decay
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    if optimizer.startswith("SGD"):
        momentum = 0.9 if "momentum" in optimizer else 0.0
        stepper: Any = torch.optim.SGD(groups, lr=settings.lr, momentum=momentum)
    else:
        stepper = torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, fused=True)
    model.train()
    yield 0
    for step in range(settings.steps):
        batch = batches(step)
        stepper.zero_grad()
        logits = model(None, torch.tensor(batch.inputs)).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(batch.labels).flatten())
        loss.backward()
        longest = math.inf if settings.clip is None else settings.clip
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), longest)
        if not (math.isfinite(loss.item()) and math.isfinite(norm.item())):
            return
        for group in stepper.param_groups:
            group["lr"] = learning_rate(step, settings)
        stepper.step()
        yield step + 1


def kept(runs: Runs, make: Make) -> Make:
    """Return `make` with what it made kept in `runs`, equal runs once, and their seconds told."""

    def found(choice: Choice, rate: float, seed: int) -> dict[str, Any]:
        def timed() -> dict[str, Any]:
            begin = time.process_time()
            result = make(choice, rate, seed)
            return result | {"seconds": round(time.process_time() - begin, 1)}

        return runs.get(str([distinct(choice), rate, seed, MODEL, SETTINGS]), timed)

    return found


def distinct(choice: Choice) -> Choice:
    """Return what tells the runs of a choice from those of the model and settings above."""
    model = {name: x for name, x in choice.model.items() if MODEL.get(name, ...) != x}
    how = {name: x for name, x in choice.settings.items() if SETTINGS.get(name, ...) != x}
    return replace(choice, about={}, model=model, settings=how, rates=(), thorough=False, too=())


def row(choice: Choice, made: Make, seeds: tuple[int, ...], most: int) -> dict[str, Any]:
    """Return the losses of a choice at all rates, and which is best."""
    first = seeds if choice.thorough else seeds[:1]
    found: dict[float, list[dict[str, Any]]] = {}

    def at(rate: float, seeds: tuple[int, ...]) -> float:
        found[rate] = [made(choice, rate, seed) for seed in seeds]
        return mean([run["validation"] for run in found[rate][: len(first)]])

    judged = {rate: at(rate, first) for rate in choice.rates}
    while True:
        best = min(judged, key=lambda rate: (judged[rate], rate))
        edges = {min(judged): 0.5, max(judged): 2.0}
        if best not in edges or len(judged) >= most:
            break
        judged[best * edges[best]] = at(best * edges[best], first)
    for rate in {best, *choice.too}:
        at(rate, seeds)
    more = ("train", "curve") if choice.small else ()
    chosen = {name: [run[name] for run in found[best]] for name in ("validation", "test", *more)}
    rates = [
        {"lr": rate, "validation": [run["validation"] for run in found[rate]]}
        for rate in sorted(found)
    ]
    seconds = sum(run["seconds"] for runs in found.values() for run in runs)
    edge = {"at_edge": best in edges, "seconds": round(seconds, 1)}
    return {**choice.about, "lr": best, **chosen, "rates": rates, **edge}


def mean(losses: list[float | None]) -> float:
    """Return the mean; that of runs of which one broke off is infinite."""
    numbers = [x for x in losses if x is not None]
    return float(np.mean(numbers)) if len(numbers) == len(losses) else math.inf
