"""The writer beside n-gram models and compressors: bits per byte of plays it never saw.

Four tables. `ngrams`: Kneser-Ney models of bytes, of the writer's byte pairs and of words, with and
without a cache, tuned on the validation plays. `compressors`: gzip, bz2 and xz, alone and after
the training plays. `writer`: the model that the package carries. `places`: how its bits fall with
the tokens in view.
"""

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnbook import data, log_softmax, models, transformer
from benchmarks import harness
from benchmarks.tables import Step, Tables, shown
from benchmarks.writer_cache import Cache, seen
from benchmarks.writer_ngrams import Ngrams, as_bytes, bits
from benchmarks.writer_words import Words

DEVICES = ("cpu",)
BYTE_ORDERS, PAIR_ORDERS, WORD_ORDERS = (1, 2, 3, 4, 5, 6, 8, 10), (1, 2, 3, 4, 5, 6), (1, 2, 3, 4)
CACHED = {"byte": 10, "byte pair": 4}  # the order that a cache stands beside
LONGEST = {"byte": 10, "byte pair": 6}  # context in the cache
XZ = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 26}]
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip -9": partial(gzip.compress, compresslevel=9, mtime=0),
    "bz2 -9": partial(bz2.compress, compresslevel=9),
    "xz -9e": partial(lzma.compress, filters=XZ),  # its dictionary holds all the plays
}
QUICK_BYTES = {"train": 40_000, "validation": 3_000, "test": 3_000}

METHODS = {
    "validation, test": (
        "Bits per byte of the validation plays and of the test plays: minus the sum of log2 p over "
        "all tokens, divided by the bytes of the text. Every token counts, the first too."
    ),
    "Kneser-Ney": (
        "Interpolated, three discounts per order, which were tuned on the validation plays, from "
        "the training plays alone. A word that occurs in them less than three times is spelled by "
        "a Kneser-Ney model of bytes of order 6."
    ),
    "cache": (
        "What followed the same tokens before in the text being read: in the last 255 tokens, "
        "which is what the writer sees, or in all of it. Its weights were fitted on the validation "
        "plays."
    ),
    "compressors": (
        "`alone`: bits of the compressed text. `after_train`: by how many bits training and this "
        "text compressed together exceed the training text compressed alone."
    ),
    "writer": (
        "Windows of the writer's whole context, each half a context after the one before. A token "
        "is predicted from at least half a context, but for the first ones of the text. "
        "`places` has the mean over all windows, for the tokens that a prediction had in view."
    ),
}


class Text(NamedTuple):
    """The plays, as much as is used of them."""

    train: str
    validation: str
    test: str


