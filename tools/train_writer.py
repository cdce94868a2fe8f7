"""Train the writer that the package carries: `python tools/train_writer.py [--steps N]`.

Everything follows from the seed and the settings below: the tokenizer is learned on the training
plays, the model is trained on them, the validation plays choose nothing but are watched. An
interrupted run goes on from its checkpoint.
"""

import argparse
import io
import json
import math
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from attnbook import nn
from attnbook.data import Batches, BytePairs, plays, windows
from attnbook.training import History, Settings, evaluate, train
from attnbook.transformers.weights import TransformerWeights
from benchmarks.provenance import describe

ROOT = Path(__file__).resolve().parents[1]
VOCABULARY, CONTEXT, STRIDE, BATCH = 2048, 256, 32, 16
SIZES = {
    "target_vocabulary": VOCABULARY,
    "d_model": 192,
    "n_heads": 6,
    "n_kv_heads": 2,
    "d_ff": 512,
    "n_layers": 6,
    "n_encoder_layers": 0,
    "bias": False,
    "positions": "rotary",
    "scale_embeddings": False,
    "normalization": "rms",
    "gated": True,
    "activation": "silu",
}


def settings(steps: int) -> Settings:
    """Return how the writer is trained in so many updates."""
    return Settings(
        steps=steps,
        lr=2e-3,
        betas=(0.9, 0.98),
        weight_decay=0.1,
        warmup=200,
        schedule="cosine",
        final_lr=1e-4,
        clip=1.0,
        precision="bfloat16",
        seed=0,
        eval_every=250,
        checkpoint_every=250,
    )


def ids_of(tokenizer: BytePairs, texts: list[str]) -> np.ndarray:
    """Return the tokens of all texts, each after an end of text."""
    return np.concatenate([[tokenizer.stop, *tokenizer.encode(text)] for text in texts])


def pack(path: Path, model: torch.nn.Module, tokenizer: BytePairs) -> None:
    """Write the weights in half precision, with the sizes and the tokenizer."""
    arrays = model.weights.to("numpy", dtype="float16").arrays()
    content = {"sizes": SIZES, "context": CONTEXT, "tokenizer": tokenizer.to_dict()}
    stored = io.BytesIO()
    np.savez(stored, content=np.array(json.dumps(content)), **arrays)
    path.write_bytes(stored.getvalue())


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=4000, help="number of updates")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--checkpoint", default="writer.checkpoint", help="where the run is kept")
    parser.add_argument("--out", type=Path, default=ROOT / "attnbook/models/writer.npz")
    parser.add_argument("--log", type=Path, default=ROOT / "book/data/writer_training.cpu.json")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    data = plays()
    texts = {part: [data.texts[title] for title in data.titles[part]] for part in data.titles}
    tokenizer = BytePairs.learn(texts["train"], VOCABULARY)
    ids = ids_of(tokenizer, texts["train"])
    held_out = ids_of(tokenizer, texts["validation"])
    n_bytes = sum(len(text.encode()) for text in texts["validation"])
    batches = Batches(
        None, windows(ids, CONTEXT, stride=STRIDE), BATCH, start=None, stop=None, pool=1
    )
    judged = windows(held_out, CONTEXT, stride=CONTEXT)
    judge = Batches(None, judged, len(judged) // 8, start=None, stop=None, pool=1)
    weights = TransformerWeights.init(0, **SIZES).to("torch", dtype="float32")
    model = nn.Transformer(weights, dropout=given.dropout, impl="packed")
    began = time.time()

    def validate(model):
        loss = evaluate(model, [judge(i) for i in range(len(judge))])
        bits = loss * len(held_out) / n_bytes / math.log(2)
        minutes = (time.time() - began) / 60
        print(f"{minutes:6.1f} minutes: {loss:.4f} nats, {bits:.4f} bits a byte", flush=True)
        pack(given.out, model, tokenizer)
        return bits

    chosen = settings(given.steps)
    history = train(
        model, batches, chosen, validate=validate, checkpoint=given.checkpoint, progress=False
    )
    pack(given.out, model, tokenizer)
    given.log.write_text(json.dumps(recorded(chosen, given.dropout, history), indent=1) + "\n")
    return 0


def recorded(chosen: Settings, dropout: float, history: History) -> dict:
    """Return the recipe and its curves: the training loss is the mean of 50 updates."""
    losses = np.array(history.losses[: len(history.losses) // 50 * 50]).reshape(-1, 50).mean(axis=1)
    return {
        "benchmark": "writer_training",
        "provenance": describe("cpu", "python tools/train_writer.py"),
        "recipe": asdict(chosen) | {"dropout": dropout, "batch": BATCH, "context": CONTEXT},
        "sizes": SIZES,
        "training_nats_a_token": [round(x, 4) for x in losses.tolist()],
        "validation_bits_a_byte": [[step, round(x, 4)] for step, x in history.evaluations],
    }


if __name__ == "__main__":
    sys.exit(main())
