"""Train small copies of the writer with and without the causal mask.

Run `python tools/unmasked_writer.py`: it takes some five minutes on one core.
Writes `book/data/unmasked_writer.cpu.json` for the chapter `masking`. Both kinds are trained alike,
from the same first weights on the same windows of the plays, and differ in the mask alone. All
losses are in bits per byte of text.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch

from attnbook import TransformerWeights, data, kernels, transformer
from attnbook.nn import Transformer
from attnbook.training import Settings, train
from benchmarks import provenance

OUTPUT = Path(__file__).parents[1] / "book/data/unmasked_writer.cpu.json"
SHAPE = {"d_model": 128, "n_heads": 4, "n_kv_heads": 2, "d_ff": 256, "n_layers": 2}
KIND = {"normalization": "rms", "activation": "silu", "gated": True}
VOCABULARY, CONTEXT, BATCH, SEEDS = 512, 64, 16, (0, 1, 2)
STEPS, AVERAGED = 600, 20
VALIDATION_WINDOWS = 64
PROMPT, LENGTH, TEMPERATURE = "ROMEO:\n", 150, 0.8


class Unmasked(Transformer):
    """A language model whose every place sees the whole window, the answers included."""

    def forward(self, *given, **masks):
        return super().forward(*given, is_causal=False, **masks)


def trained(
    causal: bool, seed: int, ids: np.ndarray, steps: int
) -> tuple[Transformer, list[float]]:
    """Return a model trained on windows of `ids`, and its loss in each step."""
    weights = TransformerWeights.init(
        seed,
        VOCABULARY,
        n_encoder_layers=0,
        positions="rotary",
        bias=False,
        scale_embeddings=False,
        **SHAPE,
        **KIND,
    )
    model = (Transformer if causal else Unmasked)(weights.to(dtype="float32"))
    batches = data.Batches(
        None, data.windows(ids, CONTEXT), BATCH, seed=seed, start=None, stop=None, pool=1
    )
    settings = Settings(steps, lr=3e-3, warmup=min(50, steps // 2), schedule="cosine", clip=1.0)
    return model, train(model, batches, settings).losses


def last_rows(weights: TransformerWeights, windows: torch.Tensor, causal: bool) -> torch.Tensor:
    """Return the logits of each place from the tokens up to it alone, (windows, n, vocabulary)."""
    rows = [
        transformer(None, windows[:, : t + 1], weights, is_causal=causal)[:, -1]
        for t in range(windows.shape[1])
    ]
    return torch.stack(rows, dim=1)


def bits(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return -log2 of the probability of each label."""
    found = torch.nn.functional.cross_entropy(logits.movedim(-1, 1), labels, reduction="none")
    return found / math.log(2)


@torch.no_grad()
def measured(model: Transformer, causal: bool, windows: torch.Tensor, sizes: torch.Tensor) -> dict:
    """Return losses on validation text in bits per byte, and where each head looks."""
    inputs, labels = windows[:, :-1], windows[:, 1:]
    recorder = kernels.Recorder()
    logits = transformer(None, inputs, model.weights, is_causal=causal, impl=recorder)
    all_at_once, alone = (
        bits(logits, labels),
        bits(last_rows(model.weights, inputs, causal), labels),
    )
    if causal:
        torch.testing.assert_close(all_at_once, alone, atol=1e-3, rtol=1e-3)
    spent = sizes[labels]  # bytes of text that each label stands for

    def diagonal(offset):
        return [
            [x[:, h].diagonal(offset, 1, 2).mean().item() for h in range(x.shape[1])]
            for x in recorder.weights
        ]

    return {
        "one_pass": (all_at_once.sum() / spent.sum()).item(),
        "last_place": (all_at_once[:, -1].sum() / spent[:, -1].sum()).item(),
        "one_token_at_a_time": (alone.sum() / spent.sum()).item(),
        "next_place": diagonal(1),  # mean weight of the next place, a row a layer, for each head
        "own_place": diagonal(0),
        "place_before": diagonal(-1),
    }


@torch.no_grad()
def written(model: Transformer, causal: bool, pairs: data.BytePairs) -> str:
    """Return a text that the model writes, one token after the other."""
    rng, ids = np.random.default_rng(0), list(pairs.encode(PROMPT))
    for _ in range(LENGTH):
        window = torch.tensor(ids[-CONTEXT:])[None]
        last = transformer(None, window, model.weights, is_causal=causal)[0, -1]
        chance = torch.softmax(last[: len(pairs)].double() / TEMPERATURE, dim=-1).numpy()
        ids.append(int(rng.choice(len(chance), p=chance / chance.sum())))
    return pairs.decode(ids)


def by_frequency(ids: np.ndarray, windows: torch.Tensor, sizes: torch.Tensor) -> float:
    """Return the bits per byte of one who knows nothing but how often each token occurs."""
    counts = np.bincount(ids, minlength=VOCABULARY) + 1.0
    labels = windows[:, 1:].numpy()
    return float(-np.log2(counts / counts.sum())[labels].sum() / sizes.numpy()[labels].sum())


def main() -> None:
    """Train all copies and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.perf_counter()
    origin = provenance.describe("cpu", "python tools/unmasked_writer.py")  # of what runs now
    plays = data.plays()
    pairs = data.BytePairs.learn([plays.train], VOCABULARY)
    ids, held = pairs.encode(plays.train), pairs.encode(plays.validation)
    sizes = torch.tensor([len(token) for token in pairs.tokens])
    stride = (len(held) - CONTEXT - 1) // (VALIDATION_WINDOWS - 1)
    windows = torch.tensor(data.windows(held, CONTEXT, stride=stride)[:VALIDATION_WINDOWS])
    bytes_a_token = len(plays.train.encode()) / len(ids)
    runs = []
    for seed in SEEDS:
        for causal in (True, False):
            model, losses = trained(causal, seed, ids, arguments.steps)
            curve = np.reshape(losses, (-1, AVERAGED)).mean(axis=1) / math.log(2) / bytes_a_token
            found = measured(model, causal, windows, sizes)
            runs.append(
                {"causal": causal, "seed": seed, "training": curve.tolist(), **found}
                | {"sample": written(model, causal, pairs)}
            )
            print(f"seed {seed}, causal {causal}: {curve[-1]:.3f}", found, flush=True)
    record = {
        "benchmark": "unmasked_writer",
        "provenance": origin,
        "settings": {
            **SHAPE,
            **KIND,
            "vocabulary": VOCABULARY,
            "context": CONTEXT,
            "batch": BATCH,
            "steps": arguments.steps,
            "steps_a_point": AVERAGED,
            "parameters": sum(math.prod(x.shape) for x in model.weights.arrays().values()),
            "bytes_a_token": bytes_a_token,
            "validation_bytes": int(sizes[windows[:, 1:]].sum()),
            "prompt": PROMPT,
            "temperature": TEMPERATURE,
        },
        "seconds": time.perf_counter() - begin,
        "by_frequency": by_frequency(ids, windows, sizes),
        "runs": runs,
    }
    arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
