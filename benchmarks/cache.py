"""Decoding over a long cache: who may read and multiply a share of it, and how wrong it is then.

Tables: `settings`, what was chosen on the validation plays; `decoding`, errors on the test plays at
several shares of the cache; `heads`, the errors head by head; `windows`, the loss of a model that
reads the whole text through a window.
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
from benchmarks.cache_past import Past, Read, answer, of_text, share
from benchmarks.tables import Tables

DEVICES = ("cpu",)
WHOLE = True  # its tables build on one another, so all are measured
MODEL, N, M = "long_writer", 4096, 64
BUDGETS = (0.02, 0.05, 0.1, 0.2, 0.4)
WINDOWS, SEEDS = (1, 7, 14), 3  # windows of the test plays, and draws of what is random
TUNED_ON = 32  # decoded tokens of a window of the validation plays, in every second layer
HEADS_AT = 0.1  # the budget of the table `heads`
SINKS = 4
LAYER = 3  # whose heads are kept for the book
BACK = (16, 64, 256, 1024)  # tokens of the windows that stand alone

METHODS = {
    "task": (
        f"The model reads {N - M} tokens of a play exactly (prefill) and decodes {M} more, whose "
        "true tokens are given, with exact attention; each method answers the same queries over "
        "the same cache. `error`: norm of the difference of the outputs of a head from the exact "
        "ones, divided by the norm of these; the mean over all heads, and in `heads` each of them."
    ),
    "share": (
        "Numbers that a query is multiplied by or reads, of those of all keys and values that it "
        "may see, which exact attention multiplies by. A scored key counts with its value. Beside "
        "them count, for all methods alike, `beside`: d for each direction of a hash, d for each "
        "centre of a cell, d for each page (of its two bounds the sign of an entry of the query "
        "says which one is needed), d for each key that a graph visits, all numbers of a cloud, "
        "and one for each entry of a bucket. Each query head counts for itself, though three of "
        "them share their keys. What a key costs once, when it comes, does not count for any of "
        "them: its hash, its cell, the bounds of its page, its links in a graph, its votes."
    ),
    "tuning": (
        "Each method has one setting for all heads and each budget: that of least error on "
        "a window of the validation plays among all of its grid (`tried` settings, for the first "
        "draw) whose share is within the budget (`within`). The rows are measured on windows of "
        f"the test plays, over {SEEDS} other draws for what is random."
    ),
    "windows": (
        "Nats a token of the second halves of the texts if every layer reads the last tokens "
        "alone, above those of exact attention; `loss_error` is the standard error over tokens, "
        "as if neighbours were independent."
    ),
}

SIMPLIFIED = {
    "window": "none; it has one setting for each budget",
    "SnapKV": (
        "the last 32 queries of the prompt vote, pooled by maxima; decoded tokens leave by a "
        "sliding window, where the paper keeps all of them"
    ),
    "H2O": (
        "sums over the whole prompt by exact attention, eviction while it decodes; sinks are kept "
        "apart"
    ),
    "Quest": (
        "pages of one head, and of each page one bound for each feature counts, not two; all "
        "layers (the paper leaves the first two exact)"
    ),
    "graph": (
        "RetrievalAttention with faiss's HNSW by inner product in the place of its graph from "
        "queries to keys"
    ),
    "IVF": "centres by k-means of the prompt's keys; all keys of the probed cells are attended to",
    "MagicPIG": (
        "as in the paper, keys centred by the mean of the prompt, a key counts from two tables on; "
        "all layers (the paper leaves some exact)"
    ),
    "sketch": (
        "the estimates of SketchAttention (a key counts from one table on), of keys that are "
        "centred by the mean of the prompt, beside sinks and a window, which that class has not"
    ),
    "cells": (
        "RetroInfer's three zones, with a normal cloud for each cell where the paper has the mean "
        "key; centres by k-means of the whole prompt, where it segments"
    ),
    "best keys": "an oracle: it knows the scores of all keys and reads them for nothing",
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
    return _grid(sinks=(SINKS,), **choices, window=windows)


def _parts(b: int, eighths: tuple[float, ...], sinks: tuple[int, ...], **choices):
    for s, of_8 in itertools.product(sinks, eighths):
        window = max(int(of_8 * b / 8), 1)
        yield from _grid(sinks=(s,), window=(window,), keys=(max(b - window - s, 1),), **choices)


def _pages(b: int, n: int) -> Iterator[dict[str, Any]]:
    """Yield pages that fill what their bounds, half a key for each page, leave of the budget."""
    for page, part, sinks in itertools.product((4, 8, 16, 32, 64, 128), (0, 1, 2, 4), (0, SINKS)):
        window = max(part * b // 8, 1)
        left = b - n // page // 2 - window - sinks - page // 2
        if left >= page:
            yield {"sinks": sinks, "window": window, "page": page, "pages": left // page}


def _lists(b: int, lists: tuple[int, ...], probes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Yield numbers of lists, and of probes that leave some of them out."""
    every = _hybrid(b, lists=lists, probes=probes)
    return (settings for settings in every if settings["probes"] < settings["lists"])


