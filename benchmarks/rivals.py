"""What a language model has to beat: n-gram models and compressors, in bits per byte of the plays.

Two tables. `ngrams`: Kneser-Ney models of bytes, of the writer's byte pairs and of words, with and
without a cache, tuned on the validation plays. `compressors`: gzip, bz2 and xz, alone and after
the training plays. The writer itself is measured by `writer`.
"""

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnbook import data, models
from benchmarks import harness
from benchmarks.rivals_cache import Cache, seen
from benchmarks.rivals_ngrams import Ngrams, as_bytes, bits
from benchmarks.rivals_words import Words
from benchmarks.tables import Step, Tables, shown

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
    """Measure the rivals on the plays; nothing here runs on another device."""
    text = texts(quick, tables)
    tables.add(methods=METHODS)
    pairs = pair_ids(models.writer().tokenizer, text)
    steps = [
        Step({"unit": "word"}, 1, partial(word_ngrams, text)),
        Step({"unit": "byte pair"}, 2, partial(ngrams, "byte pair", pairs, text)),
        Step({"unit": "byte"}, 4, partial(ngrams, "byte", byte_ids(text), text)),
    ]
    tables.measure("ngrams", steps)
    tables.whole("compressors", lambda: list(compressors(text)))


def texts(quick: bool, tables: Tables) -> Text:
    """Return the plays, and put into the record which they are."""
    plays = data.plays()
    most = QUICK_BYTES if quick else {}
    text = Text(*(getattr(plays, part)[: most.get(part)] for part in Text._fields))
    tables.add(
        titles={part: list(titles) for part, titles in plays.titles.items()},
        bytes={part: len(x.encode()) for part, x in text._asdict().items()},
    )
    return text


def pair_ids(tokenizer: data.BytePairs, text: Text) -> Ids:
    """Return the texts as byte pairs."""
    return Ids(*map(tokenizer.encode, text), len(tokenizer))


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
    reaches = {"the whole text": None} | ({"255 tokens": 255} if unit == "byte pair" else {})
    for name, window in reaches.items():
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