class Ids(NamedTuple):
    """The plays in some unit, and how many ids that has."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    n_ids: int


def measure(device: str, *, quick: bool, tables: Tables) -> None:
    """Measure all models on the plays; nothing here runs on another device."""
    plays = data.plays()
    most = QUICK_BYTES if quick else {}
    text = Text(*(getattr(plays, part)[: most.get(part)] for part in Text._fields))
    writer = models.writer()
    tables.add(
        methods=METHODS,
        titles={part: list(titles) for part, titles in plays.titles.items()},
        bytes={part: len(x.encode()) for part, x in text._asdict().items()},
    )
    pairs = Ids(*map(writer.tokenizer.encode, text), len(writer.tokenizer))
    steps = [
        Step({"unit": "word"}, 1, partial(word_ngrams, text)),
        Step({"unit": "byte pair"}, 2, partial(ngrams, "byte pair", pairs, text)),
        Step({"unit": "byte"}, 4, partial(ngrams, "byte", byte_ids(text), text)),
    ]
    tables.measure("ngrams", steps)
    tables.whole("compressors", lambda: list(compressors(text)))
    losses = [per_token(writer, ids) for ids in (pairs.validation, pairs.test)]
    tables.whole("writer", lambda: [writer_row(writer, text, losses)])
    tables.whole("places", lambda: list(places(writer, pairs, losses)))


# Rivals


def byte_ids(text: Text) -> Ids:
    """Return the texts as bytes."""
    return Ids(*map(as_bytes, text), 256)


def ngrams(unit: str, ids: Ids, text: Text) -> list[dict[str, Any]]:
    """Return a row for each order, and for the one with a cache."""
    orders = BYTE_ORDERS if unit == "byte" else PAIR_ORDERS
    model = Ngrams(ids.train, ids.n_ids, max(orders))
    rows = []
    for order in orders:
        discounts = model.tuned(ids.validation, order)
        p = [model.probabilities(model.places(x), discounts) for x in (ids.validation, ids.test)]
        rows.append(row(unit, order, None, text, *map(bits, p)))
        if order == CACHED[unit]:
            rows += cached(unit, order, ids, text, p)
    return rows


def cached(unit: str, order: int, ids: Ids, text: Text, p: list[np.ndarray]):
    """Return rows of a model beside a cache of two reaches."""
    for window, name in ((255, "255 tokens"), (None, "the whole text")):
        past = [seen(x, LONGEST[unit], window) for x in (ids.validation, ids.test)]
        cache = Cache(LONGEST[unit]).fit(p[0], past[0])
        costs = [bits(cache.probabilities(*x)) for x in zip(p, past, strict=True)]
        yield row(unit, order, name, text, *costs)


def word_ngrams(text: Text) -> list[dict[str, Any]]:
    """Return a row for each order of words."""
    words = Words(text.train, text.validation)
    ids = Ids(*map(words.encode, text), len(words))
    spelled = [words.bits(x) for x in (text.validation, text.test)]
    model = Ngrams(ids.train, ids.n_ids, max(WORD_ORDERS))
    rows = []
    for order in WORD_ORDERS:
        discounts = model.tuned(ids.validation, order)
        p = [model.probabilities(model.places(x), discounts) for x in (ids.validation, ids.test)]
        costs = [bits(x) + more for x, more in zip(p, spelled, strict=True)]
        rows.append(row("word", order, None, text, *costs))
    return rows


def row(unit: str, order: int, cache: str | None, text: Text, *costs: float) -> dict[str, Any]:
    """Return the row of an n-gram model from its bits on the validation and test plays."""
    about = {"model": "Kneser-Ney", "unit": unit, "order": order, "cache": cache}
    return per_byte(about, text, *costs)


def per_byte(about: dict[str, Any], text: Text, validation: float, test: float) -> dict[str, Any]:
    """Return and tell a row with bits per byte from bits."""
    found = {
        "validation": validation / len(text.validation.encode()),
        "test": test / len(text.test.encode()),
    }
    harness.log(f"  {shown(about | found)}")
    return about | found


def compressors(text: Text) -> Iterator[dict[str, Any]]:
    """Give two rows for each compressor."""
    train, *others = (x.encode() for x in text)
    for name, compress in COMPRESSORS.items():
        alone = [8 * len(compress(x)) for x in others]
        yield per_byte({"model": name, "how": "alone"}, text, *alone)
        before = 8 * len(compress(train))
        after = [8 * len(compress(train + x)) - before for x in others]
        yield per_byte({"model": name, "how": "after_train"}, text, *after)


# The writer


class Losses(NamedTuple):
    """The bits of each token of a text, and of each place of each window."""

    tokens: np.ndarray
    windows: np.ndarray  # (windows, context), with NaN behind the end of the text


def per_token(writer: Any, ids: np.ndarray) -> Losses:
    """Return what each token costs the writer."""
    context, n = writer.context, len(ids)
    before = np.concatenate(([writer.tokenizer.stop], ids[:-1]))
    tokens, windows = np.full(n, np.nan), []
    for start in range(0, max(n - context // 2, 1), context // 2):
        labels = ids[start : start + context]
        logits = transformer(None, before[start : start + context], writer.weights)
        lost = -log_softmax(np.asarray(logits, np.float64))[np.arange(len(labels)), labels]
        lost /= np.log(2)
        fresh = np.isnan(tokens[start : start + context])
        tokens[start : start + context][fresh] = lost[fresh]
        windows.append(np.pad(lost, (0, context - len(lost)), constant_values=np.nan))
    return Losses(tokens, np.array(windows))


def writer_row(writer: Any, text: Text, losses: list[Losses]) -> dict[str, Any]:
    """Return the row of the writer, with its sizes."""
    about = {
        "model": "writer",
        "unit": "byte pair",
        "context": writer.context,
        "parameters": sum(x.size for x in writer.weights.arrays().values()),
    }
    return per_byte(about, text, *(float(x.tokens.sum()) for x in losses))


def places(writer: Any, ids: Ids, losses: list[Losses]) -> Iterator[dict[str, Any]]:
    """Give a row for each doubling of the tokens in view: bits per token, ours and an n-gram's."""
    model = Ngrams(ids.train, ids.n_ids, CACHED["byte pair"])
    discounts = model.tuned(ids.validation, CACHED["byte pair"])
    lost = -np.log2(model.probabilities(model.places(ids.test), discounts))
    context, half = writer.context, writer.context // 2
    starts = half * np.arange(len(losses[1].windows))[:, np.newaxis]
    at = np.minimum(starts + np.arange(context), len(ids.test) - 1)
    theirs = np.where(np.isnan(losses[1].windows), np.nan, lost[at])
    first = 1
    while first <= context:
        last = context if 4 * first > context else 2 * first - 1
        part = slice(first - 1, last)
        yield {
            "first": first,
            "last": last,
            "writer": float(np.nanmean(losses[1].windows[:, part])),
            "ngrams": float(np.nanmean(theirs[:, part])),
        }
        first = last + 1