def _graphs(b: int, n: int) -> Iterator[dict[str, Any]]:
    for links, part, times in itertools.product((8, 16, 32), (32, 16, 8, 4, 2), (1, 2, 4, 8)):
        keys = max(b // part, 1)
        about = {"sinks": SINKS, "window": max(b // 4, 1), "links": links}
        yield about | {"keys": keys, "effort": times * keys}


def _sketches(b: int, n: int) -> Iterator[dict[str, Any]]:
    for estimator in ("union", "importance"):
        yield from _hybrid(b, tables=(8, 32, 128), bits=(8, 10, 12), estimator=(estimator,))
    yield from _hybrid(b, tables=(0,), bits=(1,), estimator=("cloud",))
    yield from _hybrid(b, tables=(8,), bits=(8, 10), estimator=("cloud",))


SOUGHT: dict[str, Method] = {
    "window": Method(cache_rivals.recent, lambda b, n: _grid(sinks=(0,), window=(b,))),
    "SnapKV": Method(
        cache_rivals.snapkv,
        lambda b, n: _parts(b, (0.5, 1, 2, 4), (0, 1, 4), pool=(1, 3, 5, 7)),
    ),
    "H2O": Method(
        cache_rivals.h2o,
        lambda b, n: _parts(b, (0.5, 1, 1.5, 2, 3, 4, 5, 6), (0, 1, 2, 4, 8, 16)),
    ),
    "Quest": Method(cache_rivals.quest, _pages),
    "graph": Method(cache_rivals.graph, _graphs),
    "IVF": Method(
        cache_rivals.inverted_file,
        lambda b, n: _lists(
            b, (16, 32, 64, 128, 256), (1, 2, 4, 8, 16, 20, 24, 32, 40, 48, 64, 80)
        ),
        True,
    ),
    "MagicPIG": Method(
        cache_rivals.magicpig,
        lambda b, n: _hybrid(b, tables=(8, 16, 32, 64, 128, 256), bits=(6, 8, 10, 12)),
        True,
    ),
    "sketch": Method(cache_sketch.tables, _sketches, True),
    "cells": Method(
        cache_sketch.cells,
        lambda b, n: _lists(b, (16, 64, 128), (0, 1, 4, 8, 16, 24, 32)),
        True,
    ),
    "best keys": Method(cache_rivals.best_keys, lambda b, n: _grid(keys=(b,))),
}


_TEXTS: dict[str, Any] = {}  # what the processes share: each runs some of the methods


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure all methods; nothing here runs on another device."""
    name, n, m = ("writer", 256, 16) if quick else (MODEL, N, M)
    budgets = BUDGETS[-2:-1] if quick else BUDGETS
    tables.add(methods=METHODS, simplified=SIMPLIFIED, model=name, n=n, m=m, budgets=budgets)
    windows = WINDOWS[:1] if quick else WINDOWS
    texts = [of_text(real_keys.layers(n, part="test", name=name, i=i), m) for i in windows]
    if not quick:
        tables.whole("windows", lambda: list(windows_alone(n, name)))
    if tables.path is not None:
        keep(name, texts[0], real_keys.window(n, "test", windows[0]), tables.path)
    validation = real_keys.layers(n, part="validation", name=name)
    _TEXTS.update(texts=texts, validation=of_text(validation, min(TUNED_ON, m)), n=n)
    _TEXTS.update(budgets=budgets, seeds=1 if quick else SEEDS)
    if quick:
        found = list(map(of_method, SOUGHT))
    else:
        with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as pool:
            found = list(pool.map(of_method, SOUGHT))
    tables.add(
        settings=[row for settings, _, _ in found for row in settings],
        decoding=[row for _, rows, _ in found for row in rows],
        heads=[row for _, _, heads in found for row in heads],
    )


def of_method(name: str) -> tuple[list[dict[str, Any]], ...]:
    """Return settings, rows and errors of the heads of a method."""
    method, heads = SOUGHT[name], list[dict[str, Any]]()
    settings = tune(name, method, _TEXTS["validation"], _TEXTS["n"], _TEXTS["budgets"])
    chosen = [row for row in settings if row["settings"] is not None]
    return settings, [test(row, _TEXTS["texts"], _TEXTS["seeds"], heads) for row in chosen], heads


def tune(
    name: str, method: Method, text: list[list[Past]], n: int, budgets: tuple[float, ...]
) -> list[dict[str, Any]]:
    """Return a row for each budget: the settings of least error within it."""
    found = []
    for budget in budgets:
        grid, within = list(method.grid(int(budget * (n - text[0][0].m)), n)), []
        for settings in grid:
            if _judged([text[-1][:1]], method.run, settings)[1].mean() > 2 * budget:
                continue  # one head says enough
            error, read, _ = _judged(text[1::2], method.run, settings)
            if read.mean() <= 1.02 * budget:
                within.append((float(error.mean()), float(read.mean()), settings))
        row = {"method": name, "budget": budget, "settings": None}
        row |= {"tried": len(grid), "within": len(within)}
        if within:
            error, read, settings = min(within, key=lambda x: x[0])
            row |= {"settings": settings, "validation_error": error, "validation_share": read}
        harness.log(f"  {row}")
        found.append(row)
    return found


def _judged(
    heads: list[list[Past]], run: Callable[..., Read], settings: dict[str, Any], seed: int = 0
) -> np.ndarray:
    """Return relative error, share and share beside the keys of each layer and head, (3, l, h)."""
    found = np.zeros((3, len(heads), len(heads[0])))
    for i, layer in enumerate(heads):
        for h, past in enumerate(layer):
            past.seed = seed
            read = run(past, **settings)
            off = answer(past, read) - past.exact
            found[0, i, h] = np.linalg.norm(off) / np.linalg.norm(past.exact)
            found[1:, i, h] = share(past, read)
    return found


def keep(name: str, text: list[list[Past]], ids: np.ndarray, path: Path) -> None:
    """Write what a layer of a text attends with, in half precision, for the book's cells."""
    layer = text[LAYER]
    groups = (
        len(layer) // real_keys.model(name).weights.decoder.layers[LAYER].self_attention.n_kv_heads
    )
    np.savez_compressed(
        path.with_name("long_cache.npz"),
        ids=ids.astype(np.int16),
        query=np.stack([past.query for past in layer]).astype(np.float16),
        key=np.stack([past.key for past in layer[::groups]]).astype(np.float16),
        value=np.stack([past.value for past in layer[::groups]]).astype(np.float16),
    )


def test(
    chosen: dict[str, Any],
    texts: list[list[list[Past]]],
    seeds: int,
    heads: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return the row of a method, and put the errors of its heads into `heads`."""
    method = SOUGHT[chosen["method"]]
    draws = range(1, 1 + seeds) if method.is_random else (0,)
    found = [
        _judged(text, method.run, chosen["settings"], seed) for text in texts for seed in draws
    ]
    error, read, beside = np.mean(found, axis=0)
    of_draws = np.mean(found, axis=(2, 3))[:, 0].reshape(len(texts), -1).mean(axis=0)
    row = {
        **{name: chosen[name] for name in ("method", "budget", "settings", "tried", "within")},
        "share": float(read.mean()),
        "beside": float(beside.mean()),
        "error": float(error.mean()),
        "error_low": float(of_draws.min()),
        "error_high": float(of_draws.max()),
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
