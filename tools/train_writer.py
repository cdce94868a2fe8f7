"""Train the writer that the package carries, its draft, or the writer of long texts.

`python tools/train_writer.py` trains the writer, with `draft_writer` the draft. With `long_writer`
the writer is trained on, on sequences sixteen times as long and with slower rotations, so that it
makes use of what stands thousands of tokens back; that model stays with the book. Everything
follows from the seed and the settings below: the tokenizer is learned on the training plays, and
the others take the writer's; all models are trained on these plays, and the validation plays choose
nothing but are watched. An interrupted run goes on from its checkpoint.
"""

import argparse
import hashlib
import io
import json
import math
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from attnbook import nn
from attnbook.data import Batches, BytePairs, plays, windows
from attnbook.models import LanguageModel, writer
from attnbook.positions import Rotary
from attnbook.training import History, Settings, evaluate, train
from attnbook.transformers.weights import TransformerWeights
from benchmarks import scaling
from benchmarks.provenance import describe

ROOT = Path(__file__).resolve().parents[1]
VOCABULARY = 2048
KIND = {"target_vocabulary": VOCABULARY} | scaling.KIND


class Recipe(NamedTuple):
    """What is trained, and for how long."""

    sizes: dict[str, int]
    lr: float
    dropout: float
    steps: int
    context: int = 256
    batch: int = 16
    stride: int = 32
    warmup: int = 200
    every: int = 250
    base: float = 10000.0
    folder: str = "attnbook/models"


WRITER = scaling.SIZES[-1]
DRAFT = {"d_model": 128, "n_heads": 4, "n_kv_heads": 1, "d_ff": 384, "n_layers": 1}
RECIPES = {
    "writer": Recipe(WRITER, 2e-3, 0.1, 4000),
    "draft_writer": Recipe(DRAFT, 4e-3, 0, 5000),
    "long_writer": Recipe(
        WRITER, 4e-4, 0.1, 600, 4096, 1, 256, 30, 100, base=100000.0, folder="book/data"
    ),
}


def settings(recipe: Recipe, steps: int | None) -> Settings:
    """Return how a model is trained, in so many updates."""
    return Settings(
        steps=steps or recipe.steps,
        lr=recipe.lr,
        betas=(0.9, 0.98),
        weight_decay=0.1,
        warmup=recipe.warmup,
        schedule="cosine",
        final_lr=recipe.lr / 20,
        clip=1.0,
        precision="bfloat16",
        seed=0,
        eval_every=recipe.every,
        checkpoint_every=recipe.every,
    )


def first_weights(name: str, recipe: Recipe, sizes: dict) -> TransformerWeights:
    """Return the weights that the training begins with."""
    if name != "long_writer":
        return TransformerWeights.init(0, **sizes)
    weights = writer().weights
    decoder = replace(weights.decoder, positions=Rotary(base=recipe.base))
    return replace(weights, decoder=decoder)


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
    parser.add_argument(
        "--checkpoint", help="the file that keeps the run (default: NAME.checkpoint)"
    )
    parser.add_argument("--out", type=Path, help="default: NAME.npz where it belongs")
    parser.add_argument("--log", type=Path, help="default: book/data/NAME_training.cpu.json")
    given = parser.parse_args(arguments)
    name, recipe = given.name, RECIPES[given.name]
    out = given.out or ROOT / recipe.folder / f"{name}.npz"
    log = given.log or ROOT / f"book/data/{name}_training.cpu.json"
    torch.set_num_threads(given.threads)
    data = plays()
    texts = {part: [data.texts[title] for title in data.titles[part]] for part in data.titles}
    content = {"sizes": KIND | recipe.sizes, "context": recipe.context, "rotary_base": recipe.base}
    if name == "writer":
        tokenizer = BytePairs.learn(texts["train"], VOCABULARY)
        content["tokenizer"] = tokenizer.to_dict()
    else:  # that of the writer, which is not stored again
        tokenizer = writer().tokenizer
    ids = ids_of(tokenizer, texts["train"])
    held_out = ids_of(tokenizer, texts["validation"])
    n_bytes = sum(len(text.encode()) for text in texts["validation"])
    read = windows(ids, recipe.context, stride=recipe.stride)
    batches = Batches(None, read, recipe.batch, start=None, stop=None, pool=1)
    judged = windows(held_out, recipe.context, stride=recipe.context)
    judge = Batches(None, judged, len(judged) // 8, start=None, stop=None, pool=1)
    weights = first_weights(name, recipe, content["sizes"]).to("torch", dtype="float32")
    model = nn.Transformer(weights, dropout=recipe.dropout, impl="packed")
    began = time.time()

    def validate(model):
        loss = evaluate(model, [judge(i) for i in range(len(judge))])
        bits = loss * len(held_out) / n_bytes / math.log(2)
        minutes = (time.time() - began) / 60
        print(f"{minutes:6.1f} minutes: {loss:.4f} nats, {bits:.4f} bits per byte", flush=True)
        pack(out, model.weights, content)
        return bits

    chosen = settings(recipe, given.steps)
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
    made = LanguageModel(kept, tokenizer, recipe.context)
    bits = {
        part: made.bits_per_byte(getattr(data, part), impl="packed")
        for part in ("validation", "test")
    }
    record = recorded(name, chosen, history) | stored | {"bits_per_byte": bits}
    log.write_text(json.dumps(record, indent=1) + "\n")
    return 0


def recorded(name: str, chosen: Settings, history: History) -> dict:
    """Return the recipe and its curves: the training loss is the mean of 50 updates."""
    losses = np.array(history.losses[: len(history.losses) // 50 * 50]).reshape(-1, 50).mean(axis=1)
    of_data = {field: getattr(RECIPES[name], field) for field in ("dropout", "batch", "context")}
    recipe = asdict(chosen) | of_data
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
