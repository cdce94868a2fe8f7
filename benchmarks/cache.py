"""Decoding over a long cache: who may read a share of it, and what that costs the model.

Tables: `settings`, what was chosen on the validation plays; `decoding`, error and loss on the test
plays at several shares of the cache; `heads`, the errors head by head; `windows`, the loss of
a model that reads the whole text through a window.
"""

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnbook.kernels import attention
from benchmarks import cache_rivals, cache_sketch, harness, real_keys
from benchmarks.cache_model import LongText
from benchmarks.cache_past import Past, Read, answer, share
from benchmarks.tables import Tables

DEVICES = ("cpu",)
WHOLE = True  # its tables build on one another, so all are measured
MODEL, N, M = "long_writer", 4096, 64
BUDGETS = (0.01, 0.02, 0.05, 0.1)
WINDOWS, SEEDS = (1, 7, 14), 2  # windows of the test plays, and draws of what is random
TUNED_ON = 32  # decoded tokens of a window of the validation plays, in every second layer
HEADS_AT = 0.05  # the budget of the table `heads`
SINKS = 4
LAYER = 3  # whose heads are kept for the book
BACK = (16, 64, 256, 1024)  # tokens of the windows that stand alone

METHODS = {
    "task": (
        f"The model reads {N - M} tokens of a play exactly (prefill) and decodes {M} more, whose "
        "true tokens are given. `loss`: nats a decoded token if the attention of every layer and "
        "head to its past is replaced; `more_loss` is the difference from exact attention, and "
        "`loss_error` its standard error over the tokens. `error`: norm of the difference of the "
        "outputs of a head from the exact ones, divided by the norm of these, for exact inputs; "
        "the mean over all heads, and in `heads` each of them."
    ),
    "share": (
        "Numbers read for a query, of the numbers of all keys and values that it may see. A scored "
        "key counts with its value. Beside them count: bounds of pages, centres and clouds of "
        "cells, moments, keys that a graph visits, entries of the buckets. What all heads share, "
        "the directions of a hash, does not count. Each query head counts for itself, though "
        "three of them share their keys."
    ),
    "tuning": (
        "Each method has one setting for all heads and each budget: that of least error on "
        "a window of the validation plays among all of its grid whose share is within the budget. "
        "The rows are measured on windows of the test plays, with other draws for what is random."
    ),
}

SIMPLIFIED = {
    "window": "none",
    "StreamingLLM": (
        "sinks and window, but positions stay those of the text (the paper counts them in the "
        "cache, which matters beyond the trained length)"
    ),
    "SnapKV": (
        "the last 32 queries of the prompt vote, pooled by maxima; decoded tokens leave by a "
        "sliding window, where the paper keeps all of them"
    ),
    "H2O": (
        "sums over the whole prompt by exact attention, eviction while it decodes; sinks are kept "
        "apart"
    ),
    "Quest": (
        "pages of one head; bounds in float32; all layers (the paper leaves the first two exact)"
    ),
    "graph": (
        "RetrievalAttention with faiss's HNSW by inner product (M = 16) in the place of its graph "
        "from queries to keys"
    ),
    "IVF": "centres by k-means of the prompt's keys; all keys of the probed cells are attended to",
    "MagicPIG": (
        "as in the paper, keys centred by the mean of the prompt, a key counts from two tables on; "
        "all layers (the paper leaves some exact)"
    ),
    "sketch": "none: what SketchAttention does",
    "cells": (
        "RetroInfer's three zones, with a normal cloud a cell where the paper has the mean key; "
        "centres by k-means of the whole prompt, where it segments"
    ),
    "best keys": "a bound: it knows the scores of all keys and reads them for nothing",
}


class Method(NamedTuple):
    """A method and the settings that it is tuned over, for so many keys of n."""

    run: Callable[..., Read]
    grid: Callable[[int, int], Iterator[dict[str, Any]]]
    is_random: bool = False


