"""Train the writer that the package carries, or its draft.

`python tools/train_writer.py` trains the writer, `python tools/train_writer.py draft_writer` the
draft. Everything follows from the seed and the settings below: the tokenizer is learned on the
training plays, and the draft takes the writer's; both models are trained on these plays, and the
validation plays choose nothing but are watched. An interrupted run goes on from its checkpoint.
"""

import argparse
import hashlib
import io
import json
import math
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from attnbook import nn
from attnbook.data import Batches, BytePairs, plays, windows
from attnbook.models import LanguageModel, writer
from attnbook.training import History, Settings, evaluate, train
from attnbook.transformers.weights import TransformerWeights
from benchmarks.provenance import describe

ROOT = Path(__file__).resolve().parents[1]
VOCABULARY, CONTEXT, STRIDE, BATCH = 2048, 256, 32, 16
KIND = {
    "target_vocabulary": VOCABULARY,
    "n_encoder_layers": 0,
    "bias": False,
    "positions": "rotary",
    "scale_embeddings": False,
    "normalization": "rms",
    "gated": True,
    "activation": "silu",
}


class Recipe(NamedTuple):
    """What is trained, and for how long."""

    sizes: dict[str, int]
    lr: float
    dropout: float
    steps: int


RECIPES = {
    "writer": Recipe(
        {"d_model": 192, "n_heads": 6, "n_kv_heads": 2, "d_ff": 512, "n_layers": 6}, 2e-3, 0.1, 4000
    ),
    "draft_writer": Recipe(
        {"d_model": 128, "n_heads": 4, "n_kv_heads": 1, "d_ff": 384, "n_layers": 1}, 4e-3, 0, 5000
    ),
}


def settings(steps: int, lr: float) -> Settings:
    """Return how a model is trained in so many updates."""
    return Settings(
        steps=steps,
        lr=lr,
        betas=(0.9, 0.98),
        weight_decay=0.1,
        warmup=200,
        schedule="cosine",
        final_lr=lr / 20,
        clip=1.0,
        precision="bfloat16",
        seed=0,
        eval_every=250,
        checkpoint_every=250,
    )


def ids_of(tokenizer: BytePairs, texts: list[str]) -> np.ndarray:
    """Return the tokens of all texts, each after an end of text."""
    return np.concatenate([[tokenizer.stop, *tokenizer.encode(text)] for text in texts])


def pack(path: Path, weights: TransformerWeights, content: dict) -> None:
    """Write the weights in half precision, with what else the model is made of."""
    stored = io.BytesIO()
    arrays = weights.to("numpy", dtype="float16").arrays()
    np.savez(stored, content=np.array(json.dumps(content)), **arrays)
    path.write_bytes(stored.getvalue())


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", nargs="?", choices=RECIPES, default="writer")
    parser.add_argument("--steps", type=int, help="number of updates")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--checkpoint", help="where the run is kept (default: NAME.checkpoint)")
    parser.add_argument("--out", type=Path, help="default: attnbook/models/NAME.npz")
    parser.add_argument("--log", type=Path, help="default: book/data/NAME_training.cpu.json")
    given = parser.parse_args(arguments)
    name, recipe = given.name, RECIPES[given.name]
    out = given.out or ROOT / f"attnbook/models/{name}.npz"
    log = given.log or ROOT / f"book/data/{name}_training.cpu.json"
    torch.set_num_threads(given.threads)
    data = plays()
    texts = {part: [data.texts[title] for title in data.titles[part]] for part in data.titles}
    content = {"sizes": KIND | recipe.sizes, "context": CONTEXT}
    if name == "writer":
        tokenizer = BytePairs.learn(texts["train"], VOCABULARY)
        content["tokenizer"] = tokenizer.to_dict()
    else:  # that of the writer, which is not stored again
        tokenizer = writer().tokenizer
    ids = ids_of(tokenizer, texts["train"])
    held_out = ids_of(tokenizer, texts["validation"])
    n_bytes = sum(len(text.encode()) for text in texts["validation"])
    batches = Batches(
        None, windows(ids, CONTEXT, stride=STRIDE), BATCH, start=None, stop=None, pool=1
    )
    judged = windows(held_out, CONTEXT, stride=CONTEXT)
    judge = Batches(None, judged, len(judged) // 8, start=None, stop=None, pool=1)
    weights = TransformerWeights.init(0, **content["sizes"]).to("torch", dtype="float32")
    model = nn.Transformer(weights, dropout=recipe.dropout, impl="packed")
    began = time.time()

    def validate(model):
        loss = evaluate(model, [judge(i) for i in range(len(judge))])
        bits = loss * len(held_out) / n_bytes / math.log(2)
        minutes = (time.time() - began) / 60
        print(f"{minutes:6.1f} minutes: {loss:.4f} nats, {bits:.4f} bits a byte", flush=True)
        pack(out, model.weights, content)
        return bits

    chosen = settings(given.steps or recipe.steps, recipe.lr)
    history = train(
        model,
        batches,
        chosen,
        validate=validate,
        checkpoint=given.checkpoint or f"{name}.checkpoint",
        progress=False,
    )
    pack(out, model.weights, content)
    stored = {"sha256": hashlib.sha256(out.read_bytes()).hexdigest()}
    kept = model.weights.to("numpy", dtype="float16").to("torch", dtype="float32")
    made = LanguageModel(kept, tokenizer, CONTEXT)
    bits = {part: made.bits_per_byte(getattr(data, part)) for part in ("validation", "test")}
    record = recorded(name, chosen, history) | stored | {"bits_per_byte": bits}
    log.write_text(json.dumps(record, indent=1) + "\n")
    return 0


def recorded(name: str, chosen: Settings, history: History) -> dict:
    """Return the recipe and its curves: the training loss is the mean of 50 updates."""
    losses = np.array(history.losses[: len(history.losses) // 50 * 50]).reshape(-1, 50).mean(axis=1)
    recipe = asdict(chosen) | {"dropout": RECIPES[name].dropout, "batch": BATCH, "context": CONTEXT}
    command = "python tools/train_writer.py" + (f" {name}" if name != "writer" else "")
    return {
        "benchmark": f"{name}_training",
        "provenance": describe("cpu", command),
        "recipe": recipe,
        "sizes": KIND | RECIPES[name].sizes,
        "training_nats_a_token": [round(x, 4) for x in losses.tolist()],
        "validation_bits_a_byte": [[step, round(x, 4)] for step, x in history.evaluations],
    }


if __name__ == "__main__":
    sys.exit(main())
