"""Measure what the writer loses without each of its heads.

Run `python tools/heads_of_writer.py`: it takes some ten minutes on one core.
Writes `book/data/heads_of_writer.cpu.json` for the chapter `multi_head`. In the place of a head
stands its mean output over passages of the training plays, or zeros. All losses are in bits per
byte of passages from the validation plays; the order in which heads are taken out one after another
is that of their losses on the training plays.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnbook import attention
from attnbook.data import plays
from attnbook.models import writer
from benchmarks import provenance

OUTPUT = Path(__file__).parents[1] / "book/data/heads_of_writer.cpu.json"
CHARACTERS, ORDERS = 600, 3
Place = tuple[int, int]  # layer, head


def passages(text: str, number: int) -> list[str]:
    """Return passages from all over `text`, each from the beginning of a speech."""
    places = np.linspace(0, len(text) - 10 * CHARACTERS, number).astype(int)
    starts = [text.index("\n\n", place) + 2 for place in places]
    return [text[start : start + CHARACTERS] for start in starts]


def plain(query, key, value, mask=None, bias=None, scale=None, is_causal=False):
    """Return attention as the writer calls it."""
    return attention(query, key, value, mask, bias=bias, scale=scale, is_causal=is_causal)


def mean_outputs(model: Any, texts: Sequence[str]) -> np.ndarray:
    """Return the mean output of each head before W_O, (layers, h, d), over all tokens."""
    sums, n_tokens = 0.0, 0
    for text in texts:
        seen: list[np.ndarray] = []

        def watch(*given, seen=seen):
            seen.append(plain(*given))
            return seen[-1]

        model.logits(text, impl=watch)
        outputs = np.stack(
            [output.reshape(-1, *output.shape[-2:]) for output in seen]
        )  # (layers, h, n, d)
        sums, n_tokens = sums + outputs.sum(axis=-2), n_tokens + outputs.shape[-2]
    return sums / n_tokens


def without(n_layers: int, replaced: Mapping[Place, Any]) -> Callable[..., np.ndarray]:
    """Return attention in which head h of layer l always gives ``replaced[l, h]``."""
    layer = itertools.cycle(range(n_layers))

    def attend(*given):
        output, here = plain(*given).copy(), next(layer)
        for (at, head), row in replaced.items():
            if at == here:
                output.reshape(-1, *output.shape[-2:])[head] = row
        return output

    return attend


def measured(model: Any, n_texts: int) -> dict[str, Any]:
    """Return the losses of `model` with each head replaced, and with more and more of them."""
    n_layers = len(model.weights.decoder.layers)
    train, held_out = (passages(text, n_texts) for text in (plays().train, plays().validation))
    mean = mean_outputs(model, train)
    places = list(np.ndindex(mean.shape[:2]))

    def bits(texts, replaced):
        costs = [model.surprisal(text, impl=without(n_layers, replaced)).sum() for text in texts]
        return float(sum(costs)) / sum(len(text.encode()) for text in texts)

    def table(texts, rows):
        found = [bits(texts, {place: rows[place]}) for place in places]
        return np.reshape(found, mean.shape[:2])

    known = table(train, mean)
    ranked = [places[i] for i in np.argsort(known, axis=None, kind="stable")]
    orders = [ranked]
    for seed in range(ORDERS):
        order = np.random.default_rng(seed).permutation(len(places))
        orders.append([places[i] for i in order])
    steps = range(0, len(places) + 1, max(1, len(places) // 12))
    curves = [
        [bits(held_out, {place: mean[place] for place in order[:k]}) for k in steps]
        for order in orders
    ]
    return {
        "whole": bits(held_out, {}),
        "mean": table(held_out, mean).tolist(),
        "zero": table(held_out, np.zeros_like(mean)).tolist(),
        "mean_on_training_plays": known.tolist(),
        "removed": list(steps),
        "least_needed_first": curves[0],
        "at_random": curves[1:],
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--passages", type=int, default=24, help="passages of each kind")
    parser.add_argument("--out", type=Path, default=OUTPUT)
    given = parser.parse_args(arguments)
    begin = time.perf_counter()
    record = {
        "benchmark": "heads_of_writer",
        "provenance": provenance.describe("cpu", "python tools/heads_of_writer.py"),
        "settings": {"passages": given.passages, "characters": CHARACTERS},
        "losses": measured(writer(), given.passages),
    }
    record["seconds"] = round(time.perf_counter() - begin, 1)
    given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