def _grid(**choices) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def _hybrid(b: int, **choices) -> Iterator[dict[str, Any]]:
    windows = (max(b // 4, 4), max(b // 2, 4))
    return _grid(sinks=(SINKS,), window=windows, **choices)


def _parts(b: int, **choices) -> Iterator[dict[str, Any]]:
    for w in (b // 8, b // 4, b // 2):
        window = max(w, 1)
        yield from _grid(sinks=(SINKS,), window=(window,), keys=(b - window - SINKS,), **choices)


def _pages(b: int, n: int) -> Iterator[dict[str, Any]]:
    for page in (16, 32, 64, 128):
        for window in (1, b // 4, b // 2):
            left = b - n // page - window - SINKS - page // 2
            if left >= page:
                yield {
                    "sinks": SINKS,
                    "window": max(window, 1),
                    "page": page,
                    "pages": left // page,
                }


def _graphs(b: int, n: int) -> Iterator[dict[str, Any]]:
    for part, effort in itertools.product((8, 4, 2), (8, 16, 32, 64, 128, 256)):
        for window in (b // 4, b // 2):
            if b // part <= effort:
                keys = max(b // part, 1)
                yield {"sinks": SINKS, "window": max(window, 1), "keys": keys, "effort": effort}


def _sketches(b: int, n: int) -> Iterator[dict[str, Any]]:
    for estimator in ("union", "importance"):
        yield from _hybrid(b, tables=(64, 256), bits=(10, 12, 14), estimator=(estimator,))
    yield from _hybrid(b, tables=(0,), bits=(1,), estimator=("cloud",))
    yield from _hybrid(b, tables=(64,), bits=(10, 12), estimator=("cloud",))


SOUGHT: dict[str, Method] = {
    "window": Method(cache_rivals.recent, lambda b, n: _grid(sinks=(0,), window=(b,))),
    "StreamingLLM": Method(
        cache_rivals.recent,
        lambda b, n: ({"sinks": s, "window": b - s} for s in (1, 2, 4, 8, 16) if s < b),
    ),
    "SnapKV": Method(cache_rivals.snapkv, lambda b, n: _parts(b, pool=(1, 5))),
    "H2O": Method(cache_rivals.h2o, lambda b, n: _parts(b)),
    "Quest": Method(cache_rivals.quest, _pages),
    "graph": Method(cache_rivals.graph, _graphs),
    "IVF": Method(
        cache_rivals.inverted_file,
        lambda b, n: _hybrid(b, lists=(32, 128), probes=(1, 2, 4, 8)),
        True,
    ),
    "MagicPIG": Method(
        cache_rivals.magicpig,
        lambda b, n: _hybrid(b, tables=(64, 128, 256), bits=(8, 10, 12)),
        True,
    ),
    "sketch": Method(cache_sketch.tables, _sketches, True),
    "cells": Method(
        cache_sketch.cells,
        lambda b, n: _hybrid(b, lists=(16, 64), probes=(0, 1, 2, 4)),
        True,
    ),
    "best keys": Method(cache_rivals.best_keys, lambda b, n: _grid(keys=(b,))),
}


_TEXTS: dict[str, Any] = {}  # what the processes share: each runs some of the methods


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure all methods; nothing here runs on another device."""
    name, n, m = ("writer", 256, 16) if quick else (MODEL, N, M)
    budgets = BUDGETS[-1:] if quick else BUDGETS
    tables.add(methods=METHODS, simplified=SIMPLIFIED, model=name, n=n, m=m, budgets=budgets)
    model = real_keys.model(name)
    windows = WINDOWS[:1] if quick else WINDOWS
    texts = [LongText(model, real_keys.window(n, "test", i), m) for i in windows]
    if not quick:
        tables.whole("windows", lambda: list(windows_alone(n, name)))
    if tables.path is not None:
        keep(texts[0], tables.path)
    validation = LongText(model, real_keys.window(n, "validation", 0), min(TUNED_ON, m))
    _TEXTS.update(texts=texts, validation=validation, n=n, seeds=1 if quick else SEEDS)
    _TEXTS.update(budgets=budgets)
    if quick:
        found = list(map(of_method, SOUGHT))
    else:
        with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as pool:
            found = list(pool.map(of_method, SOUGHT))
    tables.add(
        settings=[row for settings, _, _ in found for row in settings],
        decoding=[exact_row(texts), *(row for _, rows, _ in found for row in rows)],
        heads=[row for _, _, heads in found for row in heads],
    )


def of_method(name: str) -> tuple[list[dict[str, Any]], ...]:
    """Return settings, rows and errors of the heads of a method."""
    method, heads = SOUGHT[name], list[dict[str, Any]]()
    settings = tune(name, method, _TEXTS["validation"], _TEXTS["n"], _TEXTS["budgets"])
    chosen = [row for row in settings if row["settings"] is not None]
    return settings, [test(row, _TEXTS["texts"], _TEXTS["seeds"], heads) for row in chosen], heads


def tune(
    name: str, method: Method, text: LongText, n: int, budgets: tuple[float, ...]
) -> list[dict[str, Any]]:
    """Return a row for each budget: the settings of least error within it."""
    found = []
    for budget in budgets:
        tried = []
        for settings in method.grid(int(budget * (n - text.m)), n):
            if _judged(text.heads[-1:], method.run, settings)[1].mean() > 2 * budget:
                continue  # one layer says enough
            error, read = _judged(text.heads[1::2], method.run, settings)
            if read.mean() <= 1.02 * budget:
                tried.append((float(error.mean()), float(read.mean()), settings))
        row = {"method": name, "budget": budget, "settings": None, "tried": len(tried)}
        if tried:
            error, read, settings = min(tried, key=lambda x: x[0])
            row |= {"settings": settings, "validation_error": error, "validation_share": read}
        harness.log(f"  {row}")
        found.append(row)
    return found


def _judged(
    heads: list[list[Past]], run: Callable[..., Read], settings: dict[str, Any], seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return relative error and share of the cache of each layer and head."""
    error, read = np.zeros((2, len(heads), len(heads[0])))
    for i, layer in enumerate(heads):
        for h, past in enumerate(layer):
            past.seed = seed
            found = run(past, **settings)
            off = answer(past, found) - past.exact
            error[i, h] = np.linalg.norm(off) / np.linalg.norm(past.exact)
            read[i, h] = share(past, found)
    return error, read


def keep(text: LongText, path: Path) -> None:
    """Write what a layer of a text attends with, in half precision, for the book's cells."""
    layer = text.heads[LAYER]
    groups = len(layer) // text.model.weights.decoder.layers[LAYER].self_attention.n_kv_heads
    np.savez_compressed(
        path.with_name("long_cache.npz"),
        ids=text.ids.astype(np.int16),
        query=np.stack([past.query for past in layer]).astype(np.float16),
        key=np.stack([past.key for past in layer[::groups]]).astype(np.float16),
        value=np.stack([past.value for past in layer[::groups]]).astype(np.float16),
    )


def exact_row(texts: list[LongText]) -> dict[str, Any]:
    """Return the row of exact attention."""
    loss = float(np.mean([text.exact_loss for text in texts]))
    about = {"method": "exact", "budget": 1.0, "share": 1.0, "error": 0.0}
    return about | {"loss": loss, "more_loss": 0.0, "loss_error": 0.0}


def test(
    chosen: dict[str, Any], texts: list[LongText], seeds: int, heads: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the row of a method, and put the errors of its heads into `heads`."""
    method, settings = SOUGHT[chosen["method"]], chosen["settings"]
    run, draws = method.run, range(1, 1 + seeds) if method.is_random else (0,)
    found = [_judged(text.heads, run, settings, seed) for text in texts for seed in draws]
    error, read = (np.mean(x, axis=0) for x in zip(*found, strict=True))
    more = [
        np.mean([text.loss(run, seed, **settings) for seed in draws], axis=0) - text.exact_loss
        for text in texts
    ]
    each = np.concatenate(more)  # a number for each token
    row = {
        "method": chosen["method"],
        "budget": chosen["budget"],
        "settings": settings,
        "share": float(read.mean()),
        "error": float(error.mean()),
        "loss": float(each.mean() + np.mean([text.exact_loss for text in texts])),
        "more_loss": float(each.mean()),
        "loss_error": float(each.std(ddof=1) / len(each) ** 0.5),
        "seeds": len(draws),
    }
    harness.log(f"  {row}")
    if chosen["budget"] == HEADS_AT:
        heads.append({"method": chosen["method"], "budget": HEADS_AT, "error": error.tolist()})
    return row


def windows_alone(n: int, name: str) -> Iterator[dict[str, Any]]:
    """Give a row for each width of a sliding window in every layer, over the whole text."""
    half, kernel = n // 2, real_keys.EXACT

    def losses(width):
        place = np.arange(n)
        band = (place > place[:, None] - width) & (place <= place[:, None])

        def attend(query, key, value, mask, bias, scale, is_causal):
            return attention(kernel, query, key, value, band, bias, scale, False)

        rows = [real_keys.losses(attend, n, part="test", name=name, i=i) for i in WINDOWS]
        return np.concatenate([row[half:] for row in rows])

    exact = losses(n)
    for width in BACK:
        more = losses(width) - exact
        yield {
            "window": width,
            "loss": float((more + exact).mean()),
            "more_loss": float(more.mean()),
            "loss_error": float(more.std(ddof=1) / len(more) ** 0.5),
            "tokens": len(more),
        }
